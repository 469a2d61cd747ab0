"""Attention in three steps, each of which a system may change: project, attend, combine.

    project   q, k, v = projections of query, key, value        (batch, heads, time, head_dim)
    attend    oᵢ = softmax(qᵢ kᵢᵀ / √head_dim) vᵢ
    combine   y  = a function of o₁ … o_H and of the input       (batch, time, embed_dim)

Masks are those of `nn.MultiheadAttention`: a boolean `True` is not attended, a float
mask is added. A query that may attend to nothing reads zeros.
"""

from collections.abc import Callable
from math import inf
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.heads.ablation import HEADS
from headwise.heads.cache import AttentionCache
from headwise.heads.masks import boolean_mask, causal_mask, check_mask, merge_masks
from headwise.heads.system import AttentionOutput, Routing, System, is_repeated
from headwise.messages import check_choice, check_range
from headwise.ops.layers import make_norm
from headwise.ops.rotary import Rotary

PROJECTIONS = ("q_proj", "k_proj", "v_proj")


class AttentionInputs(NamedTuple):
    """The arguments of a call, as the three steps use them.

    Attributes:
        query, key, value: `(batch, queries, embed_dim)`, `(batch, keys, kdim)` and `(batch, keys,
            vdim)`; the query stands for a key or value that the caller leaves out.
        query_padding: boolean `(batch, queries)`, `True` at padding; None if none is known.
        is_causal, attn_mask, cache, rotary: the arguments of the same names.
        is_self_attention: whether queries and keys are the same positions.
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


class AttentionCall(NamedTuple):
    """One call of an attention, for its observers: tensors are the call's own, with their graph.

    Attributes:
        attention, inputs: the module and its arguments.
        q, k, v: queries, keys and values, `(batch, heads, time, head_dim)`; keys and values may
            have fewer heads.
        mask: the mask that `merge_masks` returns.
        heads: the outputs of the heads, `(batch, heads, queries, head_dim)`.
        routing: the decision of the attention, or None.
    """

    attention: "Attention"
    inputs: AttentionInputs
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    heads: Tensor
    routing: Routing | None

    def weights(self) -> Tensor:
        """Computes the attention weights, `(batch, heads, queries, keys)`.

        Raises:
            ValueError: the attention is a gate over the heads of another module, which attends.
        """
        if getattr(self.attention, "is_head_gate", False):
            raise ValueError(
                "the attention is a gate over the heads of a model of transformers, which alone "
                "knows the weights: ask it for them, by output_attentions=True"
            )
        return self.attention.attention_weights(self.q, self.k, self.mask)


class Attention(System):
    """The three steps that all attentions share: project, attend, combine.

    A subclass changes the steps that its paper changes. As they stand, `project` is dense, with
    `q_proj`, `k_proj` and `v_proj`, and `attend` is scaled dot-product attention.

    Args:
        embed_dim, num_heads, head_dim, num_key_value_heads, kdim, vdim, dropout, bias, qk_norm,
            norm_eps: as in `MultiHeadAttention`.
        dense: whether to make `q_proj`, `k_proj` and `v_proj`.

    Attributes:
        observers: who is called with the `AttentionCall` of each call.
        has_output_bias: whether `bias` is meant for maps behind the heads too.
    """

    supported_ablations: ClassVar[tuple[str, ...]] = HEADS
    observers: tuple[Callable[[AttentionCall], None], ...] = ()
    # What PyTorch's own layers read of their attention, in evaluation.
    batch_first: ClassVar[bool] = True
    in_proj_bias: ClassVar[None] = None
    _qkv_same_embed_dim: ClassVar[bool] = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        num_key_value_heads: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        dropout: float = 0.0,
        bias: bool | Literal["qkv"] = True,
        qk_norm: bool = False,
        norm_eps: float = 1e-6,
        dense: bool = True,
    ) -> None:
        super().__init__()
        sizes = {"embed_dim": embed_dim, "num_heads": num_heads, "head_dim": head_dim}
        for name, size in {**sizes, "kdim": kdim, "vdim": vdim}.items():
            if size is not None:
                check_range(name, size, 1)
        check_range("dropout", dropout, 0, 1)
        check_choice("bias", bias, (True, False, "qkv"))
        if head_dim is None and embed_dim % num_heads:
            raise ValueError(
                f"embed_dim is {embed_dim}, which num_heads = {num_heads} does not divide; choose "
                f"sizes that divide, or give head_dim"
            )
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.head_dim = embed_dim // num_heads if head_dim is None else head_dim
        self.num_key_value_heads = num_heads if num_key_value_heads is None else num_key_value_heads
        if self.num_key_value_heads < 1 or num_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads is {num_key_value_heads}, expected a divisor of num_heads = "
                f"{num_heads}: as many heads share each head of keys"
            )
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.dropout = dropout
        self.has_output_bias = bias != "qkv" and bool(bias)
        self.q_norm: Any = make_norm("rms", self.head_dim, norm_eps) if qk_norm else None
        self.k_norm: Any = make_norm("rms", self.head_dim, norm_eps) if qk_norm else None
        if dense:
            width, kv_width = num_heads * self.head_dim, self.num_key_value_heads * self.head_dim
            self.q_proj = nn.Linear(embed_dim, width, bias=bool(bias))
            self.k_proj = nn.Linear(self.kdim, kv_width, bias=bool(bias))
            self.v_proj = nn.Linear(self.vdim, kv_width, bias=bool(bias))

    @classmethod
    def from_config(cls, config: Any, site: str, **options: Any) -> Self:
        return cls(config.embed_dim, **{**config.attention_options(), **options})

    @property
    def num_units(self) -> int:
        return self.num_heads

    @property
    def in_proj_weight(self) -> "_NoPackedWeights":
        return _NoPackedWeights(next((p.device for p in self.parameters()), None))

    def reset_parameters(self) -> None:
        """Draws the projections afresh, as `nn.MultiheadAttention` does (Glorot uniform)."""
        for name in PROJECTIONS:
            if getattr(self, name, None) is not None:
                # nn.MultiheadAttention draws the three as one matrix of three times the height.
                draw_linear(getattr(self, name), gain=2**-0.5)
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
                `(batch, 1 or heads, queries, keys)`; boolean `True` is not attended, a float mask
                is added. Systems that decide by masks take -1000 or less for not attended.
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

        Returns:
            `y, weights`, and the decision as the attribute `routing`.

        Raises:
            ValueError: inputs that do not fit; the message names the argument.
        """
        is_self = key is None or key is query or value is query
        if query.is_nested:
            others = (key_padding_mask, attn_mask, query_padding_mask, cache, rotary)
            is_alone = is_self and not need_weights and all(other is None for other in others)
            if not is_alone or query.layout != torch.strided:
                raise ValueError(
                    "query is a nested tensor, which self-attention takes alone and strided: "
                    "pad it, or build nn.TransformerEncoder with enable_nested_tensor=False"
                )
            return self._attend_nested(query, is_causal)
        key = query if key is None else key
        value = key if value is None else value
        offset = 0 if cache is None or cache.static else cache.get_seq_length()
        check_call(self, query, key, value, offset, key_padding_mask, attn_mask, query_padding_mask)
        check_cache_and_rotary(cache, rotary, is_self, query.size(0))
        if query_padding_mask is None and is_self and key_padding_mask is not None:
            # The queries are the last of the keys; [-0:] would be all of them.
            query_padding_mask = key_padding_mask[:, key_padding_mask.size(1) - query.size(1) :]
        padding = None if query_padding_mask is None else boolean_mask(query_padding_mask)
        inputs = AttentionInputs(
            query, key, value, padding, is_causal, attn_mask, cache, is_self, rotary
        )
        q, k, v, state = self.project(inputs)
        # PyTorch's kernel has a fast path for a plain causal mask.
        is_plain = is_causal and offset == 0 and key_padding_mask is None and attn_mask is None
        masks = (key_padding_mask, attn_mask, is_causal and not is_plain)
        sizes = (q.size(1), q.size(2), k.size(2))  # heads, queries, keys
        mask = merge_masks(*masks, *sizes, offset=offset, device=q.device, dtype=q.dtype)
        heads = self.ablate_heads(self.attend(q, k, v, mask, is_plain))
        output, routing = self.combine(heads, inputs, state)
        routing = None if routing is None else routing._replace(padding=padding)
        weights = None
        if need_weights or self.observers:
            mask = causal_mask(*sizes[1:], device=q.device) if is_plain else mask
        for observer in () if is_repeated() else self.observers:
            observer(AttentionCall(self, inputs, q, k, v, mask, heads, routing))
        if need_weights:
            weights = self.attention_weights(q, k, mask)
            weights = weights.mean(1) if average_attn_weights else weights
        return AttentionOutput(output, weights, routing)

    def _attend_nested(self, query: Tensor, is_causal: bool) -> AttentionOutput:
        """A nested output: layers of PyTorch, in evaluation, hand padded batches on like that."""
        padding = torch.ones_like(query).to_padded_tensor(0.0)[..., 0] == 0
        padded = query.to_padded_tensor(0.0)
        out = self.forward(padded, key_padding_mask=padding, is_causal=is_causal)
        rows = [row[real] for row, real in zip(out.output, ~padding, strict=True)]
        return AttentionOutput(torch.nested.as_nested_tensor(rows), None, out.routing)

    def project(self, inputs: AttentionInputs) -> tuple[Tensor, Tensor, Tensor, Any]:
        """Queries, keys and values, `(batch, heads, time, head_dim)`, and a state for `combine`."""
        q = self.by_head(self.q_proj(inputs.query))
        q = self.norm_and_rotate(q, self.q_norm, inputs.rotary)
        return q, *self.keys_and_values(inputs), None

    def keys_and_values(self, inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
        """The keys and values of this call, behind the cached ones of earlier calls."""
        cache = inputs.cache
        if cache is not None and cache.static and cache.keys is not None:
            return cache.keys, cache.values  # type: ignore[return-value]
        k = self.norm_and_rotate(self.by_head(self.k_proj(inputs.key)), self.k_norm, inputs.rotary)
        v = self.by_head(self.v_proj(inputs.value))
        return (k, v) if cache is None else cache.extend(k, v)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        """The outputs of the heads, `(batch, heads, queries, head_dim)`.

        Args:
            mask: broadcasts to `(batch, heads, queries, keys)`, boolean or in q's dtype, or None.
            is_causal: query t attends to keys 0 … t; only without a mask.
        """
        if mask is not None and mask.dtype == torch.bool:
            mask = ~mask
        if k.size(1) == 1:
            k, v = expand_kv(k, q.size(1)), expand_kv(v, q.size(1))  # views
        dropout = self.dropout if self.training else 0.0
        is_grouped = k.size(1) != q.size(1)
        heads = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=is_causal, enable_gqa=is_grouped
        )
        if mask is None or not torch.compiler.is_exporting():
            return heads
        # Another runtime, such as ONNX's, may not have zeros where a query attends to nothing.
        attends = mask if mask.dtype == torch.bool else mask > -inf
        return heads.masked_fill(~attends.any(-1, keepdim=True), 0.0)

    def attention_weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """The weights by which `attend` reads, `(batch, heads, queries, keys)`: override both."""
        # Queries are scaled first: in float16 the products of long ones would be infinite.
        logits = q / q.size(-1) ** 0.5 @ expand_kv(k, q.size(1)).transpose(-2, -1)
        if mask is None:
            return logits.softmax(-1)
        is_boolean = mask.dtype == torch.bool
        logits = logits.masked_fill(mask, -inf) if is_boolean else logits + mask
        attends = (logits > -inf).any(-1, keepdim=True)
        return logits.masked_fill(~attends, 0.0).softmax(-1) * attends

    def ablate_heads(self, heads: Tensor) -> Tensor:
        """The outputs of the heads, with zeros for heads that ablations leave out."""
        for ablation in self.active_ablations:
            heads = ablation.heads(heads)
        return heads

    def combine(
        self, heads: Tensor, inputs: AttentionInputs, state: Any
    ) -> tuple[Tensor, Routing | None]:
        """The output of the layer from the outputs of the heads.

        Args:
            heads: the outputs of the heads, `(batch, heads, queries, head_dim)`.
            inputs: the arguments of the call, for decisions that depend on them. Where queries are
                causal, the decision at a position may depend on positions up to it alone. No
                decision may depend on positions that `inputs.query_padding` marks.
            state: the last result of `project`; None unless a subclass returns one.

        Returns:
            The output, `(batch, queries, embed_dim)`, and the decision, or None.
        """
        raise NotImplementedError

    def by_head(self, x: Tensor) -> Tensor:
        """`(batch, time, heads * head_dim)` to `(batch, heads, time, head_dim)`."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def norm_and_rotate(self, x: Tensor, norm: Any, rotary: Rotary | None) -> Tensor:
        """Applies the norm and the rotary positions, if any, to queries or keys."""
        x = x if norm is None else norm(x)
        return x if rotary is None else rotary(x)

    def extra_repr(self) -> str:
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, head_dim={self.head_dim}"


class MultiHeadAttention(Attention):
    """Standard multi-head attention.

    Vaswani et al. 2017, *Attention Is All You Need*, https://arxiv.org/abs/1706.03762.

        oᵢ = softmax(q Wᵢ^Q (k Wᵢ^K)ᵀ / √head_dim) v Wᵢ^V
        y  = [o₁; …; o_H] W^O = Σᵢ oᵢ Wᵢ

    It takes the place of `nn.MultiheadAttention(..., batch_first=True)`, also within PyTorch's own
    layers, and loads its state dict, by itself or within that of a model. So do subclasses; their
    further parameters are then missing, which `strict=False` allows, while `from_attention` knows
    how they start. All maps start at Glorot's bound, as in the papers' code; PyTorch draws the
    output's by `nn.Linear`'s rule, whose bound is 0.58 of that for a square map.

    Args:
        embed_dim: width of queries and of the output.
        num_heads: number of heads.
        head_dim: width of a head; `embed_dim // num_heads` if not given.
        num_key_value_heads: how many heads of keys and values there are, each for as many heads of
            queries, one behind another; one for each if not given. Ainslie et al. 2023, *GQA*,
            https://arxiv.org/abs/2305.13245.
        kdim, vdim: width of keys and values; `embed_dim` if not given.
        dropout: probability with which an attention weight is dropped in training.
        bias: whether the four projections have a bias; `"qkv"`: all but that of the output.
        qk_norm: whether queries and keys are divided by their root mean square, head by head, and
            scaled by learned numbers, before they are turned. Henry et al. 2020, *Query-Key
            Normalization for Transformers*, https://arxiv.org/abs/2010.04245.
        norm_eps: ε of these norms.

    Shape:
        query `(batch, queries, embed_dim)`; key `(batch, keys, kdim)`; value
        `(batch, keys, vdim)`; output `(batch, queries, embed_dim)`.

    Raises:
        ValueError: sizes that do not fit together; the message names the argument.

    Example:
        >>> attention = MultiHeadAttention(embed_dim=32, num_heads=4)
        >>> x = torch.randn(2, 5, 32)
        >>> y, weights = attention(x, is_causal=True, need_weights=True)
        >>> y.shape, weights.shape
        (torch.Size([2, 5, 32]), torch.Size([2, 4, 5, 5]))
    """

    output_parameters = ("out_proj",)
    is_head_gate: bool = False  # whether another module's heads attend; see `as_head_gate`

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        bias: bool | Literal["qkv"] = True,
        dense: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(embed_dim, num_heads, bias=bias, dense=dense, **options)
        self.is_head_gate = not dense
        width, bias = num_heads * self.head_dim, self.has_output_bias
        self.out_proj: Any = nn.Linear(width, embed_dim, bias) if dense else nn.Identity()
        MultiHeadAttention.reset_parameters(self)  # subclasses have not made all of theirs

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if not self.is_head_gate:
            draw_linear(self.out_proj)

    def combine(
        self, heads: Tensor, inputs: AttentionInputs, state: Any
    ) -> tuple[Tensor, Routing | None]:
        return self.scale_and_project(heads), None

    def scale_and_project(self, heads: Tensor, scales: Tensor | None = None) -> Tensor:
        """Σᵢ aᵢ oᵢ Wᵢ, with scales a, `(batch, 1 or queries, heads, 1 or head_dim)`; 1 if None."""
        joined = heads.transpose(1, 2)  # (batch, queries, heads, head_dim)
        joined = joined if scales is None else joined * scales.to(heads.dtype)
        return self.out_proj(joined.flatten(2))

    # Starting from trained weights, and over the heads of other modules

    @classmethod
    def from_attention(cls, attention: nn.Module, *, neutral: bool = True, **options: Any) -> Self:
        """An attention of this class that starts from the weights of a standard attention.

        The sizes, device, dtype, mode of training and `requires_grad` are those of the source,
        which stays as it is and shares no memory with the result. Parameters of a subclass start
        such that the output in evaluation is that of the source, up to rounding.

        Args:
            attention: a `MultiHeadAttention`, or an `nn.MultiheadAttention` with
                `batch_first=True`, and no subclass of them.
            neutral: whether the output has to be that of the source. If not, the parameters of a
                subclass start as its constructor says.
            options: further arguments of the constructor, except sizes of the source.

        Raises:
            ValueError: no such attention; one with `add_bias_kv` or `add_zero_attn`; weights that
                are not those of such an attention; a subclass that cannot start so.

        Example:
            >>> source = nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True)
            >>> MultiHeadAttention.from_attention(source).dropout
            0.1
        """
        source: Any = attention
        is_standard = type(source) in (MultiHeadAttention, nn.MultiheadAttention)
        has_bias_kv = getattr(source, "bias_k", None) is not None
        if not is_standard or has_bias_kv or getattr(source, "add_zero_attn", False):
            raise ValueError(
                f"attention is a {type(source).__name__}, expected a MultiHeadAttention or an "
                f"nn.MultiheadAttention itself, without add_bias_kv and add_zero_attn"
            )
        if not source.batch_first:
            raise ValueError(
                "attention has batch_first=False, expected True: headwise would attend over the "
                "batch. Build its module with batch_first=True, and load the old state dict"
            )
        own = standard_options(source)
        fixed = {"num_key_value_heads": source.num_heads, "qk_norm": False, **own}
        for name in options.keys() & fixed.keys():  # by which copied weights would not fit
            check_choice(f"{name} of from_attention", options[name], (fixed[name], None))
        result = cls(**{**own, "dropout": source.dropout, **options})
        result.init_from(source, neutral=neutral)
        return result

    def init_from(self, attention: nn.Module, *, neutral: bool = True) -> None:
        """Starts from the weights of a standard attention of the same sizes: `from_attention`."""
        if neutral:
            self.init_neutral()
        self.copy_projections(attention)

    @torch.no_grad()
    def copy_projections(self, attention: nn.Module) -> None:
        """Copies the four projections of a standard attention of the same sizes, and with them
        its device, dtype, mode of training and `requires_grad`; the rest stays as it is."""
        weights = dict(attention.state_dict(keep_vars=True))
        with torch.enable_grad():  # the parts of a packed weight learn if it does
            unpack_projections(weights)
        prefixes = tuple(f"{name}." for name in (*PROJECTIONS, "q_norm", "k_norm", "out_proj"))
        expected = {name for name, _ in self.named_parameters() if name.startswith(prefixes)}
        if differing := expected ^ weights.keys():
            raise ValueError(
                f"attention differs from standard attention in its weights {sorted(differing)}: "
                f"remove what was added to it, such as adapters or parametrizations, first"
            )
        self.to(weights["out_proj.weight"].device, weights["out_proj.weight"].dtype)
        for name, weight in weights.items():
            parameter = self.get_parameter(name)
            parameter.copy_(weight)
            parameter.requires_grad_(weight.requires_grad)
        self.train(attention.training)

    def init_neutral(self) -> None:
        """Gives the parameters that standard attention lacks the values that change nothing."""
        if type(self) is not MultiHeadAttention:
            raise ValueError(
                f"{type(self).__name__} cannot start from a standard attention with its output "
                f"unchanged: give neutral=False, or override init_neutral()"
            )

    @classmethod
    def as_head_gate(cls, embed_dim: int, num_heads: int, head_dim: int, **options: Any) -> Self:
        """The system over the heads of another attention module, without projections of its own.

        Its argument `value` is the output of these heads, `(batch, queries, num_heads * head_dim)`.
        It returns the input of the other module's output projection, in the same shape.

        Args:
            embed_dim: width of the query, which is the input of the other attention.
            num_heads, head_dim: sizes of the heads.
            options: further arguments of the constructor.

        Raises:
            ValueError: the system changes how heads attend.

        Example:
            >>> gate = MultiHeadAttention.as_head_gate(embed_dim=16, num_heads=2, head_dim=3)
            >>> x, heads = torch.randn(2, 5, 16), torch.randn(2, 5, 6)
            >>> bool((gate(x, value=heads).output == heads).all()), len(list(gate.parameters()))
            (True, 0)
        """
        if cls.attend is not MultiHeadAttention.attend:
            raise ValueError(
                f"{cls.__name__} changes how heads attend, so that it cannot go over the heads of "
                f"another module; choose a system that combines heads"
            )
        width = num_heads * head_dim
        return cls(embed_dim, num_heads, head_dim=head_dim, vdim=width, dense=False, **options)

    def project(self, inputs: AttentionInputs) -> tuple[Tensor, Tensor, Tensor, Any]:
        if not self.is_head_gate:
            return super().project(inputs)
        heads = self.by_head(inputs.value)
        return heads, heads, heads, None

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        return v if self.is_head_gate else super().attend(q, k, v, mask, is_causal)

    def sees_other_positions(self, is_causal: bool) -> bool:
        """Whether what becomes of the heads at a position depends on other positions too.

        A subclass that does not say so is taken to look at them.
        """
        return type(self) is not MultiHeadAttention

    def static_scales(self) -> Tensor | None:
        """The a of `scale_and_project`, `(heads, 1 or head_dim)`, or None if inputs change it.

        `headwise.fold_gates` multiplies static scales into the output projection.
        """
        return None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        unpack_projections(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)


def unpack_projections(state_dict: dict[str, Any], prefix: str = "") -> None:
    """Renames the projections of an `nn.MultiheadAttention` in a state dict, in place.

    It packs those of queries, keys and values into `in_proj_weight` and `in_proj_bias`; with a
    `kdim` or `vdim` of their own the weights are `q_proj_weight` and so on.
    """
    for kind in ("weight", "bias"):
        packed = state_dict.pop(f"{prefix}in_proj_{kind}", None)
        if packed is not None:
            # Copies: a parameter that is assigned one keeps no other's memory alive.
            for name, part in zip(PROJECTIONS, packed.tensor_split(3), strict=True):
                state_dict[f"{prefix}{name}.{kind}"] = part.clone()
    for name in PROJECTIONS:
        weight = state_dict.pop(f"{prefix}{name}_weight", None)
        if weight is not None:
            state_dict[f"{prefix}{name}.weight"] = weight


def standard_options(attention: Any) -> dict[str, Any]:
    """The arguments of `MultiHeadAttention` for a standard attention like this one."""
    names = ("embed_dim", "num_heads", "head_dim", "kdim", "vdim")
    options: dict[str, Any] = {name: getattr(attention, name) for name in names}
    options["bias"] = attention.out_proj.bias is not None
    if isinstance(attention, nn.MultiheadAttention):
        return options
    if not options["bias"] and attention.q_proj.bias is not None:
        options["bias"] = "qkv"
    options["num_key_value_heads"] = attention.num_key_value_heads
    options["qk_norm"] = attention.q_norm is not None
    if attention.q_norm is not None:
        options["norm_eps"] = attention.q_norm.eps
    return options


def draw_linear(linear: nn.Linear, gain: float = 1.0) -> None:
    """Draws a map by Glorot's bound times `gain`, without a bias."""
    nn.init.xavier_uniform_(linear.weight, gain=gain)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


