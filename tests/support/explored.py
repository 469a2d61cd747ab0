"""What a page of `headwise explore` says of a model, as its browser reads it."""

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Explored(NamedTuple):
    """One model on a page."""

    tokens: dict[str, list[str]]  # the stacks to the names of what stands at their positions
    decisions: list[np.ndarray]  # of each system that decides: positions × units, or 1 × units
    chosen: list[list[list[int]] | None]  # of each of these, the units that each position chose


def read_page(page: Path) -> Explored:
    """The first model of a page."""
    text = page.read_text(encoding="utf-8")
    (payload,) = re.findall(r'<script type="application/json" id="payload">(.*?)</script>', text)
    model = json.loads(payload)["runs"][0]
    places = [place for place in model["places"] if place["units"]]
    return Explored(
        {name: stack["tokens"] for name, stack in model["stacks"].items()},
        [_numbers(place["weights"]) for place in places],
        [place["chosen"] for place in places],
    )


def _numbers(blob: dict[str, Any]) -> np.ndarray:
    """An array whose numbers are a byte each, without signs."""
    unpacked = zlib.decompress(base64.b64decode(blob["data"]), -zlib.MAX_WBITS)
    steps = np.frombuffer(unpacked, np.uint8).reshape(blob["shape"])
    return blob["scale"] * (steps / blob["levels"]) ** blob["power"]
