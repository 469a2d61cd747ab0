"""The section of the page that shows the least, mean and greatest weight of frequent tokens."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from headwise.analysis.decisions.ranges import PlaceRanges
from headwise.analysis.decisions.record import RunAnalysis
from headwise.heads.words import Words
from headwise.report.analysis_page.section import Section
from headwise.report.figures.looks import Look
from headwise.report.figures.ranges import SHOWN, token_ranges
from headwise.report.place_names import place_names
from headwise.report.rendering import rendered

IDENTITY = "ranges"


def ranges_section(runs: Sequence[RunAnalysis], looks: Mapping[str, Look]) -> Section | None:
    """A figure for each run and stack; None if no run has tokens."""
    made: list[tuple[str, Words, PlaceRanges, Markup]] = []
    for run in runs:
        names = place_names([found.where for found in run.ranges])
        by_stack: dict[str, list[tuple[PlaceRanges, str]]] = {}
        for found, name in zip(run.ranges, names, strict=True):
            by_stack.setdefault(found.where.stack, []).append((found, name))
        for of_stack in by_stack.values():
            found, name = max(of_stack, key=lambda each: each[0].spread)
            title = f"{run.name}, {name}" if len(runs) > 1 else name
            identity = f"{IDENTITY}-{len(made)}"
            words = run.words.get(found.where.system, Words())
            svg = token_ranges(found, title, words, looks[run.name], identity)
            made.append((title, words, found, Markup(svg)))
    if not made:
        return None
    kinds = list(dict.fromkeys(found.word for _, _, found, _ in made))
    body = rendered("analysis_page/ranges.html.jinja", made=made, shown=SHOWN, kinds=kinds)
    return Section(
        IDENTITY, "Weights of frequent " + " and ".join(f"{k}s" for k in kinds), body=Markup(body)
    )
