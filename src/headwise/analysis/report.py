"""A comparison as one HTML file that needs nothing beside it: no network, no scripts."""

import base64
import binascii
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from headwise.analysis import figures, score_figures
from headwise.analysis.benchmark import (
    benchmark_columns,
    benchmark_notes,
    benchmark_rows,
    benchmark_verdict,
)
from headwise.analysis.formatting import NONE, count, heading
from headwise.analysis.further_tests import further_columns, further_notes, further_rows
from headwise.analysis.how_soon_table import how_soon_section
from headwise.analysis.results import (
    AttentionRecord,
    Benchmark,
    ComparedPicture,
    ComparedSample,
    Comparison,
    Course,
    RunResult,
    SystemSummary,
    incomplete,
)
from headwise.analysis.table import (
    perplexity,
    table_columns,
    table_notes,
    table_rows,
)
from headwise.analysis.table_cells import (
    all_scores,
    chance_over,
    difference_sources,
    interval_sources,
)
from headwise.analysis.verdict import (
    diverged,
    first_score,
    sound_runs,
    verdict,
)
from headwise.files import write_text
from headwise.heads.words import Words

TEMPLATE = "report.html.jinja"
BODY_TEMPLATE = "comparison.html.jinja"  # of a report of one data set, or of several
BENCHMARK_TEMPLATE = "benchmark.html.jinja"
# Number of pictures that are shown at once; further ones are folded.
SHOWN_PICTURES = 6
# A picture less wide is drawn by the pixel; enlarged, its pixels stay sharp.
_SMALL = 200


@dataclass(frozen=True)
class Decisions:
    """What the report shows of the decisions of one system of heads in a model."""

    title: str
    alone: bool  # the model has a single stack
    words: Words
    records: list[AttentionRecord]  # none of a system that decides nothing
    percentiles: list[int]  # those that are worth a column
    entropy: Markup
    scale: float
    loads: list[tuple[str, Markup]]  # title and figure per site
    courses: dict[str, list[tuple[str, Markup]]]  # by site: title and figure per layer
    smoothing: int  # how many records of these a point is the mean of


@dataclass(frozen=True)
class View:
    """A picture as it is shown, once for all systems that have the same.

    Attributes:
        systems: their names.
        caption: unless all systems have the same.
        png: base64.
        size: width and height in the page's pixels; None if the PNG does not tell.
        is_small: enlarged.
    """

    systems: str
    caption: str
    png: str
    size: tuple[int, int] | None
    is_small: bool


@dataclass(frozen=True)
class Views:
    """A picture of all systems side by side; the caption is empty if each has its own."""

    title: str
    caption: str
    views: list[View]


def write_report(results: Comparison | Benchmark, path: Path) -> None:
    """Write the report to `path`; the file is there whole or, on an error, as it was before."""
    if isinstance(results, Benchmark):
        write_text(path, render_benchmark(results))
    else:
        write_text(path, render_report(results))


