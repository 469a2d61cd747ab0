"""Mixture of attentive experts (MAE): gates over experts that each leave out some of the heads."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import combinations
from math import comb
from typing import Any, Literal, NamedTuple, Self
from weakref import WeakSet

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from headwise.heads.ablation import ablations_of
from headwise.heads.attention import AttentionInputs, MultiHeadAttention, draw_linear
from headwise.heads.cache import AttentionCache
from headwise.heads.masks import boolean_mask
from headwise.heads.rules import Rule, RuleSettings, TrainingProgress, TrainingWarning
from headwise.heads.system import Routing, is_repeated
from headwise.messages import check_choice, check_range
from headwise.ops.layers import at_least_float32, in_weight_dtype, is_traced, without_autocast
from headwise.ops.replicas import is_sharded, mean_over_replicas

_MEMORY_KEY = "inputs of gates"  # in the memory of a cache


class GateSettings(RuleSettings):
    """How MAE's gates and experts take turns (section 3 of the MAE paper)."""

    method: Literal["block-coordinate-descent", "joint"] = "block-coordinate-descent"
    """Whether gates and experts learn in turn, by G and F steps, or everything learns together (the
    paper's NOBCD). G steps train the gates, F steps everything else."""
    period: int = Field(5, ge=1, le=1_000_000)
    """G steps are taken in every `period`-th epoch (or step, see unit), one before each F step."""
    unit: Literal["epochs", "steps"] = "epochs"
    """The unit of the period. If the number of steps of an epoch is unknown, steps are counted."""
    learning_rate: float = Field(1.0, gt=0, le=1000)
    """Learning rate of the gates' SGD, which has no momentum."""


class BlockCoordinateDescent(Rule):
    """Block coordinate descent (section 3): gates and experts learn in turn.

    A G step mixes all experts and updates the gates alone; an F step draws one expert for each
    training instance and updates everything else. Every batch gets an F step; in every fifth epoch,
    counted from the first, a G step goes before it. Where all but the gates are frozen at the start
    (the paper's FTG, section 5.2), every step is a G step. Where gates are frozen, F steps draw
    from the gates as they are.
    """

    settings_class = GateSettings
    settings: GateSettings
    alternates = False  # whether F steps are taken in this training; settled by `start`

    @property
    def gates(self) -> list[nn.Parameter]:
        gates = (layer.gate for layer in self.layers if layer.gate is not None)
        return [parameter for gate in gates for parameter in gate.parameters()]

    @property
    def _other_parameters(self) -> list[nn.Parameter]:
        gates = set(self.gates)
        return [p for p in self.model.parameters() if p.requires_grad and p not in gates]

    def _may_alternate(self) -> bool:
        """F steps need something to learn beside the gates."""
        return self.settings.method != "joint" and bool(self._other_parameters)

    def start(self) -> None:
        self.alternates = self._may_alternate()
        for layer in self.layers:
            layer.mode = "expert" if self.alternates else "joint"

    def own_group(self) -> list[nn.Parameter]:
        """The gates, where the step's own gradients move them: a GradScaler then unscales these."""
        return [] if self._may_alternate() else [gate for gate in self.gates if gate.requires_grad]

    def learning_rate(self, progress: TrainingProgress) -> float:
        return self.settings.learning_rate

    def without_optimizer(self) -> list[nn.Parameter]:
        return self.gates if self._may_alternate() else []

    def before_step(
        self, progress: TrainingProgress, losses: Callable[[], Iterable[Tensor]]
    ) -> None:
        """The G step, if one is due and any gate learns."""
        by_epochs = self.settings.unit == "epochs" and progress.epoch is not None
        elapsed: Any = progress.epoch if by_epochs else progress.step
        learning = [gate for gate in self.gates if gate.requires_grad]
        if not self.alternates or not learning or elapsed % self.settings.period:
            return
        for gate in learning:
            gate.grad = None  # of a G step that failed: no optimizer has these gates
        with self.gate_step():
            for loss in losses():
                if loss.requires_grad:  # else no gate is in its graph
                    self._add_gradients(loss, learning)
        if all(gate.grad is None for gate in learning):
            problem = "no gate learns in this G step, since none is in the graph of the loss"
            advice = "compute it with gradients, and checkpoint with use_reentrant=False"
            warnings.warn(f"{problem}: {advice}", TrainingWarning, stacklevel=3)
        self.update_gates()

    def _add_gradients(self, loss: Tensor, learning: list[nn.Parameter]) -> None:
        if any(is_sharded(gate) for gate in learning):
            loss.backward()  # sharded parameters are not in the graph themselves
            return
        # Without backward(), whose hooks would have a data-parallel wrapper wait for gradients of
        # the gates in the F step that follows.
        gradients = torch.autograd.grad(loss, learning, allow_unused=True)
        for gate, gradient in zip(learning, gradients, strict=True):
            if gradient is not None:
                gate.grad = gradient if gate.grad is None else gate.grad + gradient

    def before_update(self, progress: TrainingProgress) -> None:
        if not self.alternates:
            self.update_gates()

    @contextmanager
    def gate_step(self) -> Iterator[None]:
        """While this context is open, all experts are mixed and the gates alone learn."""
        with ExitStack() as stack:
            for parameter in self._other_parameters:
                stack.callback(parameter.requires_grad_, True)
                parameter.requires_grad_(False)
            for layer in self.layers:
                stack.enter_context(layer.register_forward_pre_hook(_refuse_fp16))
                stack.callback(setattr, layer, "mode", layer.mode)
                layer.mode = "joint"
            yield

    @torch.no_grad()
    def update_gates(self) -> None:
        """One step of SGD by the mean of all processes' gradients, which it clears.

        The paper keeps momentum away from the gates, since with it they settle on few experts.
        """
        for gate in self.gates:
            if gate.grad is not None:
                gate.sub_(self.settings.learning_rate * mean_over_replicas(gate.grad))
                gate.grad = None


