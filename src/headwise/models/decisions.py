"""What the systems of a model decide while it runs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from headwise.heads.system import AttentionOutput, Routing
from headwise.heads.words import Words
from headwise.models.compiling import run_as_written
from headwise.models.decisions_table import Tokens, decisions_table
from headwise.models.evaluating import evaluating
from headwise.models.plan import system_name
from headwise.models.sites import AttentionSite, attention_sites
from headwise.ops.recompute import is_repeated


class Decisions(dict[AttentionSite, list[Routing]]):
    """What the systems of a model have decided: for each place, the decisions of each pass."""

    def frame(self, tokens: Tokens | Mapping[str, Tokens] | None = None) -> Any:
        """Returns the decisions as a table, with a row for each unit in each decision.

        Its columns:

        - `path`: of the system's module in the model;
        - `pass`: the number of the forward pass, from 0;
        - `sequence`, `position`: whose decision it is, from 0; empty where one decision holds for
          a sequence, or for everything. Padding has no rows;
        - `unit`: the number of the expert, the head, or whatever the system's units are;
        - `weight`: its weight, as the system decided it;
        - `chosen`: whether it has been chosen; true where a system chooses none, since all count;
        - `token`: what stands there, if `tokens` are given.

        Args:
            tokens: what stands at the positions of the one pass that has been made: for each
                sequence a list of words or ids, of all positions or of those that are no padding.
                Of a model with encoder and decoder, `"encoder"` and `"decoder"` to theirs.

        Returns:
            A pandas DataFrame where pandas is installed, else a list of dictionaries, one a row.

        Raises:
            ValueError: the tokens do not fit the positions; more than one pass has been made.

        Example:
            >>> import headwise as hw
            >>> layer = hw.MixtureOfAttentionHeads(16, num_experts=4, top_k=2, head_dim=8)
            >>> with record(nn.ModuleDict({"first": layer})) as decisions:
            ...     y = layer(torch.randn(1, 3, 16))
            >>> frame = decisions.frame(tokens=[["the", "same", "word"]])
            >>> len(frame)  # three positions, four experts
            12
        """
        table = decisions_table(self, tokens)
        if find_spec("pandas") is None:
            return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
        import pandas  # takes long, and is no dependency

        # Whole numbers also where some are missing.
        return pandas.DataFrame(table).astype({"sequence": "Int64", "position": "Int64"})


@contextmanager
def record(model: nn.Module) -> Iterator[Decisions]:
    """While this context is open, each forward pass of a model notes what its systems decide.

    The decisions of all passes stay in memory as long as the result does: `(batch, time, units)`
    numbers for each system and pass. For long data use `headwise.Analysis`, which keeps only sums.

    Args:
        model: a headwise model, or any module that holds systems of headwise or of your own.
            Compiled models run as they are written meanwhile.

    Yields:
        A dictionary: for each place, in the order in which they stand, the decisions of the passes
        so far, their tensors detached. Systems that decide nothing, such as standard attention, are
        left out. `frame()` makes a table of it.

    Raises:
        ValueError: the model holds no system.

    Example:
        >>> import headwise as hw
        >>> class Even(hw.MultiHeadAttention):
        ...     def combine(self, heads, inputs, choice):
        ...         output, _ = super().combine(heads, inputs, choice)
        ...         return output, hw.Routing(torch.ones_like(heads[..., 0]).transpose(1, 2))
        >>> layer = nn.TransformerEncoderLayer(16, 4, batch_first=True)
        >>> layer.self_attn = Even(16, 4)
        >>> with hw.record(layer) as decisions:
        ...     y = layer(torch.randn(2, 5, 16))
        >>> [(place.path, [tuple(each.weights.shape) for each in routings])
        ...  for place, routings in decisions.items()]
        [('self_attn', [(2, 5, 4)])]
    """
    places = attention_sites(model)
    if not places:
        raise ValueError(
            f"model is a {type(model).__name__} without any system of heads, expected at least one "
            f"module that derives from headwise.System"
        )
    decided = Decisions()
    hooks = []
    for place in places:

        def note(
            module: nn.Module, args: object, out: AttentionOutput, place: AttentionSite = place
        ) -> None:
            if out.routing is not None and not is_repeated():
                decided.setdefault(place, []).append(_detached(out.routing))

        hooks.append(place.module.register_forward_hook(note))
    try:
        with run_as_written():
            yield decided
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def decisions_by_position(model: nn.Module, **inputs: Tensor) -> dict[AttentionSite, Routing]:
    """Runs the model once in evaluation mode and returns what its systems decide at each position.

    Args:
        model: a model of one stack.
        inputs: arguments of its forward; the first is `(batch, time, ...)`.

    Returns:
        For each place whose system decides separately for each position, the decisions, their
        weights `(batch, time, units)`.
    """
    batch, time = next(iter(inputs.values())).shape[:2]
    with evaluating(model), record(model) as decided:
        model(**inputs)
    return {
        place: made
        for place, (made, *_) in decided.items()
        if made.weights.dim() == 3 and made.weights.shape[:2] == (batch, time)
    }


def words_of(model: nn.Module) -> dict[str, Words]:
    """Returns the words for the decisions of each system of a model, by its name in plans."""
    return {system_name(type(place.module)): place.module.words for place in attention_sites(model)}


def _detached(routing: Routing) -> Routing:
    loss = None if routing.loss is None else routing.loss.detach()
    return routing._replace(weights=routing.weights.detach(), loss=loss)
