"""How the verdict on a claim follows from the lines of finished runs.

A test of two systems has a difference with its 95% interval and p, over seeds and test items
together, and a margin, the smallest difference that matters. That a system is *better* holds here
if it is, with p below 0.05, and does not if the interval leaves no room for an advantage as large
as the margin. That it is *not better*, or *not worse*, by more than the margin holds if the
interval ends before the margin, and does not if the whole interval lies beyond it. A number between
bounds is judged by its interval alone. Everything else cannot be told.

A claim holds if all of its tests do, so that p is not corrected. One test that fails is enough
against it: to fail, the interval of each of k tests has to hold with a probability of 1 - 0.05 / k.

A run has collapsed if its last validation loss is more than a twentieth above that of its system's
best seed. Collapsed runs are left out, if that changes nothing: a test that they change cannot be
told, unless it fails without them and they make it worse. And nothing holds about systems of which
a run diverged, that is ended with a loss that is no number.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict

from headwise.analysis.statistics import SIGNIFICANT, Estimate, Scores, contrast
from headwise.messages import one_of
from headwise.report.page import number
from headwise.tasks.scores import Score
from headwise.yaml import read_yaml

HERE = Path(__file__).parent
ENOUGH_SEEDS = 5  # with fewer a verdict is provisional
Kind = Literal["holds here", "does not hold here", "cannot be told", "not testable here", "not run"]
Line = dict[str, Any]  # of the results
Lines = Mapping[str, Sequence[Line]]  # by experiment
Runs = Mapping[tuple[str, str | None], Sequence[Line]]  # by system and data set


# --- what is declared in claims.yaml, whose head says what each key means -------------------------


class Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Subject(Declared):
    system: str
    dataset: str | None = None
    without: tuple[str, ...] = ()
    ablated: str | None = None
    layer: int | None = None

    def __str__(self) -> str:
        without = dict.fromkeys(name.partition("=")[2].partition(",")[0] for name in self.without)
        layer = None if self.layer is None else f"layer {self.layer}"
        said = filter(None, [self.dataset, self.ablated, *without, layer])
        return " ".join([self.system, *(f"({each})" for each in said)])


Named = Annotated[Subject, BeforeValidator(lambda v: {"system": v} if isinstance(v, str) else v)]


class Test(Declared):
    of: Named
    holds: Literal["better", "not better", "not worse"] | None = None
    than: Named | None = None
    margin: float = 1.0
    at_least: float = -math.inf
    at_most: float = math.inf
    printed: str = ""
    config: dict[str, Any] = {}

    def __str__(self) -> str:
        if self.than is not None:
            return f"{self.of} {self.holds} than {self.than}"
        ends = {"at least": self.at_least, "at most": self.at_most}
        said = [f"{name} {end:,.7g}" for name, end in ends.items() if math.isfinite(end)]
        return f"{self.of} {' and '.join(said)}"


class Quantity(Declared):
    kind: Literal["loss", "score", "recorded", "time", "count"]
    name: str = ""
    rows: Literal["history", "attention"] = "attention"
    key: str = ""
    less: str = ""
    over: Literal["mean", "largest", "smallest", "last"] = "mean"
    sites: tuple[str, ...] = ()


class Claim(Declared):
    short: str
    says: str
    where: str
    printed: str = "no figure"
    quantity: Quantity = Quantity(kind="loss")
    experiment: str = ""
    tests: tuple[Test, ...] = ()
    model: str = ""
    config: dict[str, Any] = {}
    lengths: dict[str, int] = {}
    only_if: tuple[Test, ...] = ()
    untestable: str = ""
    paper_recipe: str = ""
    cause: str = ""
    note: str = ""

    @property
    def subjects(self) -> list[Subject]:
        tests = (*self.only_if, *self.tests)
        return [each for test in tests for each in (test.of, test.than) if each is not None]


class Paper(Declared):
    paper: str
    link: str
    system: str
    left_out: str = ""
    claims: dict[str, Claim]


class Experiment(Declared):
    recipe: str
    data: str
    set: tuple[str, ...] = ()
    tune: tuple[str, ...] = ()
    loss_of: str = ""


class Catalogue(Declared):
    experiments: dict[str, Experiment]
    papers: tuple[Paper, ...]

    def claims(self, ids: Sequence[str] = ()) -> dict[str, Claim]:
        """Returns the claims of these names, by default all."""
        known = {name: claim for paper in self.papers for name, claim in paper.claims.items()}
        for name in ids:
            if name not in known:
                raise ValueError(f"there is no claim {name!r}, {one_of(name, known)}")
        return {name: known[name] for name in ids or known}


@cache
def catalogue() -> Catalogue:
    text = (HERE / "claims.yaml").read_text(encoding="utf-8")
    return Catalogue.model_validate(read_yaml(text))


# --- what was measured --------------------------------------------------------------------------


def read_lines(results: Path) -> dict[str, list[Line]]:
    """Reads the lines by experiment, without runs whose recipe was changed for a question."""
    found: dict[str, list[Line]] = {}
    for file in sorted(results.glob("*.jsonl")):
        for count, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            try:
                line = json.loads(text)
                if line["kind"] != "choice" and not line.get("at"):
                    found.setdefault(file.stem, []).append(line)
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{file}, line {count}, is damaged ({error}): delete it") from None
    return found


def last_loss(run: Line) -> float:
    """Returns the loss at the end of training; the final model may be an earlier one."""
    losses = [row["eval_loss"] for row in run["history"] if "eval_loss" in row]
    return float(losses[-1] if losses else run["validation_loss"])


class Measured(NamedTuple):
    scores: Scores
    name: str
    digits: int = 3
    higher_is_better: bool = False


def measured(
    quantity: Quantity, subject: Subject, runs: Sequence[Line], loss_of: str = ""
) -> Measured | None:
    """Computes a quantity of each run of a system; None if the runs do not have it."""
    asked = {*subject.without, *filter(None, [subject.ablated])}
    if not runs or any(asked - run["ablations"].keys() for run in runs):
        return None
    if subject.without:
        rises = [less(losses(runs, name), losses(runs)) for name in subject.without]
        values = np.mean([each.values for each in rises], axis=0)
        resamples = np.mean([np.asarray(each.resamples) for each in rises], axis=0)
        return Measured(Scores(values, resamples, rises[0].items), "rise of the loss", 4)
    if quantity.kind == "loss":
        return Measured(losses(runs, subject.ablated, loss_of), "loss")
    if quantity.kind == "score":
        first = next(s for s in runs[0]["scores"] if quantity.name in ("", s["name"]))
        same = [next(s for s in run["scores"] if s["name"] == first["name"]) for run in runs]
        rows = [run["rows"].get(first["name"], []) for run in runs]
        given = [Score(**{**s, "rows": r}) for s, r in zip(same, rows, strict=True)]
        is_higher = not first["lower_is_better"]
        return Measured(Scores.of(given), first["name"], first["digits"], is_higher)
    numbers = np.array([recorded(quantity, subject, run) for run in runs])
    return None if np.isnan(numbers).any() else Measured(Scores(numbers), quantity.name)


def losses(runs: Sequence[Line], ablation: str | None = None, loss_of: str = "") -> Scores:
    """Collects the test loss of each run, under an ablation or from the rows of a score."""
    found = []
    for run in runs:
        value = run["loss"] if ablation is None else run["ablations"][ablation]
        rows = run["rows"].get("loss" if ablation is None else f"loss with {ablation}", [])
        if loss_of and ablation is None:  # of each item nats, tokens, and others
            rows = np.array(run["rows"][loss_of])[:, :2].tolist()
            value = float(np.divide(*np.sum(rows, axis=0)))
        found.append(Score(name="loss", value=value, statistic="ratio", rows=rows))
    return Scores.of(found)


def less(changed: Scores, unchanged: Scores) -> Scores:
    """Subtracts scores of the same runs, so that each run has a difference."""
    values = changed.values - unchanged.values
    if changed.resamples is None or unchanged.resamples is None:
        return Scores(values)
    return Scores(values, changed.resamples - unchanged.resamples, changed.items)


def recorded(quantity: Quantity, subject: Subject, run: Line) -> float:
    """Returns a number that was recorded once for a run; NaN if it was not."""
    rows = [row for row in run[quantity.rows] if row.get(quantity.key) is not None]
    if quantity.sites:
        rows = [row for row in rows if row["site"] in quantity.sites]
    if subject.layer is not None and rows:
        layer = sorted({row["layer"] for row in rows})[subject.layer]
        rows = [row for row in rows if row["layer"] == layer]
    if quantity.less:
        found = [row[quantity.key] - row[quantity.less] for row in rows]
    else:
        found = [row[quantity.key] for row in rows]
    if not found:
        return math.nan
    if quantity.over == "last":
        return float(found[-1])
    over: dict[str, Any] = {"mean": np.mean, "largest": np.max, "smallest": np.min}
    return float(over[quantity.over](found))


# --- what it says of a claim --------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """The result of one test of a claim."""

    test: str
    kind: Kind
    said: str = ""  # the difference or the number, with its interval
    beside: str = ""  # the numbers of both systems, p, and what collapsed or diverged
    # Low end, value and high end of the advantage of the first system, in margins.
    standing: tuple[float, float, float] | None = None
    miss: float = math.nan  # grows with the distance from what is claimed


@dataclass(frozen=True)
class Verdict:
    """The verdict on a claim, which holds if all of its tests hold."""

    kind: Kind
    findings: Sequence[Finding] = ()
    seeds: int = 0  # at the least, without runs that collapsed; 0 where there are none

    @classmethod
    def of(cls, findings: Sequence[Finding], seeds: int = 0) -> "Verdict":
        order: tuple[Kind, ...] = ("does not hold here", "not run", "cannot be told")
        kinds = [finding.kind for finding in findings]
        return cls(next((each for each in order if each in kinds), "holds here"), findings, seeds)

    def __str__(self) -> str:
        is_told = self.kind not in ("not run", "not testable here")
        few = is_told and 0 < self.seeds < ENOUGH_SEEDS
        seeds = f"{self.seeds} seed{'s' * (self.seeds > 1)}"
        return f"{self.kind} (provisional: {seeds})" if few else self.kind


def verdict(claim: Claim, lines: Lines, data: str = "") -> Verdict:
    """Judges a claim by the lines of finished runs.

    Args:
        claim: one of the catalogue.
        lines: those of `read_lines`.
        data: the hash of the data that runs count of; by default that of the most of them, since
            no test may compare runs on different data.
    """
    of_experiment = lines.get(claim.experiment, ())
    if claim.quantity.kind == "count":
        return Verdict.of([counted(test, claim) for test in claim.tests])
    if not claim.experiment:
        return Verdict("not testable here")
    if claim.quantity.kind == "time":
        return Verdict.of([timed(test, claim, of_experiment) for test in claim.tests])
    asked = {(each.system, each.dataset) for each in claim.subjects}
    every = [line for line in of_experiment if line["kind"] == "run"]
    every = [run for run in every if (run["system"], run["dataset"]) in asked]
    most = Counter((run["dataset"], run["data"]) for run in every).most_common()
    data_of = {dataset: data or of for (dataset, of), _ in reversed(most)}
    every = [run for run in every if run["data"] == data_of[run["dataset"]]]
    runs = {key: [run for run in every if (run["system"], run["dataset"]) == key] for key in asked}
    sound = {key: not_collapsed(some) for key, some in runs.items()}
    findings = [found_on(test, claim, runs) for test in claim.tests]
    found = Verdict.of(findings, min(map(len, sound.values())))
    entry = [compared(test, claim, sound).kind for test in claim.only_if]
    if entry and "holds here" not in entry and found.kind != "not run":
        return replace(found, kind="not testable here")
    return found


def not_collapsed(runs: Sequence[Line]) -> list[Line]:
    """Selects the runs of a system that neither diverged nor collapsed."""
    best = min(filter(math.isfinite, map(last_loss, runs)), default=0.0)
    return [run for run in runs if last_loss(run) <= 1.05 * best]


def found_on(test: Test, claim: Claim, runs: Runs) -> Finding:
    """Judges a test, by the rules on runs that collapsed or diverged."""
    finite = {key: [r for r in some if math.isfinite(last_loss(r))] for key, some in runs.items()}
    sound = {key: not_collapsed(some) for key, some in runs.items()}
    found = compared(test, claim, sound)
    if sound != finite:
        whole = compared(test, claim, finite)
        is_worse = found.kind == "does not hold here" and whole.miss >= found.miss
        kind = found.kind if is_worse or found.kind == whole.kind else "cannot be told"
        beside = f"{found.beside}; with the runs that collapsed: {whole.said}"
        found = replace(found, kind=kind, beside=beside)
    if finite != runs and found.kind == "holds here":
        beside = f"{found.beside}; other runs diverged"
        return replace(found, kind="cannot be told", beside=beside)
    return found


def compared(test: Test, claim: Claim, runs: Runs) -> Finding:
    """Judges a test by the given runs alone."""
    loss_of = catalogue().experiments[claim.experiment].loss_of
    asked = [each for each in (test.of, test.than) if each is not None]
    keys = [(each.system, each.dataset) for each in asked]
    every = [
        measured(claim.quantity, each, runs[key], loss_of)
        for each, key in zip(asked, keys, strict=True)
    ]
    systems = [each for each in every if each is not None]
    if len(systems) < len(asked):
        return Finding(str(test), "not run")
    first, scores = systems[0], [each.scores for each in systems]
    is_within = len(set(keys)) < len(keys)  # two numbers of the same runs
    estimate = contrast(*([less(*scores)] if is_within else scores))
    tests = sum(each.than is not None for each in claim.tests)
    kind = judged(test, estimate, first.higher_is_better, tests)
    means = " against ".join(number(float(each.values.mean()), first.digits) for each in scores)
    if test.than is None:
        said = f"{means} [{number(estimate.low)}, {number(estimate.high)}] {first.name}"
        miss = max(test.at_least - estimate.value, estimate.value - test.at_most)
        return Finding(str(test), kind, said, miss=miss)
    ends = [estimate.value, estimate.low, estimate.high]
    value, low, high = (number(each, first.digits, sign=True) for each in ends)
    said = f"{value} [{low}, {high}]" if math.isfinite(estimate.low) else value
    least, mean, most = advantage(estimate, first.higher_is_better)
    return Finding(
        str(test),
        kind,
        f"{said} {first.name}",
        f"{means}, p = {estimate.p:.2g}",
        (least / test.margin, mean / test.margin, most / test.margin),
        mean if test.holds == "not better" else -mean,
    )


def judged(test: Test, found: Estimate, higher_is_better: bool = True, tests: int = 1) -> Kind:
    """Judges a test by the interval of a difference, or of a number.

    Args:
        test: the test.
        found: the difference of its two systems, or the number of its only one.
        higher_is_better: whether a larger number is better.
        tests: how many tests of two systems the claim has.
    """
    from scipy import stats

    low, value, high = advantage(found, higher_is_better)
    if "seeds" not in found.over or math.isnan(low):
        return "cannot be told"
    if test.than is None:
        holds = test.at_least <= found.low and found.high <= test.at_most
        fails = found.high < test.at_least or found.low > test.at_most
    else:
        wider = 1.0
        if tests > 1 and found.error:
            ends = stats.t.ppf([1 - SIGNIFICANT / 2 / tests, 1 - SIGNIFICANT / 2], found.freedom)
            wider = ends[0] / ends[1]
        least, most = value - wider * (value - low), value + wider * (high - value)
        holds, fails = {
            "better": (found.p < SIGNIFICANT and value > 0, most < test.margin),
            "not better": (high < test.margin, least >= test.margin),
            "not worse": (low > -test.margin, most <= -test.margin),
        }[test.holds or "better"]
    return "holds here" if holds else "does not hold here" if fails else "cannot be told"


def advantage(found: Estimate, higher_is_better: bool) -> tuple[float, float, float]:
    """Returns low end, value and high end of a difference, by which the first system is better."""
    if higher_is_better:
        return found.low, found.value, found.high
    return -found.high, -found.value, -found.low


def timed(test: Test, claim: Claim, lines: Sequence[Line]) -> Finding:
    """Judges a test of times: the median of several measurements, with the widest interval."""
    every = [line[claim.quantity.key] for line in lines if line["kind"] == "times"]
    found = [each[test.of.system] for each in every if test.of.system in each]
    if not found:
        return Finding(str(test), "not run")
    low, high = min(each["low"] for each in found), max(each["high"] for each in found)
    value = float(np.median([each["value"] for each in found]))
    kind = judged(test, Estimate(value, low, high, over="seeds"))
    return Finding(str(test), kind, f"{value:.2f}× [{low:.2f}, {high:.2f}] the baseline's time")


def counted(test: Test, claim: Claim) -> Finding:
    """Judges a printed figure by that of a model, which is counted without weights."""
    import torch

    import headwise
    from headwise.analysis.cost import count_parameters, model_cost

    model: Any = getattr(headwise, claim.model)
    config = {**claim.config, **test.config}
    if claim.quantity.key == "parameters":  # that a system adds to the standard model
        with torch.device("meta"):
            ours = model(model.config_class(**config))
            standard = model(model.config_class(**{**config, "attention": "standard"}))
        value = count_parameters(ours) - count_parameters(standard)
    else:
        value = getattr(model_cost(model.config_class(**config), claim.lengths), claim.quantity.key)
    kind = judged(test, Estimate(value, value, value, over="seeds"))
    said = f"{value / 1e6:,.2f}M {claim.quantity.name}, printed: {test.printed}"
    return Finding(str(test), kind, said)
