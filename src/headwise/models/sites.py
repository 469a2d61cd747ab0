"""Where in a model each attention stands."""

import re
from typing import NamedTuple

from torch import nn

from headwise.heads.attention import MultiHeadAttention

_PATH = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.(self|cross)_attention")


class AttentionSite(NamedTuple):
    """An attention module and its place: `encoder_self`, layer 0, and so on."""

    site: str
    layer: int
    module: MultiHeadAttention


def attention_sites(model: nn.Module) -> list[AttentionSite]:
    """All attention modules of a headwise model, in the order in which they stand."""
    found = []
    for path, module in model.named_modules():
        match = _PATH.search(path)
        if match and isinstance(module, MultiHeadAttention):
            stack, layer, kind = match.groups()
            found.append(AttentionSite(f"{stack}_{kind}", int(layer), module))
    return found
