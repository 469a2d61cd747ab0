"""Comparisons in their folders, on one data set and on several."""

import math

import pytest
import synthetic
from rich.console import Console

from headwise.analysis.results import Benchmark, Comparison
from headwise.analysis.statistics.estimates import holm
from headwise.recipes import load_recipe
from headwise.runs import one_run
from headwise.runs.comparing import compare_systems, run_to_look_into
from headwise.runs.folder import FolderError
from headwise.training.run import Interrupted

pytestmark = pytest.mark.usefixtures("few_rounds")

QUIET = Console(quiet=True)
SYSTEMS = ["standard", "mae", "moa"]


@pytest.fixture(scope="module")
def file(world):
    return load_recipe(str(world / "numerals.yaml"))


def compare(file, folder, systems=SYSTEMS, seeds=(1, 2)):
    return compare_systems(file, systems, seeds, folder, "headwise compare", QUIET)


def contents(folder):
    return {path.name for path in folder.iterdir()}


@pytest.fixture(scope="module")
def compared(world, file):
    """Three systems with two seeds, and where."""
    return compare(file, world / "compared"), world / "compared"


def test_a_comparison_holds_every_system_and_seed(compared, file):
    found, folder = compared
    assert [system.name for system in found.systems] == SYSTEMS
    assert found.baseline == "standard"
    for system in found.systems:
        assert [run.seed for run in system.runs] == [1, 2]
        assert {run.system for run in system.runs} == {system.name}
        times = system.relative_step_time
        assert 0 < times.low <= times.value <= times.high
    assert found.systems[0].relative_step_time.value == 1.0
    soon = [system.how_soon for system in found.systems]
    assert [each.pairs for each in soon] == [0, 4, 4]
    assert all(each.decoding.tokens_per_second.value > 0 for each in soon)
    assert soon[0].decoding.relative_time.value == 1.0
    assert found.systems[0].description == "plain"
    losses = [run.validation_loss for system in found.systems for run in system.runs]
    assert len(set(losses)) == 6  # no run is another one's copy
    assert contents(folder) >= {f"{name}-seed{seed}" for name in SYSTEMS for seed in (1, 2)}
    assert Comparison.model_validate_json(found.model_dump_json()) == found


def test_a_run_to_look_into_did_not_diverge(tmp_path):
    made = synthetic.comparison(("standard", "mae-7", "moa"), seeds=2)
    assert run_to_look_into(made, tmp_path) == tmp_path / "mae-7-seed0"
    made.systems[1].runs[0].validation_loss = math.nan
    assert run_to_look_into(made, tmp_path) == tmp_path / "mae-7-seed1"
    for run in (*made.systems[1].runs, *made.systems[2].runs):
        run.validation_loss = run.scores[0].value = math.nan
    assert run_to_look_into(made, tmp_path) == tmp_path / "standard-seed0"


def test_the_baseline_is_tested_against_none(compared):
    found, _ = compared
    assert found.systems[0].difference is None
    baseline = found.systems[0].estimates["BLEU"].value
    for system in found.systems:
        means = {
            name: sum(s.value for run in system.runs for s in run.scores if s.name == name) / 2
            for name in ("BLEU", "chrF")
        }
        assert {n: mean.value for n, mean in system.estimates.items()} == pytest.approx(means)
        assert {mean.source for mean in system.estimates.values()} == {"seeds and items"}
    p_values = [system.difference.p_value for system in found.systems[1:]]
    for system in found.systems[1:]:
        difference = system.difference
        assert difference.value == pytest.approx(system.estimates["BLEU"].value - baseline)
        assert difference.source == "seeds and items"
        assert (difference.detectable is None) == (difference.error == 0)
        assert 0 < difference.p_value <= difference.corrected_p_value <= 1
        assert difference.corrected_p_value == pytest.approx(
            holm(p_values)[p_values.index(difference.p_value)]
        )


