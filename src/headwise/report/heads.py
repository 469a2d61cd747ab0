"""What the report of a comparison shows of the heads: what they decided, and what was recorded."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from markupsafe import Markup
from matplotlib.lines import Line2D

from headwise.analysis.decisions.snapshots import AttentionRecord
from headwise.analysis.results import SystemSummary
from headwise.analysis.words import Words
from headwise.report.figures import course_panels, layers_by_unit, smoothing
from headwise.report.formatting import site_name
from headwise.report.svg import HeatCell, Look, drawing, panel, reference_line, to_svg

_SITE_MARKERS = {"encoder_self": "o", "decoder_self": "s", "decoder_cross": "^"}
_SITE_DASHES = {"encoder_self": "-", "decoder_self": (0, (5, 2)), "decoder_cross": (0, (1, 1.5))}


def decisions_of(system: SystemSummary, look: Look) -> list[dict[str, Any]]:
    """What is shown of each kind of system in a model.

    Of the first seed: which expert bears which number is chance, so seeds have no mean.
    """
    run = system.runs[0]
    alone = len(run.macs_lengths) == 1
    # A system that decides nothing may still have a rule of training that records something.
    followed = [course for course in run.courses if len(course.steps) > 1]
    names = list(
        dict.fromkeys([*(r.system for r in run.attention), *(course.system for course in followed)])
    )
    found = []
    for name in names:
        words = run.words.get(name, Words())
        records = [record for record in run.attention if record.system == name]
        courses = [course for course in followed if course.system == name]
        scale = load_scale(record.load for record in records)
        found.append(
            {
                "title": f"{system.name}: {words.units}" if len(names) > 1 else system.name,
                "alone": alone,
                "words": words,
                "records": records,
                "percentiles": _percentiles(records),
                "entropy": _entropy_by_layer(records, look, alone) if records else "",
                "scale": scale,
                "loads": _loads(records, words, scale, alone),
                "courses": course_panels(courses, words, look, alone),
                "smoothing": smoothing(courses),
            }
        )
    return found


def _percentiles(records: list[AttentionRecord]) -> dict[int, str]:
    """The percentiles that the table has, each with its header."""
    # Of a decision that holds for all positions there is a single row, which is its percentiles.
    if all(len(set(record.entropy_percentiles.values())) == 1 for record in records):
        return {}
    percentiles = {percent for record in records for percent in record.entropy_percentiles}
    return {percent: f"{percent}th percentile" for percent in sorted(percentiles)}


def _loads(
    records: list[AttentionRecord], words: Words, scale: float, alone: bool
) -> list[tuple[str, Markup]]:
    groups: dict[tuple[str, int], list[AttentionRecord]] = {}
    for record in records:
        groups.setdefault((record.site, record.experts), []).append(record)
    sizes = {experts for _, experts in groups}
    loads = []
    for (_, experts), group in groups.items():
        site = site_name(group[0], alone=alone)
        title = f"{site}, {experts} {words.units}" if len(sizes) > 1 else site
        shares = {record.layer: record.load for record in group}
        loads.append((title, expert_load(shares, words, scale, site)))
    return loads


def _entropy_by_layer(records: list[AttentionRecord], look: Look, alone: bool) -> Markup:
    """Entropy over layers, a line per site, and the entropy of equal weights for reference."""
    bounds = sorted({round(record.uniform, 6) for record in records})
    sites = list(dict.fromkeys(record.site for record in records))
    with drawing():
        figure, axes = panel(250)
        for bound in bounds:
            reference_line(axes, bound, f"uniform: ln {math.exp(bound):.0f} = {bound:.2f}")
        handles = []
        for site in sites:
            of_site = sorted((r for r in records if r.site == site), key=lambda r: r.layer)
            style: dict[str, Any] = {
                "color": look.colour,
                "linestyle": _SITE_DASHES.get(site, "-"),
                "marker": _SITE_MARKERS.get(site, "D"),
                "markersize": 7,
            }
            axes.plot([r.layer for r in of_site], [r.entropy for r in of_site], **style)
            handles.append(Line2D([], [], label=_short_site(of_site[0], alone), **style))
        layers = sorted({record.layer for record in records})
        axes.set_xticks(layers if len(layers) <= 12 else layers[:: len(layers) // 6])
        axes.set_xlim(layers[0] - 0.4, layers[-1] + 0.4)
        finite = [r.entropy for r in records if math.isfinite(r.entropy)]
        axes.set_ylim(0, 1.18 * max([*finite, *bounds, 0.1]))
        axes.set_xlabel("Layer")
        axes.set_ylabel("Entropy, nats")
        if not alone:
            figure.legend(
                handles=handles, loc="outside upper left", ncols=3, fontsize=11, handlelength=2.4,
                columnspacing=1.2, borderpad=0,
            )  # fmt: skip
        said = "; ".join(f"{_short_site(r, alone)} {r.layer}: {r.entropy:.2f}" for r in records)
        limit = ", ".join(f"{bound:.2f}" for bound in bounds)
        return to_svg(figure, f"Entropy per site and layer, {said}; {limit} would be uniform.")


def load_scale(loads: Iterable[list[float]]) -> float:
    """The load at full colour, in multiples of an even share; at least 2, so even is midway."""
    return max([2.0, *(max(load) * len(load) for load in loads if load)])


def expert_load(loads: Mapping[int, list[float]], words: Words, scale: float, place: str) -> Markup:
    """Layers × experts of one site; the stronger a cell's colour, the larger its share."""
    experts = len(next(iter(loads.values())))
    cells = {
        layer: {
            expert: HeatCell(share * experts / scale, f"{100 * share:.0f}%")
            for expert, share in enumerate(load)
        }
        for layer, load in loads.items()
    }
    said = "; ".join(f"layer {layer} {_extremes(load)}" for layer, load in sorted(loads.items()))
    label = f"{place}, share of each of {experts} {words.units}: {said}."
    return layers_by_unit(cells, words.unit, label, fontsize=11)


def _extremes(load: list[float]) -> str:
    return f"from {100 * min(load):.1f}% to {100 * max(load):.1f}%"


def _short_site(record: AttentionRecord, alone: bool) -> str:
    name = site_name(record, alone=alone)
    return name.removesuffix("-attention").removesuffix(" layers").lower()
