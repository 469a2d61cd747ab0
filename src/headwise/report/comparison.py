"""A comparison as one HTML file that needs nothing beside it: no network, no scripts."""

import base64
import binascii
import math
import struct
from pathlib import Path
from typing import Any

from markupsafe import Markup

from headwise.analysis.results import (
    Benchmark,
    ComparedPicture,
    Comparison,
    RunResult,
    diverged,
    first_score,
    incomplete,
    sound_runs,
)
from headwise.files import write_text
from headwise.report.benchmark import (
    benchmark_columns,
    benchmark_notes,
    benchmark_rows,
    benchmark_verdict,
)
from headwise.report.cells import (
    all_scores,
    chance_over,
    difference_sources,
    find_score,
    interval_sources,
    several_seeds,
)
from headwise.report.comparison_figures import (
    close_up,
    differences,
    intervals,
    learning_curves,
    measured_curves,
    measures,
)
from headwise.report.formatting import NONE, decimals, heading
from headwise.report.heads import decisions_of, uniform_entropy
from headwise.report.how_soon import how_soon_section
from headwise.report.place_names import site_name
from headwise.report.rendering import rendered
from headwise.report.svg import legend, looks
from headwise.report.table import (
    further_table,
    perplexity,
    table_columns,
    table_notes,
    table_rows,
)
from headwise.report.verdict import verdict

TEMPLATE = "report.html.jinja"
BODY_TEMPLATE = "comparison.html.jinja"  # of a report of one data set, or of several
BENCHMARK_TEMPLATE = "benchmark.html.jinja"
# Number of pictures that are shown at once; further ones are folded.
SHOWN_PICTURES = 6
# A picture less wide is drawn by the pixel; enlarged, its pixels stay sharp.
_SMALL = 200


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
        columns=benchmark_columns(benchmark),
        rows=benchmark_rows(benchmark),
        notes=benchmark_notes(benchmark),
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
    runs = [run for system in comparison.systems for run in system.runs]
    return rendered(
        BODY_TEMPLATE,
        at=at,
        comparison=comparison,
        columns=table_columns(comparison),
        rows=table_rows(comparison),
        notes=table_notes(comparison),
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
        uniform_entropy=uniform_entropy,
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
        factor = math.ceil(_SMALL / width) if 0 < width < _SMALL else 1
        views.append(
            {
                "systems": systems,
                "caption": caption,  # unless all have the same
                "png": png,  # base64
                "size": (factor * width, factor * height),
                "is_small": 0 < width < _SMALL,
            }
        )
    caption = shared.pop() if len(shared) == 1 else ""
    return {"title": picture.title, "caption": caption, "views": views}


def _png_size(png: str) -> tuple[int, int]:
    """Width and height from a PNG's head, so that the page does not jump while it loads.

    Both are 0 for what is no PNG.
    """
    try:
        head = base64.b64decode(png[:32])
    except (ValueError, binascii.Error):
        return 0, 0
    if len(head) < 24 or head[12:16] != b"IHDR":
        return 0, 0
    width, height = struct.unpack(">II", head[16:24])
    return width, height
