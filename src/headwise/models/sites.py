"""One walk over a model: where each system stands, and each attention within it."""

import re
from typing import NamedTuple, cast

from torch import nn

from headwise.heads.attention import Attention
from headwise.heads.system import System
from headwise.messages import did_you_mean

# Within a stack. An adapter of a system's own tensors (LoRA's target_parameters) holds it as its
# base_layer; a system that takes the place of a whole layer holds attentions of its own. PyTorch
# wraps layers that are compiled, computed again or divided one by one.
_PLACE = re.compile(
    r"layers\.(\d+)(?:\.(?:system|base_layer|_orig_mod|_checkpoint_wrapped_module"
    r"|_fsdp_wrapped_module|(self|cross)_attention))+$"
)


class AttentionSite(NamedTuple):
    """A system, or an attention that is a part of one, and its place in a model.

    In headwise's models that is a site and a layer: `encoder_self`, layer 0, and so on. A system
    that takes the place of a whole layer stands at the layer's self-attention, and the attentions
    within it at sites of their own: `decoder_self` and `decoder_cross`. A system over the heads of
    an attention of transformers has the attention's site and layer. In any other model the site is
    empty, and the layer is the system's number in the order in which they stand.
    """

    site: str
    layer: int
    module: System
    path: str
    part_of: "AttentionSite | None" = None  # the system that it is a part of

    @property
    def stack(self) -> str:
        """`encoder` or `decoder`; empty in any other model."""
        return stack_of(self.site)

    @property
    def system(self) -> "AttentionSite":
        """The system itself, where this is a part of one."""
        return self.part_of or self


def stack_of(site: str) -> str:
    """The stack of a site: `decoder` of `decoder_cross`."""
    return site.partition("_")[0]


def sites(model: nn.Module) -> list[AttentionSite]:
    """All systems of a model and all attentions within them, in the order in which they stand.

    Args:
        model: a headwise model, or any other module that holds systems, or is one.
    """
    found: list[AttentionSite] = []
    stack, name, number = "", "", -1
    over, of_heads = "", ("", 0)  # a module that says where the system within it stands
    system: AttentionSite | None = None
    for path, module in model.named_modules():
        if isinstance(getattr(module, "stack_name", None), str):
            stack, name = path, str(module.stack_name)
        if isinstance(getattr(module, "site_of_heads", None), tuple):
            over, of_heads = path, cast(tuple[str, int], module.site_of_heads)
        if not isinstance(module, System):
            continue
        part_of = system if system is not None and _is_within(path, system.path) else None
        if part_of is not None and not isinstance(module, Attention):
            continue
        match = _PLACE.fullmatch(path.removeprefix(stack).lstrip(".")) if name else None
        if match is not None:
            site, layer = f"{name}_{match[2] or 'self'}", int(match[1])
        elif part_of is not None:
            site, layer = part_of.site, part_of.layer
        elif over and _is_within(path, over):
            site, layer = of_heads
        else:
            site, layer = "", number + 1
        found.append(AttentionSite(site, layer, module, path, part_of))
        if part_of is None:
            system, number = found[-1], number + 1
    return found


def attention_sites(model: nn.Module) -> list[AttentionSite]:
    """All systems of a model, in the order in which they stand; parts of others are not listed.

    >>> import headwise as hw
    >>> layers = nn.ModuleDict({"first": hw.MultiHeadAttention(8, 2), "norm": nn.LayerNorm(8)})
    >>> [place.path for place in attention_sites(layers)]
    ['first']
    """
    return [place for place in sites(model) if place.part_of is None]


def heads_sites(model: nn.Module) -> list[AttentionSite]:
    """All attentions of a model or of any module that have heads, in the same order."""
    return [place for place in sites(model) if isinstance(place.module, Attention)]


def system_at(model: nn.Module, path: str) -> AttentionSite:
    """The system at a path of a model, or the only one in the module there.

    Raises:
        ValueError: there is no such module, or it does not hold a single system.
    """
    places = attention_sites(model)
    paths = [_shown(place) for place in places]
    try:
        there = set(model.get_submodule(path).modules())
    except AttributeError:
        raise ValueError(
            f"path is {path!r}, expected that of a module with a system, such as {_some(paths)}"
            f"{did_you_mean(path, paths)}"
        ) from None
    within = [place for place in places if place.module in there]
    if len(within) == 1:
        return within[0]
    raise ValueError(
        f"path is {path!r}, where {len(within)} systems are, expected one of "
        f"{_some([_shown(place) for place in within] or paths)}"
    )


def _is_within(path: str, other: str) -> bool:
    return not other or path == other or path.startswith(f"{other}.")


def _shown(place: AttentionSite) -> str:
    """The path by which a user knows a system: over given heads, that of the attention."""
    given = getattr(place.module, "heads_are_given", False)
    return place.path.rsplit(".", 2)[0] if given else place.path


def _some(paths: list[str]) -> str:
    more = f" and {len(paths) - 6} more" if len(paths) > 6 else ""
    return ", ".join(map(repr, paths[:6])) + more if paths else "none: the model has no system"
