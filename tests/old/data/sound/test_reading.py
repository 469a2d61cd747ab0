"""Readers of recordings: folders, pairs, datasets of the hub, and files that cannot be read."""

import os
import pickle
import shutil

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import sounds
import torch

from headwise.data.sound import reading
from headwise.data.sound.audio import AudioError
from headwise.data.sound.reading import read_folder
from headwise.data.sound.voices import speak
from headwise.data.sources import CorpusError
from headwise.tasks.metrics import si_sdr

# --- folders -----------------------------------------------------------------------------------


def test_bad_files_are_skipped_and_named(tmp_path):
    sounds.write_speech(tmp_path)
    made = sounds.load(sounds.folders(tmp_path))
    assert "skipped" not in made.notes
    count = sounds.break_files(tmp_path)
    again = sounds.load(sounds.folders(tmp_path, speaker_pattern=None, noise=["white"]))
    assert again.notes["skipped"].startswith(f"{count} (")
    for name in ("empty.wav", "text.wav", "nothing.wav", "cut.flac", "nan.wav"):
        assert name in again.notes["skipped"]
    for path in tmp_path.glob("*_0.wav"):
        path.unlink()
    with pytest.raises(
        AudioError, match=r"has 0 recordings that can be read, .*: 5 \(.*empty\.wav"
    ):
        sounds.load(sounds.folders(tmp_path, speaker_pattern=None, noise=["white"]))


def test_recordings_are_read_once_and_opened_by_whoever_needs_them(tmp_path, monkeypatch):
    sounds.write_speech(tmp_path)
    before = read_folder(tmp_path, 8_000, [])
    with monkeypatch.context() as patched:
        patched.setattr(reading, "read_audio", None)
        again = read_folder(tmp_path, 8_000, [], "_([a-z])_")
    assert {r.file for r in before} == {r.file for r in again}
    packed = pickle.dumps(again[5])  # as it is sent to a worker
    assert len(packed) < 1_000
    assert np.array_equal(pickle.loads(packed).read(7, 9), before[5].read()[7:16])
    sounds.write(tmp_path / before[0].name, sounds.tone(50, 8_000), 8_000)
    assert read_folder(tmp_path, 8_000, [])[0].samples == 50


def test_speakers_that_are_not_found_in_a_name(tmp_path):
    sounds.write_speech(tmp_path)
    with pytest.raises(AudioError, match=r"speaker_pattern is 'x\(y\)', .* '0_a_0\.wav' in"):
        sounds.load(sounds.folders(tmp_path, speaker_pattern="x(y)"))


def test_the_speaker_is_the_folder_without_a_pattern(tmp_path):
    sounds.write(tmp_path / "anna" / "1" / "x.wav", sounds.tone(100, 8_000), 8_000)
    sounds.write(tmp_path / "y.wav", sounds.tone(100, 8_000), 8_000)
    found = read_folder(tmp_path, 8_000, [])
    assert [(r.name, r.speaker) for r in found] == [("anna/1/x.wav", "anna/1"), ("y.wav", "")]


# --- pairs -------------------------------------------------------------------------------------


def test_voicebank_as_it_is_downloaded(tmp_path):
    sounds.write_voicebank(tmp_path)
    sounds.write_voicebank(tmp_path, "testset", count=2)
    test = {key: str(tmp_path / f"{key}_testset_wav") for key in ("noisy", "clean")}
    made = sounds.load(
        sounds.pairs(tmp_path, test=test, speaker_pattern="(p[0-9]+)_", divide_by="speaker")
    )
    assert [len(part) for part in (made.train, made.validation, made.test)] == [3, 3, 2]
    noisy, clean = made.test.whole(1)
    assert len(noisy) == len(clean) == int(0.8 * 8_000)  # from 48 kHz, all of it
    assert 5 < si_sdr(clean, noisy) < 40
    assert made.train.lengths == [made.train[i]["inputs"].size(0) for i in range(3)]
    before = made.train[2]["inputs"]
    made.train.set_epoch(1)
    assert not torch.equal(made.train[2]["inputs"], before)  # another piece


def test_dns_test_set_by_the_number_in_its_names(tmp_path):
    draw = np.random.default_rng(0)
    for index in range(3):
        clean = speak(index, 0, 0.7, 16_000)
        sounds.write(tmp_path / "clean" / f"clean_fileid_{index}.wav", clean, 16_000)
        noisy = clean + 0.01 * draw.standard_normal(len(clean))
        name = f"clnsp{9 - index}_train_{index}_snr{index}_fileid_{index}.wav"
        sounds.write(tmp_path / "noisy" / name, noisy, 16_000)
    of = {"noisy": str(tmp_path / "noisy"), "clean": str(tmp_path / "clean")}
    of["pattern"] = r"fileid_(\d+)"
    made = sounds.load(sounds.folders(sounds.write_speech(tmp_path / "speech"), test=of))
    assert len(made.test) == 3
    assert all(si_sdr(*reversed(made.test.whole(index))) > 5 for index in range(3))
    without = {key: value for key, value in of.items() if key != "pattern"}
    with pytest.raises(AudioError, match="no files that belong together, such as clnsp"):
        sounds.load(sounds.folders(tmp_path / "speech", test=without))


