"""Writes docs/claims.md, the pages below it and their pictures: nothing in them is typed by hand.

The first page has what was found, how it is decided and what it cannot say; `claims/` has a page
for each paper, and one of all experiments. The opening stands in docs/results.md too.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from evidence.again import run_again, with_other_runs
from evidence.answers import AtPoint, answer
from evidence.claims import SCALES, Against, Claim, Paper, Scale, Subject
from evidence.experiments import Conditions, Places, experiments, needed_runs, tested_by
from evidence.judging import interval
from evidence.pictures import MARKS, TEMPLATES, forest_of_tests, overview, trend_lines
from evidence.quantities import Found
from evidence.questions import all_questions
from evidence.tables import LITTLE, ExperimentResult, experiment_results
from evidence.verdicts import ENOUGH_SEEDS, Verdict
from headwise.analysis.results import Tries
from headwise.analysis.statistics.estimates import SIGNIFICANT
from headwise.files import write_text
from headwise.recipes.recipe import Recipe
from headwise.report.formatting import count, decimals, p_value
from headwise.runs.tuning import at_the_edge

Verdicts = Mapping[tuple[str, Scale], Verdict]
PICTURES = "pictures"  # the folder beside the page
# The page beside it that has the opening, and stands in the repository.
SUMMARY = "results.md"
_TAG = re.compile(r"<(?=[a-zA-Z/!?])")
_OPENING = re.compile(
    r"(?<=<!-- verdicts: python -m evidence page -->\n).*?(?=<!-- end)", re.DOTALL
)
_HERE: Scale = "laptop"
_OF_TRAINING = (
    *("batch_tokens", "max_steps", "schedule", "warmup_steps", "optimizer", "weight_decay"),
    *("clip_norm", "precision", "patience"),
)
_OF_HEADS = ("num_key_value_heads", "head_dim")


def _without_tags(value: Any) -> Any:
    """What a template says, in which a name from elsewhere, as of a machine, opens no HTML tag."""
    return _TAG.sub("&lt;", value) if isinstance(value, str) else value


_PAGES = TEMPLATES.overlay(finalize=_without_tags)


class ClaimsPage(NamedTuple):
    """The page in Markdown, those below it and its pictures by their files, and the opening."""

    text: str
    pictures: Mapping[str, str]
    below: Mapping[str, str] = {}
    opening: str = ""

    def files(self, path: Path) -> dict[Path, str]:
        """Returns what belongs into the files beside a path, and last into that itself."""
        texts = {path.parent / PICTURES / name: svg for name, svg in self.pictures.items()}
        texts |= {path.with_suffix("") / name: text for name, text in self.below.items()}
        summary = path.with_name(SUMMARY)
        if summary.is_file():
            before = summary.read_text(encoding="utf-8")
            texts[summary] = _OPENING.sub(lambda _: self.opening, before)
        return texts | {path: self.text}


def claims_page(papers: list[Paper], verdicts: Verdicts, places: Places) -> ClaimsPage:
    """Returns the page, those below it and their pictures."""
    claims = {name: claim for paper in papers for name, claim in paper.claims.items()}
    known = {name: verdicts[name, _HERE] for name in claims}
    results = experiment_results(places)
    answers = [answer(each, places) for scale in SCALES for each in all_questions(scale).values()]
    found: dict[str, str | None] = {f"claims-{_HERE}.svg": overview(papers, verdicts, _HERE)}
    for scale in SCALES:
        found[f"claims-{scale}-tests.svg"] = forest_of_tests(papers, verdicts, scale)
    for each in answers:
        found[f"why-{each.question.scale}-{each.question.name}.svg"] = trend_lines(each)
    pictures = {name: svg for name, svg in found.items() if svg is not None}
    shared = {
        "papers": papers,
        "claims": claims,
        "verdicts": verdicts,
        "here": _HERE,
        "scales": SCALES,
        "marks": MARKS,
        "totals": totals(claims, verdicts, results),
        "pictures": pictures,
        "places": places,
        "results": results,
        "answers": answers,
        "again": run_again(claims, known, _HERE, places),
        "other_runs": with_other_runs(claims, known, _HERE, places),
        "enough_seeds": ENOUGH_SEEDS,
        **{function.__name__.strip("_"): function for function in _OF_TEMPLATES},
    }

    def rendered(name: str, **values: Any) -> str:
        return _PAGES.get_template(f"{name}.md.jinja").render(**shared, **values)

    declared = [Conditions(s, name, places) for s in SCALES[:2] for name in experiments(s)]
    below = {f"{paper.name}.md": rendered("paper", paper=paper) for paper in papers}
    below["experiments.md"] = rendered("experiments", declared=declared)
    return ClaimsPage(
        rendered("page", little=LITTLE, is_linked=True),
        pictures,
        below,
        rendered("opening", is_linked=False),
    )


def write_page(path: Path, page: ClaimsPage) -> None:
    """Writes the page, those below it, their pictures, and the opening of docs/results.md.

    Pages and pictures that a former page had and this one lacks are removed.
    """
    files = page.files(path)
    for file, text in files.items():
        write_text(file, text)
    folder = path.parent / PICTURES
    former = [*folder.glob("claims-*.svg"), *folder.glob("why-*.svg")]
    # Last, so that the page that is there never names a file that is not.
    for old in [*former, *path.with_suffix("").glob("*.md")]:
        if old not in files:
            old.unlink()


def totals(
    claims: Mapping[str, Claim], verdicts: Verdicts, results: Sequence[Sequence[ExperimentResult]]
) -> dict[str, Any]:
    """Returns what is known of all claims at `laptop` together."""
    known = {name: verdicts[name, _HERE] for name in claims}
    kinds = [of.kind for of in known.values()]
    tests = {name: _p_values(claims[name], of) for name, of in known.items()}
    tested = [each for each in tests.values() if each]
    here = [result for of in results for result in of if result.conditions.scale == _HERE]
    runs = [r for result in here for system in result.systems for r in system.all_runs]
    sizes = [run.parameters for run in runs]
    return {
        "kinds": {kind: kinds.count(kind) for kind in MARKS},
        "provisional": sum(of.is_provisional for of in known.values()),
        "runs": len(runs),
        "collapsed": sum(len(s.collapsed) for result in here for s in result.systems),
        "machines": Counter(run.machine for run in runs),
        "sizes": _sizes(sizes),
        "by_counting": [
            n for n, c in claims.items() if c.quantity and c.quantity.kind == "figures"
        ],
        "by_times": [
            n
            for n, c in claims.items()
            if c.quantity and c.quantity.is_of_times and known[n].kind != "not run"
        ],
        "tested": len(tested),
        "significant": sum(any(p < SIGNIFICANT for p in each) for each in tested),
        # If no system differed at all, so many would have a significant difference.
        "by_chance": SIGNIFICANT * sum(map(len, tested)),
    }


def _p_values(claim: Claim, verdict: Verdict) -> list[float]:
    """The p-values of those tests that they decide."""
    return [
        finding.p
        for test, finding in zip(claim.tests, verdict.findings, strict=False)
        if finding.p is not None and isinstance(test, Against) and test.holds == "better"
    ]


def _size(verdict: Verdict) -> str:
    """The parameters of the models of a verdict."""
    return _sizes(verdict.parameters)


def _sizes(parameters: Sequence[int]) -> str:
    """The smallest and the largest number of parameters, where they differ as they are shown."""
    low, high = (count(of(parameters, default=0)) for of in (min, max))
    return low if low == high else f"{low} to {high}"


def _trained_on(claim: Claim, scale: Scale) -> str:
    """What the models of a claim learn from, in a few words."""
    where = tested_by(claim, scale)
    return experiments(scale)[where.experiment].data if where else ""


class Described(NamedTuple):
    """A system as its experiment declares it."""

    description: str
    preset: str  # what its recipe says of its heads


def _systems_of(claim: Claim, scale: Scale, places: Places) -> dict[str, Described]:
    """The systems of a claim."""
    where = tested_by(claim, scale)
    if where is None:
        return {}
    conditions = Conditions(scale, where.experiment, places)

    def preset(subject: Subject) -> str:
        recipe = conditions.recipe(subject.system, subject.dataset)
        given = recipe.model_dump(mode="json", exclude_defaults=True)
        said = {rule: of for rule, of in given["training"].get("rules", {}).items() if of}
        said |= {key: recipe.model[key] for key in _OF_HEADS if key in recipe.model}
        attention = recipe.model.get("attention", "standard")
        parts = [attention, *([said] if said else [])]
        return ", ".join(
            yaml.safe_dump(part, default_flow_style=True, width=1000)
            .removesuffix("\n...\n")
            .strip()
            for part in parts
        )

    described = conditions.plain.recipe.systems
    return {
        of.system: Described(described[of.system].description, preset(of))
        for of in map(where.named, claim.subjects())
    }


def _settings(recipe: Recipe) -> list[str]:
    """Returns what a reader asks of a model and of its training, as `key=value`."""
    dumped = recipe.model_dump(mode="json")
    asked = {group: dumped.get(group) or {} for group in ("tokenizer", "model", "training")}
    asked["training"] = {key: asked["training"][key] for key in _OF_TRAINING}
    if asked["training"]["precision"] == "auto":
        del asked["training"]["precision"]
    return [
        f"{group}.{key}={value}"
        for group, settings in asked.items()
        for key, value in settings.items()
        if isinstance(value, (int, float, str)) and key not in ("attention", "pretrained")
    ]


def _versions(results: Sequence[ExperimentResult]) -> list[str]:
    """Returns the packages that trained and scored the runs of an experiment."""
    runs = [run for of in results for system in of.systems for run in system.all_runs]
    return sorted({f"{name} {version}" for run in runs for name, version in run.versions.items()})


def _example(rows: Mapping[str, Sequence[AtPoint]]) -> Found | None:
    """One of the figures of a table, which all have one unit; None if there are none."""
    found = (point.found for points in rows.values() for point in points)
    return next((each for each in found if each is not None), None)


def _claims_of(claims: Mapping[str, Claim], conditions: Conditions) -> list[str]:
    """Returns the ids of the claims that an experiment tests."""
    found = {name: tested_by(claim, conditions.scale) for name, claim in claims.items()}
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
    """Returns a mark if a value that was chosen is at an end of those that were tried."""
    return r"\*" if at_the_edge(tries.tries, tries.chosen) else ""


_OF_TEMPLATES: tuple[Callable[..., Any], ...] = (
    *(_size, _trained_on, _systems_of, _settings, _versions, _example, _claims_of, _chosen),
    *(interval, decimals, p_value),
)
