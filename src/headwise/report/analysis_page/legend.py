"""The legend of figures of several runs."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from headwise.analysis.decisions.record import RunAnalysis
from headwise.report.figures.looks import Look, swatch


def legend(
    runs: Sequence[RunAnalysis], looks: Mapping[str, Look], identity: str
) -> list[tuple[str, Markup]]:
    """Names of the runs with a piece of their lines; empty of a single run, which needs none."""
    if len(runs) == 1:
        return []
    return [
        (run.name, Markup(swatch(looks[run.name], f"{identity}-swatch-{number}")))
        for number, run in enumerate(runs)
    ]