def test_pairs_that_are_none_are_skipped_and_named(tmp_path):
    sounds.write_voicebank(tmp_path)
    (tmp_path / "clean_trainset_wav" / "p226_000.wav").unlink()
    (tmp_path / "noisy_trainset_wav" / "p227_001.wav").unlink()
    short = tmp_path / "clean_trainset_wav" / "p226_002.wav"
    sounds.write(short, sounds.tone(4_800, 48_000), 48_000)
    made = sounds.load(sounds.pairs(tmp_path))
    assert made.notes["skipped"].startswith("3 (")
    for words in ("p226_000.wav has no partner", "p227_001.wav has no", "p226_002.wav is not as"):
        assert words in made.notes["skipped"]
    assert sum(map(len, (made.train, made.validation, made.test))) == 3


def test_files_of_one_pair_that_are_too_many_are_skipped_and_named(tmp_path):
    sounds.write_voicebank(tmp_path)
    for folder, name in (("clean", "p226_000"), ("noisy", "p227_001")):
        of = tmp_path / f"{folder}_trainset_wav"
        shutil.copy(of / f"{name}.wav", of / f"{name}.flac")
    made = sounds.load(sounds.pairs(tmp_path))
    skipped = made.notes["skipped"]
    assert skipped.startswith("2 (") and "p226_000.flac has the same partner as p226_0" in skipped
    assert "p227_001.wav has the same partner as another one" in skipped


def test_a_name_that_is_not_utf8_is_skipped_and_shown(tmp_path):
    sounds.write_speech(tmp_path)
    (tmp_path / "0_a_0.wav").rename(tmp_path / os.fsdecode(b"0_a_\xe9.wav"))
    skipped = []
    assert len(read_folder(tmp_path, 8_000, skipped)) == 17
    assert skipped == [
        f"{tmp_path}/0_a_\\udce9.wav has a name that is not UTF-8; rename it, or leave it out"
    ]


# --- Hugging Face datasets ---------------------------------------------------------------------


def write_hub(path, count=5):
    """As JacobLinCool/VoiceBank-DEMAND-16k: parquet with id and two columns of sound."""
    sounds.write_voicebank(path / "raw", count=count, rate=16_000)
    for split in ("train", "test"):
        rows = {"id": [], "clean": [], "noisy": []}
        for file in sorted((path / "raw" / "clean_trainset_wav").iterdir()):
            rows["id"].append(file.stem)
            for kind in ("clean", "noisy"):
                sound = (path / "raw" / f"{kind}_trainset_wav" / file.name).read_bytes()
                rows[kind].append({"bytes": sound, "path": file.name})
        if split == "train":
            rows["noisy"][1] = {"bytes": b"broken", "path": "broken.wav"}
            rows["clean"].append(rows["clean"][0])
            rows["noisy"].append(rows["noisy"][2])
            rows["id"].append("p9_unequal")
        features = datasets.Features(
            {
                "id": datasets.Value("string"),
                "clean": datasets.Audio(sampling_rate=16_000, decode=False),
                "noisy": datasets.Audio(sampling_rate=16_000, decode=False),
            }
        )
        # With datasets itself, encoding sound needs ffmpeg.
        table = pyarrow.table(rows, schema=features.arrow_schema)
        pyarrow.parquet.write_table(table, path / f"{split}-00000-of-00001.parquet")
    shutil.rmtree(path / "raw")
    return {"corpus": "hub", "name": str(path), "rate": 16_000, "seconds": 1}


def test_a_dataset_in_the_format_of_the_hub(tmp_path):
    data = write_hub(tmp_path)
    made = sounds.load({**data, "speaker_pattern": "^(p[0-9]+)_"})
    assert [len(part) for part in (made.train, made.validation, made.test)] == [3, 1, 5]
    assert "broken.wav cannot be read as sound" in made.notes["skipped"]
    assert "p9_unequal is not as long as its clean partner" in made.notes["skipped"]
    assert {r.speaker for r in made.test.noisy} == {"p226", "p227"}
    assert all(si_sdr(*reversed(made.test.whole(index))) > 5 for index in range(5))
    with pytest.raises(AudioError, match=r"has no column 'wet', expected one of id, clean, noisy"):
        sounds.load({**data, "noisy_field": "wet"})
    with pytest.raises(CorpusError, match=r"split 'nowhere'\) could not be loaded"):
        sounds.load({**data, "train_split": "nowhere"})
