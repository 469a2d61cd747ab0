"""Sound files of all kinds, good and bad."""

import re

import numpy as np
import pytest
import sounds

from headwise.data.sound import audio
from headwise.data.sound.audio import (
    AudioError,
    audio_info,
    check_samples,
    find_audio,
    read_audio,
    speech_package,
)


@pytest.mark.parametrize("suffix", ["flac", "WAV"])
@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100])
@pytest.mark.parametrize("channels", [1, 3])
def test_any_rate_and_number_of_channels_becomes_mono_at_the_rate_wanted(
    tmp_path, suffix, rate, channels
):
    sound = sounds.tone(rate, rate, channels=channels)
    path = sounds.write(tmp_path / f"a.{suffix}", sound, rate)
    wave = read_audio(path, 16_000)
    assert wave.shape == (16_000,) and wave.dtype == np.float32
    expected = sounds.tone(16_000, 16_000, channels=channels).mean(1)
    assert np.abs(wave - expected).max() < 0.01
    info = audio_info(path)
    assert (info.samplerate, info.frames, info.channels) == (rate, rate, channels)


@pytest.mark.parametrize(("rate", "wanted"), [(8_000, 8_000), (44_100, 8_000), (8_000, 16_000)])
def test_a_beginning_is_that_of_the_whole(tmp_path, rate, wanted):
    path = sounds.write(tmp_path / "a.wav", sounds.tone(2 * rate, rate), rate)
    whole = read_audio(path, wanted)
    part = read_audio(path, wanted, samples=900)
    assert part.shape == (900,)
    # Resampling hears the cut.
    assert np.abs(part - whole[:900])[: 800 if rate != wanted else None].max() < 0.01
    assert len(read_audio(path, wanted, samples=len(whole) + 10)) == len(whole)


def test_what_is_no_sound_is_an_error_that_names_the_file(tmp_path):
    count = sounds.break_files(tmp_path)
    assert len(find_audio(tmp_path)) == count
    for path in find_audio(tmp_path):
        with pytest.raises(AudioError, match=path.name):
            read_audio(path, 8_000)
    for name, words in (
        ("text.wav", "cannot be read as sound"),
        ("nothing.wav", "no samples"),
        ("nan.wav", "sample 17 is nan, expected numbers of about -1 to 1"),
        ("missing.wav", "is not a file"),
    ):
        with pytest.raises(AudioError, match=words):
            read_audio(tmp_path / name, 8_000)


def test_folders(tmp_path):
    with pytest.raises(AudioError, match="is not a folder"):
        find_audio(tmp_path / "missing")
    with pytest.raises(AudioError, match="has no WAV or FLAC files"):
        find_audio(tmp_path)
    for name in ("b.wav", "c/a.FLAC", ".hidden.wav", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert [path.name for path in find_audio(tmp_path)] == ["b.wav", "a.FLAC"]


def test_sound_in_memory(tmp_path):
    path = sounds.write(tmp_path / "a.flac", sounds.tone(4_410, 44_100, channels=2), 44_100)
    decoded = read_audio(path.read_bytes(), 8_000, name="row 3")
    assert np.array_equal(decoded, read_audio(path, 8_000))
    with pytest.raises(AudioError, match="row 3"):
        read_audio(b"no sound", 8_000, name="row 3")


@pytest.mark.parametrize("wrong", [np.nan, -np.inf, 3e38])
def test_a_sample_that_no_sound_has_is_named(wrong):
    check_samples(np.array([[1.0, -1.0], [2.0**31, -(2.0**31)]], np.float32), "loud.wav")
    check_samples(np.zeros((0, 2), np.float32), "nothing.wav")
    sound = np.zeros((5, 2), np.float32)
    sound[2:, 1] = wrong
    with pytest.raises(AudioError, match=rf"x\.wav: sample 12 is {re.escape(f'{wrong:g}')}, exp"):
        check_samples(sound, "x.wav", first=10)


@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_a_file_that_was_cut_off_is_an_error(tmp_path, suffix):
    path = sounds.write(tmp_path / f"whole.{suffix}", sounds.tone(8_000, 8_000), 8_000)
    assert audio_info(path).frames == 8_000
    path.write_bytes(path.read_bytes()[:-2_000])
    for source in (path, path.read_bytes()):
        with pytest.raises(
            AudioError, match=r"whole\..*(14,000 bytes, expected 16,000 by|cannot be read as sound)"
        ):
            read_audio(source, 8_000, name=path.name)


def test_a_sound_has_a_longest_length(tmp_path, monkeypatch):
    path = sounds.write(tmp_path / "a.flac", sounds.tone(1_000, 8_000, channels=2), 8_000)
    monkeypatch.setattr(audio, "LONGEST", 2_000)
    assert len(read_audio(path, 8_000)) == 1_000
    monkeypatch.setattr(audio, "LONGEST", 1_999)
    with pytest.raises(AudioError, match=r"flac has 1,000 samples in 2 channels, expected at mo"):
        read_audio(path, 8_000)


def test_a_missing_package_says_what_to_install(monkeypatch):
    def refuse(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(audio, "import_module", refuse)
    with pytest.raises(AudioError, match=r'pip install "headwise\[speech\]"'):
        speech_package("soundfile")
