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
best seed, or no number. Collapsed runs are left out, if that changes nothing: a test that they
change cannot be told, unless it fails without them and they make it worse. And nothing holds about
systems of which a run diverged.
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


# --- what is declared in claims.yaml ------------------------------------------------------------


class Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Subject(Declared):
    system: str
    dataset: str | None = None
    without: tuple[str, ...] = ()  # ablations: the quantity is by how much they raise the loss
    ablated: str | None = None  # an ablation under which the system is measured
    layer: int | None = None  # the only one that counts, of decisions; -1 is the last

    def __str__(self) -> str:
        kinds = dict.fromkeys(name.partition("=")[2].partition(",")[0] for name in self.without)
        layer = None if self.layer is None else f"layer {self.layer}"
        said = filter(None, [self.dataset, self.ablated, *kinds, layer])
        return " ".join([self.system, *(f"({each})" for each in said)])


Named = Annotated[Subject, BeforeValidator(lambda v: {"system": v} if isinstance(v, str) else v)]


class Test(Declared):
    of: Named
    holds: Literal["better", "not better", "not worse"] | None = None
    than: Named | None = None
    margin: float = 1.0
    at_least: float = -math.inf
    at_most: float = math.inf
    printed: float | str | None = None  # what the paper prints
    config: dict[str, Any] = {}  # of a model on which a figure is counted

    def __str__(self) -> str:
        if self.than is not None:
            return f"{self.of} {self.holds} than {self.than}"
        ends = {"at least": self.at_least, "at most": self.at_most}
        said = [f"{name} {end:,.7g}" for name, end in ends.items() if math.isfinite(end)]
        return f"{self.of} {' and '.join(said)}"


class Quantity(Declared):
    kind: str
    name: str | None = None  # of a score, or of what is recorded
    sites: tuple[str, ...] = ()  # of decisions; all if none is named


class Claim(Declared):
    short: str
    says: str
    where: str
    printed: str = "no figure"
    quantity: Quantity = Quantity(kind="loss")
    experiment: str = ""
    tests: tuple[Test, ...] = ()
    model: str = ""  # of what is counted, its class, and its sizes
    config: dict[str, Any] = {}
    only_if: tuple[Test, ...] = ()  # of these one has to hold, or nothing can be tested
    untestable: str = ""  # why, where that is so
    paper_recipe: str = ""  # that comes with headwise
    cause: str = ""
    note: str = ""

    @property
    def subjects(self) -> list[Subject]:
        tests = (*self.only_if, *self.tests)
        return [each for test in tests for each in (test.of, test.than) if each is not None]

    @property
    def is_of_times(self) -> bool:
        return self.quantity.kind.startswith("time")


class Paper(Declared):
    paper: str
    link: str
    system: str
    terms: str = ""
    left_out: str = ""
    claims: dict[str, Claim]


class Experiment(Declared):
    recipe: str  # a file of `recipes/`, or a recipe that comes with headwise
    data: str
    set: tuple[str, ...] = ()
    tune: tuple[str, ...] = ()
    loss_of: str | None = None  # the score whose rows have the loss; else there are rows of it


class Catalogue(Declared):
    experiments: dict[str, Experiment]
    papers: tuple[Paper, ...]

    def claims(self, ids: Sequence[str] = ()) -> dict[str, Claim]:
        """The claims of these names, by default all."""
        known = {name: claim for paper in self.papers for name, claim in paper.claims.items()}
        for name in ids:
            if name not in known:
                raise ValueError(f"there is no claim {name!r}, {one_of(name, known)}")
        return {name: known[name] for name in ids or known}


@cache
def catalogue(file: Path = HERE / "claims.yaml") -> Catalogue:
    return Catalogue.model_validate(read_yaml(file.read_text(encoding="utf-8")))


# --- what was measured --------------------------------------------------------------------------


class Line(dict[str, Any]):
    """A line of the results. One that has been read does not change."""

    __hash__ = object.__hash__  # type: ignore[assignment]


@cache
def _read(file: Path, changed: int, size: int) -> list[Line]:
    found = []
    for line, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found.append(Line(json.loads(text)))
            found[-1]["kind"]  # which each line has
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{file}, line {line}, cannot be read ({error}): delete it") from None
    return found


