"""Finds the attentions of a transformers model, their heads and their output projections.

Attentions differ in much, but each concatenates the outputs of its heads, `(batch, queries,
heads * head_dim)`, and calls its output projection with them. So a system before that projection
sees the heads of any model. Projections and numbers of heads are found by the names in use.
"""

import inspect
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from headwise.heads.system import System

# Paths from an attention module: of its output projection, and of the number of its heads.
_PROJECTIONS = (
    *("o_proj", "out_proj", "output.dense", "c_proj", "dense", "out_lin", "Wo", "o"),
    *("projection", "linear_out", "projection_layer", "output"),
)
HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "num_attn_heads", "n_head")
_HEAD_DIMS = ("v_head_dim", "head_dim", "head_size")
_CAUSAL_FLAGS = ("is_causal", "self.is_causal", "is_decoder", "self.is_decoder")
# Names of a first argument of the shape (batch, time, width); others have time first.
_HIDDEN_STATES = ("hidden_states", "hidden_state", "input")


@dataclass(frozen=True)
class HeadLayout:
    """Where the attention modules of one class have their heads, for classes with unusual names.

    The module's `forward` takes the hidden states first, `(batch, queries, width)`, and calls the
    output projection with the outputs of its heads, `(batch, queries, heads * head_dim)`.

    Args:
        projection: path of the output projection, from the attention module.
        num_heads: path of the attribute that holds the number of heads.
        is_causal: whether a position may not see later ones; by default as the module says.
    """

    projection: str | None = None
    num_heads: str | None = None
    is_causal: bool | None = None


