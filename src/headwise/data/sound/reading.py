"""Readers of recordings: folders of sound files, and datasets of the Hugging Face hub.

A file that cannot be read is left out, and the reason is kept. A folder or a dataset of which no
file can be read raises an `AudioError`.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

from headwise.data.sound.audio import (
    AudioError,
    Waveform,
    audio_info,
    decode_audio,
    find_audio,
    read_audio,
)
from headwise.data.sound.recordings import Pair, Recording, Skipped, hold, part_of
from headwise.data.sound.settings import HubSpeech, HubSpeechTest, PairedFolders
from headwise.data.sources import file_content, load_hub_split


def read_folder(
    folder: Path, rate: int, skipped: Skipped, speaker_pattern: str | None = None
) -> list[Recording]:
    """Reads the WAV and FLAC files of a folder and its subfolders, in the order of their names.

    Args:
        folder: the folder.
        rate: sampling rate of the recordings, in samples per second.
        skipped: receives the reasons why files cannot be read.
        speaker_pattern: a regular expression whose first group is the speaker in a file's path
            below `folder`; by default the folder of a file stands for its speaker.

    Raises:
        AudioError: if there is no such folder, if none of its files can be read, or if the pattern
            does not match one of them.
    """
    folder = folder.expanduser()
    recordings = []
    for path in find_audio(folder):
        name = path.relative_to(folder).as_posix()
        try:
            info = audio_info(path)
        except AudioError as error:
            skipped.add(error)
            continue
        speaker = _speaker(name, speaker_pattern, folder, name.rpartition("/")[0])
        read = partial(read_audio, path, rate)
        recordings.append(Recording(name, speaker, info.samples_at(rate), read))
    recordings = hold(recordings, skipped)
    if not recordings:
        raise AudioError(f"{folder} has 0 files that can be read, expected at least one: {skipped}")
    return recordings


def read_pairs(
    folders: PairedFolders, rate: int, skipped: Skipped, speaker_pattern: str | None = None
) -> list[Pair]:
    """Reads the pairs of two folders, in the order of the noisy files' names."""
    noisy = read_folder(folders.noisy, rate, skipped, speaker_pattern)
    clean = read_folder(folders.clean, rate, skipped)
    partners = {_common_name(recording.name, folders.pattern): recording for recording in clean}
    pairs = []
    for recording in noisy:
        partner = partners.pop(_common_name(recording.name, folders.pattern), None)
        if partner is None:
            skipped.add(f"{folders.noisy / recording.name} has no partner in {folders.clean}")
        elif abs(partner.samples - recording.samples) > rate // 10:
            skipped.add(f"{folders.noisy / recording.name} is not as long as its clean partner")
        else:
            pairs.append(Pair(recording, partner))
    for recording in partners.values():
        skipped.add(f"{folders.clean / recording.name} has no partner in {folders.noisy}")
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
    skipped: Skipped,
    speaker_pattern: str | None = None,
) -> list[Pair]:
    """Reads the pairs of one split of a dataset on the Hugging Face hub.

    Without a pattern all utterances have the same speaker.
    """
    # Imported here: the import takes a second. The sound is decoded by us, because datasets needs
    # ffmpeg for it.
    from datasets import Audio

    where = f"dataset {settings.name!r}, split {split!r}"
    data = load_hub_split(settings.name, split, settings.config, settings.revision)
    columns = [settings.noisy_field, settings.clean_field]
    for column in [*columns, *filter(None, [settings.name_field])]:
        if column not in data.column_names:
            raise AudioError(
                f"{where} has no column {column!r}, expected one of "
                f"{', '.join(data.column_names)}; set noisy_field, clean_field and name_field to "
                f"three of these, or name_field to null"
            )
    for column in columns:
        data = data.cast_column(column, Audio(decode=False))
    pairs: list[Pair] = []
    for row in range(len(data)):
        name = str(row if settings.name_field is None else data[row][settings.name_field])
        speaker = _speaker(name, speaker_pattern, where, "")
        reads = [partial(_read_row, data, row, column, rate) for column in columns]
        try:
            pairs.append(Pair(*(Recording(name, speaker, len(read()), read) for read in reads)))
        except AudioError as error:
            skipped.add(error)
    if not pairs:
        raise AudioError(f"{where} has 0 pairs that can be read, expected at least one: {skipped}")
    # Both sides of the pairs or neither are held, so that pairs stay pairs.
    held = hold([recording for side in zip(*pairs, strict=True) for recording in side], skipped)
    return list(map(Pair, held[: len(pairs)], held[len(pairs) :]))


def _read_row(
    data: Any, row: int, column: str, rate: int, start: int = 0, samples: int | None = None
) -> Waveform:
    sound = data[row][column]
    name = sound.get("path") or f"row {row}, column {column}"
    return part_of(decode_audio(file_content(sound), rate, name), start, samples)


def _common_name(name: str, pattern: str | None) -> str:
    if pattern is None:
        return name.rpartition(".")[0]
    match = re.search(pattern, name)
    return name if match is None else match.group(1)


def _speaker(name: str, pattern: str | None, where: object, default: str) -> str:
    if pattern is None:
        return default
    match = re.search(pattern, name)
    if match is None:
        raise AudioError(
            f"speaker_pattern is {pattern!r}, expected a regular expression that matches every "
            f"name: it does not match the name {name!r} in {where}; set one whose first group is "
            f"the speaker"
        )
    return match.group(1)