def lines(results: Path, experiment: str, kind: str = "run") -> list[Line]:
    """The lines of an experiment; runs of which the recipe was changed for a question are not."""
    file = results / f"{experiment}.jsonl"
    if not file.is_file():
        return []
    stat = file.stat()
    found = _read(file, stat.st_mtime_ns, stat.st_size)
    return [line for line in found if line["kind"] == kind and not line.get("at")]


Runs = tuple[Line, ...]


def last_loss(run: Line) -> float:
    """That at the end of training; the final model may be that of the best validation."""
    losses = [row["eval_loss"] for row in run["history"] if "eval_loss" in row]
    return float(losses[-1] if losses else run["validation_loss"])


def finite(runs: Runs) -> Runs:
    return tuple(run for run in runs if math.isfinite(last_loss(run)))


def sound(runs: Runs) -> Runs:
    """The runs of a system that neither diverged nor collapsed."""
    best = min(map(last_loss, finite(runs)), default=0.0)
    return tuple(run for run in finite(runs) if last_loss(run) <= 1.05 * best)


class Measured(NamedTuple):
    scores: Scores
    name: str
    digits: int
    higher_is_better: bool


@cache
def measured(
    quantity: Quantity, subject: Subject, runs: Runs, loss_of: str | None = None
) -> Measured | None:
    """A quantity of each run of a system; None if the runs do not have it."""
    asked = {*subject.without, *filter(None, [subject.ablated])}
    if not runs or any(asked - run["ablations"].keys() for run in runs):
        return None
    if subject.without:
        rises = [less(losses(runs, name), losses(runs)) for name in subject.without]
        values = np.mean([each.values for each in rises], axis=0)
        resamples = np.mean([np.asarray(each.resamples) for each in rises], axis=0)
        return Measured(Scores(values, resamples, rises[0].items), "rise of the loss", 4, False)
    if quantity.kind == "loss":
        return Measured(losses(runs, subject.ablated, loss_of), "loss", 3, False)
    if quantity.kind == "score":
        first = next(s for s in runs[0]["scores"] if quantity.name in (None, s["name"]))
        name = first["name"]
        same = [next(s for s in run["scores"] if s["name"] == name) for run in runs]
        rows = [run["rows"].get(name, []) for run in runs]
        given = [Score(**{**s, "rows": r}) for s, r in zip(same, rows, strict=True)]
        return Measured(Scores.of(given), name, first["digits"], not first["lower_is_better"])
    numbers = [number_of(quantity, subject, run) for run in runs]
    if any(math.isnan(each) for each in numbers):
        return None
    is_higher = quantity.kind in ("recorded", "entropy's fall in training")
    return Measured(Scores(np.array(numbers)), quantity.name or quantity.kind, 3, is_higher)


@cache
def losses(runs: Runs, ablation: str | None = None, loss_of: str | None = None) -> Scores:
    """The test loss of each run, under an ablation or from the rows of a score."""
    found = []
    for run in runs:
        value = run["loss"] if ablation is None else run["ablations"][ablation]
        rows = run["rows"].get("loss" if ablation is None else f"loss with {ablation}", [])
        if loss_of is not None and ablation is None:  # of each item nats, tokens, and others
            rows = np.array(run["rows"][loss_of])[:, :2].tolist()
            value = float(np.divide(*np.sum(rows, axis=0)))
        found.append(Score(name="loss", value=value, statistic="ratio", rows=rows))
    return Scores.of(found)


def less(changed: Scores, unchanged: Scores) -> Scores:
    """By how much scores of the same runs differ, as scores of these runs."""
    if changed.resamples is None or unchanged.resamples is None:
        return Scores(changed.values - unchanged.values)
    resamples = changed.resamples - unchanged.resamples
    return Scores(changed.values - unchanged.values, resamples, changed.items)


