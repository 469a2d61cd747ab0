"""The analyses on a model, data and tokens of one's own, without a recipe."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from operator import length_hint
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from headwise.analysis.decisions.places import places_of
from headwise.analysis.words import words_of
from headwise.ops.labels import IGNORED_LABEL

# `import headwise` reads this file: what draws figures and bars is imported where it is used.
if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from headwise.analysis.ablations.declared import Level
    from headwise.analysis.ablations.results import AblationAnalysis
    from headwise.analysis.decisions.record import RunAnalysis
    from headwise.pretrained.places import HeadLayout
    from headwise.tasks.task import Positions

Batch = Mapping[str, Tensor]
_STACKS = ("encoder", "decoder", "")


@dataclass(eq=False, repr=False)
class Analysis:
    """Analyses what the heads of a model do: entropy, load, tokens, cost of ablations.

    The model may be a plain model of transformers that `headwise.gate_heads` knows, or any module
    that holds systems of headwise or of your own. Nothing is computed until it is asked for; then
    all batches are read once, and the quality is measured once more for each ablation of the
    systems.

    Args:
        model: it is put into evaluation.
        batches: keyword arguments of its forward, batch by batch: a list, a `DataLoader`, or
            anything else that can be gone through once.
        tokens: name of the argument with the numbers of the tokens, `(batch, time)`; for a model
            of two stacks, `encoder` and `decoder` to the name of each. Negative numbers, as in
            labels, are no tokens. Without it the questions on tokens have no answer.
        names: the name of each number: a mapping, or a function such as
            `tokenizer.convert_ids_to_tokens`. By default the number itself.
        mask: name of the argument that is 0 or `False` at padding, as `attention_mask` is in
            transformers; batches may lack it. Systems that are given a `key_padding_mask` know
            their padding already; this is for all others. In the decoder of an encoder-decoder
            model, `labels` of -100 at the end are padding.
        quality: measures the model as it is when called: a number for each item, in an order that
            stays the same, such as the loss of each sequence; or `(items, 2)`, a total for each
            and of how many it is, such as the loss of its tokens. Without it nothing is ablated.
        higher_is_better: whether larger numbers of `quality` are better.
        quality_name: what the page calls it, such as `nats per token`.
        ablations: which are made: `"model"`, those of all modules of a system at once; `"units"`,
            each unit of each module removed too; `"all"`, each left alone too.
        name: of the model, as the page shows it.
        layouts: where attention modules of further classes of transformers have their heads, by
            the class's name, as in `headwise.gate_heads`.

    Raises:
        ValueError: `tokens` has other keys than stacks.

    Example:
        >>> import torch
        >>> import headwise as hw
        >>> model = hw.CausalLM(hw.CausalLMConfig(vocab_size=9, embed_dim=8, num_heads=2,
        ...                                       ffn_dim=8, layers=1, attention="agreement"))
        >>> batches = [{"input_ids": torch.randint(9, (3, 20))} for _ in range(2)]
        >>> analysis = hw.Analysis(model, batches, tokens="input_ids")
        >>> record = analysis.record
        >>> record.sequences, len(record.load), record.load[0].units
        (6, 1, 2)
    """

    model: nn.Module
    batches: Iterable[Batch]
    _: KW_ONLY
    tokens: str | Mapping[str, str] | None = None
    names: Mapping[int, str] | Callable[[int], str] | None = None
    mask: str = "attention_mask"
    quality: Callable[[], Sequence[float] | Tensor] | None = None
    higher_is_better: bool = True
    quality_name: str = "quality"
    ablations: "Level" = "units"
    name: str = "model"
    layouts: "Mapping[str, HeadLayout] | None" = None

    def __post_init__(self) -> None:
        tokens = self.tokens
        self.arguments = dict.fromkeys(_STACKS, tokens) if isinstance(tokens, str) else tokens or {}
        if unknown := [stack for stack in self.arguments if stack not in _STACKS]:
            raise ValueError(
                f"tokens has the keys {', '.join(map(repr, unknown))}, expected 'encoder' and "
                f"'decoder' to the name of an argument each, or a single name"
            )
        self._known: dict[int, str] = {}

    @cached_property
    def record(self) -> "RunAnalysis":
        """All numbers, computed when they are first asked for; see `RunAnalysis`.

        Raises:
            ValueError: the model holds no system, there are no batches, a batch lacks what `tokens`
                names, `tokens` is one name for two stacks, or `ablations` or `quality` is not what
                it is expected to be.
        """
        from rich.console import Console

        from headwise.analysis.decisions.record import RunAnalysis, ask
        from headwise.pretrained.gates import observed
        from headwise.training.watching import bars

        on_terminal = bars(Console(stderr=True), transient=True)
        with observed(self.model, self.layouts), on_terminal as shown:
            stacks = {place.stack for place in places_of(self.model)}
            if isinstance(self.tokens, str) and {"encoder", "decoder"} <= stacks:
                raise ValueError(
                    f"tokens is {self.tokens!r}, but the model has two stacks, expected a mapping "
                    f"of 'encoder' and 'decoder' to the name of an argument each"
                )
            total = length_hint(self.batches) or None  # len() of a stream's DataLoader is an error
            bar = shown.add_task(self.name, total=total, figures="batches analysed")
            answers = ask(
                self.model,
                map(self._told, self.batches),
                self._positions,
                lambda count: shown.update(bar, advance=1),
                self._padding,
            )
            if not answers["sequences"]:
                raise ValueError("batches are none, expected at least one with a sequence")
            ablations = self._ablations(shown)
        return RunAnalysis(
            name=self.name, words=words_of(self.model), **answers, ablations=ablations
        )

    def write(self, folder: str | Path) -> Path:
        """Writes `analysis.html` and `analysis.json` into a folder; returns the page's path."""
        from headwise.report.analysis_page.page import PAGE, write_analysis

        write_analysis(Path(folder), [self.record], f"{self.record.sequences:,} sequences")
        return Path(folder) / PAGE

    def _ablations(self, bars: "Bars") -> "AblationAnalysis | None":
        if self.quality is None:
            return None
        from headwise.analysis.ablations.ablating import analyse_ablations, bar_of
        from headwise.analysis.ablations.quality import Quality

        quality = Quality.of_numbers(
            self.quality, higher_is_better=self.higher_is_better, name=self.quality_name
        )
        return analyse_ablations(
            self.model, quality, level=self.ablations, progress=bar_of(bars, self.name)
        )

    def _positions(self, batch: Batch) -> "dict[str, Positions]":
        from headwise.tasks.task import Positions

        found = {}
        for stack, argument in self.arguments.items():
            if argument not in batch:
                raise ValueError(
                    f"tokens is {argument!r}, which a batch lacks; expected one of "
                    f"{', '.join(batch)}"
                )
            tokens = batch[argument]
            self._name(tokens)
            found[stack] = Positions.of_tokens(tokens, self._known)
        return found

    def _padding(self, batch: Batch) -> dict[str, Tensor]:
        return dict.fromkeys(_STACKS, batch[self.mask] == 0) if self.mask in batch else {}

    def _told(self, batch: Batch) -> Batch:
        """A batch whose decoder is told its padding, which a model knows from its loss alone."""
        config = getattr(self.model, "config", None)
        if (
            not getattr(config, "is_encoder_decoder", False)
            or not isinstance(batch, Mapping)  # which is refused where it is used
            or "decoder_attention_mask" in batch
            or not isinstance(labels := batch.get("labels"), Tensor)
            or labels.dim() != 2
        ):
            return batch
        real = (labels != IGNORED_LABEL).flip(1).cumsum(1).flip(1) > 0
        return batch if real.all() else {**batch, "decoder_attention_mask": real.long()}

    def _name(self, tokens: Tensor) -> None:
        for number in tokens.unique().tolist():
            if number not in self._known and number >= 0:
                self._known[number] = str(self._named(number))

    def _named(self, number: int) -> str | int:
        if callable(self.names):
            return self.names(number)
        return (self.names or {}).get(number, number)
