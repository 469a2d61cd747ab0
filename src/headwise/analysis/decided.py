"""What the systems of a model decide on data: a row for each decision, padding left out.

`headwise.analysis.questions` has what the papers ask of these rows.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from headwise.analysis.questions import entropy, explained, load
from headwise.heads.system import Routing, System
from headwise.models.inspect import evaluating, place, systems
from headwise.models.plan import system_name
from headwise.ops.labels import IGNORED_LABEL
from headwise.pretrained.watch import record
from headwise.tasks.scores import spread
from headwise.tasks.task import Positions, Task
from headwise.training.batches import token_batches

Batch = Mapping[str, Tensor]
Decides = Literal["position", "sequence", "everything"]
Describe = Callable[[Batch], Mapping[str, Positions]]
_FEW_SEQUENCES, _FEW_BATCHES = 32, 2  # of what `look_at` reads


@dataclass(frozen=True, eq=False)
class Decided:
    """All decisions of one system of a model on some data.

    A row is one decision: of a position, of a sequence, or the only one, if a system decides the
    same for everything.

    Attributes:
        path: of the module in the model.
        system: what plans call the system.
        site, layer: where it stands. In a model that does not tell its systems, the site is empty,
            and the layer is the number of the system.
        place: both in a word, as `encoder_self.2`; the path where the site is empty.
        unit: what its decisions weigh: expert, head, branch, mechanism.
        decides: what a decision, a row, holds for.
        weights: `(rows, units)`, each row scaled to sum 1; even where all weights are 0.
        chosen: `(rows, chosen)`, the numbers of the units chosen; None if the system chooses none.
        rows: of each row the `sequence` from 0 on, and the `position` in it, padding not counted;
            or, if a decision holds for a sequence, the `length` of that. Then the name of the
            `token`, the name of the class for each label of the task, missing where there is none,
            and each quantity, such as loudness; only those that hold for the whole row.
        positions: the same for each position that a decision holds for; its index is the number of
            the row. It is `rows` itself if each position has a decision.
        sequences: how many sequences were read.
        word: what the tokens are called: word, subword, colour.
    """

    path: str
    system: str
    site: str
    layer: int
    place: str
    unit: str
    decides: Decides
    weights: np.ndarray
    chosen: np.ndarray | None
    rows: pd.DataFrame
    positions: pd.DataFrame
    sequences: int
    word: str

    @property
    def labels(self) -> list[str]:
        """The columns of `rows` that hold classes, not quantities such as loudness."""
        of_rows = self.rows.drop(columns="sequence", errors="ignore")
        return [*of_rows.select_dtypes(exclude="float")]

    @property
    def goes_to(self) -> np.ndarray:
        """`(rows, units)`: 1 at the chosen units; without a choice at that of largest weight.

        Units that have the largest weight together share the 1.
        """
        if self.chosen is not None:
            found = np.zeros_like(self.weights)
            np.put_along_axis(found, self.chosen, 1.0, axis=1)
            return found
        leads = self.weights == self.weights.max(1, keepdims=True)
        with np.errstate(invalid="ignore"):  # none leads in a model that diverged
            return leads / leads.sum(1, keepdims=True)

    @property
    def shares(self) -> np.ndarray:
        """How each decision is shared among the units, `(rows, units)`; a row sums to 1.

        The chosen units share it evenly. Where experts or mechanisms compete, it goes to the one of
        largest weight. Elsewhere the weights are the shares.
        """
        if self.chosen is None and self.unit not in ("expert", "mechanism"):
            return self.weights
        return self.goes_to / self.goes_to.sum(1, keepdims=True)


def collect(
    model: nn.Module,
    batches: Iterable[Batch],
    describe: Describe | None = None,
    *,
    limit: int = 50_000,
) -> list[Decided]:
    """Runs a model on batches and returns what each of its systems decides, in their order.

    The model is in evaluation mode meanwhile. Reading ends before the first sequence by which a
    system would have decided on more than `limit` positions, so that all systems have the same
    whole sequences. Of longer data this is a sample: give batches in random order.

    Args:
        model: a headwise model, a model of transformers, or any module that holds systems.
        batches: keyword arguments of its forward. Positions are padding where `attention_mask` is
            0, if the system was not told its padding. In the decoder of an encoder-decoder model,
            so are the positions behind the last label that is not -100.
        describe: what stands at the positions of a batch, see `Task.describe`.
        limit: how many positions are read; sequences, where their positions are not known.

    Raises:
        ValueError: the model holds no system, or a batch is no mapping of tensors.

    Example:
        >>> import headwise as hw
        >>> sizes = {"vocab_size": 9, "embed_dim": 8, "num_heads": 2, "ffn_dim": 8, "layers": 1}
        >>> model = hw.CausalLM(hw.CausalLMConfig(**sizes, attention="gated"))
        >>> (decided,) = collect(model, [{"input_ids": torch.randint(9, (2, 5))}])
        >>> decided.place, decided.weights.shape, decided.sequences
        ('decoder_self.0', (10, 2), 2)
    """
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    read = 0
    with record(model) as decisions, evaluating(model), torch.no_grad():
        places = systems(model)
        found: dict[str, list[_Call]] = {path: [] for path in places}
        for batch in batches:
            _check(batch)
            batch = _with_decoder_mask(model, batch)
            model(**{name: tensor.to(device) for name, tensor in batch.items()})
            described = describe(batch) if describe else {}
            size = fits = len(next(iter(batch.values())))
            for path, routings in decisions.items():
                known = _known(model, places[path], described, batch)
                made = [_call(routing, *known, read) for routing in routings]
                if made[0].decides != "everything":
                    # The sequence of each position, in order: which is the first without room?
                    here = np.sort(np.concatenate([call.positions["sequence"] for call in made]))
                    room = limit - sum(len(call.positions) for call in found[path])
                    fits = min(fits, int(here[room]) - read) if len(here) > room else fits
                found[path] += made
            decisions.clear()
            decisions.begins.clear()
            read += max(fits, 1 - read)  # one sequence at least
            if fits < size:
                break
    return [
        _joined(path, system, number, calls, read)
        for number, (path, system) in enumerate(places.items())
        if (calls := found[path])
    ]


def look_at(task: Task, batch_tokens: int) -> Callable[[nn.Module], dict[str, float]]:
    """Returns a function that measures a model's decisions on a few validation sequences.

    These are up to 32 sequences, spread evenly over the part, that fit in two batches of so many
    tokens. The keys of the figures are those of `RunResult.history`.
    """

    @cache
    def batches() -> list[tuple[Batch, Mapping[str, Positions]]]:
        part = task.stored("validation")
        made = [task.collate(part.__getitems__(of)) for of in _few(part.lengths, batch_tokens)]
        return [(batch, task.describe(batch)) for batch in made]

    def look(model: nn.Module) -> dict[str, float]:
        described = iter([positions for _, positions in batches()])
        found: dict[str, float] = {}
        for d in collect(model, (batch for batch, _ in batches()), lambda _: next(described)):
            figures = entropy(d)
            found[f"entropy {d.place}"] = figures["mean"]
            found[f"low entropy {d.place}"] = figures["10%"]
            found[f"even entropy {d.place}"] = figures["even"]
            found |= {f"share {d.place}/{unit}": share for unit, share in load(d).items()}
            found |= {f"explained {d.place}/{label}": explained(d, label) for label in d.labels}
        return {key: round(float(x), 5) for key, x in found.items() if math.isfinite(x)}

    return look


def _few(lengths: Any, batch_tokens: int) -> list[list[int]]:
    """Chooses a few sequences of a part, and divides their indices into batches."""
    for number in range(_FEW_SEQUENCES, 0, -1):
        chosen = np.array(spread(range(len(lengths)), number))
        batches = token_batches(np.asarray(lengths)[chosen], batch_tokens)
        if len(batches) <= _FEW_BATCHES:
            break
    return [chosen[batch].tolist() for batch in batches]


def _check(batch: Any) -> None:
    expected = "expected a mapping of the names of arguments of the model's forward to tensors"
    if not isinstance(batch, Mapping):
        raise ValueError(f"a batch is a {type(batch).__name__}, {expected}")
    for name, value in batch.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"a batch has a {type(value).__name__} as {name!r}, {expected}")


def _is_pair(model: nn.Module) -> bool:
    """Says whether a model has an encoder and a decoder, which read different sequences."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def _with_decoder_mask(model: nn.Module, batch: Batch) -> Batch:
    """Adds the mask of the decoder to a batch, whose labels alone tell where padding is."""
    labels = batch.get("labels")
    if not _is_pair(model) or "decoder_attention_mask" in batch or labels is None:
        return batch
    if labels.dim() != 2:
        return batch
    is_real = (labels != IGNORED_LABEL).flip(1).cumsum(1).flip(1) > 0
    return {**batch, "decoder_attention_mask": is_real.long()}


