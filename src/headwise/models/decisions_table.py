"""What systems decided, as a table with a row for each unit's weight in each decision."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.heads.system import Routing
from headwise.models.sites import AttentionSite

# For each sequence of a batch, what stands at its positions: a list of words, a row of ids.
Tokens = Sequence[Sequence[Any]] | Tensor

COLUMNS = ("path", "pass", "sequence", "position", "unit", "weight", "chosen")


def decisions_table(
    decided: Mapping[AttentionSite, Sequence[Routing]],
    tokens: Tokens | Mapping[str, Tokens] | None = None,
) -> dict[str, list[Any]]:
    """Returns the table that `Decisions.frame` describes: name of a column to its values."""
    table: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    if tokens is not None:
        table["token"] = []
    for place, made in decided.items():
        for number, routing in enumerate(made):
            columns = _columns(routing)
            if tokens is not None:
                if len(made) > 1:
                    raise ValueError(
                        f"tokens are those of one pass, but {place.path or 'the model'} has made "
                        f"{len(made)}: open the context for each pass by itself, or leave tokens "
                        f"out"
                    )
                columns["token"] = _tokens_at(place, routing, columns, _tokens_of(place, tokens))
            rows = len(columns["weight"])
            columns |= {"path": [place.path] * rows, "pass": [number] * rows}
            for name, values in table.items():
                values += columns[name]
    return table


def _columns(routing: Routing) -> dict[str, list[Any]]:
    """The columns of one pass, without padding."""
    weights = routing.weights  # (batch, time, units) or less, see Routing
    chosen = torch.ones_like(weights, dtype=torch.bool)
    if routing.indices is not None:
        chosen = torch.zeros_like(chosen).scatter(-1, routing.indices, True)
    real = torch.ones(weights.shape[:-1], dtype=torch.bool, device=weights.device)
    if routing.padding is not None and weights.dim() == 3:
        real = real & ~routing.padding
    where = real.nonzero().repeat_interleave(weights.size(-1), 0)  # (rows, 2, 1 or 0)
    rows = int(real.sum()) * weights.size(-1)
    columns = {"weight": weights[real].flatten(), "chosen": chosen[real].flatten()}
    columns["unit"] = torch.arange(weights.size(-1)).repeat(int(real.sum()))
    lists = {name: column.tolist() for name, column in columns.items()}
    for dimension, name in enumerate(("sequence", "position")):
        known = dimension < where.size(1)
        lists[name] = where[:, dimension].tolist() if known else [None] * rows
    return lists


def _tokens_of(place: AttentionSite, tokens: Tokens | Mapping[str, Tokens]) -> Tokens | None:
    if not isinstance(tokens, Mapping):
        return tokens
    return tokens.get(place.stack)


def _tokens_at(
    place: AttentionSite, routing: Routing, columns: Mapping[str, list[Any]], tokens: Tokens | None
) -> list[Any]:
    """The token of each row; None where a decision is of no position, or nothing is known."""
    if tokens is None or routing.weights.dim() < 3:
        return [None] * len(columns["weight"])
    batch, time = routing.weights.shape[:2]
    rows = tokens.tolist() if isinstance(tokens, Tensor) else tokens
    real = torch.ones(batch, time, dtype=torch.bool)
    if routing.padding is not None:
        real = ~routing.padding.cpu()
    lengths = real.sum(1).tolist()
    if len(rows) != batch or any(
        len(row) not in (time, length) for row, length in zip(rows, lengths, strict=True)
    ):
        raise ValueError(
            f"tokens are {len(rows)} sequences of {sorted({len(row) for row in rows})} tokens, but "
            f"{place.path or 'the model'} decided for {batch} sequences of {time} positions: give "
            f"one token for each position, or for each that is no padding; of a model with two "
            f"stacks, give a mapping of 'encoder' and 'decoder' to theirs"
        )
    # Where a row names real positions alone, which of them a position is.
    nth = (real.cumsum(1) - 1).tolist()
    return [
        rows[s][t if len(rows[s]) == time else nth[s][t]]
        for s, t in zip(columns["sequence"], columns["position"], strict=True)
    ]
