"""Small sound files."""

from pathlib import Path

import numpy as np
import soundfile

from headwise.tasks.sound.voices import speak


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
