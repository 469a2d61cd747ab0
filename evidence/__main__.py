"""The papers' claims, tested on finished runs: `python -m evidence`.

    claims.yaml                what the papers claim, and the experiments that test it
    recipes/                   the recipes of these experiments
    results/FOLDER/NAME.jsonl  a line for each finished run of an experiment, as it was recorded

A test of two systems has a difference with its 95% interval and p, over seeds and test items
together, and a margin, the smallest difference that matters. That a system is *better* holds here
if it is, with p below 0.05, and does not if the interval leaves no room for an advantage as large
as the margin. That it is *not better*, or *not worse*, by more than the margin holds if the
interval ends before the margin, and does not if the whole interval lies beyond it. A number between
bounds is told by its interval alike. Everything else cannot be told.

A claim holds if all of its tests do, so that p is not corrected. One test that fails is enough
against it: to fail, the interval of each of k tests has to hold with a probability of 1 - 0.05 / k.

A run has collapsed if its last validation loss is more than a twentieth above that of its system's
best seed, or no number. Collapsed runs are left out, but count for nothing only if they change
nothing: a test that they change cannot be told, unless it fails without them and they make it
worse. And nothing holds about systems of which a run diverged.
"""

import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from pydantic import BaseModel, BeforeValidator, ConfigDict
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headwise.analysis.statistics import SIGNIFICANT, Estimate, Scores, contrast
from headwise.cli.app import clear_errors, parse_names, print_error
from headwise.files import write_bytes, write_text
from headwise.messages import one_of
from headwise.report.page import number
from headwise.tasks.scores import Score
from headwise.yaml import read_yaml

HERE = Path(__file__).parent
ENOUGH_SEEDS = 5  # with fewer a verdict is provisional
MEASUREMENTS = 3  # of times: each differs from the others by more than its own rounds do
Kind = Literal["holds here", "does not hold here", "cannot be told", "not testable here", "not run"]
MARKS = {
    "holds here": ("✓", "#23906a"),
    "does not hold here": ("✗", "#e34a0a"),
    "cannot be told": ("?", "#5a6270"),
    "not testable here": ("≠", "#5a6270"),
    "not run": ("–", "#5a6270"),
}
Run = dict[str, Any]  # a line of the results


# --- what is declared ---------------------------------------------------------------------------


class Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Subject(Declared):
    """A system as a test means it; its name is enough where nothing else is said."""

    system: str
    dataset: str | None = None
    without: tuple[str, ...] = ()  # ablations: the quantity is by how much they raise the loss
    ablated: str | None = None  # an ablation under which the system is measured
    layer: int | None = None  # the only one that counts, of decisions; -1 is the last

    def __str__(self) -> str:
        kinds = dict.fromkeys(name.partition("=")[2].partition(",")[0] for name in self.without)
        said = [self.dataset, self.ablated, *kinds]
        said += [] if self.layer is None else [f"layer {self.layer}"]
        return " ".join([self.system, *(f"({each})" for each in said if each)])


Named = Annotated[Subject, BeforeValidator(lambda v: {"system": v} if isinstance(v, str) else v)]


class Test(Declared):
    of: Named
    holds: Literal["better", "not better", "not worse"] | None = None
    than: Named | None = None
    margin: float = 0.0
    at_least: float = -math.inf
    at_most: float = math.inf
    printed: float | None = None  # the difference that the paper prints

    def __str__(self) -> str:
        if self.than is not None:
            return f"{self.of} {self.holds} than {self.than}"
        least = [f"at least {self.at_least:g}"] if math.isfinite(self.at_least) else []
        most = [f"at most {self.at_most:g}"] if math.isfinite(self.at_most) else []
        return f"{self.of} {' and '.join(least + most)}"


class Figure(Declared):
    """A figure of a paper that is counted on a model without weights."""

    model: str
    printed: str
    over: str = ""  # what the rest of the model has, of which the paper gives the total
    config: dict[str, Any]
    linear: bool = True  # MACs without the products of attention


class Quantity(Declared):
    kind: str
    model: str = ""  # of what is counted, the class of the configuration
    config: dict[str, Any] = {}
    name: str | None = None  # of a score, or of what is recorded
    sites: tuple[str, ...] = ()  # of decisions; all if none is named


class AtPaperSize(Declared):
    recipe: str
    systems: dict[str, str] = {}  # where they have other names there
    datasets: dict[str, str] = {}


