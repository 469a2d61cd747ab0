"""How the verdict on a claim follows from the lines of finished runs.

A test of two systems has a difference with its 95% interval and p, over seeds and test items
together, and a margin, the smallest difference that matters. That a system is *better* holds if it
is, with p below 0.05, and does not if the interval leaves no room for an advantage as large as the
margin. That it is *not better*, or *not worse*, by more than the margin holds if the interval ends
before the margin, and does not if the whole interval lies beyond it. A number between bounds is
judged by its interval alone. Everything else cannot be told.

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
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from pydantic import BaseModel, BeforeValidator, ConfigDict
from scipy import stats

import headwise
from headwise.analysis.cost import model_cost
from headwise.analysis.statistics import (
    SIGNIFICANT,
    Estimate,
    Scores,
    estimate_difference,
    estimate_number,
)
from headwise.messages import expected_one_of
from headwise.report.page import format_interval, format_number
from headwise.tasks.scores import Score
from headwise.yaml import read_yaml

HERE = Path(__file__).parent
ENOUGH_SEEDS = 5  # a verdict on fewer says how many there are
Kind = Literal["holds", "does not hold", "cannot be told", "not testable", "not run"]
Line = dict[str, Any]  # of the results
Lines = Mapping[str, Sequence[Line]]  # by experiment
Runs = Mapping[str, Sequence[Line]]  # by system


# --- what is declared in claims.yaml, whose head says what each key means -------------------------


class Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Subject(Declared):
    system: str
    ablated: tuple[str, ...] = ()
    layer: int | None = None

    def __str__(self) -> str:
        names = dict.fromkeys(name.partition("=")[2].partition(",")[0] for name in self.ablated)
        layer = [] if self.layer is None else [f"layer {self.layer}"]
        return " ".join([self.system, *(f"({each})" for each in (*names, *layer))])


Named = Annotated[Subject, BeforeValidator(lambda v: {"system": v} if isinstance(v, str) else v)]


class Test(Declared):
    of: Named
    holds: Literal["better", "not better", "not worse"] | None = None
    than: Named | None = None
    margin: float = 1.0
    at_least: float = -math.inf
    at_most: float = math.inf
    config: dict[str, Any] = {}

    def __str__(self) -> str:
        if self.than is not None:
            return f"{self.of} {self.holds} than {self.than}"
        ends = {"at least": self.at_least, "at most": self.at_most}
        bounds = [f"{name} {end:,.7g}" for name, end in ends.items() if math.isfinite(end)]
        return f"{self.of} {' and '.join(bounds)}"


class Quantity(Declared):
    kind: Literal["loss", "rise", "score", "recorded", "time", "count"] = "loss"
    name: str = ""
    digits: int = 3
    higher_is_better: bool = False
    rows: str = "loss"
    key: str = ""
    less: str = ""
    over: Literal["mean", "max", "min"] = "mean"
    site: str = ""


class Claim(Declared):
    short: str
    says: str
    where: str
    printed: str = "no figure"
    quantity: Quantity = Quantity()
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
        return [subject for test in tests for subject in (test.of, test.than) if subject]


class Paper(Declared):
    paper: str
    link: str
    system: str
    left_out: str = ""
    claims: dict[str, Claim]


class Catalogue(Declared):
    tune: dict[str, tuple[str, ...]]
    papers: tuple[Paper, ...]

    def claims(self, ids: Sequence[str] = ()) -> dict[str, Claim]:
        """Returns the claims of these names, by default all."""
        known = {name: claim for paper in self.papers for name, claim in paper.claims.items()}
        for name in ids:
            if name not in known:
                raise ValueError(f"there is no claim {name!r}, {expected_one_of(name, known)}")
        return {name: known[name] for name in ids or known}


def read_catalogue() -> Catalogue:
    return Catalogue.model_validate(read_yaml((HERE / "claims.yaml").read_text(encoding="utf-8")))


# --- what was measured --------------------------------------------------------------------------


def read_lines(results: Path) -> dict[str, list[Line]]:
    """Reads the lines by experiment, without runs whose recipe was changed for a question."""
    by_experiment = {}
    for file in sorted(results.glob("*.jsonl")):
        lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
        kept = [line for line in lines if line["kind"] != "choice" and not line.get("at")]
        by_experiment[file.stem] = kept
    return by_experiment


def collect_scores(quantity: Quantity, subject: Subject, runs: Sequence[Line]) -> Scores | None:
    """Collects a quantity of each run of a system; None if the runs do not have it."""
    if quantity.kind == "recorded":
        numbers = [recorded_number(quantity, subject, run) for run in runs]
        return Scores(np.array(numbers)) if runs and np.isfinite(numbers).all() else None
    whole, ablations = quantity.rows, [f"{quantity.rows} with {name}" for name in subject.ablated]
    if not runs or any({whole, *ablations} - run["rows"].keys() for run in runs):
        return None
    scores = [row_scores(quantity, name, runs) for name in ablations or [whole]]
    if quantity.kind == "rise":
        scores = [subtract(each, row_scores(quantity, whole, runs)) for each in scores]
    if len(scores) == 1:
        return scores[0]
    values = np.mean([each.values for each in scores], axis=0)
    resamples = np.mean([np.asarray(each.resamples) for each in scores], axis=0)
    return Scores(values, resamples, scores[0].items)


def recorded_number(quantity: Quantity, subject: Subject, run: Line) -> float:
    """Returns a number that was recorded once for a run; NaN if it was not."""
    rows = pd.DataFrame(run[quantity.rows])
    if quantity.site:
        rows = rows[rows["site"] == quantity.site]
    if subject.layer is not None:
        rows = rows[rows["layer"] == subject.layer]
    if quantity.key not in rows:
        return math.nan
    values = rows[quantity.key].explode().astype(float)  # loads are lists
    if quantity.less:
        values = values - rows[quantity.less].astype(float)
    if quantity.rows == "history":
        values = values.dropna().tail(1)
    return float(values.agg(quantity.over))


def row_scores(quantity: Quantity, name: str, runs: Sequence[Line]) -> Scores:
    """Makes scores of the rows of that name: those of the task, or mean losses.

    The rows of a loss begin with the nats of some items and their number of labels.
    """
    scores = []
    for run in runs:
        rows = run["rows"][name]
        if quantity.kind == "score":
            (score,) = [each for each in run["scores"] if each["name"] == name]
            scores.append(Score(**{**score, "rows": rows}))
        else:
            rows = np.array(rows, dtype=float)[:, :2]
            nats, labels = rows.sum(axis=0)
            mean = nats / labels
            scores.append(Score(name=name, value=mean, statistic="ratio", rows=rows.tolist()))
    return Scores.from_runs(scores)


def subtract(changed: Scores, unchanged: Scores) -> Scores:
    """Subtracts scores of the same runs, so that each run has a difference."""
    values = changed.values - unchanged.values
    if changed.resamples is None or unchanged.resamples is None:
        return Scores(values)
    return Scores(values, changed.resamples - unchanged.resamples, changed.items)


# --- what it says of a claim --------------------------------------------------------------------


class Finding(NamedTuple):
    """The result of one test of a claim."""

    test: Test
    kind: Kind
    measured: str = ""  # the difference or the number, with its interval
    details: str = ""  # the numbers of both systems, p, and what collapsed or diverged
    # Low end, value and high end of the advantage of the first system, in margins.
    advantage: tuple[float, float, float] | None = None
    miss: float = math.nan  # grows with the distance from what is claimed


class Verdict(NamedTuple):
    """The verdict on a claim, which holds if all of its tests hold."""

    kind: Kind
    findings: Sequence[Finding] = ()
    seeds: int = 0  # at the least, without runs that collapsed; 0 where there are none

    @classmethod
    def from_findings(cls, findings: Sequence[Finding], seeds: int = 0) -> "Verdict":
        order: tuple[Kind, ...] = ("does not hold", "not run", "cannot be told")
        kinds = [finding.kind for finding in findings]
        return cls(next((kind for kind in order if kind in kinds), "holds"), findings, seeds)

    def __str__(self) -> str:
        is_told = self.kind not in ("not run", "not testable")
        has_few = is_told and 0 < self.seeds < ENOUGH_SEEDS
        return f"{self.kind} ({self.seeds} seed{'s' * (self.seeds > 1)})" if has_few else self.kind


def judge(claim: Claim, lines: Lines) -> Verdict:
    """Judges a claim by the lines of finished runs, see `read_lines`.

    No test compares runs on different data: of each data set those on the data of most runs count.
    """
    if claim.quantity.kind == "count":
        return Verdict.from_findings([judge_count(test, claim) for test in claim.tests])
    if not claim.experiment:
        return Verdict("not testable")
    recorded = lines.get(claim.experiment, ())
    if claim.quantity.kind == "time":
        return Verdict.from_findings([judge_time(test, claim, recorded) for test in claim.tests])
    systems = {subject.system for subject in claim.subjects}
    recorded = [run for run in recorded if run["system"] in systems]
    counts = Counter((data_set_name(run), run["data"]) for run in recorded).most_common()
    digests = {name: digest for (name, digest), _ in reversed(counts)}
    comparable = [run for run in recorded if run["data"] == digests[data_set_name(run)]]
    runs = {name: [run for run in comparable if run["system"] == name] for name in systems}
    sound = {name: without_collapsed(runs[name]) for name in systems}
    findings = [judge_test(test, claim, runs, sound) for test in claim.tests]
    verdict = Verdict.from_findings(findings, min(map(len, sound.values())))
    conditions = [judge_runs(test, claim, sound).kind for test in claim.only_if]
    if conditions and "holds" not in conditions and verdict.kind != "not run":
        return verdict._replace(kind="not testable")
    return verdict


def data_set_name(run: Line) -> str:
    """Returns the name of the data set in that of a system, DATASET/SYSTEM."""
    return str(run["system"]).rpartition("/")[0]


def last_loss(run: Line) -> float:
    """Returns the loss at the end of training; the final model may be an earlier one."""
    losses = [row["eval_loss"] for row in run["history"] if "eval_loss" in row]
    return float(losses[-1] if losses else run["validation_loss"])


def without_collapsed(runs: Sequence[Line]) -> list[Line]:
    """Selects the runs of a system that neither diverged nor collapsed."""
    best = min(filter(math.isfinite, map(last_loss, runs)), default=0.0)
    return [run for run in runs if last_loss(run) <= 1.05 * best]


def judge_test(test: Test, claim: Claim, runs: Runs, sound: Runs) -> Finding:
    """Judges a test, by the rules on runs that collapsed or diverged: `sound` is without them."""
    finite = {name: [r for r in runs[name] if math.isfinite(last_loss(r))] for name in runs}
    finding = judge_runs(test, claim, sound)
    if sound != finite:
        with_all = judge_runs(test, claim, finite)
        is_worse = finding.kind == "does not hold" and with_all.miss >= finding.miss
        if finding.kind != with_all.kind and not is_worse:
            finding = finding._replace(kind="cannot be told")
        details = f"{finding.details}; with the runs that collapsed: {with_all.measured}"
        finding = finding._replace(details=details)
    if finite != runs and finding.kind == "holds":
        details = f"{finding.details}; other runs diverged"
        return finding._replace(kind="cannot be told", details=details)
    return finding


def judge_runs(test: Test, claim: Claim, runs: Runs) -> Finding:
    """Judges a test by the given runs alone."""
    quantity = claim.quantity
    first = collect_scores(quantity, test.of, runs[test.of.system])
    if first is None:
        return Finding(test, "not run")
    if test.than is None:
        return judge_bounds(test, quantity, estimate_number(first))
    second = collect_scores(quantity, test.than, runs[test.than.system])
    if second is None:
        return Finding(test, "not run")
    if test.of.system == test.than.system:  # two numbers of the same runs
        difference = estimate_number(subtract(first, second))
    else:
        difference = estimate_difference(first, second)
    advantage = difference
    if not quantity.higher_is_better:
        low, high = -difference.high, -difference.low
        advantage = replace(difference, value=-difference.value, low=low, high=high)
    kind = judge_interval(test, advantage, sum(each.than is not None for each in claim.tests))
    means = [format_number(float(each.values.mean()), quantity.digits) for each in (first, second)]
    return Finding(
        test,
        kind,
        format_estimate(quantity, difference, sign=True),
        f"{' against '.join(means)}, p = {difference.p:.2g}",
        (advantage.low / test.margin, advantage.value / test.margin, advantage.high / test.margin),
        advantage.value if test.holds == "not better" else -advantage.value,
    )


def judge_bounds(test: Test, quantity: Quantity, number: Estimate) -> Finding:
    """Judges a test of a number between bounds."""
    miss = max(test.at_least - number.value, number.value - test.at_most)
    text = format_estimate(quantity, number)
    return Finding(test, judge_interval(test, number), text, miss=miss)


def format_estimate(quantity: Quantity, estimate: Estimate, *, sign: bool = False) -> str:
    """Writes a number with its interval, if it has one."""
    value = format_number(estimate.value, quantity.digits, sign=sign)
    has_interval = estimate.low < estimate.high
    ends = (estimate.low, estimate.high) if has_interval else (math.nan, math.nan)
    within = format_interval(*ends, quantity.digits, before=" ", sign=sign)
    return f"{value}{within} {quantity.name or quantity.rows}"


def judge_interval(test: Test, estimate: Estimate, tests: int = 1) -> Kind:
    """Judges a test by an advantage, or a number; `tests` of two systems does the claim have."""
    value, low, high = estimate.value, estimate.low, estimate.high
    if "seeds" not in estimate.variance_source or math.isnan(low):
        return "cannot be told"
    if test.than is None:
        holds = test.at_least <= low and high <= test.at_most
        fails = high < test.at_least or low > test.at_most
    else:
        half = estimate.error * float(stats.t.ppf(1 - SIGNIFICANT / 2 / tests, estimate.dof))
        holds, fails = {
            "better": (estimate.p < SIGNIFICANT and value > 0, value + half < test.margin),
            "not better": (high < test.margin, value - half >= test.margin),
            "not worse": (low > -test.margin, value + half <= -test.margin),
        }[test.holds or "better"]
    return "holds" if holds else "does not hold" if fails else "cannot be told"


def judge_time(test: Test, claim: Claim, lines: Sequence[Line]) -> Finding:
    """Judges a test of times: the median of several measurements, with the widest interval."""
    if not lines:
        return Finding(test, "not run")
    times = pd.DataFrame([line[claim.quantity.key][test.of.system] for line in lines])
    value, low, high = times["value"].median(), times["low"].min(), times["high"].max()
    return judge_bounds(test, claim.quantity, Estimate(value, low, high, variance_source="seeds"))


def judge_count(test: Test, claim: Claim) -> Finding:
    """Judges a printed figure by that of a model, which is counted without weights."""
    config_class = getattr(headwise, claim.model).config_class
    config = {**claim.config, **test.config}
    cost = model_cost(config_class(**config), claim.lengths)
    if claim.quantity.key == "parameters":  # that a system adds to the standard model
        standard = model_cost(config_class(**{**config, "attention": "standard"}), claim.lengths)
        value = cost.parameters.total - standard.parameters.total
    else:
        value = getattr(cost, claim.quantity.key)
    number = Estimate(value, value, value, variance_source="seeds")
    return judge_bounds(test, claim.quantity, number)
