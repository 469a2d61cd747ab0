"""A comparison as one HTML file that needs nothing beside it: no network, no scripts."""

import math
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from headwise.analysis import figures
from headwise.analysis.results import (
    AttentionRecord,
    BranchTrajectory,
    Comparison,
    RunResult,
    SystemSummary,
)
from headwise.analysis.table import HEADERS, perplexity, table_notes, table_rows
from headwise.analysis.verdict import count, diverged, sound_runs, verdict
from headwise.files import write_text

TEMPLATE = "report.html.jinja"


@dataclass(frozen=True)
class Decisions:
    """What the report shows of one kind of decision in one system."""

    title: str
    kind: str
    noun: str
    plural: str
    records: list[AttentionRecord]
    percentiles: list[int]  # those that are worth a column
    entropy: Markup
    scale: float
    loads: list[tuple[str, Markup]]  # title and figure per site
    branches: dict[str, list[tuple[str, Markup]]]  # by site: title and figure per layer
    smoothing: int  # how many records of these a point is the mean of


def write_report(comparison: Comparison, path: Path) -> None:
    """Write the report to `path`; the file is there whole or, on an error, as it was before."""
    write_text(path, render_report(comparison))


def render_report(comparison: Comparison) -> str:
    """The report as HTML. Everything that comes from the data is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(count=count, duration=duration)
    looks = figures.looks(comparison)
    learning = [
        ("From the first step", figures.learning_curves(comparison, "curves")),
        ("Validation loss, second half", figures.close_up(comparison, "close-up")),
    ]
    return environment.get_template(TEMPLATE).render(
        comparison=comparison,
        verdict=verdict(comparison),
        headers=HEADERS,
        rows=table_rows(comparison),
        notes=table_notes(comparison),
        several_seeds=any(len(system.runs) > 1 for system in comparison.systems),
        legend=[
            (_in_legend(system), Markup(figures.swatch(looks[system.name], f"swatch-{number}")))
            for number, system in enumerate(comparison.systems)
        ],
        intervals=_intervals(comparison),
        learning=[(title, Markup(svg)) for title, svg in learning if svg is not None],
        decisions=[
            decision
            for number, system in enumerate(comparison.systems)
            if not diverged(system.runs[0])
            for decision in _decisions(system, looks[system.name], f"heads-{number}")
        ],
        decisions_lost=[
            s.name for s in comparison.systems if s.runs[0].attention and diverged(s.runs[0])
        ],
        heat_opacity=figures.HEAT_OPACITY,
        site_name=figures.site_name,
        uniform_entropy=figures.uniform_entropy,
        diverged=diverged,
        perplexity=perplexity,
        signatures=_signatures(comparison),
        runs=[run for system in comparison.systems for run in system.runs],
    )


def _in_legend(system: SystemSummary) -> str:
    return system.name if sound_runs(system) else f"{system.name} (diverged)"


def _intervals(comparison: Comparison) -> Markup | None:
    if sum(bool(sound_runs(system)) for system in comparison.systems) < 2:
        return None
    return Markup(figures.bleu_intervals(comparison, "intervals"))


def _decisions(system: SystemSummary, look: figures.Look, identity: str) -> list[Decisions]:
    """Of the first seed: which expert bears which number is chance, so seeds have no mean."""
    kinds = list(dict.fromkeys(record.kind for record in system.runs[0].attention))
    found = []
    for number, kind in enumerate(kinds):
        records = [record for record in system.runs[0].attention if record.kind == kind]
        title = f"{system.name}: {figures.plural(kind)}" if len(kinds) > 1 else system.name
        trajectories = system.runs[0].branches if kind == "branches" else []
        prefix = f"{identity}-{number}"
        scale = figures.load_scale(records)
        found.append(
            Decisions(
                title=title,
                kind=kind,
                noun=figures.noun(kind),
                plural=figures.plural(kind),
                records=records,
                percentiles=_percentiles(records),
                entropy=Markup(figures.entropy_by_layer(records, look, f"{prefix}-entropy")),
                scale=scale,
                loads=_loads(records, scale, prefix),
                branches=_branches(trajectories, look, prefix),
                smoothing=max(
                    (2 * figures.smoothing_radius(t) + 1 for t in trajectories), default=1
                ),
            )
        )
    return found


def _percentiles(records: list[AttentionRecord]) -> list[int]:
    if records[0].kind == "branches":  # a single row, which is all of its percentiles
        return []
    return sorted({percent for record in records for percent in record.entropy_percentiles})


def _loads(records: list[AttentionRecord], scale: float, prefix: str) -> list[tuple[str, Markup]]:
    groups: dict[tuple[str, int], list[AttentionRecord]] = {}
    for record in records:
        groups.setdefault((record.site, record.experts), []).append(record)
    sizes = {experts for _, experts in groups}
    loads = []
    for number, ((_, experts), group) in enumerate(groups.items()):
        title = figures.site_name(group[0])
        title += f", {experts} {figures.plural(group[0].kind)}" if len(sizes) > 1 else ""
        svg = figures.expert_load(group, scale, f"{prefix}-load-{number}")
        loads.append((title, Markup(svg)))
    return loads


def _branches(
    trajectories: list[BranchTrajectory], look: figures.Look, prefix: str
) -> dict[str, list[tuple[str, Markup]]]:
    shown = [trajectory for trajectory in trajectories if len(trajectory.steps) > 1]
    ceiling = figures.branch_ceiling(shown)
    by_site: dict[str, list[tuple[str, Markup]]] = {}
    for number, trajectory in enumerate(shown):
        site = figures.SITES.get(trajectory.site, trajectory.site)
        svg = figures.branch_weights(trajectory, ceiling, look, f"{prefix}-branches-{number}")
        by_site.setdefault(site, []).append((f"Layer {trajectory.layer}", Markup(svg)))
    return by_site


def _signatures(comparison: Comparison) -> list[str]:
    """Each once, in the order they come."""
    runs: list[RunResult] = [run for system in comparison.systems for run in system.runs]
    bleu = [f"BLEU {run.score.bleu_signature}" for run in runs]
    chrf = [f"chrF {run.score.chrf_signature}" for run in runs]
    return list(dict.fromkeys(bleu + chrf))


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