class Claim(Declared):
    short: str
    says: str
    where: str
    printed: str
    quantity: Quantity | None = None
    experiment: str | None = None
    tests: tuple[Test, ...] = ()
    figures: tuple[Figure, ...] = ()
    only_if: tuple[Test, ...] = ()  # of these one has to hold, or nothing can be tested
    untestable: str = ""  # why, where that is so
    at_paper_size: AtPaperSize | None = None
    cause: str = ""
    note: str = ""

    def subjects(self) -> list[Subject]:
        tests = (*self.only_if, *self.tests)
        return [each for test in tests for each in (test.of, test.than) if each is not None]


class Paper(Declared):
    paper: str
    link: str
    system: str
    terms: str = ""
    left_out: str = ""
    claims: dict[str, Claim]


class Experiment(Declared):
    recipe: str  # a file of `recipes/`, or the name of a recipe of headwise
    data: str = ""
    set: tuple[str, ...] = ()
    tune: tuple[str, ...] = ()
    loss_of: str | None = None  # the score whose rows have the loss; else there are rows of it


class Catalogue(Declared):
    experiments: dict[str, Experiment]
    papers: tuple[Paper, ...]

    @property
    def claims(self) -> dict[str, Claim]:
        return {name: claim for paper in self.papers for name, claim in paper.claims.items()}


@cache
def catalogue(file: Path = HERE / "claims.yaml") -> Catalogue:
    return Catalogue.model_validate(read_yaml(file.read_text(encoding="utf-8")))


# --- what was measured --------------------------------------------------------------------------


@cache
def _lines(file: Path, stamp: tuple[int, int]) -> list[Run]:
    found = []
    for line, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found.append({"kind": "", **json.loads(text)})
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{file}, line {line}, cannot be read ({error}): copy the file again, or delete "
                f"the line"
            ) from None
    return found


def lines(results: Path, experiment: str, kind: str = "run") -> list[Run]:
    """The lines of a kind of an experiment; of runs those that no recorded question has changed."""
    file = results / f"{experiment}.jsonl"
    if not file.is_file():
        return []
    stat = file.stat()
    found = _lines(file, (stat.st_mtime_ns, stat.st_size))
    return [line for line in found if line["kind"] == kind and not line.get("at")]


def last_loss(run: Run) -> float:
    """That at the end of training; the final model may be that of the best validation."""
    losses = [row["eval_loss"] for row in run["history"] if "eval_loss" in row]
    return float(losses[-1] if losses else run["validation_loss"])


def finite(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if math.isfinite(last_loss(run))]


def sound(runs: Sequence[Run]) -> list[Run]:
    """The runs of a system that neither diverged nor collapsed."""
    best = min(map(last_loss, finite(runs)), default=0.0)
    return [run for run in finite(runs) if last_loss(run) <= 1.05 * best]


def less(changed: Scores, unchanged: Scores) -> Scores:
    """By how much scores of the same runs differ, as scores of these runs."""
    resamples = None
    if changed.resamples is not None and unchanged.resamples is not None:
        resamples = changed.resamples - unchanged.resamples
    return Scores(changed.values - unchanged.values, resamples, changed.items)


def mean(several: Sequence[Scores]) -> Scores:
    values = np.mean([each.values for each in several], axis=0)
    resamples = [each.resamples for each in several if each.resamples is not None]
    return Scores(values, np.mean(resamples, axis=0) if resamples else None, several[0].items)


def scores_of(
    quantity: Quantity, subject: Subject, runs: Sequence[Run], loss_of: str | None = None
) -> tuple[Scores, bool] | None:
    """A quantity of each seed, and whether higher is better; None if the runs do not have it."""
    asked = {*subject.without, *filter(None, [subject.ablated])}
    if not runs or any(asked - run["ablations"].keys() for run in runs):
        return None
    if subject.without:
        whole = losses(runs, None, loss_of)
        return mean([less(losses(runs, name, None), whole) for name in subject.without]), False
    if quantity.kind == "loss":
        return losses(runs, subject.ablated, loss_of), False
    if quantity.kind == "score":
        name = quantity.name or runs[0]["scores"][0]["name"]
        found = [
            Score(**{**score, "rows": run["rows"].get(name, [])})
            for run in runs
            for score in run["scores"]
            if score["name"] == name
        ]
        return (Scores.of(found), not found[0].lower_is_better) if len(found) == len(runs) else None
    numbers = [measured(quantity, subject, run) for run in runs]
    if any(math.isnan(each) for each in numbers):
        return None
    return Scores(np.array(numbers)), quantity.kind in ("recorded", "entropy's fall in training")


