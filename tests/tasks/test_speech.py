"""Speech: files as users have them, whose voices and noise are where, sounds of any length."""

import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from headwise.data.load import DataError
from headwise.data.sound import istft, speak, stft
from headwise.data.utterances import Recordings
from headwise.models.speech import SpeechEnhancer, SpeechEnhancerConfig
from headwise.tasks import speech
from headwise.tasks.speech import SpeechEnhancement, SpeechRecipe
from headwise.tasks.task import PredictRequest

RATE, PARTS = 8_000, ("train", "validation", "test")
SIZES = {"embed_dim": 8, "num_heads": 2, "ffn_dim": 8, "layers": 1, "front_channels": [8]}
VOICES = {"path": "generated", "options": {"speakers": 3, "utterances": 5, "seconds": 0.5}}


def task(**data) -> SpeechEnhancement:
    shares = {"validation_fraction": 0.3, "test_fraction": 0.3}
    recipe = {"data": {"rate": RATE, "seconds": 0.5, **shares, **data}, "model": SIZES}
    recipe |= {"task": "speech-enhancement", "training": {"max_steps": 1}}
    return SpeechEnhancement(SpeechRecipe.model_validate(recipe))


def model(**config) -> SpeechEnhancer:
    torch.manual_seed(0)
    return SpeechEnhancer(SpeechEnhancerConfig(sampling_rate=RATE, **SIZES, **config)).eval()


def write(path: Path, wave: np.ndarray, rate: int = RATE, **options) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, wave, rate, **options)


@pytest.fixture
def words(tmp_path) -> dict:
    """Six short words of each of four speakers, named as in the Free Spoken Digit Dataset."""
    for speaker, word in np.ndindex(4, 6):
        name = f"{word}_{'abcd'[speaker]}_0.wav"
        write(tmp_path / "words" / name, speak(speaker, word, 0.2, RATE))
    return {"files": {"train": str(tmp_path / "words")}, "speaker_pattern": "_([a-z])_"}


def test_files_belong_together_by_a_group_in_their_names(tmp_path):
    for index in range(3):
        wave = speak(0, index, 0.5, RATE)
        write(tmp_path / "clean" / f"clean_fileid_{index}.wav", wave)
        write(tmp_path / "noisy" / f"{9 - index}_fileid_{index}.flac", wave / 2)
    part = {side: str(tmp_path / side) for side in ("noisy", "clean")}
    data = {"files": dict.fromkeys(PARTS, part), "pattern": "fileid_([0-9]+)"}
    utterances = task(**data).splits["test"]
    for noisy, clean in map(utterances.piece_waves, range(3)):
        np.testing.assert_allclose(noisy, clean / 2, atol=1e-4)
    write(tmp_path / "clean" / "clean_fileid_1.wav", wave[:2000])
    with pytest.warns(match=r"8_fileid_1\.flac has 4,000 .* clean partner 2,000"):
        assert len(task(**data).splits["test"]) == 2


def test_bad_files_are_named_left_out_and_counted_and_others_read_once(words, monkeypatch):
    folder = Path(words["files"]["train"])
    (folder / "9_a_text.wav").write_text("no sound, but words", encoding="utf-8")
    with pytest.warns(UserWarning, match=r"9_a_text\.wav cannot be read .*: it is left out"):
        before = task(**words, snr=[0, 5])
    assert before.facts["train"]["left out"] == 1
    assert sum(before.facts[part]["rows"] for part in PARTS) == 24
    monkeypatch.setattr(speech, "read_channels", None)  # other noise does not read them again
    assert task(**words, snr=[0, 5]).content_hash("test") == before.content_hash("test")
    other = task(**words, snr=[9, 9], seconds=0.25)
    assert other.content_hash("test") != before.content_hash("test")


def test_a_package_that_is_missing_is_told(words, monkeypatch):
    monkeypatch.setitem(sys.modules, "pesq", None)
    voices = task(**VOICES)
    with pytest.warns(UserWarning, match="SI-SDR alone"):
        scores = voices.evaluate(model(), "test", voices.recipe.evaluation).scores
    assert {score.name[:6] for score in scores} == {"SI-SDR"}
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(DataError, match=r'soundfile .*: pip install "headwise\[speech\]"'):
        task(**words)


def test_an_utterance_is_of_one_speaker_and_babble_of_others(words, monkeypatch):
    babble, talked, talk = task(**words, noise=["babble"]), [], Recordings.talk
    monkeypatch.setattr(Recordings, "talk", lambda *args: talked.append(args[2]) or talk(*args))
    for part, items in babble.splits.items():
        seen = set()
        for index, piece in enumerate(items.rows):
            (speaker,) = {items.sounds.speakers[row] for row in piece["rows"]}
            talked.clear()
            items[index]
            assert 3 <= len(talked) <= 6 and speaker not in talked
            seen |= set(piece["rows"])
        assert seen == set(range(babble.facts[part]["rows"]))


