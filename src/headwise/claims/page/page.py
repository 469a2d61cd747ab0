"""Writes docs/claims.md and its pictures from what is kept: nothing in them is typed by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from headwise.analysis.results import Tries
from headwise.claims.catalogue.declared import SCALES, Claim, Paper, Scale
from headwise.claims.catalogue.experiments import (
    Experiment,
    Places,
    experiments,
    find_experiment,
    read_recipe,
)
from headwise.claims.catalogue.needed import Needed, needed_runs
from headwise.claims.evidence.conditions import Conditions
from headwise.claims.judging.verdicts import Kind, Verdict
from headwise.claims.page.convergence import LITTLE
from headwise.claims.page.experiment_results import ExperimentResult, experiment_results
from headwise.claims.page.experiment_table import ExperimentTables, experiment_tables
from headwise.claims.page.key_figures import key_figure
from headwise.claims.page.pictures.differences import differences_picture
from headwise.claims.page.pictures.forest_of_tests import forest_of_tests
from headwise.claims.page.pictures.loss_curves import loss_curves
from headwise.claims.page.pictures.marks import MARKS
from headwise.claims.page.pictures.overview import overview
from headwise.claims.page.templates import template
from headwise.claims.page.totals import totals
from headwise.claims.page.why_section import why_section
from headwise.files import write_text
from headwise.recipe.settings import Recipe
from headwise.runs.tuning import at_the_edge

Verdicts = Mapping[tuple[str, Scale], Verdict]
KINDS: tuple[Kind, ...] = (
    *("confirmed", "contradicted", "not comparable"),
    *("no difference", "cannot be told", "not run"),
)
PICTURES = "pictures"  # the folder beside the page
_TESTS = "-tests.svg"
_OF_TRAINING = (
    *("batch_tokens", "max_steps", "schedule", "warmup_steps", "optimizer", "weight_decay"),
    *("clip_norm", "precision", "patience"),
)


class ClaimsPage(NamedTuple):
    """The page in Markdown, and its pictures: name of a file to its text."""

    text: str
    pictures: Mapping[str, str]


class Row(NamedTuple):
    """An experiment as the page lists it."""

    scale: Scale
    name: str
    task: str
    recipe: str
    changes: str
    tuned: str
    chosen: str
    claims: str


class Section(NamedTuple):
    """The results of an experiment as the page shows them."""

    scale: Scale
    name: str
    recipe: str
    description: str
    changes: str
    settings: str
    versions: str
    claims: str
    systems: Mapping[str, str]  # name to description
    tables: Sequence[ExperimentTables]
    pictures: Mapping[str, str]


def claims_page(papers: list[Paper], verdicts: Verdicts, places: Places) -> ClaimsPage:
    """Returns the page and its pictures.

    Args:
        papers: the claims.
        verdicts: what is known of each claim at each scale.
        places: the folders of this machine, of which the evidence counts.
    """
    claims = {name: claim for paper in papers for name, claim in paper.claims.items()}
    results = experiment_results(places)
    of_claims = {
        f"claims-{scale}{ending}": svg
        for scale in SCALES
        if scale == SCALES[0] or any(verdicts[name, scale].runs for name in claims)
        for ending, svg in (
            (".svg", overview(papers, verdicts, scale)),
            (_TESTS, forest_of_tests(papers, verdicts, scale)),
        )
        if svg is not None
    }
    sections = [_section(of, claims) for of in results]
    why = why_section(places)
    text = template("page").render(
        papers=papers,
        verdicts=verdicts,
        scales=SCALES,
        counts={
            scale: {kind: sum(verdicts[n, scale].kind == kind for n in claims) for kind in KINDS}
            for scale in SCALES
        },
        kinds=KINDS,
        signs={kind: mark.sign for kind, mark in MARKS.items()},
        key_figures={name: key_figure(verdicts[name, SCALES[0]]) for name in claims},
        totals=[totals(claims, verdicts, results, scale) for scale in SCALES],
        overviews=[name for name in of_claims if not name.endswith(_TESTS)],
        forests=[name for name in of_claims if name.endswith(_TESTS)],
        rows=_rows(claims, places),
        sections=sections,
        changed=[name for name, claim in claims.items() if claim.changed],
        little=LITTLE,
        why=why.text,
        known=why.known,
    )
    of_experiments = {name: svg for each in sections for name, svg in each.pictures.items()}
    return ClaimsPage(text, of_claims | of_experiments | why.pictures)


def write_page(path: Path, page: ClaimsPage) -> None:
    """Writes the page, and its pictures into a folder beside it.

    Pictures that a former page had and this one lacks are removed.
    """
    folder = path.parent / PICTURES
    for name, svg in page.pictures.items():
        write_text(folder / name, svg)
    write_text(path, page.text)
    # Last, so that the page that is there never names a picture that is not.
    for former in [*folder.glob("claims-*.svg"), *folder.glob("why-*.svg")]:
        if former.name not in page.pictures:
            former.unlink()


def _section(results: Sequence[ExperimentResult], claims: Mapping[str, Claim]) -> Section:
    first = results[0]
    experiment = find_experiment(first.scale, first.name)
    recipe = read_recipe(experiment, None).recipe
    drawn = {"differences": differences_picture(results), "losses": loss_curves(results)}
    of_claims = _claims_of(claims, first.scale, first.name)
    return Section(
        scale=first.scale,
        name=first.name,
        recipe=experiment.recipe,
        description=experiment.describes or recipe.description,
        changes=_in_code(experiment.changes),
        settings=_in_code(_settings(first.systems[0].recipe)),
        versions=_versions(results),
        claims=", ".join(f"[{id}](#{id.lower()})" for id in of_claims),
        systems={each.name: recipe.systems[each.name].description for each in first.systems},
        tables=[experiment_tables(result) for result in results],
        pictures={
            f"claims-{first.scale}-{first.name}-{kind}.svg": svg
            for kind, svg in drawn.items()
            if svg is not None
        },
    )


def _settings(recipe: Recipe) -> list[str]:
    """Returns what a reader asks of a model and of its training, as `key=value`."""
    dumped = recipe.model_dump(mode="json")
    asked = {group: dumped.get(group) or {} for group in ("tokenizer", "model", "training")}
    asked["training"] = {key: asked["training"][key] for key in _OF_TRAINING}
    return [
        f"{group}.{key}={value}"
        for group, settings in asked.items()
        for key, value in settings.items()
        if isinstance(value, (int, float, str)) and key not in ("attention", "pretrained")
    ]


def _versions(results: Sequence[ExperimentResult]) -> str:
    """Returns the packages, with versions, that trained and scored the runs of an experiment."""
    runs = [each.run for of in results for system in of.systems for each in system.runs]
    found = {f"{package} {version}" for run in runs for package, version in run.versions.items()}
    return ", ".join(sorted(found))


def _in_code(changes: Sequence[str]) -> str:
    return ", ".join(f"`{change}`" for change in changes)


def _claims_of(claims: Mapping[str, Claim], scale: Scale, experiment: str) -> list[str]:
    """Returns the ids of the claims that an experiment tests."""
    return [
        name
        for name, claim in claims.items()
        if (where := claim.experiment_at(scale)) is not None and where.experiment == experiment
    ]


def _rows(claims: Mapping[str, Claim], places: Places) -> list[Row]:
    """Returns a row for each experiment of the scales that are headwise's own."""
    rows = []
    for scale in SCALES[:2]:
        needed = needed_runs(claims, scale)
        for name in experiments(scale):
            experiment = find_experiment(scale, name)
            rows.append(
                Row(
                    scale=scale,
                    name=name,
                    task=read_recipe(experiment, None).recipe.task,
                    recipe=experiment.recipe,
                    changes=_in_code(experiment.changes) or "–",
                    tuned=_asked(experiment),
                    chosen=_chosen(needed.get(name), Conditions(scale, name, places)),
                    claims=", ".join(_claims_of(claims, scale, name)) or "–",
                )
            )
    return rows


def _asked(experiment: Experiment) -> str:
    """Returns the values from which all systems choose, and how, in Markdown."""
    said = _in_code(experiment.tune) or "–"
    if experiment.tune_on is not None:
        said += f", on {experiment.tune_on}"
    if experiment.tune_steps is not None:
        said += f", tries of {experiment.tune_steps:,} steps"
    if experiment.tune_equal:
        said += f", losses within {experiment.tune_equal:g} counting as equal"
    return said


def _chosen(needed: Needed | None, conditions: Conditions) -> str:
    """Returns each system with the values it chose, as far as its tries are kept; else a dash."""
    found = []
    systems = [] if needed is None else [s for of in needed.systems.values() for s in of]
    for system in dict.fromkeys(systems):
        kept = conditions.tries(system)
        if kept is not None:
            values = ", ".join(str(value) for value in kept.chosen_values.values())
            found.append(f"{system} {values}{edge_mark(kept.tries)}")
    return "; ".join(found) or "–"


def edge_mark(tries: Tries) -> str:
    """Returns a mark if the lowest loss is at an end: a dagger where another value is chosen."""
    if not at_the_edge(tries.tries, tries.lowest):
        return ""
    return r"\*" if tries.chosen == tries.lowest else "†"
