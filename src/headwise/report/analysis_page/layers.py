"""The section of the page that says how alike layers decide, and how that goes with loudness."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill

from markupsafe import Markup

from headwise.analysis.decisions.layers import Matrix, StackLikeness
from headwise.analysis.decisions.record import RunAnalysis
from headwise.report.analysis_page.legend import legend
from headwise.report.analysis_page.section import Section
from headwise.report.figures.layers import layers_matrix, level_shares
from headwise.report.figures.looks import Look
from headwise.report.formatting import decimals, heading
from headwise.report.place_names import place_names
from headwise.report.rendering import rendered

IDENTITY = "layers"
_LETTERS = 12  # in a line of the name of a quantity


@dataclass(frozen=True)
class _Heat:
    """A matrix of one stack of a run, as a figure and a table."""

    title: str
    figure: Markup
    names: list[str]
    rows: list[list[str]]


def layers_section(runs: Sequence[RunAnalysis], looks: Mapping[str, Look]) -> Section | None:
    """Matrices of each run and stack, and curves of all runs; None if no run has any."""
    found = [(run, stack) for run in runs for stack in run.layers]
    if not found:
        return None
    named = [(run.name, stack) for run, stack in found]
    alike, plain = [], []
    for number, (run, stack) in enumerate(found):
        title = _title(run, stack, several=len(runs) > 1)
        names = [name.removeprefix(f"{stack.stack} ") for name in place_names(stack.places)]
        prefix = f"{IDENTITY}-{number}"
        if len(names) > 1:
            alike.append(_heat(title, stack.likeness, names, f"{prefix}-likeness", "Likeness"))
        if stack.first_unit is not None:
            names += [fill(each.level, _LETTERS) for each in stack.levels]
            plain.append(_heat(title, stack.first_unit, names, f"{prefix}-r", "Correlation"))
    body = rendered(
        "analysis_page/layers.html.jinja",
        alike=alike,
        plain=plain,
        levels=[
            (
                heading(level),
                Markup(level_shares(named, level, looks, f"{IDENTITY}-level-{number}")),
            )
            for number, level in enumerate(
                dict.fromkeys(each.level for _, stack in found for each in stack.levels)
            )
        ],
        legend=legend(runs, looks, IDENTITY),
        sequences=any(stack.of == "sequences" for _, stack in found),
        rows=[(_title(run, stack, several=True), stack.rows, stack.of) for run, stack in found],
    )
    return Section(IDENTITY, "How alike the layers decide", Markup(body))


def _title(run: RunAnalysis, stack: StackLikeness, *, several: bool) -> str:
    stacks = {each.stack for each in run.layers}
    parts = [run.name] * several + [stack.stack] * (len(stacks) > 1)
    return ", ".join(parts) or heading(stack.stack or "layers")


def _heat(title: str, matrix: Matrix, names: list[str], identity: str, what: str) -> _Heat:
    figure = Markup(layers_matrix(title, matrix, names, identity, what))
    return _Heat(title, figure, names, [[decimals(value) for value in row] for row in matrix])
