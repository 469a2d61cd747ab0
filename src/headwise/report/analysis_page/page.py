"""The page of an analysis: one HTML file that needs nothing beside it, no network, no scripts."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from headwise.analysis.decisions.record import AnalysisRecord, RunAnalysis
from headwise.analysis.results import machine, versions
from headwise.files import write_text
from headwise.heads.words import Words
from headwise.report.analysis_page.ablations import ablation_section, costliest
from headwise.report.analysis_page.courses import courses_section
from headwise.report.analysis_page.entropy import entropy_section
from headwise.report.analysis_page.likeness import layers_section, likeness_section
from headwise.report.analysis_page.load import load_section
from headwise.report.analysis_page.section import Looks, Section
from headwise.report.analysis_page.tokens import (
    explained_section,
    ranges_section,
    tokens_section,
)
from headwise.report.rendering import rendered
from headwise.report.svg import looks_of

TEMPLATE = "analysis_page/page.html.jinja"
PAGE, RECORD = "analysis.html", "analysis.json"
# In the order of the page.
SECTIONS: tuple[Callable[[Sequence[RunAnalysis], Looks], Section | None], ...] = (
    entropy_section,
    load_section,
    tokens_section,
    ranges_section,
    explained_section,
    layers_section,
    likeness_section,
    ablation_section,
    courses_section,
)


def render_analysis(record: AnalysisRecord) -> str:
    """Returns the page of an analysis as HTML; everything that comes from the data is escaped."""
    looks = looks_of([run.name for run in record.runs])
    sections = [section(record.runs, looks) for section in SECTIONS]
    return rendered(
        TEMPLATE,
        title=record.title,
        record=record,
        sections=[section for section in sections if section is not None],
    )


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
        findings=[finding(run) for run in runs],
        versions=versions(),
        machine=machine(),
    )
    write_text(folder / RECORD, record.model_dump_json(indent=1))
    write_text(folder / PAGE, render_analysis(record))
    return record


def finding(run: RunAnalysis) -> str:
    """Returns what the heads of a run do, in a few clauses."""
    clauses = [
        clause
        for system, words in run.words.items()
        for clause in (_entropy(run, system, words), _load(run, system, words))
        if clause
    ]
    clauses += [clause for clause in (_likeness(run), _ablation(run)) if clause]
    return f"{run.name}: {'; '.join(clauses)}." if clauses else f"{run.name}: no heads to compare."


def _entropy(run: RunAnalysis, system: str, words: Words) -> str:
    groups = [] if run.entropy is None else run.entropy.models
    for group in groups:
        if group.system == system and group.spread.uniform:
            mean, even = group.spread.mean.value, group.spread.uniform
            return (
                f"the entropy of the {words.decision} is {100 * mean / even:.0f}% of that of even "
                f"weights ({mean:.2f} of {even:.2f} nats{_start(run, system)})"
                f"{_heard(run, system, words)}"
            )
    return ""


def _start(run: RunAnalysis, system: str) -> str:
    """What of it was there before the first step, if the run has taken snapshots."""
    courses = [] if run.courses is None else run.courses.snapshots
    starts = [course.start_entropy for course in courses if course.system == system]
    known = [start for start in starts if start is not None]
    return f"; {fmean(known):.2f} before training" if known else ""


def _heard(run: RunAnalysis, system: str, words: Words) -> str:
    modules = [] if run.entropy is None else run.entropy.modules
    heard = [
        (m.heard / m.units, m.heard, m.units)
        for m in modules
        if m.where.system == system and m.heard is not None
    ]
    if not heard:
        return ""
    _, least, units = min(heard)
    return f", and a {words.part} listens to {least:.1f} of {units} {words.units}"


def _load(run: RunAnalysis, system: str, words: Words) -> str:
    loads = [load.share for load in run.load if load.where.system == system]
    if not loads:
        return ""
    largest = fmean(load.largest for load in loads)
    unused, units = sum(load.unused for load in loads), sum(len(load.shares) for load in loads)
    has = "has" if unused == 1 else "have"
    idle = f" and {unused} of {units} {words.units} {has} no share" if unused else ""
    return f"the busiest {words.unit} of a module has {largest:.1f} times an even share{idle}"


def _likeness(run: RunAnalysis) -> str:
    if run.likeness is None:
        return ""
    alike = [found.mean_outputs for found in run.likeness.modules if found.mean_outputs is not None]
    if not alike:
        return ""
    return f"what two heads say is alike by {fmean(alike):.2f} (0 unlike, 1 the same)"


def _ablation(run: RunAnalysis) -> str:
    found = "" if run.ablations is None else costliest(run.ablations)
    return f"the costliest ablation: {found}" if found else ""
