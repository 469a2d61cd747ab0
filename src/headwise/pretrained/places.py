"""Where the attentions of a transformers model have their heads: found by the names in use there.

An attention joins what its heads have read, `(batch, queries, heads * head_dim)`, head by head, and
calls its output projection with it: what stands before that projection sees the heads of any model.
"""

import inspect
import sys
from collections.abc import Iterator, Mapping
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
# How forward calls the hidden states, (batch, time, width); others may have the time first.
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
        maps: paths of the linear maps whose rows heads have of their own, for `prune_heads`: to
            queries, keys and values; or to queries, and to keys and values; or one for all three.
    """

    projection: str | None = None
    num_heads: str | None = None
    is_causal: bool | None = None
    maps: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Place:
    """An attention module of a model, and where its heads are.

    Attributes:
        path, module: the attention module.
        projection_path: of the output projection, from the attention module.
        num_heads: how many heads of queries it has.
        site: `encoder_self`, `decoder_self` (what is causal) or `decoder_cross`.
        layer: counted from 0 in its stack.
        stack: path of the innermost model of transformers around it.
        layout: what the caller said of modules of this class, or None.
    """

    path: str
    module: nn.Module
    projection_path: str
    num_heads: int
    site: str
    layer: int
    stack: str
    layout: HeadLayout | None

    @property
    def projection(self) -> Any:
        return self.module.get_submodule(self.projection_path)

    def sizes(self) -> dict[str, int]:
        """`embed_dim`, `num_heads` and `head_dim`."""
        width, embed_dim = _widths(self.projection)
        if width % self.num_heads:
            raise ValueError(
                f"{self.path!r} has {self.num_heads} heads, which do not divide {width}, what its "
                f"{self.projection_path} takes: say where its heads are by layouts="
                f"{{{type(self.module).__name__!r}: headwise.HeadLayout(num_heads=...)}}"
            )
        return {"embed_dim": embed_dim, "num_heads": self.num_heads,
                "head_dim": width // self.num_heads}  # fmt: skip


def places(model: nn.Module, layouts: Mapping[str, HeadLayout] | None = None) -> list[Place]:
    """The attention modules of a model whose heads are known, in the order they stand in.

    Args:
        layouts: where modules of further classes have their heads, by the class's name.

    Raises:
        ValueError: there is none; a layout names what a module does not have.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model is a {type(model).__name__}, expected a model that is loaded")
    found: list[Place] = []
    stacks = [path for path, module in model.named_modules() if isinstance(module, PreTrainedModel)]
    for path, module in model.named_modules():
        kinds = [base.__name__ for base in type(module).__mro__]  # FSDP makes subclasses
        layout = next((layouts[kind] for kind in kinds if kind in (layouts or {})), None)  # type: ignore[index]
        first = list(inspect.signature(type(module).forward).parameters)[1:2]
        if layout is None and not (_is_attention(module) and {*first} & {*_HIDDEN_STATES}):
            continue
        projection = _projection_of(module, layout)
        heads = None if projection is None else _heads_of(module, projection, layout)
        if projection is None or heads is None:
            if layout is None:
                continue
            raise ValueError(f"{path!r} has not what layouts says of {type(module).__name__}: "
                             f"{layout}")  # fmt: skip
        stack = max((s for s in stacks if not s or path.startswith(f"{s}.")), key=len, default="")
        numbers = [part for part in path.removeprefix(stack).split(".") if part.isdigit()]
        own = path.rpartition(".")[2]
        cross = "cross" in own.lower() or own in ("encoder_attn", "EncDecAttention")
        site = "decoder_self" if _is_causal(module, layout) else "encoder_self"
        site = "decoder_cross" if cross else site
        layer = int(numbers[0]) if numbers else 0
        found.append(Place(path, module, projection, heads, site, layer, stack, layout))
    if not found:
        raise ValueError(_unknown(model))
    return found


def _is_attention(module: nn.Module) -> bool:
    name = type(module).__name__.lower()
    return ("attention" in name or "attn" in name) and not isinstance(module, System)


def _projection_of(module: nn.Module, layout: HeadLayout | None) -> str | None:
    there = {name: part for name, part in module.named_modules() if _widths(part)[0]}
    given = (layout.projection,) if layout and layout.projection else _PROJECTIONS
    return next((name for name in given if name in there), None)


def _heads_of(module: nn.Module, projection: str, layout: HeadLayout | None) -> int | None:
    given = (layout.num_heads,) if layout and layout.num_heads else _COUNTS
    for path in given:
        count = _attribute(module, path)
        if isinstance(count, int) and path.startswith("config.") and not layout:
            # The width of a head is right too where a layer has fewer heads than others.
            size = getattr(module, "v_head_dim", getattr(module, "head_dim", None))
            return _widths(module.get_submodule(projection))[0] // size if size else count
        if isinstance(count, int):
            return count
    return None


def _is_causal(module: nn.Module, layout: HeadLayout | None) -> bool:
    if layout and layout.is_causal is not None:
        return layout.is_causal
    # Models whose attention is causal otherwise may be used as encoders.
    if getattr(getattr(module, "config", None), "is_causal", True) is False:
        return False
    said = [_attribute(module, path) for path in _SAYS_CAUSAL]
    said = [each for each in said if isinstance(each, bool)]
    # Where it says nothing, as in BLOOM, it is causal if its family has models that generate.
    names = vars(sys.modules[type(module).__module__])
    return said[0] if said else any("Causal" in name or "LMHead" in name for name in names)


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
    if any(isinstance(module, System) for module in model.modules()):
        return (
            f"model is a {type(model).__name__} with systems of headwise's own, expected a model "
            f"of transformers; a model of headwise gets another system by its with_attention"
        )
    said = f"model is a {type(model).__name__} without an attention whose heads are known"
    for kind, projection, count in _suggestions(model):
        return (
            f"{said}: say where they are, as by layouts={{{kind!r}: headwise.HeadLayout("
            f"projection={projection!r}, num_heads={count!r})}}"
        )
    return f"{said}: no module of it has attention in its class's name, a linear map and heads"


def _suggestions(model: nn.Module) -> Iterator[tuple[str, str, str]]:
    """The class of an attention, the last linear map in it that can be the output's, its heads."""
    for module in filter(_is_attention, model.modules()):
        counts = [name for name in vars(module) if "head" in name and "dim" not in name]
        for name, part in reversed([*module.named_modules()]):
            width = _widths(part)[0]
            for count in [*counts, "config.num_attention_heads"]:
                number = _attribute(module, count)
                if name and width and isinstance(number, int) and number > 0 == width % number:
                    yield type(module).__name__, name, count