def number_of(quantity: Quantity, subject: Subject, run: Line) -> float:
    """What no test items are resampled for; NaN if the run does not have it."""
    if quantity.kind == "recorded":
        return float(
            [math.nan, *(r[quantity.name] for r in run["history"] if quantity.name in r)][-1]
        )
    modules = [m for m in run["attention"] if not quantity.sites or m["site"] in quantity.sites]
    layers = sorted({m["layer"] for m in modules})
    if subject.layer is not None and layers:
        only = layers[-1] if subject.layer == -1 else subject.layer
        modules = [m for m in modules if m["layer"] == only]
    if not modules:
        return math.nan
    if quantity.kind == "entropy":
        return float(np.mean([m["entropy"] for m in modules]))
    if quantity.kind == "entropy's fall in training":
        falls = [(m.get("start_entropy") or math.nan) - m["entropy"] for m in modules]
        return float(np.mean(falls))
    of_modules = {"largest share": max, "smallest share": min}[quantity.kind]
    return float(of_modules(of_modules(m["load"]) for m in modules))


# --- what it says of a claim --------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """The result of one test of a claim."""

    test: str
    kind: Kind
    said: str = ""  # the difference or the number, with its interval
    beside: str = ""  # what it is made of, and the difference of the score where the loss decides
    remark: str = ""
    # Low end, value and high end of the advantage of the first system, in margins.
    standing: tuple[float, float, float] | None = None
    miss: float = math.nan  # grows with the distance from what is claimed


@dataclass(frozen=True)
class Verdict:
    """What is known of a claim: all of its tests have to hold."""

    kind: Kind
    findings: Sequence[Finding] = ()
    seeds: int = 0  # at the least, without runs that collapsed

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


def verdict(claim: Claim, results: Path, data: str | None = None) -> Verdict:
    """What the lines of finished runs say of a claim.

    Args:
        claim: one of the catalogue.
        results: the folder of the lines.
        data: the hash of the data that runs count of; by default that of the most of them, since
            no test may compare runs on different data.
    """
    if claim.model:
        return Verdict.of([counted(test, claim) for test in claim.tests])
    if not claim.experiment:
        return Verdict("not testable here")
    if claim.is_of_times:
        return Verdict.of([of_times(test, claim, results) for test in claim.tests])
    asked = {(each.system, each.dataset) for each in claim.subjects}
    every = [r for r in lines(results, claim.experiment) if (r["system"], r["dataset"]) in asked]
    most = Counter((r["dataset"], r["data"]) for r in every).most_common()
    data_of = {dataset: data or of for (dataset, of), _ in reversed(most)}
    every = [run for run in every if run["data"] == data_of[run["dataset"]]]
    runs = {
        key: tuple(run for run in every if (run["system"], run["dataset"]) == key) for key in asked
    }
    whole, kept = ({key: of(some) for key, some in runs.items()} for of in (finite, sound))
    findings = [on_runs(test, claim, kept) for test in claim.tests]
    if kept != whole:
        again = [on_runs(test, claim, whole) for test in claim.tests]
        findings = list(map(with_collapsed, findings, again))
    if whole != runs:
        findings = [
            replace(each, kind="cannot be told", remark="holds but for runs that diverged")
            if each.kind == "holds here"
            else each
            for each in findings
        ]
    found = Verdict.of(findings, min(map(len, kept.values())))
    entry = [on_runs(test, claim, kept).kind for test in claim.only_if]
    if entry and "holds here" not in entry and found.kind != "not run":
        return replace(found, kind="not testable here")
    return found