def _refuse_fp16(layer: nn.Module, args: Any) -> None:
    """Raises in a G step in float16: no scaler knows of it, so that small gradients become 0."""
    device = next(layer.parameters()).device.type
    if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16:
        raise RuntimeError(
            "a G step of MAE is computed in float16, where gradients that no scaler scales vanish: "
            "train in bfloat16 or float32, or everything together by the settings of the rule "
            "{'mae': {'method': 'joint'}}"
        )


class GateInput(NamedTuple):
    """The means by which gates decide: one for each sequence, or one for each query."""

    mean: Tensor  # (batch, 1 or queries, embed_dim), zeros where no position is averaged
    real: Tensor  # boolean (batch, 1 or queries), `False` at rows without positions, and at padding
    per_query: bool  # whether each query has a gate of its own


def average_inputs(
    inputs: AttentionInputs, causal: bool, per_query: bool, window: int | None, heads: int
) -> GateInput:
    """The mean of the queries' inputs without padding.

    A sequence's mean is over all positions. A query's mean is over the positions that an attention
    mask shows to some head, and not over later ones where attention is `causal`.
    """
    x, padding = inputs.query, inputs.query_padding
    # Sums over many positions, and batch norm, want more digits than bf16 has.
    x = at_least_float32(x)
    # The number of real positions is one more channel, which is summed as the others are.
    summands = F.pad(x, (0, 1), value=1.0)  # (batch, time, embed_dim + 1)
    if padding is not None:
        summands = summands.masked_fill(padding.unsqueeze(-1), 0.0)
    if not per_query:
        sums = summands.sum(1, keepdim=True)
    elif inputs.attn_mask is not None and inputs.is_self_attention:
        if inputs.cache is not None or window is not None:
            raise ValueError(
                "attn_mask is given beside a cache or gate_window, of which a gate knows sums "
                "alone: leave one out; causal attention needs no mask, and padding has its own"
            )
        hidden = boolean_mask(inputs.attn_mask)
        hidden = hidden.unflatten(0, (-1, heads)) if hidden.dim() == 3 else hidden
        hidden = hidden.all(1) if hidden.dim() == 4 else hidden  # by every head
        seen = (~hidden).tril() if causal else ~hidden
        with without_autocast(x):
            sums = seen.to(x.dtype) @ summands
    else:
        sums = _running_sums(summands, window, inputs.cache)
    count = sums[..., -1:].detach()
    real = count.squeeze(-1) > 0
    if per_query and padding is not None:
        real = real & ~padding
    return GateInput(sums[..., :-1] / count.clamp(min=1), real, per_query)


