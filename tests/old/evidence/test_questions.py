"""Questions why: runs that are shared, and kept, and what is said of a trend."""

from xml.etree import ElementTree

import numpy as np
import pytest
import tiny_claims
from pydantic import ValidationError
from rich.console import Console
from typer.testing import CliRunner

from evidence.__main__ import app
from evidence.answers import answer, trend_kind
from evidence.claims import Quantity, all_claims
from evidence.experiments import Conditions
from evidence.fingerprint import computes_alike, fingerprint
from evidence.planning import plan
from evidence.questions import Question, all_questions
from evidence.results import Run
from evidence.training import run_experiment, run_question
from headwise.analysis.results import Tries, Try
from headwise.analysis.statistics.estimates import Difference
from headwise.recipes import RecipeError, load_recipe
from headwise.runs.one_run import SystemRun
from headwise.training.interrupted import Interrupted

pytestmark = pytest.mark.slow

QUIET = Console(quiet=True)
BOTH = ["standard", "mae"]


@pytest.fixture
def _tiny(tiny_catalogue, monkeypatch):
    """The questions of the tests in the place of those that are shipped."""
    tiny_claims.use(tiny_catalogue, monkeypatch)


@pytest.fixture(scope="module")
def tiny_catalogue(tmp_path_factory):
    folder = tmp_path_factory.mktemp("catalogue")
    tiny_claims.write_catalogue(folder)
    return folder


@pytest.fixture(scope="module")
def asked(tiny_catalogue, tmp_path_factory):
    """Folders in which a question was stopped after its second run, and asked again.

    Returns them with the runs that were trained before and after.
    """
    places = tiny_claims.places_in(tmp_path_factory.mktemp("questions"))
    whole, trained = SystemRun.train, []

    def counted(run, console):
        if len(trained) == 2:
            trained.append("stopped")
            raise Interrupted("stopped at step 0")
        trained.append(str(run.folder.relative_to(places.runs / "laptop")))
        return whole(run, console)

    with pytest.MonkeyPatch.context() as patch:
        tiny_claims.use(tiny_catalogue, patch)
        patch.setattr(SystemRun, "train", counted)
        question = all_questions("laptop")["length"]
        with pytest.raises(Interrupted):
            run_question(question, [1, 2], places, QUIET)
        run_question(question, [1, 2], places, QUIET)
    return places, trained


@pytest.mark.usefixtures("_tiny")
def test_a_question_goes_on_and_trains_each_run_once(asked):
    places, trained = asked
    assert trained[2] == "stopped"
    own = [f"counting/{system}-seed{seed}" for seed in (1, 2) for system in ("standard", "mae")]
    assert [*trained[:2], *trained[3:]] == [
        *own,
        *(name.replace("/", "-why/length/3/") for name in own),
    ]
    runs = counting(places).table.find(Run)
    assert [run.key[1:] for run in runs] == [
        (at, "", system, seed)
        for at in ("", "length/3")
        for system in ("mae", "standard")
        for seed in (1, 2)
    ]


@pytest.mark.usefixtures("_tiny")
def test_a_claim_needs_none_of_the_runs_that_a_question_shares(asked, monkeypatch):
    places, _ = asked
    monkeypatch.setattr(SystemRun, "train", None)
    run_experiment(counting(places), {None: BOTH}, [1, 2], QUIET)
    moved = places._replace(runs=places.runs / "none", data=places.data / "none")
    run_question(all_questions("laptop")["length"], [1, 2], moved, QUIET)
    assert not moved.runs.exists()


@pytest.mark.usefixtures("_tiny")
def test_an_experiment_goes_on_where_a_question_was_asked_first(asked, tmp_path):
    places, _ = asked
    moved = places._replace(runs=tmp_path / "runs", results=tmp_path / "results")
    at_3 = ("run", "length/3", "", "mae", 2)
    copied(places, moved, lambda record: record.key != at_3)
    table = counting(moved).table
    assert len(table.find(Run, at="length/3", system="mae")) == 1
    run_question(all_questions("laptop")["length"], [1, 2], moved, QUIET)
    assert len(table.find(Run, at="length/3", system="mae")) == 2
    run_experiment(counting(moved), {None: BOTH}, [1, 2, 3], QUIET)
    assert [run.seed for run in table.find(Run, at="", system="mae")] == [1, 2, 3]


@pytest.mark.usefixtures("_tiny")
def test_an_answer_has_the_differences_of_the_records(asked):
    places, _ = asked
    found = answer(all_questions("laptop")["length"], places)
    assert (found.runs, found.shared, found.seeds, found.stale) == (8, 4, 2, [])
    table = counting(places).table

    def loss(at, system):
        return np.mean([run.loss for run in table.find(Run, at=at, system=system)])

    apart = [loss(at, "mae") - loss(at, "standard") for at in ("length/3", "")]
    assert [point.value for point in found.told["mae"]] == pytest.approx(apart)
    assert found.trends["mae"].change.value == pytest.approx(apart[1] - apart[0])
    assert str(found.trends["mae"]) == "no change larger than 100 found"
    assert found.beside["mae"][0].found.unit == "BLEU"


