"""Mixture of attentive experts: gates over experts that each leave out some of the heads."""

from math import comb
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Self

from headwise.heads.attention import Inputs
from headwise.heads.mae.ablations import ABLATIONS, Mixture
from headwise.heads.mae.mixture import (
    draw_expert,
    head_scales,
    last_seen,
    left_out_heads,
    masked_mean,
    running_mean,
    sequence_mean,
)
from headwise.heads.mae.rule import BlockCoordinateDescent, Step
from headwise.heads.multi_head import MultiHeadAttention
from headwise.heads.system import Macs, Place, Routing
from headwise.heads.words import Words
from headwise.messages import shown_number
from headwise.ops.bounds import (
    MOST_EXPERTS,
    MOST_HEADS,
    check_among,
    check_number,
    check_parameters,
    check_probability,
)
from headwise.ops.masks import (
    Hidden,
    blocked_by_all,
    causal_mask,
    hides_the_future,
    padding_positions,
    real_positions,
    what_is_hidden,
)
from headwise.ops.recompute import Passes, as_at_first, is_repeated
from headwise.ops.replicas import sum_over_replicas, uniform_noise

GateInit = Literal["zero", "default", "xavier"]
_MOST_WINDOW = 1_000_000  # positions, which a cache has room for from the start


class MixtureOfAttentiveExperts(MultiHeadAttention):
    """Multi-head attention as a gated mixture of experts, each made of h − t of the h heads.

    Peng et al. 2020, *A Mixture of h − 1 Heads is Better than h Heads*,
    https://arxiv.org/abs/2005.06537 (MAE).

        y = Σ_S g_S(X) · h/(h−t) Σ_{j∉S} oⱼWⱼ = Σⱼ aⱼ oⱼWⱼ,  aⱼ = h/(h−t)·(1 − Σ_{S∋j} g_S)

    with one expert for each set S of t heads that are left out. A uniform gate gives a = 1, which
    is standard attention.

    The gate is batch norm, a linear map, tanh, dropout, a linear map and softmax of the mean of
    the queries' inputs over time, padding excluded. Where the queries are a causal sequence
    (`is_causal`, or `causal_queries` for a decoder's cross-attention) position t has a gate of
    its own, of the mean of the positions up to t: the paper's mean over all of them would show a
    decoder its own future. So it has in self-attention whose `attn_mask` hides anything but
    padding: of the mean of the positions that row t of the mask, with `is_causal` and padding,
    lets some head see (the gate decides about all heads together). A float mask hides by numbers
    of -1000 or less, such as -1e4; greater ones, such as ALiBi's, are biases of what is seen.
    Such gates normalise by batch norm's running statistics also in training, so that they see
    nothing else either, and update these from the batch afterwards.

    Running statistics are moved by passes in training that gradients go through, once each, also
    under `torch.utils.checkpoint` (reentrant: in the backward pass). Passes under `no_grad`, such
    as those of `generate()` in training mode, move nothing, unless the norm has no momentum, as
    while `torch.optim.swa_utils.update_bn` measures them. A norm that is in evaluation,
    `gate.norm.eval()`, keeps its statistics and computes by them.

    `step` says how the layer computes while training (evaluation always mixes):

    - `"joint"`: mix all experts; everything learns together (the paper's NOBCD);
    - `"gate"`: mix all experts, for a G step, in which the gates learn;
    - `"expert"`: an F step. One expert is drawn from the gate for each training instance, which is
      a sequence, and used alone; the gate is fixed, its batch norm and dropout too. Where gates are
      causal, each position draws from its own gate, but by noise that the sequence shares: all have
      the same expert, as far as their gates allow, and none sees later positions;
    - `"expert by position"`: the same, with noise of its own for each causal gate.

    `BlockCoordinateDescent` is the rule that switches it, see `headwise.training_rules`.

    A gate whose parameters are all frozen computes in training as in evaluation, and the running
    statistics of a frozen batch norm stay as they are: adapters that learn around it (LoRA) fit the
    gate that they will meet.

    Args:
        embed_dim: width of queries and of the output.
        num_heads: h.
        dropped_heads: t, how many heads an expert leaves out (MAE-7 of 8 heads: 1; MAE-6: 2).
        gate: `"learned"`, or `"uniform"` for UNI-MAE, which has no gate parameters.
        gate_hidden_dim: width of the gate's hidden layer.
        gate_dropout: dropout after that layer.
        gate_init: how the gate's two maps are drawn, of which the paper says nothing: `"zero"` has
            the second at zero, so that all experts are equal at the start; `"default"` draws both
            as `nn.Linear` does, `"xavier"` by Glorot's bound, with which an untrained gate is far
            from even already (1.83 of 2.08 nats for 8 experts at a width of 128).
        gate_scaling: `"root"` multiplies by √n what the mean of n positions deviates from that of
            batch norm. The mean of more positions varies less, so that late causal gates are else
            nearly equal.
        gate_statistics: what batch norm has in F steps: those that were `"kept"` in G steps, or
            `"fresh"` ones. Those of the batch, or in causal gates the running ones, then move in F
            steps too.
        gate_window: how many of the last inputs a causal gate averages, of those that it sees; all
            of them if None (the paper averages 100 in language modelling).
        causal_queries: the queries are a causal sequence though the keys are not.
        head_dim, kdim, vdim, dropout, bias: as in `MultiHeadAttention`.

    Shape:
        As `MultiHeadAttention`. `routing.weights` holds the gates g, `(batch, experts)` or, where
        gates are causal, `(batch, queries, experts)`; experts in the order of
        `itertools.combinations(range(h), t)`, each tuple the heads left out.

    Raises:
        ValueError: `dropped_heads` not below `num_heads`; more than 100,000 experts; sizes that do
            not fit together. In a call: `gate_window` and a mask by which some positions see later
            ones; a cache and an `attn_mask` that hides what it holds, beside padding.

    Example:
        >>> attention = MixtureOfAttentiveExperts(embed_dim=32, num_heads=4)
        >>> attention(torch.randn(2, 5, 32)).routing.weights.shape
        torch.Size([2, 4])
        >>> attention(torch.randn(2, 5, 32), is_causal=True).routing.weights.shape
        torch.Size([2, 5, 4])
    """

    routing_parameters = ("gate",)
    rule = BlockCoordinateDescent
    ablations = ABLATIONS
    words = Words(
        unit="expert",
        units="experts",
        decision="gates",
        measure="lead",
        entropy="says how undecided the gate is: on the dashed line it gives all experts equal "
        "weight, near 0 it relies on a single one.",
        share="says how often each expert has the largest weight in its layer: an even row means "
        "that all are in use.",
    )
    queries_interact = True
    left_out: Tensor

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        dropped_heads: int = 1,
        gate: Literal["learned", "uniform"] = "learned",
        gate_hidden_dim: int = 256,
        gate_dropout: float = 0.1,
        gate_init: GateInit = "zero",
        gate_scaling: Literal["none", "root"] = "none",
        gate_statistics: Literal["kept", "fresh"] = "kept",
        gate_window: int | None = None,
        causal_queries: bool = False,
        head_dim: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        if num_heads < 2:
            raise ValueError(
                f"num_heads is {num_heads}, expected at least 2: an expert leaves heads out and "
                f"keeps at least one"
            )
        if not 1 <= dropped_heads < num_heads:
            raise ValueError(
                f"dropped_heads is {dropped_heads}, expected 1 to {num_heads - 1}: an expert keeps "
                f"at least one of num_heads = {num_heads} heads"
            )
        check_among("gate", gate, ("learned", "uniform"))
        check_among("gate_init", gate_init, get_args(GateInit))
        check_among("gate_scaling", gate_scaling, ("none", "root"))
        check_among("gate_statistics", gate_statistics, ("kept", "fresh"))
        if gate_window is not None and gate_window < 1:
            raise ValueError(f"gate_window is {gate_window}, expected at least 1, or None")
        check_number("gate_window", gate_window or 0, _MOST_WINDOW)
        if gate_hidden_dim < 1:
            raise ValueError(f"gate_hidden_dim is {gate_hidden_dim}, expected a positive number")
        check_probability("gate_dropout", gate_dropout)
        check_number("num_heads", num_heads, MOST_HEADS)
        experts = comb(num_heads, dropped_heads)
        if experts > MOST_EXPERTS:
            raise ValueError(
                f"dropped_heads = {dropped_heads} of num_heads = {num_heads} make "
                f"{shown_number(experts)} experts, one for each choice of the heads that are left "
                f"out, expected at most {MOST_EXPERTS:,}: leave out fewer heads, such as 1 or 2"
            )
        check_parameters(
            gate_hidden_dim * (embed_dim + experts),
            embed_dim=embed_dim,
            gate_hidden_dim=gate_hidden_dim,
        )
        super().__init__(
            embed_dim,
            num_heads,
            head_dim=head_dim,
            kdim=kdim,
            vdim=vdim,
            dropout=dropout,
            bias=bias,
        )
        self.dropped_heads = dropped_heads
        self.gate_window = gate_window
        self.gate_scaling = gate_scaling
        self.gate_statistics = gate_statistics
        self.causal_queries = causal_queries
        self.step: Step = "joint"
        self.num_experts = experts
        self.passes = Passes()
        left_out = left_out_heads(num_heads, dropped_heads)  # (experts, heads)
        self.register_buffer("left_out", left_out, persistent=False)
        self.gate = (
            ExpertGate(embed_dim, self.num_experts, gate_hidden_dim, gate_dropout, gate_init)
            if gate == "learned"
            else None
        )

    @classmethod
    def from_plan(cls, place: Place, **options: Any) -> Self:
        # A decoder's queries are a causal sequence also in its cross-attention.
        return super().from_plan(place, causal_queries=place.site == "decoder_cross", **options)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "gate"):  # not yet while the base class is built
            self.left_out.copy_(left_out_heads(self.num_heads, self.dropped_heads))
            if self.gate is not None:
                self.gate.reset_parameters()

    def start_neutral(self) -> None:
        """The gate's output layer starts at zero, so that all experts are equal.

        A gate without preference scales each head by 1. In training, G steps and joint steps start
        with the output of the source too; an F step draws one expert, which leaves heads out.
        """
        if self.gate is not None:
            self.gate.reset_parameters("zero")

    def combine(self, heads: Tensor, inputs: Inputs, choice: Any) -> tuple[Tensor, Routing]:
        if self.training and not torch.compiler.is_compiling():
            with self.passes.of(inputs.query):
                return self._mix(heads, inputs)
        return self._mix(heads, inputs)

    def _mix(self, heads: Tensor, inputs: Inputs) -> tuple[Tensor, Routing]:
        step = as_at_first(lambda: self.step)
        sampling = self.training and step in ("expert", "expert by position")
        each, seen = self._view(inputs)
        gates = self._gates(inputs, each, seen, sampling)  # (batch, 1 or queries, experts)
        mixture = gates
        if sampling:
            mixture = draw_expert(gates, self._noise(gates, step))
        ablation: Mixture | None = None if self.training else self.ablation
        if ablation is not None:
            gates = mixture = ablation.gates(gates)
        joined = heads.transpose(1, 2)  # (batch, queries, heads, head_dim)
        # A uniform mixture scales every head by 1.
        if sampling or self.gate is not None or ablation is not None:
            scales = head_scales(mixture, self.left_out.to(mixture.dtype))
            if ablation is not None:
                scales = ablation.scales(scales)
            joined = joined * scales.to(heads.dtype).unsqueeze(-1)
        output = self.out_proj(joined.flatten(2))
        return output, Routing(gates if each else gates.squeeze(1))

    def _noise(self, gates: Tensor, step: Step) -> Tensor:
        """For each sequence, or each of its gates, `(batch, 1 or queries, experts)`."""
        batch, draws, experts = gates.shape
        if step == "expert":
            draws = 1
        noise = uniform_noise(batch, draws * experts, gates.device)
        return noise.unflatten(1, (draws, experts))

    def _view(self, inputs: Inputs) -> tuple[bool, Tensor | None]:
        """Whether each position has a gate of its own, and what each of these sees.

        That is boolean `(batch or 1, queries, queries)`, `True` where row t sees column s; None if
        it is all positions up to the gate's own.
        """
        attn_mask, cache, queries = inputs.attn_mask, inputs.cache, inputs.query.size(1)
        causal = self.causal_queries or inputs.is_causal
        grows = cache is not None and not cache.static
        is_static = cache is not None and cache.static
        if self.gate is None or is_static or not inputs.is_self_attention:
            return causal or grows or hides_the_future(attn_mask), None
        if attn_mask is None:
            if causal or (grows and queries == 1):
                return True, None
            if not grows:
                return False, None
            # Added to a cache together, and not causal: they see one another.
            seen = inputs.query.new_ones(1, queries, queries, dtype=torch.bool)
        else:
            blocked = blocked_by_all(attn_mask, self.num_heads)
            cached = blocked.size(-1) - queries
            # A compiled call that is causal has no need to look at what the mask holds.
            if cached or not causal or not torch.compiler.is_compiling():
                hidden = self._hidden(inputs, blocked, cached)
                if not (hidden.anything or causal or grows):
                    return False, None
                causal = causal or (hidden.future and (hidden.anything or queries == 1))
                if causal and not hidden.past:
                    return True, None
            seen = ~blocked[..., cached:].reshape(-1, queries, queries)
        if causal:
            seen = seen & ~causal_mask(queries, queries, device=seen.device)
        if inputs.query_padding is not None:
            seen = seen & ~inputs.query_padding.unsqueeze(1)
        if self.gate_window is not None:
            if grows or not causal:
                raise ValueError(
                    f"gate_window is {self.gate_window}, which counts back from a gate's position, "
                    f"but here positions see later ones, or a cache is given beside an attn_mask "
                    f"that hides more than the future: set is_causal=True where no later position "
                    f"may be seen, leave out the cache, or make the module without gate_window"
                )
            seen = last_seen(seen, self.gate_window)
        return True, seen

    def _hidden(self, inputs: Inputs, blocked: Tensor, cached: int) -> Hidden:
        """What an attention mask hides beside padding; of what a cache holds that may be nothing.

        Raises:
            ValueError: it hides some; the cache holds the sum of its inputs, not each of them.
        """
        padding = padding_positions(inputs.key_padding_mask)
        padding = inputs.query_padding if padding is None and not cached else padding
        fixed = cached and inputs.cache is not None and inputs.cache.is_compileable
        hidden = None if fixed else what_is_hidden(blocked, padding, cached)
        if hidden is None or hidden.cached:
            raise ValueError(
                f"attn_mask hides some of the {cached} positions before the queries that the cache "
                f"holds, or the cache has a fixed size: of what is cached a gate knows the sum "
                f"alone, and sees all of it but padding. Give padding by key_padding_mask, leave "
                f"out attn_mask (a causal step needs none), or compute without a cache"
            )
        return hidden

    def _gates(self, inputs: Inputs, each: bool, seen: Tensor | None, fixed: bool) -> Tensor:
        """`(batch, queries or 1, experts)`; one gate per sequence unless each position has one."""
        query, padding = inputs.query, inputs.query_padding
        if self.gate is None:
            time = query.size(1) if each else 1
            shape = (query.size(0), time, self.num_experts)
            return query.new_full(shape, 1 / self.num_experts)
        # Sums over many positions, and batch norm, want more digits than bf16 has.
        query = query.float() if query.dtype in (torch.bfloat16, torch.float16) else query
        if seen is not None:
            summary, count = masked_mean(query, seen, padding, inputs.cache)
            nothing = ~seen.any(-1)
            padding = nothing if padding is None else padding | nothing
        elif each:
            summary, count = running_mean(query, padding, self.gate_window, inputs.cache)
        else:
            if padding is None and not query.size(1):  # nothing but padding is in empty sequences
                padding = query.new_zeros(query.shape[:2], dtype=torch.bool)
            summary = sequence_mean(query, padding).unsqueeze(1)
            count = real_positions(query, padding).sum(1).clamp(min=1).view(-1, 1, 1)
            padding = None if padding is None else padding.all(1, keepdim=True)
        root = count.sqrt() if self.gate_scaling == "root" else None
        view = _View(summary, padding, root, each)
        fresh = fixed and self.gate_statistics == "fresh"
        moves = torch.is_grad_enabled()
        with torch.set_grad_enabled(moves and not fixed):
            return self.gate(view, fixed=fixed, fresh=fresh, moves=moves)

    def ablation_ranges(self) -> dict[str, range]:
        return {"expert": range(self.num_experts), "head": range(self.num_heads)}

    def macs(self, queries: int, keys: int, *, is_causal: bool = False) -> Macs:
        total = super().macs(queries, keys, is_causal=is_causal)
        if self.gate is None:
            return total
        # One gate for a sequence, or one for each position where it may not see later ones.
        gates = queries if is_causal or self.causal_queries else 1
        weights = self.gate.hidden.weight.numel() + self.gate.output.weight.numel()
        return total + Macs(gates * weights, 0)

    def extra_repr(self) -> str:
        gate = "learned" if self.gate is not None else "uniform"
        return f"{super().extra_repr()}, dropped_heads={self.dropped_heads}, gate={gate}"


