"""BLEU and chrF by sacrebleu, and the counts of matches of each sentence behind them.

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

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field
from sacrebleu.metrics import BLEU, CHRF

from headwise.recipes.settings import EvaluationSettings
from headwise.tasks.outcome import Score
from headwise.tasks.significance import Statistic, of_totals

# Languages without spaces between words; all others take 13a.
_TOKENIZERS = {"zh": "zh", "ja": "char"}

BleuKind = Literal["sacrebleu", "tokenized", "compound-split", "pretokenized"]


class TranslationEvaluation(EvaluationSettings):
    """Settings of the search for translations and of their scores."""

    beam_size: int = Field(5, ge=1, le=1000)
    """Number of hypotheses that beam search keeps; 1 is greedy search."""
    length_penalty: float = Field(1.0, ge=-100, le=100)
    """Scores of hypotheses are divided by their length to this power; values above 1 favour longer
    translations."""
    max_length_ratio: float = Field(1.0, ge=0, le=1000)
    """A translation has at most this times the number of subwords of its source, plus
    max_length_extra."""
    max_length_extra: int = Field(50, ge=1, le=10_000_000)
    """Number of subwords that a translation may have beyond max_length_ratio."""
    bleu: BleuKind = "sacrebleu"
    """How BLEU is computed. sacrebleu: on raw text, to compare with current papers; tokenized: as
    multi-bleu.perl does; compound-split: like tokenized, with words split at hyphens, as in WMT14
    en-de papers; pretokenized: like multi-bleu.perl, on a corpus that is already tokenised."""

    def max_length(self, source_length: int) -> int:
        """Returns the largest number of subwords of a translation of so many."""
        return int(self.max_length_ratio * source_length) + self.max_length_extra


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    settings: TranslationEvaluation,
    *,
    language: str | None = None,
) -> list[tuple[Score, np.ndarray]]:
    """Scores translations against one reference each by BLEU and chrF.

    Args:
        hypotheses: translations of the system, one text per sentence.
        references: reference translations, in the same order.
        settings: `bleu` says how BLEU is counted.
        language: code of the target language; Chinese (`"zh"`, `"zh-CN"`) and Japanese (`"ja"`)
            are counted in characters.

    Returns:
        `BLEU` and `chrF` in percent, each with the counts of matches of each sentence, from whose
        sums it is computed. The note of a score says in sacrebleu's notation exactly how it was
        counted; publish it with the number.

    Example:
        >>> (bleu, _), (chrf, _) = corpus_scores(
        ...     ["The cat sat on the mat ."], ["The cat sat on the mat."], TranslationEvaluation()
        ... )
        >>> round(bleu.value, 1), bleu.note.partition("|version")[0]
        (100.0, 'nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp')
    """
    scored = []
    for name, metric in (("BLEU", _bleu(settings.bleu, language)), ("chrF", CHRF())):
        rows = np.array(metric._extract_corpus_statistics(hypotheses, [references]), dtype=float)
        statistic = corpus_statistic(name, settings)
        score = Score.of(name, rows, statistic, note=str(metric.get_signature()))
        scored.append((score, rows))
    return scored


def corpus_statistic(name: str, settings: TranslationEvaluation) -> Statistic:
    """Returns what computes the score `BLEU` or `chrF` from counts of matches."""
    metric = _bleu(settings.bleu, None) if name == "BLEU" else CHRF()
    return of_totals(lambda totals: metric._compute_score_from_stats(totals.astype(int)).score)


def split_compounds(text: str) -> str:
    """Splits words at their hyphens, as tensor2tensor's `get_ende_bleu.sh` does.

    As in that script, matches do not overlap: of two hyphens around a single letter, one is split.
    """
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", text)


def _bleu(kind: BleuKind, language: str | None) -> BLEU:
    """Returns sacrebleu's metric for one kind of BLEU."""
    tokenizer = _TOKENIZERS.get(re.split("[-_]", (language or "").lower())[0], "13a")
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
