"""The Weighted Transformer: branches of attention, each with the feed-forward behind it."""

import copy
import math
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from headwise.heads.ablation import ablations_of, random_simplex
from headwise.heads.attention import Attention, AttentionInputs
from headwise.heads.rules import Rule, RuleSettings, TrainingProgress
from headwise.heads.system import Routing
from headwise.messages import check_choice, check_range
from headwise.ops.layers import (
    ACTIVATIONS,
    Activation,
    NormKind,
    at_least_float32,
    checkpointed,
    hidden_width,
    is_traced,
    make_norm,
)
from headwise.ops.replicas import copy_full_, full_tensor
from headwise.settings import MAX_STEPS


class BranchSettings(RuleSettings):
    """How the Weighted Transformer's κ and α learn (section 4.1 of its paper)."""

    learning_rate: float | None = Field(None, gt=0, le=1000)
    """Learning rate of κ and α at the end of their warm-up; by default (d/N)^-0.5 ·
    warmup_steps^-0.5 in a model of N layers."""
    warmup_steps: int = Field(400, ge=1, le=MAX_STEPS)
    """The number of steps in which this rate rises from zero. Then it falls with the inverse square
    root of the step."""
    freeze_last: int | None = Field(None, ge=0, le=MAX_STEPS)
    """Number of steps at the end of the training in which κ and α stay fixed. By default it is a
    sixth of all steps."""

    def frozen_from(self, total_steps: int) -> int:
        """The step, counted from 0, from which on κ and α stay fixed.

        >>> BranchSettings().frozen_from(60_000)
        50000
        """
        return total_steps - (total_steps // 6 if self.freeze_last is None else self.freeze_last)

    def check(self, total_steps: int) -> None:
        if self.frozen_from(total_steps) < 0:
            raise ValueError(
                f"freeze_last is {self.freeze_last}, but the training has {total_steps} steps: "
                f"give at most that, or leave it out for a sixth of the steps"
            )


def project_to_simplex(x: Tensor) -> Tensor:
    """The nearest point of the simplex, over the last dimension.

        argmin_p ‖p − x‖²  subject to  pᵢ ≥ 0, Σᵢ pᵢ = 1

    It is max(x − θ, 0), with the one θ that makes the sum 1. The entries that stay positive are
    the largest ones, so that sorting finds θ (Duchi et al. 2008, *Efficient Projections onto the
    ℓ1-Ball for Learning in High Dimensions*, https://doi.org/10.1145/1390156.1390191).

    >>> project_to_simplex(torch.tensor([[0.9, 0.3], [3.0, -1.0]]))
    tensor([[0.8000, 0.2000],
            [1.0000, 0.0000]])
    """
    dtype = x.dtype
    x = at_least_float32(x)  # half precision would miss 1 by 3%
    # To add the same to all entries changes nothing; without it large ones would swallow the 1.
    x = x - x.amax(-1, keepdim=True)
    largest_first = x.sort(-1, descending=True).values
    count = torch.arange(1, x.size(-1) + 1, device=x.device)
    # If only the n largest entries stayed positive, this is what θ would be: (..., entries).
    theta = (largest_first.cumsum(-1) - 1) / count
    # At least one, also where NaN compares with nothing.
    positive = (largest_first > theta).sum(-1, keepdim=True).clamp(min=1)
    return (x - theta.gather(-1, positive - 1)).clamp(min=0).to(dtype)


class LearnBranchWeights(Rule):
    """How κ and α learn (sections 3 and 4.1 of the paper).

    After each optimizer step they are projected back onto the simplex, unless a layer has them as a
    softmax; then what follows holds for its logits. They have a learning rate of their own,
    (d/N)^-0.5 · min(s^-0.5, s · 400^-1.5) at step s in a model of N layers, and do not change in
    the last steps, while the rest still learns.

    The other parameters have d^-0.5 · min(s^-0.5, s · 4000^-1.5) in the paper: κ and α warm up in a
    tenth of their steps, to √(10N) times their peak.
    """

    settings_class = BranchSettings
    settings: BranchSettings

    def own_group(self) -> list[nn.Parameter]:
        learned = (weights for layer in self.layers for weights in layer.learned_weights())
        return [weights for weights in learned if weights.requires_grad]

    def learning_rate(self, progress: TrainingProgress) -> float:
        if self._is_frozen(progress):
            return 0.0
        warmup, step = self.settings.warmup_steps, progress.step + 1
        peak = self.settings.learning_rate
        if peak is None:
            peak = (self.layers[0].embed_dim / self._depth() * warmup) ** -0.5
        return float(peak * min((warmup / step) ** 0.5, step / warmup))

    @torch.no_grad()
    def after_update(self, progress: TrainingProgress) -> None:
        if self._is_frozen(progress):
            return
        for layer in self.layers:
            for weights in layer.learned_weights() if layer.weights == "simplex" else ():
                if weights.requires_grad:
                    copy_full_(weights, project_to_simplex(full_tensor(weights)))

    def record(self) -> dict[str, dict[str, list[float]]]:
        record = {}
        for path, layer in self.systems.items():
            if layer.learned_weights():
                kappa, alpha = (full_tensor(weights).tolist() for weights in layer.branch_weights())
                record[path] = {"kappa": kappa, "alpha": alpha}
        return record

    def _is_frozen(self, progress: TrainingProgress) -> bool:
        return progress.step >= self.settings.frozen_from(progress.total_steps)

    def _depth(self) -> int:
        """N, of the model that has the systems, which may be in another, such as Lightning's."""
        configs = (getattr(module, "config", None) for module in self.model.modules())
        depths = (getattr(config, "num_hidden_layers", None) for config in configs)
        return int(next(filter(None, depths), len(self.systems)))


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

    The equations themselves, `presets["paper"]`, have no residual sum and no norm between attention
    and feed-forward, which does not see the token itself; docs/systems.md compares the two:

        y = Σᵢ αᵢ FFN(κᵢ oᵢ Wᵢ),  FFN(z) = ReLU(z W₁ + b₁) W₂ + b₂

    In a decoder's layer it follows an ordinary masked self-attention, in place of the attention
    over the encoder's output and of the feed-forward.

    A step of an optimizer leaves the simplex: `LearnBranchWeights`, the rule of training, projects
    κ and α back after each. The forward pass takes them as they are. Wᵢ has no bias: that of the
    values acts as one.

    Args:
        num_branches: M.
        ffn_dim: width of the feed-forward's hidden layer.
        inner: `"residual"` for residual sums and norms inside, or `"none"`.
        norm: with residual sums, where norms stand: behind each (`"post"`), or before each
            sub-layer (`"pre"`).
        ffn: `"split"`, where branch i has the i-th part of the hidden units for itself; `"shared"`,
            as in equation 7; or `"full"` for `ffn_dim` units of each branch's own, which is M
            feed-forwards of full size.
        weights: κ and α are learned on the `"simplex"`; or they are the `"softmax"` of what is
            learned, and start in the same way; or they are `"random"`, or `"uniform"` (1/M), or
            `"fixed"` where they start, and nothing is learned.
        start: where κ and α start: at a `"random"` point of the simplex, or `"even"`, at 1/M each.
        merged: κ and α are one vector, the parameter `alpha`.
        top_k: how many branches are summed, those of largest α, which is scaled to sum 1 over
            them; all of them if not given. The others are computed all the same.
        residual_dropout: with residual sums, dropout of the outputs of branches and feed-forward.
        ffn_dropout: dropout of the hidden layer, the same units in all branches of a shared one.
        ffn_activation: in the place of the ReLU of FFN; `"swiglu"` and `"geglu"` have a W₁ twice as
            wide.
        norm_kind: `"layer"` norms, or `"rms"`.
        norm_eps: ε of all norms; if not given 1e-5, and 1e-6 in those of queries and keys.
        bias: whether projections and feed-forward have one, `"qkv"`: the projections alone.
        embed_dim, options: as in `MultiHeadAttention`, which has the other options.

    Shape:
        As `MultiHeadAttention`. `routing.weights` is α, `(num_branches,)`, the same for all
        positions.

    Raises:
        ValueError: sizes or options that do not fit together; the message names the argument.

    Example:
        >>> layer = BranchedAttention(embed_dim=32, num_branches=4, ffn_dim=64)
        >>> out = layer(torch.randn(2, 5, 32))
        >>> out.output.shape, out.routing.weights.shape
        (torch.Size([2, 5, 32]), torch.Size([4]))
    """

    replaces = "feed-forward"
    routing_parameters = ("kappa", "alpha")
    output_parameters = ("branch_output",)
    rule = LearnBranchWeights
    unit = "branch"
    supported_ablations: ClassVar[tuple[str, ...]] = ablations_of("branch", heads=False)
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"inner": "none", "ffn": "shared", "start": "random"}
    }
    kappa: Tensor | None
    alpha: Tensor | None

    def __init__(
        self,
        embed_dim: int,
        num_branches: int,
        ffn_dim: int,
        *,
        inner: Literal["none", "residual"] = "residual",
        norm: Literal["post", "pre"] = "post",
        ffn: Literal["shared", "split", "full"] = "split",
        weights: Literal["simplex", "softmax", "random", "uniform", "fixed"] = "simplex",
        start: Literal["random", "even"] = "even",
        merged: bool = False,
        top_k: int | None = None,
        residual_dropout: float = 0.0,
        ffn_dropout: float = 0.0,
        ffn_activation: Activation = "relu",
        norm_kind: NormKind = "layer",
        norm_eps: float | None = None,
        bias: bool | Literal["qkv"] = True,
        **options: Any,
    ) -> None:
        check_choice("inner", inner, ("none", "residual"))
        check_choice("norm", norm, ("post", "pre"))
        check_choice("ffn", ffn, ("shared", "split", "full"))
        check_choice("start", start, ("random", "even"))
        check_choice("weights", weights, ("simplex", "softmax", "random", "uniform", "fixed"))
        check_choice("ffn_activation", ffn_activation, ACTIVATIONS)
        if ffn == "split" and ffn_dim % num_branches:
            raise ValueError(
                f"ffn_dim is {ffn_dim}, which num_branches = {num_branches} does not divide; "
                f"choose sizes that divide, or ffn='shared'"
            )
        if top_k is not None:
            check_range("top_k", top_k, 1, num_branches)
        if top_k is not None and weights not in ("simplex", "softmax"):
            raise ValueError(
                f"top_k is {top_k}, but weights={weights!r} learns no α by which to choose: leave "
                f"top_k out, or choose other weights"
            )
        if num_branches < 1 or (embed_dim % num_branches and "head_dim" not in options):
            raise ValueError(
                f"embed_dim is {embed_dim}, expected a multiple of num_branches = {num_branches}, "
                f"each of which has one head; choose sizes that divide, or give head_dim"
            )
        if norm_eps is not None:
            options["norm_eps"] = norm_eps  # of the norms of queries and keys
        super().__init__(embed_dim, num_branches, bias=bias, **options)
        self.num_branches, self.ffn_dim = num_branches, ffn_dim
        self.inner, self.pre_norm, self.holds_residual = inner, norm == "pre", inner == "residual"
        self.ffn, self.weights, self.start = ffn, weights, start
        self.merged, self.top_k = merged, top_k
        self.residual_dropout, self.ffn_dropout = residual_dropout, ffn_dropout
        self.ffn_activation = ffn_activation
        self.branch_output = nn.Parameter(torch.empty(num_branches, self.head_dim, embed_dim))
        for name in ("kappa", "alpha"):
            values = torch.empty(num_branches)
            if weights in ("random", "uniform") or (merged and name == "kappa"):
                self.register_parameter(name, None)
            elif weights == "fixed":
                self.register_buffer(name, values)
            else:
                self.register_parameter(name, nn.Parameter(values))
        if not self.learned_weights():
            self.rule = None  # type: ignore[misc, assignment]  # nobody has to train it by one
        self.hidden_dim = num_branches * ffn_dim if ffn == "full" else ffn_dim
        width = hidden_width(ffn_activation, self.hidden_dim)
        self.ffn_up = nn.Linear(embed_dim, width, bias=self.has_output_bias)
        self.ffn_down = nn.Linear(self.hidden_dim, embed_dim, bias=self.has_output_bias)
        eps = 1e-5 if norm_eps is None else norm_eps
        self.norm1: Any = make_norm(norm_kind, embed_dim, eps) if self.holds_residual else None
        self.norm2: Any = make_norm(norm_kind, embed_dim, eps) if self.holds_residual else None
        self.reset_parameters()

    @classmethod
    def from_config(cls, config: Any, site: str, **options: Any) -> Self:
        defaults = config.layer_options()
        defaults["num_branches"] = defaults.pop("num_heads")
        return cls(config.embed_dim, **{**defaults, **options})

    def reset_parameters(self) -> None:
        """Draws all parameters anew: maps by Glorot's rule, κ and α as `start` says.

        With residual sums the branches' maps together are the output projection of a layer. Without
        each is a map of its own, drawn M times as large, which makes up for κᵢ ≈ 1/M.
        """
        super().reset_parameters()
        branches = self.num_branches
        heads, gain = (branches, 1) if self.holds_residual else (1, branches)
        bound = gain * (6 / (self.embed_dim + heads * self.head_dim)) ** 0.5
        nn.init.uniform_(self.branch_output, -bound, bound)
        ffn_bound = (6 / (self.embed_dim + self.ffn_dim)) ** 0.5
        for linear in (self.ffn_up, self.ffn_down):
            nn.init.uniform_(linear.weight, -ffn_bound, ffn_bound)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
        for norm in (self.norm1, self.norm2):
            if norm is not None:
                norm.reset_parameters()
        for weights in (self.kappa, self.alpha):
            if weights is not None:
                self._draw(weights)

    @torch.no_grad()
    def _draw(self, weights: Tensor) -> None:
        even = 1 / self.num_branches
        if self.start == "even":
            nn.init.constant_(weights, math.log(even) if self.weights == "softmax" else even)
            return
        # No function of nn.init draws such points. `from_pretrained` has nn.init leave loaded
        # numbers as they are, so that NaN marks the numbers that are to be drawn.
        nn.init.constant_(weights, math.nan)
        point = random_simplex(self.num_branches).to(weights)
        point = point.log() if self.weights == "softmax" else point
        weights.copy_(torch.where(weights.isnan(), point, weights))

    def learned_weights(self) -> list[nn.Parameter]:
        """The parameters for κ and α: two; one if they are merged; none if they are not learned."""
        return [w for w in (self.kappa, self.alpha) if isinstance(w, nn.Parameter)]

    def branch_weights(self) -> tuple[Tensor, Tensor]:
        """The κ and α in use, `(num_branches,)` each."""
        alpha = self._weights_in_use(self.alpha)
        kappa = alpha if self.merged else self._weights_in_use(self.kappa)
        if self.top_k is not None:
            largest = alpha.topk(self.top_k)
            shares = largest.values / largest.values.sum()
            alpha = torch.zeros_like(alpha).scatter(0, largest.indices, shares)
        # Table 3 of the paper: even or random κ and α. Others leave every κ as it is.
        for ablation in self.active_ablations:
            if ablation.name in ("uniform", "random"):
                kappa_ablation = copy.copy(ablation)
                if not self.merged:  # else κ is α, also at random
                    kappa_ablation.random_key += " kappa"
                kappa = kappa_ablation.weights(kappa)
        return kappa, self.ablate_weights(alpha, alpha > 0 if self.top_k else None)

    def _weights_in_use(self, values: Tensor | None) -> Tensor:
        if values is not None:
            return values.softmax(0) if self.weights == "softmax" else values
        if self.training and self.weights == "random":
            return random_simplex(self.num_branches).to(self.branch_output)
        return self.branch_output.new_full((self.num_branches,), 1 / self.num_branches)

    def project(self, inputs: AttentionInputs) -> tuple[Tensor, Tensor, Tensor, Any]:
        if not self.holds_residual or not self.pre_norm:
            return super().project(inputs)
        query, key, value = self.norm1(inputs.query), inputs.key, inputs.value
        if inputs.is_self_attention:
            key = query if key is inputs.query else self.norm1(key)
            value = query if value is inputs.query else self.norm1(value)
        return super().project(inputs._replace(query=query, key=key, value=value))

    def combine(self, heads: Tensor, inputs: AttentionInputs, state: Any) -> tuple[Tensor, Routing]:
        kappa, alpha = self.branch_weights()
        heads = heads.transpose(0, 1).flatten(1, 2)  # (branches, rows = batch * queries, head_dim)
        if self.holds_residual:
            y = self._with_streams(inputs.query.flatten(0, 1), heads, kappa, alpha)
        else:
            y = self._without_streams(heads, kappa, alpha)
        return y.view_as(inputs.query), Routing(alpha)

    def _with_streams(self, x: Tensor, heads: Tensor, kappa: Tensor, alpha: Tensor) -> Tensor:
        """The layer whose branches have a residual stream each; x `(rows, embed_dim)`."""
        # A float, since PyTorch cannot export a tensor times an integer to ONNX.
        branches = float(self.num_branches)
        added = (heads * (branches * kappa).view(-1, 1, 1)) @ self.branch_output
        # Mκᵢ oᵢWᵢ, (branches, rows, embed_dim)
        added = F.dropout(added, self.residual_dropout, self.training)
        z = (self.norm2 if self.pre_norm else self.norm1)(x + added)
        fed = self._feed_forward(z, *self._maps(), branches if self.ffn == "split" else 1.0, alpha)
        fed = F.dropout(fed, self.residual_dropout, self.training)
        if self.pre_norm:
            # For even weights the ordinary layer's. The mean of the streams would hold an M-th of
            # the attention, and nothing behind it would restore the scale, as a post-norm does.
            return x + _weighted_sum(added, branches * alpha) + fed
        y: Tensor = self.norm2(_weighted_sum(z, alpha) + fed)
        return y

    def _without_streams(self, heads: Tensor, kappa: Tensor, alpha: Tensor) -> Tensor:
        """Σᵢ αᵢ FFN(κᵢ oᵢWᵢ), `(rows, embed_dim)`: the letter of the paper.

        Two rearrangements make all branches of a shared feed-forward cost what one does:

            Σᵢ αᵢ FFN(zᵢ) = (Σᵢ αᵢ ReLU(zᵢ W₁ + b₁)) W₂ + (Σᵢ αᵢ) b₂   one product with W₂
            zᵢ W₁ = κᵢ oᵢ (Wᵢ W₁)                                    maps head_dim, not embed_dim

        The products Wᵢ W₁ are made once for a batch, unless there are so few tokens (in decoding
        step by step) that they cost more than they save.
        """
        maps, bias = self._maps()
        scaled = self.branch_output * kappa.view(-1, 1, 1)
        rows, (d, units) = heads.size(1), maps.shape[-2:]
        folded_cost = self.head_dim * units * (d + rows)
        # An exported program goes one way, for batches of any size.
        if torch.compiler.is_exporting() or folded_cost < rows * d * (self.head_dim + units):
            return self._feed_forward(heads, scaled @ maps, bias, 1.0, alpha)
        return self._feed_forward(heads @ scaled, maps, bias, 1.0, alpha)

    def _maps(self) -> tuple[Tensor, Tensor | None]:
        """W₁ as `(embed_dim, units)` or, of each branch, `(branches, embed_dim, units)`; and b₁."""
        for linear in (self.ffn_up, self.ffn_down):
            if not isinstance(linear, nn.Linear):  # adapters (LoRA), which work when called
                raise TypeError(
                    f"ffn_up or ffn_down of a BranchedAttention is {type(linear).__name__}, "
                    f"expected nn.Linear, whose weight is divided among branches"
                )
        weight, bias = self.ffn_up.weight, self.ffn_up.bias
        if self.ffn == "shared":
            return weight.t(), bias
        bias = None if bias is None else bias.unflatten(0, (self.num_branches, 1, -1))
        return weight.unflatten(0, (self.num_branches, -1)).transpose(1, 2), bias

    def _feed_forward(
        self, x: Tensor, maps: Tensor, bias: Tensor | None, factor: float, alpha: Tensor
    ) -> Tensor:
        """factor · Σᵢ αᵢ f(xᵢAᵢ + b₁ᵢ) W₂ᵢ + Σᵢ αᵢ b₂, `(rows, embed_dim)`.

        x is `(branches, rows, width)`, and the maps A are `(branches, width, units)`, or one matrix
        for all; with a shared hidden layer W₂ is one too.
        """
        if self.ffn == "shared":
            hidden = self._shared_hidden(x, maps, bias, alpha)
        else:
            hidden = self._hidden(x, maps, bias)
            weights = (factor * alpha).to(hidden.dtype).view(-1, 1, 1)
            hidden = (hidden * weights).transpose(0, 1).flatten(1)  # side by side, (rows, ffn_dim)
        hidden = F.dropout(hidden, self.ffn_dropout, self.training)
        down = self.ffn_down
        return F.linear(hidden, down.weight, None if down.bias is None else down.bias * alpha.sum())

    def _hidden(self, x: Tensor, maps: Tensor, bias: Tensor | None) -> Tensor:
        """f(xᵢAᵢ + b₁ᵢ), `(branches, rows, units)`."""
        maps = maps.expand(len(x), -1, -1)
        hidden = torch.bmm(x, maps) if bias is None else torch.baddbmm(bias, x, maps)
        return ACTIVATIONS[self.ffn_activation](hidden)

    def _shared_hidden(self, x: Tensor, maps: Tensor, bias: Tensor | None, alpha: Tensor) -> Tensor:
        """Σᵢ αᵢ f(xᵢAᵢ + b₁), `(rows, units)`, without keeping the hidden layer of each branch.

        Kept, those of all branches would be M times what a feed-forward keeps. So the backward pass
        computes them again, some rows at a time.
        """

        def weighted(x: Tensor, maps: Tensor, bias: Tensor | None, alpha: Tensor) -> Tensor:
            hidden = self._hidden(x, maps, bias)
            return (alpha.to(hidden.dtype) @ hidden.flatten(1)).view(hidden.shape[1:])

        if is_traced():  # a compiler decides by itself what to keep
            return weighted(x, maps, bias, alpha)
        rows = max(1, (_GPU_CHUNK if x.is_cuda else _CHUNK) // (len(x) * maps.size(-1)))
        sums = [checkpointed(weighted, chunk, maps, bias, alpha) for chunk in x.split(rows, dim=1)]
        return torch.cat(sums) if len(sums) > 1 else sums[0]


# Hidden units of all branches at a time: 4 MiB in float32, which stay in the processor's cache. A
# GPU wants more work at once.
_CHUNK, _GPU_CHUNK = 2**20, 2**24


def _weighted_sum(z: Tensor, alpha: Tensor) -> Tensor:
    """Σᵢ αᵢzᵢ over the branches, `(rows, embed_dim)`."""
    return torch.einsum("irc,i->rc", z, alpha.to(z.dtype))