class _View(NamedTuple):
    """What gates look at."""

    summary: Tensor  # (batch, time, embed_dim)
    padding: Tensor | None  # (batch, time), `True` at positions that batch norm leaves out
    root: Tensor | None  # (batch, time, 1), by which deviations from batch norm's mean are scaled
    causal: bool  # normalised by the running statistics, which no later position is part of


class ExpertGate(nn.Module):
    """Computes a distribution over experts: softmax(W₂ tanh(W₁ BatchNorm(summary))).

    Args:
        embed_dim: width of the summary.
        num_experts: how many experts there are.
        hidden_dim: width of the hidden layer.
        dropout: dropout after it.
        init: how the maps are drawn.
    """

    def __init__(
        self, embed_dim: int, num_experts: int, hidden_dim: int, dropout: float, init: GateInit
    ) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(embed_dim)
        self.hidden = nn.Linear(embed_dim, hidden_dim)
        self.output = nn.Linear(hidden_dim, num_experts)
        self.dropout = dropout
        self.init = init
        self.reset_parameters()

    def reset_parameters(self, init: GateInit | None = None) -> None:
        # Through nn.init throughout: from_pretrained makes that spare what it has loaded.
        assert self.norm.running_mean is not None and self.norm.running_var is not None
        assert self.norm.num_batches_tracked is not None
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

    def forward(self, view: _View, *, fixed: bool, fresh: bool, moves: bool) -> Tensor:
        """`(batch, time, experts)`.

        Args:
            view: what the gates look at.
            fixed: compute as in evaluation, as a gate does whose parameters are all frozen.
            fresh: but for batch norm, which takes and moves its statistics as in training.
            moves: whether gradients go through the pass: others move no running statistics.
        """
        learning = self.training and not fixed and _learns(self)
        normalized = self._normalize(view, learning or fresh, fixed, moves)
        weight = self.hidden.weight
        if isinstance(weight, Tensor) and weight.is_floating_point():  # else it is quantised
            normalized = normalized.to(weight.dtype)
        hidden = torch.tanh(self.hidden(normalized))
        hidden = F.dropout(hidden, self.dropout, learning)
        logits = self.output(hidden)
        return logits.to(view.summary.dtype).softmax(-1)

    def _normalize(self, view: _View, trains: bool, fixed: bool, moves: bool) -> Tensor:
        norm: nn.Module = self.norm
        if not isinstance(norm, nn.modules.batchnorm._BatchNorm):
            raise TypeError(
                f"the batch norm of a gate is a {type(norm).__name__}, which does not keep its "
                f"running statistics: leave gate.norm out of what is adapted, or have the whole "
                f"gate trained and saved, as by modules_to_save=['gate']"
            )
        # Reentrant checkpointing computes without gradients first: then the repeated pass moves
        # the statistics, as all passes do that gradients go through.
        moves = as_at_first(lambda: moves)
        # So `torch.optim.swa_utils.update_bn` measures them. What nothing learns from may see the
        # batch itself, so that layers behind get what they will get in evaluation.
        calibrates = norm.training and norm.momentum is None and not (moves or fixed)
        before = self._running()
        # Adapters may learn in the maps behind a frozen norm, and are saved without its statistics.
        measures = calibrates or (trains and norm.training and _learns(norm))
        if measures:
            batch_mean, batch_var, count = _batch_statistics(view)
            enough = count > 1  # a single row has no variance
            if (moves or calibrates) != is_repeated():
                self._update_running(batch_mean.detach(), batch_var.detach(), count, enough)
        mean, var = as_at_first(lambda: self._running() if calibrates else before)
        if measures and not view.causal:
            mean = torch.where(enough, batch_mean, mean)
            var = torch.where(enough, batch_var, var)
        deviation = view.summary - mean
        if view.root is not None:
            deviation = deviation * view.root
        return deviation * (norm.weight * torch.rsqrt(var + norm.eps)) + norm.bias

    def _running(self) -> tuple[Tensor, Tensor]:
        mean, var = self.norm.running_mean, self.norm.running_var
        if mean is None or var is None:
            raise ValueError(
                "the batch norm of a gate has no running statistics (track_running_stats=False), "
                "which causal gates and evaluation normalise by: leave them on, as by "
                "gate.norm = nn.BatchNorm1d(embed_dim)"
            )
        return mean, var

    @torch.no_grad()
    def _update_running(self, mean: Tensor, var: Tensor, count: Tensor, enough: Tensor) -> None:
        norm = self.norm
        assert norm.running_mean is not None and norm.running_var is not None
        assert norm.num_batches_tracked is not None
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


def _batch_statistics(view: _View) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of the rows that are no padding, over all processes, and their number."""
    x = view.summary
    real = real_positions(x, view.padding).unsqueeze(-1)  # (batch, time, 1)
    count = sum_over_replicas(real.sum())
    mean = sum_over_replicas((x * real).sum((0, 1))) / count.clamp(min=1)
    deviation = x - mean if view.root is None else (x - mean) * view.root
    var = sum_over_replicas((deviation.square() * real).sum((0, 1))) / count.clamp(min=1)
    return mean, var, count
