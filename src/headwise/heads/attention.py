"""Attention in three steps, each of which a subclass may change: project, attend, combine."""

from typing import Any, ClassVar, Literal, NamedTuple, TypedDict

import torch
from torch import Tensor, nn
from typing_extensions import Self

from headwise.heads.ablations import Changed, Heads
from headwise.heads.cache import AttentionCache
from headwise.heads.heads_read import HeadsRead, Observer
from headwise.heads.system import AttentionOutput, Macs, Place, Routing, System
from headwise.heads.torch_layers import InTorchLayers
from headwise.ops.attention import Implementation, attention_weights, dot_product_attention
from headwise.ops.bounds import check_among, check_positive, checked
from headwise.ops.masks import (
    causal_mask,
    check_attention_mask,
    check_inputs,
    check_padding_mask,
    merge_masks,
    of_queries,
    padding_positions,
)
from headwise.ops.norms import norm_of
from headwise.ops.recompute import is_repeated
from headwise.ops.rotary import Rotary

Bias = bool | Literal["qkv"]


class Sizes(TypedDict, total=False):
    """Options that most attentions have; see `headwise.MultiHeadAttention` for what they mean."""

    head_dim: int | None
    num_key_value_heads: int | None
    kdim: int | None
    vdim: int | None
    dropout: float
    qk_norm: bool
    norm_eps: float


class Projections(Sizes, total=False):
    """The options of standard attention."""

    bias: Bias