def expand_kv(kv: Tensor, num_heads: int) -> Tensor:
    """A head of keys or values for each head of queries: of a single one a view, else copies."""
    if kv.size(1) == num_heads:
        return kv
    if kv.size(1) == 1:
        return kv.expand(-1, num_heads, -1, -1)
    return kv.repeat_interleave(num_heads // kv.size(1), dim=1)


def check_call(
    attention: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    offset: int,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    query_padding_mask: Tensor | None,
) -> None:
    """Raises `ValueError` for inputs that do not fit together, naming the argument."""
    widths = (attention.embed_dim, attention.kdim, attention.vdim)
    for name, x, width in zip(("query", "key", "value"), (query, key, value), widths, strict=True):
        if x.dim() != 3 or x.size(-1) != width:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, expected (batch, time, {width})")
    if key.shape[:2] != value.shape[:2] or key.size(0) != query.size(0):
        raise ValueError(
            f"query, key and value are {tuple(query.shape)}, {tuple(key.shape)} and "
            f"{tuple(value.shape)}, expected one batch, and a value for each key"
        )
    batch, queries, keys, heads = *query.shape[:2], key.size(1) + offset, attention.num_heads
    by_head = ((batch, 1, queries, keys), (batch, heads, queries, keys))
    check_mask("key_padding_mask", key_padding_mask, (batch, keys))
    check_mask("attn_mask", attn_mask, (queries, keys), (batch * heads, queries, keys), *by_head)
    check_mask("query_padding_mask", query_padding_mask, (batch, queries))


def check_cache_and_rotary(
    cache: AttentionCache | None, rotary: Rotary | None, is_self_attention: bool, batch: int
) -> None:
    """Raises `ValueError` for a cache or rotary positions that do not fit the call."""
    if rotary is not None and not is_self_attention:
        raise ValueError(
            "rotary is given with keys of their own, expected None: it turns queries and keys by "
            "the same positions, in self-attention"
        )
    if cache is not None and cache.static and is_self_attention:
        raise ValueError(
            "cache is static, for the keys of a cross-attention that stay the same: give "
            "AttentionCache() in self-attention; in cross-attention, give key in each call"
        )
    if cache is not None and cache.keys is not None and cache.keys.size(0) != batch:
        raise ValueError(
            f"cache holds {cache.keys.size(0)} sequences, expected {batch}, the batch of this "
            f"call: make a new one for another batch"
        )


class _NoPackedWeights:
    """Stands where `nn.TransformerEncoder` looks for the packed weights of its own attention.

    In evaluation it would hand them, and the input as a nested tensor, to a fused kernel that
    computes standard attention. An object that overrides torch functions makes it take its
    ordinary path instead, which calls our `forward`. peft looks there for the device of a module.
    """

    def __init__(self, device: torch.device | None) -> None:
        self.device = device

    weight = bias = property(lambda self: self)

    def __torch_function__(self, *args: Any, **kwargs: Any) -> Any:
        return NotImplemented

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            "in_proj_weight is used, but headwise's attentions have q_proj.weight, k_proj.weight "
            "and v_proj.weight in its place"
        )