def test_finished_systems_are_not_trained_again(compared, file, monkeypatch):
    found, folder = compared
    monkeypatch.setattr(one_run, "run_training", None)
    results = {path: path.stat().st_mtime_ns for path in folder.rglob("result.json")}
    assert len(results) == 6
    again = compare(file, folder, ["mae", "standard"], seeds=[2])
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("result.json")} == results
    assert again.baseline == "mae"
    assert again.systems[0].runs == [found.systems[1].runs[1]]


def test_a_comparison_goes_on_where_it_was_stopped(compared, file, tmp_path, monkeypatch):
    found, _ = compared
    trained = []
    run_training = one_run.run_training

    def stops_the_second(*args, label, **options):
        if trained == ["standard"]:
            raise Interrupted("stopped at step 3")
        trained.append(label)
        return run_training(*args, label=label, **options)

    with monkeypatch.context() as patched:
        patched.setattr(one_run, "run_training", stops_the_second)
        with pytest.raises(Interrupted):
            compare(file, tmp_path / "compared", ["standard", "mae"], seeds=[1])

    def notes(*args, label, **options):
        trained.append(label)
        return run_training(*args, label=label, **options)

    monkeypatch.setattr(one_run, "run_training", notes)
    again = compare(file, tmp_path / "compared", ["standard", "mae"], seeds=[1])
    assert trained == ["standard", "mae"]
    for system, expected in zip(again.systems, found.systems, strict=False):
        (run,), first = system.runs, expected.runs[0]
        assert run.validation_loss == first.validation_loss
        assert run.scores == first.scores


def test_a_comparison_of_other_data_is_refused(compared, world):
    _, folder = compared
    other = load_recipe(str(world / "numerals.yaml"), ["tokenizer.vocab_size=270"])
    with pytest.raises(FolderError, match=r"tokenizer\.vocab_size: 280 before, 270 now"):
        compare(other, folder, ["standard"], seeds=[5])
    assert not (folder / "standard-seed5").exists()


def test_a_comparison_in_a_folder_of_other_things_is_refused(tmp_path, file):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(FolderError, match="holds other things"):
        compare(file, tmp_path)
    assert contents(tmp_path) == {"thesis.tex"}


# Several data sets


@pytest.fixture(scope="module")
def benchmark(world):
    """Two systems on two data sets, and where."""
    changes = [
        "datasets.some={validation_fraction: 0.3}",
        "datasets.others={test_fraction: 0.3}",
    ]
    file = load_recipe(str(world / "numerals.yaml"), changes)
    folder = world / "benchmark"
    datasets = file.dataset_names
    systems = ["standard", "moa"]
    found = compare_systems(file, systems, [1], folder, "", QUIET, datasets=datasets)
    return found, folder


@pytest.mark.slow
def test_a_comparison_goes_through_all_data_sets(benchmark):
    found, folder = benchmark
    assert list(found.comparisons) == ["some", "others"]
    for name, of_dataset in found.comparisons.items():
        assert [system.name for system in of_dataset.systems] == ["standard", "moa"]
        assert contents(folder / name) >= {"comparison.yaml", "standard-seed1", "moa-seed1"}
    losses = {c.systems[0].runs[0].validation_loss for c in found.comparisons.values()}
    assert len(losses) == 2
    assert Benchmark.model_validate_json(found.model_dump_json()) == found


def test_what_is_wrong_with_a_data_set_is_found_before_any_is_trained(world, monkeypatch):
    monkeypatch.setattr(one_run, "run_training", None)
    changes = ["datasets.right={}", "datasets.wrong={train: {source: none, target: none}}"]
    file = load_recipe(str(world / "numerals.yaml"), changes)
    with pytest.raises(ValueError, match="none"):
        compare_systems(
            file, ["standard"], [1], world / "never", "", QUIET, datasets=file.dataset_names
        )
    assert not list(world.glob("never/*/standard-seed1"))
