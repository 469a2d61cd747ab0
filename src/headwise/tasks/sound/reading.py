"""Where pairs of noisy and clean recordings come from: folders, Hugging Face datasets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from headwise.tasks.sound.audio import AudioError, Waveform, decode_audio
from headwise.tasks.sound.recordings import Recording, Skipped, hold, read_folder
from headwise.tasks.sound.speech_settings import HubSpeech, PairedFolders
from headwise.tasks.sources import file_content, load_hub_split


@dataclass(frozen=True)
class Pair:
    """A noisy and a clean recording of one utterance."""

    noisy: Recording
    clean: Recording


def read_pairs(
    folders: PairedFolders, rate: int, skipped: Skipped, speaker_pattern: str | None = None
) -> list[Pair]:
    """The pairs of two folders, in the order of the noisy files' names.

    Raises:
        AudioError: a folder that cannot be read, or no pair in the two of them.
    """
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
            f"{noisy[0].name} and {clean[0].name}: give them the same names, or set pattern to a "
            f"regular expression whose first group is the same in both names"
        )
    return pairs


def _common_name(name: str, pattern: str | None) -> str:
    if pattern is None:
        return name.rpartition(".")[0]
    match = re.search(pattern, name)
    return name if match is None else match.group(1)


def read_hub_pairs(settings: HubSpeech, split: str, skipped: Skipped) -> list[Pair]:
    """The pairs of one split; the sound is decoded here, not by datasets, which needs ffmpeg."""
    from datasets import Audio  # imported here: it takes a second

    where = f"dataset {settings.name!r}, split {split!r}"
    data = load_hub_split(settings.name, split, settings.config, settings.revision)
    columns = [settings.noisy_field, settings.clean_field]
    for column in [*columns, *filter(None, [settings.name_field])]:
        if column not in data.column_names:
            raise AudioError(
                f"{where}: there is no column {column!r}; there are "
                f"{', '.join(data.column_names)}. Set noisy_field, clean_field and name_field to "
                f"three of these, or name_field to null"
            )
    for column in columns:
        data = data.cast_column(column, Audio(decode=False))
    noisy: list[Recording] = []
    clean: list[Recording] = []
    for row in range(len(data)):
        name = str(row if settings.name_field is None else data[row][settings.name_field])
        speaker = ""
        if settings.speaker_pattern is not None:
            match = re.search(settings.speaker_pattern, name)
            if match is None:
                raise AudioError(
                    f"{where}: speaker_pattern {settings.speaker_pattern!r} finds no speaker in "
                    f"the name {name!r}; its first group has to match in each"
                )
            speaker = match.group(1)
        try:
            for column, found in zip(columns, (noisy, clean), strict=True):
                read = partial(_read_row, data, row, column, settings.rate)
                found.append(Recording(name, speaker, len(read()), read))
        except AudioError as error:
            skipped.add(error)
            del noisy[len(clean) :]
    if not noisy:
        raise AudioError(f"{where} has no sound that can be used: {skipped}")
    # Both or none, so that they stay beside each other.
    held = hold([*noisy, *clean], skipped)
    noisy, clean = held[: len(held) // 2], held[len(held) // 2 :]
    return [Pair(*pair) for pair in zip(noisy, clean, strict=True)]


def _read_row(
    data: Any, row: int, column: str, rate: int, start: int = 0, samples: int | None = None
) -> Waveform:
    sound = data[row][column]
    name = sound.get("path") or f"row {row}, column {column}"
    wave = decode_audio(file_content(sound), rate, name)
    return wave[start : None if samples is None else start + samples]
