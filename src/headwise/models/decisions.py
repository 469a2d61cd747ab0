"""What the systems of a model decide while it runs, and what its heads read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from headwise.heads.attention import Attention
from headwise.heads.heads_read import HeadsRead, Observer, observing
from headwise.heads.system import AttentionOutput, Routing, Words
from headwise.models.evaluating import evaluating, run_as_written
from headwise.models.plan import system_name
from headwise.models.sites import AttentionSite, attention_sites, heads_sites
from headwise.ops.recompute import is_repeated

# For each sequence of a batch, what stands at its positions: a list of words, a row of ids.
Tokens = Sequence[Sequence[Any]] | Tensor


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
        columns = ["path", "pass", "sequence", "position", "unit", "weight", "chosen"]
        table: dict[str, list[Any]] = {name: [] for name in columns}
        if tokens is not None:
            table["token"] = []
        for place, made in self.items():
            for number, routing in enumerate(made):
                if tokens is not None and len(made) > 1:
                    raise ValueError(
                        f"tokens are those of one pass, but {place.path or 'the model'} has made "
                        f"{len(made)}: open the context for each pass by itself, or leave tokens "
                        f"out"
                    )
                own = tokens.get(place.stack) if isinstance(tokens, Mapping) else tokens
                rows = _columns(place, routing, own) | {"path": place.path, "pass": number}
                count = len(rows["weight"])
                for name, values in table.items():
                    values += rows[name] if isinstance(rows[name], list) else [rows[name]] * count
        if find_spec("pandas") is None:
            return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
        import pandas  # takes long, and is no dependency

        # Whole numbers also where some are missing.
        return pandas.DataFrame(table).astype({"sequence": "Int64", "position": "Int64"})


@contextmanager
def record(model: nn.Module) -> Iterator[Decisions]:
    """`headwise.record` of a model that holds systems.

    Raises:
        ValueError: the model holds no system.
    """
    places = attention_sites(model)
    if not places:
        raise ValueError(
            f"model is a {type(model).__name__} without any system of heads, expected at least one "
            f"module that derives from headwise.systems.System"
        )
    decided = Decisions()

    def note(place: AttentionSite, module: nn.Module, args: object, out: AttentionOutput) -> None:
        if out.routing is not None and not is_repeated():
            decided.setdefault(place, []).append(_detached(out.routing))

    with ExitStack() as stack, run_as_written():
        for place in places:
            stack.enter_context(place.module.register_forward_hook(partial(note, place)))
        yield decided


@torch.no_grad()
def decisions_by_position(model: nn.Module, **inputs: Tensor) -> dict[AttentionSite, Routing]:
    """Runs a model of one stack in evaluation mode and returns what is decided at each position.

    The first of the inputs is `(batch, time, ...)`. Systems that do not decide separately for each
    position are left out.
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


def _columns(place: AttentionSite, routing: Routing, tokens: Tokens | None) -> dict[str, Any]:
    """The columns of one pass, without padding; one value where all rows have the same."""
    weights = routing.weights  # (batch, time, units) or less, see Routing
    chosen = torch.ones_like(weights, dtype=torch.bool)
    if routing.indices is not None:
        chosen = torch.zeros_like(chosen).scatter(-1, routing.indices, True)
    real = torch.ones(weights.shape[:-1], dtype=torch.bool, device=weights.device)
    if routing.padding is not None and weights.dim() == 3:
        real = real & ~routing.padding
    units = torch.arange(weights.size(-1), device=weights.device)
    where = real.nonzero().repeat_interleave(len(units), 0)  # (rows, 2, 1 or 0)
    columns: dict[str, Any] = {
        "weight": weights[real].flatten().tolist(),
        "chosen": chosen[real].flatten().tolist(),
        "unit": units.expand_as(weights)[real].flatten().tolist(),
        "token": None,
    }
    for dimension, name in enumerate(("sequence", "position")):
        known = dimension < where.size(1)
        columns[name] = where[:, dimension].tolist() if known else None
    if tokens is not None and where.size(1) == 2:
        at = _tokens_at(place, real, tokens)
        columns["token"] = [at[s][t] for s, t in where.tolist()]
    return columns