def losses(runs: Sequence[Run], ablation: str | None, loss_of: str | None) -> Scores:
    found = []
    for run in runs:
        name = "loss" if ablation is None else f"loss with {ablation}"
        rows, value = run["rows"].get(name, []), run["loss"]
        if ablation is not None:
            value = run["ablations"][ablation]
        elif loss_of is not None:  # nats and tokens of each item
            rows = np.array(run["rows"][loss_of])[:, :2].tolist()
            value = float(np.divide(*np.sum(rows, axis=0)))
        found.append(Score(name="loss", value=value, statistic="ratio", rows=rows))
    return Scores.of(found)


def measured(quantity: Quantity, subject: Subject, run: Run) -> float:
    """A number of one run that no test items are resampled for; NaN if the run does not have it."""
    if quantity.kind == "recorded":
        found = [row[quantity.name] for row in run["history"] if quantity.name in row]
        return float(found[-1]) if found else math.nan
    modules = [m for m in run["attention"] if m["site"] in quantity.sites or not quantity.sites]
    layers = sorted({m["layer"] for m in modules})
    if subject.layer is not None and layers:
        layer = layers[subject.layer] if subject.layer < 0 else subject.layer
        modules = [m for m in modules if m["layer"] == layer]
    if not modules:
        return math.nan
    if quantity.kind == "largest share":
        return float(max(max(m["load"]) for m in modules))
    if quantity.kind == "smallest share":
        return float(min(min(m["load"]) for m in modules))
    ends = [m["entropy"] for m in modules]
    if quantity.kind == "entropy":
        return float(np.mean(ends))
    starts = [m.get("start_entropy") for m in modules]
    return math.nan if None in starts else float(np.mean(np.array(starts) - ends))


# --- what it says of a claim --------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """The result of one test of a claim."""

    test: str
    kind: Kind
    said: str = ""  # the figures
    beside: str = ""  # the difference of the score, where the loss decides, or of the loss
    remark: str = ""
    # The advantage of the first system with its interval, in margins.
    standing: tuple[float, float, float] | None = None
    miss: float = math.nan  # grows with the distance from what is claimed


@dataclass(frozen=True)
class Verdict:
    kind: Kind
    findings: Sequence[Finding] = ()
    seeds: int = 0  # at the least, without runs that collapsed
    runs: Sequence[Run] = ()

    @property
    def name(self) -> str:
        told = self.kind not in ("not run", "not testable here")
        few = told and 0 < self.seeds < ENOUGH_SEEDS
        return f"{self.kind} (provisional: {self.seeds} seeds)" if few else self.kind


def judged(test: Test, found: Estimate, higher_is_better: bool = True, tests: int = 1) -> Kind:
    """What the interval of a difference, or of a number, says of a test.

    >>> better = Test(of="a", holds="better", than="b", margin=1.0)
    >>> judged(better, Estimate(2.0, 1.5, 2.5, 0.2, 9.0, p=0.001, over="seeds"))
    'holds here'
    >>> judged(better, Estimate(0.2, -0.5, 0.9, 0.3, 9.0, p=0.6, over="seeds"))
    'does not hold here'
    >>> judged(better, Estimate(0.5, -0.2, 1.2, 0.3, 9.0, p=0.3, over="seeds"))
    'cannot be told'
    """
    if "seeds" not in found.over or math.isnan(found.low):
        return "cannot be told"
    if test.than is None:
        holds = test.at_least <= found.low and found.high <= test.at_most
        fails = found.high < test.at_least or found.low > test.at_most
    else:
        low, value, high = _oriented(found, higher_is_better)
        wider = _wider(found, tests)
        least, most = value - wider * (value - low), value + wider * (high - value)
        holds, fails = {
            "better": (found.p < SIGNIFICANT and value > 0, most < test.margin),
            "not better": (high < test.margin, least >= test.margin),
            "not worse": (low > -test.margin, most <= -test.margin),
        }[test.holds or "better"]
    return "holds here" if holds else "does not hold here" if fails else "cannot be told"


def _oriented(found: Estimate, higher_is_better: bool) -> tuple[float, float, float]:
    """Low end, value and high end of a difference, positive where the first system is better."""
    if higher_is_better:
        return found.low, found.value, found.high
    return -found.high, -found.value, -found.low


def _wider(found: Estimate, tests: int) -> float:
    """How much wider an interval is that holds for several tests together."""
    from scipy import stats

    if tests == 1 or not found.error:
        return 1.0
    return float(
        stats.t.ppf(1 - SIGNIFICANT / 2 / tests, found.freedom) / stats.t.ppf(0.975, found.freedom)
    )


