"""The data, the batches and the scores of speech enhancement."""

import importlib.util
import itertools
import json
import math
import shutil
import signal
from dataclasses import replace
from importlib import resources

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import sounds
import torch
import yaml
from pydantic import ValidationError
from rich.console import Console
from transformers import set_seed

from headwise.models.speech import SpeechEnhancer
from headwise.tasks import speech
from headwise.tasks.parts import PARTS
from headwise.tasks.sound import dataset, metrics, recordings
from headwise.tasks.sound.audio import AudioError
from headwise.tasks.sound.metrics import pesq_score, si_sdr
from headwise.tasks.sound.mixing import rms
from headwise.tasks.sound.reading import read_folder
from headwise.tasks.sound.recordings import Skipped
from headwise.tasks.sound.voices import speak
from headwise.tasks.sources import CorpusError
from headwise.tasks.speech import SpeechEnhancement, SpeechRecipe
from headwise.training.run import Interrupted, run_training

MODEL = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 24, "layers": 3, "front_channels": [24]}
TRAINING = {"max_steps": 4, "batch_tokens": 256, "learning_rate": 1e-3, "warmup_steps": 0}
TRAINING |= {"evaluate_every": 2, "log_every": 1, "schedule": "constant"}
PLANS = {
    "standard": "standard",
    "weighted": "weighted",
    "agreement": "agreement",
    "mae": "mae",
    "tim": {"system": "tim", "layers": [1]},
    "moa": {"system": "moa", "size": "2K5E4D"},
}
GENERATED = {"corpus": "generated", "rate": 8_000, "seconds": 1, "speakers": 3, "utterances": 4}


def recipe(data=None, **changes):
    made = {"task": "speech-enhancement", "data": data or GENERATED, "model": MODEL}
    made |= {"training": TRAINING, **changes}
    return SpeechRecipe.model_validate(made)


def task(data=None, **changes):
    return SpeechEnhancement.prepare(recipe(data, **changes))


def folders(path, **changes):
    data = {"corpus": "folders", "clean": str(path), "rate": 8_000, "seconds": 1}
    return {**data, "speaker_pattern": "_([a-z])_", **changes}


def pairs(path, **changes):
    data = {"corpus": "pairs", "rate": 8_000, "seconds": 1}
    train = {"noisy": str(path / "noisy_trainset_wav"), "clean": str(path / "clean_trainset_wav")}
    return {**data, "train": train, **changes}


def write_voicebank(path, part="trainset", count=6, rate=48_000):
    """As VoiceBank: two folders with equal names, at 48 kHz."""
    draw = np.random.default_rng(0)
    for index in range(count):
        clean = speak(index, 0, 0.6 + 0.2 * index, rate)
        noisy = clean + 0.01 * draw.standard_normal(len(clean))
        name = f"p{226 + index % 2}_{index:03}.wav"
        sounds.write(path / f"clean_{part}_wav" / name, clean, rate)
        sounds.write(path / f"noisy_{part}_wav" / name, noisy, rate)
    return path


@pytest.fixture(scope="module")
def generated():
    return task()


@pytest.fixture(scope="module")
def network(generated):
    set_seed(1)
    return generated.build_model(recipe(model={**MODEL, "attention": PLANS["tim"]}).model).eval()


# --- items ------------------------------------------------------------------------------------


def test_a_training_item_depends_on_seed_epoch_and_index_alone():
    one, other = task(), task()
    for made in (one, other):
        made.train.set_epoch(3)
    before = one.train[1]
    one.train[0], one.train.set_epoch(2), one.train[1], one.train.set_epoch(3)
    for key in ("inputs", "labels"):
        assert torch.equal(one.train[1][key], before[key])
        assert torch.equal(other.train[1][key], before[key])
    one.train.set_epoch(4)
    assert not torch.equal(one.train[1]["inputs"], before["inputs"])
    assert not torch.equal(one.train[2]["inputs"], one.train[1]["inputs"])
    reseeded = task({**GENERATED, "seed": 2})
    reseeded.train.set_epoch(3)
    assert not torch.equal(reseeded.train[1]["inputs"], before["inputs"])


@pytest.mark.parametrize("part", ["validation", "test"])
def test_other_parts_are_fixed(part):
    items = getattr(task(), part)
    before = items[0]["inputs"]
    items.set_epoch(5)
    assert torch.equal(items[0]["inputs"], before)
    assert torch.equal(items[-len(items)]["inputs"], before)
    with pytest.raises(IndexError, match=f"index is {len(items)}, expected"):
        items[len(items)]


