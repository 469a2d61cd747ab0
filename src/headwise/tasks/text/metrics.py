"""BLEU and chrF by sacrebleu: scores, their intervals, and the test against a baseline.

Four ways to count BLEU, because published numbers differ in them:

``sacrebleu``
    On raw text, with sacrebleu's tokenisation: 13a, or characters where the language puts no
    spaces between words. The one to report today.
``tokenized``
    The BLEU of ``multi-bleu.perl``: case matters, no smoothing, so a score is 0 when no
    four words in a row are right anywhere. The papers tokenised with the Moses scripts; here it
    is sacrebleu's 13a, which splits ASCII punctuation as Moses does, but neither clitics
    (``l'eau``, ``don't``) nor typographic punctuation („ “ « …), and knows no abbreviations.
    Scores of one system differ by some tenths from Moses's; differences between systems hold.
``compound-split``
    ``tokenized``, after splitting compounds at their hyphens, ``a-b`` to ``a ##AT##-##AT## b``, as
    tensor2tensor's ``get_ende_bleu.sh`` does. The WMT14 en-de numbers of most Transformer papers
    are counted so, and are about half a point higher for it.
``pretokenized``
    ``multi-bleu.perl`` on text as it is, for corpora that were tokenised beforehand.

chrF is always counted on the raw text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
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
    """How translations are searched for and scored."""

    beam_size: int = Field(5, ge=1, description="hypotheses kept by beam search; 1 is greedy")
    length_penalty: float = Field(
        1.0,
        description="scores of hypotheses are divided by length to this power; above 1 favours "
        "longer ones",
    )
    max_length_ratio: float = Field(
        1.0,
        ge=0,
        description="a translation has at most this times the subwords of its source, plus "
        "max_length_extra",
    )
    max_length_extra: int = Field(
        50, ge=1, description="subwords that a translation may have beyond that"
    )
    bleu: BleuKind = Field(
        "sacrebleu",
        description="sacrebleu: raw text, for numbers of today; tokenized: as multi-bleu.perl; "
        "compound-split: likewise, split at hyphens, as in WMT14 en-de papers; pretokenized: "
        "multi-bleu.perl on a corpus that is tokenised already",
    )

    def max_length(self, source_length: int) -> int:
        """The most subwords a translation may have, for a source of ``source_length`` subwords.

        >>> TranslationEvaluation(max_length_ratio=1.5, max_length_extra=10).max_length(20)
        40
        """
        return int(self.max_length_ratio * source_length) + self.max_length_extra


@dataclass(frozen=True)
class TranslationScore:
    """Corpus scores in percent, each with the 95% interval of a bootstrap over sentences.

    The signatures say, in sacrebleu's notation, exactly what was counted; publish them with the
    numbers.
    """

    bleu: float
    bleu_interval: tuple[float, float]
    bleu_signature: str
    chrf: float
    chrf_interval: tuple[float, float]
    chrf_signature: str
    num_sentences: int


@dataclass(frozen=True)
class Comparison:
    """A system against the baseline: differences (system minus baseline) and their p-values.

    A p-value is the probability of a difference at least this large, in either direction, if the
    two systems were equally good.
    """

    bleu_delta: float
    bleu_p_value: float
    chrf_delta: float
    chrf_p_value: float


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    settings: TranslationEvaluation,
    *,
    language: str | None = None,
    num_bootstrap: int = 1000,
    seed: int = 12345,
) -> TranslationScore:
    """BLEU and chrF of translations against one reference each.

    Args:
        hypotheses: what the system wrote, one text a sentence.
        references: what it should have written, in the same order.
        settings: ``bleu`` says which BLEU.
        language: code of the target language; Chinese (``"zh"``, ``"zh-CN"``) and Japanese
            (``"ja"``) are counted in characters.
        num_bootstrap: how often the sentences are resampled for the interval; at least 2.
        seed: of the resampling; at least 1. sacrebleu's own default, so that its command line
            gives the same interval.

    Raises:
        ValueError: no sentences, unequal numbers of them, or an argument out of range.

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
            num_sentences=len(references),
        )


