"""A comparison as one HTML file that needs nothing beside it and fetches nothing."""

import base64
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from PIL import Image

from headwise.analysis.decisions.snapshots import relative_entropy
from headwise.analysis.how_soon import Curve, curve, mean_curve
from headwise.analysis.results import (
    Benchmark,
    ComparedPicture,
    Comparison,
    RunResult,
    SystemSummary,
    diverged,
    first_score,
    incomplete,
    sound_runs,
)
from headwise.files import write_text
from headwise.report.benchmark import benchmark_scores, benchmark_verdict
from headwise.report.cells import (
    all_scores,
    chance_over,
    difference_sources,
    find_score,
    interval_of,
    interval_sources,
    several_seeds,
)
from headwise.report.figures import Dot, dots_by_row
from headwise.report.formatting import NONE, decimals, heading, signed, site_name
from headwise.report.heads import decisions_of
from headwise.report.how_soon import how_soon_section
from headwise.report.rendering import rendered
from headwise.report.svg import drawing, legend, looks, panel, to_svg
from headwise.report.table import comparison_scores, further_table, perplexity, verdict

TEMPLATE = "report.html.jinja"
BODY_TEMPLATE = "comparison.html.jinja"  # of a report of one data set, or of several
BENCHMARK_TEMPLATE = "benchmark.html.jinja"
# Number of pictures that are shown at once; further ones are folded.
SHOWN_PICTURES = 6
# A picture less wide is drawn by the pixel; enlarged, its pixels stay sharp.
_SMALL = 200
_LETTERS_OF_A_NAME = 22
# What snapshots show of all systems alike.
ENTROPY = "entropy of decisions / uniform"
# Records of a validation that are no figures measured by a task.
_NOT_MEASURED = ("step", "epoch", "loss", "eval_loss", "seconds")


def write_report(results: Comparison | Benchmark, path: Path) -> None:
    """Write the report to `path`; the file is there whole or, on an error, as it was before."""
    if isinstance(results, Benchmark):
        write_text(path, render_benchmark(results))
    else:
        write_text(path, render_report(results))


def render_benchmark(benchmark: Benchmark) -> str:
    """The page as HTML, with the report of each data set. All that is data is escaped."""
    return rendered(
        BENCHMARK_TEMPLATE,
        title=benchmark.title,
        incomplete=incomplete(benchmark),
        verdict=benchmark_verdict(benchmark),
        table=benchmark_scores(benchmark),
        reports=[
            {
                "name": name,
                "at": (at := f"data-set-{number}-"),
                "verdict": verdict(comparison),
                "body": _body(comparison, at),
            }
            for number, (name, comparison) in enumerate(benchmark.comparisons.items(), 1)
        ],
    )


def render_report(comparison: Comparison) -> str:
    """The report as HTML. Everything that comes from the data is escaped."""
    return rendered(
        TEMPLATE,
        title=comparison.title,
        incomplete=incomplete(comparison),
        verdict=verdict(comparison),
        body=_body(comparison),
    )


def _body(comparison: Comparison, at: str = "") -> Markup:
    """What a comparison has found, as HTML.

    `at` begins the ids of its sections, which makes them unique in a page of several comparisons.
    """
    look_of = looks(comparison)
    in_legend = {
        system.name if sound_runs(system) else f"{system.name} (diverged)": look_of[system.name]
        for system in comparison.systems
    }
    learning = [
        ("From the first step", learning_curves(comparison)),
        ("Validation loss, second half", close_up(comparison)),
    ]
    runs = _runs(comparison)
    return rendered(
        BODY_TEMPLATE,
        at=at,
        comparison=comparison,
        table=comparison_scores(comparison),
        further=further_table(comparison),
        several_seeds=several_seeds(comparison),
        legend=legend(in_legend, in_legend),
        intervals=intervals(comparison),
        differences=differences(comparison),
        intervals_over=chance_over(interval_sources(comparison), comparison.item_name),
        differences_over=chance_over(difference_sources(comparison), comparison.item_name),
        first_score=first_score(comparison).name,
        learning=[(title, svg) for title, svg in learning if svg is not None],
        soon=how_soon_section(comparison),
        measured=[
            (heading(name), measured_curves(comparison, name)) for name in measures(comparison)
        ],
        decisions=[
            decision
            for system in comparison.systems
            if not diverged(system.runs[0])
            for decision in decisions_of(system, look_of[system.name])
        ],
        decisions_lost=[
            s.name
            for s in comparison.systems
            if (s.runs[0].attention or s.runs[0].courses) and diverged(s.runs[0])
        ],
        site_name=site_name,
        diverged=diverged,
        perplexity=perplexity,
        pictures=[views_of(comparison, picture) for picture in comparison.pictures],
        shown_pictures=SHOWN_PICTURES,
        scores=all_scores(comparison),
        score_notes=_score_notes(runs),
        exactly=_exactly,
        runs=runs,
    )


