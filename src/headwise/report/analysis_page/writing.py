"""The files of an analysis: a page, and every number in it."""

from collections.abc import Sequence
from pathlib import Path

from headwise.analysis.decisions.record import AnalysisRecord, RunAnalysis
from headwise.analysis.results import machine, versions
from headwise.files import write_text
from headwise.report.analysis_page.findings import finding
from headwise.report.analysis_page.page import render_analysis

PAGE, RECORD = "analysis.html", "analysis.json"


def write_analysis(
    folder: Path,
    runs: Sequence[RunAnalysis],
    part: str,
    *,
    against: str | None = None,
    command: str = "",
) -> AnalysisRecord:
    """Writes the page and the record of analysed runs into a folder, and returns the record.

    Args:
        folder: where they are written.
        runs: side by side, at least one.
        part: the part of the data, and how much it is.
        against: name of the run to which differences are given, the last one; None for none.
        command: that makes the files; empty if none does.
    """
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
