"""The section on how undecided the systems are."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from headwise.analysis.decisions.entropy import PERCENTILES, EntropySpread, ModuleEntropy
from headwise.analysis.decisions.record import RunAnalysis
from headwise.analysis.decisions.sums import difference
from headwise.report.analysis_page.section import Figures, Kind, Looks, kinds, legend_of
from headwise.report.figures import Banded, banded_lines
from headwise.report.formatting import NONE, signed

Points = dict[str, tuple[float, float, float]]


def entropy_section(runs: Sequence[RunAnalysis], looks: Looks) -> dict[str, Any] | None:
    """Returns what is shown, with runs compared to the last; None if none decides."""
    found = kinds(runs, lambda run: run.entropy.modules if run.entropy else [])
    if not found:
        return None
    return {
        "legend": legend_of(runs, looks),
        "runs": runs,
        "percents": {percent: f"{percent}th percentile" for percent in PERCENTILES},
        "resolution": max(run.entropy.resolution for run in runs if run.entropy),
        "difference": _difference,
        "kinds": [
            (kind, _over_model(runs, kind.name), _figures(runs, looks, kind)) for kind in found
        ],
    }


def _over_model(runs: Sequence[RunAnalysis], system: str) -> dict[str, EntropySpread]:
    return {
        run.name: group.spread
        for run in runs
        for group in (run.entropy.models if run.entropy else [])
        if group.system == system
    }


def _difference(spread: EntropySpread, reference: EntropySpread) -> str:
    """The difference to the reference, unless other numbers of units make it meaningless."""
    if not math.isclose(spread.uniform, reference.uniform, rel_tol=1e-6):
        return NONE
    text = signed(spread.mean.value - reference.mean.value, 3)
    found = difference(spread.mean, reference.mean)
    if found is not None:
        text += f" ({signed(found.low, 3)} to {signed(found.high, 3)})"
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _figures(runs: Sequence[RunAnalysis], looks: Looks, kind: Kind[ModuleEntropy]) -> Figures:
    """The entropy by layer, a figure for each site."""
    figures = []
    for site, of_runs in kind.sites.items():
        lines = [
            Banded(runs[number].name, looks[runs[number].name], _by_layer(modules))
            for number, modules in of_runs.items()
        ]
        places = {place for line in lines for place in line.points}
        svg = banded_lines(
            lines,
            sorted(places, key=int),
            _uniform(of_runs),
            ("Layer", "Entropy, nats"),
            f"{site}, entropy by layer",
        )
        figures.append((f"{site}: by layer", svg))
    return figures


def _uniform(of_runs: Mapping[int, list[ModuleEntropy]]) -> list[tuple[float, str]]:
    bounds = {round(m.spread.uniform, 6) for modules in of_runs.values() for m in modules}
    return [(bound, f"uniform: ln {math.exp(bound):.0f} = {bound:.2f}") for bound in sorted(bounds)]


def _by_layer(modules: Sequence[ModuleEntropy]) -> Points:
    lowest, highest = PERCENTILES[0], PERCENTILES[-1]
    spreads = {str(module.where.layer): module.spread for module in modules}
    return {
        layer: (spread.mean.value, spread.percentiles[lowest], spread.percentiles[highest])
        for layer, spread in spreads.items()
    }
