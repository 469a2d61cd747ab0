"""Mixture of attention heads (MoA): each token selects its own k of E heads.

The class comes first; below it are the products of tokens with the matrices of their experts, and
the losses of the router.
"""

import re
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from headwise.heads.ablation import ablations_of
from headwise.heads.attention import Attention, AttentionInputs, draw_linear
from headwise.heads.masks import real_positions
from headwise.heads.system import Routing
from headwise.messages import check_choice, check_range
from headwise.ops.layers import in_float32, is_traced


class TokenRouting(NamedTuple):
    """The experts that a router has selected for each token."""

    indices: Tensor  # numbers of the experts, (batch, queries, top_k)
    scales: Tensor  # their weights, (batch, queries, top_k)
    # How many of them count, the first ones: an ablation may leave fewer than top_k.
    num_selected: int
    logits: Tensor  # the router's, (batch, queries, experts)
    matmul: "ExpertMatmul"


class MixtureOfAttentionHeads(Attention):
    """Attention in which each token selects k of E experts; all share one head of keys and values.

    Zhang et al. 2022, *Mixture of Attention Heads: Selecting Attention Heads Per Token*,
    https://arxiv.org/abs/2210.05144 (MoA).

        p  = softmax(x W_g),  G(x) = the k experts of largest p,  wᵢ = pᵢ / detach(Σ_{j∈G} pⱼ)
        oᵢ = softmax(x Wᵢ^q (K W^k)ᵀ / √D) V W^v
        y  = Σ_{i∈G(x)} wᵢ oᵢ Wᵢ^o
        loss = α · E Σᵢ fᵢPᵢ + β · mean(log Σᵢ exp(x W_g)ᵢ)²

    A decoding cache is one head wide. f and P are the tokens and the probability that each expert
    gets, each normalised to sum 1; padding counts in neither loss. The router starts at zero, so
    that all experts are equal, and computes in float32, under autocast too. With all experts chosen
    (k = E) and equal weights it is multi-query attention.

    Args:
        num_experts: E.
        top_k: k, how many experts a token selects.
        head_dim: D, width of an expert's head.
        normalize_weights: divide by the sum of the selected probabilities, as in the paper's
            equation 9; False is what the authors' code does.
        balance: whether the balance loss is of the whole `"batch"`, as in the authors' code, or of
            each `"sequence"`, as the paper writes it.
        balance_coef, z_coef: α and β.
        per_batch: divide the losses by the number of queries of this attention that are no padding.
            The authors' code adds them once to a sum over target tokens, which is the same in a
            decoder; by default they are added to a mean.
        noisy: add noise to the router's logits in training, of a learned size (equation 3).
        num_key_value_heads: how many heads each expert has, one for each shared head of keys. Shen
            et al. 2024, *JetMoE*, https://arxiv.org/abs/2404.07413.
        bias: whether the shared projections of keys and values have one; the equations lack it.
        embed_dim, options: `kdim`, `vdim`, `dropout`, `qk_norm` and `norm_eps` are as in
            `MultiHeadAttention`.

    Shape:
        As `MultiHeadAttention`. `routing.weights` is `(batch, queries, experts)`, zero at experts
        not chosen; `routing.indices` is `(batch, queries, top_k)`. Attention weights are those of
        the chosen, in that order; with several heads of keys those of the first come first.
        `routing.loss` is None in generation, where there is a cache and no gradient.

    Raises:
        ValueError: `top_k` above `num_experts`, or an unknown `balance`.

    Example:
        >>> attention = MixtureOfAttentionHeads(32, num_experts=6, top_k=2, head_dim=8)
        >>> out = attention(torch.randn(2, 5, 32))
        >>> out.output.shape, out.routing.weights.shape, out.routing.indices.shape
        (torch.Size([2, 5, 32]), torch.Size([2, 5, 6]), torch.Size([2, 5, 2]))
    """

    routing_parameters = ("router",)
    output_parameters = ("expert_output",)
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"balance": "sequence"},
        "authors": {"normalize_weights": False, "per_batch": True},
    }
    unit = "expert"
    supported_ablations = ablations_of("expert", heads=False)

    def __init__(
        self,
        embed_dim: int,
        num_experts: int,
        top_k: int,
        head_dim: int,
        *,
        normalize_weights: bool = True,
        balance: Literal["batch", "sequence"] = "batch",
        balance_coef: float = 0.01,
        z_coef: float = 0.001,
        per_batch: bool = False,
        noisy: bool = False,
        num_key_value_heads: int = 1,
        bias: bool | Literal["qkv"] = False,
        **options: Any,
    ) -> None:
        check_choice("balance", balance, ("batch", "sequence"))
        check_range("top_k", top_k, 1, num_experts)
        options |= {"head_dim": head_dim, "num_key_value_heads": num_key_value_heads, "bias": bias}
        super().__init__(embed_dim, top_k * num_key_value_heads, **options, dense=False)
        width = num_key_value_heads * head_dim  # of an expert
        self.num_experts, self.top_k = num_experts, top_k
        self.normalize_weights = normalize_weights
        self.balance = balance
        self.balance_coef, self.z_coef, self.per_batch = balance_coef, z_coef, per_batch
        self.router = nn.Linear(embed_dim, num_experts, bias=False)
        self.router_noise = nn.Linear(embed_dim, num_experts, bias=False) if noisy else None
        self.k_proj = nn.Linear(self.kdim, width, bias=bool(bias))
        self.v_proj = nn.Linear(self.vdim, width, bias=bool(bias))
        self.expert_query = nn.Parameter(torch.empty(num_experts, embed_dim, width))
        self.expert_output = nn.Parameter(torch.empty(num_experts, width, embed_dim))
        self.reset_parameters()

    @classmethod
    def from_config(
        cls, config: Any, site: str, *, size: str | None = None, **options: Any
    ) -> Self:
        """Also by the paper's shorthand for sizes, such as `8K32E64D`.

        If nothing is said, heads are twice as wide as the standard ones, as in the paper's MoA
        base: with one head of keys for all of them, narrow ones lose much.
        """
        unused = ("num_heads", "head_dim", "bias")  # by the equations there are no biases
        defaults = {k: v for k, v in config.attention_options().items() if k not in unused}
        options = {**defaults, **({} if size is None else parse_size(size)), **options}
        key_heads = options.get("num_key_value_heads", 1)
        options.setdefault("head_dim", max(1, 2 * config.embed_dim // config.num_heads))
        options.setdefault("top_k", max(1, config.num_heads // key_heads))
        options.setdefault("num_experts", 2 * options["top_k"])
        return cls(config.embed_dim, **options)

    @property
    def num_units(self) -> int:
        return self.num_experts

    @property
    def out_proj(self) -> Any:
        """An attribute that `nn.TransformerEncoder` reads beside `in_proj_weight`."""
        return self.in_proj_weight

    def reset_parameters(self) -> None:
        """Draws all maps afresh but the router, which starts at zero."""
        for linear in (self.router, self.router_noise):
            if linear is not None:
                nn.init.zeros_(linear.weight)
        for proj in (self.k_proj, self.v_proj):
            draw_linear(proj)
        # Each expert is a map of its own, so Glorot's bound is that of one expert.
        bound = (6 / (self.embed_dim + self.expert_query.size(2))) ** 0.5
        nn.init.uniform_(self.expert_query, -bound, bound)
        nn.init.uniform_(self.expert_output, -bound, bound)
        for norm in (self.q_norm, self.k_norm):
            if norm is not None:
                norm.reset_parameters()

    def project(self, inputs: AttentionInputs) -> tuple[Tensor, Tensor, Tensor, TokenRouting]:
        state = self.route(inputs.query)
        q = state.matmul.project(inputs.query.flatten(0, 1), self.expert_query)
        q = q.unflatten(0, inputs.query.shape[:2])
        q = q.unflatten(-1, (self.num_key_value_heads, self.head_dim))
        # (batch, queries, top_k, key heads, head_dim) to (batch, key heads * top_k, queries, …)
        q = self.norm_and_rotate(q.permute(0, 3, 2, 1, 4).flatten(1, 2), self.q_norm, inputs.rotary)
        return q, *self.keys_and_values(inputs), state

    def route(self, query: Tensor) -> TokenRouting:
        """The experts of each token, and their weights."""
        logits = in_float32(self.router, query)
        if self.router_noise is not None and self.training:
            noise_scale = F.softplus(in_float32(self.router_noise, query))
            logits = logits + torch.randn_like(logits) * noise_scale
        logits, num_selected = self.ablate_logits(logits, self.top_k)
        scales = logits.softmax(-1)
        if num_selected == self.num_experts:
            indices = torch.arange(num_selected, device=logits.device).expand_as(logits)
            matmul = ExpertMatmul(None, query, self.expert_query)
        else:
            scales, indices = scales.topk(self.top_k, dim=-1)
            scales = scales[..., :num_selected]
            matmul = ExpertMatmul(indices.flatten(0, 1), query, self.expert_query)
        if self.normalize_weights:
            scales = scales / scales.sum(-1, keepdim=True).detach()
        scales = self.ablate_weights(scales, selected=True)
        if num_selected < self.top_k:  # as many heads as always, since masks may be made for each
            scales = F.pad(scales, (0, self.top_k - num_selected))
        return TokenRouting(indices, scales, num_selected, logits, matmul)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        # A mask that is the same for all heads and queries: (1, keys) or (batch, 1, 1, keys).
        is_shared = mask is None or mask.size(-2) == (1 if mask.dim() == 2 else mask.size(1)) == 1
        if is_causal or not is_shared or self.num_key_value_heads > 1:
            return super().attend(q, k, v, mask, is_causal)
        # The chosen heads are then further queries to the one head of keys, which is read once.
        folded = q.transpose(1, 2).flatten(1, 2).unsqueeze(1)  # (batch, 1, queries * top_k, D)
        heads = super().attend(folded, k, v, mask, False)
        return heads.reshape(q.size(0), q.size(2), q.size(1), v.size(-1)).transpose(1, 2)

    def combine(
        self, heads: Tensor, inputs: AttentionInputs, state: TokenRouting
    ) -> tuple[Tensor, Routing]:
        heads = heads.unflatten(1, (self.num_key_value_heads, -1)).permute(0, 3, 2, 1, 4).flatten(3)
        # Scaling the heads costs head_dim for each expert, scaling their products embed_dim.
        scaled = heads * state.scales.unsqueeze(-1).to(heads.dtype)
        output = state.matmul.combine(scaled.flatten(0, 1), self.expert_output)
        weights = torch.zeros_like(state.logits).scatter(-1, state.indices, state.scales)
        indices = state.indices[..., : state.num_selected]
        loss = None
        if inputs.cache is None or torch.is_grad_enabled():  # nothing learns from generation
            balance, z, tokens = router_losses(
                state.logits, indices, inputs.query_padding, per_sequence=self.balance == "sequence"
            )
            loss = self.balance_coef * balance + self.z_coef * z
            loss = loss / tokens if self.per_batch else loss
        return output.unflatten(0, inputs.query.shape[:2]), Routing(weights, indices, loss)


MoA = MixtureOfAttentionHeads  # the name that papers and tables use


def parse_size(size: str) -> dict[str, int]:
    """The paper's shorthand for a size as arguments of the constructor.

    >>> parse_size("8K32E64D")
    {'top_k': 8, 'num_experts': 32, 'head_dim': 64}
    """
    match = re.fullmatch(r"(\d+)K(\d+)E(\d+)D", str(size))
    if match is None:
        raise ValueError(
            f"size is {size!r}, expected the form 8K32E64D (top 8 of 32 experts of 64 dimensions)"
        )
    return dict(zip(("top_k", "num_experts", "head_dim"), map(int, match.groups()), strict=True))


class ExpertMatmul:
    """Multiplies each token by the matrices of the experts that it has chosen.

        project    y[n, j] = x[n] W[e(n, j)]             queries of the experts e(n, 1) … e(n, k)
        combine    y[n]    = Σ_j o[n, j] W[e(n, j)]      the sum of their outputs

    `backend` is one of four ways:

        all      the matrices of all experts as one; products of other experts are left out
        few      for decoding on a CPU: sums of rows of the matrices, without copies
        sorted   on a CPU: tokens sorted by expert, whose matrix multiplies one dense block
        kernel   on a GPU: the same by one kernel, which takes bfloat16

    Args:
        indices: `(tokens, top_k)`; None where all experts are chosen, in their order.
        x: the tokens, `(…, embed_dim)`.
        weight: of all experts, `(experts, embed_dim, width)`.
    """

    def __init__(self, indices: Tensor | None, x: Tensor, weight: Tensor) -> None:
        self.indices, self.backend, self.dtype = indices, "all", x.dtype
        if not x.is_meta and x.dtype != torch.float64 and torch.is_autocast_enabled(x.device.type):
            self.dtype = torch.get_autocast_dtype(x.device.type)
        # Compilers and transforms ask for shapes that do not depend on the state.
        if indices is None or is_traced():
            return
        if x.is_cpu:
            self.backend = "few" if len(indices) <= 32 and not torch.is_grad_enabled() else "sorted"
            # Small products are several times as fast in float32 as in bf16 there.
            self.compute_dtype = torch.promote_types(self.dtype, torch.float32)
        # Up to 8 times the products take less time on a GPU than to move tokens to their experts.
        elif x.is_meta or (x.is_cuda and len(weight) > 8 * indices.size(1)):
            fits = self.dtype == torch.bfloat16 and all(n % 8 == 0 for n in weight.shape[1:])
            self.backend = "kernel" if x.is_meta or (fits and len(indices) > 0) else "all"
            self.compute_dtype = self.dtype
        if self.backend in ("sorted", "kernel"):
            experts, self.order = indices.flatten().sort(stable=True)
            all_experts = torch.arange(len(weight), device=x.device)
            ends = torch.searchsorted(experts, all_experts, right=True)
            self.counts = ends.diff(prepend=ends.new_zeros(1))  # of each expert's choices

    def project(self, x: Tensor, weight: Tensor) -> Tensor:
        """x `(tokens, a)` and W `(experts, a, b)` to `(tokens, top_k, b)`."""
        if self.backend == "all":
            if torch.is_grad_enabled():
                y = (x @ weight.transpose(0, 1).flatten(1)).unflatten(1, weight.shape[::2])
            else:  # in decoding, to lay the matrices side by side would take longer than this
                y = (x @ weight).transpose(0, 1)
            if self.indices is None:
                return y
            return y.gather(1, self.indices.unsqueeze(-1).expand(-1, -1, y.size(2)))
        assert self.indices is not None
        x, weight = x.to(self.compute_dtype), weight.to(self.compute_dtype)
        top_k = self.indices.size(1)
        if self.backend == "few":
            y = sum_rows(x.repeat_interleave(top_k, 0), weight, self.indices.view(-1, 1))
        elif self.backend == "sorted":
            pairs = SortedPairs(self.order // top_k, self.order, self.counts.tolist())
            y = _BlockedMatmul.apply(x, weight, pairs, len(self.order))
        else:
            # Each token's gradients are summed in one order, which index_select would not do.
            y = self.by_kernel(x.repeat_interleave(top_k, 0), weight)
        return y.view(*self.indices.shape, weight.size(2)).to(self.dtype)

    def combine(self, heads: Tensor, weight: Tensor) -> Tensor:
        """o `(tokens, top_k, a)` and W `(experts, a, b)` to `(tokens, b)`."""
        if self.backend == "all":
            if self.indices is not None:
                zeros = heads.new_zeros(heads.size(0), *weight.shape[:2])  # for all experts
                heads = zeros.scatter(1, self.indices.unsqueeze(-1).expand_as(heads), heads)
            return heads.flatten(1) @ weight.flatten(0, 1)
        assert self.indices is not None
        heads, weight = heads.to(self.compute_dtype), weight.to(self.compute_dtype)
        if self.backend == "few":
            y = sum_rows(heads.flatten(1), weight, self.indices)
        elif self.backend == "sorted":
            pairs = SortedPairs(self.order, self.order // heads.size(1), self.counts.tolist())
            y = _BlockedMatmul.apply(heads.flatten(0, 1), weight, pairs, len(heads))
        else:
            products = self.by_kernel(heads.flatten(0, 1), weight)
            y = products.view(*self.indices.shape, weight.size(2)).sum(1)
        return y.to(self.dtype)

    def by_kernel(self, rows: Tensor, weight: Tensor) -> Tensor:
        """Each row by the matrix of its expert: `(tokens * top_k, a)` to `(…, b)`."""
        rows = rows.index_select(0, self.order)
        if rows.is_meta:  # where costs are counted nobody knows who has chosen what
            products = rows @ weight[0]
        else:
            # The kernel may leave the gradient of an expert without rows unwritten.
            weight = weight.where((self.counts > 0)[:, None, None], 0.0)
            products = F.grouped_mm(rows, weight, offs=self.counts.cumsum(0, dtype=torch.int32))
        return torch.empty_like(products).index_copy_(0, self.order, products)


class SortedPairs(NamedTuple):
    """Pairs of a token and a selected expert, sorted by expert."""

    source: Tensor  # the row of the input that a pair reads
    target: Tensor  # the row of the output that its product is added to
    counts: list[int]  # the number of pairs of each expert

    def blocks(self) -> Iterator[tuple[slice, slice, list[int]]]:
        """Slices of experts and of their pairs, and the number of pairs of each expert.

        A slice has about 1,024 pairs, whose rows stay in the processor's cache.
        """
        first = start = 0
        for last in range(1, len(self.counts) + 1):
            size = sum(self.counts[first:last])
            if size >= 1024 or last == len(self.counts):
                yield slice(first, last), slice(start, start + size), self.counts[first:last]
                first, start = last, start + size


def add_products(x: Tensor, weight: Tensor, pairs: SortedPairs, rows: int) -> Tensor:
    """y[target] = Σ x[source] W[expert] over the pairs: x `(…, a)` to `(rows, b)`."""
    y = x.new_zeros(rows, weight.size(2))
    for experts, block, counts in pairs.blocks():
        products = x.new_empty(sum(counts), weight.size(2))
        parts = x.index_select(0, pairs.source[block]).split(counts)
        for part, matrix, out in zip(parts, weight[experts], products.split(counts), strict=True):
            torch.mm(part, matrix, out=out)
        y.index_add_(0, pairs.target[block], products)
    return y


class _BlockedMatmul(torch.autograd.Function):
    """`add_products`, with gradients that are computed block by block too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, pairs: SortedPairs, rows: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.pairs = pairs
        return add_products(x, weight, pairs, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        source, target, counts = ctx.pairs
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = add_products(grad, weight.mT, SortedPairs(target, source, counts), len(x))
        if ctx.needs_input_grad[1]:
            grad_weight = torch.empty_like(weight)
            for experts, block, sizes in ctx.pairs.blocks():
                left = x.index_select(0, source[block]).split(sizes)
                right = grad.index_select(0, target[block]).split(sizes)
                for a, b, out in zip(left, right, grad_weight[experts], strict=True):
                    torch.mm(a.t(), b, out=out)
        return grad_x, grad_weight, None, None


def sum_rows(factors: Tensor, weight: Tensor, experts: Tensor) -> Tensor:
    """Sums of all rows of some experts' matrices, each times its factor: a bag of embeddings.

    From factors `(sums, n * a)`, W `(experts, a, b)` and experts `(sums, n)` to `(sums, b)`.
    """
    rows = experts.unsqueeze(-1) * weight.size(1) + torch.arange(weight.size(1))
    return F.embedding_bag(
        rows.flatten(1), weight.flatten(0, 1), mode="sum", per_sample_weights=factors
    )


def router_losses(
    logits: Tensor, indices: Tensor, padding: Tensor | None, *, per_sequence: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Balance loss, z-loss, and how many real tokens they are of, at least 1 (equations 13 to 16).

        L_a = E Σᵢ fᵢ Pᵢ        f, P: tokens and probability given to expert i, each summing to 1
        L_z = mean over tokens of (log Σᵢ exp xᵢ)²

    Args:
        logits: `(batch, time, experts)`, the router's x.
        indices: `(batch, time, top_k)`, the experts chosen.
        padding: boolean `(batch, time)`, `True` at padding, which is left out.
        per_sequence: L_a is of each sequence that is not padding alone, and the mean of these.
    """
    real = real_positions(logits, padding)
    if not per_sequence:  # all tokens as if they were of one sequence
        logits, indices, real = (x.flatten(0, 1).unsqueeze(0) for x in (logits, indices, real))
    counts = real.sum(1).clamp(min=1)
    chosen = torch.zeros_like(logits).scatter(-1, indices, 1.0)
    share = (chosen * real.unsqueeze(-1)).sum(1)  # (sequences, experts)
    mass = (logits.softmax(-1) * real.unsqueeze(-1)).sum(1)
    products = (share * mass).sum(-1) / (counts.square() * indices.size(-1))
    sequences = real.any(1).sum().clamp(min=1)
    tokens = real.sum().clamp(min=1)
    z = (logits.logsumexp(-1).square() * real).sum() / tokens
    return logits.size(-1) * products.sum() / sequences, z, tokens
