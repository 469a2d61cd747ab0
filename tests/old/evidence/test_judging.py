"""The verdict on a claim from the records of its runs: those that collapsed, diverged or miss."""

import math
from pathlib import Path

import pytest
import tiny_results

from evidence import quantities
from evidence.claims import Against, Claim, Within
from evidence.experiments import Conditions, Places, recipe_hash
from evidence.judging import verdict_on

BEST = [2.50, 2.51, 2.52, 2.51]
FAR = 3.0  # more than a twentieth above the best
MADE = [2.60, 2.61, 2.62, 2.61]


@pytest.fixture
def verdict(monkeypatch, tmp_path):
    """Returns the verdict on a test of the loss, from the losses of two systems."""
    monkeypatch.setattr(quantities, "is_stale", lambda runs, recipe: False)
    places = Places(Path(), tmp_path, tmp_path)
    conditions = Conditions("laptop", "translation", places)

    def found(test, last=None, **systems):
        for name, losses in systems.items():
            recipe = recipe_hash(conditions.recipe(name, None))
            for run in tiny_results.system(name, losses).runs:
                run = run.model_copy(update={"recipe": recipe, "validation_loss": run.loss})
                ends = {"step": 100, "eval_loss": (last or {}).get((name, run.seed), run.loss)}
                conditions.table.put(run.model_copy(update={"history": [ends]}))
        said = dict.fromkeys(("says", "where", "printed", "holds_if"), "-")
        claim = Claim(quantity={"kind": "loss"}, tests=[test], experiment="translation", **said)
        return verdict_on(claim, "laptop", places)

    return found


def against(holds):
    return Against(of="gated", holds=holds, than="standard", margin=0.02)


@pytest.mark.parametrize(
    ("test", "gated", "standard", "kind"),
    [
        (against("better"), BEST, MADE, "holds here"),
        (against("better"), MADE, [*BEST, FAR], "cannot be told"),  # with it the interval is wide
        (against("better"), [*MADE, FAR], BEST, "does not hold here"),  # it is worse still
        (against("not better"), BEST, MADE, "does not hold here"),
        (against("not better"), BEST, [*MADE, FAR], "does not hold here"),  # better still
        (against("not better"), [*BEST, FAR], MADE, "cannot be told"),
        (Within(of="gated", at_most=2.4), BEST, MADE, "does not hold here"),
        (Within(of="gated", at_most=2.4), [*BEST, FAR], MADE, "does not hold here"),
        (Within(of="gated", at_least=2.4, at_most=2.6), [*BEST, FAR], MADE, "cannot be told"),
    ],
)
def test_collapsed_runs_leave_open_what_they_change_but_no_failure_that_they_worsen(
    verdict, test, gated, standard, kind
):
    found = verdict(test, gated=gated, standard=standard)
    assert found.kind == kind
    said = found.findings[0].remark.count("with the collapsed runs")
    assert said == (FAR in (*gated, *standard))


@pytest.mark.parametrize("last", [FAR, math.nan])
def test_a_run_that_got_lost_behind_its_best_checkpoint_has_collapsed_or_diverged(verdict, last):
    found = verdict(against("better"), {("gated", 1): last}, gated=BEST, standard=MADE)
    assert (found.seeds, found.collapsed) == (3, 1)


def test_runs_that_all_diverged_are_not_runs_that_are_missing(verdict):
    lost = {("gated", seed): math.nan for seed in range(1, 5)}
    found = verdict(against("better"), lost, gated=BEST, standard=MADE)
    assert found.kind == "cannot be told"
    assert found.findings[0].remark == "all runs of gated diverged"


def test_without_runs_nothing_is_known(verdict):
    assert verdict(against("better"), standard=MADE).kind == "not run"


def test_infinite_figures_tell_nothing(verdict):
    lost = {("standard", 1): 2.6}
    found = verdict(against("better"), lost, gated=BEST, standard=[math.inf, *MADE[1:]])
    assert found.kind == "cannot be told"
