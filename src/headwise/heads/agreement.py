"""Routing by agreement: heads vote for the parts of the output, and agreement decides.

Li et al. 2019, *Information Aggregation for Multi-Head Attention with Routing-by-Agreement*,
https://arxiv.org/abs/1904.03100. Votes are `(heads, tokens, capsules, dims)` here, and the weights
C appear as

    share = C_{h→n} / Σ_h C_{h→n}   of a head in a capsule    (heads, tokens, capsules)
    mass  = Σ_h C_{h→n}             weight of a capsule         (tokens, capsules)
"""

import functools
import math
import os
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.heads.ablation import HEADS
from headwise.heads.attention import Attention, AttentionInputs
from headwise.heads.system import Routing
from headwise.messages import check_choice, check_range
from headwise.ops.layers import checkpointed, is_traced

# The least variance of a capsule, which is 0 where heads agree exactly, and of standardised costs.
VARIANCE_FLOOR, COST_FLOOR = 1e-6, 1e-9
# log σ + this is the entropy of a normal distribution.
ENTROPY = (1 + math.log(2 * math.pi)) / 2
CapsuleActivation = Literal["sigmoid", "standardised", "none"]


class AgreementAttention(Attention):
    """Attention whose heads are combined by how far they agree, in place of an output projection.

    Li et al. 2019, *Information Aggregation for Multi-Head Attention with Routing-by-Agreement*,
    https://arxiv.org/abs/1904.03100.

        Ω_h     = ReLU(o_h W_h + b_h)       input capsule of head h, as wide as the output
        V_{h→n} = Ω_h W_{h→n}               its vote for output capsule n of N
        y       = [Ω_1; …; Ω_N]             routed from the votes, token by token

    by EM routing or by simple routing: `em_routing` and `simple_routing` have their equations. The
    routing of large calls is compiled by `torch.compile`, once, in about ten seconds; with
    `HEADWISE_COMPILE=0` in the environment it never is, as gradients of gradients need it.

    The paper leaves open the input of f_h in Ω_h = f_h(Ô), and whether W^O stays. One head's
    output, and no W^O, fits its counts of parameters. So does `inputs="all"`, as in the authors'
    public code (github.com/jack57lee/Diversify-MHA):

        Ω_h = Ω = ReLU(LayerNorm([o_1; …; o_H]) W + b)           the same for all heads

    without the ReLU in simple routing, whose C there is a softmax over heads; EM routing there has
    no activations. `presets["authors"]` has these options. Its votes have a bias there, and none
    here. `presets["paper"]` has the λ that the paper cites, where our default is 100.

    Args:
        embed_dim, num_heads, options: as in `MultiHeadAttention`, which has the same options.
        routing: `"em"`, or `"simple"`.
        inputs: whether an input capsule is computed from the output of one `"head"` or of `"all"`.
        squash: whether simple routing squashes the output capsules, so that their length is
            below 1; EM routing never does.
        normalize: whether the C of simple routing sum to 1 over the `"capsules"` of a head (the
            paper) or over the `"heads"` of a capsule.
        activation: of EM routing, `"sigmoid"` (the paper); `"standardised"`, with a β for each
            capsule; or `"none"`. The last two are in the authors' public code, at two commits.
        num_capsules: N, which divides `embed_dim`; `embed_dim` if not given, the paper's state.
        iterations: of the routing.
        inverse_temperature: of EM routing, the limit of λ over the iterations. With at most a
            quarter as many capsules as `embed_dim`, take a smaller one than 100, or
            `activation="standardised"`: activations start at 1 otherwise, and decide nothing.
        bias: whether the projections and the input capsules have one, `"qkv"`: the projections
            alone; votes have none.

    Shape:
        As `MultiHeadAttention`. `routing.weights` is `(batch, queries, heads)`: the mean over
        output capsules of a head's share of all weights C_{h→n}; it sums to 1 and has no gradient.

    Raises:
        ValueError: an option that is none of its values, or sizes that do not fit together.

    Example:
        >>> attention = AgreementAttention(embed_dim=32, num_heads=4)
        >>> out = attention(torch.randn(2, 5, 32), is_causal=True)
        >>> out.output.shape, out.routing.weights.shape
        (torch.Size([2, 5, 32]), torch.Size([2, 5, 4]))
    """

    # The capsules take the place of W^O; the votes and what follows is what routing adds.
    routing_parameters = ("vote_weight", "beta_a", "beta_u")
    output_parameters = ("capsule_weight", "capsule_bias")
    supported_ablations: ClassVar[tuple[str, ...]] = ("uniform", *HEADS)
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"inverse_temperature": 0.01},
        "authors": {"inputs": "all", "normalize": "heads", "activation": "none"},
    }

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        routing: Literal["em", "simple"] = "em",
        inputs: Literal["head", "all"] = "head",
        squash: bool = True,
        normalize: Literal["capsules", "heads"] = "capsules",
        activation: CapsuleActivation = "sigmoid",
        num_capsules: int | None = None,
        iterations: int = 3,
        inverse_temperature: float = 100.0,
        bias: bool | Literal["qkv"] = True,
        **options: Any,
    ) -> None:
        super().__init__(embed_dim, num_heads, bias=bias, **options)
        check_choice("routing", routing, ("em", "simple"))
        check_choice("inputs", inputs, ("head", "all"))
        check_choice("normalize", normalize, ("capsules", "heads"))
        check_choice("activation", activation, ("sigmoid", "standardised", "none"))
        check_range("iterations", iterations, 1)
        if num_capsules is not None and (num_capsules < 1 or embed_dim % num_capsules):
            raise ValueError(
                f"num_capsules is {num_capsules}, expected a divisor of embed_dim = {embed_dim}: a "
                f"capsule has embed_dim / num_capsules dimensions"
            )
        self.routing, self.capsule_inputs, self.squash = routing, inputs, squash
        self.normalize, self.activation = normalize, activation
        self.num_capsules = embed_dim if num_capsules is None else num_capsules
        self.iterations, self.inverse_temperature = iterations, inverse_temperature
        capsules = num_heads if inputs == "head" else 1
        read_dim = num_heads * self.head_dim // capsules
        self.capsule_norm = nn.LayerNorm(read_dim) if inputs == "all" else None
        self.capsule_weight = nn.Parameter(torch.empty(capsules, read_dim, embed_dim))
        has_bias = self.has_output_bias
        self.capsule_bias = nn.Parameter(torch.empty(capsules, embed_dim)) if has_bias else None
        self.vote_weight = nn.Parameter(torch.empty(num_heads, embed_dim, embed_dim))
        # Vectors of one entry, since fully_shard takes no scalars.
        betas = self.num_capsules if activation == "standardised" else 1
        has_betas = routing == "em" and activation != "none"
        self.beta_a = nn.Parameter(torch.empty(betas)) if has_betas else None
        self.beta_u = nn.Parameter(torch.empty(betas)) if has_betas else None
        self.reset_parameters()

    @property
    def out_proj(self) -> Any:
        """An attribute that PyTorch's layers read in evaluation; routing has no such map."""
        return self.in_proj_weight

    def reset_parameters(self) -> None:
        """Draws all parameters afresh: maps by the bounds of Glorot and He, biases and β_u at zero.

        Votes are drawn larger, by what gives the output about the scale of standard attention's.
        β_A starts at the cost of a capsule whose votes have a deviation of 1, which is about what
        they have in capsules of one dimension. So the activations start near one half there. In
        wider capsules the votes differ less, and costs are sums over dimensions: from four
        dimensions on a λ of 100 saturates the activations at 1, where they decide nothing.
        """
        super().reset_parameters()
        dims = self.embed_dim // self.num_capsules
        if self.capsule_norm is not None:
            self.capsule_norm.reset_parameters()
            # Unit scaling of both maps, as in the authors' code: ours draws the first √2 larger.
            # The outputs of a layer norm are several times as large as those of heads.
            gain = 0.5**0.5
        else:
            gain = self._vote_gain(dims) * self.num_heads**0.5
        # He's bound for the ReLU, and Glorot's for the votes, each of one head's own matrix.
        capsule_bound = (6 / self.capsule_weight.size(1)) ** 0.5
        vote_bound = gain * (3 / self.embed_dim) ** 0.5
        nn.init.uniform_(self.capsule_weight, -capsule_bound, capsule_bound)
        nn.init.uniform_(self.vote_weight, -vote_bound, vote_bound)
        for zeros in (self.capsule_bias, self.beta_a, self.beta_u):
            if zeros is not None:
                nn.init.zeros_(zeros)
        if self.beta_a is not None and self.activation == "sigmoid":
            nn.init.constant_(self.beta_a, dims * ENTROPY * self.num_heads / self.num_capsules)

    def _vote_gain(self, dims: int) -> float:
        """The factor of the votes' first bound over Glorot's bound and √H, for capsules of a width.

        No scale changes which heads EM routing hears, so its own is that of the output alone, which
        activations halve. Simple routing is saturated by large votes before anything is learned;
        wider capsules have larger products.
        """
        if self.routing == "em":
            return 2 / dims**0.5
        if self.squash:
            return 1.0 if dims == 1 else 0.75
        return 0.5 if dims == 1 else 0.4

    def ablate_heads(self, heads: Tensor) -> Tensor:
        """The same heads: `combine` leaves out the votes of heads that an ablation leaves out."""
        return heads

    def combine(self, heads: Tensor, inputs: AttentionInputs, state: Any) -> tuple[Tensor, Routing]:
        rows = heads.transpose(0, 1).flatten(1, 2)  # (heads, batch * queries, head_dim)
        if self.capsule_norm is not None:
            rows = self.capsule_norm(rows.transpose(0, 1).flatten(1)).unsqueeze(0)
        # (heads or 1, batch * queries, embed_dim) from here on
        if self.capsule_bias is None:
            capsules = torch.bmm(rows, self.capsule_weight)
        else:
            capsules = torch.baddbmm(self.capsule_bias.unsqueeze(1), rows, self.capsule_weight)
        if self.capsule_inputs == "head" or self.routing == "em":
            capsules = capsules.relu_()
        votes = torch.bmm(capsules.expand(self.num_heads, -1, -1), self.vote_weight)
        # Ablations: who has no vote, and `uniform`, the first iteration alone.
        iterations, voters = self.iterations, torch.arange(self.num_heads, device="cpu")
        for ablation in self.active_ablations:
            if ablation.name == "uniform":
                iterations = 1
            else:
                voters = voters[ablation.unit_mask(self.num_heads, voters.device)[voters] > 0]
        is_ablated = len(voters) < self.num_heads
        output, weights = self.route(votes[voters] if is_ablated else votes, iterations)
        if is_ablated:
            voters = voters.to(weights.device)
            weights = weights.new_zeros(votes.shape[:2]).index_copy(0, voters, weights)
        leading = inputs.query.shape[:2]
        return output.unflatten(0, leading), Routing(weights.t().unflatten(0, leading))

    def route(self, votes: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
        """Routes votes `(heads, tokens, embed_dim)`, each token by itself.

        Returns:
            The capsules, `(tokens, embed_dim)`, and the weights of the heads, `(heads, tokens)`.
        """
        options: dict[str, Any] = {"num_capsules": self.num_capsules, "iterations": iterations}
        if self.routing == "simple":
            options |= {"squash": self.squash, "normalize": self.normalize}
            return route_in_chunks(simple_routing, votes, **options)
        options |= {"inverse_temperature": self.inverse_temperature, "activation": self.activation}
        zero = votes.new_zeros(1)
        betas = (zero if beta is None else beta for beta in (self.beta_a, self.beta_u))
        return route_in_chunks(em_routing, votes, *betas, **options)


def simple_routing(
    votes: Tensor, *, num_capsules: int, iterations: int, squash: bool, normalize: str
) -> tuple[Tensor, Tensor]:
    """Simple routing, algorithm 1 of the paper: a vote agrees by its product with the capsule.

        C_{h→n} = softmax_n(B_{h→n}),  B = 0 at first
        Ω_n     = Σ_h C_{h→n} V_{h→n} / Σ_h C_{h→n}               (equation 7)
        Ω_n     = ‖Ω_n‖² / (1 + ‖Ω_n‖²) · Ω_n / ‖Ω_n‖              (equation 8, if `squash`)
        B_{h→n} += Ω_n · V_{h→n}

    Where `normalize` is `"heads"`, C is a softmax over h. For the shapes see
    `AgreementAttention.route`.
    """
    v = _by_capsule(votes, num_capsules)
    b = torch.zeros_like(v[..., 0])  # (heads, tokens, capsules)
    share = b + 1 / max(1, len(v))
    for i in range(iterations):
        output = (share.unsqueeze(-1) * v).sum(0)  # (tokens, capsules, dims)
        if squash:
            square = _over_dims(output.square()).unsqueeze(-1)
            # The root has no derivative at 0, where its factor makes it irrelevant.
            output = output * square.where(square > 0, 1.0).sqrt() / (1 + square)
        if i + 1 < iterations:
            b = b + _over_dims(output * v)
            share = (b if normalize == "heads" else b.log_softmax(-1)).softmax(0)
    return output.flatten(1).to(votes.dtype), share.detach().mean(-1)


def em_routing(
    votes: Tensor,
    beta_a: Tensor,
    beta_u: Tensor,
    *,
    num_capsules: int,
    iterations: int,
    inverse_temperature: float,
    activation: str,
) -> tuple[Tensor, Tensor]:
    """EM routing, algorithm 2: a vote agrees as far as its capsule's Gaussian expects it.

        M step   μ_n  = Σ_h C_{h→n} V_{h→n} / Σ_h C_{h→n}              (equation 10)
                 σ²_n = Σ_h C_{h→n} (V_{h→n} − μ_n)² / Σ_h C_{h→n}     (equation 11)
                 χ_n  = Σ_i (log σ_n^i + (1 + log 2π)/2) · Σ_h C_{h→n}
                 A_n  = sigmoid(λ (β_A − β_u Σ_h C_{h→n} − χ_n))
        E step   P_{h→n} = Π_i exp(−(V^i_{h→n} − μ^i_n)² / 2σ²) / √(2πσ²)
                 C_{h→n} = A_n P_{h→n} / Σ_n A_n P_{h→n}                (equation 12)
        output   Ω_n = A_n μ_n                                         (equation 9)

    with C = 1/N at first and λ = inverse_temperature · (1 − 0.95^(i+1)) in iteration i = 0, 1, …
    The paper follows Hinton et al. 2018, *Matrix Capsules with EM Routing*, and has a “fixed
    schedule” of λ, without its limit. With theirs, 0.01, A is 0.500 in capsules of one dimension,
    and routing is by the densities alone; at 100 activations vary by tenths and decide. The paper's
    printed density lacks a square root.

    `activation` says what A is: the `"sigmoid"` above; `"standardised"`, that of costs
    β_u Σ_h C_{h→n} + χ_n less their mean over capsules, over their deviation, at a λ that rises
    from 1 to 3; or `"none"`, A = 1. For the shapes see `AgreementAttention.route`.
    """
    v = _by_capsule(votes, num_capsules)
    beta_a, beta_u = beta_a.to(v.dtype), beta_u.to(v.dtype)
    # A processor takes fifty times as long for powers that vanish, and routing, once trained, is so
    # sure that most weights C do.
    min_log = math.log(2 * torch.finfo(v.dtype).smallest_normal)
    share = torch.full_like(v[..., 0], 1 / max(1, len(v)))  # (heads, tokens, capsules)
    mass = v.new_full(v.shape[1:3], len(v) / num_capsules)  # (tokens, capsules)
    for i in range(iterations):
        mean = (share.unsqueeze(-1) * v).sum(0)  # (tokens, capsules, dims)
        square = (v - mean).square()
        variance = (share.unsqueeze(-1) * square).sum(0).clamp(min=VARIANCE_FLOOR)
        log_sigma = _over_dims(variance.log() / 2)
        cost = (log_sigma + v.size(-1) * ENTROPY + beta_u) * mass
        rate = inverse_temperature * (1 - 0.95 ** (i + 1))
        if activation == "standardised":
            cost = cost - cost.mean(-1, keepdim=True)
            cost = cost / (cost.square().mean(-1, keepdim=True) + COST_FLOOR).sqrt()
            rate = 1 + 2 * i / max(1, iterations - 1)
        logit = rate * (beta_a - cost)
        if i + 1 < iterations:
            # Without the terms that are equal for all capsules: they cancel.
            prior = -log_sigma
            if activation != "none":
                # log sigmoid, which ONNX computes as the log of what may have become 0.
                prior = prior - torch.logaddexp(torch.zeros_like(logit), -logit)
            log_c = (prior - _over_dims(square / (2 * variance))).log_softmax(-1)
            # Of a capsule all C may vanish; its shares do not.
            share, mass = log_c.softmax(0), log_c.clamp(min=min_log).exp().sum(0)
    output = mean if activation == "none" else logit.sigmoid().unsqueeze(-1) * mean
    return output.flatten(1).to(votes.dtype), share.detach().mean(-1)


def _by_capsule(votes: Tensor, num_capsules: int) -> Tensor:
    """`(heads, tokens, capsules, dims)`, in float32 at least."""
    wide = torch.promote_types(votes.dtype, torch.float32)
    return votes.to(wide).unflatten(-1, (num_capsules, -1))


def _over_dims(x: Tensor) -> Tensor:
    """Sums a tensor over its last axis, the dimensions of a capsule."""
    return x.squeeze(-1) if x.size(-1) == 1 else x.sum(-1)


# How the routing is computed: some tokens at a time, since they have nothing to do with each other.
# The backward pass routes them again, and keeps the votes alone.

# Elements of the votes of a chunk: 1 MiB in float32, which stays in the processor's cache. Chunks
# are of one size, so that nothing is compiled again. A GPU wants larger chunks, since each of
# their many operators takes as long as a thousandth of a large one.
_CHUNK, _GPU_CHUNK = 2**18, 2**24
# Elements from which on compiling pays within some hundred steps of training: 2 MiB in float32.
_LARGE = 2**19


def route_in_chunks(
    routing: Callable[..., tuple[Tensor, Tensor]], votes: Tensor, *betas: Tensor, **options: Any
) -> tuple[Tensor, Tensor]:
    """A routing of votes `(heads, tokens, embed_dim)`, in chunks of tokens."""
    if is_traced():
        return routing(votes, *betas, **options)
    per_token = max(1, len(votes) * votes.size(2))
    size = max(1, (_GPU_CHUNK if votes.is_cuda else _CHUNK) // per_token)
    # By its size alone, so that a run that is resumed computes the same.
    setting = os.environ.get("HEADWISE_COMPILE", "1" if votes.numel() >= _LARGE else "0")
    compiles = setting == "1" and votes.size(1) >= size and votes.device.type in ("cpu", "cuda")
    run = _run_compiled if compiles else checkpointed
    results = []
    for chunk in votes.split(size, dim=1):
        tokens = chunk.size(1)
        if compiles:
            # Other strides, which depend on the number of all tokens, would be compiled again.
            chunk = F.pad(chunk, (0, 0, 0, size - tokens)).contiguous()
        output, weights = run(routing, chunk, *betas, **options)
        results.append((output[:tokens], weights[:, :tokens]))
    outputs, shares = zip(*results, strict=True)
    return results[0] if len(results) == 1 else (torch.cat(outputs), torch.cat(shares, dim=1))


@functools.cache
def _compiled_checkpointed() -> Callable[..., Any]:
    return torch.compile(checkpointed, dynamic=False)


def _run_compiled(*args: Any, **options: Any) -> Any:
    """Calls a compiled `checkpointed`; without a compiler PyTorch warns, and calls it as it is."""
    # By default PyTorch compiles 8 sizes and settings in a process, and runs others uncompiled.
    with torch._dynamo.config.patch(recompile_limit=256, suppress_errors=True):
        return _compiled_checkpointed()(*args, **options)
