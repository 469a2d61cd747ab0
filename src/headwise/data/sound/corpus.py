"""Speech in three parts: loaded or generated, divided, and mixed with noise.

Parts that are given are used as they are. Parts that are not given are divided off the training
data by the names of files or of speakers. Files that cannot be read are left out; the notes count
them and name the first.
"""

from collections.abc import Callable, Container, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

from headwise.data.corpora import Corpus
from headwise.data.division import PARTS, Part, divide, sample
from headwise.data.settings import given_parts, given_test, in_test_set
from headwise.data.sound.audio import AudioError
from headwise.data.sound.dataset import MixedUtterances, PairedUtterances, Utterances
from headwise.data.sound.reading import (
    read_folder,
    read_generated,
    read_hub_pairs,
    read_pairs,
)
from headwise.data.sound.recordings import Pair, Recording, by_speaker
from headwise.data.sound.settings import (
    FolderSpeech,
    GeneratedSpeech,
    HubSpeech,
    HubSpeechTest,
    MixedSettings,
    PairedFolders,
    SpeechData,
    SpeechSettings,
)
from headwise.data.sources import in_training, part_in_words, skipped_in_words

SpeechCorpus = Corpus[Utterances]  # the utterances of three parts and of further test sets


def load_speech(settings: SpeechSettings, floor: float) -> SpeechCorpus:
    """Reads or generates speech, and divides off the parts that are not given.

    Args:
        floor: a number that is added to magnitudes before their logarithm is taken.

    Raises:
        AudioError: if the data cannot be read or are too few for three parts. The message names
            the folder or the file and says how to mend it.
    """
    skipped: list[str] = []
    given: dict[Part, list[Pair]] = {}
    origins: dict[str, str] = {}
    for part, source in given_parts(settings).items():
        assert not isinstance(settings, GeneratedSpeech)
        own_names = part == "train" or isinstance(settings, HubSpeech)
        pattern = settings.speaker_pattern if own_names else None
        given[part], origins[part] = _read_pairs(settings, source, settings.rate, skipped, pattern)
    if isinstance(settings, MixedSettings):
        parts, notes = _mix(settings, given, floor, skipped)
    else:
        whole = settings.origin if isinstance(settings, HubSpeech) else settings.train.noisy.name
        divided, sampled = _divide_speech(given.pop("train"), settings, given)
        given = divided | given
        parts, notes = {}, {"corpus": f"pairs of {whole}"} | sampled
    for part, pairs in given.items():
        parts[part] = PairedUtterances(pairs, part, settings, floor)
    trained = {recording.digest for recording in parts["train"].clean}
    note = partial(_note, settings.seconds, trained)
    notes |= {part: note(parts[part], origins.get(part, "")) for part in PARTS}
    tests: dict[str, Utterances] = {}
    for name, test in settings.tests.items():
        with in_test_set(name):
            pairs, origin = _read_pairs(test, given_test(settings, test), settings.rate, skipped)
        tests[name] = PairedUtterances(pairs, "test", settings, floor)
        notes[f"test {name}"] = note(tests[name], origin)
    if skipped:
        notes["skipped"] = skipped_in_words(skipped)
    return SpeechCorpus(parts["train"], parts["validation"], parts["test"], notes, tests=tests)


# --- reading ----------------------------------------------------------------------------------


def _read_pairs(
    settings: Any,
    given: PairedFolders | str,
    rate: int,
    skipped: list[str],
    pattern: str | None = None,
) -> tuple[list[Pair], str]:
    """Returns the pairs of two folders or of a split, and words on where they are."""
    if isinstance(given, PairedFolders):
        origin = f"folders {given.noisy.name}, {given.clean.name}"
        return read_pairs(given, rate, skipped, pattern), origin
    origin = settings.origin if isinstance(settings, HubSpeechTest) else f"split {given}"
    return read_hub_pairs(settings, given, rate, skipped, pattern), origin


def _read_clean(settings: MixedSettings, skipped: list[str]) -> tuple[list[Recording], str]:
    """Returns clean speech, and words on where it comes from."""
    if isinstance(settings, FolderSpeech):
        pattern = settings.speaker_pattern
        clean = read_folder(settings.clean, settings.rate, skipped, pattern)
        return clean, f"clean speech of {settings.clean.name}"
    assert isinstance(settings, GeneratedSpeech)
    return read_generated(settings), (
        f"{settings.speakers} generated voices with {settings.utterances} utterances each, "
        f"which are no speech: a smoke run"
    )