def render_benchmark(benchmark: Benchmark) -> str:
    """The page as HTML, with the report of each data set. All that is data is escaped."""
    return (
        _environment()
        .get_template(BENCHMARK_TEMPLATE)
        .render(
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
    )


def render_report(comparison: Comparison) -> str:
    """The report as HTML. Everything that comes from the data is escaped."""
    return (
        _environment()
        .get_template(TEMPLATE)
        .render(
            title=comparison.title,
            incomplete=incomplete(comparison),
            verdict=verdict(comparison),
            body=_body(comparison),
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(count=count, duration=duration)
    return environment


def _body(comparison: Comparison, at: str = "") -> Markup:
    """What a comparison has found, as HTML.

    Args:
        comparison: on one data set.
        at: a prefix of all ids, which makes them unique in a page of several comparisons.
    """
    looks = figures.looks(comparison)
    learning = [
        ("From the first step", figures.learning_curves(comparison, f"{at}curves")),
        ("Validation loss, second half", figures.close_up(comparison, f"{at}close-up")),
    ]
    measured = [
        (heading(name), figures.measured_curves(comparison, name, f"{at}measured-{n}"))
        for n, name in enumerate(figures.measures(comparison))
    ]
    runs = [run for system in comparison.systems for run in system.runs]
    return Markup(
        _environment()
        .get_template(BODY_TEMPLATE)
        .render(
            at=at,
            comparison=comparison,
            columns=table_columns(comparison),
            rows=table_rows(comparison),
            notes=table_notes(comparison),
            further={
                "columns": further_columns(comparison),
                "rows": further_rows(comparison),
                "notes": further_notes(comparison),
            },
            several_seeds=any(len(system.runs) > 1 for system in comparison.systems),
            legend=[
                (
                    _in_legend(system),
                    Markup(figures.swatch(looks[system.name], f"{at}swatch-{number}")),
                )
                for number, system in enumerate(comparison.systems)
            ],
            intervals=_drawn(comparison, score_figures.intervals, f"{at}intervals"),
            differences=_drawn(comparison, score_figures.differences, f"{at}differences"),
            intervals_over=chance_over(interval_sources(comparison), comparison.item_name),
            differences_over=chance_over(difference_sources(comparison), comparison.item_name),
            first_score=heading(first_score(comparison).name),
            learning=[(title, Markup(svg)) for title, svg in learning if svg is not None],
            soon=how_soon_section(comparison, f"{at}how-soon-losses"),
            measured=[(title, Markup(svg)) for title, svg in measured],
            decisions=[
                decision
                for number, system in enumerate(comparison.systems)
                if not diverged(system.runs[0])
                for decision in _decisions(system, looks[system.name], f"{at}heads-{number}")
            ],
            decisions_lost=[
                s.name
                for s in comparison.systems
                if (s.runs[0].attention or s.runs[0].courses) and diverged(s.runs[0])
            ],
            heat_opacity=figures.HEAT_OPACITY,
            site_name=figures.site_name,
            uniform_entropy=figures.uniform_entropy,
            diverged=diverged,
            perplexity=perplexity,
            has_perplexity=comparison.loss_has_perplexity,
            expected=_expected,
            pictures=[_views(comparison, picture) for picture in comparison.pictures],
            shown_pictures=SHOWN_PICTURES,
            scores={heading(score.name): score.name for score in all_scores(comparison)},
            score_notes=_score_notes(runs),
            exactly=_exactly,
            runs=runs,
        )
    )


def _in_legend(system: SystemSummary) -> str:
    return system.name if sound_runs(system) else f"{system.name} (diverged)"


def _drawn(
    comparison: Comparison, draw: Callable[[Comparison, str], str | None], identity: str
) -> Markup | None:
    svg = draw(comparison, identity)
    return None if svg is None else Markup(svg)


def _decisions(system: SystemSummary, look: figures.Look, identity: str) -> list[Decisions]:
    """Of the first seed: which expert bears which number is chance, so seeds have no mean."""
    run = system.runs[0]
    alone = len(run.macs_lengths) == 1
    # A system that decides nothing may still have a rule of training that records something.
    followed = [course for course in run.courses if len(course.steps) > 1]
    of_attention = [record.system for record in run.attention]
    names = list(dict.fromkeys([*of_attention, *(course.system for course in followed)]))
    found = []
    for number, name in enumerate(names):
        words = run.words.get(name, Words())
        records = [record for record in run.attention if record.system == name]
        title = f"{system.name}: {words.units}" if len(names) > 1 else system.name
        courses = [course for course in followed if course.system == name]
        prefix = f"{identity}-{number}"
        scale = figures.load_scale(records)
        entropy = ""
        if records:
            entropy = figures.entropy_by_layer(
                records, words, look, f"{prefix}-entropy", alone=alone
            )
        found.append(
            Decisions(
                title=title,
                alone=alone,
                words=words,
                records=records,
                percentiles=_percentiles(records),
                entropy=Markup(entropy),
                scale=scale,
                loads=_loads(records, words, scale, prefix, alone),
                courses=_courses(courses, words, look, prefix, alone),
                smoothing=max((2 * figures.smoothing_radius(c) + 1 for c in courses), default=1),
            )
        )
    return found


def _percentiles(records: list[AttentionRecord]) -> list[int]:
    # Of a decision that holds for all positions there is a single row, which is its percentiles.
    if all(len(set(record.entropy_percentiles.values())) == 1 for record in records):
        return []
    return sorted({percent for record in records for percent in record.entropy_percentiles})


def _loads(
    records: list[AttentionRecord], words: Words, scale: float, prefix: str, alone: bool
) -> list[tuple[str, Markup]]:
    groups: dict[tuple[str, int], list[AttentionRecord]] = {}
    for record in records:
        groups.setdefault((record.site, record.experts), []).append(record)
    sizes = {experts for _, experts in groups}
    loads = []
    for number, ((_, experts), group) in enumerate(groups.items()):
        title = figures.site_name(group[0], alone=alone)
        title += f", {experts} {words.units}" if len(sizes) > 1 else ""
        svg = figures.expert_load(group, words, scale, f"{prefix}-load-{number}", alone=alone)
        loads.append((title, Markup(svg)))
    return loads


def _courses(
    courses: list[Course], words: Words, look: figures.Look, prefix: str, alone: bool
) -> dict[str, list[tuple[str, Markup]]]:
    scale = figures.course_scale(courses)
    by_site: dict[str, list[tuple[str, Markup]]] = {}
    for number, course in enumerate(courses):
        site = figures.site_name(course, alone=alone)
        identity = f"{prefix}-course-{number}"
        svg = figures.course_over_training(course, words, scale, look, identity, alone=alone)
        by_site.setdefault(site, []).append((f"Layer {course.layer}", Markup(svg)))
    return by_site


def _expected(sample: ComparedSample) -> list[str]:
    """The labels of what a system is to find: all but the first, which is what it sees."""
    return list(sample.given)[1:]


def _views(comparison: Comparison, picture: ComparedPicture) -> Views:
    shared = {picture.captions.get(name, "") for name in picture.pngs}
    shown: dict[tuple[str, str], list[str]] = {}
    for name, png in picture.pngs.items():
        caption = picture.captions.get(name, "") if len(shared) > 1 else ""
        shown.setdefault((png, caption), []).append(name)
    everybody = 1 < len(comparison.systems) == len(picture.pngs)
    views = []
    for (png, caption), names in shown.items():
        systems = "all systems" if everybody and len(shown) == 1 else ", ".join(names)
        size = _png_size(png)
        is_small = size is not None and size[0] < _SMALL
        if size is not None and is_small:
            factor = math.ceil(_SMALL / size[0])
            size = (factor * size[0], factor * size[1])
        views.append(View(systems, caption, png, size, is_small))
    return Views(picture.title, shared.pop() if len(shared) == 1 else "", views)


def _png_size(png: str) -> tuple[int, int] | None:
    """Width and height from a PNG's head, so that the page does not jump while it loads."""
    try:
        head = base64.b64decode(png[:32])
    except (ValueError, binascii.Error):
        return None
    if len(head) < 24 or head[12:16] != b"IHDR":
        return None
    width, height = struct.unpack(">II", head[16:24])
    return (width, height) if width and height else None


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
    found = [score for score in run.scores if score.name == name]
    if not found or not math.isfinite(found[0].value):
        return NONE
    return f"{found[0].value:.{found[0].digits + 1}f}"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> duration(59.6), duration(754), duration(7384)
    ('1 min 0 s', '12 min 34 s', '2 h 3 min')
    """
    if not math.isfinite(seconds):
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
