"""The page of an analysis: one HTML file that needs nothing beside it, no network, no scripts."""

from collections.abc import Callable, Mapping, Sequence

from headwise.analysis.behaviour.page.ablation import ablation_section
from headwise.analysis.behaviour.page.courses import courses_section
from headwise.analysis.behaviour.page.entropy import entropy_section
from headwise.analysis.behaviour.page.explained import explained_section
from headwise.analysis.behaviour.page.layers import layers_section
from headwise.analysis.behaviour.page.likeness import likeness_section
from headwise.analysis.behaviour.page.load import load_section
from headwise.analysis.behaviour.page.ranges import ranges_section
from headwise.analysis.behaviour.page.section import Section
from headwise.analysis.behaviour.page.tokens import tokens_section
from headwise.analysis.behaviour.results import AnalysisRecord, RunAnalysis
from headwise.analysis.figures.looks import Look, looks_of
from headwise.analysis.rendering import rendered

TEMPLATE = "behaviour/page/page.html.jinja"
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
