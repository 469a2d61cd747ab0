"""Items, pieces and batches of speech, and what takes the place of a file that breaks."""

import itertools
import math

import numpy as np
import pytest
import sounds
import torch

from headwise.data.sound import dataset
from headwise.data.sound.dataset import collate
from headwise.data.sound.mixing import rms
from headwise.data.sound.voices import speak
from headwise.tasks.metrics import si_sdr


@pytest.fixture(scope="module")
def generated():
    return sounds.load()


# --- items -------------------------------------------------------------------------------------


def test_a_training_item_depends_on_seed_epoch_and_index_alone():
    one, other = sounds.load(), sounds.load()
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
    reseeded = sounds.load({**sounds.GENERATED, "seed": 2})
    reseeded.train.set_epoch(3)
    assert not torch.equal(reseeded.train[1]["inputs"], before["inputs"])


@pytest.mark.parametrize("part", ["validation", "test"])
def test_other_parts_are_fixed(part):
    items = getattr(sounds.load(), part)
    before = items[0]["inputs"]
    items.set_epoch(5)
    assert torch.equal(items[0]["inputs"], before)
    assert torch.equal(items[-len(items)]["inputs"], before)
    with pytest.raises(IndexError):
        items[len(items)]


def test_parts_have_different_noise(tmp_path):
    sounds.write_speech(tmp_path)
    made = sounds.load(sounds.folders(tmp_path, noise=["white"], snr=[0, 0]))
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
    batch = collate(items)
    time = len(items[0]["inputs"])
    assert batch["inputs"].shape == batch["labels"].shape == (2, time, 129)
    assert batch["attention_mask"].sum(1).tolist() == [time, 5]
    assert (batch["inputs"][1, 5:] == 0).all() and (batch["labels"][1, 5:] == -100).all()
    assert torch.equal(batch["labels"][1, :5], items[1]["labels"])
    assert (batch["labels"][0] > -10).all()


def test_the_test_part_may_have_noise_of_other_kinds(tmp_path):
    sounds.write_speech(tmp_path)
    one, other = (
        sounds.load(sounds.folders(tmp_path, noise=["white"], test_noise=kinds))
        for kinds in (None, ["brown"])
    )
    for part in ("train", "validation"):
        ours, theirs = (getattr(each, part)[0]["inputs"] for each in (one, other))
        assert torch.equal(ours, theirs)
    noises = [noisy - clean for noisy, clean in (each.test.excerpt(0) for each in (one, other))]
    # Brown noise changes little from one sample to the next.
    white, brown = (rms(np.diff(noise)) / rms(noise) for noise in noises)
    assert brown < white / 5


def test_noise_is_as_loud_as_asked_for(generated):
    quiet = sounds.load(
        {**sounds.GENERATED, "snr": [40, 40], "level": [-20, -20], "noise": ["white"]}
    )
    loud = sounds.load(
        {**sounds.GENERATED, "snr": [-5, -5], "level": [-20, -20], "noise": ["white"]}
    )
    for made, snr in ((quiet, 40), (loud, -5)):
        noisy, clean = made.test.whole(0)
        assert 20 * math.log10(rms(clean) / rms(noisy - clean)) == pytest.approx(snr, abs=0.1)
        assert 20 * math.log10(rms(noisy)) == pytest.approx(-20, abs=0.1)


def test_reverberation_is_heard_and_is_not_in_the_target():
    dry = sounds.load({**sounds.GENERATED, "noise": ["white"], "snr": [90, 90]})
    wet = sounds.load({**sounds.GENERATED, "noise": ["white"], "snr": [90, 90], "reverberation": 1})
    assert si_sdr(*reversed(dry.test.whole(0))) > 60
    noisy, clean = wet.test.whole(0)
    assert si_sdr(clean, noisy) < 15
    assert abs(np.corrcoef(clean, dry.test.whole(0)[1])[0, 1]) == pytest.approx(1, abs=1e-3)


def test_silent_speech_gives_an_item(tmp_path):
    for name in "abcd":
        sounds.write(tmp_path / f"{name}.wav", np.zeros((9_000, 1)), 8_000)
    made = sounds.load(sounds.folders(tmp_path, speaker_pattern=None, noise=["pink"]))
    item = made.train[0]
    assert item["inputs"].max() > 0 and torch.isfinite(item["labels"]).all()
    assert item["labels"].max() == item["labels"].min()


def test_babble_is_of_other_speakers(tmp_path, monkeypatch):
    made = sounds.load(sounds.folders(sounds.write_speech(tmp_path), noise=["babble"]))
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


# --- pieces ------------------------------------------------------------------------------------


def test_short_recordings_of_one_speaker_are_joined(tmp_path):
    made = sounds.load(sounds.folders(sounds.write_speech(tmp_path, words=9)))
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
    made = sounds.load({"corpus": "pairs", "rate": 8_000, "seconds": 1, **parts})
    assert made.notes["test"].startswith("6 items of at most 1 s from 3 recordings")
    assert "longer than 2 s are cut into pieces, which makes 3 more; " in made.notes["test"]
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
    made = sounds.load(sounds.folders(tmp_path / "clean", noise=["white"], snr=[90, 90]))
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