def on_runs(test: Test, claim: Claim, runs: Mapping[tuple[str, str | None], list[Run]]) -> Finding:
    """What runs say of a test; `runs` has those of each system on each data set."""
    assert claim.quantity is not None and claim.experiment is not None
    loss_of = catalogue().experiments[claim.experiment].loss_of
    asked = [each for each in (test.of, test.than) if each is not None]
    of_systems = [runs[each.system, each.dataset] for each in asked]
    for subject, some in zip(asked, of_systems, strict=True):
        if some and not finite(some):
            return Finding(str(test), "cannot be told", remark=f"all runs of {subject} diverged")
    found = [
        scores_of(claim.quantity, subject, some, loss_of)
        for subject, some in zip(asked, of_systems, strict=True)
    ]
    if any(each is None for each in found):
        return Finding(str(test), "not run")
    systems, higher_is_better = [each[0] for each in found if each], found[0][1]  # type: ignore[index]
    within = len(asked) == 2 and of_systems[0] is of_systems[1]
    estimate = contrast(*([less(*systems)] if within else systems))
    tests = sum(each.than is not None for each in claim.tests)
    kind = judged(test, estimate, higher_is_better, tests)
    digits = 4 if test.of.without else 3
    means = " against ".join(number(float(each.values.mean()), digits) for each in systems)
    if test.than is None:
        ends = f"[{number(estimate.low, digits)}, {number(estimate.high, digits)}]"
        nearest = max(test.at_least - estimate.value, estimate.value - test.at_most)
        return Finding(str(test), kind, f"{means} {ends}", miss=nearest)
    low, value, high = _oriented(estimate, higher_is_better)
    standing = (low / test.margin, value / test.margin, high / test.margin)
    remarks = []
    if test.holds == "better" and estimate.p < SIGNIFICANT and value < 0:
        remarks.append("significantly worse")
    if test.holds == "better" and kind == "holds here" and high < test.margin:
        remarks.append("better by less than the margin")
    if kind == "cannot be told":
        remarks.append(estimate.why or f"a difference of {estimate.detectable:.2g} is detectable")
    if test.printed is not None:
        printed = test.printed if higher_is_better else -test.printed
        outside = "outside of" if printed > high else "in"
        remarks.append(f"the paper's {number(test.printed)} is {outside} the interval")
    return Finding(
        str(test),
        kind,
        f"{means}: {in_words(estimate, digits)}",
        beside=beside(test, claim.quantity, of_systems, loss_of),
        remark="; ".join(remarks),
        standing=standing if math.isfinite(low) else None,
        miss=value if test.holds == "not better" else -value,
    )


def in_words(found: Estimate, digits: int) -> str:
    value, low, high = (number(x, digits, sign=True) for x in (found.value, found.low, found.high))
    p = f"p = {found.p:.3f}" if found.p >= 0.0005 else "p < 0.001"
    return f"{value} [{low}, {high}], {p}" if found.over else f"{value}, {found.why}"


def beside(
    test: Test, quantity: Quantity, runs: Sequence[Sequence[Run]], loss_of: str | None
) -> str:
    """The difference of the score beside that of the loss, and the other way round."""
    if quantity.kind not in ("score", "loss") or test.than is None or runs[0] is runs[1]:
        return ""
    other = Quantity(kind="loss" if quantity.kind == "score" else "score")
    found = [
        scores_of(other, each, some, loss_of)
        for each, some in zip((test.of, test.than), runs, strict=True)
    ]
    if any(each is None for each in found):
        return ""
    estimate = contrast(*(each[0] for each in found if each))
    score = runs[0][0]["scores"][0]
    name, digits = ("loss", 3) if other.kind == "loss" else (score["name"], score["digits"])
    return f"{name} {in_words(estimate, digits)}"


def with_collapsed(finding: Finding, whole: Finding) -> Finding:
    """What is told without collapsed runs counts only if these runs do not change it."""
    if finding == whole:
        return finding
    remark = f"with the runs that collapsed: {whole.kind}, {whole.said}"
    told = finding.kind == whole.kind or (
        finding.kind == "does not hold here" and whole.miss >= finding.miss
    )
    kind: Kind = finding.kind if told else "cannot be told"
    return replace(finding, kind=kind, remark="; ".join(filter(None, [finding.remark, remark])))


