"""Routing by agreement: heads vote for the parts of the output, and agreement decides."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from headwise.heads.agreement.declared import ABLATIONS, PRESETS, WORDS
from headwise.heads.agreement.em import EM
from headwise.heads.agreement.routing import route
from headwise.heads.agreement.simple import Simple
from headwise.heads.agreement.votes import (
    ENTROPY,
    INVERSE_TEMPERATURE,
    Activation,
    Normalize,
    Routed,
)
from headwise.heads.attention import Attention, Bias, Inputs, Sizes
from headwise.heads.system import Macs, Routing
from headwise.heads.torch_layers import NoPackedWeights
from headwise.ops.bounds import check_positive, checked


class AgreementAttention(Attention):
    """Attention whose heads are combined by how far they agree, in place of an output projection.

    Li et al. 2019, *Information Aggregation for Multi-Head Attention with Routing-by-Agreement*,
    https://arxiv.org/abs/1904.03100.

        Ω_h     = ReLU(o_h W_h + b_h)       input capsule of head h, as wide as the output
        V_{h→n} = Ω_h W_{h→n}               its vote for output capsule n of N
        y       = [Ω_1; …; Ω_N]             routed from the votes, token by token

    by `EM` or `Simple`, see `headwise.heads.agreement.em` and `.simple` for their equations. The
    routing of large calls is compiled, at the first of them, in about ten seconds; see
    `headwise.heads.agreement.routing`.

    The paper leaves open what f_h in Ω_h = f_h(Ô) sees, and whether W^O stays. One head's output,
    and no W^O, fits its counts of parameters. So does what the authors' public code has
    (github.com/jack57lee/Diversify-MHA): with `inputs="all"`

        Ω_h = Ω = ReLU(LayerNorm([o_1; …; o_H]) W + b)           the same for all heads

    without the ReLU in simple routing, whose C there is a softmax over heads; EM routing there has
    no activations. `presets["authors"]` has these options. Its votes have a bias there, and none
    here.

    Args:
        num_heads: H.
        routing: `"em"`, or `"simple"`.
        inputs: what an input capsule is made of: the output of one `"head"`, or of `"all"`.
        squash: whether simple routing squashes the output capsules, so that their length is
            below 1; EM routing never does.
        normalize: over what the C of simple routing sum to 1: `"capsules"` (the paper) or
            `"heads"`. See `Simple`.
        activation: of EM routing, `"sigmoid"` (the paper), `"standardised"`, with a β for each
            capsule, or `"none"`. See `EM`.
        num_capsules: N, which divides `embed_dim`; `embed_dim` if not given, the paper's choice.
        iterations: of the routing.
        inverse_temperature: of EM routing, the limit of λ over the iterations. See `EM`. With
            at most a quarter as many capsules as `embed_dim`, take a smaller one than 100, or
            `activation="standardised"`: activations start at 1 otherwise, and decide nothing.
        vote_gain: the factor by which the W_{h→} are drawn larger than Glorot's bound for the map
            of one head. If not given, the output starts at about the scale of standard attention;
            with `inputs="all"` at that of the authors' code, which is close to it.
        bias: whether the projections and the input capsules have one, `"qkv"`: the projections
            alone; votes have none.
        embed_dim, sizes: as in `MultiHeadAttention`, which has the same options.

    Shape:
        As `MultiHeadAttention`. `routing.weights` is `(batch, queries, heads)`: the mean over
        output capsules of a head's share of all weights C_{h→n}; it sums to 1 and has no gradient.
        `routing.heard`, `(batch, queries)`, is how many heads a capsule listens to. Where it nears
        1, routing is saturated, and a smaller `vote_gain` is worth a try.

    Example:
        >>> attention = AgreementAttention(embed_dim=32, num_heads=4)
        >>> out = attention(torch.randn(2, 5, 32), is_causal=True)
        >>> out.output.shape, out.routing.weights.shape
        (torch.Size([2, 5, 32]), torch.Size([2, 5, 4]))
    """

    out_proj: ClassVar[Any] = NoPackedWeights()
    # The capsules take the place of W^O; the votes and what follows is what routing adds.
    routing_parameters = ("vote_weight", "beta_a", "beta_u")
    output_parameters = ("capsule_weight", "capsule_bias")
    first_site_layers = "low"
    heads_are_units = True
    ablations = ABLATIONS
    presets = PRESETS
    unlike_standard = (
        "what a head has read goes through a ReLU and a routing that depends on all heads, in the "
        "place of a linear output projection"
    )
    words = WORDS
    shown = (*Attention.shown, "method", "num_capsules", "iterations")

    @checked
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        routing: Literal["em", "simple"] = "em",
        inputs: Literal["head", "all"] = "head",
        squash: bool = True,
        normalize: Normalize = "capsules",
        activation: Activation = "sigmoid",
        num_capsules: int | None = None,
        iterations: int = 3,
        inverse_temperature: float = INVERSE_TEMPERATURE,
        vote_gain: float | None = None,
        bias: Bias = True,
        **sizes: Unpack[Sizes],
    ) -> None:
        super().__init__(embed_dim, num_heads, **sizes)
        if num_capsules is not None and (num_capsules < 1 or embed_dim % num_capsules):
            raise ValueError(
                f"num_capsules is {num_capsules}, expected a divisor of embed_dim = {embed_dim}: a "
                f"capsule has embed_dim / num_capsules dimensions"
            )
        check_positive(iterations=iterations, inverse_temperature=inverse_temperature)
        check_positive(vote_gain=1.0 if vote_gain is None else vote_gain)
        self.method = routing
        self.inputs = inputs
        self.squash = squash
        self.normalize = normalize
        self.activation = activation
        self.num_capsules = embed_dim if num_capsules is None else num_capsules
        self.iterations = iterations
        self.inverse_temperature = inverse_temperature
        if vote_gain is None and inputs == "all":
            # Unit scaling of both maps, as in the authors' code: ours draws the first √2 larger.
            # What a layer norm gives them is several times what heads read.
            vote_gain = 0.5**0.5
        elif vote_gain is None:
            dims = embed_dim // self.num_capsules
            vote_gain = _first_gain(routing, squash, dims) * num_heads**0.5
        self.vote_gain = vote_gain
        self.dense_projections(bias)
        capsules = num_heads if inputs == "head" else 1
        read_dim = num_heads * self.head_dim // capsules
        self.capsule_norm = nn.LayerNorm(read_dim) if inputs == "all" else None
        self.capsule_weight = nn.Parameter(torch.empty(capsules, read_dim, embed_dim))
        has_bias = bias is True
        self.capsule_bias = nn.Parameter(torch.empty(capsules, embed_dim)) if has_bias else None
        self.vote_weight = nn.Parameter(torch.empty(num_heads, embed_dim, embed_dim))
        # Vectors of one entry, since fully_shard takes no scalars.
        betas = self.num_capsules if activation == "standardised" else 1
        has_betas = routing == "em" and activation != "none"
        self.beta_a = nn.Parameter(torch.empty(betas)) if has_betas else None
        self.beta_u = nn.Parameter(torch.empty(betas)) if has_betas else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters afresh: maps by the bounds of Glorot and He, biases and β_u at zero.

        β_A starts at the cost of a capsule whose votes have a deviation of 1, which is about what
        they have in capsules of one dimension. So the activations start near one half there. In
        wider capsules the votes differ less, and costs are sums over dimensions: from four
        dimensions on a λ of 100 saturates the activations at 1, where they decide nothing.
        """
        self.reset_projections()
        # He's bound for the ReLU, and Glorot's for the votes, each of one head's own matrix.
        capsule_bound = (6 / self.capsule_weight.size(1)) ** 0.5
        if self.capsule_norm is not None:
            self.capsule_norm.reset_parameters()
        vote_bound = self.vote_gain * (3 / self.embed_dim) ** 0.5
        nn.init.uniform_(self.capsule_weight, -capsule_bound, capsule_bound)
        nn.init.uniform_(self.vote_weight, -vote_bound, vote_bound)
        for zeros in (self.capsule_bias, self.beta_a, self.beta_u):
            if zeros is not None:
                nn.init.zeros_(zeros)
        if self.beta_a is not None and self.activation == "sigmoid":
            dims = self.embed_dim // self.num_capsules
            nn.init.constant_(self.beta_a, dims * ENTROPY * self.num_heads / self.num_capsules)

    def combine(self, heads: Tensor, inputs: Inputs, choice: Any) -> tuple[Tensor, Routing]:
        rows = heads.transpose(0, 1).flatten(1, 2)  # (heads, batch * queries, head_dim)
        if self.capsule_norm is not None:
            rows = self.capsule_norm(rows.transpose(0, 1).flatten(1)).unsqueeze(0)
        # (heads or 1, batch * queries, embed_dim) from here on
        if self.capsule_bias is None:
            capsules = torch.bmm(rows, self.capsule_weight)
        else:
            capsules = torch.baddbmm(self.capsule_bias.unsqueeze(1), rows, self.capsule_weight)
        if self.inputs == "head" or self.method == "em":
            capsules = capsules.relu_()
        votes = torch.bmm(capsules.expand(self.num_heads, -1, -1), self.vote_weight)
        votes = votes.transpose(0, 1)  # (batch * queries, heads, embed_dim)
        ablated = self.ablation is not None and not self.training
        routed = self.ablation(self._route, votes) if ablated else self._route(votes)
        output, weights, heard = (x.unflatten(0, inputs.query.shape[:2]) for x in routed)
        return output, Routing(weights, heard=heard)

    def _route(self, votes: Tensor, **how: Any) -> Routed:
        """The routing of any number of heads; `how` wins over the module's own settings."""
        how = {"num_capsules": self.num_capsules, "iterations": self.iterations, **how}
        if self.method == "simple":
            return route(Simple(squash=self.squash, normalize=self.normalize, **how), votes)
        nothing = votes.new_zeros(1)
        beta_a = nothing if self.beta_a is None else self.beta_a
        beta_u = nothing if self.beta_u is None else self.beta_u
        how |= {"inverse_temperature": self.inverse_temperature, "activation": self.activation}
        return route(EM(**how), votes, beta_a, beta_u)

    def ablation_ranges(self) -> dict[str, range]:
        return {"head": range(self.num_heads), "iterations": range(1, self.iterations)}

    def macs(self, queries: int, keys: int, *, is_causal: bool = False) -> Macs:
        combining = queries * (self.capsule_weight.numel() + self.vote_weight.numel())
        return super().macs(queries, keys, is_causal=is_causal) + Macs(combining, 0)


def _first_gain(routing: str, squash: bool, dims: int) -> float:
    """By how much votes start above Glorot's bound, over √H, for capsules of so many dimensions.

    No scale changes which heads EM routing hears, so its own is that of the output alone, which
    activations halve. Simple routing is saturated by large votes before anything is learned; wider
    capsules have larger products.
    """
    if routing == "em":
        return 2 / dims**0.5
    if squash:
        return 1.0 if dims == 1 else 0.75
    return 0.5 if dims == 1 else 0.4
