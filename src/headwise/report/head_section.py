"""What the report shows of the heads of a system: what they decide, and what training recorded."""

from dataclasses import dataclass

from markupsafe import Markup

from headwise.analysis.decisions.snapshots import AttentionRecord
from headwise.analysis.results import SystemSummary
from headwise.heads.words import Words
from headwise.report.figures.courses import course_panels, smoothing_radius
from headwise.report.figures.heads import entropy_by_layer, expert_load, load_scale
from headwise.report.figures.looks import Look
from headwise.report.place_names import site_name


@dataclass(frozen=True)
class SystemDecisions:
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


def decisions_of(system: SystemSummary, look: Look, identity: str) -> list[SystemDecisions]:
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
        scale = load_scale(record.load for record in records)
        entropy = ""
        if records:
            entropy = entropy_by_layer(records, words, look, f"{prefix}-entropy", alone=alone)
        found.append(
            SystemDecisions(
                title=title,
                alone=alone,
                words=words,
                records=records,
                percentiles=_percentiles(records),
                entropy=Markup(entropy),
                scale=scale,
                loads=_loads(records, words, scale, prefix, alone),
                courses=course_panels(courses, words, look, prefix, alone),
                smoothing=max((2 * smoothing_radius(c) + 1 for c in courses), default=1),
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
        site = site_name(group[0], alone=alone)
        title = f"{site}, {experts} {words.units}" if len(sizes) > 1 else site
        shares = {record.layer: record.load for record in group}
        svg = expert_load(shares, words, scale, site, f"{prefix}-load-{number}")
        loads.append((title, Markup(svg)))
    return loads
