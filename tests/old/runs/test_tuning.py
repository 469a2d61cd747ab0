"""Tries of a comparison: equal for all systems, chosen by validation loss, kept and resumed."""

import json
import math
import shutil
from io import StringIO

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from headwise.checksums import SUMS, write_summed
from headwise.cli import app
from headwise.recipes import load_recipe
from headwise.report.comparison import render_report
from headwise.runs import one_run
from headwise.runs.comparing import compare_systems
from headwise.runs.folder import FolderError
from headwise.runs.grid import TUNING_SEED, parse_grid
from headwise.runs.preparing import prepare_task, with_seed
from headwise.runs.tuning import TryRun
from headwise.tasks.translation import Translation
from headwise.training.run import Interrupted

pytestmark = pytest.mark.usefixtures("few_rounds")

QUIET = Console(quiet=True)
RATE, PERIOD = "training.learning_rate", "training.mae.period"
# The last of these rates is so large that the loss is no number.
RATES, PERIODS = f"{RATE}=1e-3,3e-3,1e30", f"{PERIOD}=1,2"


@pytest.fixture(scope="module")
def file(world):
    return load_recipe(str(world / "numerals.yaml"))


def compare(file, folder, *options, systems=("standard", "mae"), steps=4, **how):
    grid = parse_grid(options, steps)
    console = how.pop("console", QUIET)
    return compare_systems(file, list(systems), [1], folder, "", console, grid=grid, **how)


@pytest.fixture(scope="module")
def tuned(world, file):
    """Two systems that had all combinations, and where."""
    return compare(file, world / "tuned", RATES, PERIODS), world / "tuned"


@pytest.fixture
def again(tuned, tmp_path):
    """A copy of the folder, to go on in."""
    folder = tmp_path / "tuned"
    shutil.copytree(tuned[1], folder)
    return folder


def results(folder):
    """Each file of a finished try or run, with the time at which it was written."""
    found = [*folder.rglob("try.json"), *folder.rglob("result.json")]
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in found}


def set_loss(folder, system, values, loss):
    path = folder / "tries" / system / f"{values},steps=4" / "try.json"
    result = json.loads(path.read_text())
    write_summed(path, json.dumps({**result, "validation_loss": loss}))


# What is tried and chosen


def test_the_lowest_validation_loss_is_chosen_and_the_runs_have_it(tuned):
    found, folder = tuned
    for system in found.systems:
        tries, best = system.tuning.tries, system.tuning.tries[system.tuning.chosen]
        sound = [each.validation_loss for each in tries if math.isfinite(each.validation_loss)]
        assert best.validation_loss == min(sound)
        recipe = yaml.safe_load((folder / f"{system.name}-seed1" / "recipe.yaml").read_text())
        assert recipe["training"]["learning_rate"] == best.values[RATE]
        assert recipe["training"]["mae"]["period"] == best.values.get(PERIOD, 2)
        assert recipe["training"]["max_steps"] == system.runs[0].steps == 6
        assert system.tuning.seed != system.runs[0].seed == 1


def test_a_try_is_trained_with_its_values_and_a_seed_of_its_own(tuned):
    _, folder = tuned
    tried = folder / "tries" / "mae" / f"{RATE}=0.001,{PERIOD}=1,steps=4"
    recipe = yaml.safe_load((tried / "recipe.yaml").read_text())["training"]
    assert recipe["learning_rate"] == 0.001
    assert recipe["mae"]["period"] == 1
    assert recipe["seed"] == TUNING_SEED
    # Its checkpoints are gone: nobody evaluates it.
    assert {path.name for path in tried.iterdir()} == {"recipe.yaml", "try.json", SUMS}


class Unseen:
    """Items of which only the lengths may be looked at."""

    def __init__(self, items):
        self.lengths = items.lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        raise AssertionError("a try has looked at the test part")


def test_tries_never_see_the_test_part(world, file, tmp_path, monkeypatch):
    recipe = with_seed(file.system("mae"), TUNING_SEED)
    task = prepare_task(recipe, tmp_path / "data", QUIET)
    task.test = Unseen(task.test)
    monkeypatch.setattr(Translation, "evaluate", None)
    result = TryRun(recipe, "mae", tmp_path / "try", task, "try").train(QUIET)
    losses = [record["eval_loss"] for record in result.history if "eval_loss" in record]
    assert result.validation_loss == pytest.approx(min(losses), rel=1e-5)
    assert (result.steps, len(losses)) == (6, 2)


