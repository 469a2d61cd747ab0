"""BLEU and chrF by sacrebleu: scores, their intervals, and the test against a baseline.

There are four ways to count BLEU, because published numbers differ in them:

`sacrebleu`
    On raw text with sacrebleu's tokenisation: 13a, or characters for languages that put no spaces
    between words. This is the one to report today.
`tokenized`
    The BLEU of `multi-bleu.perl`: case matters and there is no smoothing, so a score is 0 if no
    four words in a row are right anywhere. The papers tokenised with the Moses scripts. Here the
    tokeniser is sacrebleu's 13a, which splits ASCII punctuation as Moses does, but splits neither
    clitics (`l'eau`, `don't`) nor typographic punctuation („ “ « …), and knows no abbreviations.
    The scores of one system differ by some tenths from those of Moses; differences between systems
    hold.
`compound-split`
    `tokenized`, after compounds are split at their hyphens, `a-b` to `a ##AT##-##AT## b`, as
    tensor2tensor's `get_ende_bleu.sh` does. The WMT14 en-de numbers of most Transformer papers
    are counted in this way, and are about half a point higher for it.
`pretokenized`
    `multi-bleu.perl` on text as it is, for corpora that are already tokenised.

chrF is always counted on the raw text.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from pydantic import Field
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.bleu import BLEUScore
from sacrebleu.metrics.chrf import CHRFScore
from sacrebleu.significance import PairedTest

from headwise.recipe.settings import EvaluationSettings

# Languages without spaces between words; all others take 13a.
_TOKENIZERS = {"zh": "zh", "ja": "char"}

BleuKind = Literal["sacrebleu", "tokenized", "compound-split", "pretokenized"]


class TranslationEvaluation(EvaluationSettings):
    """Settings of the search for translations and of their scores."""

    beam_size: int = Field(
        5, ge=1, description="Number of hypotheses that beam search keeps; 1 is greedy search."
    )
    length_penalty: float = Field(
        1.0,
        description="Scores of hypotheses are divided by their length to this power; values above "
        "1 favour longer translations.",
    )
    max_length_ratio: float = Field(
        1.0,
        ge=0,
        description="A translation has at most this times the number of subwords of its source, "
        "plus max_length_extra.",
    )
    max_length_extra: int = Field(
        50,
        ge=1,
        description="Number of subwords that a translation may have beyond max_length_ratio.",
    )
    bleu: BleuKind = Field(
        "sacrebleu",
        description="How BLEU is computed. sacrebleu: on raw text, to compare with current papers; "
        "tokenized: as multi-bleu.perl does; compound-split: like tokenized, with words split at "
        "hyphens, as in WMT14 en-de papers; pretokenized: like multi-bleu.perl, on a corpus that "
        "is already tokenised.",
    )

    def max_length(self, source_length: int) -> int:
        """Returns the largest number of subwords of a translation.

        Args:
            source_length: number of subwords of the source.

        >>> TranslationEvaluation(max_length_ratio=1.5, max_length_extra=10).max_length(20)
        40
        """
        return int(self.max_length_ratio * source_length) + self.max_length_extra


@dataclass(frozen=True)
class TranslationScore:
    """Corpus scores in percent, each with the 95% interval of a bootstrap over sentences.

    The signatures say in sacrebleu's notation exactly how a score was counted; publish them with
    the numbers.
    """

    bleu: float
    bleu_interval: tuple[float, float]
    bleu_signature: str
    chrf: float
    chrf_interval: tuple[float, float]
    chrf_signature: str


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    settings: TranslationEvaluation,
    *,
    language: str | None = None,
    num_bootstrap: int = 1000,
    seed: int = 12345,
) -> TranslationScore:
    """Scores translations against one reference each by BLEU and chrF.

    Args:
        hypotheses: translations of the system, one text per sentence.
        references: reference translations, in the same order.
        settings: `bleu` says how BLEU is counted.
        language: code of the target language; Chinese (`"zh"`, `"zh-CN"`) and Japanese (`"ja"`)
            are counted in characters.
        num_bootstrap: number of resamples of the sentences for the interval; at least 2.
        seed: seed of the resampling; at least 1. The default is sacrebleu's own, so that its
            command line gives the same interval.

    Raises:
        ValueError: there are no sentences, the numbers of hypotheses and references differ, or an
            argument is out of range.

    Example:
        >>> result = score(["The cat sat on the mat ."], ["The cat sat on the mat."],
        ...                TranslationEvaluation())
        >>> round(result.bleu, 1), result.bleu_signature.partition("|version")[0]
        (100.0, 'nrefs:1|bs:1000|seed:12345|case:mixed|eff:no|tok:13a|smooth:exp')
    """
    _check(hypotheses, references, num_bootstrap, seed)
    bleu = _bleu(settings.bleu, language)
    chrf = _Chrf()
    with _sacrebleu_seed(seed):
        bleu_score = bleu.corpus_score(hypotheses, [references], n_bootstrap=num_bootstrap)
        chrf_score = chrf.corpus_score(hypotheses, [references], n_bootstrap=num_bootstrap)
        return TranslationScore(
            bleu=bleu_score.score,
            bleu_interval=_interval(bleu_score),
            bleu_signature=str(bleu.get_signature()),
            chrf=chrf_score.score,
            chrf_interval=_interval(chrf_score),
            chrf_signature=str(chrf.get_signature()),
        )


def compare_bleu(
    baseline: Sequence[str],
    other: Sequence[str],
    references: Sequence[str],
    settings: TranslationEvaluation,
    *,
    language: str | None = None,
    num_bootstrap: int = 1000,
    seed: int = 12345,
) -> tuple[float, float]:
    """Tests by sacrebleu's paired bootstrap whether the BLEU of a system differs from a baseline.

    Args:
        baseline: translations of the baseline.
        other: translations of the system.
        references: reference translations, in the same order as both.
        settings, language, num_bootstrap, seed: as in `score`.

    Returns:
        The difference, system minus baseline, and its p-value: the probability of a difference at
        least this large, in either direction, if both were equally good. If the scores are equal,
        p is 1 (there is nothing to resample, and sacrebleu's formula would return its smallest
        value).

    Raises:
        ValueError: as `score`.
    """
    for hypotheses in (baseline, other):
        _check(hypotheses, references, num_bootstrap, seed)
    with _sacrebleu_seed(seed):
        test = PairedTest(
            [("baseline", baseline), ("other", other)],
            {"BLEU": _bleu(settings.bleu, language)},
            [references],
            test_type="bs",
            n_samples=num_bootstrap,
        )
        _, results = test()
    there, here = results["BLEU"]
    difference = float(here.score - there.score)
    return difference, here.p_value if difference else 1.0


def split_compounds(text: str) -> str:
    """Splits words at their hyphens, as tensor2tensor's `get_ende_bleu.sh` does.

    As in that script, matches do not overlap: of two hyphens around a single letter, one is split.

    >>> split_compounds("ein Best-of-Album - neu")
    'ein Best ##AT##-##AT## of ##AT##-##AT## Album - neu'
    """
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", text)


def _bleu(kind: BleuKind, language: str | None) -> BLEU:
    """Returns sacrebleu's metric for one kind of BLEU."""
    tokenizer = _TOKENIZERS.get((language or "").lower().partition("-")[0], "13a")
    if kind == "sacrebleu":
        return BLEU(tokenize=tokenizer)
    if kind == "pretokenized":
        tokenizer = "none"
    # force: do not warn that the text looks tokenised
    metric = BLEU(tokenize=tokenizer, smooth_method="none", force=True)
    if kind == "compound-split":
        tokenize = metric.tokenizer
        metric.tokenizer = lambda line: split_compounds(tokenize(line))
        metric.tokenizer_signature += "+compound-split"
    return metric


