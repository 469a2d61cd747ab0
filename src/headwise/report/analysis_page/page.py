"""The page of an analysis: one HTML file that needs nothing beside it, no network, no scripts."""

from collections.abc import Callable, Mapping, Sequence

from headwise.analysis.decisions.record import AnalysisRecord, RunAnalysis
from headwise.report.analysis_page.ablation import ablation_section
from headwise.report.analysis_page.courses import courses_section
from headwise.report.analysis_page.entropy import entropy_section
from headwise.report.analysis_page.explained import explained_section
from headwise.report.analysis_page.layers import layers_section
from headwise.report.analysis_page.likeness import likeness_section
from headwise.report.analysis_page.load import load_section
from headwise.report.analysis_page.ranges import ranges_section
from headwise.report.analysis_page.section import Section
from headwise.report.analysis_page.tokens import tokens_section
from headwise.report.figures.looks import Look, looks_of
from headwise.report.rendering import rendered

TEMPLATE = "analysis_page/page.html.jinja"
# In the order of the page.
SECTIONS: tuple[Callable[[Sequence[RunAnalysis], Mapping[str, Look]], Section | None], ...] = (
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
