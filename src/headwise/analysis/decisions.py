"""The decisions of the systems of a model on data: a row for each decision, padding left out.

`headwise.analysis.metrics` has the papers' measures of these rows.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from headwise.heads.system import Routing, System
from headwise.models.inspect import eval_mode, find_systems, layer_label
from headwise.models.plan import system_name
from headwise.ops import IGNORED_LABEL
from headwise.pretrained.record import record
from headwise.tasks.task import Positions
from headwise.training.loss import on_device

Batch = Mapping[str, Any]  # keyword arguments of a model's forward, most of them tensors
Describe = Callable[[Batch], Mapping[str, Positions]]


@dataclass(frozen=True, eq=False)
class DecisionTable:
    """All decisions of one system of a model on some data.

    A row is one decision. It holds for a position, for a sequence, or for everything.

    Attributes:
        path: of the module in the model.
        system: the name of the system in plans of attention.
        site, layer: the place in the model; the site is empty in a model that does not name it.
        unit: expert, head, branch, or mechanism: a decision gives each unit a weight.
        weights: `(rows, units)`, each row scaled to sum 1; even where all weights are 0.
        chosen: `(rows, chosen)`, the numbers of the units chosen; None if the system chooses none.
        positions: a line for each position for which a decision holds; the index is the number of
            its row. Columns: the `sequence` from 0 on; the `position` in it, without padding, if
            each position has a decision; the name of the `token`; the name of the class for each
            label of the task, missing where there is none; and each quantity, such as loudness.
        sequences: how many sequences were read.
    """

    path: str
    system: str
    site: str
    layer: int
    unit: str
    weights: np.ndarray
    chosen: np.ndarray | None
    positions: pd.DataFrame
    sequences: int

    @property
    def place(self) -> str:
        """Site and layer, as `encoder_self.2`; the path where the site is empty."""
        return layer_label(self.path, self)

    @property
    def scope(self) -> Literal["position", "sequence", "everything"]:
        """What a decision, a row, holds for."""
        if "sequence" not in self.positions:
            return "everything"
        return "position" if "position" in self.positions else "sequence"

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The columns of `positions` that hold for whole rows, with a line for each row."""
        if self.scope != "sequence":
            return self.positions
        by_row = self.positions.groupby(level=0)
        is_same = by_row.nunique(dropna=False).le(1).all()
        return by_row.first()[is_same.index[is_same]]

    @property
    def labels(self) -> list[str]:
        """The columns of `rows` that hold classes, not quantities such as loudness."""
        columns = self.rows.drop(columns="sequence", errors="ignore")
        return [*columns.select_dtypes(exclude="float")]

    @property
    def assignment(self) -> np.ndarray:
        """`(rows, units)`: 1 at the chosen units, or, without a choice, at the largest weight.

        Units that have the largest weight together share the 1.
        """
        if self.chosen is not None:
            one_hot = np.zeros_like(self.weights)
            np.put_along_axis(one_hot, self.chosen, 1.0, axis=1)
            return one_hot
        leads = self.weights == self.weights.max(1, keepdims=True)
        with np.errstate(invalid="ignore"):  # none leads in a model that diverged
            return leads / leads.sum(1, keepdims=True)

    @property
    def utilization(self) -> np.ndarray:
        """The share of each unit in each decision, `(rows, units)`; a row sums to 1.

        Chosen units have equal shares. If experts or mechanisms compete without a choice, the unit
        of the largest weight has all. Elsewhere the weights are the shares.
        """
        if self.chosen is None and self.unit not in ("expert", "mechanism"):
            return self.weights
        return self.assignment / self.assignment.sum(1, keepdims=True)


class _Call(NamedTuple):
    """The decisions of a system in one call."""

    weights: np.ndarray
    chosen: np.ndarray | None
    positions: pd.DataFrame


def collect(
    model: nn.Module,
    batches: Iterable[Batch],
    describe: Describe | None = None,
    *,
    limit: int = 50_000,
) -> list[DecisionTable]:
    """Runs a model on batches and returns the decisions of each of its systems, in their order.

    The model is in evaluation mode meanwhile. Reading ends behind the batch in which a system has
    decided on `limit` positions. Of longer data this is a sample: give batches in random order.

    Args:
        model: a headwise model, a model of transformers, or any module that holds systems.
        batches: keyword arguments of its forward. Positions are padding where `attention_mask` is
            0, if the system was not told its padding. In the decoder of an encoder-decoder model,
            so are the positions behind the last label that is not -100.
        describe: returns the tokens and labels of the positions of a batch, see
            `Task.describe`.
        limit: after how many positions reading ends; sequences, where positions are not known.

    Raises:
        ValueError: the model holds no system.

    Example:
        >>> import headwise as hw
        >>> sizes = {"vocab_size": 9, "embed_dim": 8, "num_heads": 2, "ffn_dim": 8, "layers": 1}
        >>> model = hw.CausalLM(hw.CausalLMConfig(**sizes, attention="gated"))
        >>> (decided,) = collect(model, [{"input_ids": torch.randint(9, (2, 5))}])
        >>> decided.place, decided.weights.shape, decided.sequences
        ('decoder_self.0', (10, 2), 2)
    """
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    calls: dict[str, list[_Call]] = defaultdict(list)  # by the path of a system
    decided_on: Counter[str] = Counter()  # positions, by the path of a system
    sequences = 0
    with record(model) as decisions, eval_mode(model), torch.no_grad():
        systems_by_path = find_systems(model)
        for batch in batches:
            model(**on_device(batch, device))
            stacks = describe(batch) if describe else {}
            for path, routings in decisions.items():
                stack, mask = _find_stack(model, systems_by_path[path].site, stacks, batch)
                for routing in routings:
                    calls[path].append(_read_call(routing, stack, mask, sequences))
                    decided_on[path] += len(calls[path][-1].positions)
            decisions.clear()
            sequences += len(next(x for x in batch.values() if isinstance(x, Tensor)))
            if max(decided_on.values(), default=0) >= limit:
                break
    called = [(path, system) for path, system in systems_by_path.items() if path in calls]
    return [_join_calls(path, system, calls[path], sequences) for path, system in called]


