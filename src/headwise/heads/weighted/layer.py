"""The Weighted Transformer: branches of attention, each with the feed-forward behind it."""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Self, Unpack

from headwise.heads.attention import Attention, Bias, Inputs, Projected, Sizes
from headwise.heads.system import Macs, Place, Routing
from headwise.heads.torch_layers import NoPackedWeights
from headwise.heads.weighted.declared import (
    ABLATIONS,
    PRESETS,
    WORDS,
    FeedForwards,
    Form,
    check_sizes,
    check_weights,
)
from headwise.heads.weighted.feed_forward import (
    branched_feed_forward,
    branched_macs,
    feed_forward_of_streams,
    streams_macs,
)
from headwise.heads.weighted.rule import BranchesOnSimplex
from headwise.ops.activations import Activation, hidden_width
from headwise.ops.bounds import check_positive, checked
from headwise.ops.linear_maps import LinearMap, linear_map
from headwise.ops.norms import NormKind, norm_of
from headwise.ops.simplex import keep_largest, random_simplex


class BranchedAttention(Attention):
    """Attention and the feed-forward behind it, in branches: each head is one, with a weight.

    Ahmed et al. 2017, *Weighted Transformer Network for Machine Translation*,
    https://arxiv.org/abs/1711.02132, equations 5 to 7.

        oᵢ = softmax(q Wᵢ^Q (k Wᵢ^K)ᵀ / √head_dim) v Wᵢ^V
        zᵢ = LN(x + Mκᵢ oᵢ Wᵢ)
        y  = LN(Σᵢ αᵢzᵢ + M Σᵢ αᵢ FFNᵢ(zᵢ)),  FFNᵢ(z) = ReLU(z W₁ᵢ + b₁ᵢ) W₂ᵢ + b₂/M
        κᵢ, αᵢ ≥ 0,  Σᵢ κᵢ = Σᵢ αᵢ = 1

    It takes the place of an attention *and* of the feed-forward behind it, and its output is that
    of the layer: x are the queries, and residual sums and norms are included. With `norm="pre"` the
    norms stand before the sub-layers, and the stream takes up what all branches add:

        y  = x + M Σᵢ αᵢ (aᵢ + FFNᵢ(LN(x + aᵢ))),  aᵢ = Mκᵢ oᵢ Wᵢ

    With one branch and κ = α = 1 it is exactly the ordinary layer.

    The equations themselves have no residual sum and no norm between attention and feed-forward:

        y = Σᵢ αᵢ FFN(κᵢ oᵢ Wᵢ),  FFN(z) = ReLU(z W₁ + b₁) W₂ + b₂

    so that the feed-forward does not see the token itself. But the text retains "layer
    normalization, and residual connections", and says that with κ = α = 1 the ordinary layer is
    recovered. `presets["paper"]` is the letter; docs/readings.md compares the two, and has further
    readings. In a decoder's layer it follows an ordinary masked self-attention, in place of the
    attention over the encoder's output and of the feed-forward.

    A step of an optimizer leaves the simplex: `BranchesOnSimplex`, the rule that headwise's trainer
    follows, projects κ and α back after each. The forward pass takes them as they are. Wᵢ has no
    bias: that of the values acts as one.

    Args:
        num_branches: M.
        ffn_dim: width of the feed-forward's hidden layer.
        inner: `"residual"` for residual sums and norms inside, or `"none"`.
        norm: with residual sums, where norms stand: behind each (`"post"`), or before each
            sub-layer (`"pre"`).
        ffn: `"split"`, where branch i has the i-th part of the hidden units for itself; `"shared"`,
            as in equation 7, which then costs no more than one feed-forward; or `"full"` for
            `ffn_dim` units of each branch's own, which is M feed-forwards of full size.
        weights: κ and α are learned on the `"simplex"`; or they are the `"softmax"` of what is
            learned, and start in the same way; or they are `"random"`, or `"uniform"` (1/M), or
            `"fixed"` where they start, and nothing is learned.
        start: where κ and α start: at a `"random"` point, which leaves most branches nearly silent,
            or `"even"`, at 1/M each.
        merged: κ and α are one vector, the parameter `alpha`.
        top_k: how many branches are summed, those of largest α, which is scaled to sum 1 over
            them; all of them if not given. The others are computed all the same.
        output_gain: the factor by which W is drawn larger than Glorot's bound for the map of one
            branch, M if not given; with residual sums, for the map of all heads, 1 if not given.
        residual_dropout: with residual sums, dropout of what a branch, and the feed-forward adds.
        ffn_dropout: dropout of the hidden layer, the same units in all branches of a shared one.
        ffn_activation: what stands in the place of the ReLU of FFN; see
            `headwise.ops.activations`. With `"swiglu"` and `"geglu"` W₁ is twice as wide.
        norm_kind: `"layer"` norms, or `"rms"`.
        bias: whether projections and feed-forward have one, `"qkv"`: the projections alone.
        embed_dim, sizes: as in `MultiHeadAttention`, which has the other options.

    Shape:
        As `MultiHeadAttention`. `routing.weights` is α, `(num_branches,)`, the same for all
        positions.

    Example:
        >>> layer = BranchedAttention(embed_dim=32, num_branches=4, ffn_dim=64)
        >>> out = layer(torch.randn(2, 5, 32))
        >>> out.output.shape, out.routing.weights.shape
        (torch.Size([2, 5, 32]), torch.Size([4]))
    """

    replaces = "feed-forward"
    routing_parameters = ("kappa", "alpha")
    output_parameters = ("branch_output",)
    rule = BranchesOnSimplex
    heads_are_units = True
    ablations = ABLATIONS
    presets = PRESETS
    unlike_standard = (
        "it takes the place of the feed-forward behind the attention too, with residual sums and "
        "norms in each branch"
    )
    words = WORDS
    shown = (*Attention.shown, "ffn_dim", "ffn", "inner", "weights", "merged", "top_k")
    out_proj: ClassVar[Any] = NoPackedWeights()
    kappa: Tensor | None
    alpha: Tensor | None

    @checked
    def __init__(
        self,
        embed_dim: int,
        num_branches: int,
        ffn_dim: int,
        *,
        inner: Literal["none", "residual"] = "residual",
        norm: Literal["post", "pre"] = "post",
        ffn: FeedForwards = "split",
        weights: Form = "simplex",
        start: Literal["random", "even"] = "even",
        merged: bool = False,
        top_k: int | None = None,
        output_gain: float | None = None,
        residual_dropout: float = 0.0,
        ffn_dropout: float = 0.0,
        ffn_activation: Activation = "relu",
        norm_kind: NormKind = "layer",
        bias: Bias = True,
        **sizes: Unpack[Sizes],
    ) -> None:
        check_sizes(embed_dim, num_branches, ffn_dim, ffn, sizes.get("head_dim"))
        check_weights(weights, top_k, num_branches)
        super().__init__(embed_dim, num_branches, **sizes)
        self.num_branches = num_branches
        self.ffn_dim = ffn_dim
        self.inner = inner
        self.holds_residual = inner == "residual"
        self.pre_norm = norm == "pre"
        self.ffn = ffn
        self.weights: Form = weights
        self.start = start
        self.merged = merged
        self.top_k = top_k
        if output_gain is None:
            output_gain = 1.0 if self.holds_residual else float(num_branches)
        check_positive(output_gain=output_gain)
        self.output_gain = output_gain
        self.residual_dropout = residual_dropout
        self.ffn_dropout = ffn_dropout
        self.ffn_activation = ffn_activation
        self.dense_projections(bias)
        self.branch_output = nn.Parameter(torch.empty(num_branches, self.head_dim, embed_dim))
        for name in ("kappa", "alpha"):
            drawn = torch.empty(num_branches)
            if weights in ("random", "uniform") or (merged and name == "kappa"):
                self.register_parameter(name, None)
            elif weights == "fixed":
                self.register_buffer(name, drawn)
            else:
                self.register_parameter(name, nn.Parameter(drawn))
        self.hidden_dim = num_branches * ffn_dim if ffn == "full" else ffn_dim
        width = hidden_width(ffn_activation, self.hidden_dim)
        self.ffn_up = nn.Linear(embed_dim, width, bias=bias is True)
        self.ffn_down = nn.Linear(self.hidden_dim, embed_dim, bias=bias is True)
        eps = sizes.get("norm_eps", 1e-5)
        self.norm1: Any = norm_of(norm_kind, embed_dim, eps) if self.holds_residual else None
        self.norm2: Any = norm_of(norm_kind, embed_dim, eps) if self.holds_residual else None
        self.reset_parameters()

    @classmethod
    def from_plan(cls, place: Place, **options: Any) -> Self:
        sizes: dict[str, Any] = {"num_branches": place.num_heads, "ffn_dim": place.ffn_dim}
        sizes |= {"dropout": place.attention_dropout, "ffn_dropout": place.ffn_dropout}
        sizes |= {"ffn_activation": place.ffn_activation, "norm": place.norm}
        sizes |= {"residual_dropout": place.dropout, "norm_kind": place.norm_kind}
        sizes |= {"norm_eps": place.norm_eps, **place.projections()}
        return cls(place.embed_dim, **{**sizes, **options})

    def reset_parameters(self) -> None:
        """Draw all parameters afresh: maps by Glorot, κ and α even or anywhere on the simplex."""
        self.reset_projections()
        # With residual sums the branches' maps together are the output projection of a layer.
        # Without, each is a map of its own.
        heads = self.num_branches if self.holds_residual else 1
        bound = self.output_gain * (6 / (self.embed_dim + heads * self.head_dim)) ** 0.5
        nn.init.uniform_(self.branch_output, -bound, bound)
        ffn_bound = (6 / (self.embed_dim + self.ffn_dim)) ** 0.5
        for linear in (self.ffn_up, self.ffn_down):
            nn.init.uniform_(linear.weight, -ffn_bound, ffn_bound)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
        for norm in (self.norm1, self.norm2):
            if norm is not None:
                norm.reset_parameters()
        for weights in self._drawn_weights():
            # from_pretrained has nn.init spare what is loaded, and neither a point of the simplex
            # nor its logarithm is zero throughout: only what could be set to zero is drawn.
            nn.init.zeros_(weights)
            with torch.no_grad():
                drawn = weights.new_full((self.num_branches,), 1 / self.num_branches)
                if self.start == "random":
                    drawn = random_simplex(self.num_branches).to(weights)
                if self.weights == "softmax":
                    drawn = drawn.log()
                weights.copy_(torch.where(weights.any(), weights, drawn))

    def learned_weights(self) -> list[nn.Parameter]:
        """The parameters for κ and α: two; one if they are merged; none if they are not learned."""
        return [weights for weights in self._drawn_weights() if isinstance(weights, nn.Parameter)]

    def _drawn_weights(self) -> list[Tensor]:
        return [weights for weights in (self.kappa, self.alpha) if weights is not None]

    def branch_weights(self) -> tuple[Tensor, Tensor]:
        """The κ and α in use, `(num_branches,)` each."""
        alpha = self._in_use(self.alpha)
        kappa = alpha if self.merged else self._in_use(self.kappa)
        if self.top_k is not None:
            alpha = keep_largest(alpha, self.top_k)
        if not self.training and self.ablation is not None:
            kappa, alpha = self.ablation(kappa, alpha)
        return kappa, alpha

    def _in_use(self, drawn: Tensor | None) -> Tensor:
        if drawn is not None:
            return drawn.softmax(0) if self.weights == "softmax" else drawn
        if self.training and self.weights == "random":
            return random_simplex(self.num_branches).to(self.branch_output)
        return self.branch_output.new_full((self.num_branches,), 1 / self.num_branches)

    def project(self, inputs: Inputs) -> Projected:
        if self.norm1 is None or not self.pre_norm:
            return super().project(inputs)
        query, key, value = self.norm1(inputs.query), inputs.key, inputs.value
        if inputs.is_self_attention:
            key = query if key is inputs.query else self.norm1(key)
            value = query if value is inputs.query else self.norm1(value)
        return super().project(inputs._replace(query=query, key=key, value=value))

    def combine(self, heads: Tensor, inputs: Inputs, choice: Any) -> tuple[Tensor, Routing]:
        kappa, alpha = self.branch_weights()
        how: dict[str, Any] = {
            "up": _with_bias(linear_map(self.ffn_up, self.embed_dim, heads)),
            "down": _with_bias(linear_map(self.ffn_down, self.hidden_dim, heads)),
            "split": self.ffn != "shared",
            "dropout": self.ffn_dropout if self.training else 0.0,
            "activation": self.ffn_activation,
        }
        if self.holds_residual:
            return self._streams(inputs.query, heads, kappa, alpha, how), Routing(alpha)
        y = branched_feed_forward(heads, self.branch_output, kappa, alpha, **how)
        return y, Routing(alpha)

    def _streams(
        self, x: Tensor, heads: Tensor, kappa: Tensor, alpha: Tensor, how: dict[str, Any]
    ) -> Tensor:
        """The layer whose branches have a residual stream each."""
        assert self.norm1 is not None and self.norm2 is not None
        # A float, since PyTorch 2.8 cannot export a tensor times an integer to ONNX.
        branches = float(self.num_branches)
        dropout = self.residual_dropout if self.training else 0.0
        rows = x.flatten(0, 1)  # (batch * time, embed_dim)
        read = heads.transpose(0, 1).flatten(1, 2)  # (branches, batch * time, head_dim)
        scales = (branches * kappa).view(-1, 1, 1)
        if not torch.is_grad_enabled() and len(rows) < self.embed_dim:
            added = (read * scales) @ self.branch_output  # less than to scale the maps
        else:
            added = read @ (self.branch_output * scales)
        # added: Mκᵢ oᵢWᵢ, (branches, batch * time, embed_dim)
        added = F.dropout(added, dropout)
        z = (self.norm2 if self.pre_norm else self.norm1)(rows + added)
        factor = branches if self.ffn == "split" else 1.0
        fed = F.dropout(feed_forward_of_streams(z, alpha, factor=factor, **how), dropout)
        if self.pre_norm:
            # For even weights the ordinary layer's. The mean of the streams would hold an M-th of
            # the attention, and nothing behind it would restore the scale, as a post-norm does.
            y = rows + weighted_sum(added, branches * alpha) + fed
        else:
            y = self.norm2(weighted_sum(z, alpha) + fed)
        return y.view_as(x)

    def ablation_ranges(self) -> dict[str, range]:
        return {"branch": range(self.num_branches), "top_k": range(1, self.num_branches)}

    def macs(self, queries: int, keys: int, *, is_causal: bool = False) -> Macs:
        up_dim = hidden_width(self.ffn_activation, self.hidden_dim)
        sizes = (self.num_branches, self.head_dim, self.embed_dim, self.hidden_dim, up_dim)
        count = streams_macs if self.holds_residual else branched_macs
        branches = Macs(count(queries, *sizes, split=self.ffn != "shared"), 0)
        return super().macs(queries, keys, is_causal=is_causal) + branches


def weighted_sum(z: Tensor, alpha: Tensor) -> Tensor:
    """Σᵢ αᵢzᵢ over the branches, `(rows, embed_dim)`."""
    return torch.einsum("irc,i->rc", z, alpha.to(z.dtype))


def _with_bias(linear: LinearMap) -> LinearMap:
    """The map with a bias, of zeros if it has none."""
    if linear.bias is not None:
        return linear
    return LinearMap(linear.matrix, linear.matrix.new_zeros(linear.matrix.size(0)))