def on_times(test: Test, quantity: Quantity, measurements: Sequence[Run]) -> Finding:
    """The median of several measurements, between the ends of all their intervals."""
    key = "step" if quantity.kind == "time of a step" else "token"
    found = [line[key][test.of.system] for line in measurements if test.of.system in line[key]]
    if not found:
        return Finding(str(test), "not run")
    low, high = min(each["low"] for each in found), max(each["high"] for each in found)
    middle = float(np.median([each["value"] for each in found]))
    estimate = Estimate(middle, low, high, over="seeds")
    return Finding(str(test), judged(test, estimate), f"{middle:.2f}× [{low:.2f}, {high:.2f}]")


@cache
def cost_of(model: str, config: str) -> Any:
    import headwise
    from headwise.analysis.cost import model_cost

    lengths = {"MaskedLMConfig": {"encoder": 128}}.get(model, {"encoder": 10, "decoder": 10})
    return model_cost(getattr(headwise, model)(**json.loads(config)), lengths)


def on_figure(figure: Figure, quantity: Quantity) -> Finding:
    """Counted anew each time: nothing is trained."""
    (printed, digits), (over, _) = _parsed(figure.printed), _parsed(figure.over or "0")
    given = {**quantity.config, **figure.config}
    cost = cost_of(quantity.model, json.dumps(given))
    if quantity.kind == "MACs":
        ours, near = cost.linear_macs if figure.linear else cost.macs, 0.005
    else:  # what the system adds to the standard model
        standard = cost_of(quantity.model, json.dumps({**given, "attention": "standard"}))
        ours, near = over + cost.parameters.total - standard.parameters.total, 0.015
    agrees = abs(ours - printed) <= max(near * printed, digits)
    kind: Kind = "holds here" if agrees else "does not hold here"
    return Finding(figure.model, kind, f"{figure.printed} printed, {ours:,.0f} counted")


def _parsed(text: str) -> tuple[float, float]:
    """A printed figure and half of its last digit.

    >>> _parsed("12.6M")
    (12600000.0, 50000.0)
    """
    unit = {"M": 1e6, "G": 1e9}.get(text[-1], 1.0)
    digits = text.rstrip("MG")
    return float(digits) * unit, 0.5 * 10 ** -len(digits.partition(".")[2]) * unit


def verdict(claim: Claim, results: Path, data: str | None = None) -> Verdict:
    """What the recorded lines say of a claim.

    Args:
        claim: one of the catalogue.
        results: the folder of the lines.
        data: the hash of the data that runs are to be of. Runs on different data are never
            compared: by default those on the data that most of the claim's runs are of.
    """
    if claim.quantity is None or claim.experiment is None:
        return _all_of(
            [on_figure(each, claim.quantity) for each in claim.figures if claim.quantity]
        )
    if claim.quantity.kind.startswith("time"):
        times = lines(results, claim.experiment, "times")
        return _all_of([on_times(test, claim.quantity, times) for test in claim.tests])
    keys = dict.fromkeys((each.system, each.dataset) for each in claim.subjects())
    every = lines(results, claim.experiment)
    runs = {
        (system, dataset): [r for r in every if (r["system"], r["dataset"]) == (system, dataset)]
        for system, dataset in keys
    }
    for dataset in {dataset for _, dataset in keys}:
        of_data = Counter(
            r["data"] for (_, on), some in runs.items() for r in some if on == dataset
        )
        most = data or max(of_data, key=of_data.__getitem__, default=None)
        for system, on in keys:
            if on == dataset:
                runs[system, on] = [r for r in runs[system, on] if r["data"] == most]
    kept, whole = ({key: of(some) for key, some in runs.items()} for of in (sound, finite))
    findings = [on_runs(test, claim, kept) for test in claim.tests]
    if kept != whole:
        again = [on_runs(test, claim, whole) for test in claim.tests]
        findings = list(map(with_collapsed, findings, again))
    if any(len(whole[key]) < len(runs[key]) for key in keys):
        findings = [
            replace(each, kind="cannot be told", remark="holds, but for runs that diverged")
            if each.kind == "holds here"
            else each
            for each in findings
        ]
    entry = [on_runs(test, claim, kept).kind for test in claim.only_if]
    found = _all_of(findings)
    if entry and found.kind != "not run" and "holds here" not in entry:
        found = replace(found, kind="not testable here")
    seeds = min((len(some) for some in kept.values()), default=0)
    return replace(found, seeds=seeds, runs=[run for some in runs.values() for run in some])


def _all_of(findings: Sequence[Finding]) -> Verdict:
    """All tests of a claim have to hold."""
    if not findings:
        return Verdict("not testable here")
    order: tuple[Kind, ...] = ("does not hold here", "not run", "cannot be told")
    kinds = [finding.kind for finding in findings]
    return Verdict(next((kind for kind in order if kind in kinds), "holds here"), findings)