def _known(
    model: nn.Module, system: System, described: Mapping[str, Positions], batch: Batch
) -> tuple[Positions | None, Tensor | None]:
    """Finds what stands at the positions of a system's stack, and their mask, 0 at padding."""
    stack = system.site.partition("_")[0]
    if _is_pair(model):
        mask = "decoder_attention_mask" if stack == "decoder" else "attention_mask"
        return described.get(stack), batch.get(mask)
    # The only stack may have any name, and a module of one's own tells its systems no site.
    first = next(iter(described.values()), None)
    return described.get(stack, first), batch.get("attention_mask")


class _Call(NamedTuple):
    """The decisions of one call of a system, in the form of `Decided`."""

    decides: Decides
    weights: np.ndarray
    chosen: np.ndarray | None
    positions: pd.DataFrame
    word: str


def _call(routing: Routing, at: Positions | None, mask: Tensor | None, read: int) -> _Call:
    """Takes the rows out of the decisions of one call; `read` sequences came before it."""
    weights = scaled(routing.weights)  # (batch, time, units) or less
    decides: Decides = ("everything", "sequence", "position")[weights.dim() - 1]
    is_real = _is_real(routing, at, mask)
    if decides == "everything":
        taken, positions = torch.tensor(True), pd.DataFrame(index=[0])
    elif not is_real.size(1):  # positions are not known
        taken = torch.ones(len(weights), dtype=torch.bool)
        positions = pd.DataFrame({"sequence": np.arange(len(weights)) + read})
    else:
        taken = is_real if decides == "position" else is_real.any(1)
        positions = _positions(is_real, at, read)
    if decides == "sequence":
        positions.index = pd.factorize(positions["sequence"])[0]
    chosen = None if routing.indices is None else routing.indices.cpu()[taken].numpy()
    word = "token" if at is None else at.word
    return _Call(decides, weights[taken].numpy(), chosen, positions, word)