# --- mixing and dividing ----------------------------------------------------------------------


def _mix(
    settings: MixedSettings, given: Container[Part], floor: float, skipped: list[str]
) -> tuple[dict[Part, Utterances], dict[str, str]]:
    """Returns the parts of clean speech into which noise is mixed, and notes on them."""
    clean, origin = _read_clean(settings, skipped)
    noise: dict[Part, list[Recording]] = {part: [] for part in PARTS}
    if isinstance(settings, FolderSpeech) and settings.noise_folder is not None:
        found = read_folder(settings.noise_folder, settings.rate, skipped)
        origin += f", noise of {settings.noise_folder.name}"
        noise = _divide(found, attrgetter("name"), settings, given, "files of noise")
    divided, sampled = _divide_speech(clean, settings, given)
    parts: dict[Part, Utterances] = {}
    alone: list[Part] = []  # parts with one speaker, whose babble is made of training voices
    for part in PARTS:
        if part in given:
            continue
        voices = divided[part]
        if len(by_speaker(voices)) < 2:
            voices = divided["train"]
            alone.append(part)
        noises = settings.noise_of(part)
        if "babble" in noises and len(by_speaker([*voices, *divided[part]])) < 2:
            raise AudioError(
                f"noise is {noises} and the {part} part has one speaker, expected several: "
                "babble is made of other speakers; set speaker_pattern so that it finds them, put "
                "the files of each speaker into a folder, set divide_by: file, or leave babble out "
                "of noise"
            )
        parts[part] = MixedUtterances(
            divided[part], noise[part], voices, settings, part=part, floor=floor
        )
    notes = {"corpus": origin} | sampled
    alone = [part for part in alone if "babble" in settings.noise_of(part)]
    if alone:
        notes["babble"] = (
            f"made of training voices in {' and '.join(alone)}, where there is one speaker"
        )
    return parts, notes


Heard = TypeVar("Heard", Recording, Pair)


def _divide_speech(
    items: Sequence[Heard], settings: SpeechData, given: Container[str]
) -> tuple[dict[Part, list[Heard]], dict[str, str]]:
    """Divides recordings or pairs; returns a note on the training sample, too."""
    key = attrgetter("speaker" if settings.divide_by == "speaker" else "name")
    divided = _divide(items, key, settings, given, f"{settings.divide_by}s")
    divided["train"], sampled = sample(
        divided["train"], attrgetter("name"), settings.train_fraction, "recordings"
    )
    return divided, sampled


def _divide(
    items: Sequence[Heard],
    key: Callable[[Heard], str],
    settings: SpeechData,
    given: Container[str],
    what: str,
) -> dict[Part, list[Heard]]:
    """Divides items into the parts that are not given."""
    part_of_key = divide(map(key, items), *settings.fractions(given))
    if "train" not in part_of_key.values():
        raise AudioError(
            f"the number of {what} is {len(part_of_key)}, expected more: training, validation and "
            f"test need at least one each; give more, or smaller fractions, or folders of their "
            f"own for validation and test"
        )
    return {part: [item for item in items if part_of_key[key(item)] == part] for part in PARTS}


# --- notes ------------------------------------------------------------------------------------


def _note(seconds: float, trained: Container[str], utterances: Utterances, origin: str) -> str:
    """Returns what the notes say of a part: its size, where it comes from, and a hash.

    `trained` are the hashes of the clean recordings of the training part.
    """
    clean, rate = utterances.clean, utterances.spectrum.rate
    total = sum(recording.samples for recording in clean) / rate
    speakers = len(by_speaker(clean))
    of = f" of {speakers} speakers" if speakers > 1 else ""
    known = 0 if utterances.training else sum(each.digest in trained for each in clean)
    size = (
        f"{len(utterances):,} items of at most {seconds:g} s from {len(clean):,} recordings{of}, "
        f"{total / 60:,.1f} minutes{in_training(known)}"
    )
    # Each piece of a long recording except its first starts after sample 0.
    further = sum(piece.start > 0 for piece in utterances.pieces)
    if further and not utterances.training:
        size += (
            f"; recordings longer than {utterances.limit / rate:g} s are cut into pieces, which "
            f"makes {further:,} more"
        )
    return part_in_words(size, origin, "sounds", utterances.items_digest())