# Kept and resumed


def test_finished_tries_are_not_trained_again(tuned, file, monkeypatch):
    found, folder = tuned
    monkeypatch.setattr(one_run, "run_training", None)
    before = results(folder)
    assert len(before) == 9 + 2
    left = folder / "tries" / "mae" / f"{RATE}=0.001,{PERIOD}=1,steps=4" / "checkpoint-4"
    left.mkdir()  # as by one that was killed behind its result
    repeated = compare(file, folder, RATES, PERIODS)
    assert results(folder) == before and not left.exists()
    # What is read back is what was found, the losses that are no numbers too.
    assert repr([s.tuning for s in repeated.systems]) == repr([s.tuning for s in found.systems])


def test_an_interrupted_comparison_goes_on_with_the_next_try(world, file, monkeypatch):
    folder, whole = world / "interrupted", one_run.run_training
    trained = []

    def interrupted(*arguments, **options):
        if len(trained) == 1:
            raise Interrupted("stopped at step 0")
        trained.append(options["label"])
        return whole(*arguments, **options)

    monkeypatch.setattr(one_run, "run_training", interrupted)
    with pytest.raises(Interrupted):
        compare(file, folder, RATES, systems=["standard"])
    assert trained == ["standard try 1/3"]
    (first,) = results(folder).items()

    def watched(*arguments, **options):
        trained.append(options["label"])
        return whole(*arguments, **options)

    monkeypatch.setattr(one_run, "run_training", watched)
    compare(file, folder, RATES, systems=["standard"])
    assert trained[1:] == ["standard try 2/3", "standard try 3/3", "standard"]
    assert first in results(folder).items()


@pytest.mark.slow
def test_another_choice_does_not_pass_for_the_runs_that_there_are(again, file):
    before = results(again)
    set_loss(again, "standard", f"{RATE}=0.001", 0.5)
    with pytest.raises(FolderError) as caught:
        compare(file, again, RATES, PERIODS)
    said = str(caught.value)
    assert f"{again / 'standard-seed1'}: {RATE}: 0.003 before, 0.001 now" in said
    assert "mae-seed1" not in said
    assert "Delete these folders" in said
    # As the message says:
    shutil.rmtree(again / "standard-seed1")
    found = compare(file, again, RATES, PERIODS)
    assert found.systems[0].tuning.tries[found.systems[0].tuning.chosen].values == {RATE: 0.001}
    changed = {path for path, time in results(again).items() if before[path] != time}
    assert changed == {
        "standard-seed1/result.json",
        f"tries/standard/{RATE}=0.001,steps=4/try.json",  # set by hand above
    }


@pytest.mark.parametrize(("equal_within", "chosen"), [(0.0, 0.003), (0.09, 0.003), (0.11, 0.001)])
def test_of_losses_that_count_as_equal_the_first_is_chosen(again, file, equal_within, chosen):
    set_loss(again, "standard", f"{RATE}=0.001", 0.6)
    set_loss(again, "standard", f"{RATE}=0.003", 0.5)
    shutil.rmtree(again / "standard-seed1")
    grid = parse_grid([RATES], 4, equal_within)
    console = Console(file=StringIO(), width=500)
    found = compare_systems(file, ["standard"], [1], again, "", console, grid=grid)
    tries = found.systems[0].tuning
    assert tries.tries[tries.chosen].values == {RATE: chosen}
    note = f"{RATE}=0.003 has the lowest validation loss, 0.5; of losses within 0.11 of it, which"
    assert any(said.startswith(note) for said in tries.notes) == (chosen == 0.001)
    printed = console.file.getvalue()
    assert (f"{RATE}=0.001, validation loss 0.6, chosen from" in printed) == (chosen == 0.001)
    # The chosen rate is at the edge then, but what is best lies inside.
    assert not any("tried; the best may be" in said for said in tries.notes)
    report = render_report(found)
    assert ("or the first whose loss is no further than" in report) == (equal_within > 0)
    assert (f"{RATE}=0.003, validation loss 0.5, the best of" in printed) == (chosen == 0.003)


# What is said of it


