"""What an analysis says that the parts of a model decide, by the question and the path of the part.

Whoever builds the analyses anew edits this file: today a record of pydantic is behind
`headwise.Analysis`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import headwise as hw


class Shared(hw.MultiHeadAttention):
    """A system of a user's own: each head's share of a sum over the entries of the input."""

    def combine(self, heads, inputs, choice):
        output, _ = super().combine(heads, inputs, choice)
        weights = inputs.query.unflatten(-1, (self.num_heads, -1)).sum(-1).softmax(-1)
        return output, hw.Routing(weights, padding=inputs.query_padding)


def analysed(
    model: nn.Module, batches: Sequence[Mapping[str, Tensor]], **options: Any
) -> dict[str, dict[str, Any]]:
    """The answers on `batches`, whose tokens are `input_ids` if not told otherwise."""
    record = hw.Analysis(model, batches, **{"tokens": "input_ids", **options}).record
    entropy = record.entropy.modules if record.entropy else []
    return {
        "entropy": {e.where.path: (e.spread.mean.value, e.spread.uniform) for e in entropy},
        "load": {
            of.where.path: {
                "rows": of.rows,
                "leads": of.leads.shares,
                "weight": of.weight.shares,
                "chosen": of.chosen and of.chosen.shares,
                "balance": of.balance,
            }
            for of in record.load
        },
        "tokens": {
            of.where.path: [{lead.name: lead.pmi for lead in unit.leading} for unit in of.units]
            for of in record.tokens
            if of.label == "token"
        },
        "explained": {(of.where.path, of.label): of.between for of in record.explained},
        "layers": {tuple(place.path for place in of.places): of.likeness for of in record.layers},
        "ranges": {
            of.where.path: {
                token.token: {
                    unit.unit: (unit.least, unit.mean, unit.greatest) for unit in token.units
                }
                for token in of.tokens
            }
            for of in record.ranges
        },
        "ablations": record.ablations,
    }


def page(model: nn.Module, batches: Sequence[Mapping[str, Tensor]], folder: Path) -> str:
    """The text of the page of an analysis."""
    return hw.Analysis(model, batches, tokens="input_ids").write(folder).read_text("utf-8")
