"""Rows of data, and the files in which users have them: text, tables, images, sounds, datasets."""

import io
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.parquet
import soundfile
from PIL import Image

TEXTS = ("language-modelling", "masked-language-modelling")
LABELLED = ("classification", "probing")
TASKS = ("translation", *TEXTS, *LABELLED, "images", "speech-enhancement")
STREAMED = ("translation", *TEXTS, "classification")  # tasks that can read a stream
PARTS = ("train", "validation", "test")
RATE = 8_000
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def sentence(key: int) -> str:
    """Returns a text of one to five words or so that no other key has."""
    return " ".join(WORDS[int(digit)] for digit in str(37 * key))


def row(task: str, key: int) -> Any:
    """Returns a row of data that no other key has: texts, a grey image, or two waveforms."""
    text, draw = sentence(key), np.random.default_rng(key)
    if task == "images":  # all have the same four levels
        return draw.permutation(80 * (np.arange(16) % 4)).reshape(4, 4).astype(np.uint8)
    if task == "speech-enhancement":
        clean = 0.1 * draw.standard_normal(2_000 + 40 * (key % 40))
        return clean + 0.01 * draw.standard_normal(len(clean)), clean
    if task in LABELLED:
        return text, ("even", "odd")[key % 2]
    return (text, text[::-1]) if task == "translation" else text


def written(task: str, source: str, part: str, rows: Any, folder: Path) -> Any:
    """Writes the rows of a part; returns the files, the folders, or the split that has them.

    `source` is `files`, `hub` (as a dataset) or `text` (a plain text).
    """
    if isinstance(rows, (Path, tuple)):
        return rows  # the files of a part, as they are
    if source == "hub":
        return _write_split(task, part, rows, folder)
    if task == "translation":
        return tuple(
            text_file(folder / f"{part}.{side}", [pair[side] for pair in rows]) for side in (0, 1)
        )
    if task in TEXTS or source == "text":
        return text_file(folder / f"{part}.txt", rows)
    if task == "classification":
        names = "sentence\tother\tlabel" if len(rows[0]) == 3 else "sentence\tlabel"
        return text_file(folder / f"{part}.tsv", [names, *map("\t".join, rows)])
    if task in ("images", "speech-enhancement"):
        for number, each in enumerate(rows):
            for name, content in _files(task, each).items():
                path = folder / part / name.format(number)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        names = [folder / part / side for side in ("noisy", "clean")]
        return tuple(names) if task == "speech-enhancement" else folder / part
    raise ValueError(f"no rows of {task} are written as {source}")


def _files(task: str, each: Any) -> dict[str, bytes]:
    """Returns the files of an image or of two sounds; bytes are what a file has in their place."""
    if task == "images":
        return {"{:03}.png": each if isinstance(each, bytes) else png(each)}
    return {
        f"{side}/{{:03}}.wav": wave if isinstance(wave, bytes) else wav(wave)
        for side, wave in zip(("noisy", "clean"), each, strict=True)
    }


def _write_split(task: str, part: str, rows: Any, folder: Path) -> str:
    """Writes a split as datasets of the hub have it: JSON lines of texts, else parquet."""
    if task in ("images", "speech-enhancement"):
        kind = datasets.Image() if task == "images" else datasets.Audio(decode=False)
        names = ["image"] if task == "images" else ["noisy", "clean"]
        files = [
            [{"bytes": content, "path": None} for content in _files(task, each).values()]
            for each in rows
        ]
        columns = dict(zip(names, map(list, zip(*files, strict=True)), strict=True))
        schema = datasets.Features(dict.fromkeys(names, kind)).arrow_schema
        table = pyarrow.table(columns, schema=schema)
        pyarrow.parquet.write_table(table, folder / f"{part}.parquet")
        return part
    names = {"translation": ("en", "fr"), "classification": ("sentence", "label")}
    fields = names.get(task, ("text",))
    records = [
        dict(zip(fields, (each,) if isinstance(each, str) else each, strict=True)) for each in rows
    ]
    nested = [{"texts": record} for record in records] if task == "translation" else records
    text_file(folder / f"{part}.jsonl", map(json.dumps, nested))
    return part


def text_file(path: Path, lines: Any) -> Path:
    """Writes lines into a file; returns its path."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return path


def png(image: np.ndarray) -> bytes:
    """Returns an image as a PNG."""
    content = io.BytesIO()
    Image.fromarray(image).save(content, "PNG")
    return content.getvalue()


def wav(wave: np.ndarray, rate: int = RATE, **options: str) -> bytes:
    """Returns a sound as a file, by default a WAV of 16 bits."""
    content = io.BytesIO()
    soundfile.write(content, wave, rate, **{"format": "WAV", **options})
    return content.getvalue()