@pytest.mark.usefixtures("_tiny")
def test_a_single_seed_has_no_interval(asked, tmp_path):
    places, _ = asked
    moved = places._replace(results=tmp_path)
    copied(places, moved, lambda record: isinstance(record, Run) and record.seed == 1)
    found = answer(all_questions("laptop")["length"], moved)
    assert (found.seeds, str(found.trends["mae"])) == (1, "one seed: no interval")
    assert found.briefly() == "mae: one seed: no interval"
    assert all(point.value and point.difference is None for point in found.told["mae"])


@pytest.mark.usefixtures("_tiny")
def test_a_question_may_be_about_decisions(asked):
    places, _ = asked
    length = all_questions("laptop")["length"]
    found = answer(length.model_copy(update={"quantity": Quantity(kind="entropy")}), places)
    entropies = [
        np.mean([record.entropy for record in run.attention])
        for run in counting(places).runs("mae", None)
    ]
    at_own = found.told["mae"][length.at.index(6)].found
    assert at_own is not None and at_own.unit == "entropy"
    np.testing.assert_allclose(at_own.values.scores, entropies)
    # The baseline decides nothing, so that there is no difference to tell.
    assert found.trends["mae"].kind == "not run"
    beside = [point.value for point in found.beside["mae"]]
    assert beside == [point.value for point in answer(length, places).told["mae"]]


@pytest.mark.usefixtures("_tiny")
def test_which_point_shares_runs_depends_on_what_was_chosen(tmp_path):
    places = tiny_claims.places_in(tmp_path)
    question = all_questions("laptop")["rate"]
    (own, at_two) = (question.conditions(1e-2, "mae", places).unchanged, (1e-3, 1e-2))
    assert all(question.conditions(value, "mae", places).at for value in at_two)
    tried = Try(values={"training.learning_rate": 1e-2}, validation_loss=1.0, steps=3, seconds=1.0)
    tries = Tries(seed=0, tries=[tried], chosen=0)
    own.table.put(own.choice_from("mae", tries))
    assert question.conditions(1e-2, "mae", places) == own
    # The value of the point holds, and not the one that was chosen.
    assert (
        question.conditions(1e-3, "mae", places).recipe("mae", None).training.learning_rate == 1e-3
    )


@pytest.mark.usefixtures("_tiny")
def test_systems_choose_in_the_experiment_before_a_point_is_trained(tmp_path):
    places = tiny_claims.places_in(tmp_path)
    run_question(all_questions("laptop")["rate"], [1], places, QUIET)
    own = Conditions("laptop", "chosen", places)
    assert [record.at for record in own.table.records() if record.kind == "choice"] == ["", ""]
    for conditions, systems in all_questions("laptop")["rate"].runs(places):
        for system in systems:
            recipe = load_recipe(str(conditions.run_folder / f"{system}-seed1/recipe.yaml")).recipe
            rate = own.chosen(system).values["training.learning_rate"]
            expected = float(conditions.at.rpartition("/")[2]) if conditions.at else rate
            assert recipe.training.learning_rate == expected
            assert recipe.model.dropout == own.chosen(system).values["model.dropout"]


@pytest.mark.usefixtures("_tiny")
def test_a_key_of_one_system_leaves_the_baseline_as_it_is(tmp_path):
    places = tiny_claims.places_in(tmp_path)
    question = all_questions("laptop")["gates"]
    runs = {each.at: systems for each, systems in question.runs(places)}
    assert runs == {"": ["standard", "mae"], "gates/2": ["mae"]}
    rows = plan({}, [question], "laptop", range(1, 6), places)
    assert [(row.experiment, row.system, row.runs) for row in rows] == [
        ("counting", "standard", 5),
        ("counting", "mae", 5),
        ("counting gates 2", "mae", 5),
    ]


@pytest.mark.usefixtures("_tiny")
def test_the_plan_of_a_point_without_runs_takes_the_minutes_of_the_experiment(asked):
    places, _ = asked
    runs = counting(places).runs("mae", None)
    rows = plan({}, [all_questions("laptop")["gates"]], "laptop", range(1, 3), places)
    (row,) = [row for row in rows if row.experiment == "counting gates 2"]
    assert row.each == pytest.approx(np.mean([run.minutes for run in runs]))
    assert (row.kept, row.left) == (0, pytest.approx(2 * row.each))


