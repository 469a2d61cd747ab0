"""Verdicts from made-up figures, and the claims that headwise ships."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_results import drawn
from typer.testing import CliRunner

from evidence.__main__ import app
from evidence.claims import SCALES, Against, Subject, papers
from evidence.experiments import Conditions, Places, experiments, needed_runs
from evidence.fingerprint import computes_alike, fingerprint
from evidence.verdicts import MORE_SEEDS, Oriented, Verdict, judge, what_it_takes
from headwise.analysis.cost import count_parameters
from headwise.analysis.statistics.estimates import Difference
from headwise.analysis.statistics.seeds_and_items import Resampled
from headwise.recipes import load_recipe
from headwise.recipes.catalogue import task_class

RESULTS = Path(__file__).parents[3] / "evidence" / "results"
PLACES = Places(RESULTS, RESULTS, RESULTS)
SEEDS = re.compile(r"it would take [\d,]+ seeds")


@pytest.mark.parametrize(
    ("holds", "found", "kind"),
    [
        ("better", (2.0, 1.0, 3.0, 0.001), "holds here"),
        ("better", (-2.0, -3.0, -1.0, 0.001), "does not hold here"),
        ("better", (0.1, -0.5, 0.7, 0.7), "does not hold here"),
        ("better", (0.6, 0.4, 0.8, 0.001), "holds here"),
        ("better", (0.1, -3.0, 3.2, 0.9), "cannot be told"),
        ("not better", (0.1, -0.5, 0.7, 0.7), "holds here"),
        ("not better", (-2.0, -3.0, -1.0, 0.001), "holds here"),
        ("not better", (2.0, 1.0, 3.0, 0.001), "does not hold here"),
        ("not better", (0.3, 0.1, 0.5, 0.001), "holds here"),
        ("not better", (1.5, 0.5, 2.5, 0.01), "cannot be told"),
        ("not worse", (-0.9, -1.6, -0.1, 0.031), "cannot be told"),
        ("not better", (0.1, -3.0, 3.2, 0.9), "cannot be told"),
        ("not worse", (0.1, -0.5, 0.7, 0.7), "holds here"),
        ("not worse", (-2.0, -3.0, -1.0, 0.001), "does not hold here"),
        ("not worse", (0.1, -3.0, 3.2, 0.9), "cannot be told"),
    ],
)
def test_verdicts(holds, found, kind):
    test = Against(of="one", holds=holds, than="other", margin=1.0)
    _, low, high, _ = found
    assert judge(test, Oriented(*found, low_of_all=low, high_of_all=high)) == kind


def test_one_of_several_tests_fails_by_a_wider_interval():
    made = Difference(
        value=-0.5, low=-1.3, high=0.3, error=0.8 / 1.95996, freedom=1e6, source="seeds",
        p_value=0.2, corrected_p_value=0.2, detectable=None,
    )  # fmt: skip
    alone, of_two = (Oriented.of(made, False, tests) for tests in (1, 2))
    assert (alone.value, alone.low, alone.high) == (0.5, -0.3, 1.3)
    assert alone.high_of_all == alone.high
    # The normal quantiles of 0.975 and 0.9875 are 1.960 and 2.241.
    assert of_two.high_of_all == pytest.approx(0.5 + 0.8 * 2.241 / 1.960, abs=1e-3)
    assert (of_two.low, of_two.high) == (alone.low, alone.high)
    test = Against(of="one", holds="better", than="other", margin=1.35)
    assert judge(test, alone) == "does not hold here"
    assert judge(test, of_two) == "cannot be told"
    assert of_two.over(0.5).high == 2.6


def test_more_items_are_needed_where_seeds_do_not_help():
    generator = np.random.default_rng(2)
    few = [drawn(generator, items=20) for _ in range(2)]
    times = re.search(r"at least (.*) times as many test items too", what_it_takes(0.05, few))
    # With so many more it is a matter of seeds.
    items = int(20 * float(times[1]) * 1.2)
    many = [drawn(generator, items=items) for _ in range(2)]
    assert what_it_takes(0.05, many) == "it would take more than 1,000 seeds"
    one, other = few
    assert what_it_takes(1.0, [one._replace(scores=one.scores[:1]), other]) == MORE_SEEDS
    # Without items, or with those of one system alone, it is a number of seeds.
    alone = Resampled(np.array([1.0, 2.0, 3.0]), None, 0)
    assert what_it_takes(0.001, [alone]) == "it would take more than 1,000 seeds"
    assert SEEDS.fullmatch(what_it_takes(1.0, [one, other._replace(resamples=None)]))


def test_a_subject_in_words():
    experts = tuple(f"mae=without-expert,expert={expert}" for expert in range(2))
    words = "mae under without-expert (mean of 2)"
    assert str(Subject(system="mae", without=experts)) == words
    assert str(Subject(system="mae", without=("mae=top",), layer=-1)) == (
        "mae under top in its last layer"
    )
    top = Subject(system="mae", without=("mae=top",))
    assert str(
        Against(of=Subject(system="mae", without=experts), holds="better", than=top, margin=1)
    ) == ("the loss of mae under without-expert (mean of 2) rises less than that of mae under top")


def test_fingerprints_are_the_same_again_and_differ_by_system():
    recipe = load_recipe("images-digits")
    one = fingerprint(recipe.system("mae-3"))
    assert computes_alike(one, fingerprint(recipe.system("mae-3")))
    assert not computes_alike(one, fingerprint(recipe.system("standard")))


def test_without_the_folder_of_data_the_option_is_named(tmp_path):
    missing, kept = str(tmp_path / "missing"), str(tmp_path / "kept")
    arguments = ["run", "W2", "--data", missing, "--results", kept, "--runs", kept]
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "1000"})
    assert (done.exit_code, "name yours by --data DIR" in done.output) == (2, True), done.output
    assert not list(tmp_path.iterdir())


def test_a_verdict_on_few_seeds_says_so():
    assert Verdict("holds here", seeds=3).name == "holds here (provisional: 3 seeds)"
    assert Verdict("holds here", seeds=5, stale=["mae"]).name == "holds here (stale)"
    assert Verdict("cannot be told", seeds=3).name == "cannot be told (provisional: 3 seeds)"
    assert Verdict("holds here").name == "holds here"  # counted, without a run


@pytest.mark.parametrize(
    ("scale", "name"),
    [
        *(("laptop", name) for name in ("translation", "modern", "speech", "images")),
        *((scale, "masked-language") for scale in ("laptop", "gpu")),
        ("gpu", "translation"),
    ],
)
def test_systems_have_equal_sizes(scale, name):
    conditions = Conditions(scale, name, PLACES)
    sizes = {}
    for system in conditions.plain.system_names:
        recipe = conditions.plain.system(system)
        task = task_class(recipe.task)
        with torch.device("meta"):
            sizes[system] = count_parameters(task.model_class(task.nominal_config(recipe)))
    others = {"moa-8k16e", "moa-8k32e", "tim-all-layers"}  # as in their papers
    apart = {s: n / sizes["standard"] for s, n in sizes.items() if s not in others}
    assert apart == pytest.approx(dict.fromkeys(apart, 1.0), abs=0.01)


@pytest.mark.parametrize("scale", SCALES)
def test_what_the_shipped_claims_name_is_there(scale):
    claims = {name: claim for paper in papers() for name, claim in paper.claims.items()}
    assert len(claims) == sum(len(paper.claims) for paper in papers()) > 30
    for name, needs in needed_runs(claims, scale).items():
        conditions = Conditions(scale, name, PLACES)
        file = conditions.plain
        for dataset, systems in needs.systems.items():
            for system in systems:
                file.system(system, dataset)
        assert set(needs.times) <= set(file.system_names)
    if scale == "laptop":
        named = {claim.experiment for claim in claims.values()} - {None}
        assert named <= set(experiments(scale))
