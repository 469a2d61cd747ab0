"""The page of an analysis: one HTML file that needs nothing beside it and fetches nothing."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from pydantic import TypeAdapter

from headwise.analysis.decisions.record import AnalysisRecord, RunAnalysis
from headwise.analysis.results import machine, versions
from headwise.files import write_bytes, write_text
from headwise.report.analysis_page.ablations import ablation_section, costliest
from headwise.report.analysis_page.courses import courses_section
from headwise.report.analysis_page.entropy import entropy_section
from headwise.report.analysis_page.layers import layers_section
from headwise.report.analysis_page.load import load_section
from headwise.report.analysis_page.section import Looks
from headwise.report.analysis_page.tokens import explained_section, ranges_section, tokens_section
from headwise.report.rendering import rendered, said
from headwise.report.svg import looks_of

TEMPLATE = "analysis_page/page.html.jinja"
PAGE, RECORD = "analysis.html", "analysis.json"
# Anchor, which is the template's name too, to the title and what makes the template's values.
SECTIONS: dict[str, tuple[str, Callable[[Sequence[RunAnalysis], Looks], dict[str, Any] | None]]] = {
    "entropy": ("How undecided the decisions are", entropy_section),
    "load": ("How the work is shared", load_section),
    "tokens": ("Which tokens go to which units", tokens_section),
    "ranges": ("Weights of frequent {frequent}", ranges_section),
    "explained": ("What explains the decisions", explained_section),
    "layers": ("How alike the layers decide", layers_section),
    "ablations": ("What each part is worth", ablation_section),
    "over-training": ("Over training", courses_section),
}


def render_analysis(record: AnalysisRecord) -> str:
    """Returns the page of an analysis as HTML; everything that comes from the data is escaped."""
    return rendered(TEMPLATE, title=record.title, record=record, sections=sections_of(record.runs))


def sections_of(
    runs: Sequence[RunAnalysis], names: Iterable[str] = SECTIONS
) -> list[tuple[str, str, Markup]]:
    """Returns anchor, title and HTML of each section that has something to show."""
    looks = looks_of([run.name for run in runs])
    sections = []
    for name in names:
        title, values_of = SECTIONS[name]
        if (values := values_of(runs, looks)) is not None:
            body = rendered(f"analysis_page/{name}.html.jinja", **values)
            sections.append((name, title.format_map(values), body))
    return sections


def write_analysis(
    folder: Path,
    runs: Sequence[RunAnalysis],
    part: str,
    *,
    against: str | None = None,
    command: str = "",
) -> AnalysisRecord:
    """Writes the page and the record of analysed runs into a folder, and returns the record."""
    record = AnalysisRecord(
        title=f"What the heads do: {', '.join(run.name for run in runs)}",
        command=command,
        part=part,
        runs=list(runs),
        against=against,
        findings=[
            f"{run.name}: {said}" if len(runs) > 1 else said
            for run in runs
            for said in findings(run)
        ],
        versions=versions(),
        machine=machine(),
    )
    # Null at what is not finite: JSON has no NaN.
    write_bytes(folder / RECORD, TypeAdapter(Any).dump_json(record.model_dump(), indent=1))
    write_text(folder / PAGE, render_analysis(record))
    return record


def findings(run: RunAnalysis) -> list[str]:
    """Returns what the heads of a run do in three sentences, or fewer where fewer are known.

    They are on what a part is worth, on how the work is shared, and on how undecided it is.
    """
    shares = [
        (run.words[name], [load.share for load in run.load if load.where.system == name])
        for name in run.words
    ]
    entropies = [(run.words[name], *_entropy(run, name)) for name in run.words]
    found = []
    if run.ablations is not None and (costs := costliest(run.ablations)):
        found.append(said("of_costliest", costliest=costs))
    if run.load:
        found.append(said("of_shares", systems=shares))
    if any(entropy for _, entropy, _ in entropies):
        found.append(said("of_entropy", systems=entropies))
    return found or [
        "No system of these models decides how heads are combined: there is nothing to compare."
    ]


def _entropy(run: RunAnalysis, name: str) -> tuple[Any, list[float]]:
    """The entropy of a system, and that before training."""
    groups = [] if run.entropy is None else run.entropy.models
    spreads = [g.spread for g in groups if g.system == name and g.spread.uniform]
    courses = [] if run.courses is None else run.courses.snapshots
    starts = [course.start_entropy for course in courses if course.system == name]
    return next(iter(spreads), None), [start for start in starts if start is not None]