def test_long_recordings_are_scored_to_their_end_in_pieces(tmp_path):
    wave = speak(0, 0, 70, RATE)
    write(tmp_path / "long.wav", wave, subtype="FLOAT")
    part = {"noisy": str(tmp_path), "clean": str(tmp_path)}
    splits = task(files=dict.fromkeys(PARTS, part)).splits
    assert [len(splits[part]) for part in ("train", "test")] == [141, 3]  # of 31 frames, and 30 s
    pieces = [splits["test"].piece_waves(i)[1] for i in range(3)]
    assert np.array_equal(np.concatenate(pieces), wave)


def test_parts_have_noise_of_their_own(words, tmp_path):
    for index in range(6):
        write(tmp_path / "noise" / f"{index}.wav", speak(9, index, 0.1 + 0.2 * index, RATE))
    noise = {"noise": ["recordings"], "noise_folder": str(tmp_path / "noise")}
    tests = {"brown": {"noise": ["brown"], "files": {"test": words["files"]["train"]}}}
    noisy = task(**words, **noise, tests=tests, test_noise=["pink"])
    names = [set(rows["name"]) for rows in noisy.noise.values()]
    assert all(names) and sum(map(len, names)) == len(set.union(*names)) == 6
    noises = [x - y for x, y in (noisy.splits[name].piece_waves(0) for name in ("brown", "test"))]
    brown, pink = (np.std(np.diff(noise)) / np.std(noise) for noise in noises)
    assert brown < 0.3 < pink < 1.3  # the darker, the less it changes from sample to sample
    with pytest.raises(ValueError, match=r"tests\.own\.noise_folder cannot be set .* noise, "):
        task(**words, **noise, tests={"own": {"noise_folder": str(tmp_path / "noise")}})


@pytest.mark.parametrize("source", ["generated", "files"])
def test_a_test_set_of_other_noise_has_the_recordings_of_the_test_part(words, source):
    data = words if source == "files" else VOICES
    loud = task(**data, noise=["white"], tests={"loud": {"snr": [-5, -5]}})
    assert loud.rows["loud"]["name"] == loud.rows["test"]["name"]
    noisy, clean = loud.splits["loud"].piece_waves(0)
    assert abs(10 * np.log10(np.var(clean) / np.var(noisy - clean)) + 5) < 0.1


@pytest.mark.parametrize("window", [1, 4, 30, 1000])
def test_a_model_of_single_frames_does_not_notice_windows(window):
    enhancer = model(window=window, lookahead=0)
    noisy = np.random.default_rng(0).standard_normal(20_001).astype(np.float32)
    with torch.no_grad():
        enhancer.front[0].convolution.weight[:, :, :2] = 0.0
        enhancer.front[1].convolution.weight[:, :, :2] = 0.0
        enhancer.decoder.layers[0].self_attention.out_proj.weight.zero_()
        spectra = stft(torch.tensor(noisy)[None], RATE)
        logits = enhancer(inputs=spectra.abs()).logits
        clean = (logits.exp() - enhancer.config.floor).clamp(min=0)
    expected = istft(torch.polar(clean, spectra.angle()), RATE)[0, : len(noisy)]
    np.testing.assert_allclose(speech.enhance(enhancer, noisy), expected, atol=1e-4)


def test_enhanced_files_keep_rate_channels_and_length_and_take_no_place(tmp_path):
    draw, recipe = np.random.default_rng(0), task(**VOICES).recipe
    paths = [tmp_path / "a.wav", tmp_path / "b.flac"]
    write(paths[0], 0.1 * draw.standard_normal(30_001), 44_100)
    write(paths[1], 0.1 * draw.standard_normal((30_001, 2)))
    request = PredictRequest(inputs=[str(path) for path in paths])
    printed = list(SpeechEnhancement.predict(tmp_path, recipe, model(window=40), request))
    targets = [path.with_stem(f"{path.stem}-enhanced") for path in paths]
    assert printed == [f"written: {path}" for path in targets]
    for before, after in zip(map(soundfile.info, paths), map(soundfile.info, targets), strict=True):
        for name in ("samplerate", "channels", "frames"):
            assert getattr(before, name) == getattr(after, name)
    with pytest.raises(ValueError, match="expected another one than"):
        request = PredictRequest(inputs=[str(paths[0])], output=paths[0])
        list(SpeechEnhancement.predict(tmp_path, recipe, model(), request))
