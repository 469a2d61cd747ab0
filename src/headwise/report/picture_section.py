"""What the report shows of a picture that systems have drawn, side by side."""

import base64
import binascii
import math
import struct
from dataclasses import dataclass

from headwise.analysis.results import ComparedPicture, Comparison

# A picture less wide is drawn by the pixel; enlarged, its pixels stay sharp.
_SMALL = 200


@dataclass(frozen=True)
class View:
    """A picture as it is shown, once for all systems that have the same.

    Attributes:
        systems: their names.
        caption: unless all systems have the same.
        png: base64.
        size: width and height in the page's pixels; None if the PNG does not tell.
        is_small: enlarged.
    """

    systems: str
    caption: str
    png: str
    size: tuple[int, int] | None
    is_small: bool


@dataclass(frozen=True)
class Views:
    """A picture of all systems side by side; the caption is empty if each has its own."""

    title: str
    caption: str
    views: list[View]


def views_of(comparison: Comparison, picture: ComparedPicture) -> Views:
    shared = {picture.captions.get(name, "") for name in picture.pngs}
    shown: dict[tuple[str, str], list[str]] = {}
    for name, png in picture.pngs.items():
        caption = picture.captions.get(name, "") if len(shared) > 1 else ""
        shown.setdefault((png, caption), []).append(name)
    everybody = 1 < len(comparison.systems) == len(picture.pngs)
    views = []
    for (png, caption), names in shown.items():
        systems = "all systems" if everybody and len(shown) == 1 else ", ".join(names)
        size = _png_size(png)
        is_small = size is not None and size[0] < _SMALL
        if size is not None and is_small:
            factor = math.ceil(_SMALL / size[0])
            size = (factor * size[0], factor * size[1])
        views.append(View(systems, caption, png, size, is_small))
    return Views(picture.title, shared.pop() if len(shared) == 1 else "", views)


def _png_size(png: str) -> tuple[int, int] | None:
    """Width and height from a PNG's head, so that the page does not jump while it loads."""
    try:
        head = base64.b64decode(png[:32])
    except (ValueError, binascii.Error):
        return None
    if len(head) < 24 or head[12:16] != b"IHDR":
        return None
    width, height = struct.unpack(">II", head[16:24])
    return (width, height) if width and height else None
