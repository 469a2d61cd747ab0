"""How much each head of a model matters to its loss: by the gradient, or by removing the head."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.analysis.decisions.places import Place, attentions_of
from headwise.analysis.statistics.estimates import Spread, student_interval
from headwise.heads.attention import Read
from headwise.models.inspect import ablated, evaluating, observe
from headwise.ops.labels import IGNORED_LABEL
from headwise.pretrained.checkpoints import gates_of
from headwise.pretrained.layouts import HeadLayout
from headwise.pretrained.observing import observed

Loss = Callable[[Any, Any], Tensor]
OfItems = dict[str, Tensor]  # path of an attention to (items, heads)


class Head(NamedTuple):
    path: str
    site: str
    layer: int
    head: int
    importance: float
    low: float
    high: float


class HeadImportance(list[Head]):
    """The heads of a model, the most important first.

    Each has the `path` of its attention, `site` and `layer` as in plans, a number `head`, the mean
    `importance` over items, and the ends `low` and `high` of the 95% interval (Student's t).
    """

    def frame(self) -> Any:
        """Returns a pandas DataFrame where pandas is installed, else a list of dictionaries."""
        rows = [head._asdict() for head in self]
        if find_spec("pandas") is None:
            return rows
        import pandas  # takes long, and is no dependency

        return pandas.DataFrame(rows)

    def least(self, number: int, *, group: int = 1) -> dict[str, list[int]]:
        """Returns the least important heads, by the paths of their attentions.

        That is what `headwise.prune_heads` takes. Each attention keeps its most important head; it
        is an error (`ValueError`) if there are not so many others. With `group`, heads that share
        their keys, so many of them one behind another, go together: `number` counts these groups,
        and the sum of their importance ranks them.
        """
        if group < 1:
            raise ValueError(f"group is {group}, expected how many heads share a head of keys")
        sums: dict[tuple[str, int], float] = defaultdict(float)
        for head in reversed(self):
            sums[head.path, head.head // group] += head.importance
        order = sorted(sums, key=lambda unit: sums[unit])
        kept = dict(order)  # the last that is put in is the most important
        free = [(path, unit) for path, unit in order if kept[path] != unit]
        if not 0 <= number <= len(free):
            raise ValueError(
                f"number is {number}, expected 0 to {len(free)}: of {len(order)} "
                f"{'heads' if group == 1 else 'groups'} each of {len(kept)} attentions keeps one"
            )
        found: dict[str, list[int]] = {}
        for path, unit in sorted(free[:number], key=lambda each: each[1]):
            found.setdefault(path, []).extend(range(unit * group, (unit + 1) * group))
        return found


def head_importance(
    model: nn.Module,
    data: Iterable[Any],
    *,
    by: Literal["gradient", "removal"] = "gradient",
    loss: Loss | None = None,
    normalized: bool = False,
    layouts: Mapping[str, HeadLayout] | None = None,
) -> HeadImportance:
    """Measures how much each head of a model matters to its loss.

    By gradient, it is what Michel et al. 2019, https://arxiv.org/abs/1905.10650, rank heads by:

        I_h = E_x |∂L(x)/∂ξ_h| = E_x |Att_h(x)ᵀ ∂L(x)/∂Att_h(x)|

    with L(x) the loss of an item, Att_h(x) what head h has read at all of its positions, and ξ_h =
    1 a mask over it. It takes a forward and a backward pass, and the memory of a step of training.
    By removal, it is the loss of an item without the head, as under `headwise.ablated`, minus that
    with it: negative where the model is better without. It takes a forward pass for each head. The
    model computes as in evaluation, and is afterwards as it was, its gradients too.

    Args:
        model: of transformers, of headwise, or any module with attentions of headwise.
        data: batches: without `loss`, mappings to arguments of the model, with `labels`.
        by: `"gradient"` or `"removal"`.
        loss: called with the model and a batch, it returns the loss of each item, `(items,)`. By
            default, that is the mean over the item's labels other than -100 of the cross entropy,
            or of the squared error where labels are real numbers; items without labels are left
            out.
        normalized: whether to divide by the L2 norm over the heads of an attention, as the paper.
        layouts: of further classes of attention, as in `headwise.gate_heads`.

    Raises:
        ValueError: no known attention, no data, no labels, another loss of the model than the
            default; by gradient, layers of `torch.ao.quantization.quantize_dynamic`; by removal, an
            attention whose ablations remove no single head.

    Example:
        >>> import headwise as hw
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> config = GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=16)
        >>> model, tokens = GPT2LMHeadModel(config), torch.randint(50, (8, 16))
        >>> len(hw.head_importance(model, [{"input_ids": tokens, "labels": tokens}]))
        8
    """
    measure = {"gradient": _by_gradient, "removal": _by_removal}.get(by)
    if measure is None:
        raise ValueError(f"by is {by!r}, expected 'gradient' or 'removal'")
    if by == "gradient":
        _check_passes_gradients(model)
    found: dict[str, list[Tensor]] = defaultdict(list)
    with observed(model, layouts), evaluating(model):
        places = {place.path: place for place in attentions_of(model)}
        for batch in data:
            for path, values in measure(model, batch, loss, places).items():
                found[path].append(values.cpu().double())
        # Over the heads of transformers: the attention that they are of.
        over = {gates.system: path for path, gates in gates_of(model).items()}
    if not found:
        raise ValueError("data has no batches, expected at least one")
    heads = []
    for path, batches in found.items():
        place, each = places[path], torch.cat(batches)
        if not len(each):
            raise ValueError(
                f"data has no item with a label to predict, expected labels other than "
                f"{IGNORED_LABEL}; the first token of a text is none for a causal model"
            )
        each = each / (each.mean(0).norm() if normalized else 1)
        path = over.get(place.module, path)
        heads += [Head(path, place.site, place.layer, *_estimate(*h)) for h in enumerate(each.T)]
    return HeadImportance(sorted(heads, key=lambda head: -head.importance))


def _check_passes_gradients(model: nn.Module) -> None:
    # What such modules give has no graph: heads before them would get a part of their gradient.
    for path, module in model.named_modules():
        if type(module).__module__.startswith("torch.ao.nn.quantized.dynamic"):
            raise ValueError(
                f"by is 'gradient', but {path!r} is quantised, and no gradient goes through its "
                f"{type(module).__name__}; expected 'removal', or the model before quantisation"
            )


def _losses(model: nn.Module, batch: Any, loss: Loss | None) -> tuple[Tensor, Tensor]:
    """The loss of each item, `(items,)`, and whether it counts."""
    if loss is None:
        return item_losses(model, batch)
    losses = loss(model, batch)
    if losses.dim() != 1:
        raise ValueError(f"loss returns the shape {tuple(losses.shape)}, expected (items,)")
    return losses, torch.ones_like(losses, dtype=torch.bool)


def item_losses(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """The mean loss of each item's labels that are not -100, `(items,)`, and if it has any."""
    if not isinstance(batch, Mapping) or not isinstance(batch.get("labels"), Tensor):
        raise ValueError(
            f"a batch of data is a {type(batch).__name__} without a tensor of labels, expected a "
            f"mapping of tensors with labels, or loss: a function of model and batch that returns "
            f"the loss of each item"
        )
    device = next(model.parameters()).device
    batch = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in batch.items()}
    output, labels = model(**batch), batch["labels"]
    losses = [_means(output.logits, labels)]
    if labels.dim() == output.logits.dim() - 1 == 2:  # whether it shifts them, its loss alone says
        losses.append(_means(output.logits[:, :-1], labels[:, 1:]))
    own = getattr(output, "token_loss", None)  # of headwise's models: without auxiliary losses
    own = float((output.loss if own is None else own).detach())
    items, has_labels, mean = min(losses, key=lambda each: abs(each[2] - own))
    if not math.isclose(mean, own, rel_tol=1e-3 if output.logits.dtype.itemsize > 2 else 2e-2):
        for items, has_labels, _ in losses:
            if not has_labels.any() and (math.isnan(own) or own == 0):  # no label, no loss
                return items, has_labels
        if math.isnan(own):
            raise ValueError(
                "the loss of the model is nan, expected a number: its weights, or numbers of the "
                "batch, are not finite"
            )
        raise ValueError(
            f"the loss of the model is {own:.4g}, but the mean loss of its labels {mean:.4g}; "
            f"expected loss: a function of model and batch that returns the loss of each item"
        )
    return items, has_labels