def test_parts_have_different_noise(tmp_path):
    sounds.write_speech(tmp_path)
    made = task(folders(tmp_path, noise=["white"], snr=[0, 0]))
    noises = []
    for part in (made.train, made.validation, made.test):
        noisy, clean = part.excerpt(0)
        noises.append((noisy - clean)[:1_000] / rms(noisy - clean))
    for one, other in itertools.combinations(noises, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.2


def test_items_are_as_long_as_they_say_and_finite(generated):
    for part in (generated.train, generated.validation, generated.test):
        for index in range(len(part)):
            item = part[index]
            assert item["inputs"].shape == item["labels"].shape == (part.lengths[index], 129)
            assert torch.isfinite(item["inputs"]).all() and torch.isfinite(item["labels"]).all()


def test_a_batch_is_padded_with_silence_and_ignored_labels(generated):
    items = [generated.train[0], {key: x[:5] for key, x in generated.train[1].items()}]
    batch = generated.collate(items)
    time = len(items[0]["inputs"])
    assert batch["inputs"].shape == batch["labels"].shape == (2, time, 129)
    assert batch["attention_mask"].sum(1).tolist() == [time, 5]
    assert (batch["inputs"][1, 5:] == 0).all() and (batch["labels"][1, 5:] == -100).all()
    assert torch.equal(batch["labels"][1, :5], items[1]["labels"])
    assert (batch["labels"][0] > -10).all()


def test_noise_is_as_loud_as_asked_for(generated):
    quiet = task({**GENERATED, "snr": [40, 40], "level": [-20, -20], "noise": ["white"]})
    loud = task({**GENERATED, "snr": [-5, -5], "level": [-20, -20], "noise": ["white"]})
    for made, snr in ((quiet, 40), (loud, -5)):
        noisy, clean = made.test.whole(0)
        assert 20 * math.log10(rms(clean) / rms(noisy - clean)) == pytest.approx(snr, abs=0.1)
        assert 20 * math.log10(rms(noisy)) == pytest.approx(-20, abs=0.1)


def test_reverberation_is_heard_and_is_not_in_the_target():
    dry = task({**GENERATED, "noise": ["white"], "snr": [90, 90]})
    wet = task({**GENERATED, "noise": ["white"], "snr": [90, 90], "reverberation": 1})
    assert si_sdr(*reversed(dry.test.whole(0))) > 60
    noisy, clean = wet.test.whole(0)
    assert si_sdr(clean, noisy) < 15
    assert abs(np.corrcoef(clean, dry.test.whole(0)[1])[0, 1]) == pytest.approx(1, abs=1e-3)


def test_silent_speech_gives_an_item(tmp_path):
    for name in "abcd":
        sounds.write(tmp_path / f"{name}.wav", np.zeros((9_000, 1)), 8_000)
    made = task(folders(tmp_path, speaker_pattern=None, noise=["pink"]))
    item = made.train[0]
    assert item["inputs"].max() > 0 and torch.isfinite(item["labels"]).all()
    assert item["labels"].max() == item["labels"].min()


# --- folders ----------------------------------------------------------------------------------


@pytest.mark.parametrize("divide_by", ["file", "speaker"])
def test_parts_share_no_file_and_if_asked_no_speaker(tmp_path, divide_by):
    data = folders(sounds.write_speech(tmp_path, words=8), divide_by=divide_by, noise=["white"])
    made = task(data)
    parts = (made.train, made.validation, made.test)
    names = [{r.name for r in part.clean} for part in parts]
    speakers = [{r.speaker for r in part.clean} for part in parts]
    assert sum(map(len, names)) == len(set.union(*names)) == 24
    assert all(names)
    if divide_by == "speaker":
        assert sum(map(len, speakers)) == 3
    assert made.notes["train"].startswith(f"{len(made.train)} items of at most 1 s")


def test_short_recordings_of_one_speaker_are_joined(tmp_path):
    made = task(folders(sounds.write_speech(tmp_path, words=9)))
    chains = [piece.recordings for piece in made.test.pieces]
    for index, chain in enumerate(chains):
        assert len({made.test.clean[i].speaker for i in chain}) == 1
        noisy, clean = made.test.whole(index)
        assert len(clean) == sum(made.test.clean[i].samples for i in chain) == len(noisy)
        more = f" and {len(chain) - 1} more" if len(chain) > 1 else ""
        assert made.test.name(index) == made.test.clean[chain[0]].name + more
    assert set(made.train.lengths) == {63}
    assert sorted(i for chain in chains for i in chain) == list(range(len(made.test.clean)))


def normalised(wave):
    return wave / rms(wave)


def write_long(path):
    for kind in ("clean", "noisy"):
        for name, seconds in (("long", 7), ("short", 1.5), ("other", 1.5)):
            wave = speak(len(name), 0, seconds, 8_000)
            sounds.write(path / kind / f"0_{name[0]}_{name}.wav", wave, 8_000)
    return {kind: str(path / kind) for kind in ("clean", "noisy")}


def test_long_pairs_are_scored_to_their_end_once(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "PIECE_SECONDS", 2)
    of = write_long(tmp_path)
    parts = {"train": of, "validation": of, "test": of}
    made = task({"corpus": "pairs", "rate": 8_000, "seconds": 1, **parts})
    assert made.notes["test"].startswith("6 items of at most 1 s from 3 recordings")
    assert made.notes["test"].endswith("longer than 2 s are cut into pieces, which makes 3 more")
    assert "pieces" not in made.notes["train"]
    assert [len(part) for part in (made.train, made.validation, made.test)] == [3, 6, 6]
    assert made.test.name(0) == "0_l_long.wav" and made.test.name(2) == "0_l_long.wav, from 0:03"
    wave = speak(4, 0, 7, 8_000)
    for part in (made.train, made.test):
        assert len(part.pieces) == 6
        pieces = [part.whole(index)[0] for index in range(4)]
        assert np.abs(np.concatenate(pieces) - wave).max() < 1e-3
        assert {len(piece) for piece in pieces} == {14_000}
    for index in range(4):  # the validation loss is of the beginning of each piece
        assert np.array_equal(made.test.excerpt(index)[0], made.test.whole(index)[0][: 62 * 128])


def test_long_recordings_are_mixed_and_scored_to_their_end_once(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "PIECE_SECONDS", 2)
    write_long(tmp_path)
    made = task(folders(tmp_path / "clean", noise=["white"], snr=[90, 90]))
    wave = speak(4, 0, 7, 8_000)
    (part,) = (
        part
        for part in (made.train, made.validation, made.test)
        if part.clean[0].name == "0_l_long.wav"
    )
    assert len(part.pieces) == 4 and len(part) == (7 if part is made.train else 4)
    for index, piece in enumerate(np.split(wave, 4)):
        assert np.abs(normalised(part.whole(index)[1]) - normalised(piece)).max() < 1e-2
    assert not np.array_equal(part.whole(0)[0] - part.whole(0)[1], part.whole(1)[0])


def test_the_training_part_is_scored_without_repeats(tmp_path, network):
    made = task(folders(sounds.write_speech(tmp_path), noise=["white"], seconds=0.25))
    names = [made.train.name(index) for index in range(len(made.train.pieces))]
    assert len(set(names)) == len(names) == len(made.train.clean) < len(made.train)
    done = []
    settings = recipe(evaluation={"pictures": 0}).evaluation
    outcome = made.evaluate(network, made.train, settings, done.append)
    assert len(outcome.items) == len(names) and sum(done) == len(made.train)


def test_babble_is_of_other_speakers(tmp_path, monkeypatch):
    made = task(folders(sounds.write_speech(tmp_path), noise=["babble"]))
    talked = []
    talk = dataset._talk

    def watch(draw, recordings, of, samples):
        talked.append({recordings[i].speaker for i in of})
        return talk(draw, recordings, of, samples)

    monkeypatch.setattr(dataset, "_talk", watch)
    for part in (made.train, made.validation, made.test):
        for index in range(len(part)):
            talked.clear()
            part.excerpt(index)
            if part is made.train:
                (speaker,) = talked.pop(0)  # of the speech itself
            else:
                speaker = part.clean[part.pieces[index].recordings[0]].speaker
            assert 3 <= len(talked) <= 6 and all(speaker not in voices for voices in talked)


def test_babble_is_of_the_part_or_the_notes_say_so(tmp_path):
    data = folders(sounds.write_speech(tmp_path, speakers=6), noise=["babble"])
    data |= {"divide_by": "speaker", "test_fraction": 0.3}
    made = task(data)
    speakers = {part: {r.speaker for r in getattr(made, part).clean} for part in PARTS}
    assert [len(speakers[part]) for part in PARTS] == [3, 1, 2]
    for part, of in (("train", "train"), ("validation", "train"), ("test", "test")):
        assert {r.speaker for r in getattr(made, part).voices} == speakers[of]
    assert made.notes["babble"] == (
        "made of training voices in validation, where there is one speaker"
    )
    assert "babble" not in task({**data, "divide_by": "file"}).notes
    assert "babble" not in task({**data, "noise": ["white"]}).notes


def test_babble_needs_other_speakers(tmp_path):
    sounds.write_speech(tmp_path, speakers=1)
    with pytest.raises(AudioError, match="all speech has one speaker, expected several"):
        task(folders(tmp_path))
    sounds.write_speech(tmp_path)
    two = folders(tmp_path, noise=["babble"], divide_by="speaker")
    with pytest.raises(AudioError, match="the training part has one speaker, expected several"):
        task(two)


def test_recorded_noise_is_divided_too(tmp_path):
    speech_folder = sounds.write_speech(tmp_path / "speech")
    for index in range(6):
        sound = sounds.tone(4_000 if index else 50_000, 8_000, 100 + index)
        sounds.write(tmp_path / "noise" / f"{index}.wav", sound, 8_000)
    made = task(folders(speech_folder, noise=["recordings"], noise_folder=str(tmp_path / "noise")))
    names = [{r.name for r in part.noise} for part in (made.train, made.validation, made.test)]
    assert [len(part) for part in names] == [4, 1, 1] and len(set.union(*names)) == 6
    for index in range(len(made.train)):
        noisy, clean = made.train.excerpt(index)
        assert rms(noisy - clean) > 0


def test_bad_files_are_skipped_and_named(tmp_path):
    sounds.write_speech(tmp_path)
    made = task(folders(tmp_path))
    assert "skipped" not in made.notes
    count = sounds.break_files(tmp_path)
    again = task(folders(tmp_path, speaker_pattern=None, noise=["white"]))
    assert again.notes["skipped"].startswith(f"{count} (")
    for name in ("empty.wav", "text.wav", "nothing.wav", "cut.flac", "nan.wav"):
        assert name in again.notes["skipped"]
    for path in tmp_path.glob("*_0.wav"):
        path.unlink()
    with pytest.raises(AudioError, match=r"has 0 files that can be read, .*: 5 \(.*empty\.wav"):
        task(folders(tmp_path, speaker_pattern=None, noise=["white"]))


def broken(recording):
    def read(start=0, samples=None):
        raise AudioError(f"{recording.name} cannot be read; copy it again")

    return replace(recording, read=read)


@pytest.mark.parametrize("corpus", ["folders", "pairs"])
def test_another_item_is_taken_where_a_recording_breaks_in_the_middle_of_a_run(tmp_path, corpus):
    if corpus == "folders":
        data = folders(sounds.write_speech(tmp_path, words=12), noise=["white"], seconds=0.25)
    else:
        data = pairs(write_voicebank(tmp_path), seconds=0.25)
    made, again = task(data), task(data)
    for part in (made.train, made.validation):
        part.clean[0] = broken(part.clean[0])
    with pytest.warns(UserWarning, match="replaced by the next one: .* cannot be read") as told:
        items = [made.train[index] for index in range(len(made.train))]
        items = [made.train[index] for index in range(len(made.train))]
    assert len(told) == 1
    sound = [again.train[index] for index in range(len(again.train))]
    assert all(item["labels"].max() > math.log(0.2) for item in items)  # none is silent
    same = [torch.equal(a["labels"], b["labels"]) for a, b in zip(items, sound, strict=True)]
    assert 0 < same.count(False) < len(same)


def test_files_of_a_large_collection_may_break_in_the_middle_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(recordings, "HELD", 0)  # read when they are asked for
    made = task(pairs(write_voicebank(tmp_path)))
    sound = [made.train[index] for index in range(len(made.train))]
    path = tmp_path / "clean_trainset_wav" / made.train.clean[0].name
    path.write_bytes(path.read_bytes()[:30])
    with pytest.warns(UserWarning, match=f"{path} cannot be read as sound"):
        item = made.train[0]
    assert all(torch.equal(item[key], sound[1][key]) for key in item)
    for path in (tmp_path / "clean_trainset_wav").iterdir():
        path.unlink()
    with (
        pytest.warns(UserWarning),
        pytest.raises(AudioError, match=r"^4 items in a row"),
    ):
        made.train[0]


def test_speakers_that_are_not_found_in_a_name(tmp_path):
    sounds.write_speech(tmp_path)
    with pytest.raises(AudioError, match=r"speaker_pattern is 'x\(y\)', .* '0_a_0\.wav' in"):
        task(folders(tmp_path, speaker_pattern="x(y)"))


@pytest.mark.parametrize("divide_by", ["file", "speaker"])
def test_too_few_files(tmp_path, divide_by):
    sounds.write_speech(tmp_path, speakers=2, words=1)
    with pytest.raises(AudioError, match=f"the number of {divide_by}s is 2, expected more"):
        task(folders(tmp_path, noise=["white"], divide_by=divide_by))
    sounds.write_speech(tmp_path / "speech", speakers=3)
    noise = {"noise": ["recordings"], "noise_folder": str(tmp_path / "speech")}
    for path in sorted((tmp_path / "speech").glob("*_*_0.wav"))[2:]:
        path.rename(tmp_path / path.name)
    with pytest.raises(AudioError, match="the number of files of noise is 2, expected more"):
        task(folders(tmp_path, **noise))


@pytest.mark.parametrize(
    ("validation", "test", "counts"), [(0.1, 0.2, [17, 2, 5]), (0.01, 0.01, [22, 1, 1])]
)
def test_parts_have_their_shares_rounded_to_whole_files(tmp_path, validation, test, counts):
    sounds.write_speech(tmp_path, words=8)
    made = task(folders(tmp_path, validation_fraction=validation, test_fraction=test))
    assert [len(getattr(made, part).clean) for part in PARTS] == counts


def test_the_speaker_is_the_folder_without_a_pattern(tmp_path):
    sounds.write(tmp_path / "anna" / "1" / "x.wav", sounds.tone(100, 8_000), 8_000)
    sounds.write(tmp_path / "y.wav", sounds.tone(100, 8_000), 8_000)
    found = read_folder(tmp_path, 8_000, Skipped())
    assert [(r.name, r.speaker) for r in found] == [("anna/1/x.wav", "anna/1"), ("y.wav", "")]


# --- pairs ------------------------------------------------------------------------------------


def test_voicebank_as_it_is_downloaded(tmp_path):
    write_voicebank(tmp_path)
    write_voicebank(tmp_path, "testset", count=2)
    test = {key: str(tmp_path / f"{key}_testset_wav") for key in ("noisy", "clean")}
    made = task(pairs(tmp_path, test=test, speaker_pattern="(p[0-9]+)_", divide_by="speaker"))
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
    made = task(folders(sounds.write_speech(tmp_path / "speech"), test=of))
    assert len(made.test) == 3
    assert all(si_sdr(*reversed(made.test.whole(index))) > 5 for index in range(3))
    without = {key: value for key, value in of.items() if key != "pattern"}
    with pytest.raises(AudioError, match="no files that belong together, such as clnsp"):
        task(folders(tmp_path / "speech", test=without))


def test_pairs_that_are_none_are_skipped_and_named(tmp_path):
    write_voicebank(tmp_path)
    (tmp_path / "clean_trainset_wav" / "p226_000.wav").unlink()
    (tmp_path / "noisy_trainset_wav" / "p227_001.wav").unlink()
    short = tmp_path / "clean_trainset_wav" / "p226_002.wav"
    sounds.write(short, sounds.tone(4_800, 48_000), 48_000)
    made = task(pairs(tmp_path))
    assert made.notes["skipped"].startswith("3 (")
    for words in ("p226_000.wav has no partner", "p227_001.wav has no", "p226_002.wav is not as"):
        assert words in made.notes["skipped"]
    assert sum(map(len, (made.train, made.validation, made.test))) == 3


def write_hub(path, count=5):
    """As JacobLinCool/VoiceBank-DEMAND-16k: parquet with id and two columns of sound."""
    write_voicebank(path / "raw", count=count, rate=16_000)
    for split in ("train", "test"):
        rows = {"id": [], "clean": [], "noisy": []}
        for file in sorted((path / "raw" / "clean_trainset_wav").iterdir()):
            rows["id"].append(file.stem)
            for kind in ("clean", "noisy"):
                sound = (path / "raw" / f"{kind}_trainset_wav" / file.name).read_bytes()
                rows[kind].append({"bytes": sound, "path": file.name})
        if split == "train":
            rows["noisy"][1] = {"bytes": b"broken", "path": "broken.wav"}
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
    made = task({**data, "speaker_pattern": "^(p[0-9]+)_"})
    assert [len(part) for part in (made.train, made.validation, made.test)] == [3, 1, 5]
    assert "broken.wav cannot be read as sound" in made.notes["skipped"]
    assert {r.speaker for r in made.test.noisy} == {"p226", "p227"}
    assert all(si_sdr(*reversed(made.test.whole(index))) > 5 for index in range(5))
    with pytest.raises(AudioError, match=r"has no column 'wet', expected one of id, clean, noisy"):
        task({**data, "noisy_field": "wet"})
    with pytest.raises(CorpusError, match=r"split 'nowhere'\) could not be loaded"):
        task({**data, "train_split": "nowhere"})


# --- settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({**GENERATED, "rate": 44_100}, "expected a multiple of 125"),
        ({**GENERATED, "snr": [10, 0]}, "expected its lower end first"),
        (
            {**GENERATED, "noise": ["recordings"]},
            "generated speech has none",
        ),
        ({**GENERATED, "noise": ["green"]}, "noise"),
        ({"corpus": "folders", "clean": "a", "noise": ["recordings"]}, "name the kind recordings"),
        (
            {"corpus": "folders", "clean": "a", "speaker_pattern": "("},
            "a regular expression",
        ),
        ({"corpus": "folders", "clean": "a", "speaker_pattern": "a"}, "expected one with a group"),
    ],
)
def test_settings_that_do_not_fit(data, words):
    with pytest.raises(ValidationError, match=words):
        recipe(data)


