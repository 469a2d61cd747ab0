"""The weights of standard attention: those of `nn.MultiheadAttention` by our names, and copies.

`nn.MultiheadAttention` packs the projections of queries, keys and values into `in_proj_weight` and
`in_proj_bias`; with a `kdim` or `vdim` of their own the weights are `q_proj_weight`,
`k_proj_weight` and `v_proj_weight`. Ours are `q_proj.weight`, `q_proj.bias`, and so on.
"""

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import nn
from typing_extensions import Self

from headwise.heads.system import System

_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
_NORMS = ("q_norm", "k_norm")


class FromStandardWeights(System):
    """A system with the projections of standard attention, which can start from its weights."""

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

    def start_as_standard(self, attention: nn.Module) -> None:
        self.start_neutral()
        self.take_standard_weights(attention)

    def start_neutral(self) -> None:
        """Gives the parameters that standard attention lacks the values that change nothing."""
        raise self._cannot_start_as_standard()

    def take_standard_weights(self, attention: nn.Module) -> None:
        copy_standard_weights(attention, self)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        unpack_projections(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def unpack_projections(state_dict: MutableMapping[str, Any], prefix: str = "") -> None:
    """Renames the projections of an `nn.MultiheadAttention` in a state dict, in place.

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
    from headwise.heads.multi_head import MultiHeadAttention  # which imports this module

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