def _tokens_at(place: AttentionSite, real: Tensor, tokens: Tokens) -> list[list[Any]]:
    """The token at each position, `real` or not, `(batch, time)`."""
    rows = tokens.tolist() if isinstance(tokens, Tensor) else tokens
    batch, time = real.shape
    lengths = real.sum(1).tolist()
    if len(rows) != batch or any(
        len(row) not in (time, length) for row, length in zip(rows, lengths, strict=True)
    ):
        raise ValueError(
            f"tokens are {len(rows)} sequences of {sorted({len(row) for row in rows})} tokens, but "
            f"{place.path or 'the model'} decided for {batch} sequences of {time} positions, "
            f"expected a token for each, or for each that is no padding; of a model with two "
            f"stacks, a mapping of 'encoder' and 'decoder' to theirs"
        )
    named = []
    for row, is_real in zip(rows, real.tolist(), strict=True):
        names = iter(row)
        whole = len(row) == time  # else it names the real positions alone
        named.append(list(row) if whole else [next(names) if here else None for here in is_real])
    return named


@contextmanager
def heads_read(
    model: nn.Module, note: Callable[[AttentionSite, HeadsRead], None]
) -> Iterator[None]:
    """While this context is open, each call of each attention of a model is noted.

    Compiled models run as they are written meanwhile. Whoever keeps what is noted detaches it.

    Args:
        model: a headwise model, or any module that holds attentions of headwise or of your own:
            all that derive from `headwise.systems.Attention`.
        note: called with each call's place and what its heads read, as soon as it is computed.

    Raises:
        ValueError: the model holds no such attention.

    Example:
        >>> import torch
        >>> import headwise as hw
        >>> layer = hw.MixtureOfAttentionHeads(16, num_experts=6, top_k=2, head_dim=4)
        >>> def note(place, read):
        ...     print(place.path, tuple(read.outputs.shape), tuple(read.weights().shape))
        ...     print(tuple(read.chosen.shape), tuple(read.every_head().outputs.shape))
        >>> with heads_read(nn.ModuleDict({"first": layer}), note):
        ...     y = layer(torch.randn(3, 5, 16))
        first (3, 2, 5, 4) (3, 2, 5, 5)
        (3, 5, 2) (3, 6, 5, 4)
    """
    places = heads_sites(model)
    if not places:
        raise ValueError(
            f"model is a {type(model).__name__} without any attention of headwise, expected at "
            f"least one module that derives from headwise.systems.Attention"
        )
    observers = ((cast(Attention, place.module), partial(note, place)) for place in places)
    with observing(observers), run_as_written():
        yield


class NotedAttentions(NamedTuple):
    """The weights of one pass through a stack, layer by layer."""

    of_self: list[Tensor]
    of_cross: list[Tensor]


@contextmanager
def attentions_noted(stack: nn.Module, layers: int) -> Iterator[NotedAttentions]:
    """While this context is open, the attentions in the layers of a stack note their weights.

    That is what transformers' `output_attentions` asks for: for every layer
    `(batch, heads, queries, keys)`, the weights by which each head reads, as in evaluation, so that
    in training they are those before dropout. Where each query chooses its own heads, the rows of
    those that it has not chosen are zero. In a layer that a system replaces as a whole, they are
    those of the system's own self-attention and cross-attention.

    Raises:
        ValueError: a layer has no attention that derives from `headwise.systems.Attention`.
    """
    noted = NotedAttentions([], [])
    places = heads_sites(stack)
    for index in range(layers):
        if not any(place.layer == index for place in places):
            raise ValueError(
                f"output_attentions is True, but layer {index} holds no module that derives from "
                f"headwise.systems.Attention, which would say what its attention weights are: "
                f"leave output_attentions out"
            )

    def observer(place: AttentionSite) -> tuple[Attention, Observer]:
        into = noted.of_cross if place.site == "decoder_cross" else noted.of_self
        return cast(Attention, place.module), partial(_note_weights, into)

    with observing(map(observer, places)):
        yield noted


def _note_weights(into: list[Tensor], read: HeadsRead) -> None:
    """Adds `(batch, heads, queries, keys)`, zero where a query has not chosen the head."""
    weights, chosen = read.weights(), read.chosen
    if chosen is None:
        into.append(weights)
        return
    batch, _, queries, keys = weights.shape
    every = torch.zeros(
        batch, queries, read.num_heads, keys, dtype=weights.dtype, device=weights.device
    )
    places = chosen.unsqueeze(-1).expand(-1, -1, -1, keys)  # (batch, queries, chosen, keys)
    into.append(every.scatter(2, places, weights.transpose(1, 2)).transpose(1, 2))