@dataclass(frozen=True)
class AttentionModule:
    """An attention module of a model, and where it has its heads."""

    path: str
    module: nn.Module
    projection_path: str
    num_heads: int
    site: str  # `encoder_self`, `decoder_self` (what is causal) or `decoder_cross`
    layer: int  # from 0 in its stack
    stack: str  # the path of the innermost model of transformers around it

    @property
    def projection(self) -> Any:
        return self.module.get_submodule(self.projection_path)

    def sizes(self) -> dict[str, int]:
        """`embed_dim`, `num_heads` and `head_dim`."""
        (width, embed_dim), heads = _widths(self.projection), self.num_heads
        if heads < 1 or width % heads:
            raise ValueError(
                f"{self.path!r} has {heads} heads, which do not divide {width}, what its "
                f"{self.projection_path} takes: say where they are, as by layouts="
                f"{{{type(self.module).__name__!r}: headwise.HeadLayout(num_heads=...)}}"
            )
        return {"embed_dim": embed_dim, "num_heads": heads, "head_dim": width // heads}


def find_attentions(
    model: nn.Module, layouts: Mapping[str, HeadLayout] | None = None
) -> list[AttentionModule]:
    """The attention modules of a model whose heads are known, in the order of its modules.

    Raises `ValueError` if there is none, or if `layouts` do not fit the modules.
    """
    layouts = layouts or {}
    found: list[AttentionModule] = []
    class_names: set[str] = set()  # classes of modules and their bases, as FSDP makes subclasses
    stacks = [path for path, module in model.named_modules() if isinstance(module, PreTrainedModel)]
    for path, module in model.named_modules():
        bases = [base.__name__ for base in type(module).__mro__]
        class_names |= {*bases}
        layout = next((layouts[name] for name in bases if name in layouts), None)
        if layout is None and not _is_attention(module):
            continue
        projection, num_heads = _projection_and_heads(module, layout or HeadLayout())
        if projection and num_heads:
            around = [stack for stack in stacks if not stack or path.startswith(f"{stack}.")]
            stack = max(around, key=len, default="")
            number = re.search(r"\.(\d+)(\.|$)", path.removeprefix(stack))
            layer, site = int(number[1]) if number else 0, _site(path, module, layout)
            found.append(AttentionModule(path, module, projection, num_heads, site, layer, stack))
        elif layout is not None:
            raise ValueError(f"{path!r}, a {bases[0]}, does not fit its layout {layout}")
    for name in layouts.keys() - class_names:
        raise ValueError(f"layouts name {name!r}, but no module of the model is of this class")
    if not found:
        own = next((type(m).__name__ for m in filter(_is_attention, model.modules())), "CLASS")
        raise ValueError(
            f"model is a {type(model).__name__} without an attention whose heads are known, "
            f"expected a model of transformers; one of headwise gets another system by its "
            f"with_attention; for an attention of your own, pass layouts="
            f"{{{own!r}: headwise.HeadLayout(projection=..., num_heads=...)}}"
        )
    _warn_of_others(model, found)
    return found


def _warn_of_others(model: nn.Module, found: list[AttentionModule]) -> None:
    """Warns of the attentions of a model that have not been found, by the names of classes."""
    known = {part for attention in found for part in attention.module.modules()}
    others = list[str]()
    for module in model.modules():
        name = type(module).__name__
        if name.lower().endswith(("attention", "attn")) and not isinstance(module, System):
            parts = {*module.modules()}  # what is around an attention, or in it, is no other one
            if known.isdisjoint(parts) and any(True for _ in module.parameters()):
                known |= parts
                others += [] if name in others else [name]
    if others:
        warnings.warn(
            f"{type(model).__name__} has attentions whose heads are not known, which are left out: "
            f"{', '.join(others)}; if one fits headwise.HeadLayout, name it, as by layouts="
            f"{{{others[0]!r}: headwise.HeadLayout(projection=..., num_heads=...)}}",
            stacklevel=4,
        )


def _is_attention(module: nn.Module) -> bool:
    name = type(module).__name__.lower()
    if not ("attention" in name or "attn" in name) or isinstance(module, System):
        return False
    parameters = list(inspect.signature(type(module).forward).parameters)
    return any(first in _HIDDEN_STATES for first in parameters[1:2])


def _projection_and_heads(module: nn.Module, layout: HeadLayout) -> tuple[str, int]:
    """The path of an attention's output projection and its number of heads; or `""` and 0."""
    widths = {name: width for name, part in module.named_modules() if (width := _widths(part)[0])}
    names = (layout.projection,) if layout.projection else _PROJECTIONS
    projection = next((name for name in names if name in widths), "")
    inner = [f"{name}." for name, _ in module.named_children()]
    counts = [f"{part}{name}" for part in ("", *inner) for name in HEAD_COUNTS]
    counts = [layout.num_heads] if layout.num_heads else [*counts, "config.num_attention_heads"]
    head_dim = next(filter(None, (_attribute(module, name) for name in _HEAD_DIMS)), 0)
    for path in counts:
        # A layer may have fewer heads than the config says.
        if projection and head_dim and path.startswith("config.") and not layout.num_heads:
            return projection, widths[projection] // head_dim
        count = _attribute(module, path)
        if isinstance(count, int):
            return projection, count
    return projection, 0


def _site(path: str, module: nn.Module, layout: HeadLayout | None) -> str:
    name = path.rpartition(".")[2]
    if "cross" in name.lower() or name in ("encoder_attn", "EncDecAttention"):
        return "decoder_cross"
    flags = [_attribute(module, path) for path in _CAUSAL_FLAGS]
    flags = [flag for flag in flags if isinstance(flag, bool)]
    if layout is not None and layout.is_causal is not None:
        is_causal = layout.is_causal
    elif _attribute(module, "config.is_causal") is False:
        is_causal = False  # a configuration may turn a model with causal attention into an encoder
    elif flags:
        is_causal = any(flags)  # decoders may say that they are by one flag alone
    else:  # as in BLOOM: causal if the family has models that generate
        family = set(dir(sys.modules.get(type(module).__module__))) - {"AutoModelForCausalLM"}
        generates = any("ForCausal" in name or "LMHeadModel" in name for name in family)
        is_causal = generates and "Encoder" not in type(module).__name__
    return "decoder_self" if is_causal else "encoder_self"


def _attribute(module: nn.Module, path: str) -> Any:
    try:
        return attrgetter(path)(module)
    except AttributeError:
        return None


def _widths(projection: Any) -> tuple[int, int]:
    """The widths of the input and the output of a linear map; zeros for other modules."""
    for inputs, outputs in (("in_features", "out_features"), ("nx", "nf")):
        if isinstance(getattr(projection, inputs, None), int):
            return getattr(projection, inputs), getattr(projection, outputs)
    return 0, 0
