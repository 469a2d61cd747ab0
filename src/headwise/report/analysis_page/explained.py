"""The section of the page that says how much of the decisions each label explains."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from headwise.analysis.decisions.explained import ExplainedShare
from headwise.analysis.decisions.record import RunAnalysis
from headwise.report.analysis_page.section import Section, legend
from headwise.report.formatting import decimals, heading
from headwise.report.place_names import place_names
from headwise.report.rendering import rendered
from headwise.report.svg import MUTED, Look, drawing, panel, to_svg

IDENTITY = "explained"
_BAR = 13  # points

# Runs by name, each with its records of one label by the name of their place.
ByRun = Mapping[str, Mapping[str, ExplainedShare]]


def explained_section(runs: Sequence[RunAnalysis], looks: Mapping[str, Look]) -> Section | None:
    """Bars for each label and place, of all runs side by side; None if no run has any."""
    records = [(run.name, record) for run in runs for record in run.explained]
    if not records:
        return None
    names = place_names([record.where for _, record in records])
    by_label: dict[str, dict[str, dict[str, ExplainedShare]]] = {}
    rows = []
    for (run, record), name in zip(records, names, strict=True):
        of_run = by_label.setdefault(record.label, {}).setdefault(run, {})
        of_run[name] = record
        rows.append((run, name, record))
    order = list(dict.fromkeys(names))
    shares = [record.share for _, record in records if record.share is not None]
    largest, least = max([0.1, *shares]), min([0.0, *shares])
    figures = [
        (
            _caption(label, by_run),
            explained_shares(label, by_run, order, (least, largest), looks, f"{IDENTITY}-{number}"),
        )
        for number, (label, by_run) in enumerate(by_label.items())
    ]
    body = rendered(
        "analysis_page/explained.html.jinja",
        figures=[(caption, svg) for caption, svg in figures],
        rows=rows,
        legend=legend(runs, looks, IDENTITY),
        sides="side" in by_label,
    )
    return Section(IDENTITY, "What explains the decisions", body)


def _caption(label: str, by_run: ByRun) -> str:
    of = {record.of for found in by_run.values() for record in found.values()}
    return heading(label) + (", over sequences" if of == {"sequences"} else "")


def explained_shares(
    label: str,
    by_run: ByRun,
    order: Sequence[str],
    bounds: tuple[float, float],
    looks: Mapping[str, Look],
    identity: str,
) -> Markup:
    """Bars from 0, one for each place and run, with their numbers behind them."""
    places = [name for name in order if any(name in found for found in by_run.values())]
    height = 1 / (len(by_run) + 0.6)
    said = []
    with drawing(identity):
        figure, axes = panel(40 + (_BAR * len(by_run) + 9) * len(places))
        for shift, (run, found) in enumerate(by_run.items()):
            look = looks[run]
            for row, name in enumerate(places):
                if name not in found:
                    continue
                share, text = found[name].share or 0.0, decimals(found[name].share)
                at = row + (shift - (len(by_run) - 1) / 2) * height
                axes.barh(at, share, 0.45 * height, color=look.colour)
                axes.plot(share, at, marker=look.marker, markersize=6, color=look.colour)
                end = max(share, 0.0) + 0.025 * bounds[1]
                axes.text(end, at, text, va="center", fontsize=10, color=MUTED)
                said.append(f"{run + ', ' if len(looks) > 1 else ''}{name} {text}")
        axes.axvline(0, color=MUTED, linewidth=1)
        axes.set_xlim(1.1 * bounds[0], 1.14 * bounds[1])
        axes.set_yticks(range(len(places)), places)
        axes.set_ylim(len(places) - 0.45, -0.55)
        axes.tick_params(length=0)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("Share of the variance, chance taken away")
        return to_svg(figure, identity, f"How much {label} explains: {'; '.join(said)}.")