def _running_sums(summands: Tensor, window: int | None, cache: AttentionCache | None) -> Tensor:
    """Sums up to each position, or over the last `window`, cached positions included."""
    past = summands[:, :0] if cache is None else cache.memory.get(_MEMORY_KEY, summands[:, :0])
    seen = torch.cat([past, summands], dim=1)
    if window is None:
        sums = seen.cumsum(1)
        memory = sums[:, -1:]
    else:
        # The difference of two long sums loses digits, so they get more of them.
        exact = (seen.double() if seen.device.type != "mps" else seen).cumsum(1)
        before = F.pad(exact, (0, 0, window, 0))[:, : seen.size(1)]
        sums, memory = (exact - before).to(seen.dtype), seen[:, -window:]
    if cache is not None:
        cache.memory[_MEMORY_KEY] = memory
    return sums[:, past.size(1) :]


class _Pass:
    """A forward pass of training, which lives as long as its graph does."""


class ExpertGate(nn.Module):
    """A distribution over experts: softmax(W₂ tanh(W₁ BatchNorm(mean)))."""

    # The running mean and variance from before the training step under way, and the forward passes
    # of this step that still wait for their backward pass.
    _step_statistics: tuple[Tensor, Tensor] | None = None
    _pending: "WeakSet[_Pass] | None" = None

    def __init__(
        self, embed_dim: int, experts: int, hidden_dim: int, dropout: float, init: str
    ) -> None:
        super().__init__()
        self.norm: Any = nn.BatchNorm1d(embed_dim)
        self.hidden = nn.Linear(embed_dim, hidden_dim)
        self.output = nn.Linear(hidden_dim, experts)
        self.dropout, self.init = dropout, init

    def reset_parameters(self, init: str | None = None) -> None:
        # Functions of nn.init alone: from_pretrained has them leave what it has loaded.
        for ones in (self.norm.weight, self.norm.running_var):
            nn.init.ones_(ones)
        for zeros in (self.norm.bias, self.norm.running_mean, self.norm.num_batches_tracked):
            nn.init.zeros_(zeros)
        for linear in (self.hidden, self.output):
            draw_linear(linear)
        if (init or self.init) == "zero":
            nn.init.zeros_(self.output.weight)

    def forward(self, gate_input: GateInput, *, fixed: bool) -> Tensor:
        """Gates `(batch, 1 or queries, experts)`; `fixed` computes as in evaluation."""
        learns = self.training and not fixed and any(p.requires_grad for p in self.parameters())
        normalized = in_weight_dtype(self.hidden, self._normalize(gate_input, learns))
        hidden = F.dropout(torch.tanh(self.hidden(normalized)), self.dropout, learns)
        gates = self.output(hidden).to(gate_input.mean.dtype).softmax(-1)
        if learns and gates.requires_grad and not is_traced() and not is_repeated():
            self._note_pass(gates)
        return gates

    def _normalize(self, gate_input: GateInput, learns: bool) -> Tensor:
        """Batch norm of the real rows, by the statistics of the batch where the gate learns.

        Gates of single queries are normalised by the running statistics in training too: the
        statistics of the batch would show a position the future.
        """
        norm: Any = self.norm
        mean, var = self._running_statistics(learns)
        if learns:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not gate_input.per_query):
                batch_mean, batch_var, count = _batch_statistics(gate_input)
            if torch.is_grad_enabled() and not is_repeated():
                self._update_statistics(batch_mean, batch_var, count)
            if not gate_input.per_query:  # a single row has no variance
                mean = torch.where(count > 1, batch_mean, mean)
                var = torch.where(count > 1, batch_var, var)
                scale = norm.weight * (var + norm.eps).rsqrt()
                return (gate_input.mean - mean) * scale + norm.bias
        rows = gate_input.mean.flatten(0, 1)
        mean, var, weight, bias = (x.to(rows.dtype) for x in (mean, var, norm.weight, norm.bias))
        return F.batch_norm(rows, mean, var, weight, bias, eps=norm.eps).view_as(gate_input.mean)

    def _running_statistics(self, learns: bool) -> tuple[Tensor, Tensor]:
        """The running mean and variance; in training their values from before the step.

        The passes of a step move the statistics. Gradient checkpointing repeats passes in the
        backward pass, where they have to be normalised by the same values.
        """
        current: tuple[Tensor, Tensor] = self.norm.running_mean, self.norm.running_var
        if not learns or is_traced():
            return current
        if self._step_statistics is None or not (is_repeated() or self._pending):
            self._step_statistics = current
        return self._step_statistics

    def _note_pass(self, gates: Tensor) -> None:
        """Counts a pass as pending until a gradient comes to its gates, or its graph is gone."""
        pending = self._pending = WeakSet() if self._pending is None else self._pending
        mark = _Pass()
        pending.add(mark)
        gates.register_hook(lambda _, mark=mark: pending.discard(mark))

    def __getstate__(self) -> dict[str, Any]:
        # A copy has passes of its own.
        transient = ("_step_statistics", "_pending")
        return {name: value for name, value in self.__dict__.items() if name not in transient}

    @torch.no_grad()
    def _update_statistics(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """Moves the running statistics towards those of a batch."""
        norm, has_variance = self.norm, count > 1
        momentum = has_variance.to(mean.dtype) * norm.momentum
        unbiased = var * count / (count - 1).clamp(min=1)
        # New tensors: the step under way still needs the old ones.
        for name, value in (("running_mean", mean), ("running_var", unbiased)):
            running = getattr(norm, name)
            setattr(norm, name, (running + momentum * (value - running)).to(running.dtype))


def _batch_statistics(gate_input: GateInput) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of the rows that are real, and their number."""
    real = gate_input.real.unsqueeze(-1).to(gate_input.mean.dtype)  # (batch, 1 or queries, 1)
    count = real.sum()
    mean = (gate_input.mean * real).sum((0, 1)) / count.clamp(min=1)
    var = ((gate_input.mean - mean).square() * real).sum((0, 1)) / count.clamp(min=1)
    return mean, var, count


class MixtureOfAttentiveExperts(MultiHeadAttention):
    """Multi-head attention as a gated mixture of experts, each made of h - t of the h heads.

    Peng et al. 2020, *A Mixture of h - 1 Heads is Better than h Heads*,
    https://arxiv.org/abs/2005.06537 (MAE).

        y = Σ_S g_S(X) · h/(h-t) Σ_{j∉S} oⱼWⱼ = Σⱼ aⱼ oⱼWⱼ,  aⱼ = h/(h-t)·(1 - Σ_{S∋j} g_S)

    with one expert for each set S of t heads that are left out. A uniform gate gives a = 1, which
    is standard attention. No expert is computed by itself.

    The gate is batch norm, a linear map, tanh, dropout, a linear map and softmax of the mean of the
    queries' inputs over time, padding excluded. The paper's mean over all positions would show a
    decoder its own future. So where the queries are a causal sequence, position t has a gate of its
    own, of the mean of the positions up to t; and where self-attention has an `attn_mask`, of the
    positions that row t shows to some head. These gates normalise by batch norm's running
    statistics, in training by their values from before the step. Passes of training with gradients
    move the statistics; F steps do not.

    Queries are a causal sequence in self-attention with `is_causal` or a cache, and in
    cross-attention (a key is given that is not the query) unless `causal_queries` is False. A gate
    averages the queries of the call, and of earlier calls with its cache.

    While training, `mode` says how the layer computes; the rule `BlockCoordinateDescent` sets it:

    - `"joint"` mixes all experts: in G steps, and where everything learns together (NOBCD).
    - `"expert"`, an F step, fixes the gate, draws one expert from it for each training instance,
      which is a sequence, and uses it alone. Gates of single queries draw each from its own
      distribution, by noise that the sequence shares.

    Args:
        num_heads: h.
        dropped_heads: t, how many heads an expert leaves out (MAE-7 of 8 heads: 1; MAE-6: 2).
        gate: `"learned"`, or `"uniform"` for UNI-MAE, which has no gate parameters.
        gate_hidden_dim, gate_dropout: width of the gate's hidden layer, and dropout after it.
        gate_init: `"zero"` starts the gate's second map at zero, so that all experts are equal;
            `"xavier"` draws both by Glorot's bound, which is far from equal already.
        gate_window: how many of the last inputs a gate of one query averages, of which padding
            counts nothing; all if None (the paper averages 100 in language modelling).
        causal_queries: whether the queries of cross-attention are a causal sequence, as a
            decoder's are.
        embed_dim, options: as in `MultiHeadAttention`, which has the same options.

    Shape:
        As `MultiHeadAttention`. `routing.weights` holds the gates g, `(batch, experts)` or, where
        each query has its own, `(batch, queries, experts)`; experts in the order of
        `itertools.combinations(range(h), t)`, each tuple the heads left out.

    Raises:
        ValueError: `dropped_heads` not below `num_heads`; in a call of self-attention, an
            `attn_mask` with a cache or a `gate_window`.

    Example:
        >>> attention = MixtureOfAttentiveExperts(embed_dim=32, num_heads=4)
        >>> attention(torch.randn(2, 5, 32)).routing.weights.shape
        torch.Size([2, 4])
        >>> attention(torch.randn(2, 5, 32), is_causal=True).routing.weights.shape
        torch.Size([2, 5, 4])
    """

    routing_parameters = ("gate",)
    rule = BlockCoordinateDescent
    unit = "expert"
    supported_ablations = ablations_of("expert")

    mode: Literal["joint", "expert"] = "joint"
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
        gate_init: Literal["zero", "xavier"] = "zero",
        gate_window: int | None = None,
        causal_queries: bool = True,
        **options: Any,
    ) -> None:
        check_choice("gate", gate, ("learned", "uniform"))
        check_choice("gate_init", gate_init, ("zero", "xavier"))
        check_range("dropped_heads", dropped_heads, 1, num_heads - 1)
        if gate_window is not None:
            check_range("gate_window", gate_window, 1)
        experts = comb(num_heads, dropped_heads)
        super().__init__(embed_dim, num_heads, **options)
        self.num_experts, self.dropped_heads = experts, dropped_heads
        self.gate_window, self.causal_queries = gate_window, causal_queries
        self.register_buffer("left_out", torch.empty(experts, num_heads), persistent=False)
        self.gate = None
        if gate == "learned":
            self.gate = ExpertGate(embed_dim, experts, gate_hidden_dim, gate_dropout, gate_init)
        self._reset_gate()

    @classmethod
    def from_config(cls, config: Any, site: str, **options: Any) -> Self:
        options.setdefault("causal_queries", site.startswith("decoder"))
        return super().from_config(config, site, **options)

    @property
    def num_units(self) -> int:
        return self.num_experts

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self._reset_gate()

    def _reset_gate(self) -> None:
        self._fill_left_out()
        if self.gate is not None:
            self.gate.reset_parameters()

    @torch.no_grad()
    def _fill_left_out(self) -> None:
        # No state dict has it, and a model that was built without memory has lost it.
        sets = list(combinations(range(self.num_heads), self.dropped_heads))
        left_out = torch.zeros(self.left_out.shape, device="cpu")
        self.left_out.copy_(left_out.scatter_(1, torch.tensor(sets, device="cpu"), 1.0))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        # Parameters that are assigned to a model without memory say where it is from now on.
        loaded = (
            x for name, x in state_dict.items() if name.startswith(prefix) and isinstance(x, Tensor)
        )
        if self.left_out.is_meta and (first := next(loaded, None)) is not None:
            self.left_out = torch.empty_like(self.left_out, device=first.device)
        self._fill_left_out()

    def init_neutral(self) -> None:
        """Starts the gate anew: each head is scaled by 1, but in F steps."""
        if self.gate is not None:
            self.gate.reset_parameters("zero")

    def combine(self, heads: Tensor, inputs: AttentionInputs, state: Any) -> tuple[Tensor, Routing]:
        is_expert_step = self.training and self.mode != "joint"
        gates, per_query = self._gates(inputs, fixed=is_expert_step)
        gates = self.ablate_weights(gates)  # (batch, 1 or queries, experts)
        mixture = draw_expert(gates) if is_expert_step else gates
        scales = None  # a uniform mixture scales every head by 1
        if is_expert_step or self.ablations or self.gate is not None:
            scales = self._head_scales(mixture).unsqueeze(-1)
        weights = gates if per_query else gates.squeeze(1)
        return self.scale_and_project(heads, scales), Routing(weights)

    def _gates(self, inputs: AttentionInputs, fixed: bool) -> tuple[Tensor, bool]:
        """Gates, and whether each query has its own."""
        decodes = inputs.cache is not None and not inputs.cache.static
        causal = inputs.is_causal or decodes
        causal = causal or (self.causal_queries and not inputs.is_self_attention)
        per_query = causal or (inputs.attn_mask is not None and inputs.is_self_attention)
        if self.gate is None:
            x = inputs.query
            dtype = torch.promote_types(x.dtype, torch.float32)  # that of learned gates
            gates = x.new_full((1, 1, self.num_experts), 1 / self.num_experts, dtype=dtype)
            return gates.expand(x.size(0), x.size(1) if per_query else 1, -1), per_query
        with torch.set_grad_enabled(torch.is_grad_enabled() and not fixed):
            gate_input = average_inputs(inputs, causal, per_query, self.gate_window, self.num_heads)
            return self.gate(gate_input, fixed=fixed), per_query

    def _head_scales(self, mixture: Tensor) -> Tensor:
        """aⱼ of each head in a mixture: from `(..., experts)` to `(..., heads)`."""
        dropped = mixture
        if self.dropped_heads > 1:  # else an expert leaves out the head of its own number
            with without_autocast(mixture):
                dropped = mixture @ self.left_out.to(mixture.dtype)
        return (1 - dropped) / (1 - self.dropped_heads / self.num_heads)

    def sees_other_positions(self, is_causal: bool) -> bool:
        return self.gate is not None and not (is_causal and self.gate_window == 1)

    def static_scales(self) -> Tensor | None:
        return self.left_out.new_ones(self.num_heads, 1) if self.gate is None else None

    def __getstate__(self) -> dict[str, Any]:
        # A copy may be trained otherwise.
        return {name: value for name, value in super().__getstate__().items() if name != "mode"}


MAE = MixtureOfAttentiveExperts  # the name that papers and tables use


def draw_expert(gates: Tensor) -> Tensor:
    """One expert per distribution `(batch, time, experts)`, one-hot, each as often as it says.

        argmax_S g_S / e_S,  e_S = -log(1 - u_S) exponentially distributed

    The distributions of a sequence share the noise u, uniform in [0, 1): they draw the same expert
    unless their gates differ enough to decide otherwise.

    >>> draw_expert(torch.tensor([[[0.0, 1.0, 0.0]]]))
    tensor([[[0., 1., 0.]]])
    """
    noise = torch.rand(gates.size(0), 1, gates.size(2), device=gates.device)
    # A least e keeps an expert of gate 0 from 0/0.
    e = -torch.log1p(-noise.to(gates.dtype)).clamp(max=-torch.finfo(gates.dtype).tiny)
    drawn = (gates / e).argmax(-1, keepdim=True)
    return torch.zeros_like(gates).scatter_(-1, drawn, 1.0)