# --- runs that claims lack ----------------------------------------------------------------------


def experiment_of(name: str) -> Experiment:
    return catalogue().experiments.get(name) or Experiment(recipe=name)  # that of a paper


def at_paper_size(claim: Claim) -> Claim:
    """The claim with the recipe of its paper, and the names that its systems have there."""
    at = claim.at_paper_size
    if at is None:
        return claim.model_copy(update={"experiment": None, "quantity": None})

    def named(of: Subject | None) -> Subject | None:
        names = (
            {}
            if of is None
            else {
                "system": at.systems.get(of.system, of.system),
                "dataset": of.dataset and at.datasets.get(of.dataset, of.dataset),
            }
        )
        return of and of.model_copy(update=names)

    def placed(tests: Sequence[Test]) -> tuple[Test, ...]:
        return tuple(t.model_copy(update={"of": named(t.of), "than": named(t.than)}) for t in tests)

    tests = {"tests": placed(claim.tests), "only_if": placed(claim.only_if)}
    return claim.model_copy(update={"experiment": at.recipe, **tests})


@dataclass(frozen=True)
class Places:
    """The folders of a command."""

    data: Path
    runs: Path
    results: Path

    def recipe(self, name: str) -> tuple[str, list[str]]:
        """The recipe of an experiment and the changes to it, with the folder of the data."""
        experiment = experiment_of(name)
        own = HERE / "recipes" / f"{experiment.recipe}.yaml"
        text = own.read_text(encoding="utf-8") if own.is_file() else ""
        changes = [each.replace("{data}", str(self.data.absolute())) for each in experiment.set]
        if "{data}" in f"{text}{experiment.set}" and not self.data.is_dir():
            raise FileNotFoundError(
                f"the folder with the data is {str(self.data)!r}, which is not there: name yours "
                f"by --data DIR or the variable HEADWISE_DATA; evidence/README.md says what it has"
            )
        if not own.is_file():
            return experiment.recipe, changes
        made = self.runs / f"{name}.yaml"
        write_text(made, text.replace("{data}", str(self.data.absolute())))
        return str(made), changes

    def append(self, name: str, line: Run) -> None:
        """Adds a line to the results; the others stay as they are, letter by letter."""
        file = self.results / f"{name}.jsonl"
        before = file.read_bytes() if file.is_file() else b""
        write_bytes(file, before + json.dumps(line, ensure_ascii=False).encode() + b"\n")


def train(
    name: str, claims: Sequence[Claim], seeds: Sequence[int], places: Places, jobs: int
) -> str:
    """Trains what claims lack of an experiment, and returns the hash of its data.

    A finished run becomes a line of the results, and is never trained again on the same data.
    """
    from headwise.recipes.recipe import load_recipe, task_class

    recipe, changes = places.recipe(name)
    file = load_recipe(recipe, changes)
    asked = dict.fromkeys((s.dataset, s.system) for claim in claims for s in claim.subjects())
    digests = ""
    for dataset in dict.fromkeys(dataset for dataset, _ in asked):
        systems = [system for system in file.system_names if (dataset, system) in asked]
        first = file.system(systems[0], dataset)
        task = task_class(first.task)(first)
        data = task.digest()
        known = {
            (run["system"], run["seed"])
            for run in lines(places.results, name)
            if run["dataset"] == dataset and run["data"] == data
        }
        groups: dict[tuple[int, ...], list[str]] = {}
        for system in systems:
            missing = tuple(seed for seed in seeds if (system, seed) not in known)
            groups.setdefault(missing, []).append(system)
        folder = places.runs / name
        for missing, some in groups.items():
            if not missing:
                continue
            code = compare(recipe, changes, folder, some, missing, dataset, name, jobs)
            for system in some:
                for seed in missing:
                    run = folder / (dataset or "") / f"{system}-seed{seed}"
                    if (line := line_of(run, dataset, task, name)) is not None:
                        places.append(name, {**line, "data": data})
            if code:
                raise typer.Exit(code)
        digests = data
    return digests


def compare(
    recipe: str,
    changes: Sequence[str],
    folder: Path,
    systems: Sequence[str],
    seeds: Sequence[int],
    dataset: str | None,
    name: str,
    jobs: int = 1,
    environment: Mapping[str, str] = {},
) -> int:
    """Runs `headwise compare`, which goes on where it was stopped; returns its exit status."""
    tune = [part for values in experiment_of(name).tune for part in ("--tune", values)]
    command = [sys.executable, "-m", "headwise", "compare", recipe, "--output", str(folder)]
    command += ["--systems", ",".join(systems), "--seeds", ",".join(map(str, seeds))]
    command += ["--jobs", str(jobs), *tune, *(["--datasets", dataset] if dataset else [])]
    command += [part for change in changes for part in ("--set", change)]
    with subprocess.Popen(command, env={**os.environ, **environment}) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:  # it came to both, and the other writes a checkpoint first
            process.wait()
            raise