def scaled(weights: Tensor) -> Tensor:
    """Scales the weights of each decision to sum 1; if all are 0, they become equal.

    >>> scaled(torch.tensor([[1.0, 3.0], [0.0, 0.0]]))  # an ablation may leave nothing
    tensor([[0.2500, 0.7500],
            [0.5000, 0.5000]])
    """
    weights = weights.float().cpu()
    total = weights.sum(-1, keepdim=True)
    return (weights / total).where(total != 0, 1 / weights.size(-1))


# --- the positions of a batch ------------------------------------------------------------------


def _find_stack(
    model: nn.Module, site: str, stacks: Mapping[str, Positions], batch: Batch
) -> tuple[Positions | None, Tensor | None]:
    """Finds the positions that a system reads, and their mask, 0 at padding."""
    name = site.partition("_")[0]
    stack, mask = stacks.get(name), batch.get("attention_mask")
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        # The only stack may have any name, and a module of one's own tells its systems no site.
        return stack or next(iter(stacks.values()), None), mask
    if name != "decoder":
        return stack, mask
    mask, labels = batch.get("decoder_attention_mask"), batch.get("labels")
    if mask is None and labels is not None and labels.dim() == 2:
        mask = (labels != IGNORED_LABEL).flip(1).cumsum(1).flip(1)  # 0 behind the last label
    return stack, mask


# --- from calls to rows -------------------------------------------------------------------------


def _read_call(routing: Routing, stack: Positions | None, mask: Tensor | None, first: int) -> _Call:
    """Makes rows of one call of a system, whose sequences are numbered from `first` on."""
    weights, chosen = scaled(routing.weights), routing.indices  # (batch, time, units) or less
    if weights.dim() == 1:  # one decision for everything
        has_row, positions = torch.tensor(True), pd.DataFrame(index=[0])
    else:
        is_real = _real_positions(routing, stack, mask)
        sequence = is_real.nonzero()[:, 0].numpy()
        positions = pd.DataFrame({"sequence": sequence + first})
        if weights.dim() == 2:
            has_row, positions.index = is_real.any(1), pd.Index(pd.factorize(sequence)[0])
        else:
            has_row = is_real
            position = is_real.cumsum(1)[is_real] - 1  # padding may stand on the left
            positions["position"] = position.numpy()
        if stack is not None and stack.shape == is_real.shape:
            _add_columns(positions, stack, is_real)
    indices = None if chosen is None else chosen.cpu()[has_row].numpy()
    return _Call(weights[has_row].numpy(), indices, positions)


def _real_positions(routing: Routing, stack: Positions | None, mask: Tensor | None) -> Tensor:
    """Returns `(batch, time)`, `False` at padding; a time of 1 where positions are not known."""
    mask = mask if routing.padding is None else ~routing.padding
    has_time = routing.weights.dim() == 3
    known_shape = stack.shape if stack is not None else (len(routing.weights), 1)
    shape = routing.weights.shape[:2] if has_time else known_shape
    if mask is None or (has_time and mask.shape != shape):
        return torch.ones(shape, dtype=torch.bool)
    return mask.cpu() != 0


def _add_columns(positions: pd.DataFrame, stack: Positions, is_real: Tensor) -> None:
    """Adds tokens, classes and quantities of the real positions of a batch to their table."""
    sequence = is_real.nonzero()[:, 0]

    def select(values: Tensor) -> np.ndarray:
        values = values.cpu()
        return (values[is_real] if values.dim() == 2 else values[sequence]).numpy()

    tokens = {} if stack.tokens is None else {"token": (stack.tokens, stack.names)}
    classes = {key: (ids, dict(enumerate(names))) for key, (ids, names) in stack.classes.items()}
    for label, (numbers, names) in {**tokens, **classes}.items():
        # Negative numbers have no name.
        ids = select(numbers).tolist()
        positions[label] = [names.get(n, str(n)) if n >= 0 else None for n in ids]
    for name, values in stack.levels.items():
        positions[name] = select(values.double())


def _join_calls(path: str, system: System, calls: list[_Call], sequences: int) -> DecisionTable:
    """Joins the decisions of all calls of a system."""
    if "sequence" not in calls[0].positions:
        calls = calls[:1]  # one decision, not one for each batch
    rows = 0
    for call in calls:
        call.positions.index += rows
        rows += len(call.weights)
    chosen = [call.chosen for call in calls if call.chosen is not None]
    return DecisionTable(
        path=path,
        system=system_name(type(system)),
        site=system.site,
        layer=system.layer,
        unit=system.unit,
        weights=np.concatenate([call.weights for call in calls]),
        chosen=np.concatenate(chosen) if chosen else None,
        positions=pd.concat([call.positions for call in calls]),
        sequences=sequences,
    )
