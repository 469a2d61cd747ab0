"""Mixture of attention heads: each token selects its own k of E heads."""

from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Self

from headwise.heads.attention import Attention, Inputs, Projected
from headwise.heads.moa.declared import (
    ABLATIONS,
    PRESETS,
    WORDS,
    check_options,
    moa_size,
    sizes_at,
)
from headwise.heads.moa.experts import (
    ExpertAssignment,
    are_few,
    assign_experts,
    combine_all,
    combine_few,
    computes_all,
    expert_combine,
    expert_project,
    project_few,
    router_losses,
)
from headwise.heads.system import Macs, Place, Routing
from headwise.heads.torch_layers import NoPackedWeights
from headwise.ops.bounds import check_positive, checked
from headwise.ops.precision import without_autocast
from headwise.ops.twins import is_transformed


class _Choice(NamedTuple):
    """What the router decided for each token."""

    indices: Tensor  # (batch, queries, top_k)
    scales: Tensor  # (batch, queries, top_k)
    logits: Tensor  # (batch, queries, experts)
    assignment: ExpertAssignment | None  # tokens sorted by expert; None where all are computed
    few: bool  # so few tokens that they are not sorted


class MixtureOfAttentionHeads(Attention):
    """Attention in which each token selects k of E experts; all share one head of keys and values.

    Zhang et al. 2022, *Mixture of Attention Heads: Selecting Attention Heads Per Token*,
    https://arxiv.org/abs/2210.05144 (MoA).

        p  = softmax(x W_g),  G(x) = the k experts of largest p,  wᵢ = pᵢ / detach(Σ_{j∈G} pⱼ)
        oᵢ = softmax(x Wᵢ^q (K W^k)ᵀ / √D) V W^v
        y  = Σ_{i∈G(x)} wᵢ oᵢ Wᵢ^o
        loss = α · N Σᵢ fᵢPᵢ + β · mean(log Σᵢ exp(x W_g)ᵢ)²

    All experts share one key and one value head, so a decoding cache is one head wide. f and P
    are the tokens and the probability that each expert gets, each normalised to sum 1; padding
    counts in neither loss. The router's softmax is in float32 at least, and under autocast so is
    its product.

    With `num_key_value_heads` n each expert has n heads, one for each of n shared key heads (Shen
    et al. 2024, *JetMoE*, https://arxiv.org/abs/2404.07413, `presets["jetmoe"]`).

    The losses are added to a cross-entropy that is a mean over tokens (`auxiliary="per token"`).
    The authors' public code (github.com/yikangshen/MoA) adds them once to the sum over a batch's
    tokens (`"per batch"`), which is thousands of times less; `presets["authors"]` has its options.

    With all experts chosen (k = E) and equal weights it is multi-query attention.

    Args:
        num_experts: E.
        top_k: k, how many experts a token selects.
        head_dim: D, width of an expert's head.
        normalize_weights: divide by the sum of the selected probabilities, as in the paper's
            equation 9; False is what the authors' code does.
        detach_normalizer: whether no gradient goes through that sum. Without, the weights are a
            softmax over the selected, as in JetMoE.
        balance: what the balance loss balances the experts over, `"batch"` or each `"sequence"`.
        balance_coef: α, weight of the balance loss.
        z_coef: β, weight of the router's z-loss.
        auxiliary: `"per token"`, or `"per batch"` for losses divided by the number of the real
            queries.
        noisy: add noise to the router's logits in training, of a learned size (equation 3).
        noise_floor: the least size of that noise.
        expert_bias: whether Wᵢ^q and Wᵢ^o have a bias, which the equations lack; with them the
            counts of the paper's table 2 fit to the last digit. `"output"`: one bias for the sum
            of all experts, as in JetMoE.
        output_gain: the factor by which Wᵢ^o is drawn larger than Glorot's bound for the map of
            one expert. The paper gives no scale.
        key_gain: the same of W^k and W^v. The authors' code has 1/√2.
        num_key_value_heads: n, how many heads each expert has.
        embed_dim, kdim, vdim, dropout, qk_norm, norm_eps: as in `MultiHeadAttention`.
        bias: whether the shared key and value projections have one.

    Shape:
        As `MultiHeadAttention`. `routing.weights` is `(batch, queries, experts)`, zero at experts
        not chosen; `routing.indices` is `(batch, queries, top_k)`; attention weights are
        `(batch, n * top_k, queries, keys)`: those of the first key head in the order of
        `routing.indices`, then those of the next. `routing.loss` is None where there is a cache and
        gradients are disabled, as in generation.

    Example:
        >>> attention = MixtureOfAttentionHeads(32, num_experts=6, top_k=2, head_dim=8)
        >>> out = attention(torch.randn(2, 5, 32))
        >>> out.output.shape, out.routing.weights.shape, out.routing.indices.shape
        (torch.Size([2, 5, 32]), torch.Size([2, 5, 6]), torch.Size([2, 5, 2]))
    """

    out_proj: ClassVar[Any] = NoPackedWeights()
    chooses_heads = True
    routing_parameters = ("router",)
    output_parameters = ("expert_output",)
    ablations = ABLATIONS
    presets = PRESETS
    unlike_standard = (
        "all experts share one key and one value head, where each head of standard attention has "
        "keys and values of its own"
    )
    words = WORDS
    shown = ("embed_dim", "num_experts", "top_k", "head_dim")

    @checked
    def __init__(
        self,
        embed_dim: int,
        num_experts: int,
        top_k: int,
        head_dim: int,
        *,
        normalize_weights: bool = True,
        detach_normalizer: bool = True,
        balance: Literal["batch", "sequence"] = "batch",
        balance_coef: float = 0.01,
        z_coef: float = 0.001,
        auxiliary: Literal["per token", "per batch"] = "per token",
        noisy: bool = False,
        noise_floor: float = 0.0,
        expert_bias: bool | Literal["output"] = False,
        output_gain: float = 1.0,
        key_gain: float = 1.0,
        num_key_value_heads: int = 1,
        kdim: int | None = None,
        vdim: int | None = None,
        dropout: float = 0.0,
        bias: bool | Literal["qkv"] = False,
        qk_norm: bool = False,
        norm_eps: float = 1e-6,
    ) -> None:
        check_options(num_experts, top_k, noisy, noise_floor)
        check_positive(output_gain=output_gain, key_gain=key_gain)
        sizes = (head_dim, kdim, vdim, dropout, num_key_value_heads, qk_norm, norm_eps)
        super().__init__(embed_dim, top_k * num_key_value_heads, *sizes)
        width = num_key_value_heads * head_dim  # of an expert
        self.num_experts = num_experts
        self.top_k = top_k
        self.normalize_weights = normalize_weights
        self.detach_normalizer = detach_normalizer
        self.balance = balance
        self.balance_coef = balance_coef
        self.z_coef = z_coef
        self.auxiliary = auxiliary
        self.noise_floor = noise_floor
        self.key_gain = key_gain
        self.output_gain = output_gain
        self.router = nn.Linear(embed_dim, num_experts, bias=False)
        self.router_noise = nn.Linear(embed_dim, num_experts, bias=False) if noisy else None
        self.k_proj = nn.Linear(self.kdim, width, bias=bool(bias))
        self.v_proj = nn.Linear(self.vdim, width, bias=bool(bias))
        self.expert_query = nn.Parameter(torch.empty(num_experts, embed_dim, width))
        self.expert_output = nn.Parameter(torch.empty(num_experts, width, embed_dim))
        self.query_bias = self.output_bias = None
        if expert_bias == "output":
            self.output_bias = nn.Parameter(torch.empty(embed_dim))
        elif expert_bias:
            self.query_bias = nn.Parameter(torch.empty(num_experts, width))
            self.output_bias = nn.Parameter(torch.empty(num_experts, embed_dim))
        self.reset_parameters()

    @classmethod
    def from_size(cls, embed_dim: int, size: str, **options: Any) -> "MixtureOfAttentionHeads":
        """Build it from the paper's shorthand: `8K32E64D` selects 8 of 32 experts of width 64.

        >>> MixtureOfAttentionHeads.from_size(512, "8K32E64D").top_k
        8
        """
        return cls(embed_dim, **{**moa_size(size), **options})

    @classmethod
    def from_plan(cls, place: Place, *, size: str | None = None, **options: Any) -> Self:
        return cls(place.embed_dim, **sizes_at(place, size, options))

    def reset_parameters(self) -> None:
        """Draw new weights for all maps but the router, which starts at zero: experts are equal."""
        nn.init.zeros_(self.router.weight)
        if self.router_noise is not None:
            nn.init.zeros_(self.router_noise.weight)
        for proj in (self.k_proj, self.v_proj):
            nn.init.xavier_uniform_(proj.weight, gain=self.key_gain)
            if proj.bias is not None:
                nn.init.zeros_(proj.bias)
        for bias in (self.query_bias, self.output_bias):
            if bias is not None:
                nn.init.zeros_(bias)
        # Each expert is a map of its own, so Glorot's bound is that of one expert.
        bound = (6 / (self.embed_dim + self.expert_query.size(2))) ** 0.5
        nn.init.uniform_(self.expert_query, -bound, bound)
        nn.init.uniform_(self.expert_output, -self.output_gain * bound, self.output_gain * bound)
        self.reset_norms()

    def project(self, inputs: Inputs) -> Projected:
        choice = self._route(inputs.query)
        rows = inputs.query.flatten(0, 1)  # (batch * queries, embed_dim)
        if choice.few:
            chosen = project_few(rows, self.expert_query, choice.indices.flatten(0, 1))
        elif choice.assignment is not None:
            chosen = expert_project(rows, self.expert_query, choice.assignment)
        else:
            q = self.queries_of_every_head(inputs)
            if choice.indices.size(-1) < self.num_experts:
                q = q.unflatten(1, (-1, self.num_experts))  # (batch, n, experts, queries, head_dim)
                numbers = choice.indices.transpose(1, 2)[:, None, ..., None]
                shape = (-1, self.num_key_value_heads, -1, -1, self.head_dim)
                q = q.gather(2, numbers.expand(shape)).flatten(1, 2)
            return Projected(q, *self._keys_and_values(inputs), choice)
        if self.query_bias is not None:
            chosen = chosen + self.query_bias[choice.indices.flatten(0, 1)].to(chosen.dtype)
        q = self._by_expert(chosen.unflatten(0, inputs.query.shape[:2]))
        # q: (batch, n * top_k, queries, head_dim)
        return Projected(q, *self._keys_and_values(inputs), choice)

    def queries_of_every_head(self, inputs: Inputs) -> Tensor:
        rows = inputs.query.flatten(0, 1)
        # An exported program goes one way, for batches of any size.
        if torch.compiler.is_exporting() or len(rows) >= self.embed_dim:
            # (embed_dim, experts * n * head_dim): all experts as one matrix
            dense = self.expert_query.transpose(0, 1).flatten(1)
            every = (rows @ dense).unflatten(-1, (self.num_experts, -1))
        else:  # to lay their matrices side by side would take longer than the products
            every = torch.bmm(rows.expand(self.num_experts, -1, -1), self.expert_query)
            every = every.transpose(0, 1)
        if self.query_bias is not None:
            every = every + self.query_bias.to(every.dtype)
        return self._by_expert(every.unflatten(0, inputs.query.shape[:2]))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        # A mask that is the same for all heads and queries: (1, keys) or (batch, 1, 1, keys).
        same_keys = mask is None or mask.size(-2) == (1 if mask.dim() == 2 else mask.size(1)) == 1
        if is_causal or not same_keys or self.num_key_value_heads > 1:
            return super().attend(q, k, v, mask, is_causal)
        # Each chosen head is then a further query to the only key head, in the order in which they
        # lie in memory: nothing is copied.
        folded = q.transpose(1, 2).flatten(1, 2).unsqueeze(1)  # (batch, 1, queries * top_k, D)
        read = super().attend(folded, k, v, mask, False)
        return read.reshape(q.size(0), q.size(2), q.size(1), v.size(-1)).transpose(1, 2)

    def combine(self, heads: Tensor, inputs: Inputs, choice: _Choice) -> tuple[Tensor, Routing]:
        # (batch, queries, top_k, n * head_dim)
        by_key = heads.unflatten(1, (self.num_key_value_heads, -1))
        joined = by_key.permute(0, 3, 2, 1, 4).flatten(3)
        scales = choice.scales.to(joined.dtype)
        if choice.assignment is not None:
            rows, scales = joined.flatten(0, 1), scales.flatten(0, 1)
            output = expert_combine(rows, self.expert_output, choice.assignment, scales)
            output = output.unflatten(0, inputs.query.shape[:2])
        elif choice.indices.size(-1) < self.num_experts:
            by_choice = combine_few if choice.few else combine_all
            output = by_choice(joined, self.expert_output, choice.indices, scales)
        else:  # all experts, in their order
            scaled = joined * scales.unsqueeze(-1)
            output = F.linear(scaled.flatten(2), self.expert_output.flatten(0, 1).t())
        weights = choice.scales
        if choice.indices.size(-1) < self.num_experts:
            weights = torch.zeros_like(choice.logits).scatter(-1, choice.indices, choice.scales)
        if self.output_bias is not None:
            bias = self.output_bias.to(output.dtype)
            output = output + (bias if bias.dim() == 1 else weights.to(output.dtype) @ bias)
        return output, Routing(weights, choice.indices, self._loss(choice, inputs))

    def _route(self, query: Tensor) -> _Choice:
        logits = self._in_float32(self.router, query)  # (batch, queries, experts)
        if self.router_noise is not None and self.training:
            size = F.softplus(self._in_float32(self.router_noise, query)) + self.noise_floor
            logits = logits + torch.randn_like(logits) * size
        top_k = self.top_k
        ablation = None if self.training else self.ablation
        if ablation is not None:
            logits, top_k = ablation.choose(logits, top_k)
        probability = logits.softmax(-1)
        assignment, few = None, False
        if top_k == self.num_experts:
            indices = torch.arange(self.num_experts, device=query.device).expand_as(probability)
            selected = probability
        else:
            selected, indices = probability.topk(top_k, dim=-1)
        # An exported program has no operators of ours, and torch.func knows no derivatives of them:
        # both compute all experts.
        if not (torch.compiler.is_exporting() or is_transformed()):
            chooses = not computes_all(query, self.expert_query, top_k)
            few = chooses and not torch.is_grad_enabled() and are_few(indices)
            if chooses and not few:
                assignment = assign_experts(indices.flatten(0, 1), self.num_experts)
        if self.normalize_weights:
            total = selected.sum(-1, keepdim=True)
            selected = selected / (total.detach() if self.detach_normalizer else total)
        if ablation is not None:
            selected = ablation.weigh(selected)
        return _Choice(indices, selected, logits, assignment, few)

    def _in_float32(self, linear: nn.Module, query: Tensor) -> Tensor:
        """A map of the router in float32, under autocast too: near ties are told apart there."""
        weight = linear.weight
        if isinstance(weight, Tensor) and weight.is_floating_point():  # else it is quantised
            query = query.to(weight.dtype)
        with without_autocast(query):
            logits: Tensor = linear(query)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _loss(self, choice: _Choice, inputs: Inputs) -> Tensor | None:
        if inputs.cache is not None and not torch.is_grad_enabled():
            return None  # a step of generation, which nothing learns from
        # A process may evaluate while the others do not.
        how = {"per_sequence": self.balance == "sequence", "shared": self.training}
        losses = router_losses(choice.logits, choice.indices, inputs.query_padding, **how)
        loss = self.balance_coef * losses.balance + self.z_coef * losses.z
        return loss / losses.tokens if self.auxiliary == "per batch" else loss

    def _by_expert(self, x: Tensor) -> Tensor:
        """`(batch, queries, experts, n * head_dim)` to `(batch, n * experts, queries, …)`."""
        by_key = x.unflatten(-1, (self.num_key_value_heads, self.head_dim))
        return by_key.permute(0, 3, 2, 1, 4).flatten(1, 2)

    def ablation_ranges(self) -> dict[str, range]:
        return {"expert": range(self.num_experts), "top_k": range(1, self.top_k)}

    def macs(self, queries: int, keys: int, *, is_causal: bool = False) -> Macs:
        combining = queries * self.embed_dim * (self.num_heads * self.head_dim + self.num_experts)
        return super().macs(queries, keys, is_causal=is_causal) + Macs(combining, 0)
