"""Where the attentions of a transformers model have their heads: found by the names in use there.

An attention joins what its heads have read, `(batch, queries, heads * head_dim)`, head by head, and
calls its output projection with it: what stands before that projection sees the heads of any model.
"""

import inspect
import re
import sys
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
    *("projection", "linear_out"),
)
_COUNTS = (
    *("num_heads", "num_attention_heads", "n_heads", "num_attn_heads", "n_head"),
    *("self.num_attention_heads", "self.num_heads", "config.num_attention_heads"),
)
_SAYS_CAUSAL = ("is_causal", "self.is_causal", "is_decoder", "self.is_decoder")
# How forward calls hidden states, (batch, time, width), if they come first; others have time first.
_HIDDEN_STATES = ("hidden_states", "hidden_state", "input")


@dataclass(frozen=True)
class HeadLayout:
    """Where the attention modules of one class have their heads, if that is not found by itself.

    The module's `forward` takes the hidden states first, `(batch, queries, width)`, and calls the
    output projection with what its heads have read, `(batch, queries, heads * head_dim)`.

    Args:
        projection: path of the output projection, from the attention module.
        num_heads: path of the attribute that holds the number of heads.
        is_causal: whether a position may not see later ones; what the module says if not given.
    """

    projection: str | None = None
    num_heads: str | None = None
    is_causal: bool | None = None


@dataclass(frozen=True)
class Place:
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


def places(model: nn.Module, layouts: Mapping[str, HeadLayout] | None = None) -> list[Place]:
    """The attention modules of a model whose heads are known, in the order they stand in.

    Raises `ValueError` if there is none, or `layouts` name what a module does not have.
    """
    layouts = layouts or {}
    found: list[Place] = []
    named: set[str] = set()  # the classes of modules, and their bases: FSDP makes subclasses
    stacks = [path for path, module in model.named_modules() if isinstance(module, PreTrainedModel)]
    for path, module in model.named_modules():
        kinds = [base.__name__ for base in type(module).__mro__]
        named |= {*kinds}
        given = next((layouts[kind] for kind in kinds if kind in layouts), None)
        if given is None and not _is_attention(module):
            continue
        projection, heads = _heads(module, given or HeadLayout())
        if projection and heads:
            within = [stack for stack in stacks if not stack or path.startswith(f"{stack}.")]
            stack = max(within, key=len, default="")
            number = re.search(r"\.(\d+)(\.|$)", path.removeprefix(stack))
            layer, site = int(number[1]) if number else 0, _site(path, module, given)
            found.append(Place(path, module, projection, heads, site, layer, stack))
        elif given is not None:
            raise ValueError(f"{path!r}, a {kinds[0]}, lacks what layouts says of it: {given}")
    for kind in layouts.keys() - named:
        raise ValueError(f"layouts name {kind!r}, which is the class of no module of the model")
    if not found:
        raise ValueError(_unknown(model))
    return found


def _is_attention(module: nn.Module) -> bool:
    name = type(module).__name__.lower()
    if not ("attention" in name or "attn" in name) or isinstance(module, System):
        return False
    first = list(inspect.signature(type(module).forward).parameters)[1:2]
    return bool({*first} & {*_HIDDEN_STATES})


def _heads(module: nn.Module, layout: HeadLayout) -> tuple[str, int]:
    """The path of an attention's output projection, and the number of its heads; or nothing."""
    there = {name: width for name, part in module.named_modules() if (width := _widths(part)[0])}
    names = (layout.projection,) if layout.projection else _PROJECTIONS
    projection = next((name for name in names if name in there), "")
    for path in (layout.num_heads,) if layout.num_heads else _COUNTS:
        count = _attribute(module, path)
        size = getattr(module, "v_head_dim", getattr(module, "head_dim", None))
        if projection and path.startswith("config.") and size and not layout.num_heads:
            return projection, there[projection] // size  # right too if a layer has fewer heads
        if isinstance(count, int):
            return projection, count
    return projection, 0


def _site(path: str, module: nn.Module, layout: HeadLayout | None) -> str:
    name = path.rpartition(".")[2]
    if "cross" in name.lower() or name in ("encoder_attn", "EncDecAttention"):
        return "decoder_cross"
    said = [None if layout is None else layout.is_causal]
    # Models whose attention is causal otherwise may be used as encoders.
    said += [False] if _attribute(module, "config.is_causal") is False else []
    said += [_attribute(module, each) for each in _SAYS_CAUSAL]
    said = [each for each in said if isinstance(each, bool)]
    # Where it says nothing, as in BLOOM, it is causal if its family has models that generate.
    names = dir(sys.modules.get(type(module).__module__))
    generates = any("ForCausal" in each or "LMHeadModel" in each for each in names)
    return "decoder_self" if (said[0] if said else generates) else "encoder_self"


def _attribute(module: nn.Module, path: str) -> Any:
    try:
        return attrgetter(path)(module)
    except AttributeError:
        return None


def _widths(projection: Any) -> tuple[int, int]:
    """What a linear map takes and gives; zeros for other modules."""
    for takes, gives in (("in_features", "out_features"), ("nx", "nf")):
        if isinstance(getattr(projection, takes, None), int):
            return getattr(projection, takes), getattr(projection, gives)
    return 0, 0


def _unknown(model: nn.Module) -> str:
    """What to do about a model without known heads."""
    if any(isinstance(module, System) for module in model.modules()):
        return (
            f"model is a {type(model).__name__} with systems of headwise's own, expected a model "
            f"of transformers; a model of headwise gets another system by its with_attention"
        )
    said = f"model is a {type(model).__name__} without an attention whose heads are known"
    for module in filter(_is_attention, model.modules()):
        maps = [name for name, part in module.named_modules() if name and _widths(part)[0]]
        return (
            f"{said}: say where they are, as by layouts={{{type(module).__name__!r}: "
            f"headwise.HeadLayout(projection=..., num_heads=...)}}, its linear maps being "
            f"{', '.join(maps) or 'none'}"
        )
    return f"{said}: no attention in it takes the hidden states first"