def _score_notes(runs: list[RunResult]) -> list[str]:
    """Returns the notes of the scores, each once, in the order of the scores."""
    scores = [score for run in runs for score in run.scores]
    # All of the first score, then all of the next.
    names = list(dict.fromkeys(score.name for score in scores))
    scores.sort(key=lambda score: names.index(score.name))
    return list(
        dict.fromkeys(f"{heading(score.name)} {score.note}" for score in scores if score.note)
    )


def _exactly(run: RunResult, name: str) -> str:
    """A score with one more digit than elsewhere in the report."""
    found = find_score(run, name)
    return NONE if found is None else decimals(found.value, found.digits + 1)


def views_of(comparison: Comparison, picture: ComparedPicture) -> dict[str, Any]:
    """A picture of all systems side by side, once for those that have the same."""
    shared = {picture.captions.get(name, "") for name in picture.pngs}
    shown: dict[tuple[str, str], list[str]] = {}
    for name, png in picture.pngs.items():
        caption = picture.captions.get(name, "") if len(shared) > 1 else ""
        shown.setdefault((png, caption), []).append(name)
    everybody = 1 < len(comparison.systems) == len(picture.pngs)
    views = []
    for (png, caption), names in shown.items():
        systems = "all systems" if everybody and len(shown) == 1 else ", ".join(names)
        width, height = _png_size(png)
        factor = math.ceil(_SMALL / width)
        views.append(
            {
                "systems": systems,
                "caption": caption,  # unless all have the same
                "png": png,  # base64
                "size": (factor * width, factor * height),
                "is_small": width < _SMALL,
            }
        )
    caption = shared.pop() if len(shared) == 1 else ""
    return {"title": picture.title, "caption": caption, "views": views}


def _png_size(png: str) -> tuple[int, int]:
    """Width and height, so that the page does not jump while it loads."""
    with Image.open(io.BytesIO(base64.b64decode(png))) as picture:
        return picture.size


# Its figures: scores, and losses over training, each an `<svg>` element.


def intervals(comparison: Comparison) -> Markup | None:
    """The first score: a point for each seed, the mean and its interval; None for one system."""
    score = first_score(comparison)
    systems = [s for s in comparison.systems if score.name in s.estimates]
    if len(systems) < 2:
        return None
    dots, said = [], []
    for system in systems:
        estimate = system.estimates[score.name]
        text = f"{system.name} {estimate.value:.{score.digits}f}"
        if (ends := interval_of(estimate)) is not None:
            text += f", {ends[0]:.{score.digits}f} to {ends[1]:.{score.digits}f}"
        values = [run.scores[0].value for run in sound_runs(system)]
        seeds = [value for value in values if math.isfinite(value)]
        look = looks(comparison)[system.name]
        dots.append(Dot(_shortened(system.name), estimate.value, ends, look, seeds=seeds))
        said.append(text)
    axis = heading(score.name)
    label = f"{axis} of each system with its 95% interval: {'; '.join(said)}."
    return dots_by_row(dots, axis, label)


def differences(comparison: Comparison) -> Markup | None:
    """The differences of the first score to the baseline with their intervals, and zero."""
    score = first_score(comparison)
    dots, said = [], []
    for system in comparison.systems:
        if (found := system.difference) is not None:
            ends, look = (found.low, found.high), looks(comparison)[system.name]
            dots.append(Dot(_shortened(system.name), found.value, ends, look, found.significant))
            value, *interval = (signed(x, score.digits) for x in (found.value, *ends))
            said.append(f"{system.name} {value}, {' to '.join(interval)}")
    if not dots:
        return None
    axis = f"{heading(score.name)}, difference to {_shortened(comparison.baseline)}"
    label = f"Differences to the baseline with their 95% intervals: {'; '.join(said)}."
    return dots_by_row(dots, axis, label, zero=True)