def line_of(folder: Path, dataset: str | None, task: Any, name: str) -> Run | None:
    """What claims need of a run; None if it is not finished."""
    from headwise.analysis.decided import collect
    from headwise.analysis.questions import entropy, load
    from headwise.analysis.results import machine, versions
    from headwise.runs.evaluate import read_outcome
    from headwise.runs.folder import read_model, read_result

    result = read_result(folder)
    if result is None:
        return None
    model, outcome = read_model(folder), read_outcome(folder)
    wanted = {
        ablation: None
        for claim in catalogue().claims.values()
        if claim.experiment == name
        for subject in claim.subjects()
        if subject.system == result.system
        for ablation in filter(None, [*subject.without, subject.ablated])
    }
    batches = groups_of(task)
    rows = {"loss": loss_rows(model, batches)}
    for ablation in wanted:
        with under(model, ablation):
            rows[f"loss with {ablation}"] = loss_rows(model, batches)
    means = {key: float(np.divide(*np.sum(of, axis=0))) for key, of in rows.items()}
    rows[outcome.scores[0].name] = outcome.scores[0].rows
    at_start = result.history[0] if result.history else {}
    decided = collect(model, batches) if result.units else []
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False
    )
    return {
        "kind": "run",
        "at": "",
        "dataset": dataset,
        "system": result.system,
        "seed": result.seed,
        "commit": commit.stdout.strip(),
        "parameters": result.parameters,
        "macs": result.macs,
        "steps": result.steps,
        "minutes": result.seconds / 60,
        "validation_loss": result.validation_loss,
        # Figures of single modules stay with the run.
        "history": [
            {key: x for key, x in row.items() if not any(of in key for of in result.units)}
            for row in result.history
        ],
        "scores": [score.model_dump(exclude={"rows"}) for score in outcome.scores],
        "loss": means.pop("loss"),
        "ablations": {key.removeprefix("loss with "): x for key, x in means.items()},
        "attention": [
            {
                "site": d.site,
                "layer": d.layer,
                "system": d.system,
                "entropy": float(entropy(d)["mean"]),
                "start_entropy": at_start.get(f"entropy {d.place}"),
                "load": load(d).tolist(),
            }
            for d in decided
        ],
        "versions": versions(),
        "machine": machine(),
        "rows": {
            key: [[int(x) if float(x).is_integer() else round(x, 5) for x in row] for row in of]
            for key, of in rows.items()
        },
    }


