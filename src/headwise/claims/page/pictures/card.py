"""A picture as a file: on a white card, since a file does not know the colours of its page."""

import re

from matplotlib.figure import Figure

from headwise.report.svg import to_svg

# The light colours of the report, in which colour-blind readers can tell the series apart.
_COLOURS = {
    "currentColor": "#1b1e23",
    "var(--muted)": "#5a6270",
    "var(--line)": "#dde1e7",
    "var(--surface)": "#ffffff",
    "var(--heat)": "#1f78c8",
    "var(--series-0)": "#2b2f36",
    "var(--series-1)": "#1f3fd0",
    "var(--series-2)": "#e34a0a",
    "var(--series-3)": "#23906a",
    "var(--series-4)": "#d071a4",
    "var(--series-5)": "#8c1c13",
    "var(--series-6)": "#5a86f5",
}
_FONTS = "'DejaVu Sans', Verdana, sans-serif"
# What says where something stands; hundredths of a point are more than an eye sees.
_PLACES = re.compile(r'\b(?:d|x|y|transform)="[^"]*"')
_LONG = re.compile(r"(\d\.\d\d)\d+")
_ROOT = re.compile(r'<svg viewBox="0 0 ([\d.]+) ([\d.]+)" (.*?)>')


def card(figure: Figure, identity: str, label: str) -> str:
    """Returns the text of an SVG file.

    Args:
        figure: drawn with `headwise.report.svg.drawing`.
        identity: a prefix of all ids.
        label: all that the picture says, for screen readers.
    """
    svg = str(to_svg(figure, identity, label))
    for variable, colour in _COLOURS.items():
        svg = svg.replace(variable, colour)
    svg = _PLACES.sub(lambda found: _LONG.sub(r"\1", found[0]), svg)
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)
    svg = re.sub(r"'DejaVu Sans',[^;\"]*sans-serif", _FONTS, svg)
    root = _ROOT.match(svg)
    assert root is not None, svg[:200]
    width, height, meaning = root.groups()
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'width="{width}" height="{height}" viewBox="-10 -10 {float(width) + 20:g} '
        f'{float(height) + 20:g}" {meaning}>'
        f'\n<rect x="-9.5" y="-9.5" width="{float(width) + 19:g}" height="{float(height) + 19:g}" '
        f'rx="8" fill="#ffffff" stroke="#dde1e7"/>'
    )
    return head + svg[root.end() :] + "\n"