def _shortened(name: str) -> str:
    """Shortens a long name in its middle, since similar names differ at the end."""
    if len(name) <= _LETTERS_OF_A_NAME:
        return name
    half = (_LETTERS_OF_A_NAME - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def _curve(run: RunResult, key: str) -> Curve:
    """The finite values by step under a key of the history, or ENTROPY."""
    return relative_entropy(run.snapshots) if key == ENTROPY else curve(run.history, key)


def learning_curves(comparison: Comparison) -> Markup | None:
    """Training and validation loss of all systems from the first step; None if not recorded."""
    ceiling = _ceiling(comparison)
    if ceiling is None:
        return None

    def limit(axes: Axes) -> None:
        lowest = float(axes.dataLim.ymin)
        if not math.isfinite(lowest):  # all systems diverged, at no step that their seeds share
            return
        room = 0.05 * (ceiling - lowest) or 0.1
        axes.set_ylim(lowest - room, ceiling + room)
        axes.set_xlim(left=0)

    label = "Training and validation loss of each system over the steps of training."
    label = f"{label} {_last_losses(comparison)}"
    y = f"Loss, {comparison.loss_name}"
    return _over_steps(comparison, "eval_loss", y, label, limit, with_training=True)


def close_up(comparison: Comparison) -> Markup | None:
    """Validation loss in the second half of training, where all curves lie close together."""
    steps = [step for run in _runs(comparison) for step in _curve(run, "eval_loss")]
    if len(set(steps)) < 4:
        return None
    start, end = max(steps) / 2, max(steps)
    ceiling = _ceiling(comparison)
    values = [
        value
        for run in _runs(comparison)
        for step, value in _curve(run, "eval_loss").items()
        if step >= start and ceiling is not None and value <= ceiling
    ]
    if not values:
        return None

    def limit(axes: Axes) -> None:
        room = 0.06 * (max(values) - min(values)) or 0.1
        axes.set_ylim(min(values) - room, max(values) + room)
        axes.set_xlim(start - 0.02 * end, end * 1.02)

    label = "Validation loss of each system in the second half of training."
    label = f"{label} {_last_losses(comparison)}"
    return _over_steps(comparison, "eval_loss", "Validation loss", label, limit)


def measures(comparison: Comparison) -> list[str]:
    """What was measured at validations, by name: the task's own figures, and ENTROPY."""
    found = [key for run in _runs(comparison) for record in run.history for key in record]
    names = dict.fromkeys([*found, ENTROPY])
    return [
        name
        for name in names
        if name not in _NOT_MEASURED and any(_curve(run, name) for run in _runs(comparison))
    ]


def measured_curves(comparison: Comparison, name: str) -> Markup:
    """A measured figure of all systems over the steps of training."""
    ends = [
        f"{system.name} {values[max(values)]:.3g}"
        for system in comparison.systems
        if (values := _mean_of_sound(system, name))
    ]
    label = f"{heading(name)} of each system over the steps of training. Last: {'; '.join(ends)}."
    return _over_steps(comparison, name, heading(name), label, lambda axes: axes.set_xlim(left=0))


def _over_steps(
    comparison: Comparison,
    key: str,
    y: str,
    label: str,
    limit: Callable[[Axes], object],
    *,
    with_training: bool = False,
) -> Markup:
    """What is recorded at validations, a line for each system, and a thin one for each seed.

    `limit` sets the ends of the axes. The lines of the training loss are pale.
    """
    with drawing():
        figure, axes = panel(290)
        for system in comparison.systems if with_training else []:
            colour, mean = looks(comparison)[system.name].colour, _mean_of_sound(system, "loss")
            axes.plot(list(mean), list(mean.values()), color=colour, linewidth=1.2, alpha=0.45)
        for system in comparison.systems:
            look, mean = looks(comparison)[system.name], _mean_of_sound(system, key)
            every = max(1, len(mean) // 8)
            axes.plot(list(mean), list(mean.values()), **look.line, markersize=5, markevery=every)
            for run in system.runs if len(system.runs) > 1 else []:
                each = _curve(run, key)
                thin: dict[str, Any] = {"linestyle": look.dashes, "linewidth": 0.9, "alpha": 0.7}
                axes.plot(list(each), list(each.values()), color=look.colour, **thin)
        limit(axes)
        axes.set_xlabel("Step")
        axes.set_ylabel(y)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6))
        return to_svg(figure, label)


def _mean_of_sound(system: SystemSummary, key: str) -> Curve:
    """Returns the mean curve of the seeds that did not diverge, or of all if all diverged."""
    return mean_curve([_curve(run, key) for run in sound_runs(system) or system.runs])


def _ceiling(comparison: Comparison) -> float | None:
    """The top of the picture: where losses start. A run that explodes leaves through it."""
    runs = _runs(comparison)
    starts = [
        losses[min(losses)]
        for run in [run for run in runs if not diverged(run)] or runs
        for key in ("loss", "eval_loss")
        if (losses := _curve(run, key))
    ]
    return max(starts) if starts else None


def _runs(comparison: Comparison) -> list[RunResult]:
    return [run for system in comparison.systems for run in system.runs]


def _last_losses(comparison: Comparison) -> str:
    """The final losses of the lines that are drawn: means over the seeds that did not diverge."""
    ends = []
    for system in comparison.systems:
        losses = _mean_of_sound(system, "eval_loss")
        if not sound_runs(system):
            ends.append(f"{system.name} diverged")
        elif losses:
            ends.append(f"{system.name} {losses[max(losses)]:.3f}")
    over_seeds = ", mean over seeds" if several_seeds(comparison) else ""
    return f"Last validation loss{over_seeds}: {'; '.join(ends)}." if ends else ""
