"""Where in a model each system stands."""

import re
from typing import NamedTuple

from torch import nn

from headwise.heads.system import System

_PATH = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.(?:(self|cross)_attention|system)$")


class AttentionSite(NamedTuple):
    """A system and its place: `encoder_self`, layer 0, and so on.

    One that takes the place of a whole layer stands at the layer's self-attention.
    """

    site: str
    layer: int
    module: System
    path: str


def attention_sites(model: nn.Module) -> list[AttentionSite]:
    """All attention modules of a headwise model, in the order in which they stand."""
    found = []
    for path, module in model.named_modules():
        match = _PATH.search(path)
        if match and isinstance(module, System):
            stack, layer, kind = match.groups()
            found.append(AttentionSite(f"{stack}_{kind or 'self'}", int(layer), module, path))
    return found