def compare_to_baseline(
    baseline: Sequence[str],
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    settings: TranslationEvaluation,
    *,
    language: str | None = None,
    num_bootstrap: int = 1000,
    seed: int = 12345,
) -> dict[str, Comparison]:
    """Whether each system differs from the baseline: sacrebleu's paired bootstrap test.

    Args:
        baseline: translations of the baseline.
        systems: translations of the other systems, by name.
        references: the reference translations, in the same order as all of these.
        settings, language, num_bootstrap, seed: as for :func:`score`.

    Returns:
        A :class:`Comparison` for each system, in the order of ``systems``. Where a score is equal
        to the baseline's, p is 1 (the bootstrap has nothing to resample there, and sacrebleu's
        formula would return its smallest value).

    Raises:
        ValueError: as for :func:`score`.
    """
    for hypotheses in (baseline, *systems.values()):
        _check(hypotheses, references, num_bootstrap, seed)
    if not systems:
        return {}
    # The baseline goes first. Names are put back by position: sacrebleu would mix up equal ones.
    named = [("baseline", baseline), *systems.items()]
    metrics = {"BLEU": _bleu(settings.bleu, language), "chrF": _Chrf()}
    with _sacrebleu_seed(seed):
        test = PairedTest(named, metrics, [references], test_type="bs", n_samples=num_bootstrap)
        _, results = test()
    (bleu_baseline, *bleu), (chrf_baseline, *chrf) = results["BLEU"], results["chrF2"]
    comparisons = {}
    for name, of_bleu, of_chrf in zip(systems, bleu, chrf, strict=True):
        bleu_delta = float(of_bleu.score - bleu_baseline.score)
        chrf_delta = float(of_chrf.score - chrf_baseline.score)
        comparisons[name] = Comparison(
            bleu_delta=bleu_delta,
            bleu_p_value=of_bleu.p_value if bleu_delta else 1.0,
            chrf_delta=chrf_delta,
            chrf_p_value=of_chrf.p_value if chrf_delta else 1.0,
        )
    return comparisons


def split_compounds(text: str) -> str:
    """Take words apart at their hyphens, as tensor2tensor's ``get_ende_bleu.sh`` does.

    As there, matches do not overlap: of two hyphens around a single letter, one is split.

    >>> split_compounds("ein Best-of-Album - neu")
    'ein Best ##AT##-##AT## of ##AT##-##AT## Album - neu'
    """
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", text)


def _bleu(kind: BleuKind, language: str | None) -> BLEU:
    """sacrebleu's metric for one kind of BLEU."""
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
    """sacrebleu's chrF, with the same type of number for no match at all as for some.

    Of some resamples with and some without a match sacrebleu cannot take the mean.
    """

    def _compute_f_score(self, statistics: list[int]) -> float:
        return float(super()._compute_f_score(statistics))


def _interval(score: BLEUScore | CHRFScore) -> tuple[float, float]:
    """The 95% interval, which sacrebleu keeps as mean and half width."""
    return float(score._mean - score._ci), float(score._mean + score._ci)


def _check(
    hypotheses: Sequence[str], references: Sequence[str], num_bootstrap: int, seed: int
) -> None:
    if len(hypotheses) != len(references):
        raise ValueError(
            f"hypotheses and references must be as many as each other, but there are "
            f"{len(hypotheses):,} and {len(references):,}"
        )
    if not references:
        raise ValueError("references is empty: a score needs at least one sentence")
    if num_bootstrap < 2:
        raise ValueError(f"num_bootstrap must be at least 2, but is {num_bootstrap}")
    if seed < 1:  # sacrebleu would take 0 for "no seed" in one place and for a seed in another
        raise ValueError(f"seed must be at least 1, but is {seed}")


@contextmanager
def _sacrebleu_seed(seed: int) -> Iterator[None]:
    """sacrebleu takes its seed from the environment and nowhere else."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before
