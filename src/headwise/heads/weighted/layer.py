"""The Weighted Transformer: branches of attention, each with the feed-forward behind it."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Self

from headwise.heads.attention import Attention, Inputs, NoPackedWeights, Projected
from headwise.heads.system import Macs, Place, Routing
from headwise.heads.weighted.ablations import ABLATIONS
from headwise.heads.weighted.branches import branched_feed_forward, branched_macs
from headwise.heads.weighted.rule import BranchesOnSimplex
from headwise.heads.weighted.simplex import keep_largest
from headwise.heads.weighted.streams import (
    added_by_branches,
    feed_forward_of_streams,
    streams_macs,
    weighted_sum,
)
from headwise.heads.words import Words
from headwise.ops.activations import Activation, check_activation
from headwise.ops.bounds import (
    MOST_HEADS,
    check_among,
    check_gain,
    check_number,
    check_parameters,
    check_probability,
)
from headwise.ops.linear_maps import linear_map
from headwise.ops.simplex import random_simplex

Form = Literal["simplex", "softmax", "random", "uniform", "fixed"]
FeedForwards = Literal["shared", "split", "full"]
Inner = Literal["none", "residual"]


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
    recovered. `presets["paper"]`, `inner="none", ffn="shared", start="random"`, is the letter;
    docs/readings.md compares the two.

    A step of an optimizer leaves the simplex, so that κ and α are to be projected back after each:
    `headwise.heads.weighted.rule` does so, and headwise's trainer with it. The forward pass takes
    them as they are.

    Where it stands, the paper leaves open. Here it is an encoder layer by itself; in a decoder
    layer it follows an ordinary masked self-attention, in place of the attention over the encoder's
    output and of the feed-forward. The paper says that it adds 192 weights to a model of 213M
    parameters, which has 16 branches. That is what 6 encoder layers add. But the paper also says
    that the decoder has it, and masked, as the self-attention is, behind which no feed-forward
    follows. Both stacks together have 384 such weights, or 192 with 8 branches. So no placement
    agrees with all of the text, and a plan decides: `attention: weighted` is both stacks,
    `attention: {encoder_self: weighted}` the encoder alone.

    Readings: equation 7 gives all branches the same feed-forward (`ffn="shared"`); to the letter it
    costs no more than one, see `headwise.heads.weighted.branches`, and behind a norm M products
    with W₁. `ffn="split"` gives branch i the i-th part of the hidden units for itself, with as many
    parameters. Wᵢ has no bias: that of the values acts as one. The paper says that κ and α are
    "initialized randomly": anywhere on the simplex (`start="random"`) leaves most branches nearly
    silent, so that they start at 1/M each unless told otherwise, and their maps at random.

    Variants that the paper tried beside its own, and found worse: a softmax in place of the
    simplex; κ and α drawn anew at each pass in training and 1/M in evaluation, as in Shake-Shake
    (Gastaldi 2017; the backward pass uses the weights of the forward pass here); one vector for κ
    and α; a gate that sums up the branches of largest α alone, which `top_k` asks for in training
    and evaluation. The weights of all of them are the same for all inputs, though the mixtures of
    experts that the paper compares with decide by the input.

    Args:
        embed_dim: width of queries and of the output.
        num_branches: M.
        ffn_dim: width of the feed-forward's hidden layer.
        inner: `"residual"` for residual sums and norms inside, or `"none"`.
        norm: with residual sums, where norms stand: behind each (`"post"`), or before each
            sub-layer (`"pre"`).
        ffn: `"split"` for hidden units of each branch's own, `"shared"`, or `"full"` for `ffn_dim`
            units of each branch's own, which is M feed-forwards of full size.
        weights: κ and α are learned on the `"simplex"`; or they are the `"softmax"` of what is
            learned, and start in the same way; or they are `"random"`, or `"uniform"` (1/M), or
            `"fixed"` where they start, and nothing is learned.
        start: where κ and α start: at a `"random"` point, or `"even"`, at 1/M each.
        merged: κ and α are one vector, the parameter `alpha`.
        top_k: how many branches are summed, those of largest α, which is scaled to sum 1 over
            them; all of them if not given. The others are computed all the same.
        output_gain: the factor by which W is drawn larger than Glorot's bound for the map of one
            branch, M if not given, so that κᵢWᵢ starts at the scale of a map; with residual sums,
            than that for the map of all heads, 1 if not given.
        head_dim: width of a branch's head; `embed_dim // num_branches` if not given.
        kdim, vdim, dropout: as in `MultiHeadAttention`.
        residual_dropout: with residual sums, probability with which a unit of what a branch, and
            of what the feed-forward adds is dropped in training.
        ffn_dropout: probability with which a unit of the hidden layer is dropped in training; all
            branches lose the same units of a shared feed-forward.
        ffn_activation: `"relu"`, `"gelu"` or `"leaky-relu"`, in the place of the ReLU of FFN.
        bias: whether the query, key and value projections have one; the feed-forward always has.

    Shape:
        As `MultiHeadAttention`. `routing.weights` is α, `(num_branches,)`, the same for all
        positions.

    Raises:
        ValueError: sizes that do not fit together; the message names the argument.

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
    ablations = ABLATIONS
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"inner": "none", "ffn": "shared", "start": "random"}
    }
    unlike_standard = (
        "it takes the place of the feed-forward behind the attention too, with residual sums and "
        "norms in each branch"
    )
    words = Words(
        unit="branch",
        units="branches",
        decision="branches",
        measure="weight",
        entropy="says how even the weights α are: on the dashed line all branches count alike, "
        "near 0 a single one is left.",
        share="is α, a branch's weight in the sum, the same for all positions.",
        recorded={"kappa": "κ", "alpha": "α"},
        recorded_meaning="κ, by which a branch scales what it feeds into the feed-forward, and α",
    )
    out_proj: ClassVar[Any] = NoPackedWeights()
    kappa: Tensor | None
    alpha: Tensor | None

    def __init__(
        self,
        embed_dim: int,
        num_branches: int,
        ffn_dim: int,
        *,
        inner: Inner = "residual",
        norm: Literal["post", "pre"] = "post",
        ffn: FeedForwards = "split",
        weights: Form = "simplex",
        start: Literal["random", "even"] = "even",
        merged: bool = False,
        top_k: int | None = None,
        output_gain: float | None = None,
        head_dim: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        dropout: float = 0.0,
        residual_dropout: float = 0.0,
        ffn_dropout: float = 0.0,
        ffn_activation: Activation = "relu",
        bias: bool = True,
    ) -> None:
        for name, size in (("num_branches", num_branches), ("ffn_dim", ffn_dim)):
            if size < 1:
                raise ValueError(f"{name} is {size}, expected a positive number")
        check_number("num_branches", num_branches, MOST_HEADS)
        if head_dim is None and embed_dim % num_branches:
            raise ValueError(
                f"embed_dim is {embed_dim}, which num_branches = {num_branches} does not divide; "
                f"choose sizes that divide, or give head_dim"
            )
        check_among("inner", inner, ("none", "residual"))
        check_among("norm", norm, ("post", "pre"))
        check_among("ffn", ffn, get_args(FeedForwards))
        check_among("start", start, ("random", "even"))
        if ffn == "split" and ffn_dim % num_branches:
            raise ValueError(
                f"ffn_dim is {ffn_dim}, which num_branches = {num_branches} does not divide; "
                f"choose sizes that divide, or ffn='shared'"
            )
        if weights not in get_args(Form):
            raise ValueError(f"weights is {weights!r}, expected one of {', '.join(get_args(Form))}")
        if top_k is not None and not 1 <= top_k <= num_branches:
            raise ValueError(f"top_k is {top_k}, expected 1 to num_branches = {num_branches}")
        if top_k is not None and weights not in ("simplex", "softmax"):
            raise ValueError(
                f"top_k is {top_k}, but weights={weights!r} learns no α by which to choose: leave "
                f"top_k out, or choose other weights"
            )
        if output_gain is not None:
            check_gain("output_gain", output_gain)
        check_probability("residual_dropout", residual_dropout)
        check_probability("ffn_dropout", ffn_dropout)
        check_activation(ffn_activation)
        units = num_branches * ffn_dim if ffn == "full" else ffn_dim
        check_parameters(2 * embed_dim * units, embed_dim=embed_dim, ffn_dim=ffn_dim)
        super().__init__(embed_dim, num_branches, head_dim, kdim, vdim, dropout)
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
        self.output_gain = output_gain
        self.residual_dropout = residual_dropout
        self.ffn_dropout = ffn_dropout
        self.ffn_activation = ffn_activation
        self.dense_projections(bias)
        self.branch_output = nn.Parameter(torch.empty(num_branches, self.head_dim, embed_dim))
        for name in ("kappa", "alpha"):
            drawn = torch.empty(num_branches)
            if weights not in ("simplex", "softmax", "fixed") or (merged and name == "kappa"):
                self.register_parameter(name, None)
            elif weights == "fixed":
                self.register_buffer(name, drawn)
            else:
                self.register_parameter(name, nn.Parameter(drawn))
        self.hidden_dim = units
        self.ffn_up = nn.Linear(embed_dim, units)
        self.ffn_down = nn.Linear(units, embed_dim)
        self.norm1 = nn.LayerNorm(embed_dim) if self.holds_residual else None
        self.norm2 = nn.LayerNorm(embed_dim) if self.holds_residual else None
        self.reset_parameters()

    @classmethod
    def from_plan(cls, place: Place, **options: Any) -> Self:
        sizes: dict[str, Any] = {"num_branches": place.num_heads, "ffn_dim": place.ffn_dim}
        sizes |= {"dropout": place.attention_dropout, "ffn_dropout": place.ffn_dropout}
        sizes |= {"ffn_activation": place.ffn_activation, "norm": place.norm}
        sizes |= {"residual_dropout": place.dropout}
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
        if self.holds_residual:
            return self._with_residuals(inputs.query, heads, kappa, alpha), Routing(alpha)
        output = branched_feed_forward(
            heads, self.branch_output, kappa, alpha, **self._feed_forward(heads)
        )
        return output, Routing(alpha)

    def _feed_forward(self, like: Tensor) -> dict[str, Any]:
        """Its maps and settings, as arguments of `branches` and `streams`."""
        return {
            "up": linear_map(self.ffn_up, self.embed_dim, like),
            "down": linear_map(self.ffn_down, self.hidden_dim, like),
            "split": self.ffn != "shared",
            "dropout": self.ffn_dropout if self.training else 0.0,
            "activation": self.ffn_activation,
        }

    def _with_residuals(self, x: Tensor, heads: Tensor, kappa: Tensor, alpha: Tensor) -> Tensor:
        norm1, norm2 = self.norm1, self.norm2
        assert norm1 is not None and norm2 is not None
        dropout = self.residual_dropout if self.training else 0.0
        rows = x.flatten(0, 1)
        added = added_by_branches(heads, self.branch_output, kappa, dropout=dropout)
        z = rows + added  # (branches, batch * time, embed_dim)
        z = norm2(z) if self.pre_norm else norm1(z)
        factor = self.num_branches if self.ffn == "split" else 1
        fed = feed_forward_of_streams(z, alpha, factor=factor, **self._feed_forward(heads))
        fed = F.dropout(fed, dropout)
        if self.pre_norm:
            y = rows + weighted_sum(added, self.num_branches * alpha) + fed
        else:
            y = norm2(weighted_sum(z, alpha) + fed)
        return y.view_as(x)

    def unit_of_head(self) -> list[int]:
        return list(range(self.num_branches))

    def ablation_ranges(self) -> dict[str, range]:
        return {"branch": range(self.num_branches), "top_k": range(1, self.num_branches)}

    def macs(self, queries: int, keys: int, *, is_causal: bool = False) -> Macs:
        sizes = (self.num_branches, self.head_dim, self.embed_dim, self.hidden_dim)
        if self.holds_residual:
            branches = queries * streams_macs(*sizes, split=self.ffn != "shared")
        else:
            branches = branched_macs(queries, *sizes, split=self.ffn != "shared")
        return super().macs(queries, keys, is_causal=is_causal) + Macs(branches, 0)

    def extra_repr(self) -> str:
        return (
            f"embed_dim={self.embed_dim}, num_branches={self.num_branches}, "
            f"head_dim={self.head_dim}, ffn_dim={self.ffn_dim}, ffn={self.ffn}, "
            f"inner={self.inner}, "
            f"weights={self.weights}, merged={self.merged}, top_k={self.top_k}"
        )
