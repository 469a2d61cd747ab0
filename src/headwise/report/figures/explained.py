"""The figures of how much labels explain of decisions, each an `<svg>` element."""

from collections.abc import Mapping, Sequence

from headwise.analysis.decisions.explained import ExplainedShare
from headwise.report.figures.looks import Look
from headwise.report.figures.svg import MUTED, drawing, panel, to_svg
from headwise.report.formatting import decimals

_BAR = 13  # points

# Runs by name, each with its records of one label by the name of their place.
ByRun = Mapping[str, Mapping[str, ExplainedShare]]


def explained_shares(
    label: str,
    by_run: ByRun,
    order: Sequence[str],
    bounds: tuple[float, float],
    looks: Mapping[str, Look],
    identity: str,
) -> str:
    """Bars from 0, one for each place and run, with their numbers behind them.

    Args:
        label: what explains the decisions.
        by_run: the records of the label.
        order: names of places, from top to bottom.
        bounds: least and greatest share of all labels, so that their figures have one scale.
        looks: of the runs, by name.
        identity: unique in the page.
    """
    places = [name for name in order if any(name in found for found in by_run.values())]
    height = 1 / (len(by_run) + 0.6)
    said = []
    with drawing(identity):
        figure, axes = panel(40 + (_BAR * len(by_run) + 9) * len(places))
        for shift, (run, found) in enumerate(by_run.items()):
            look = looks[run]
            for row, name in enumerate(places):
                if name not in found:
                    continue
                share, text = found[name].share or 0.0, decimals(found[name].share)
                at = row + (shift - (len(by_run) - 1) / 2) * height
                axes.barh(at, share, 0.45 * height, color=look.colour)
                axes.plot(share, at, marker=look.marker, markersize=6, color=look.colour)
                end = max(share, 0.0) + 0.025 * bounds[1]
                axes.text(end, at, text, va="center", fontsize=10, color=MUTED)
                said.append(f"{run + ', ' if len(looks) > 1 else ''}{name} {text}")
        axes.axvline(0, color=MUTED, linewidth=1)
        axes.set_xlim(1.1 * bounds[0], 1.14 * bounds[1])
        axes.set_yticks(range(len(places)), places)
        axes.set_ylim(len(places) - 0.45, -0.55)
        axes.tick_params(length=0)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("Share of the variance, chance taken away")
        return to_svg(figure, identity, f"How much {label} explains: {'; '.join(said)}.")