class Inputs(NamedTuple):
    """What one call was given, as the three steps see it; the query in the place of what was not.

    Attributes:
        query, key, value: `(batch, queries, embed_dim)`, `(batch, keys, kdim)` and `(…, vdim)`.
        query_padding: boolean `(batch, queries)`, `True` at padding; None if none is known.
        is_causal, attn_mask, cache: as they were given.
        is_self_attention: whether queries and keys are the same positions.
        rotary: the turns of their positions, or None.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    query_padding: Tensor | None
    is_causal: bool
    attn_mask: Tensor | None
    cache: AttentionCache | None
    is_self_attention: bool = False
    rotary: Rotary | None = None


class Projected(NamedTuple):
    """Queries, keys and values by head, and what projecting decided for `combine` to use.

    `attend` and `attention_weights` get q as `placed` leaves it: what they need beside queries,
    such as a number for each head and position, stands in further columns of q, which they split
    off; `placed` then is the subclass's own.
    """

    q: Tensor  # (batch, heads, queries, head_dim)
    k: Tensor  # (batch, key heads, keys, head_dim)
    v: Tensor
    choice: Any = None


class Attention(InTorchLayers, System):
    """The three steps that all attentions share: project, attend, combine.

    A subclass makes the parameters, and changes the steps that its paper changes. As they stand,
    `project` is dense, with `q_proj`, `k_proj` and `v_proj`, and `attend` is scaled dot-product
    attention; `combine` is each subclass's own.

    Args:
        embed_dim, num_heads, head_dim, kdim, vdim, dropout, num_key_value_heads, qk_norm,
            norm_eps: as in `MultiHeadAttention`.

    Attributes:
        chooses_heads: whether each query has heads of its own, those of `routing.indices`.
        heads_are_units: whether the units of its decisions are its heads, in their order.
        implementation: how `attend` is computed, see `headwise.ops.attention`; a model sets it to
            its `attn_implementation`.
        observers: who is called with the `HeadsRead` of each call; see
            `headwise.models.decisions`.
        heads_are_given: whether another module's heads have read already, whose queries and keys
            this one does not see; see `MultiHeadAttention.over_heads`.
    """

    chooses_heads: ClassVar[bool] = False
    heads_are_units: ClassVar[bool] = False
    shown: ClassVar[tuple[str, ...]] = ("embed_dim", "num_heads", "head_dim")
    implementation: Implementation = "sdpa"
    observers: tuple[Observer, ...] = ()
    heads_are_given: bool = False

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    q_norm: Any  # a norm with `reset_parameters`, or None
    k_norm: Any

    @checked
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        dropout: float = 0.0,
        num_key_value_heads: int | None = None,
        qk_norm: bool = False,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        kdim = embed_dim if kdim is None else kdim
        vdim = embed_dim if vdim is None else vdim
        check_positive(embed_dim=embed_dim, num_heads=num_heads, kdim=kdim, vdim=vdim)
        if head_dim is None:
            if embed_dim % num_heads:
                raise ValueError(
                    f"embed_dim is {embed_dim}, which num_heads = {num_heads} does not divide; "
                    f"choose sizes that divide, or give head_dim"
                )
            head_dim = embed_dim // num_heads
        check_positive(head_dim=head_dim, norm_eps=norm_eps)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.kdim = kdim
        self.vdim = vdim
        self.dropout = dropout
        self.num_key_value_heads = key_heads(num_heads, num_key_value_heads)
        self.q_norm = self.k_norm = None
        if qk_norm:
            self.q_norm = norm_of("rms", head_dim, norm_eps)
            self.k_norm = norm_of("rms", head_dim, norm_eps)

    @classmethod
    def from_plan(cls, place: Place, **options: Any) -> Self:
        sizes = {"num_heads": place.num_heads, "dropout": place.attention_dropout}
        return cls(place.embed_dim, **{**sizes, **place.projections(), **options})

    def dense_projections(self, bias: Bias) -> None:
        """Make `q_proj`, `k_proj` and `v_proj`."""
        check_among("bias", bias, (True, False, "qkv"))
        inner_dim = self.num_heads * self.head_dim
        key_dim = self.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(self.embed_dim, inner_dim, bias=bool(bias))
        self.k_proj = nn.Linear(self.kdim, key_dim, bias=bool(bias))
        self.v_proj = nn.Linear(self.vdim, key_dim, bias=bool(bias))

    def reset_projections(self) -> None:
        """Draw them afresh, as `nn.MultiheadAttention` does (Glorot uniform)."""
        for proj in (self.q_proj, self.k_proj, self.v_proj):
            # nn.MultiheadAttention draws the three as one matrix of three times the height.
            nn.init.xavier_uniform_(proj.weight, gain=2**-0.5)
            if proj.bias is not None:
                nn.init.zeros_(proj.bias)
        self.reset_norms()

    def reset_norms(self) -> None:
        """The norms of queries and keys start without a scale."""
        for norm in (self.q_norm, self.k_norm):
            if norm is not None:
                norm.reset_parameters()

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        need_weights: bool = False,
        average_attn_weights: bool = False,
        query_padding_mask: Tensor | None = None,
        cache: AttentionCache | None = None,
        rotary: Rotary | None = None,
    ) -> AttentionOutput:
        """Computes the attention of the queries to the keys.

        Args:
            query: `(batch, queries, embed_dim)`.
            key: `(batch, keys, kdim)`; the query if not given.
            value: `(batch, keys, vdim)`; the key if not given.
            key_padding_mask: `(batch, keys)`; boolean `True` is padding and is not attended, a
                float mask is added.
            attn_mask: `(queries, keys)`, `(batch * heads, queries, keys)` or
                `(batch, 1 or heads, queries, keys)`; boolean `True` is not attended, a float
                mask is added. Systems that decide by masks take -1000 or less for not attended.
            is_causal: position t attends to positions ≤ t; no mask has to be given for that.
            need_weights: also return the attention weights, `(batch, heads, queries, keys)`.
            average_attn_weights: return their mean over the heads, `(batch, queries, keys)`.
            query_padding_mask: `(batch, queries)`, `True` at padding, which decisions leave out.
                In self-attention (no key is given, or the query itself is key or value) it is
                known from `key_padding_mask`; in cross-attention only the caller knows.
            cache: for decoding step by step: the call sees what earlier calls with this cache
                saw, and `key_padding_mask` then covers all keys, cached ones first.
            rotary: the positions of the queries, by which queries and keys are turned; in
                self-attention only, where they are those of the keys too.
        """
        is_self_attention = key is None or key is query or value is query
        offset = 0 if cache is None or cache.static else cache.get_seq_length()
        key = query if key is None else key
        value = key if value is None else value
        widths = (self.embed_dim, self.kdim, self.vdim)
        check_inputs(widths, query, key, value, key_padding_mask, query_padding_mask)
        if cache is not None and not torch.compiler.is_compiling():
            cache.check_call(self, key, is_self_attention)
        # Before the cache gets the keys of this call: who mends a mask can call again.
        keys = key.size(1)
        if cache is not None:
            keys = cache.get_max_length() if isinstance(offset, Tensor) else keys + offset
        check_padding_mask("key_padding_mask", key_padding_mask, query.size(0), keys)
        check_attention_mask(attn_mask, query.size(0), self.num_heads, query.size(1), keys)
        if query_padding_mask is None and is_self_attention and key_padding_mask is not None:
            # The queries are the last of the keys.
            query_padding_mask = of_queries(key_padding_mask, offset, query.size(1))
        query_padding = padding_positions(query_padding_mask)
        masks = (query_padding, is_causal, attn_mask)
        if rotary is not None and not is_self_attention:
            raise ValueError(
                "rotary is given with keys of their own, expected None: it turns queries and keys "
                "by the same positions, in self-attention; leave rotary out, or leave key out"
            )
        inputs = Inputs(query, key, value, *masks, cache, is_self_attention, rotary)
        q, k, v, choice = self.project(inputs)
        q = self.placed(q, inputs)
        shape = (q.size(1), q.size(2), k.size(2))
        # PyTorch's kernel has a fast path for a plain causal mask. To a compiler a comparison is no
        # boolean unless it decides a branch.
        plain = False
        if is_causal and not isinstance(offset, Tensor) and offset == 0:
            alone = getattr(self.implementation, "takes_padding_alone", False)
            plain = (key_padding_mask is None or alone) and attn_mask is None
        given = (key_padding_mask, attn_mask, is_causal and not plain)
        mask = merge_masks(*given, *shape, offset=offset, device=query.device)
        heads = self.attend(q, k, v, mask, plain)
        if plain and mask is not None and (self.observers or need_weights):
            mask, plain = merge_masks(key_padding_mask, None, True, *shape, device=q.device), False
        # Other ablations, which have other objects there, are for the steps that they change.
        if isinstance(self.ablation, Heads) and not self.training:
            heads = self.ablation(heads)
        output, routing = self.combine(heads, inputs, choice)
        if routing is not None:
            routing = routing._replace(padding=query_padding)
        for observer in self.observers:
            if not is_repeated():
                observer(HeadsRead(self, inputs, q, k, v, mask, plain, heads, routing))

        weights = None
        if need_weights:
            mask = causal_mask(*shape[1:], device=q.device) if plain else mask
            weights = self.attention_weights(q, k, mask)
            weights = weights.mean(1) if average_attn_weights else weights
        return AttentionOutput(output, weights, routing)

    def project(self, inputs: Inputs) -> Projected:
        """Queries, keys and values, by head; the queries neither normed nor turned."""
        q = self._by_head(self.q_proj(inputs.query))
        return Projected(q, *self._keys_and_values(inputs))

    def project_memory(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Keys and values of this call's own inputs, by head; the cache is the caller's."""
        return self._by_head(self.k_proj(inputs.key)), self._by_head(self.v_proj(inputs.value))

    def placed(self, q: Tensor, inputs: Inputs) -> Tensor:
        """Queries as keys meet them: normed and turned, where the attention is to."""
        return self._placed(q, self.q_norm, inputs.rotary)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        """What each head reads: `(batch, heads, queries, head_dim)`."""
        dropout = self.dropout if self.training else 0.0
        how: dict[str, Any] = {"dropout": dropout, "implementation": self.implementation}
        return dot_product_attention(q, k, v, mask, is_causal=is_causal, **how)

    def attention_weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """The weights by which `attend` reads, `(batch, heads, queries, keys)`: override both."""
        return attention_weights(q, k, mask)

    def queries_of_every_head(self, inputs: Inputs) -> Tensor:
        """Queries of all heads, chosen or not, `(batch, heads, queries, head_dim)`.

        A subclass with `chooses_heads` overrides it, for those who compare its heads.
        """
        raise NotImplementedError(
            f"{type(self).__name__} chooses heads, but does not say what the others would read: "
            f"override queries_of_every_head"
        )

    def combine(self, heads: Tensor, inputs: Inputs, choice: Any) -> tuple[Tensor, Routing | None]:
        """The output from what the heads read.

        Args:
            heads: `(batch, heads, queries, head_dim)`.
            inputs: what the call was given, for decisions that depend on the input; those of a
                position may only depend on positions up to it where the queries are causal, and
                on none that `inputs.query_padding` marks.
            choice: what `project` decided; None unless a subclass says otherwise.

        Returns:
            The output, `(batch, queries, embed_dim)`, and what was decided, or None.
        """
        raise NotImplementedError

    def in_force(self, weights: Tensor) -> Tensor:
        """The weights of a decision, or those that an ablation has in their place."""
        ablated = isinstance(self.ablation, Changed) and not self.training
        return self.ablation.weights(weights) if ablated else weights

    def key_size(self) -> tuple[int, int] | None:
        return self.num_key_value_heads, self.head_dim

    def unit_of_head(self) -> list[int] | None:
        return list(range(self.num_heads)) if self.heads_are_units else None

    def macs(self, queries: int, keys: int, *, is_causal: bool = False) -> Macs:
        """Those of dense projections and of attention; subclasses add their combination's."""
        inner_dim = self.num_heads * self.head_dim
        key_dim = self.num_key_value_heads * self.head_dim
        linear = queries * inner_dim * self.embed_dim + keys * key_dim * (self.kdim + self.vdim)
        return Macs(linear, 2 * queries * keys * inner_dim)

    def _keys_and_values(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        cache = inputs.cache
        if cache is not None and cache.static and cache.is_filled:
            assert cache.keys is not None and cache.values is not None
            return cache.keys, cache.values
        k, v = self.project_memory(inputs)
        k = self._placed(k, self.k_norm, inputs.rotary)
        return (k, v) if cache is None else cache.extend(k, v)

    def _placed(self, x: Tensor, norm: nn.Module | None, rotary: Rotary | None) -> Tensor:
        x = x if norm is None else norm(x)
        return x if rotary is None else rotary(x)

    def _by_head(self, x: Tensor) -> Tensor:
        """`(batch, time, heads * head_dim)` to `(batch, heads, time, head_dim)`."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


def key_heads(num_heads: int, given: int | None) -> int:
    """How many heads of keys there are: as many as are given, or one for each head.

    >>> key_heads(8, None), key_heads(8, 2)
    (8, 2)
    """
    if given is None:
        return num_heads
    if given < 1 or num_heads % given:
        raise ValueError(
            f"num_key_value_heads is {given}, expected a divisor of num_heads = {num_heads}: as "
            f"many heads share each head of keys"
        )
    return given
