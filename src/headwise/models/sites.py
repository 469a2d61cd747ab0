"""Where in a model each system stands."""

import re
from typing import NamedTuple

from torch import nn

from headwise.heads.system import System

_PATH = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.(?:(self|cross)_attention|system)$")


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


def _site(path: str, module: System, number: int) -> AttentionSite:
    match = _PATH.search(path)
    if match is None:
        return AttentionSite("", number, module, path)
    stack, layer, kind = match.groups()
    return AttentionSite(f"{stack}_{kind or 'self'}", int(layer), module, path)
