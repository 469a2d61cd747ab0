"""MAE's gate: what it looks at, and the distribution over experts that it makes of it.

The paper's gate looks at the mean of a whole sequence. Where that would show a position what its
attention hides from it, each position has a gate of its own, of the mean of what it sees.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.heads.attention import Inputs
from headwise.heads.mae.means import last_seen, masked_mean, running_mean, sequence_mean
from headwise.heads.mae.options import GateInit, check_norm
from headwise.ops.masks import blocks, causal_mask, real_positions
from headwise.ops.recompute import is_repeated
from headwise.ops.replicas import sum_over_replicas


class View(NamedTuple):
    """What gates look at: one for a sequence, or one for each of its queries."""

    mean: Tensor  # (batch, 1 or queries, embed_dim)
    number: Tensor  # (batch, 1 or queries, 1), of how many positions
    padding: Tensor | None  # (batch, 1 or queries), `True` where there is nothing to look at
    each: bool  # each query has a gate of its own


class ExpertGate(nn.Module):
    """A distribution over experts: softmax(W₂ tanh(W₁ BatchNorm(mean)))."""

    norm: Any  # an adapter may have taken its place

    def __init__(
        self,
        embed_dim: int,
        num_experts: int,
        hidden_dim: int,
        dropout: float,
        init: GateInit,
        scaling: str,
        statistics: str,
    ) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(embed_dim)
        self.hidden = nn.Linear(embed_dim, hidden_dim)
        self.output = nn.Linear(hidden_dim, num_experts)
        self.dropout = dropout
        self.init = init
        self.scaling = scaling
        self.statistics = statistics
        self.reset_parameters()

    def reset_parameters(self, init: GateInit | None = None) -> None:
        # Through nn.init throughout: from_pretrained makes that spare what it has loaded.
        for ones in (self.norm.weight, self.norm.running_var):
            nn.init.ones_(ones)
        for zeros in (self.norm.bias, self.norm.running_mean, self.norm.num_batches_tracked):
            nn.init.zeros_(zeros)
        init = self.init if init is None else init
        for linear in (self.hidden, self.output):
            if init == "default":
                linear.reset_parameters()
                continue
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)
        if init == "zero":
            nn.init.zeros_(self.output.weight)

    def forward(self, view: View, facts: dict[str, Any], *, fixed: bool) -> Tensor:
        """`(batch, 1 or queries, experts)`.

        Args:
            view: what the gates look at.
            facts: what the pass computes by, or what that computed by which it repeats. `moves`
                says whether gradients go through it: others move no running statistics.
            fixed: compute as in evaluation, as a gate does whose parameters are all frozen; but
                batch norm takes and moves its statistics if these are to be fresh.
        """
        learning = self.training and not fixed and _learns(self)
        takes = learning or (fixed and self.statistics == "fresh")
        normalized = self._normalize(view, facts, takes, fixed)
        weight = self.hidden.weight
        if isinstance(weight, Tensor) and weight.is_floating_point():  # else it is quantised
            normalized = normalized.to(weight.dtype)
        hidden = F.dropout(torch.tanh(self.hidden(normalized)), self.dropout, learning)
        logits = self.output(hidden)
        return logits.to(view.mean.dtype).softmax(-1)

    def _normalize(self, view: View, facts: dict[str, Any], takes: bool, fixed: bool) -> Tensor:
        norm = self.norm
        check_norm(norm)
        # Reentrant checkpointing computes without gradients first: then the repeated pass moves
        # the statistics, as all passes do that gradients go through.
        moves = facts["moves"]
        # So `torch.optim.swa_utils.update_bn` measures them. What nothing learns from may see the
        # batch itself, so that layers behind get what they will get in evaluation.
        calibrates = norm.training and norm.momentum is None and not (moves or fixed)
        before = norm.running_mean, norm.running_var
        # Adapters may learn in the maps behind a frozen norm, and are saved without its statistics.
        measures = calibrates or (takes and norm.training and _learns(norm))
        root = view.number.sqrt() if self.scaling == "root" else None
        if measures:
            batch_mean, batch_var, count = _batch_statistics(view, root)
            enough = count > 1  # a single row has no variance
            if (moves or calibrates) != is_repeated():
                self._update_running(batch_mean.detach(), batch_var.detach(), count, enough)
        after = norm.running_mean, norm.running_var
        mean, var = facts.setdefault("statistics", after if calibrates else before)
        if measures and not view.each:  # running statistics hold no later position
            mean = torch.where(enough, batch_mean, mean)
            var = torch.where(enough, batch_var, var)
        deviation = view.mean - mean
        if root is not None:
            deviation = deviation * root
        return deviation * (norm.weight * torch.rsqrt(var + norm.eps)) + norm.bias

    @torch.no_grad()
    def _update_running(self, mean: Tensor, var: Tensor, count: Tensor, enough: Tensor) -> None:
        norm = self.norm
        tracked = norm.num_batches_tracked + enough
        # Without a momentum they are the mean of all batches.
        momentum = (1 / tracked.clamp(min=1) if norm.momentum is None else norm.momentum) * enough
        unbiased = var * count / (count - 1).clamp(min=1)
        # New tensors: the backward pass still needs the ones that were normalised by, and compiled
        # it would read them after they are written to.
        moved_mean = norm.running_mean + momentum * (mean - norm.running_mean)
        moved_var = norm.running_var + momentum * (unbiased - norm.running_var)
        norm.running_mean = moved_mean.to(norm.running_mean.dtype)
        norm.running_var = moved_var.to(norm.running_var.dtype)
        norm.num_batches_tracked = tracked


def _learns(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _batch_statistics(view: View, root: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of the rows that are no padding, over all processes, and their number."""
    x = view.mean
    real = real_positions(x, view.padding).unsqueeze(-1)  # (batch, time, 1)
    count = sum_over_replicas(real.sum())
    mean = sum_over_replicas((x * real).sum((0, 1))) / count.clamp(min=1)
    deviation = x - mean if root is None else (x - mean) * root
    var = sum_over_replicas((deviation.square() * real).sum((0, 1))) / count.clamp(min=1)
    return mean, var, count