def _means(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, float]:
    """The mean loss of the labels of each item, whether it has any, and that of all labels."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    real = (labels != IGNORED_LABEL).unsqueeze(-1).flatten(1)
    if labels.is_floating_point():
        each = (logits.reshape(labels.shape) - labels).square()
    else:
        flat = logits.reshape(-1, logits.size(-1)), labels.flatten()
        each = F.cross_entropy(*flat, ignore_index=IGNORED_LABEL, reduction="none")
    totals, counts = (each.reshape(real.shape) * real).sum(1), real.sum(1)
    mean = float(totals.detach().sum() / counts.sum())
    return totals / counts.clamp(min=1), counts > 0, mean


def _by_gradient(
    model: nn.Module, batch: Any, loss: Loss | None, places: Mapping[str, Place]
) -> OfItems:
    reads: list[tuple[str, Read]] = []
    noted = observe(model, lambda path, read: reads.append((path, read)))
    with ExitStack() as unfrozen, noted, torch.enable_grad():
        for p in model.parameters():  # frozen ones would leave heads without a graph
            if p.is_floating_point() and not p.requires_grad:
                unfrozen.callback(p.requires_grad_(True).requires_grad_, False)
        losses, counted = _losses(model, batch, loss)
        heads, total = [read.heads for _, read in reads], losses.sum()
        gradients = torch.autograd.grad(total, heads, allow_unused=True, materialize_grads=True)
    found: OfItems = {}
    for (path, read), gradient in zip(reads, gradients, strict=True):
        dtype = torch.promote_types(gradient.dtype, torch.float32)
        products = (read.heads.detach() * gradient).sum(-1, dtype=dtype)  # items, heads, time
        if len(products) != len(losses):
            rows = f"{len(products)} rows, where loss returns {len(losses)} items"
            raise ValueError(f"the attention at {path!r} reads {rows}; expected as many")
        chosen, values = heads_chosen(read), products.sum(-1)
        if chosen is not None:
            indices, number = chosen
            values = products.new_zeros(len(products), number)
            values.scatter_add_(1, indices.flatten(1), products.transpose(1, 2).flatten(1))
        found[path] = found.get(path, 0) + values  # a module may be called several times
    return {path: values.abs()[counted] for path, values in found.items()}


def heads_chosen(read: Read) -> tuple[Tensor, int] | None:
    """The heads that each query has chosen, `(batch, queries, heads)`, and how many there are.

    Number j of what is read is for query t head `chosen[:, t, j]`. None where all queries have the
    same heads, in their order, which those of a system whose units are heads do.
    """
    routing = read.routing
    if routing is None or routing.indices is None or read.attention.unit == "head":
        return None
    units, each = routing.weights.size(-1), read.attention.num_key_value_heads
    # An ablation may leave fewer: the heads behind them count nothing.
    indices = F.pad(routing.indices, (0, read.heads.size(1) // each - routing.indices.size(-1)))
    # A unit may have a head for each head of keys: those of the first head of keys come first.
    return torch.cat([indices + head * units for head in range(each)], dim=-1), units * each


@torch.no_grad()
def _by_removal(
    model: nn.Module, batch: Any, loss: Loss | None, places: Mapping[str, Place]
) -> OfItems:
    before, counted = _losses(model, batch, loss)
    found = {}
    for path, place in places.items():
        edits = place.module.edits
        if "without-head" not in edits:
            units = [name[8:] for name in edits if name.startswith("without-")]
            removed = " or ".join(unit for unit in units if unit != "largest")
            raise ValueError(
                f"by is 'removal', but the attention at {path!r} removes no head, but "
                f"{removed or 'nothing'}; expected 'gradient', or use headwise.ablated"
            )
        costs = []
        for head in range(place.module.num_heads):
            with ablated(model, path, head=head):
                costs.append(_losses(model, batch, loss)[0] - before)
        found[path] = torch.stack(costs, 1)[counted]
    return found


def _estimate(head: int, items: Tensor) -> tuple[int, float, float, float]:
    mean, freedom = float(items.mean()), len(items) - 1
    if not freedom:
        return head, mean, math.nan, math.nan
    variance = float(items.var()) / len(items)
    return head, mean, *student_interval(mean, Spread(variance, variance**2 / freedom))