def made(value, half=0.1, p=0.001):
    return Difference(
        value=value, low=value - half, high=value + half, error=half / 2, freedom=8.0,
        source="seeds", p_value=p, corrected_p_value=p, detectable=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "last", "half", "p", "kind"),
    [
        (0.5, 1.0, 0.1, 0.001, "grows"),
        (-0.5, -1.0, 0.1, 0.001, "grows"),
        (1.0, 0.5, 0.1, 0.001, "shrinks"),
        (0.5, -0.5, 0.1, 0.001, "changes its sign"),
        (-0.05, 0.5, 0.1, 0.001, "grows"),  # the first is none that is known
        (0.5, 0.55, 0.1, 0.5, "no change"),
        (0.5, 0.55, 0.4, 0.5, "cannot be told"),
    ],
)
def test_what_is_said_of_a_change(first, last, half, p, kind):
    assert trend_kind(made(first), made(last), made(last - first, half, p), 0.3) == kind


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"at": [1, 1]}, "at names something twice"),
        ({"own": 3}, "own is 3, expected one of the values of at"),
        ({"over": "systems.other.model.dropout"}, "expected systems to be the baseline and it"),
        ({"at": ["../up", "down"]}, "should match pattern"),
        ({"quantity": "time of a step"}, "quantity is time of a step, expected one of score, loss"),
    ],
)
def test_a_question_that_says_something_odd_is_an_error(changes, message):
    declared = {
        "name": "x", "scale": "laptop", "asks": "?", "experiment": "counting", "over": "a.b",
        "systems": ["standard", "mae"], "at": [1, 2], "quantity": "loss", "margin": 1.0,
    }  # fmt: skip
    Question.model_validate(declared)
    with pytest.raises(ValidationError, match=message):
        Question.model_validate({**declared, **changes})


@pytest.mark.usefixtures("_tiny", "few_rounds")
def test_the_commands(asked, tmp_path):
    places, _ = asked
    results = ("--results", str(places.results))

    def told(*arguments, code=0):
        done = CliRunner().invoke(app, arguments, env={"COLUMNS": "1000"})
        assert done.exit_code == code, done.output
        return done.output

    every = told("why", *results)
    assert "length: Does more training help?" in every and "mae: not run" in every
    assert "gates" not in told("why", "length", *results)
    seeds = ("--seeds", "2", "--first-seed", "1")
    again = told("run", "length", *seeds, *results, "--runs", str(tmp_path))
    assert "no change larger than 100 found" in again and "S1" not in again
    assert "counting length 3" in told("plan", "length", *results)
    assert "expected one of length, rate, gates" in told("why", "lenght", code=2)
    assert "did you mean 'length'" in told("run", "lenght", code=2)
    told("page", "--output", str(tmp_path / "claims.md"), *results)
    below = tmp_path / "claims"
    section = (below / "experiments.md").read_text("utf-8").partition("\n## Why\n")[2]
    listed = {row.split("](")[0]: row for row in section.splitlines() if row.startswith("| [")}
    assert listed["| [length"].endswith("| mae: no change larger than 100 found |")
    assert listed["| [rate"].endswith("| not run |")
    of_paper = (below / "tests.md").read_text(encoding="utf-8")
    asked_of_claim = of_paper.partition("## S1\n")[2].partition("\n## ")[0]
    assert "Why? [Does more training help?](experiments.md#length-at-laptop)" in asked_of_claim
    rows = [line for line in section.splitlines() if line.startswith("| mae | ")]
    assert rows[0].endswith("| no change larger than 100 found |") and rows[0].count("[") == 3
    picture = (tmp_path / "pictures" / "why-laptop-length.svg").read_text(encoding="utf-8")
    label = ElementTree.fromstring(picture).get("aria-label")
    assert "mae" in label and label.count(" at ") > 1 and "training.max_steps" in picture


@pytest.mark.parametrize("scale", ["laptop", "gpu", "paper"])
def test_what_the_shipped_questions_name_is_there(scale, tmp_path):
    places = tiny_claims.places_in(tmp_path)
    for question in all_questions(scale).values():
        assert set(question.claims) <= set(all_claims())
        runs = question.runs(places)
        shared, systems = runs[0]
        assert shared.at == "" and set(systems) == set(question.systems), question.name
        if question.own is not None:  # what is declared to be the same has to be the same
            varied = question.systems[-1]
            try:
                same = question.changed(question.own, places).plain.system(varied)
            except RecipeError:  # the further changes do not go with this value
                alone = question.model_copy(update={"changes": ()})
                same = alone.changed(question.own, places).plain.system(varied)
            assert computes_alike(fingerprint(same), fingerprint(shared.plain.system(varied)))


def counting(places):
    return Conditions("laptop", "counting", places)


def copied(places, into, is_wanted):
    """Copies some of the records of the experiment."""
    for record in counting(places).table.records():
        if is_wanted(record):
            counting(into).table.put(record)