def test_another_corpus_has_another_digest(tmp_path):
    first = task(folders(sounds.write_speech(tmp_path)))
    assert task(folders(tmp_path)).digest() == first.digest()
    sounds.write(tmp_path / "9_a_0.wav", sounds.tone(900, 8_000), 8_000)
    assert task(folders(tmp_path)).digest() != first.digest()


needs_pesq = pytest.mark.skipif(
    importlib.util.find_spec("pesq") is None, reason="pesq is not installed: no C compiler built it"
)


# --- scores -----------------------------------------------------------------------------------


def test_si_sdr_is_that_of_its_equation_and_of_no_scale():
    draw = np.random.default_rng(0)
    for _ in range(20):
        s, estimate = draw.standard_normal((2, 50))
        alpha = sum(a * b for a, b in zip(estimate, s, strict=True)) / sum(a * a for a in s)
        wanted = sum((alpha * a) ** 2 for a in s)
        distortion = sum((alpha * a - b) ** 2 for a, b in zip(s, estimate, strict=True))
        expected = 10 * math.log10(wanted / distortion)
        assert si_sdr(s, estimate) == pytest.approx(expected)
        assert si_sdr(s, 7 * estimate) == pytest.approx(expected)
    assert si_sdr(s, s) == pytest.approx(100)
    assert math.isnan(si_sdr(0 * s, s)) and si_sdr(s, 0 * s) == -100