def test_a_choice_at_the_edge_is_said(again, file):
    set_loss(again, "standard", f"{RATE}=0.001", 0.5)
    set_loss(again, "mae", f"{RATE}=1e+30,{PERIOD}=2", 0.5)
    for name in ("standard", "mae"):
        shutil.rmtree(again / f"{name}-seed1")
    console = Console(record=True, width=200)
    found = compare(file, again, RATES, PERIODS, console=console)
    notes = {system.name: system.tuning.notes for system in found.systems}
    assert notes == {
        "standard": [f"{RATE}=0.001 is the smallest value tried; the best may be smaller."],
        "mae": [
            f"{RATE}=1e+30 is the largest value tried; the best may be larger.",
            f"{PERIOD}=2 is the largest value tried; the best may be larger.",
        ],
    }
    printed, report = console.export_text(), render_report(found)
    for name, of_system in notes.items():
        for note in of_system:
            assert f"{name}: {note}" in printed
            assert f"{name}: {note}" in report


# With other options


@pytest.mark.slow
def test_every_data_set_has_tries_of_its_own(world):
    changes = ["datasets.some={validation_fraction: 0.3}", "datasets.others={test_fraction: 0.3}"]
    file = load_recipe(str(world / "numerals.yaml"), changes)
    folder = world / "benchmark"
    found = compare(
        file, folder, f"{RATE}=1e-3,3e-3", systems=["standard"], datasets=file.dataset_names
    )
    losses = set()
    for name, comparison in found.comparisons.items():
        (system,) = comparison.systems
        losses |= {each.validation_loss for each in system.tuning.tries}
        assert len(list((folder / name / "tries" / "standard").iterdir())) == 2
    assert len(losses) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("match", "baseline", "name", "heads"),
    [("parameters", "standard", "mae", 4), ("parameters-and-heads", "mae", "standard", 8)],
)
def test_tries_have_the_sizes_that_were_matched(world, file, match, baseline, name, heads):
    folder = world / match
    found = compare(file, folder, f"{RATE}=1e-3,3e-3", systems=(baseline, name), match=match)
    target, parameters = (system.runs[0].parameters for system in found.systems)
    assert parameters == pytest.approx(target, rel=0.01)
    sizes = {
        tuple(recipe["model"][key] for key in ("embed_dim", "ffn_dim", "num_heads"))
        for recipe in (
            yaml.safe_load(path.read_text()) for path in folder.glob(f"**/{name}*/**/recipe.yaml")
        )
    }
    assert len(sizes) == 1
    ((width, _, found_heads),) = sizes
    assert width != 16  # of the recipe
    assert found_heads == heads


def test_what_changes_matched_sizes_cannot_be_tuned(world, file):
    with pytest.raises(ValueError, match=r"encoder_layers=2: standard would have .* parameters"):
        compare(file, world / "unmatched", "model.encoder_layers=1,2", match="parameters")


def test_tries_that_all_diverge_are_an_error(world, file):
    folder = world / "diverged"
    with pytest.raises(ValueError, match=r"every try of standard diverged: add values to --tune"):
        compare(file, folder, f"{RATE}=1e29,1e30", systems=["standard"])
    assert not (folder / "standard-seed1").exists()
    # As the message says:
    found = compare(file, folder, f"{RATE}=1e-3,1e29,1e30", systems=["standard"])
    assert found.systems[0].tuning.chosen == 0


def test_the_command_line(world, monkeypatch):
    folder = world / "command"
    arguments = ["compare", str(world / "numerals.yaml"), "--output", str(folder)]

    def headwise(*options):
        return CliRunner().invoke(app, [*arguments, *options])

    options = ("--systems", "standard", "--tune", f"{RATE}=1e-3,3e-3", "--tune-steps", "4")
    done = headwise(*options)
    assert done.exit_code == 0, done.output
    printed = " ".join(done.stdout.split())
    assert "the best of 2 tries" in printed
    assert "Tuned with equal tries on the validation part." in printed
    found = json.loads((folder / "comparison.json").read_text())
    assert [each["values"] for each in found["systems"][0]["tuning"]["tries"]] == [
        {RATE: 0.001},
        {RATE: 0.003},
    ]
    shutil.rmtree(folder / "standard-seed1")
    done = headwise(*options, "--tune-equal", "1000")
    assert done.exit_code == 0, done.output
    found = json.loads((folder / "comparison.json").read_text())
    assert found["systems"][0]["tuning"]["chosen"] == 0
    assert found["systems"][0]["tuning"]["equal_within"] == 1000
