"""Small sound files, and settings that read them."""

from pathlib import Path

import numpy as np
import soundfile
from pydantic import TypeAdapter

from headwise.data.sound.corpus import SpeechCorpus, load_speech
from headwise.data.sound.settings import SpeechSettings
from headwise.data.sound.voices import speak

GENERATED = {"corpus": "generated", "rate": 8_000, "seconds": 1, "speakers": 3, "utterances": 4}
GENERATED |= {"validation_fraction": 0.2, "test_fraction": 0.2}  # two of twelve files each


def load(data: dict | None = None) -> SpeechCorpus:
    """The corpus of settings that a recipe might have; by default a generated one."""
    return load_speech(TypeAdapter(SpeechSettings).validate_python(data or GENERATED), floor=0.1)


def tone(samples: int, rate: int, frequency: float = 440.0, channels: int = 1) -> np.ndarray:
    """A sine that fades in and out, a little quieter in each further channel."""
    wave = 0.3 * np.sin(2 * np.pi * frequency * np.arange(samples) / rate)
    wave *= np.hanning(samples)
    return np.stack([wave / (1 + channel) for channel in range(channels)], axis=1)


def write(path: Path, sound: np.ndarray, rate: int, **options: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(str(path), sound, rate, **options)
    return path


def write_speech(folder: Path, speakers: int = 3, words: int = 6, rate: int = 8_000) -> Path:
    """Files as the Free Spoken Digit Dataset names them: `{digit}_{speaker}_{index}.wav`."""
    for speaker in range(speakers):
        for word in range(words):
            wave = speak(speaker, word, 0.4 + 0.05 * word, rate)
            write(folder / f"{word}_{'abcdef'[speaker]}_0.wav", wave, rate)
    return folder


def break_files(folder: Path) -> int:
    """Put files that cannot be used beside the good ones; how many."""
    (folder / "empty.wav").write_bytes(b"")
    (folder / "text.wav").write_text("no sound, but words", encoding="utf-8")
    write(folder / "nothing.wav", np.zeros((0, 1)), 8_000)
    good = write(folder / "cut.flac", tone(8_000, 8_000), 8_000)
    good.write_bytes(good.read_bytes()[:60])
    bad = tone(800, 8_000)
    bad[17] = np.nan
    write(folder / "nan.wav", bad, 8_000, subtype="FLOAT")
    return 5


def folders(path: Path, **changes: object) -> dict:
    """Settings of a folder that `write_speech` has filled."""
    data = {"corpus": "folders", "clean": str(path), "rate": 8_000, "seconds": 1}
    return {**data, "speaker_pattern": "_([a-z])_", **changes}


def pairs(path: Path, **changes: object) -> dict:
    """Settings of folders that `write_voicebank` has filled."""
    data = {"corpus": "pairs", "rate": 8_000, "seconds": 1}
    train = {"noisy": str(path / "noisy_trainset_wav"), "clean": str(path / "clean_trainset_wav")}
    return {**data, "train": train, **changes}


def write_voicebank(path: Path, part: str = "trainset", count: int = 6, rate: int = 48_000) -> Path:
    """As VoiceBank: two folders with equal names, at 48 kHz."""
    draw = np.random.default_rng(0)
    for index in range(count):
        clean = speak(index, 0, 0.6 + 0.2 * index, rate)
        noisy = clean + 0.01 * draw.standard_normal(len(clean))
        name = f"p{226 + index % 2}_{index:03}.wav"
        write(path / f"clean_{part}_wav" / name, clean, rate)
        write(path / f"noisy_{part}_wav" / name, noisy, rate)
    return path