@needs_pesq
@pytest.mark.parametrize(("rate", "best"), [(8_000, 4.549), (16_000, 4.644), (48_000, 4.64)])
def test_pesq_of_the_same_sound_is_the_best_there_is(rate, best):
    clean = speak(0, 1, 2.0, rate)
    noisy = clean + 0.02 * np.random.default_rng(0).standard_normal(len(clean)).astype(np.float32)
    assert pesq_score(clean, clean, rate) == pytest.approx(best, abs=0.01)
    assert 1.0 < pesq_score(clean, noisy, rate) < 3


@needs_pesq
def test_pesq_of_what_is_no_speech():
    clean = speak(0, 1, 2.0, 8_000)
    assert math.isnan(pesq_score(0 * clean, clean, 8_000))
    assert math.isnan(pesq_score(clean[:1_000], clean[:1_000], 8_000))
    assert math.isnan(pesq_score(clean, clean * np.float32("nan"), 8_000))


@needs_pesq
def test_evaluation_gives_scores_and_pictures(generated, network):
    done = []
    settings = recipe(evaluation={"pictures": 1}).evaluation
    outcome = generated.evaluate(network, generated.test, settings, done.append)
    assert sum(done) == len(generated.test) == len(outcome.items)
    names = [score.name for score in outcome.scores]
    assert names == [
        *("PESQ", "PESQ gain", "PESQ noisy", "SI-SDR", "SI-SDR gain", "SI-SDR noisy"),
    ]
    by_name = {score.name: score for score in outcome.scores}
    assert by_name["PESQ"].value == pytest.approx(generated.statistic(np.array(outcome.items)))
    assert by_name["PESQ"].low <= by_name["PESQ"].value <= by_name["PESQ"].high
    gain = by_name["SI-SDR"].value - by_name["SI-SDR noisy"].value
    assert by_name["SI-SDR gain"].value == pytest.approx(gain)
    assert "narrow band" in by_name["PESQ"].note
    (picture,) = outcome.pictures
    assert picture.bytes.startswith(b"\x89PNG") and "competition" in picture.caption
    json.loads(outcome.model_dump_json())