class _Chrf(CHRF):
    """sacrebleu's chrF, whose score is a float with and without matches.

    sacrebleu's own is of another type without a match, and sacrebleu cannot take the mean of
    resamples of which some have a match and others have none.
    """

    def _compute_f_score(self, statistics: list[int]) -> float:
        return float(super()._compute_f_score(statistics))


def _interval(score: BLEUScore | CHRFScore) -> tuple[float, float]:
    """Returns the 95% interval, which sacrebleu keeps as mean and half width."""
    return float(score._mean - score._ci), float(score._mean + score._ci)


def _check(
    hypotheses: Sequence[str], references: Sequence[str], num_bootstrap: int, seed: int
) -> None:
    if len(hypotheses) != len(references):
        raise ValueError(
            f"hypotheses has {len(hypotheses):,} texts, expected {len(references):,}: one for each "
            f"of the references"
        )
    if not references:
        raise ValueError("references is empty, expected at least one sentence")
    if num_bootstrap < 2:
        raise ValueError(f"num_bootstrap is {num_bootstrap}, expected at least 2")
    if seed < 1:  # sacrebleu would take 0 for "no seed" in one place and for a seed in another
        raise ValueError(f"seed is {seed}, expected at least 1")


@contextmanager
def _sacrebleu_seed(seed: int) -> Iterator[None]:
    """Sets the seed of sacrebleu, which reads it from the environment and nowhere else."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before
