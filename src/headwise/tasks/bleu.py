"""How translations are scored: BLEU and chrF by sacrebleu.

sacrebleu (Post 2018, *A Call for Clarity in Reporting BLEU Scores*,
https://aclanthology.org/W18-6319) counts the matches of each sentence, from whose sums BLEU
(Papineni et al. 2002, https://aclanthology.org/P02-1040) and chrF (Popović 2015,
https://aclanthology.org/W15-3049) follow. chrF is always counted on the raw text.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sacrebleu.metrics import BLEU, CHRF

from headwise.tasks.scores import Score


def bleu_metric(options: Mapping[str, Any], language: str | None = None) -> BLEU:
    """Returns BLEU for the code of a target language.

    Args:
        options: arguments of sacrebleu's `BLEU`, and `split_compounds`.
        language: decides what divides a text into words where `tokenize` is not given.

    Raises:
        ValueError: sacrebleu has no such option, or lacks a package for it.
    """
    code = re.split("[-_]", (language or "").lower())[0]
    arguments = {"tokenize": {"zh": "zh", "ja": "char"}.get(code, "13a"), **options}
    is_split = arguments.pop("split_compounds", False)
    try:
        metric = BLEU(**arguments)
    except (AssertionError, ImportError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"evaluation.bleu is {dict(options)}: {error}") from error
    if is_split:
        tokenize = metric.tokenizer
        metric.tokenizer = lambda line: split_compounds(tokenize(line))
        metric.tokenizer_signature += "+compound-split"
    return metric


def scores_of(
    made: Sequence[str],
    references: Sequence[str],
    bleu: Mapping[str, Any] | None = None,
    language: str | None = None,
) -> list[Score]:
    """Returns BLEU and chrF, in percent, of translations with one reference each.

    Their notes say in sacrebleu's notation how they were counted; publish these with the numbers.

    >>> bleu, chrf = scores_of(["The cat sat on the mat ."], ["The cat sat on the mat."])
    >>> round(bleu.value, 6), bleu.note.partition("|version")[0]
    (100.0, 'nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp')
    """
    bleu, found = bleu or {}, []
    options = {name: bleu[name] for name in bleu if name.startswith("smooth_")}
    metrics = {"BLEU": (bleu_metric(bleu, language), options), "chrF": (CHRF(), {})}
    for name, (metric, of) in metrics.items():
        rows = metric._extract_corpus_statistics(made, [references])
        note = str(metric.get_signature())
        found.append(Score.of(name, rows, name.lower(), options=of, note=note))
    return found


def split_compounds(text: str) -> str:
    """Splits words at hyphens, as tensor2tensor does: matches do not overlap.

    >>> split_compounds("a well-known - x-y-z")
    'a well ##AT##-##AT## known - x ##AT##-##AT## y-z'
    """
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", text)