@needs_pesq
def test_noisy_scores_do_not_depend_on_the_model(generated, network):
    set_seed(2)
    other = generated.build_model(recipe().model).eval()
    settings = recipe(evaluation={"pictures": 0}).evaluation
    tables = [
        speech._score_part(made, generated.test, settings, lambda _: None)[0]
        for made in (network, other)
    ]
    assert tables[0]["PESQ noisy"] == tables[1]["PESQ noisy"]
    assert tables[0]["SI-SDR"] != tables[1]["SI-SDR"]


def test_without_pesq_the_other_score_is_first(generated, network, monkeypatch):
    def refuse(name):
        raise AudioError(f"the package {name} is needed")

    monkeypatch.setattr(metrics, "speech_package", refuse)
    settings = recipe(evaluation={"pictures": 1}).evaluation
    outcome = generated.evaluate(network, generated.test, settings, lambda _: None)
    assert [score.name for score in outcome.scores] == ["SI-SDR", "SI-SDR gain", "SI-SDR noisy"]
    assert len(outcome.items) == len(generated.test)
    assert "needs a C compiler" in SpeechEnhancement(generated.corpus).notes["PESQ"]


@needs_pesq
def test_utterances_without_speech_are_left_out(generated, network, monkeypatch):
    scores = iter([2.0, float("nan"), 2.5, float("nan"), float("nan"), 3.0])
    monkeypatch.setattr(speech, "pesq_score", lambda *_: next(scores, 2.0))
    monkeypatch.setattr(generated.train, "pieces", generated.train.pieces[:3])
    settings = recipe(evaluation={"pictures": 0}).evaluation
    table, unread = speech._score_part(network, generated.train, settings, lambda _: None)
    # Before and after: heard, then silent; found in neither; found in the enhanced one alone.
    assert table["PESQ noisy"][0] == 2.0 and table["PESQ"][0] == 1.0
    assert table["PESQ noisy"][1] == 2.5 and table["PESQ"][1] == 1.0
    assert math.isnan(table["PESQ noisy"][2]) and math.isnan(table["PESQ"][2])
    score = speech._summarise(table, unread, 8_000, generated.statistic)[0]
    assert score.value == 1.0 and score.note.endswith("1 of 3 utterances left out: no speech found")