def on_runs(test: Test, claim: Claim, runs: Mapping[tuple[str, str | None], Runs]) -> Finding:
    """What the runs of each system on each data set say of a test."""
    loss_of = catalogue().experiments[claim.experiment].loss_of
    asked = [each for each in (test.of, test.than) if each is not None]
    of_systems = [runs[each.system, each.dataset] for each in asked]

    def found(quantity: Quantity) -> tuple[list[Measured], Estimate]:
        every = [measured(quantity, s, r, loss_of) for s, r in zip(asked, of_systems, strict=True)]
        known = [each for each in every if each is not None]
        scores = [each.scores for each in known]
        if len(known) < len(asked):
            return [], Estimate(math.nan)
        is_within = len(asked) == 2 and of_systems[0] == of_systems[1]
        return known, contrast(*([less(*scores)] if is_within else scores))

    systems, estimate = found(claim.quantity)
    if not systems:
        return Finding(str(test), "not run")
    first, tests = systems[0], sum(each.than is not None for each in claim.tests)
    kind = judged(test, estimate, first.higher_is_better, tests)
    means = " against ".join(number(float(s.scores.values.mean()), first.digits) for s in systems)
    if test.than is None:
        ends = f"[{number(estimate.low)}, {number(estimate.high)}]"
        miss = max(test.at_least - estimate.value, estimate.value - test.at_most)
        return Finding(str(test), kind, f"{means} {ends} {first.name}", miss=miss)
    beside = f"{means}, {p_value(estimate)}"
    if claim.quantity.kind == "loss" and not test.of.without and not test.than.ablated:
        scores, other = found(Quantity(kind="score"))
        told = f"{in_words(other, scores[0].digits)} {scores[0].name}, {p_value(other)}"
        beside = f"{beside}; {told}"
    low, value, high = advantage(estimate, first.higher_is_better)
    remark = ""
    if kind == "cannot be told" and "seeds" not in estimate.over:
        remark = "it takes several seeds"
    elif kind == "cannot be told":
        remark = estimate.why or f"a difference of {estimate.detectable:.2g} would be found"
    elif test.holds == "better" and value < 0 and estimate.p < SIGNIFICANT:
        remark = "significantly worse"
    elif test.holds == "better" and kind == "holds here" and high < test.margin:
        remark = "better by less than the margin"
    return Finding(
        str(test),
        kind,
        f"{in_words(estimate, first.digits)} {first.name}",
        beside,
        remark,
        (low / test.margin, value / test.margin, high / test.margin),
        value if test.holds == "not better" else -value,
    )


def judged(test: Test, found: Estimate, higher_is_better: bool = True, tests: int = 1) -> Kind:
    """What the interval of a difference, or of a number, says of a test.

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
    """Low end, value and high end of a difference, positive where the first system is better."""
    if higher_is_better:
        return found.low, found.value, found.high
    return -found.high, -found.value, -found.low


def in_words(found: Estimate, digits: int) -> str:
    value, low, high = (number(x, digits, sign=True) for x in (found.value, found.low, found.high))
    return f"{value} [{low}, {high}]" if math.isfinite(found.low) else value


def p_value(found: Estimate) -> str:
    return f"p = {found.p:.3f}" if found.p >= 0.001 else "p < 0.001"


def with_collapsed(finding: Finding, whole: Finding) -> Finding:
    """What is told without collapsed runs, and not changed by them."""
    if finding == whole:
        return finding
    is_worse = finding.kind == "does not hold here" and whole.miss >= finding.miss
    kind = finding.kind if is_worse or finding.kind == whole.kind else "cannot be told"
    remark = f"with the runs that collapsed: {whole.kind}, {whole.said}"
    return replace(finding, kind=kind, remark="; ".join(filter(None, [finding.remark, remark])))


def of_times(test: Test, claim: Claim, results: Path) -> Finding:
    """The median of several measurements, between the ends of all of their intervals."""
    key = "step" if claim.quantity.kind == "time of a step" else "token"
    every = [line[key] for line in lines(results, claim.experiment, "times")]
    found = [each[test.of.system] for each in every if test.of.system in each]
    if not found:
        return Finding(str(test), "not run")
    low, high = min(each["low"] for each in found), max(each["high"] for each in found)
    value = float(np.median([each["value"] for each in found]))
    kind = judged(test, Estimate(value, low, high, over="seeds"))
    return Finding(str(test), kind, f"{value:.2f}× [{low:.2f}, {high:.2f}] the baseline's time")


def counted(test: Test, claim: Claim) -> Finding:
    """A figure of a paper, in its bounds, beside that of a model without weights."""
    import torch

    import headwise
    from headwise.analysis.cost import count_parameters, model_cost

    kind: Any = getattr(headwise, claim.model)
    config, what = {**claim.config, **test.config}, claim.quantity.kind
    if what == "parameters":  # that a system adds to the standard model
        with torch.device("meta"):
            ours = kind(kind.config_class(**config))
            standard = kind(kind.config_class(**{**config, "attention": "standard"}))
        value = count_parameters(ours) - count_parameters(standard)
    else:
        stacks = {"encoder": 128} if kind is headwise.MaskedLM else {"encoder": 10, "decoder": 10}
        cost = model_cost(kind.config_class(**config), stacks)
        value = cost.linear_macs if what == "linear MACs" else cost.macs
    holds = judged(test, Estimate(value, value, value, over="seeds"))
    return Finding(str(test), holds, f"{value / 1e6:,.2f}M {what}, printed: {test.printed}")
