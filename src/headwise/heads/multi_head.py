"""Standard multi-head attention, from which systems derive that keep its projections."""

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from headwise.heads.ablations import HEADS
from headwise.heads.attention import Attention, Bias, Inputs, Projected
from headwise.heads.system import Macs, Routing

_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
_NORMS = ("q_norm", "k_norm")


class MultiHeadAttention(Attention):
    """Standard multi-head attention.

    Vaswani et al. 2017, *Attention Is All You Need*, https://arxiv.org/abs/1706.03762.

        oᵢ = softmax(q Wᵢ^Q (k Wᵢ^K)ᵀ / √head_dim) v Wᵢ^V
        y  = [o₁; …; o_H] W^O = Σᵢ oᵢ Wᵢ

    It takes the place of `nn.MultiheadAttention(..., batch_first=True)`, also within PyTorch's own
    layers, and loads its state dict, by itself or within that of a model. So do subclasses; their
    further parameters are then missing, which `strict=False` allows, while `from_attention` knows
    how they start.

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
        >>> import torch
        >>> attention = MultiHeadAttention(embed_dim=32, num_heads=4)
        >>> x = torch.randn(2, 5, 32)
        >>> attention(x, is_causal=True).output.shape
        torch.Size([2, 5, 32])
        >>> attention(x, need_weights=True).weights.shape
        torch.Size([2, 4, 5, 5])
    """

    output_parameters = ("out_proj",)
    ablations = HEADS
    # Whether a subclass decides by the queries of the heads.
    needs_queries: bool = False

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
        bias: Bias = True,
        qk_norm: bool = False,
        norm_eps: float = 1e-6,
    ) -> None:
        sizes = (head_dim, kdim, vdim, dropout, num_key_value_heads, qk_norm, norm_eps)
        super().__init__(embed_dim, num_heads, *sizes)
        self.dense_projections(bias)
        inner_dim = self.num_heads * self.head_dim
        self.out_proj = nn.Linear(inner_dim, embed_dim, bias=bias is True)
        self.reset_parameters()

    @classmethod
    def from_attention(cls, attention: nn.Module, *, neutral: bool = True, **options: Any) -> Self:
        """Returns an attention of this class that starts from the weights of a standard attention.

        The sizes, device, dtype, mode of training and `requires_grad` are those of the source,
        which stays as it is and shares no memory with the result. What a subclass adds starts
        such that the output in evaluation is that of the source, up to rounding.

        Args:
            attention: a `MultiHeadAttention`, or an `nn.MultiheadAttention` with
                `batch_first=True`, and no subclass of them.
            neutral: whether the output has to be that of the source. If not, what a subclass adds
                starts as its constructor says.
            options: further arguments of the constructor; `dropout` is that of the source if it is
                not given.

        Raises:
            ValueError: no such attention; one with `add_bias_kv` or `add_zero_attn`; an option
                that is a size of the source; a subclass that cannot start so.

        >>> import headwise as hw
        >>> theirs = nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True)
        >>> hw.MultiHeadAttention.from_attention(theirs).dropout
        0.1
        """
        _check_is_standard(attention)
        theirs: Any = attention
        if not theirs.batch_first:
            raise ValueError(
                "attention has batch_first=False, expected True: headwise takes (batch, time, "
                "embed_dim), and would attend over the batch in its place. Build its module with "
                "batch_first=True, and load the state dict of the old one; or, if it is called "
                "with (batch, time, embed_dim), set attention.batch_first = True first"
            )
        sizes = standard_sizes(theirs)
        for name in sizes.keys() & options:
            raise ValueError(
                f"{name} is given, expected it to be left out: it is {sizes[name]}, that of the "
                f"attention"
            )
        made = cls(**{**sizes, "dropout": theirs.dropout, **options})
        if neutral:
            made.start_as_standard(attention)
        else:
            made.take_standard_weights(attention)
        return made

    @classmethod
    def over_heads(
        cls,
        embed_dim: int,
        num_heads: int,
        head_dim: int,
        *,
        neutral: bool = True,
        **options: Any,
    ) -> Self:
        """Returns the system over heads that another module computes, without projections.

        It is called with what these heads have read as `value`, `(batch, queries, num_heads *
        head_dim)`, and gives back in the same shape what the other module's output projection is to
        take instead. A system that `needs_queries` is also called with the queries of the heads as
        `key`, in that shape too.

        Args:
            embed_dim: width of the query: of the input of the layer that the heads are in.
            num_heads, head_dim: sizes of the heads.
            neutral: whether it has to give back what it is given until it is trained. If not, it
                starts as its constructor says.
            options: further arguments of the constructor.

        Raises:
            ValueError: a subclass that cannot start so.

        >>> import headwise as hw, torch
        >>> nothing = hw.MultiHeadAttention.over_heads(embed_dim=16, num_heads=2, head_dim=3)
        >>> x, read = torch.randn(2, 5, 16), torch.randn(2, 5, 6)
        >>> bool((nothing(x, value=read).output == read).all()), len(list(nothing.parameters()))
        (True, 0)
        """
        defaults = cls.defaults_over_heads(num_heads, options, neutral=neutral)
        made = cls(embed_dim, num_heads, head_dim=head_dim, **{**defaults, **options})
        if neutral:
            made.start_neutral()
        made.heads_are_given = True
        made.vdim = num_heads * head_dim
        made.kdim = made.vdim if made.needs_queries else made.kdim
        for name in _PROJECTIONS:
            made.register_module(name, None)
        made.register_module("out_proj", nn.Identity())
        return made

    @classmethod
    def defaults_over_heads(
        cls, num_heads: int, options: Mapping[str, Any], *, neutral: bool
    ) -> dict[str, Any]:
        """Returns the options that `over_heads` adds to those that it is given, which win."""
        return {}

    def reset_parameters(self) -> None:
        """Draw the projections afresh, as `nn.MultiheadAttention` does (Glorot uniform)."""
        if self.heads_are_given:
            return
        self.reset_projections()
        nn.init.xavier_uniform_(self.out_proj.weight)
        if self.out_proj.bias is not None:
            nn.init.zeros_(self.out_proj.bias)

    def start_as_standard(self, attention: nn.Module) -> None:
        self.start_neutral()
        self.take_standard_weights(attention)

    def start_neutral(self) -> None:
        """Gives the parameters that standard attention lacks the values that change nothing."""
        if type(self) is not MultiHeadAttention:
            raise self._cannot_start_as_standard()

    def take_standard_weights(self, attention: nn.Module) -> None:
        copy_standard_weights(attention, self)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        unpack_projections(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def project(self, inputs: Inputs) -> Projected:
        if not self.heads_are_given:
            return super().project(inputs)
        read = self._by_head(inputs.value)
        return Projected(self._by_head(inputs.key) if self.needs_queries else read, read, read)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        return v if self.heads_are_given else super().attend(q, k, v, mask, is_causal)

    def combine(self, heads: Tensor, inputs: Inputs, choice: Any) -> tuple[Tensor, Routing | None]:
        return self.join(heads), None

    def join(self, heads: Tensor, scales: Tensor | None = None) -> Tensor:
        """Σᵢ aᵢ oᵢ Wᵢ, with scales a, `(batch, 1 or queries, heads, 1 or head_dim)`; 1 if None."""
        joined = heads.transpose(1, 2)  # (batch, queries, heads, head_dim)
        joined = joined if scales is None else joined * scales.to(heads.dtype)
        return self.out_proj(joined.flatten(2))

    def sees_other_positions(self, is_causal: bool) -> bool:
        """Whether what becomes of the heads at a position depends on other positions too.

        A subclass that does not say so is taken to look at them.
        """
        return type(self) is not MultiHeadAttention

    def static_scales(self) -> Tensor | None:
        """Returns the scales a of `join`, `(heads, 1 or head_dim)`, if no input changes them.

        None if they depend on the input, or for a subclass that does not say. Static scales can be
        multiplied into the output projection: `headwise.fold_gates`.
        """
        return None

    def ablation_ranges(self) -> dict[str, range]:
        # A subclass may declare others, whose options are its own.
        return {"head": range(self.num_heads)} if "without-head" in self.ablations else {}

    def macs(self, queries: int, keys: int, *, is_causal: bool = False) -> Macs:
        if self.heads_are_given:
            raise NotImplementedError(
                "the heads are those of another module, whose products no formula here counts: "
                "measure the model with torch.utils.flop_counter.FlopCounterMode"
            )
        output = Macs(queries * self.out_proj.weight.numel(), 0)
        return super().macs(queries, keys, is_causal=is_causal) + output


def unpack_projections(state_dict: MutableMapping[str, Any], prefix: str = "") -> None:
    """Renames the projections of an `nn.MultiheadAttention` in a state dict, in place.

    It packs those of queries, keys and values into `in_proj_weight` and `in_proj_bias`; with a
    `kdim` or `vdim` of their own the weights are `q_proj_weight`, `k_proj_weight` and
    `v_proj_weight`. Ours are `q_proj.weight`, `q_proj.bias`, and so on.

    >>> state = nn.MultiheadAttention(8, 2).state_dict()
    >>> unpack_projections(state)
    >>> sorted(state)[:4]
    ['k_proj.bias', 'k_proj.weight', 'out_proj.bias', 'out_proj.weight']
    """
    for kind in ("weight", "bias"):
        packed = state_dict.pop(f"{prefix}in_proj_{kind}", None)
        if packed is not None:
            # Copies: a parameter that is assigned one keeps no other's memory alive.
            for name, part in zip(_PROJECTIONS, packed.tensor_split(3), strict=True):
                state_dict[f"{prefix}{name}.{kind}"] = part.clone()
    for name in _PROJECTIONS:
        weight = state_dict.pop(f"{prefix}{name}_weight", None)
        if weight is not None:
            state_dict[f"{prefix}{name}.weight"] = weight


def standard_sizes(attention: Any) -> dict[str, Any]:
    """Returns the sizes of a standard attention as arguments of `MultiHeadAttention`.

    >>> standard_sizes(nn.MultiheadAttention(8, 2, kdim=6))["kdim"]
    6
    """
    names = ("embed_dim", "num_heads", "head_dim", "kdim", "vdim")
    sizes = {name: getattr(attention, name) for name in names}
    bias: Any = attention.out_proj.bias is not None
    if isinstance(attention, nn.MultiheadAttention):
        return {**sizes, "bias": bias}
    if not bias and attention.q_proj.bias is not None:
        bias = "qkv"
    norm = attention.q_norm
    sizes |= {"num_key_value_heads": attention.num_key_value_heads, "qk_norm": norm is not None}
    return {**sizes, "bias": bias, **({} if norm is None else {"norm_eps": norm.eps})}


def _check_is_standard(attention: Any) -> None:
    """Raises `ValueError` for what may compute something else than standard attention."""
    kind = type(attention)
    if kind not in (MultiHeadAttention, nn.MultiheadAttention):
        raise ValueError(
            f"attention is a {kind.__name__}, expected standard attention: a MultiHeadAttention or "
            f"nn.MultiheadAttention itself, no subclass"
        )
    given = {"add_bias_kv": "bias_k", "add_zero_attn": "add_zero_attn"}
    for name, attribute in given.items():
        value = getattr(attention, attribute, None)
        if value is not None and value is not False:
            raise ValueError(
                f"attention is an nn.MultiheadAttention with {name}=True, which attends to one "
                f"more key and value; headwise has no such option: expected {name}=False"
            )


@torch.no_grad()
def copy_standard_weights(source: nn.Module, target: nn.Module) -> None:
    """Copies the four projections, and with them device, dtype, mode and `requires_grad`.

    Raises:
        ValueError: the source is no standard attention, or has other sizes, or its weights have
            been replaced, as adapters do.
    """
    _check_is_standard(source)
    usual = {"num_key_value_heads": source.num_heads, "qk_norm": False}
    expected = {**usual, **standard_sizes(source)}
    for name, size in standard_sizes(target).items():
        if size != expected.get(name):
            raise ValueError(
                f"{name} is {size}, expected {expected.get(name)}, as in the attention whose "
                f"weights are taken"
            )
    weights = dict(source.state_dict(keep_vars=True))
    with torch.enable_grad():  # the parts of a packed weight learn if it does
        unpack_projections(weights)
    projections = tuple(f"{name}." for name in (*_PROJECTIONS, *_NORMS, "out_proj"))
    wanted = {name for name, _ in target.named_parameters() if name.startswith(projections)}
    if weights.keys() != wanted:
        strange = ", ".join(sorted(weights.keys() ^ wanted))
        raise ValueError(
            f"attention differs from standard attention in its weights {strange}; remove what has "
            f"been added to it, such as adapters or parametrizations, first"
        )
    target.to(weights["out_proj.weight"].device, weights["out_proj.weight"].dtype)
    for name, weight in weights.items():
        parameter = target.get_parameter(name)  # on another device, another object than before
        parameter.copy_(weight)
        parameter.requires_grad_(weight.requires_grad)
    target.train(source.training)