def test_utterances_that_break_in_the_middle_of_a_run_are_left_out_of_scores(tmp_path, network):
    made = task(pairs(write_voicebank(tmp_path), test_fraction=0.4))
    settings = recipe(evaluation={"pictures": 9}).evaluation
    before = made.evaluate(network, made.test, settings, lambda _: None)
    made.test.clean[1] = broken(made.test.clean[1])
    done = []
    outcome = made.evaluate(network, made.test, settings, done.append)
    number = len(made.test)
    assert sum(done) == number == len(outcome.items) and len(outcome.pictures) == number - 1
    assert math.isnan(outcome.items[1][0]) and outcome.items[0] == before.items[0]
    for score in outcome.scores:
        assert math.isfinite(score.value) and "no speech" not in score.note
        assert score.note.endswith(
            f"1 of {number} left out: {made.test.clean[1].name} cannot be read"
        )


def test_the_context_of_an_evaluation_is_what_sound_is_enhanced_with(generated, monkeypatch):
    heard = []

    def watch(model, noisy, *, context):
        heard.append(context)
        return noisy

    monkeypatch.setattr(speech, "enhance", watch)
    model = generated.build_model(recipe().model).eval()
    settings = recipe(evaluation={"context": 0.3, "pictures": 1}).evaluation
    generated.evaluate(model, generated.test, settings, lambda _: None)
    assert heard == [0.3] * (len(generated.test) + 1)