def groups_of(task: Any) -> list[dict[str, Any]]:
    """Batches of up to 16 test items of similar length, at least 50 where there are as many."""
    items = task.parts["test"]
    longest = np.asarray(items.lengths).reshape(len(items), -1).max(axis=1)
    order = np.argsort(longest, kind="stable").tolist()
    size = max(1, min(16, len(order) // 50))
    starts = range(0, len(order), size)
    return [task.collate(items.__getitems__(order[start : start + size])) for start in starts]


def loss_rows(model: Any, batches: Sequence[dict[str, Any]]) -> list[list[float]]:
    """The total loss of each batch and its number of labels, which are given to the model."""
    from headwise.training.loss import aside_of_training, loss_and_labels

    with aside_of_training(model):
        return [loss_and_labels(model, batch).tolist() for batch in batches]


@contextmanager
def under(model: Any, ablation: str) -> Iterator[None]:
    """The model under an ablation; `mae=random-expert` draws one expert for each layer."""
    import torch

    from headwise.analysis.ablations import parse_ablations
    from headwise.models.inspect import ablated, systems

    with ExitStack() as stack:
        if ablation == "mae=random-expert":  # table 5 of the MAE paper
            generator = torch.Generator().manual_seed(0)
            for path, system in systems(model).items():
                drawn = int(torch.randint(system.num_units, (), generator=generator))
                stack.enter_context(ablated(model, path, "only-expert", expert=drawn))
        else:
            stack.enter_context(ablated(model, parse_ablations([ablation])))
        yield


def measure(name: str, claims: Sequence[Claim], places: Places) -> None:
    """Measures the times of a step and of a token, by one thread, with new models each time."""
    from headwise.analysis.results import Compared, machine, versions
    from headwise.recipes.recipe import load_recipe

    recipe, changes = places.recipe(name)
    file = load_recipe(recipe, changes)
    asked = {subject.system for claim in claims for subject in claim.subjects()}
    asked.add(file.system_names[0])  # the baseline
    systems = [system for system in file.system_names if system in asked]
    known = [line for line in lines(places.results, name, "times") if asked <= line["step"].keys()]
    for number_of in range(len(known) + 1, MEASUREMENTS + 1):
        folder = places.runs / name / str(number_of)
        one_thread = {"OMP_NUM_THREADS": "1"}
        if code := compare(recipe, changes, folder, systems, [1], None, name, 1, one_thread):
            raise typer.Exit(code)
        found = Compared.model_validate_json((folder / "comparison.json").read_bytes())
        times = {"step": found.step_times, "token": found.decoding_times}
        of_kinds = {key: {s: x.model_dump() for s, x in of.items()} for key, of in times.items()}
        line = {"kind": "times", "number": number_of, "baseline": systems[0], **of_kinds}
        places.append(name, {**line, "machine": machine(), "versions": versions()})


# --- commands -----------------------------------------------------------------------------------

app = typer.Typer(
    help="The papers' claims: what is known of them, and how to test them.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
Results = Annotated[Path, typer.Option(help="Folder with the lines of finished runs.")]
RESULTS = HERE / "results" / "laptop"


@app.command("list")
def listing(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...")] = None,
    results: Results = RESULTS,
) -> None:
    """List the claims with their verdicts; of those that are named, all that is known."""
    with clear_errors():
        console = Console()
        if ids:
            for name, claim in find(ids).items():
                print_claim(name, claim, verdict(claim, results), console)
            return
        for paper in catalogue().papers:
            console.print(paper.paper, style="underline", highlight=False, markup=False)
            table = Table("id", "claim", "where", "verdict", box=None, pad_edge=False)
            for name, claim in paper.claims.items():
                told = (claim.says, claim.where, verdict(claim, results).name)
                table.add_row(Text(name, style="bold"), *map(Text, told))
            console.print(table)


@app.command()
def run(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Claims: W1 M1.")],
    seeds: Annotated[str, typer.Option(help="Train each system with these.")] = "11,12,13,14,15",
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Train N runs at a time.")] = 1,
    data: Annotated[
        Path, typer.Option(envvar="HEADWISE_DATA", help="Folder with the data.")
    ] = Path("data"),
    runs: Annotated[Path, typer.Option(help="Folder in which runs are trained.")] = Path(
        "runs/claims"
    ),
    results: Annotated[Path | None, typer.Option(help="Folder with the results.")] = None,
    paper_size: Annotated[bool, typer.Option(help="By the recipe of the paper.")] = False,
) -> None:
    """Train what claims lack, by `headwise compare`, and print the verdicts.

    A stopped run goes on. Runs on other data than the recorded ones are compared by themselves.
    """
    with clear_errors("The same command goes on from here."):
        numbers = [int(part) for part in parse_names("--seeds", seeds)]
        scale = "paper" if paper_size else "laptop"
        places = Places(data, runs / scale, results or HERE / "results" / scale)
        claims = find(ids)
        if paper_size:
            claims = {name: at_paper_size(claim) for name, claim in claims.items()}
        digests: dict[str, str] = {}
        for name in dict.fromkeys(c.experiment for c in claims.values() if c.experiment):
            of = [claim for claim in claims.values() if claim.experiment == name]
            times = [c for c in of if c.quantity and c.quantity.kind.startswith("time")]
            if times:
                measure(name, times, places)
            if trained := [claim for claim in of if claim not in times]:
                digests[name] = train(name, trained, numbers, places, jobs)
        for name, claim in claims.items():
            found = verdict(claim, places.results, digests.get(claim.experiment or ""))
            print_claim(name, claim, found, Console())


def find(ids: Sequence[str]) -> dict[str, Claim]:
    known = catalogue().claims
    for name in ids:
        if name not in known:
            raise ValueError(f"there is no claim {name!r}, {one_of(name, known)}")
    return {name: known[name] for name in ids}


def print_claim(name: str, claim: Claim, found: Verdict, console: Console) -> None:
    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    say(f"{name}: {found.name}", "bold")
    say(f"  {claim.says} ({claim.where}; printed: {claim.printed})")
    for each in found.findings:
        parts = [each.kind, each.said, each.beside, each.remark]
        say(f"  {each.test}: {'; '.join(filter(None, parts))}")
    for text in (claim.untestable, claim.cause, claim.note):
        if text:
            say(f"  {text}")
