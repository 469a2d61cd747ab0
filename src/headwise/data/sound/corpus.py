"""Speech in three parts: loaded or generated, divided, and mixed with noise.

Parts that are given are used as they are. Parts that are not given are divided off the training
data by the names of files or of speakers. Files that cannot be read are left out; the notes count
them and name the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headwise.data.division import PARTS, Item, Part, divide, sample
from headwise.data.settings import given_parts, in_test_set
from headwise.data.sound.audio import AudioError
from headwise.data.sound.dataset import MixedUtterances, Mixing, PairedUtterances, Utterances
from headwise.data.sound.reading import Pair, read_folder, read_hub_pairs, read_pairs
from headwise.data.sound.recordings import Recording, Skipped, of_wave
from headwise.data.sound.settings import (
    FolderSpeech,
    GeneratedSpeech,
    HubSpeech,
    HubSpeechTest,
    MixedSettings,
    PairedFolders,
    PairedFoldersTest,
    PairedSpeech,
    SpeechData,
    SpeechSettings,
)
from headwise.data.sound.spectrum import Spectrum
from headwise.data.sound.voices import speak
from headwise.data.sources import part_in_words


@dataclass
class SpeechCorpus:
    """Utterances in three parts, none of them empty.

    Attributes:
        train, validation, test: the utterances of each part.
        tests: the utterances of each further test set by its name.
        notes: facts about the utterances, from a label to a text.
    """

    train: Utterances
    validation: Utterances
    test: Utterances
    tests: dict[str, Utterances]
    notes: dict[str, str]


def load_speech(settings: SpeechSettings, floor: float) -> SpeechCorpus:
    """Reads or generates speech, and divides off the parts that are not given.

    Args:
        settings: which speech, and which noise is mixed in.
        floor: a number that is added to magnitudes before their logarithm is taken.

    Raises:
        AudioError: if the data cannot be read or are too few for three parts. The message names
            the folder or the file and says how to mend it.
    """
    skipped = Skipped()
    if isinstance(settings, MixedSettings):
        parts, origins, notes = _load_mixed(settings, floor, skipped)
    else:
        parts, origins, notes = _load_pairs(settings, floor, skipped)
    notes |= {part: _note(parts[part], settings.seconds, origins.get(part, "")) for part in PARTS}
    tests: dict[str, Utterances] = {}
    for name, test in settings.tests.items():
        with in_test_set(name):
            tests[name] = _paired(settings, floor, _read_test(test, settings.rate, skipped), "test")
        origin = test.origin if isinstance(test, HubSpeechTest) else _folders(test)
        notes[f"test {name}"] = _note(tests[name], settings.seconds, origin)
    if skipped.reasons:
        notes["skipped"] = str(skipped)
    return SpeechCorpus(**parts, tests=tests, notes=notes)


def _read_test(test: PairedFoldersTest | HubSpeechTest, rate: int, skipped: Skipped) -> list[Pair]:
    if isinstance(test, HubSpeechTest):
        return read_hub_pairs(test, test.split, rate, skipped)
    return read_pairs(test, rate, skipped)


def _folders(folders: PairedFolders) -> str:
    return f"folders {folders.noisy.name}, {folders.clean.name}"


def _load_mixed(
    settings: MixedSettings, floor: float, skipped: Skipped
) -> tuple[dict[Part, Utterances], dict[str, str], dict[str, str]]:
    """Loads clean speech, into which noise is mixed, and the parts that are given as pairs.

    Returns:
        The parts, the folders of those that are given as pairs, in words, and further notes.
    """
    origins: dict[str, str] = {}
    given: dict[Part, list[Pair]] = {}
    noise: dict[Part, list[Recording]] = {part: [] for part in PARTS}
    if isinstance(settings, GeneratedSpeech):
        clean = _generate(settings)
        origin = (
            f"{settings.speakers} generated voices with {settings.utterances} utterances each, "
            f"which are no speech: a smoke run"
        )
    else:
        assert isinstance(settings, FolderSpeech)
        clean = read_folder(settings.clean, settings.rate, skipped, settings.speaker_pattern)
        origin = f"clean speech of {settings.clean.name}"
        for part in ("validation", "test"):
            folders = getattr(settings, part)
            if folders is not None:
                given[part] = read_pairs(folders, settings.rate, skipped)
                origins[part] = _folders(folders)
        if settings.noise_folder is not None:
            found = read_folder(settings.noise_folder, settings.rate, skipped)
            origin += f", noise of {settings.noise_folder.name}"
            noise = _divide(found, _name, settings, given, "files of noise")
    if "babble" in settings.noise and len({recording.speaker for recording in clean}) < 2:
        raise AudioError(
            f"noise is {settings.noise} and all speech has one speaker, expected several: babble "
            "is made of other speakers; set speaker_pattern so that it finds them, put the files "
            "of each speaker into a folder, or leave babble out of noise"
        )
    key = _speaker if settings.divide_by == "speaker" else _name
    divided = _divide(clean, key, settings, given, f"{settings.divide_by}s")
    divided["train"], sampled = sample(
        divided["train"], _name, settings.train_fraction, "recordings"
    )
    mixing = Mixing(
        settings.noise, settings.snr, settings.level, settings.reverberation, settings.seed
    )
    spectrum = Spectrum(settings.rate)
    parts: dict[Part, Utterances] = {}
    alone: list[Part] = []  # parts with one speaker, whose babble is made of training voices
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
                f"noise is {settings.noise} and the training part has one speaker, expected "
                "several: babble is made of other speakers; set divide_by: file, or leave babble "
                "out of noise"
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
    notes = {"corpus": origin} | sampled
    if "babble" in settings.noise and alone:
        notes["babble"] = (
            f"made of training voices in {' and '.join(alone)}, where there is one speaker"
        )
    return parts, origins, notes


def _load_pairs(
    settings: PairedSpeech | HubSpeech, floor: float, skipped: Skipped
) -> tuple[dict[Part, Utterances], dict[str, str], dict[str, str]]:
    """Loads pairs of noisy and of clean recordings.

    Returns:
        The parts, the folders or the split of those that are given, in words, and further notes.
    """
    given: dict[Part, list[Pair]] = {}
    origins: dict[str, str] = {}
    if isinstance(settings, HubSpeech):
        for part, split in settings.splits().items():
            given[part] = read_hub_pairs(
                settings, split, settings.rate, skipped, settings.speaker_pattern
            )
            origins[part] = f"split {split}"
        origin = settings.origin
    else:
        for part, folders in given_parts(settings).items():
            pattern = settings.speaker_pattern if part == "train" else None
            given[part] = read_pairs(folders, settings.rate, skipped, pattern)
            origins[part] = _folders(folders)
        origin = settings.train.noisy.name
    train = given.pop("train")
    key = _speaker if settings.divide_by == "speaker" else _name
    divided = _divide(
        train, lambda pair: key(pair.noisy), settings, given, f"{settings.divide_by}s"
    )
    divided["train"], sampled = sample(
        divided["train"], lambda pair: pair.noisy.name, settings.train_fraction, "recordings"
    )
    parts: dict[Part, Utterances] = {
        part: _paired(settings, floor, given.get(part, divided[part]), part) for part in PARTS
    }
    return parts, origins, {"corpus": f"pairs of {origin}"} | sampled


def _divide(
    items: Sequence[Item],
    key: Callable[[Item], str],
    settings: SpeechData,
    given: dict[Part, list[Pair]],
    what: str,
) -> dict[Part, list[Item]]:
    """Divides items into the parts that are not given.

    Args:
        items: what is divided.
        key: returns the name by which an item is divided; items with one name stay together.
        settings: the shares of the parts.
        given: the parts that are given.
        what: what the names are, for the error.
    """
    part_of_key = divide(map(key, items), *settings.fractions(given))
    if "train" not in part_of_key.values():
        raise AudioError(
            f"the number of {what} is {len(part_of_key)}, expected more: training, validation and "
            f"test need at least one each; give more, or smaller fractions, or folders of their "
            f"own for validation and test"
        )
    return {part: [item for item in items if part_of_key[key(item)] == part] for part in PARTS}


def _name(recording: Recording) -> str:
    return recording.name


def _speaker(recording: Recording) -> str:
    return recording.speaker


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


def _note(utterances: Utterances, seconds: float, origin: str) -> str:
    """Returns what the notes say of a part: its size, where it comes from, and a hash."""
    # The sound itself may be many gigabytes, which are not read before it is needed.
    summary = _summary(utterances, seconds)
    return part_in_words(summary, origin, "names and lengths", utterances.digest())


def _summary(utterances: Utterances, seconds: float) -> str:
    """Describes the size of a part for the notes."""
    clean = getattr(utterances, "clean", [])
    total = sum(recording.samples for recording in clean) / utterances.spectrum.rate
    speakers = len({recording.speaker for recording in clean})
    of = f" of {speakers} speakers" if speakers > 1 else ""
    summary = (
        f"{len(utterances):,} items of at most {seconds:g} s from {len(clean):,} recordings{of}, "
        f"{total / 60:,.1f} minutes"
    )
    # Each piece of a long recording except its first starts after sample 0.
    further = sum(piece.start > 0 for piece in utterances.pieces)
    if further and not utterances.training:
        summary += (
            f"; recordings longer than {utterances.limit / utterances.spectrum.rate:g} s are cut "
            f"into pieces, which makes {further:,} more"
        )
    return summary