def test_pairs_of_other_parts_are_read_from_their_beginning(tmp_path):
    """Out of training, however long they are and whichever epoch it is."""
    write_voicebank(tmp_path)
    made = task(pairs(tmp_path, seconds=0.25, test_fraction=0.4))
    for part in (made.validation, made.test):
        for epoch in (0, 1):
            part.set_epoch(epoch)
            for index in range(len(part)):
                noisy, clean = part.excerpt(index)
                assert len(noisy) == part.samples < part.noisy[index].samples
                assert np.array_equal(noisy, part.noisy[index].read(0, part.samples))
                assert np.array_equal(clean, part.clean[index].read(0, part.samples))


def test_further_test_sets_are_scored_beside_the_test_part(tmp_path, network):
    write_voicebank(tmp_path, "testset", count=2)
    of = {key: str(tmp_path / f"{key}_testset_wav") for key in ("noisy", "clean")}
    made = task({**GENERATED, "transfer": {"voicebank": of}})
    settings = recipe(evaluation={"pictures": 0}).evaluation
    names = [s.name for s in made.evaluate(network, made.test, settings, lambda _: None).scores]
    assert names[:6] == [name.removesuffix(", voicebank") for name in names[6:]]
    outcome = made.evaluate(network, made.validation, settings, lambda _: None)
    assert len(outcome.scores) == 6
    assert made.notes["voicebank"].startswith("2 items")
    assert made.digest() != task().digest()


