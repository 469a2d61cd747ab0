"""Where in a model each system stands, and each attention that has heads."""

import re
from typing import NamedTuple

from torch import nn

from headwise.heads.attention import Attention
from headwise.heads.system import System
from headwise.messages import did_you_mean

# An adapter of a system's own tensors (LoRA's target_parameters) holds it as its base_layer.
_PATH = re.compile(
    r"(encoder|decoder)\.layers\.(\d+)\.(?:(self|cross)_attention|system)(?:\.base_layer)*$"
)
# The attentions within a system that takes the place of a whole layer.
_PART = re.compile(r"(encoder|decoder)\.layers\.\d+\.system\.(self|cross)_attention$")


class AttentionSite(NamedTuple):
    """A system and its place in a model.

    In headwise's models that is a site and a layer: `encoder_self`, layer 0, and so on. A system
    that takes the place of a whole layer stands at the layer's self-attention. In any other model
    the site is empty, and the layer is the system's number in the order in which they stand.
    """

    site: str
    layer: int
    module: System
    path: str

    @property
    def stack(self) -> str:
        """`encoder` or `decoder`; empty in any other model."""
        return stack_of(self.site)


class HeadsSite(NamedTuple):
    """An attention that has heads, its place in a model, and the system that it is a part of.

    The attentions within a system that takes the place of a whole layer have sites of their own:
    `decoder_self` and `decoder_cross`.
    """

    site: str
    layer: int
    module: Attention
    path: str
    system: AttentionSite

    @property
    def stack(self) -> str:
        """`encoder` or `decoder`; empty in any other model."""
        return stack_of(self.site)


def stack_of(site: str) -> str:
    """The stack of a site: `decoder` of `decoder_cross`."""
    return site.partition("_")[0]


def attention_sites(model: nn.Module) -> list[AttentionSite]:
    """All systems of a model, in the order in which they stand.

    Systems that are parts of another system are not listed.

    Args:
        model: a headwise model, or any other module that holds systems, or is one.

    >>> import headwise as hw
    >>> layers = nn.ModuleDict({"first": hw.MultiHeadAttention(8, 2), "norm": nn.LayerNorm(8)})
    >>> [place.path for place in attention_sites(layers)]
    ['first']
    """
    found: list[AttentionSite] = []
    within: str | None = None  # the path of the system that was found last
    for path, module in model.named_modules():
        if within is not None and (not within or path.startswith(f"{within}.")):
            continue
        if isinstance(module, System):
            within = path
            found.append(_site(path, module, len(found)))
    return found


def heads_sites(model: nn.Module) -> list[HeadsSite]:
    """All attentions of a model or of any module, in the order in which they stand."""
    found = []
    for system in attention_sites(model):
        for name, module in system.module.named_modules():
            if isinstance(module, Attention):
                path = ".".join(filter(None, (system.path, name)))
                part = _PART.search(path)
                site = system.site if part is None else "_".join(part.groups())
                found.append(HeadsSite(site, system.layer, module, path, system))
    return found


def system_at(model: nn.Module, path: str) -> AttentionSite:
    """The system at a path of a model, or the only one in the module there.

    Raises:
        ValueError: there is no such module, or it does not hold a single system.
    """
    places = attention_sites(model)
    paths = [place.path for place in places]
    if path in paths:
        return places[paths.index(path)]
    if path not in dict(model.named_modules()):
        raise ValueError(
            f"path is {path!r}, expected that of a module with a system, such as {_some(paths)}"
            f"{did_you_mean(path, paths)}"
        )
    within = [place for place in places if not path or place.path.startswith(f"{path}.")]
    if len(within) == 1:
        return within[0]
    raise ValueError(
        f"path is {path!r}, where {len(within)} systems are, expected one of "
        f"{_some([place.path for place in within] or paths)}"
    )


def _some(paths: list[str]) -> str:
    more = f" and {len(paths) - 6} more" if len(paths) > 6 else ""
    return ", ".join(map(repr, paths[:6])) + more if paths else "none: the model has no system"


def _site(path: str, module: System, number: int) -> AttentionSite:
    match = _PATH.search(path)
    if match is None:
        return AttentionSite("", number, module, path)
    stack, layer, kind = match.groups()
    return AttentionSite(f"{stack}_{kind or 'self'}", int(layer), module, path)
