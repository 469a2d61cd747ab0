"""Mixture of heads (MoH): some heads always count, of the others each token selects K."""

from typing import Any, Self

import torch
from torch import Tensor, nn

from headwise.heads.ablation import ablations_of
from headwise.heads.attention import AttentionInputs, MultiHeadAttention
from headwise.heads.masks import real_positions
from headwise.heads.system import Routing
from headwise.messages import check_range
from headwise.ops.layers import in_float32


class MixtureOfHeads(MultiHeadAttention):
    """Multi-head attention in which each token weighs the heads, and selects some of them.

    Jin et al. 2025, *MoH: Multi-Head Attention as Mixture-of-Head Attention*,
    https://arxiv.org/abs/2410.11842 (MoH).

        y = Σᵢ gᵢ oᵢ Wᵢ,  [α₁, α₂] = softmax(x W_h)
        gᵢ = 2 α₁ · h_s · softmax(x W_s)ᵢ                the h_s heads that are shared: the first
        gᵢ = 2 α₂ · K · pᵢ / Σ_{j∈G(x)} pⱼ,  i ∈ G(x)    p = softmax(x W_r) over the others, of
        gᵢ = 0 elsewhere                                 which G(x) are the K of largest p
        loss = β · R Σᵢ Pᵢ fᵢ                            over the R = h − h_s routed heads

    P is the mean of p over the tokens, f the share of the tokens that select a head; padding counts
    in neither. With all heads selected and W = 0 every gate is 1, which is standard attention: so
    `from_attention` starts. All heads are computed, and those not selected are multiplied by 0: the
    layer is as fast as standard attention, not faster.

    A softmax of one shared head is 1 whatever W_s is, so there is none then. Without shared heads
    there is no W_h, and 2 α₂ is 1. The routers compute in float32, under autocast too. Ablations of
    the choice, such as `top-k`, are of the routed heads: shared heads keep their gates.

    Args:
        num_heads: h.
        shared_heads: h_s, how many heads every token has; 0 to h − 1.
        top_k: K, how many of the others a token selects.
        balance_coef: β, weight of the balance loss.
        scaled: whether gates and balance loss have the factors of the authors' code, by which an
            untrained head counts 1. The text has none of them: gᵢ = α₁ softmax(x W_s)ᵢ, gᵢ = α₂ pᵢ,
            β Σᵢ Pᵢ fᵢ.
        embed_dim, options: as in `MultiHeadAttention`.

    Shape:
        As `MultiHeadAttention`. `routing.weights` holds the gates g, `(batch, queries, heads)`:
        they are no distribution, but sum to 2 α₁ h_s + 2 α₂ K. `routing.indices` is `(batch,
        queries, shared_heads + top_k)`: the shared heads, then those selected. The parameters are
        those of `MultiHeadAttention`, and `routed_router`, `kind_router`, `shared_router`.

    Raises:
        ValueError: `shared_heads` not below `num_heads`, or `top_k` above the number of the others.

    Example:
        >>> attention = MixtureOfHeads(embed_dim=32, num_heads=8, shared_heads=2, top_k=3)
        >>> routing = attention(torch.randn(2, 5, 32)).routing
        >>> routing.weights.shape, routing.indices.shape
        (torch.Size([2, 5, 8]), torch.Size([2, 5, 5]))
    """

    routing_parameters = ("shared_router", "routed_router", "kind_router")
    supported_ablations = ablations_of("head")

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        shared_heads: int,
        top_k: int,
        balance_coef: float = 0.01,
        scaled: bool = True,
        **options: Any,
    ) -> None:
        check_range("shared_heads", shared_heads, 0, num_heads - 1)
        check_range("top_k", top_k, 1, num_heads - shared_heads)
        super().__init__(embed_dim, num_heads, **options)
        self.shared_heads, self.top_k = shared_heads, top_k
        self.balance_coef, self.scaled = balance_coef, scaled
        if num_heads - shared_heads == 1:
            left = [name for name in self.supported_ablations if name != "without-largest"]
            self.supported_ablations = tuple(left)  # type: ignore[misc]

        self.routed_router = nn.Linear(embed_dim, num_heads - shared_heads, bias=False)
        several, any_shared = shared_heads > 1, shared_heads > 0
        self.shared_router = nn.Linear(embed_dim, shared_heads, bias=False) if several else None
        self.kind_router = nn.Linear(embed_dim, 2, bias=False) if any_shared else None
        self.reset_routers()

    @classmethod
    def from_config(cls, config: Any, site: str, **options: Any) -> Self:
        sizes = default_sizes(options.get("num_heads", config.num_heads), options)
        return super().from_config(config, site, **{**sizes, **options})

    @classmethod
    def as_head_gate(cls, embed_dim: int, num_heads: int, head_dim: int, **options: Any) -> Self:
        # All heads are selected if nothing is said, so that each can have a gate of 1 at first.
        sizes = default_sizes(num_heads, options)
        sizes["top_k"] = num_heads - sizes["shared_heads"]
        return super().as_head_gate(embed_dim, num_heads, head_dim, **{**sizes, **options})

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.reset_routers()

    def reset_routers(self) -> None:
        for router in self.routers():
            nn.init.xavier_uniform_(router.weight)

    def routers(self) -> list[nn.Linear]:
        routers = (self.shared_router, self.routed_router, self.kind_router)
        return [router for router in routers if router is not None]

    def init_neutral(self) -> None:
        """The routers start at zero, so that the gate of each head is 1, if all are selected."""
        if self.top_k < self.num_heads - self.shared_heads or not self.scaled:
            raise ValueError(
                f"{type(self).__name__} starts with its output unchanged if scaled=True and all "
                f"heads are selected, top_k={self.num_heads - self.shared_heads} of the routed "
                f"ones: choose these, or give neutral=False"
            )
        for router in self.routers():
            nn.init.zeros_(router.weight)

    def combine(self, heads: Tensor, inputs: AttentionInputs, state: Any) -> tuple[Tensor, Routing]:
        logits = in_float32(self.routed_router, inputs.query)
        logits, top_k = self.ablate_logits(logits, self.top_k)
        probability = logits.softmax(-1)
        routed, chosen = probability.topk(top_k, dim=-1)
        if self.scaled:
            routed = self.top_k * routed / routed.sum(-1, keepdim=True)
        routed = torch.zeros_like(probability).scatter(-1, chosen, routed)
        gates = self.with_shared(routed, inputs.query)
        shared = torch.arange(self.shared_heads, device=chosen.device)
        shared = shared.expand(*chosen.shape[:-1], -1)
        indices = torch.cat([shared, chosen + self.shared_heads], dim=-1)
        active = torch.zeros_like(gates, dtype=torch.bool).scatter(-1, indices, True)
        gates = self.ablate_weights(gates, active, selected=True)
        loss = None
        if inputs.cache is None or torch.is_grad_enabled():  # nothing learns from generation
            loss = self.balance_coef * balance_loss(probability, chosen, inputs.query_padding)
            loss = loss * probability.size(-1) if self.scaled else loss
        return self.scale_and_project(heads, gates.unsqueeze(-1)), Routing(gates, indices, loss)

    def with_shared(self, routed: Tensor, query: Tensor) -> Tensor:
        """The gates of all heads, the shared heads first, from the gates of routed heads."""
        if self.kind_router is None:
            return routed
        shared = torch.ones_like(routed[..., :1])
        if self.shared_router is not None:
            shared = in_float32(self.shared_router, query).softmax(-1)
        kinds = in_float32(self.kind_router, query).softmax(-1)
        if self.scaled:
            shared, kinds = self.shared_heads * shared, 2 * kinds
        return torch.cat([kinds[..., :1] * shared, kinds[..., 1:] * routed], dim=-1)

    def sees_other_positions(self, is_causal: bool) -> bool:
        return False


MoH = MixtureOfHeads  # the name that papers and tables use


def default_sizes(num_heads: int, options: dict[str, Any]) -> dict[str, int]:
    """The numbers of shared and selected heads, where the options leave them out.

    Three quarters of the heads count at a time, as in the paper's language model from a pretrained
    one: half of them are shared, half of the others selected.

    >>> default_sizes(8, {})
    {'shared_heads': 4, 'top_k': 2}
    """
    shared = options.get("shared_heads", num_heads // 2)
    return {"shared_heads": shared, "top_k": max(1, (num_heads - shared) // 2)}


def balance_loss(probability: Tensor, chosen: Tensor, padding: Tensor | None) -> Tensor:
    """Σᵢ Pᵢ fᵢ: P the mean probability of a head, f the share of the tokens that select it.

    Of probabilities `(batch, time, routed)` and heads chosen `(batch, time, top_k)`.
    """
    real = real_positions(probability, padding).unsqueeze(-1)
    selected = torch.zeros_like(probability).scatter(-1, chosen, 1.0)
    mass, load = (probability * real).sum((0, 1)), (selected * real).sum((0, 1))
    return (mass * load).sum() / real.sum().clamp(min=1).square()