# --- training ---------------------------------------------------------------------------------


def train(folder, generated, plan, collate=None):
    made = recipe(model={**MODEL, "attention": PLANS[plan], "predicts": "gain"})
    set_seed(1)
    return run_training(
        generated.build_model(made.model),
        generated.train,
        generated.validation,
        collate or generated.collate,
        made.training,
        folder,
        console=Console(quiet=True),
    )


@pytest.mark.parametrize("plan", PLANS)
def test_every_system_trains_and_is_evaluated(tmp_path, generated, plan):
    run = train(tmp_path, generated, plan)
    losses = [record["loss"] for record in run.history if "loss" in record]
    assert len(losses) == 4 and all(map(math.isfinite, losses))
    loaded = SpeechEnhancer.from_pretrained(tmp_path / "model").eval()
    settings = recipe(evaluation={"pictures": 0}).evaluation
    outcome = generated.evaluate(loaded, generated.test, settings, lambda _: None)
    assert all(math.isfinite(score.value) for score in outcome.scores)


@pytest.mark.parametrize("plan", ["mae", "tim"])
def test_a_resumed_run_hears_the_same_noise(tmp_path, generated, plan):
    whole = train(tmp_path / "whole", generated, plan)
    calls = iter(range(100))

    def stop(items):
        if next(calls) == 4:  # in the second epoch, behind a validation
            signal.raise_signal(signal.SIGINT)
        return generated.collate(items)

    with pytest.raises(Interrupted):
        train(tmp_path / "stopped", generated, plan, stop)
    run = train(tmp_path / "stopped", generated, plan)
    curves = [
        [(record["step"], record.get("loss"), record.get("eval_loss")) for record in each.history]
        for each in (whole, run)
    ]
    assert curves[0] == curves[1] and run.steps == 4
    state = whole.model.state_dict()
    assert all(torch.equal(state[name], x) for name, x in run.model.state_dict().items())


def test_the_size_of_a_model_comes_from_the_data(generated):
    made = recipe()
    config = generated.model_config(made.model)
    assert (config.sampling_rate, config.num_bins, config.window) == (8_000, 129, 63)
    assert SpeechEnhancement.nominal_config(made).to_dict() == config.to_dict()
    assert config.window == generated.train.lengths[0]


def test_the_recipes_are_read():
    for name in ("speech-generated", "speech-folders", "tim-dns", "tim-voicebank"):
        text = (resources.files("headwise.recipes") / f"{name}.yaml").read_text(encoding="utf-8")
        read = SpeechRecipe.model_validate(yaml.safe_load(text))
        assert next(iter(read.systems)) == "standard"
        for system in read.systems.values():
            model = {**read.model.model_dump(), **system.model}
            type(read.model).model_validate(model)
