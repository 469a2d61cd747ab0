"""Speech to be enhanced, in three parts: read or made up, mixed with noise, divided.

Files that cannot be read are skipped and counted, the first of them named; it is an error if none
is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwise.tasks.parts import PARTS, Part, given_parts
from headwise.tasks.sound.audio import AudioError
from headwise.tasks.sound.recordings import Recording, Skipped, divide, of_wave, read_folder
from headwise.tasks.sound.spectrum import Spectrum
from headwise.tasks.sound.speech_settings import (
    FolderSpeech,
    GeneratedSpeech,
    HubSpeech,
    MixedSettings,
    PairedSpeech,
    SpeechData,
    SpeechSettings,
)
from headwise.tasks.sound.speech_sources import Pair, read_hub_pairs, read_pairs
from headwise.tasks.sound.utterances import MixedUtterances, Mixing, PairedUtterances, Utterances
from headwise.tasks.sound.voices import speak


@dataclass
class SpeechCorpus:
    """Utterances in three parts, none of them empty.

    Attributes:
        train, validation, test: the parts.
        transfer: further test sets, by name.
        notes: what they are, label to words.
    """

    train: Utterances
    validation: Utterances
    test: Utterances
    transfer: dict[str, Utterances]
    notes: dict[str, str]


def load_speech(settings: SpeechSettings, floor: float) -> SpeechCorpus:
    """Read what the settings name, and divide off the parts that are not given.

    Args:
        settings: `GeneratedSpeech`, `FolderSpeech`, `PairedSpeech` or `HubSpeech`.
        floor: added to magnitudes before the logarithm.

    Raises:
        AudioError: data that cannot be read, or too little to fill the three parts; the message
            names the folder or file and says how to mend it.
    """
    skipped = Skipped()
    if isinstance(settings, MixedSettings):
        parts, notes = _load_mixed(settings, floor, skipped)
    else:
        parts, notes = _load_pairs(settings, floor, skipped)
    transfer: dict[str, Utterances] = {
        name: _paired(settings, floor, read_pairs(folders, settings.rate, skipped), "test")
        for name, folders in settings.transfer.items()
    }
    notes |= {part: _summary(parts[part], settings.seconds) for part in PARTS}
    notes |= {name: _summary(utterances, settings.seconds) for name, utterances in transfer.items()}
    if skipped.reasons:
        notes["skipped"] = str(skipped)
    return SpeechCorpus(**parts, transfer=transfer, notes=notes)


def _load_mixed(
    settings: MixedSettings, floor: float, skipped: Skipped
) -> tuple[dict[Part, Utterances], dict[str, str]]:
    """Parts whose utterances are mixed, but for those that are given as pairs."""
    given: dict[Part, list[Pair]] = {}
    noise: dict[str, list[Recording]] = {part: [] for part in PARTS}
    if isinstance(settings, GeneratedSpeech):
        clean = _generate(settings)
        origin = (
            f"{settings.speakers} generated voices with {settings.utterances} utterances each: a "
            f"smoke run, no speech"
        )
    else:
        assert isinstance(settings, FolderSpeech)
        clean = read_folder(settings.clean, settings.rate, skipped, settings.speaker_pattern)
        origin = f"clean speech of {settings.clean.name}"
        for part in ("validation", "test"):
            folders = getattr(settings, part)
            if folders is not None:
                given[part] = read_pairs(folders, settings.rate, skipped)
        if settings.noise_folder is not None:
            found = read_folder(settings.noise_folder, settings.rate, skipped)
            origin += f", noise of {settings.noise_folder.name}"
            noise = _divide(found, settings, given, "file", "files of noise")
    if "babble" in settings.noise and len({recording.speaker for recording in clean}) < 2:
        raise AudioError(
            "noise names babble, which is made of other speakers, but all speech is of one; set "
            "speaker_pattern so that it finds them, put each speaker's files into a folder, or "
            "leave babble out of noise"
        )
    divided = _divide(clean, settings, given, settings.divide_by, f"{settings.divide_by}s")
    mixing = Mixing(
        settings.noise, settings.snr, settings.level, settings.reverberation, settings.seed
    )
    spectrum = Spectrum(settings.rate)
    parts: dict[Part, Utterances] = {}
    alone: list[Part] = []  # parts of one speaker, whose babble is of those trained on
    for part in PARTS:
        if part in given:
            parts[part] = _paired(settings, floor, given[part], part)
            continue
        voices = divided[part]
        if len({recording.speaker for recording in voices}) < 2:
            voices = divided["train"]
            alone.append(part)
        if "babble" in settings.noise and len({r.speaker for r in [*voices, *divided[part]]}) < 2:
            raise AudioError(
                "noise names babble, but there is one speaker to train on; set divide_by: file, "
                "or leave babble out of noise"
            )
        parts[part] = MixedUtterances(
            divided[part],
            noise[part],
            voices,
            mixing,
            part=part,
            spectrum=spectrum,
            floor=floor,
            samples=spectrum.num_samples(settings.seconds),
        )
    notes = {"corpus": origin}
    if "babble" in settings.noise and alone:
        notes["babble"] = (
            f"of voices that are trained on in {' and '.join(alone)}, where there is one speaker"
        )
    return parts, notes


def _load_pairs(
    settings: PairedSpeech | HubSpeech, floor: float, skipped: Skipped
) -> tuple[dict[Part, Utterances], dict[str, str]]:
    given: dict[Part, list[Pair]] = {}
    if isinstance(settings, HubSpeech):
        for part, split in settings.splits().items():
            given[part] = read_hub_pairs(settings, split, skipped)
        origin = settings.name
    else:
        for part, folders in given_parts(settings).items():
            pattern = settings.speaker_pattern if part == "train" else None
            given[part] = read_pairs(folders, settings.rate, skipped, pattern)
        origin = settings.train.noisy.name
    train = given.pop("train")
    by_name = {pair.noisy.name: pair for pair in train}
    divided = _divide(
        [pair.noisy for pair in train], settings, given, settings.divide_by, "utterances"
    )
    parts: dict[Part, Utterances] = {}
    for part in PARTS:
        pairs = given.get(part) or [by_name[recording.name] for recording in divided[part]]
        parts[part] = _paired(settings, floor, pairs, part)
    return parts, {"corpus": f"pairs of {origin}"}


def _divide(
    recordings: Sequence[Recording],
    settings: SpeechData,
    given: dict[Part, list[Pair]],
    by: str,
    what: str,
) -> dict[str, list[Recording]]:
    """Recordings in the parts that are not given."""

    def key(recording: Recording) -> str:
        return recording.speaker if by == "speaker" else recording.name

    keys = divide(
        map(key, recordings),
        *settings.fractions(given),
        what,
    )
    chosen = {part: set(of_part) for part, of_part in keys.items()}
    return {part: [r for r in recordings if key(r) in chosen[part]] for part in PARTS}


def _paired(
    settings: SpeechData, floor: float, pairs: Sequence[Pair], part: Part
) -> PairedUtterances:
    spectrum = Spectrum(settings.rate)
    return PairedUtterances(
        [pair.clean for pair in pairs],
        [pair.noisy for pair in pairs],
        part=part,
        seed=settings.seed,
        spectrum=spectrum,
        floor=floor,
        samples=spectrum.num_samples(settings.seconds),
    )


def _generate(settings: GeneratedSpeech) -> list[Recording]:
    return [
        of_wave(
            f"voice-{speaker}/{utterance}",
            f"voice-{speaker}",
            speak(speaker, utterance, settings.seconds, settings.rate),
        )
        for speaker in range(settings.speakers)
        for utterance in range(settings.utterances)
    ]


def _summary(utterances: Utterances, seconds: float) -> str:
    clean = getattr(utterances, "clean", [])
    total = sum(recording.samples for recording in clean) / utterances.spectrum.rate
    speakers = len({recording.speaker for recording in clean})
    of = f" of {speakers} speakers" if speakers > 1 else ""
    summary = (
        f"{len(utterances):,} items of at most {seconds:g} s from {len(clean):,} recordings{of}, "
        f"{total / 60:,.1f} minutes"
    )
    # Of a long recording, each piece but the first begins behind its beginning.
    further = sum(piece.start > 0 for piece in utterances.pieces)
    if further and not utterances.training:
        summary += (
            f"; what is longer than {utterances.limit / utterances.spectrum.rate:g} s is cut into "
            f"pieces, {further:,} more"
        )
    return summary
