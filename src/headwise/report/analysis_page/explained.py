"""The section of the page that says how much of the decisions each label explains."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from headwise.analysis.decisions.explained import ExplainedShare
from headwise.analysis.decisions.record import RunAnalysis
from headwise.report.analysis_page.legend import legend
from headwise.report.analysis_page.section import Section
from headwise.report.figures.explained import ByRun, explained_shares
from headwise.report.figures.looks import Look
from headwise.report.formatting import heading
from headwise.report.place_names import place_names
from headwise.report.rendering import rendered

IDENTITY = "explained"


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
        figures=[(caption, Markup(svg)) for caption, svg in figures],
        rows=rows,
        legend=legend(runs, looks, IDENTITY),
        sides="side" in by_label,
    )
    return Section(IDENTITY, "What explains the decisions", Markup(body))


def _caption(label: str, by_run: ByRun) -> str:
    of = {record.of for found in by_run.values() for record in found.values()}
    return heading(label) + (", over sequences" if of == {"sequences"} else "")
