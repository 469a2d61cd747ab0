"""Readers of recordings: folders of sound files, and datasets of the Hugging Face hub.

A file that cannot be read is left out, and the reason is kept. A folder or a dataset of which no
file can be read raises an `AudioError`. All samples are read once, into the cache.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from headwise.data.sound.audio import AudioError, Waveform, find_audio, read_audio
from headwise.data.sound.recordings import Pair, Recording, prepared
from headwise.data.sound.settings import (
    Columns,
    GeneratedSpeech,
    HubSpeech,
    HubSpeechTest,
    PairedFolders,
)
from headwise.data.sound.voices import speak
from headwise.data.sources import file_content, load_hub_split
from headwise.data.store import file_identity


def read_generated(settings: GeneratedSpeech) -> list[Recording]:
    """Generates the utterances of all voices."""

    def sounds(skipped: list[str]) -> Iterator[tuple[str, Waveform]]:
        for speaker in range(settings.speakers):
            for utterance in range(settings.utterances):
                wave = speak(speaker, utterance, settings.seconds, settings.rate)
                yield f"voice-{speaker}/{utterance}", wave

    sizes = (settings.speakers, settings.utterances, settings.seconds, settings.rate)
    return prepared(["generated", *sizes], sounds, "generated speech", [], _folder_of)


def read_folder(
    folder: Path, rate: int, skipped: list[str], speaker_pattern: str | None = None
) -> list[Recording]:
    """Reads the WAV and FLAC files of a folder and its subfolders, in the order of their names.

    Args:
        rate: sampling rate of the recordings, in samples per second.
        skipped: receives the reasons why files cannot be read.
        speaker_pattern: a regular expression whose first group is the speaker in a file's path
            below `folder`; by default the folder of a file stands for its speaker.

    Raises:
        AudioError: if there is no such folder, if none of its files can be read, or if the pattern
            does not match one of them.
    """
    folder = folder.expanduser()

    def sounds(skipped: list[str]) -> Iterator[tuple[str, Waveform]]:
        for path in find_audio(folder):
            try:
                yield path.relative_to(folder).as_posix(), read_audio(path, rate)
            except AudioError as error:
                skipped.append(str(error))

    speaker = _folder_of if speaker_pattern is None else _named(speaker_pattern, folder)
    return prepared([file_identity(folder), rate], sounds, folder, skipped, speaker)


def read_pairs(
    folders: PairedFolders, rate: int, skipped: list[str], speaker_pattern: str | None = None
) -> list[Pair]:
    """Reads the pairs of two folders, in the order of the noisy files' names."""
    noisy = read_folder(folders.noisy, rate, skipped, speaker_pattern)
    clean = read_folder(folders.clean, rate, skipped)
    partners: dict[str, Recording] = {}
    for recording in clean:
        key = _common_name(recording.name, folders.pattern)
        if key in partners:
            other = partners[key].name
            skipped.append(f"{folders.clean / other} has the same partner as {recording.name}")
        partners[key] = recording
    pairs, taken = [], set[str]()
    for recording in noisy:
        key = _common_name(recording.name, folders.pattern)
        if key not in partners:
            skipped.append(f"{folders.noisy / recording.name} has no partner in {folders.clean}")
        elif key in taken:
            skipped.append(f"{folders.noisy / recording.name} has the same partner as another one")
        elif _equally_long(pair := Pair(recording, partners[key]), folders.noisy, skipped, rate):
            pairs.append(pair)
        taken.add(key)
    for key, recording in partners.items():
        if key not in taken:
            skipped.append(f"{folders.clean / recording.name} has no partner in {folders.noisy}")
    if not pairs:
        raise AudioError(
            f"{folders.noisy} and {folders.clean} have no files that belong together, such as "
            f"{noisy[0].name} and {clean[0].name}; give them equal names, or set pattern to a "
            f"regular expression whose first group is equal in both names"
        )
    return pairs


def read_hub_pairs(
    settings: HubSpeech | HubSpeechTest,
    split: str,
    rate: int,
    skipped: list[str],
    speaker_pattern: str | None = None,
) -> list[Pair]:
    """Reads the pairs of one split of a dataset on the Hugging Face hub.

    Without a pattern all utterances have the same speaker.
    """
    where = f"dataset {settings.name!r}, split {split!r}"
    rows = load_hub_split(settings.name, split, settings.config, settings.revision)
    fields = (settings.noisy_field, settings.clean_field, settings.name_field)
    made_of = [rows._fingerprint, *fields, rate]
    speaker = (lambda _: "") if speaker_pattern is None else _named(speaker_pattern, where)
    sounds = partial(_split_sounds, rows, settings, where, rate)
    found = prepared(made_of, sounds, where, skipped, speaker)
    pairs = map(Pair, found[::2], found[1::2])
    kept = [pair for pair in pairs if _equally_long(pair, where, skipped, rate)]
    if not kept:
        raise AudioError(
            f"{where} has 0 pairs of recordings that are equally long, expected at least one; "
            f"check whether noisy_field and clean_field are the right columns"
        )
    return kept


def _equally_long(pair: Pair, where: object, skipped: list[str], rate: int) -> bool:
    if abs(pair.clean.samples - pair.noisy.samples) <= rate // 10:
        return True
    skipped.append(f"{where}: {pair.name} is not as long as its clean partner")
    return False


def _split_sounds(
    rows: Any, fields: Columns, where: str, rate: int, skipped: list[str]
) -> Iterator[tuple[str, Waveform]]:
    """Yields the noisy and then the clean recording of each row."""
    # Imported here: the import takes a second. The sound is decoded by us, because datasets needs
    # ffmpeg for it.
    from datasets import Audio

    columns = [fields.noisy_field, fields.clean_field]
    names = [] if fields.name_field is None else [fields.name_field]
    for column in [*columns, *names]:
        if column not in rows.column_names:
            raise AudioError(
                f"{where} has no column {column!r}, expected one of "
                f"{', '.join(rows.column_names)}; set noisy_field, clean_field and name_field to "
                f"three of these, or name_field to null"
            )
    rows = rows.select_columns(list(dict.fromkeys([*columns, *names])))
    for column in columns:
        rows = rows.cast_column(column, Audio(decode=False))
    for row, record in enumerate(rows):
        name = str(record[names[0]] if names else row)
        try:
            pair = [
                read_audio(
                    file_content(record[column]),
                    rate,
                    name=(record[column] or {}).get("path") or f"row {row}, column {column}",
                )
                for column in columns
            ]
        except AudioError as error:
            skipped.append(str(error))
        else:
            yield from ((name, wave) for wave in pair)


def _common_name(name: str, pattern: str | None) -> str:
    if pattern is None:
        return name.rpartition(".")[0]
    match = re.search(pattern, name)
    return name if match is None else match.group(1)


def _folder_of(name: str) -> str:
    return name.rpartition("/")[0]


def _named(pattern: str, where: object) -> Callable[[str], str]:
    """Returns what finds the speaker in the name of a recording."""

    def speaker(name: str) -> str:
        match = re.search(pattern, name)
        if match is None:
            raise AudioError(
                f"speaker_pattern is {pattern!r}, expected a regular expression that matches every "
                f"name: it does not match the name {name!r} in {where}; set one whose first group "
                f"is the speaker"
            )
        return match.group(1)

    return speaker
