"""MAE's gate: the distribution over experts that it makes of what it looks at."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.heads.mae.declared import GateInit
from headwise.heads.mae.means import View
from headwise.ops.masks import real_positions
from headwise.ops.recompute import is_repeated
from headwise.ops.replicas import sum_over_replicas


class ExpertGate(nn.Module):
    """A distribution over experts: softmax(W₂ u), u = tanh(W₁ BatchNorm(mean)).

    If it also scales heads, each by 2σ(W₃ u), these start at 1.
    """

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
        scaled_heads: int = 0,
    ) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(embed_dim)
        self.hidden = nn.Linear(embed_dim, hidden_dim)
        self.output = nn.Linear(hidden_dim, num_experts)
        self.scale = nn.Linear(hidden_dim, scaled_heads) if scaled_heads else None
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
        if self.scale is not None:
            nn.init.zeros_(self.scale.weight)
            nn.init.zeros_(self.scale.bias)

    def forward(
        self, view: View, facts: dict[str, Any], *, fixed: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Gates `(batch, 1 or queries, experts)`, and scales of heads in that shape, if it has any.

        Args:
            view: what the gates look at.
            facts: what the pass computes by, or what that computed by which it repeats. `moves`
                says whether gradients go through it.
            fixed: compute as in evaluation, as a gate does whose parameters are all frozen; but
                batch norm takes and moves its statistics if these are to be fresh.
        """
        learning = self.training and not fixed and _learns(self)
        takes = learning or (fixed and self.statistics == "fresh")
        normalized = self._normalize(view, facts, takes)
        weight = self.hidden.weight
        if isinstance(weight, Tensor) and weight.is_floating_point():  # else it is quantised
            normalized = normalized.to(weight.dtype)
        hidden = F.dropout(torch.tanh(self.hidden(normalized)), self.dropout, learning)
        gates = self.output(hidden).to(view.mean.dtype).softmax(-1)
        if self.scale is None:
            return gates, None
        return gates, 2 * torch.sigmoid(self.scale(hidden).to(view.mean.dtype))

    def _normalize(self, view: View, facts: dict[str, Any], takes: bool) -> Tensor:
        norm = self.norm
        if not isinstance(norm, nn.modules.batchnorm._BatchNorm):
            raise TypeError(
                f"the batch norm of a gate is a {type(norm).__name__}, which does not keep its "
                f"running statistics: leave gate.norm out of what is adapted, or have the whole "
                f"gate trained and saved, as by modules_to_save=['gate']"
            )
        root = view.number.sqrt() if self.scaling == "root" else None
        if not norm.training and root is None and view.mean.dtype == norm.weight.dtype:
            # By the module itself, whose weights may be elsewhere before it is called.
            return norm(view.mean.flatten(0, 1)).view_as(view.mean)
        # What nothing learns from may see the batch itself, so that layers behind get what they get
        # in evaluation: `torch.optim.swa_utils.update_bn` measures by such passes.
        calibrates = norm.training and norm.momentum is None and not facts["moves"]
        before = norm.running_mean, norm.running_var
        # Adapters may learn in the maps behind a frozen norm, and are saved without its statistics.
        measures = calibrates or (takes and norm.training and _learns(norm))
        # Reentrant checkpointing has gradients in the repeated pass alone.
        moves = (facts["moves"] or calibrates) != is_repeated()
        if measures and (moves or not view.each):  # all processes have to measure together
            # Where these normalise, they are a part of the function that is learned.
            with torch.set_grad_enabled(torch.is_grad_enabled() and not view.each):
                batch_mean, batch_var, count = _batch_statistics(view, root)
            enough = count > 1  # a single row has no variance
            if moves:
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
