"""The division of speech and noise into parts, and whose voices babble is made of."""

import pytest
import sounds

from headwise.data.division import PARTS
from headwise.data.sound.audio import AudioError
from headwise.data.sound.mixing import rms


@pytest.mark.parametrize("divide_by", ["file", "speaker"])
def test_parts_share_no_file_and_if_asked_no_speaker(tmp_path, divide_by):
    data = sounds.folders(
        sounds.write_speech(tmp_path, words=8), divide_by=divide_by, noise=["white"]
    )
    made = sounds.load(data)
    parts = (made.train, made.validation, made.test)
    names = [{r.name for r in part.clean} for part in parts]
    speakers = [{r.speaker for r in part.clean} for part in parts]
    assert sum(map(len, names)) == len(set.union(*names)) == 24
    assert all(names)
    if divide_by == "speaker":
        assert sum(map(len, speakers)) == 3
    assert made.notes["train"].startswith(f"{len(made.train)} items of at most 1 s")


def test_recordings_that_are_trained_on_too_are_counted(tmp_path):
    sounds.write_voicebank(tmp_path)
    data = sounds.pairs(tmp_path)
    made = sounds.load({**data, "tests": {"same": data["train"]}})
    known = len(made.train.clean)
    assert f"of which {known} are also in the training part" in made.notes["test same"]
    assert all("also in" not in made.notes[part] for part in PARTS)


@pytest.mark.parametrize("divide_by", ["file", "speaker"])
def test_too_few_files(tmp_path, divide_by):
    sounds.write_speech(tmp_path, speakers=2, words=1)
    with pytest.raises(AudioError, match=f"the number of {divide_by}s is 2, expected more"):
        sounds.load(sounds.folders(tmp_path, noise=["white"], divide_by=divide_by))
    sounds.write_speech(tmp_path / "speech", speakers=3)
    noise = {"noise": ["recordings"], "noise_folder": str(tmp_path / "speech")}
    for path in sorted((tmp_path / "speech").glob("*_*_0.wav"))[2:]:
        path.rename(tmp_path / path.name)
    with pytest.raises(AudioError, match="the number of files of noise is 2, expected more"):
        sounds.load(sounds.folders(tmp_path, **noise))


def test_recorded_noise_is_divided_too(tmp_path):
    speech_folder = sounds.write_speech(tmp_path / "speech")
    for index in range(6):
        sound = sounds.tone(4_000 if index else 50_000, 8_000, 100 + index)
        sounds.write(tmp_path / "noise" / f"{index}.wav", sound, 8_000)
    made = sounds.load(
        sounds.folders(speech_folder, noise=["recordings"], noise_folder=str(tmp_path / "noise"))
    )
    names = [{r.name for r in part.noise} for part in (made.train, made.validation, made.test)]
    assert [len(part) for part in names] == [4, 1, 1] and len(set.union(*names)) == 6
    for index in range(len(made.train)):
        noisy, clean = made.train.excerpt(index)
        assert rms(noisy - clean) > 0


def test_babble_is_of_the_part_or_the_notes_say_so(tmp_path):
    data = sounds.folders(sounds.write_speech(tmp_path, speakers=6), noise=["babble"])
    data |= {"divide_by": "speaker", "test_fraction": 0.3}
    made = sounds.load(data)
    speakers = {part: {r.speaker for r in getattr(made, part).clean} for part in PARTS}
    assert [len(speakers[part]) for part in PARTS] == [3, 1, 2]
    for part, of in (("train", "train"), ("validation", "train"), ("test", "test")):
        assert {r.speaker for r in getattr(made, part).voices} == speakers[of]
    assert made.notes["babble"] == (
        "made of training voices in validation, where there is one speaker"
    )
    assert "babble" not in sounds.load({**data, "divide_by": "file"}).notes
    assert "babble" not in sounds.load({**data, "noise": ["white"]}).notes


def test_babble_needs_other_speakers(tmp_path):
    sounds.write_speech(tmp_path, speakers=1)
    with pytest.raises(AudioError, match="the train part has one speaker, expected several"):
        sounds.load(sounds.folders(tmp_path))
    sounds.write_speech(tmp_path)
    two = sounds.folders(tmp_path, noise=["babble"], divide_by="speaker")
    with pytest.raises(AudioError, match="the train part has one speaker, expected several"):
        sounds.load(two)
