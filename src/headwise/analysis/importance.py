"""How much each head of a model matters to its loss, by the gradient of a mask over the heads."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import pandas as pd
import torch
import torch.nn.functional as F
from scipy.stats import t
from torch import Tensor, nn

from headwise.heads.attention import AttentionCall
from headwise.models.inspect import eval_mode, find_attentions, observe
from headwise.ops import IGNORED_LABEL
from headwise.ops.layers import at_least_float32
from headwise.pretrained.gates import with_identity_gates
from headwise.pretrained.layouts import HeadLayout
from headwise.training.loss import on_device

Loss = Callable[[Any, Any], Tensor]


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

    `importance` is the mean over items, `low` and `high` the ends of its 95% interval (Student's
    t); `path`, `site` and `layer` are those of the head's attention.
    """

    def frame(self) -> pd.DataFrame:
        """Returns a DataFrame of pandas with a row for each head."""
        return pd.DataFrame(self)

    def least(self, number: int, *, group: int = 1) -> dict[str, list[int]]:
        """Returns the least important heads in the form that `headwise.prune_heads` takes.

        Each attention keeps its most important head. With `group`, heads that share their keys, so
        many one behind another, go together: `number` counts these groups, and the sum of their
        importance ranks them.
        """
        frame = self.frame()
        sums = frame.groupby(["path", frame["head"] // group], sort=False)["importance"].sum()
        free = sums.drop(sums.groupby("path").idxmax()).sort_values(kind="stable")
        if not 0 <= number <= len(free):
            raise ValueError(
                f"number is {number}, expected 0 to {len(free)}: of {len(sums)} "
                f"{'heads' if group == 1 else 'groups'} each attention keeps one"
            )
        heads: dict[str, list[int]] = {}
        for path, unit in sorted(free.index[:number], key=lambda pair: pair[1]):
            heads.setdefault(path, []).extend(range(unit * group, (unit + 1) * group))
        return heads


def head_importance(
    model: nn.Module,
    data: Iterable[Any],
    *,
    loss: Loss | None = None,
    layouts: Mapping[str, HeadLayout] | None = None,
) -> HeadImportance:
    """Measures how much each head of a model matters to its loss, on average over items.

    Michel et al. 2019, *Are Sixteen Heads Really Better than One?*,
    https://arxiv.org/abs/1905.10650:

        I_h = E_x |∂L(x)/∂ξ_h| = E_x |Att_h(x)ᵀ ∂L(x)/∂Att_h(x)|

    with L(x) the loss of an item, Att_h(x) the output of head h at all positions, and ξ_h = 1 a
    mask over it. One forward and one backward pass rank all heads. The model computes as in
    evaluation. `headwise.analyse` removes each head in turn instead, with a pass for each.

    Args:
        model: of transformers, of headwise, or any module with attentions of headwise.
        data: batches, or one: mappings to arguments of the model, with `labels`; or what `loss`
            takes.
        loss: called with the model and a batch, it returns the loss of each item, `(items,)`; by
            default the mean cross entropy, or of real numbers squared error or binary cross
            entropy, over the labels other than -100 of each item that has some.
        layouts: as in `headwise.gate_heads`.

    Raises:
        ValueError: the model has no known attention, no item has a label, or the loss of a batch is
            not what `loss` is to return.

    Example:
        >>> import headwise as hw
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4))
        >>> tokens = torch.randint(50, (8, 16))
        >>> len(hw.head_importance(model, {"input_ids": tokens, "labels": tokens}))
        8
    """
    importance: dict[str, list[Tensor]] = defaultdict(list)  # of each attention (items, heads)
    with with_identity_gates(model, layouts), eval_mode(model):
        attentions_by_path = find_attentions(model)
        if not attentions_by_path:
            raise ValueError(f"model is a {type(model).__name__} without a known attention")
        for batch in [data] if isinstance(data, Mapping) else data:
            for path, values in _batch_importance(model, batch, loss).items():
                importance[path].append(values.cpu().double())
    if not any(len(items) for batches in importance.values() for items in batches):
        raise ValueError(
            f"data has no item with a label to predict, expected labels other than "
            f"{IGNORED_LABEL}; the first token of a text is none for a causal model"
        )
    heads = []
    for path, batches in importance.items():
        items, attention = pd.DataFrame(torch.cat(batches).numpy()), attentions_by_path[path]
        mean, half = items.mean(), t.ppf(0.975, len(items) - 1) * items.sem()
        rows = enumerate(zip(mean, mean - half, mean + half, strict=True))
        heads += [Head(path, attention.site, attention.layer, head, *row) for head, row in rows]
    return HeadImportance(sorted(heads, key=lambda head: -head.importance))


def item_losses(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Returns the total loss of each item's labels, and how many it has, `(items,)` each.

    Of labels that are classes the loss is the cross entropy, of real numbers the squared error or
    the binary cross entropy; labels of -100 do not count. No argument says which of the two, or
    whether a model predicts the label at a position from the tokens before it or from all tokens:
    what agrees with the mean loss that the model gives is taken.

    Raises:
        ValueError: the batch has no labels, or the loss of the model is another one.
    """
    if not isinstance(batch, Mapping) or not isinstance(batch.get("labels"), Tensor):
        raise ValueError(
            f"a batch of data is a {type(batch).__name__} without a tensor of labels, expected a "
            f"mapping of tensors with labels, or an argument loss"
        )
    batch = on_device(batch, next(model.parameters()).device)
    output, labels = model(**batch), batch["labels"]
    candidates = [_item_totals(output.logits, labels)]
    if labels.is_floating_point() and labels.shape == output.logits.shape:  # of several classes
        candidates.append(_item_totals(output.logits, labels, F.binary_cross_entropy_with_logits))
    if labels.dim() == output.logits.dim() - 1 == 2:  # tokens: the model may shift their labels
        candidates.append(_item_totals(output.logits[:, :-1], labels[:, 1:]))
    loss = getattr(output, "token_loss", None)  # of headwise's models: without what systems add
    loss = float((output.loss if loss is None else loss).detach())
    for totals, counts in candidates:
        if not counts.any() and (math.isnan(loss) or loss == 0):  # the mean over no label
            return totals, counts
    # Where the model knows nothing yet, both are near its loss.
    means = [float(totals.detach().sum() / counts.sum()) for totals, counts in candidates]
    best = min(range(len(means)), key=lambda index: abs(means[index] - loss))
    tolerance = 1e-3 if output.logits.dtype.itemsize > 2 else 2e-2
    if not math.isclose(means[best], loss, rel_tol=tolerance):
        raise ValueError(
            f"the loss of the model is {loss:.4g}, but the mean loss of its labels "
            f"{means[best]:.4g}, expected both finite and alike, or an argument loss"
        )
    return candidates[best]


def _item_totals(
    logits: Tensor, labels: Tensor, of_numbers: Callable[..., Tensor] = F.mse_loss
) -> tuple[Tensor, Tensor]:
    logits = at_least_float32(logits)
    real = (labels != IGNORED_LABEL).unsqueeze(-1).flatten(1)  # also of one label for each item
    if labels.is_floating_point():
        losses = of_numbers(logits.reshape(labels.shape), labels.to(logits), reduction="none")
    elif labels.dim() == logits.dim() == 2:  # logits of the labelled positions alone
        known = F.cross_entropy(logits, labels[real], reduction="none")
        losses = torch.zeros_like(real, dtype=known.dtype).masked_scatter(real, known)
    else:
        flat = logits.reshape(-1, logits.size(-1)), labels.flatten()
        losses = F.cross_entropy(*flat, ignore_index=IGNORED_LABEL, reduction="none")
    return (losses.reshape(real.shape) * real).sum(1), real.sum(1)


def _losses(model: nn.Module, batch: Any, loss: Loss | None) -> tuple[Tensor, Tensor]:
    """Returns the loss of each item, `(items,)`, and whether the item counts."""
    if loss is None:
        totals, counts = item_losses(model, batch)
        return totals / counts.clamp(min=1), counts > 0
    losses = loss(model, batch)
    if losses.dim() != 1:
        raise ValueError(f"loss returns the shape {tuple(losses.shape)}, expected (items,)")
    return losses, torch.ones_like(losses, dtype=torch.bool)


def _batch_importance(model: nn.Module, batch: Any, loss: Loss | None) -> dict[str, Tensor]:
    """Returns `(items, heads)` of each attention."""
    if any("quantized.dynamic" in type(module).__module__ for module in model.modules()):
        raise ValueError("the model has quantised layers, which pass no gradient: expected none")
    calls: list[tuple[str, AttentionCall]] = []
    observing = observe(model, lambda path, call: calls.append((path, call)))
    with ExitStack() as unfrozen, observing, torch.enable_grad():
        for p in model.parameters():  # frozen ones would leave heads without a graph
            if p.is_floating_point() and not p.requires_grad:
                unfrozen.callback(p.requires_grad_(True).requires_grad_, False)
        losses, counted = _losses(model, batch, loss)
        heads, total = [call.heads for _, call in calls], losses.sum()
        gradients = torch.autograd.grad(total, heads, allow_unused=True, materialize_grads=True)
    sums: dict[str, Tensor] = {}
    for (path, call), gradient in zip(calls, gradients, strict=True):
        dtype = torch.promote_types(gradient.dtype, torch.float32)
        products = (call.heads.detach() * gradient).sum(-1, dtype=dtype)  # items, heads, time
        # A module may be called several times.
        sums[path] = sums.get(path, 0) + _sum_by_head(call, products)
    return {path: values.abs()[counted] for path, values in sums.items()}


def _sum_by_head(call: AttentionCall, products: Tensor) -> Tensor:
    """Sums over positions, each of which may have chosen its own heads, to `(items, heads)`."""
    routing = call.routing
    if routing is None or routing.indices is None or call.attention.unit == "head":
        return products.sum(-1)
    units, kv_heads = routing.weights.size(-1), call.attention.num_key_value_heads
    # An ablation may leave fewer: the heads behind them count nothing.
    indices = F.pad(routing.indices, (0, products.size(1) // kv_heads - routing.indices.size(-1)))
    # A unit may have a head for each head of keys: those of the first head of keys come first.
    indices = torch.cat([indices + head * units for head in range(kv_heads)], dim=-1)
    sums = products.new_zeros(len(products), units * kv_heads)
    return sums.scatter_add_(1, indices.flatten(1), products.transpose(1, 2).flatten(1))
