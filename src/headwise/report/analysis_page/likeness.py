"""The section on how alike heads are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from headwise.analysis.decisions.likeness import HeadsLikeness, SystemLikeness
from headwise.analysis.decisions.record import RunAnalysis
from headwise.report.analysis_page.legend import legend
from headwise.report.analysis_page.section import Section
from headwise.report.figures.likeness import likeness_by_layer, likeness_matrix
from headwise.report.figures.looks import Look
from headwise.report.formatting import NONE, decimals
from headwise.report.place_names import SITES, place_name
from headwise.report.rendering import rendered

IDENTITY = "likeness"
MEASURES = {"outputs": "what heads say", "attention": "what heads look at"}


@dataclass(frozen=True)
class RunMeans:
    """A row of the table of means: one system of one run."""

    run: str
    likeness: SystemLikeness


@dataclass(frozen=True)
class ModuleDetails:
    """One attention of a run, with its matrices drawn."""

    place: str
    likeness: HeadsLikeness
    alike: dict[str, str]  # for each measure the most alike pair
    matrix: Markup


def likeness_section(runs: Sequence[RunAnalysis], looks: Mapping[str, Look]) -> Section | None:
    """Returns the section, or None if no run has attentions of several heads."""
    having = [run for run in runs if run.likeness is not None]
    if not having:
        return None
    means = [
        RunMeans(run.name, system)
        for run in having
        if run.likeness
        for system in run.likeness.systems
    ]
    body = rendered(
        "analysis_page/likeness.html.jinja",
        identity=IDENTITY,
        means=means,
        several_systems=len({made.likeness.system for made in means}) > 1,
        legend=legend(having, looks, IDENTITY),
        panels=_panels(having, looks),
        details=[(run.name, _details(run, number)) for number, run in enumerate(having)],
    )
    return Section(IDENTITY, "How alike the heads are", Markup(body))


def _panels(runs: Sequence[RunAnalysis], looks: Mapping[str, Look]) -> list[tuple[str, Markup]]:
    """Title and figure for each site and measure."""
    modules = [module for run in runs if run.likeness for module in run.likeness.modules]
    panels = []
    for number, site in enumerate(dict.fromkeys(module.where.site for module in modules)):
        for measure, meaning in MEASURES.items():
            lines = {}
            for run in runs:
                points = [
                    (module.where.layer, value)
                    for module in (run.likeness.modules if run.likeness else [])
                    if module.where.site == site
                    and (value := getattr(module, f"mean_{measure}")) is not None
                ]
                if points:
                    lines[run.name] = sorted(points)
            title = f"{SITES.get(site, 'Attention')}: {meaning}"
            if lines:
                identity = f"{IDENTITY}-{measure}-{number}"
                panels.append((title, Markup(likeness_by_layer(lines, looks, identity, title))))
    return panels


def _details(run: RunAnalysis, number: int) -> list[ModuleDetails]:
    details = []
    for index, module in enumerate(run.likeness.modules if run.likeness else []):
        pairs = {measure: getattr(module, f"most_alike_{measure}") for measure in MEASURES}
        alike = {
            measure: NONE if pair is None else _pair(pair, getattr(module, measure))
            for measure, pair in pairs.items()
        }
        place = place_name(module.where)
        label = f"{place}, {len(module.outputs)} {module.unit}s, most alike: " + "; ".join(
            f"in {MEASURES[measure]} {pair}" for measure, pair in alike.items()
        )
        identity = f"{IDENTITY}-matrix-{number}-{index}"
        svg = likeness_matrix(module.outputs, module.attention, identity, label)
        details.append(ModuleDetails(place, module, alike, Markup(svg)))
    return details


def _pair(pair: tuple[int, int], matrix: Sequence[Sequence[float | None]]) -> str:
    first, second = pair
    return f"{first} and {second} ({decimals(matrix[first][second])})"
