"""Writes docs/claims.md and its pictures from what is kept: nothing in them is typed by hand."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evidence.answers import AtPoint, answer
from evidence.claims import SCALES, Against, Claim, Paper, Scale
from evidence.experiments import Conditions, Places, experiments, needed_runs
from evidence.judging import interval
from evidence.pictures import MARKS, TEMPLATES, forest_of_tests, overview, trend_lines
from evidence.quantities import Found
from evidence.questions import all_questions
from evidence.tables import LITTLE, ExperimentResult, experiment_results
from evidence.verdicts import Verdict
from headwise.analysis.results import Tries
from headwise.analysis.statistics.estimates import SIGNIFICANT
from headwise.files import write_text
from headwise.recipes.settings import Recipe
from headwise.report.formatting import count, decimals, p_value
from headwise.runs.tuning import at_the_edge

Verdicts = Mapping[tuple[str, Scale], Verdict]
PICTURES = "pictures"  # the folder beside the page
# The page beside it that has the table of verdicts, and stands in the repository.
SUMMARY = "results.md"
_TABLE = re.compile(r"(?<=<!-- verdicts: python -m evidence page -->\n).*?(?=<!-- end)", re.DOTALL)
_BASELINE, _MANY_SEEDS = "standard", 5
_OF_TRAINING = (
    *("batch_tokens", "max_steps", "schedule", "warmup_steps", "optimizer", "weight_decay"),
    *("clip_norm", "precision", "patience"),
)


class ClaimsPage(NamedTuple):
    """The page in Markdown, its pictures by the names of their files, and the table of verdicts."""

    text: str
    pictures: Mapping[str, str]
    table: str = ""

    def files(self, path: Path) -> dict[Path, str]:
        """Returns what belongs into the files beside a path, and last into that itself."""
        texts = {path.parent / PICTURES / name: svg for name, svg in self.pictures.items()}
        summary = path.with_name(SUMMARY)
        if summary.is_file():
            texts[summary] = _TABLE.sub(lambda _: self.table, summary.read_text(encoding="utf-8"))
        return texts | {path: self.text}


def claims_page(papers: list[Paper], verdicts: Verdicts, places: Places) -> ClaimsPage:
    """Returns the page and its pictures."""
    claims = {name: claim for paper in papers for name, claim in paper.claims.items()}
    results = experiment_results(places)
    answers = [answer(each, places) for scale in SCALES for each in all_questions(scale).values()]
    found: dict[str, str | None] = {}
    for scale in SCALES:
        if scale == SCALES[0] or any(verdicts[name, scale].runs for name in claims):
            found[f"claims-{scale}.svg"] = overview(papers, verdicts, scale)
            found[f"claims-{scale}-tests.svg"] = forest_of_tests(papers, verdicts, scale)
    for each in answers:
        found[f"why-{each.question.scale}-{each.question.name}.svg"] = trend_lines(each)
    pictures = {name: svg for name, svg in found.items() if svg is not None}
    table = TEMPLATES.get_template("verdicts.md.jinja")
    text = TEMPLATES.get_template("page.md.jinja").render(
        papers=papers,
        claims=claims,
        verdicts=verdicts,
        scales=SCALES,
        marks=MARKS,
        totals=[totals(claims, verdicts, results, scale) for scale in SCALES],
        declared=[Conditions(s, name, places) for s in SCALES[:2] for name in experiments(s)],
        results=results,
        answers=answers,
        pictures=pictures,
        little=LITTLE,
        **{function.__name__.strip("_"): function for function in _OF_TEMPLATES},
    )
    return ClaimsPage(text, pictures, table.render(papers=papers, verdicts=verdicts, marks=MARKS))


def write_page(path: Path, page: ClaimsPage) -> None:
    """Writes the page, its pictures into a folder beside it, and its table of verdicts.

    Pictures that a former page had and this one lacks are removed.
    """
    for file, text in page.files(path).items():
        write_text(file, text)
    folder = path.parent / PICTURES
    # Last, so that the page that is there never names a picture that is not.
    for former in [*folder.glob("claims-*.svg"), *folder.glob("why-*.svg")]:
        if former.name not in page.pictures:
            former.unlink()


def out_of_date(path: Path, page: ClaimsPage) -> list[str]:
    """Returns which of the files that are there say something else than the page."""
    return [
        file.name
        for file, text in page.files(path).items()
        if file.is_file() and file.read_text(encoding="utf-8") != text
    ]


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


def _versions(results: Sequence[ExperimentResult]) -> list[str]:
    """Returns the packages that trained and scored the runs of an experiment."""
    runs = [run for of in results for system in of.systems for run in system.runs]
    return sorted({f"{name} {version}" for run in runs for name, version in run.versions.items()})


def _example(rows: Mapping[str, Sequence[AtPoint]]) -> Found | None:
    """One of the figures of a table, which all have one unit; None if there are none."""
    found = (point.found for points in rows.values() for point in points)
    return next((each for each in found if each is not None), None)


def _claims_of(claims: Mapping[str, Claim], conditions: Conditions) -> list[str]:
    """Returns the ids of the claims that an experiment tests."""
    found = {name: claim.experiment_at(conditions.scale) for name, claim in claims.items()}
    return [name for name, where in found.items() if where and where.experiment == conditions.name]


def _chosen(claims: Mapping[str, Claim], conditions: Conditions) -> list[str]:
    """Returns the systems that claims need with the values they chose, if their tries are kept."""
    needed = needed_runs(claims, conditions.scale).get(conditions.name)
    systems = [] if needed is None else [s for of in needed.systems.values() for s in of]
    known = {system: conditions.chosen(system) for system in systems}
    return [
        f"{system} {', '.join(map(str, kept.values.values()))}{edge_mark(kept.tries)}"
        for system, kept in known.items()
        if kept is not None
    ]


def edge_mark(tries: Tries) -> str:
    """Returns a mark if the lowest loss is at an end: a dagger where another value is chosen."""
    if not at_the_edge(tries.tries, tries.lowest):
        return ""
    return r"\*" if tries.chosen == tries.lowest else "†"


def totals(
    claims: Mapping[str, Claim],
    verdicts: Verdicts,
    results: Sequence[Sequence[ExperimentResult]],
    scale: Scale,
) -> dict[str, Any]:
    """Returns what is known of all claims at a scale together, for `page-totals.md.jinja`.

    Systems of different experiments count each. Of the claims that say that a system is better,
    those are `tested` that rest on tests of significance; `over` is of those about the baseline.
    """
    known = {n: verdicts[n, scale] for n in claims if verdicts[n, scale].kind != "not run"}
    trained = [name for name in known if known[name].runs]
    held = {name for name in known if known[name].kind == "confirmed"}
    tests = {name: _p_values(claims[name], of) for name, of in known.items()}
    different = [name for name, each in tests.items() if any(p < SIGNIFICANT for p in each)]
    over = [name for name in trained if _is_over_baseline(claims[name])]
    contradicted = [name for name in over if known[name].kind == "contradicted"]
    here = [result for of in results for result in of if result.conditions.scale == scale]
    runs = [run for result in here for system in result.systems for run in system.runs]
    sizes = [run.parameters for run in runs]
    return {
        "scale": scale,
        "trained": len(trained),
        "with_many_seeds": sum(known[name].seeds >= _MANY_SEEDS for name in trained),
        "timed": sum(claims[name].quantity.is_of_times for name in known),
        "counted": sum(claims[name].quantity.kind == "figures" for name in known),
        "stale": sum(bool(of.stale) for of in known.values()),
        "runs": len(runs),
        "systems": len({(of.conditions, system.name) for of in here for system in of.systems}),
        "hours": sum(run.minutes for run in runs) / 60,
        "machines": sorted({run.machine for run in runs}),
        "smallest": count(min(sizes, default=0)),
        "largest": count(max(sizes, default=0)),
        "tested": sum(bool(each) for each in tests.values()),
        "significant": len(different),
        "in_favour": len(held.intersection(different)),
        # If no system differed at all, so many would have a significant difference.
        "by_chance": SIGNIFICANT * sum(bool(each) for each in tests.values()),
        "held_by_training": len(held.intersection(trained)),
        "over_baseline": len(over),
        "over_baseline_confirmed": len(held.intersection(over)),
        "over_baseline_contradicted": len(contradicted),
        "systems_contradicted": len(
            {
                test.of
                for name in contradicted
                for test, finding in zip(claims[name].tests, known[name].findings, strict=False)
                if finding.kind == "contradicted"
            }
        ),
    }


def _p_values(claim: Claim, verdict: Verdict) -> list[float]:
    """The p-values of those tests that they decide."""
    return [
        finding.p
        for test, finding in zip(claim.tests, verdict.findings, strict=False)
        if finding.p is not None and isinstance(test, Against) and test.holds == "better"
    ]


def _is_over_baseline(claim: Claim) -> bool:
    """Whether a claim says that a system, as it was trained, is better than the baseline."""
    against = [test for test in claim.tests if isinstance(test, Against)]
    return any(
        test.holds == "better" and str(test.than) == _BASELINE for test in against
    ) and not any(test.holds == "not better" for test in against)


_OF_TEMPLATES: tuple[Callable[..., Any], ...] = (
    *(_settings, _versions, _example, _claims_of, _chosen),
    *(interval, decimals, p_value),
)
