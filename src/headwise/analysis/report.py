"""A comparison as one HTML file that needs nothing beside it: no network, no scripts."""

import math
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from headwise.analysis import figures
from headwise.analysis.results import AttentionRecord, Comparison, RunResult, SystemSummary
from headwise.analysis.table import HEADERS, perplexity, table_notes, table_rows
from headwise.analysis.verdict import count, diverged, sound_runs, verdict
from headwise.files import write_text

TEMPLATE = "report.html.jinja"


@dataclass(frozen=True)
class Experts:
    """What the report shows of the experts of one system."""

    name: str
    kind: str
    records: list[AttentionRecord]
    entropy: Markup
    scale: float
    loads: list[tuple[str, Markup]]  # title and figure per site


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
        experts=[
            _experts(system, looks[system.name], f"experts-{number}")
            for number, system in enumerate(comparison.systems)
            if system.runs[0].attention and not diverged(system.runs[0])
        ],
        experts_lost=[
            s.name for s in comparison.systems if s.runs[0].attention and diverged(s.runs[0])
        ],
        heat_opacity=figures.HEAT_OPACITY,
        sites=figures.SITES,
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


def _experts(system: SystemSummary, look: figures.Look, identity: str) -> Experts:
    """Of the first seed: which expert bears which number is chance, so seeds have no mean."""
    records = system.runs[0].attention
    scale = figures.load_scale(records)
    groups: dict[tuple[str, int], list[AttentionRecord]] = {}
    for record in records:
        groups.setdefault((record.site, record.experts), []).append(record)
    sizes = {experts for _, experts in groups}
    loads = []
    for number, ((site, experts), group) in enumerate(groups.items()):
        title = figures.SITES.get(site, site)
        title += f", {experts} experts" if len(sizes) > 1 else ""
        svg = figures.expert_load(group, scale, f"{identity}-load-{number}")
        loads.append((title, Markup(svg)))
    return Experts(
        name=system.name,
        kind=records[0].kind,
        records=records,
        entropy=Markup(figures.gate_entropy(records, look, f"{identity}-entropy")),
        scale=scale,
        loads=loads,
    )


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