def scaled(weights: Tensor) -> Tensor:
    """Scales the weights of each decision to sum 1; if all are 0, none is preferred to another.

    >>> scaled(torch.tensor([[1.0, 3.0], [0.0, 0.0]]))  # an ablation may leave nothing
    tensor([[0.2500, 0.7500],
            [0.5000, 0.5000]])
    """
    weights = weights.float().cpu()
    total = weights.sum(-1, keepdim=True)
    return (weights / total).where(total != 0, 1 / weights.size(-1))


def _is_real(routing: Routing, at: Positions | None, mask: Tensor | None) -> Tensor:
    """Returns `(batch, time)`, `False` at padding; `(batch, 0)` where positions are not known."""
    padding = routing.padding
    if padding is None and mask is not None:
        padding = mask == 0
    is_each = routing.weights.dim() == 3
    if padding is not None and (not is_each or padding.shape == routing.weights.shape[:2]):
        return ~padding.cpu()
    if is_each:
        return torch.ones(routing.weights.shape[:2], dtype=torch.bool)
    return torch.ones((len(routing.weights), 0) if at is None else at.shape, dtype=torch.bool)


def _positions(is_real: Tensor, at: Positions | None, read: int) -> pd.DataFrame:
    """Makes a row for each real position of a batch, with what stands there."""
    sequence, _ = is_real.nonzero(as_tuple=True)
    number = is_real.cumsum(1)[is_real] - 1  # padding may stand on the left
    found = pd.DataFrame({"sequence": sequence + read, "position": number})
    if at is None or at.shape != is_real.shape:
        return found

    def there(values: Tensor) -> np.ndarray:
        values = values.cpu()
        return (values[is_real] if values.dim() == 2 else values[sequence]).numpy()

    if at.tokens is not None:
        found["token"] = _named(there(at.tokens), at.names)
    for label, (numbers, names) in at.classes.items():
        found[label] = _named(there(numbers), dict(enumerate(names)))
    for name, values in at.levels.items():
        found[name] = there(values.double())
    return found


def _named(numbers: np.ndarray, names: Mapping[int, str]) -> np.ndarray:
    """Replaces numbers by their names; negative ones have none."""
    known, at = np.unique(numbers, return_inverse=True)
    found = [names.get(number, str(number)) if number >= 0 else None for number in known.tolist()]
    return np.array(found, dtype=object)[at]


def _joined(path: str, system: System, number: int, calls: list[_Call], read: int) -> Decided:
    """Joins what a system decided in all of its calls."""
    decides = calls[0].decides
    if decides == "everything":
        calls = calls[:1]  # one decision, not one for each batch
    positions = pd.concat([call.positions for call in calls])
    before = np.cumsum([0, *(len(call.weights) for call in calls[:-1])])  # rows of earlier calls
    positions.index += np.repeat(before, [len(call.positions) for call in calls])
    if decides != "everything":
        positions = positions[positions["sequence"] < read]
    kept = positions.index.unique()
    positions.index = pd.factorize(positions.index)[0]
    names = positions.select_dtypes(exclude="number").columns
    positions = positions.astype(dict.fromkeys(names, "category"))  # which takes little memory
    chosen = [call.chosen for call in calls if call.chosen is not None]
    return Decided(
        path=path,
        system=system_name(type(system)),
        site=system.site,
        layer=system.layer if system.site else number,
        place=place(path, system),
        unit=system.unit,
        decides=decides,
        weights=np.concatenate([call.weights for call in calls])[kept],
        chosen=np.concatenate(chosen)[kept] if chosen else None,
        rows=_of_sequences(positions) if decides == "sequence" else positions,
        positions=positions,
        sequences=read,
        word=calls[0].word,
    )


def _of_sequences(positions: pd.DataFrame) -> pd.DataFrame:
    """Makes a row for each sequence, with what is the same at all of its positions."""
    grouped = positions.drop(columns="position", errors="ignore").groupby(level=0)
    is_same = grouped.nunique(dropna=False).le(1).all()
    rows = grouped.first()[is_same.index[is_same]]
    if "position" in positions:
        rows.insert(1, "length", grouped.size())
    return rows
