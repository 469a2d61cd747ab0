"""Mixture of heads: some heads always count, of the others each token selects K."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self, Unpack

from headwise.heads.ablations import Choosing
from headwise.heads.attention import Inputs, Projected, Projections
from headwise.heads.moh.declared import ABLATIONS, WORDS, check_options, default_sizes
from headwise.heads.multi_head import MultiHeadAttention
from headwise.heads.system import Macs, Place, Routing
from headwise.ops.bounds import checked
from headwise.ops.masks import real_positions
from headwise.ops.replicas import sum_over_replicas


class MixtureOfHeads(MultiHeadAttention):
    """Multi-head attention in which each token weighs the heads, and selects some of them.

    Jin et al. 2025, *MoH: Multi-Head Attention as Mixture-of-Head Attention*,
    https://arxiv.org/abs/2410.11842 (MoH).

        y = Σᵢ gᵢ oᵢ Wᵢ,  [α₁, α₂] = softmax(x W_h)
        gᵢ = 2 α₁ · h_s · softmax(x W_s)ᵢ            the h_s heads that are shared: the first
        gᵢ = 2 α₂ · K · pᵢ / Σ_{j∈G(x)} pⱼ,  i ∈ G(x)    p = softmax(x W_r) over the others, of
        gᵢ = 0 elsewhere                             which G(x) are the K of largest p
        loss = β · R Σᵢ Pᵢ fᵢ                        over the R = h − h_s routed heads

    P is the mean of p over the tokens, f the share of the tokens that select a head; padding counts
    in neither. With all heads selected and W = 0 every gate is 1, which is standard attention.

    For a model that has been trained without it (the paper's Llama 3), `router="query-norm"` has no
    parameters. Heads are selected by the norms of their queries, and those in force count 1:

        p = softmax(‖q‖ / s) over the routed heads,  s: standard deviation of these norms
        gᵢ = 1 for the shared heads and for i ∈ G(x),  0 elsewhere

    g has no gradient there, so it is given that of the routing scores: ∂loss/∂pᵢ = ∂loss/∂gᵢ for
    all routed heads, selected or not (a straight-through estimator). The queries learn from it.

    All heads are computed, and those that are not selected are multiplied by 0: the layer is as
    fast as standard attention, not faster.

    The factors of the gates and of the loss are those of the authors' code; the text has none:
    `scaled_gates=False`, `scaled_balance=False`. A softmax of one shared head is 1 whatever W_s is,
    so there is none then. Without shared heads there is no W_h, and α₂ and its factor are 1.

    Args:
        num_heads: h.
        shared_heads: h_s, how many heads every token has; 0 to h − 1.
        top_k: K, how many of the others a token selects.
        router: what selects heads: `"learned"`, the maps W of the query's input; or
            `"query-norm"`, the norms of the heads' queries, without parameters.
        scaled_gates: whether gates are scaled as in the authors' code.
        balance_coef: β, weight of the balance loss.
        scaled_balance: whether the balance loss is multiplied by R, as in the authors' code.
        router_start: of learned routers: `"random"`, or `"neutral"`, where W_h, W_s and W_r start
            at zero, for models that have been trained without them: the layer starts as standard
            attention if all heads are selected. If not, all tokens select the same heads at first.
        embed_dim, projections: as in `MultiHeadAttention`, which has the same options.

    Shape:
        As `MultiHeadAttention`. `routing.weights` holds the gates g, `(batch, queries, heads)`:
        they are no distribution, but sum to 2 α₁ h_s + 2 α₂ K. `routing.indices` is `(batch,
        queries, shared_heads + top_k)`: the shared heads, then those selected.

        The parameters are those of `MultiHeadAttention`, and with learned routers
        `routed_router.weight`, `kind_router.weight` and `shared_router.weight`.

    Raises:
        ValueError: `shared_heads` not below `num_heads`; `top_k` above the number of the others;
            settings of learned routers with query norms; sizes that do not fit together.

    Example:
        >>> attention = MixtureOfHeads(embed_dim=32, num_heads=8, shared_heads=2, top_k=3)
        >>> routing = attention(torch.randn(2, 5, 32)).routing
        >>> routing.weights.shape, routing.indices.shape
        (torch.Size([2, 5, 8]), torch.Size([2, 5, 5]))
        >>> sizes = {"shared_heads": 16, "top_k": 8, "router": "query-norm"}
        >>> llama = MixtureOfHeads(embed_dim=64, num_heads=32, **sizes)
        >>> llama(torch.randn(1, 1, 64)).routing.weights.sum()
        tensor(24., grad_fn=<SumBackward0>)
    """

    routing_parameters = ("shared_router", "routed_router", "kind_router")
    heads_are_units = True
    ablations = ABLATIONS
    words = WORDS
    shown = (*MultiHeadAttention.shown, "shared_heads", "top_k")

    @checked
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        shared_heads: int,
        top_k: int,
        router: Literal["learned", "query-norm"] = "learned",
        scaled_gates: bool = True,
        balance_coef: float = 0.01,
        scaled_balance: bool = True,
        router_start: Literal["random", "neutral"] = "random",
        **projections: Unpack[Projections],
    ) -> None:
        check_options(num_heads, shared_heads, top_k, router, router_start, scaled_gates)
        super().__init__(embed_dim, num_heads, **projections)
        self.shared_heads = shared_heads
        self.routed_heads = num_heads - shared_heads
        self.top_k = top_k
        self.scaled_gates = scaled_gates
        self.balance_coef = balance_coef
        self.scaled_balance = scaled_balance
        self.neutral_start = router_start == "neutral"
        self.needs_queries = router == "query-norm"

        def learned(logits: int, needed: bool = True) -> nn.Linear | None:
            needed = needed and router == "learned"
            return nn.Linear(embed_dim, logits, bias=False) if needed else None

        self.routed_router = learned(self.routed_heads)
        self.shared_router = learned(shared_heads, shared_heads > 1)
        self.kind_router = learned(2, shared_heads > 0)
        self.reset_routers()

    @classmethod
    def from_plan(cls, place: Place, **options: Any) -> Self:
        sizes = default_sizes(options.get("num_heads", place.num_heads), options)
        return super().from_plan(place, **{**sizes, **options})

    @classmethod
    def defaults_over_heads(
        cls, num_heads: int, options: Mapping[str, Any], *, neutral: bool
    ) -> dict[str, Any]:
        sizes = default_sizes(num_heads, options)
        if neutral:
            sizes["top_k"] = num_heads - sizes["shared_heads"]
        return sizes

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "kind_router"):  # not yet while the base class is built
            self.reset_routers()

    def reset_routers(self) -> None:
        """Put the routers back to where they start."""
        draw = nn.init.zeros_ if self.neutral_start else nn.init.xavier_uniform_
        for router in self._routers():
            draw(router.weight)

    def start_neutral(self) -> None:
        """The routers start at zero, so that the gate of each head is 1, if all are selected."""
        for name, expected in {"top_k": self.routed_heads, "scaled_gates": True}.items():
            if getattr(self, name) != expected:
                raise ValueError(
                    f"{type(self).__name__} cannot start from a standard attention with its output "
                    f"unchanged: {name} is {getattr(self, name)}, expected {expected}, by which "
                    f"every head counts 1 at the start"
                )
        for router in self._routers():
            nn.init.zeros_(router.weight)

    def project(self, inputs: Inputs) -> Projected:
        """Also the logits of the routed heads, `(batch, queries, routed)`, if queries make them."""
        projected = super().project(inputs)
        if not self.needs_queries:
            return projected
        logits = query_norm_logits(projected.q[:, self.shared_heads :])
        return projected._replace(choice=logits)

    def combine(self, heads: Tensor, inputs: Inputs, choice: Any) -> tuple[Tensor, Routing]:
        ablation = self.ablation if isinstance(self.ablation, Choosing) else None
        ablation = None if self.training else ablation
        top_k, by_queries = self.top_k, self.needs_queries
        logits = choice if by_queries else self._logits(self.routed_router, inputs.query)
        if ablation is not None:
            logits, top_k = ablation.choose(logits, top_k)
        probability = logits.softmax(-1)
        if by_queries:
            routed, chosen = quantized_gates(probability, top_k)
        else:
            routed, chosen = select_heads(probability, top_k, scaled=self.scaled_gates)
        gates = self._with_shared(routed, inputs.query)  # (batch, queries, heads)
        shared = torch.arange(self.shared_heads, device=chosen.device)
        shared = shared.expand(*chosen.shape[:-1], -1)
        indices = torch.cat([shared, chosen + self.shared_heads], dim=-1)
        if ablation is not None:
            in_force = torch.zeros_like(gates).scatter(-1, indices, 1.0)
            gates = ablation.weigh(gates, in_force)
        # A process may evaluate while the others do not.
        loss = balance_loss(probability, chosen, inputs.query_padding, shared=self.training)
        loss = self.balance_coef * loss
        if self.scaled_balance:
            loss = self.routed_heads * loss
        return self.join(heads, gates.unsqueeze(-1)), Routing(gates, indices, loss)

    def _with_shared(self, routed: Tensor, query: Tensor) -> Tensor:
        """The gates of all heads from those of the routed ones, the shared heads first."""
        if self.needs_queries:
            return nn.functional.pad(routed, (self.shared_heads, 0), value=1.0)
        if self.kind_router is None:
            return routed
        shared = torch.ones_like(routed[..., :1])
        if self.shared_router is not None:
            shared = self._logits(self.shared_router, query).softmax(-1)
        kinds = self._logits(self.kind_router, query).softmax(-1)
        if self.scaled_gates:
            shared, kinds = self.shared_heads * shared, 2 * kinds
        return torch.cat([kinds[..., :1] * shared, kinds[..., 1:] * routed], dim=-1)

    def _logits(self, router: nn.Linear | None, query: Tensor) -> Tensor:
        assert router is not None  # all that is asked for is there with learned routers
        # Float32 at least: probabilities that are to sum to 1 want more digits than bf16 has.
        logits: Tensor = router(query)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _routers(self) -> list[nn.Linear]:
        routers = (self.routed_router, self.shared_router, self.kind_router)
        return [router for router in routers if router is not None]

    def ablation_ranges(self) -> dict[str, range]:
        return {**super().ablation_ranges(), "top_k": range(1, self.top_k)}

    def sees_other_positions(self, is_causal: bool) -> bool:
        return False

    def macs(self, queries: int, keys: int, *, is_causal: bool = False) -> Macs:
        weights = sum(router.weight.numel() for router in self._routers())
        return super().macs(queries, keys, is_causal=is_causal) + Macs(queries * weights, 0)


def select_heads(probability: Tensor, top_k: int, *, scaled: bool) -> tuple[Tensor, Tensor]:
    """The gates of the routed heads, zero where not selected, and the numbers of the K selected.

    Scaled, the selected probabilities are divided by their sum and multiplied by K.

    >>> gates, chosen = select_heads(torch.tensor([0.5, 0.2, 0.3]), 2, scaled=True)
    >>> gates, chosen
    (tensor([1.2500, 0.0000, 0.7500]), tensor([0, 2]))
    """
    selected, chosen = probability.topk(top_k, dim=-1)
    if scaled:
        selected = top_k * selected / selected.sum(-1, keepdim=True)
    return torch.zeros_like(probability).scatter(-1, chosen, selected), chosen


def query_norm_logits(q: Tensor) -> Tensor:
    """The logits of a router without parameters: how long the queries of the heads are.

        lᵢ = ‖qᵢ‖ / s    s: standard deviation of the norms of one position

    From queries `(batch, heads, queries, head_dim)` to `(batch, queries, heads)`, in float32 at
    least. Norms that are all equal, or that of a single head, are not divided.

    >>> query_norm_logits(torch.tensor([[[[3.0, 4.0]], [[0.0, 3.0]]]]))
    tensor([[[3.5355, 2.1213]]])
    """
    q = q.to(torch.promote_types(q.dtype, torch.float32))
    norms = torch.linalg.vector_norm(q, dim=-1).transpose(1, 2)
    if norms.size(-1) == 1:
        return norms
    centred = norms - norms.mean(-1, keepdim=True)
    variance = centred.square().sum(-1, keepdim=True) / (norms.size(-1) - 1)
    return norms / variance.where(variance > 0, 1.0).sqrt()


def quantized_gates(probability: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Gates of 1 for the K selected heads, and their numbers.

    The gradient of the gates is passed on to the probabilities as it is, those of heads that are
    not selected included (a straight-through estimator).

    >>> probability = torch.tensor([0.5, 0.2, 0.3], requires_grad=True)
    >>> gates, chosen = quantized_gates(probability, 2)
    >>> gates.detach(), chosen
    (tensor([1., 0., 1.]), tensor([0, 2]))
    """
    chosen = probability.topk(top_k, dim=-1).indices
    selected = torch.zeros_like(probability).scatter(-1, chosen, 1.0)
    return selected + (probability - probability.detach()), chosen


def balance_loss(
    probability: Tensor, chosen: Tensor, padding: Tensor | None = None, *, shared: bool = True
) -> Tensor:
    """The loss that keeps the routed heads equally in use, without padding.

        L = Σᵢ Pᵢ fᵢ    P: mean probability of head i, f: share of the tokens that select it

    Args:
        probability: `(batch, time, routed)`.
        chosen: `(batch, time, K)`, the heads selected.
        padding: boolean `(batch, time)`, `True` at padding.
        shared: whether all processes of a data-parallel run share the batch.
    """
    routed = probability.size(-1)
    real = real_positions(probability, padding).unsqueeze(-1)  # (batch, time, 1)
    selected = torch.zeros_like(probability).scatter(-1, chosen, 1.0)
    sums = [(probability * real).sum((0, 1)), (selected * real).sum((0, 1)), real.sum().view(1)]
    mass, load, count = sum_over_replicas(torch.cat(sums), shared=shared).split([routed, routed, 1])
    count = count.clamp(min=1)
    return (mass / count * (load / count)).sum()