def look(inputs: Inputs, causal: bool, num_heads: int, window: int | None) -> View:
    """What the gates of one call look at; where it is `causal`, no position may see later ones."""
    each, seen = _what_is_seen(inputs, causal, num_heads, window)
    x, padding = inputs.query, inputs.query_padding
    # Sums over many positions, and batch norm, want more digits than bf16 has.
    x = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    if seen is not None:
        mean = masked_mean(x, seen, padding, inputs.cache)
        return View(*mean, ~seen.any(-1) if padding is None else padding | ~seen.any(-1), each)
    if each:
        return View(*running_mean(x, padding, window, inputs.cache), padding, each)
    if padding is None and not x.size(1):  # nothing but padding is in empty sequences
        padding = x.new_zeros(x.shape[:2], dtype=torch.bool)
    mean = sequence_mean(x, padding)
    return View(*mean, None if padding is None else padding.all(1, keepdim=True), each)


def each_decides(inputs: Inputs, causal: bool) -> bool:
    """Whether each query has a gate of its own, whatever an attention mask says."""
    return causal or (inputs.cache is not None and not inputs.cache.static)


def _what_is_seen(
    inputs: Inputs, causal: bool, num_heads: int, window: int | None
) -> tuple[bool, Tensor | None]:
    """Whether each query has a gate of its own, and what each of these sees.

    That is boolean `(batch or 1, queries, queries)`, `True` where row t sees column s; None if it
    is all positions up to the gate's own, padding aside.
    """
    each, queries = each_decides(inputs, causal), inputs.query.size(1)
    if inputs.attn_mask is None or not inputs.is_self_attention:
        return each, None
    if inputs.attn_mask.size(-1) > queries:
        raise ValueError(
            "attn_mask is given with a cache that holds positions, of which a gate knows the sum "
            "alone: leave out attn_mask (a causal step needs none; padding is key_padding_mask), "
            "or compute without a cache"
        )
    blocked, padding = _blocked_by_all(inputs.attn_mask, num_heads), inputs.query_padding
    hidden = blocked  # what is hidden at padding, and from it, does not count
    if padding is not None:
        hidden = blocked & ~(padding.unsqueeze(1) | padding.unsqueeze(2))
        blocked = blocked | padding.unsqueeze(1)
    if not (each or hidden.any()):
        return False, None
    if causal:
        blocked = blocked | causal_mask(queries, queries, device=blocked.device)
    if window is None:
        return True, ~blocked
    if inputs.cache is not None or not causal:
        raise ValueError(
            f"gate_window is {window}, which counts back from a gate's position, expected "
            f"is_causal=True, and no cache, where an attn_mask is given; or leave out gate_window"
        )
    return True, last_seen(~blocked, window)


def _blocked_by_all(attn_mask: Tensor, heads: int) -> Tensor:
    """Where a mask lets no head attend: boolean `(batch or 1, queries, keys)`."""
    blocked = blocks(attn_mask)
    if blocked.dim() == 3:
        blocked = blocked.unflatten(0, (-1, heads))
    return blocked.all(1) if blocked.dim() == 4 else blocked.unsqueeze(0)
