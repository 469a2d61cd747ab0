"""How translations are scored: BLEU and chrF by sacrebleu.

sacrebleu (Post 2018, *A Call for Clarity in Reporting BLEU Scores*,
https://aclanthology.org/W18-6319) counts the matches of each sentence, from whose sums BLEU
(Papineni et al. 2002, https://aclanthology.org/P02-1040) and chrF (Popović 2015,
https://aclanthology.org/W15-3049) follow. chrF is always counted on the raw text.
"""

import re
from collections.abc import Sequence
from typing import Literal

from sacrebleu.metrics import BLEU, CHRF

from headwise.settings import FrozenSettings
from headwise.tasks.scores import Score

Tokenize = Literal[
    "13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "spm", "flores101", "flores200", "none"
]


class Bleu(FrozenSettings):
    """How BLEU is counted: arguments of sacrebleu's `BLEU`, and `split_compounds`."""

    tokenize: Tokenize | None = None
    """What divides a text into words. Default: zh for Chinese, char for Japanese, else 13a."""
    smooth_method: Literal["exp", "floor", "add-k", "none"] = "exp"
    """What stands for a precision of zero; with none, BLEU is zero then."""
    smooth_value: float | None = None
    """Value of `floor` and `add-k`."""
    lowercase: bool = False
    """Whether case does not matter."""
    force: bool = False
    """Whether sacrebleu does not warn of text that looks tokenised."""
    split_compounds: bool = False
    """Whether words are split at hyphens, `a-b` to `a ##AT##-##AT## b`, as tensor2tensor's
    `get_ende_bleu.sh` does; scores are about half a point higher for it."""

    def metric(self, language: str | None) -> BLEU:
        """Returns the metric for the code of a target language."""
        arguments = self.model_dump(exclude={"split_compounds"})
        code = re.split("[-_]", (language or "").lower())[0]
        arguments["tokenize"] = self.tokenize or {"zh": "zh", "ja": "char"}.get(code, "13a")
        try:
            metric = BLEU(**arguments)
        except (RuntimeError, ImportError) as error:  # a package that sacrebleu needs for it
            raise ValueError(f"evaluation.bleu.tokenize is {self.tokenize!r}: {error}") from error
        if self.split_compounds:
            tokenize = metric.tokenizer
            metric.tokenizer = lambda line: split_compounds(tokenize(line))
            metric.tokenizer_signature += "+compound-split"
        return metric


def scores_of(
    made: Sequence[str], references: Sequence[str], bleu: Bleu, language: str | None = None
) -> list[Score]:
    """Returns BLEU and chrF, in percent, of translations with one reference each.

    Their notes say in sacrebleu's notation how they were counted; publish these with the numbers.

    >>> bleu, chrf = scores_of(["The cat sat on the mat ."], ["The cat sat on the mat."], Bleu())
    >>> round(bleu.value, 6), bleu.note.partition("|version")[0]
    (100.0, 'nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp')
    """
    options = bleu.model_dump(include={"smooth_method", "smooth_value"}, exclude_defaults=True)
    found = []
    for name, metric, given in (("BLEU", bleu.metric(language), options), ("chrF", CHRF(), {})):
        rows = metric._extract_corpus_statistics(made, [references])
        note = str(metric.get_signature())
        found.append(Score.of(name, rows, name.lower(), options=given, note=note))
    return found


def split_compounds(text: str) -> str:
    """Splits words at hyphens, as tensor2tensor does: matches do not overlap.

    >>> split_compounds("a well-known - x-y-z")
    'a well ##AT##-##AT## known - x ##AT##-##AT## y-z'
    """
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", text)
