"""Writes docs/claims.md from what is kept: nothing on the page is typed by hand."""

from collections.abc import Mapping
from importlib import resources
from typing import NamedTuple

from jinja2 import Environment, StrictUndefined

from headwise.claims.declared import SCALES, Claim, Paper, Scale
from headwise.claims.evidence import read_tries, tuning_path
from headwise.claims.experiments import Places, experiments, find_experiment, read_recipe
from headwise.claims.needed import Needed, needed_runs
from headwise.claims.verdicts import Kind, Verdict

Verdicts = Mapping[tuple[str, Scale], Verdict]
KINDS: tuple[Kind, ...] = (
    *("confirmed", "contradicted", "no difference", "cannot be told"),
    "not run",
)


class Row(NamedTuple):
    """An experiment as the page lists it."""

    scale: Scale
    name: str
    task: str
    recipe: str
    changes: str
    chosen: str
    claims: str


def render_page(papers: list[Paper], verdicts: Verdicts, places: Places, why: str) -> str:
    """Returns the page in Markdown.

    Args:
        papers: the claims.
        verdicts: what is known of each claim at each scale.
        places: the folders of this machine, of which the evidence counts.
        why: the section that answers questions why, see `why_section`.
    """
    template = resources.files("headwise") / "claims" / "page.md.jinja"
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    claims = {name: claim for paper in papers for name, claim in paper.claims.items()}
    counts = {
        scale: {kind: sum(verdicts[n, scale].kind == kind for n in claims) for kind in KINDS}
        for scale in SCALES
    }
    return environment.from_string(template.read_text(encoding="utf-8")).render(
        papers=papers,
        verdicts=verdicts,
        scales=SCALES,
        counts=counts,
        kinds=KINDS,
        rows=_rows(claims, places),
        why=why,
    )


def _rows(claims: Mapping[str, Claim], places: Places) -> list[Row]:
    """The experiments of the scales that are headwise's own."""
    rows = []
    for scale in SCALES[:2]:
        needed = needed_runs(claims, scale)
        for name in experiments(scale):
            experiment = find_experiment(scale, name)
            using = [
                claim
                for claim, of in claims.items()
                if (where := of.experiment_at(scale)) is not None and where.experiment == name
            ]
            rows.append(
                Row(
                    scale,
                    name,
                    read_recipe(experiment, None).recipe.task,
                    experiment.recipe,
                    ", ".join(f"`{change}`" for change in experiment.changes) or "–",
                    _chosen(needed.get(name), places.of(scale, name)),
                    ", ".join(using) or "–",
                )
            )
    return rows


def _chosen(needed: Needed | None, own: Places) -> str:
    """What systems have chosen from equal tries, as far as it is known."""
    found = []
    systems = [] if needed is None else [s for of in needed.systems.values() for s in of]
    for system in dict.fromkeys(systems):
        kept = read_tries(tuning_path(own.evidence, system))
        if kept is not None:
            values = ", ".join(str(value) for value in kept.chosen_values.values())
            found.append(f"{system} {values}")
    return "; ".join(found) or "–"
