"""A run and its folder."""

import json

import numerals
import pytest
import torch
from rich.console import Console

from headwise.analysis.results import RunResult
from headwise.recipes import load_recipe
from headwise.runs import one_run, preparing
from headwise.runs.folder import FolderError
from headwise.runs.one_run import train_system
from headwise.runs.preparing import build_model, claim_folder, prepare_task, with_seed
from headwise.runs.reading import open_run, read_recipe
from headwise.runs.tuning import TryRun

pytestmark = pytest.mark.usefixtures("few_rounds")

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def file(world):
    return load_recipe(str(world / "numerals.yaml"))


@pytest.fixture(scope="module")
def run(world, file):
    """A finished run of MAE."""
    return train(file.system("mae"), world / "run")


def train(recipe, folder, name="mae"):
    train_system(recipe, name, folder, prepare_task(recipe, folder, QUIET), QUIET)
    return folder


def contents(folder):
    return {path.name for path in folder.iterdir()}


def test_a_run_leaves_all_that_it_says_and_nothing_half_written(run, file):
    assert contents(run) == {
        *("recipe.yaml", "corpus.sha256", "tokenizer", "checkpoint-3", "checkpoint-6"),
        *("model", "outputs.txt", "outcome.json", "result.json", "SHA256SUMS"),
    }
    assert not [path for path in run.rglob("*") if "partial" in path.name]
    result = RunResult.model_validate_json((run / "result.json").read_text())
    assert (result.system, result.seed, result.steps) == ("mae", 1, 6)
    assert [r["step"] for r in result.history if "loss" in r] == [1, 2, 3, 4, 5, 6]
    assert [r["step"] for r in result.history if "eval_loss" in r] == [3, 6]
    best = min(record["eval_loss"] for record in result.history if "eval_loss" in record)
    assert result.validation_loss == pytest.approx(best, rel=1e-5)
    assert {(a.site, a.layer, a.system) for a in result.attention} == {
        ("encoder_self", 0, "mae"),
        ("decoder_self", 0, "mae"),
        ("decoder_cross", 0, "mae"),
    }
    assert [(c.site, c.system, c.steps) for c in result.snapshots] == [
        (site, "mae", [0, 3, 6]) for site in ("encoder_self", "decoder_self", "decoder_cross")
    ]
    assert result.snapshots[1].explained.keys() == {"position", "subword"}
    assert result.seconds > 0
    assert result.threads == [torch.get_num_threads()]


def test_a_run_that_was_stopped_early_says_so(world, run, tmp_path):
    assert RunResult.model_validate_json((run / "result.json").read_text()).early_stop is None
    changes = ["training.patience=1", "training.learning_rate=1.0", "training.evaluate_every=1"]
    changes += ["training.max_steps=30", "training.warmup_steps=0"]
    recipe = load_recipe(str(world / "numerals.yaml"), changes).system("mae")
    folder = train(recipe, tmp_path / "run")
    found = RunResult.model_validate_json((folder / "result.json").read_text())
    assert found.early_stop.planned_steps == 30
    assert found.steps == found.early_stop.best_step + 1 < 30


def test_a_finished_run_is_not_trained_again(run, file, monkeypatch):
    monkeypatch.setattr(one_run, "run_training", None)
    before = (run / "result.json").stat().st_mtime_ns
    train(file.system("mae"), run)
    assert (run / "result.json").stat().st_mtime_ns == before


def test_the_seed_draws_the_weights(file, run):
    data = prepare_task(file.system("mae"), run, QUIET)
    recipe = file.system("standard")
    first, again, other = (
        build_model(with_seed(recipe, seed), data).state_dict() for seed in (1, 1, 2)
    )
    name = "model.encoder.layers.0.feed_forward.ffn_up.weight"
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])


@pytest.mark.parametrize("joint", [True, False])
def test_embeddings_are_shared_as_far_as_the_vocabularies_are(world, tmp_path, joint):
    recipe = load_recipe(
        str(world / "numerals.yaml"), [f"tokenizer.joint={str(joint).lower()}"]
    ).system("standard")
    data = prepare_task(recipe, tmp_path, QUIET)
    model = build_model(recipe, data)
    assert model.config.share_embeddings == ("all" if joint else "target")
    assert model.lm_head.weight is model.decoder.embedding.weight
    assert (model.encoder.embedding.weight is model.lm_head.weight) == joint
    assert model.config.eos_token_id == data.tokenizer.eos_token_id


def test_a_model_beyond_the_memory_is_refused_before_it_is_built(file, run, monkeypatch):
    recipe = file.system("mae")
    data = prepare_task(recipe, run, QUIET)
    monkeypatch.setattr(preparing, "installed_memory", lambda: 20_000)
    monkeypatch.setattr(data, "build_model", None)
    with pytest.raises(ValueError, match=r"parameters, whose weights take .* of this machine"):
        build_model(recipe, data)


def test_long_sentences_are_found_before_training(world, tmp_path, monkeypatch):
    monkeypatch.setattr(one_run, "run_training", None)
    recipe = load_recipe(str(world / "numerals.yaml"), ["training.batch_tokens=4"])
    with pytest.raises(ValueError, match="batch_tokens is 4, expected at least"):
        train(recipe.system("standard"), tmp_path / "run")


def test_an_ablation_that_does_not_fit_is_found_before_training(world, tmp_path, monkeypatch):
    monkeypatch.setattr(one_run, "run_training", None)
    asked = "evaluation.ablation.weighted={name: top-k, top_k: 99}"
    changes = [asked, "model.attention=weighted"]
    recipe = load_recipe(str(world / "numerals.yaml"), changes)
    with pytest.raises(ValueError, match="top_k is 99, expected 1 to num_branches = 4"):
        train(recipe.system("standard"), tmp_path / "run", "standard")


# Folders


def test_a_folder_of_another_recipe_is_refused_with_the_difference(run, file, world):
    changes = ["training.max_steps=9", "model.dropout=0.5"]
    other = load_recipe(str(world / "numerals.yaml"), changes).system("mae")
    with pytest.raises(FolderError) as caught:
        train(other, run)
    said = str(caught.value)
    assert "holds a run of another recipe" in said
    assert "model.dropout: 0.1 before, 0.5 now" in said
    assert "training.max_steps: 6 before, 9 now" in said
    assert said.count(" before, ") == 2


def test_a_start_that_failed_can_be_corrected(world, tmp_path, file):
    folder = tmp_path / "run"

    def changed(*keys):
        return load_recipe(str(world / "numerals.yaml"), keys).system("standard")

    wrong = changed("training.batch_tokens=4", "tokenizer.vocab_size=270", "data.max_length=99")
    with pytest.raises(ValueError, match="batch_tokens is 4, expected at least"):
        train(wrong, folder, "standard")
    # What encodes the data is in the folder, and is learned anew for other keys and other data.
    (folder / "corpus.sha256").write_text("0" * 64 + "\n")
    with pytest.raises(ValueError, match="batch_tokens is 4, expected at least"):
        train(wrong, folder, "standard")
    assert (folder / "corpus.sha256").read_text() != "0" * 64 + "\n"
    train(file.system("standard"), folder, "standard")
    recipe, model = open_run(folder)
    assert (recipe.training.batch_tokens, model.config.vocab_size) == (300, 280)
    with pytest.raises(FolderError, match="batch_tokens: 300 before, 299 now"):
        claim_folder(folder, changed("training.batch_tokens=299"))


@pytest.mark.parametrize("left", ["mae-seed1/checkpoint-3", "tries/mae/a/try.json"])
def test_a_comparison_can_be_corrected_until_something_is_trained(world, tmp_path, file, left):
    wrong = load_recipe(str(world / "numerals.yaml"), ["training.batch_tokens=4"])
    for recipe in (wrong, file):
        claim_folder(tmp_path, recipe.system(None), "comparison.yaml")
    (tmp_path / left).mkdir(parents=True)
    with pytest.raises(FolderError, match="batch_tokens: 300 before, 4 now"):
        claim_folder(tmp_path, wrong.system(None), "comparison.yaml")


def test_snapshots_can_be_turned_off_while_a_run_goes_on(world, tmp_path, file):
    folder = tmp_path / "run"
    recipe = load_recipe(str(world / "numerals.yaml"), ["training.snapshots=false"]).system("mae")
    claim_folder(folder, file.system("mae"))
    train(recipe, folder)  # the same run
    written = (folder / "result.json").read_text()
    assert RunResult.model_validate_json(written).snapshots == []
    assert not read_recipe(folder).training.snapshots
    train(file.system("mae"), folder)  # turned on again: it is finished, and stays as it is
    assert (folder / "result.json").read_text() == written


def test_standard_attention_and_tries_run_no_pass_for_snapshots(file, tmp_path, monkeypatch):
    monkeypatch.setattr(one_run, "Snapshots", None)
    folder = train(file.system("standard"), tmp_path / "standard", "standard")
    assert RunResult.model_validate_json((folder / "result.json").read_text()).snapshots == []
    recipe = file.system("mae")
    task = prepare_task(recipe, tmp_path / "try", QUIET)
    TryRun(recipe, "mae", tmp_path / "try", task, "try").train(QUIET)


def test_a_run_on_data_that_have_changed_since_is_refused(tmp_path):
    recipe = load_recipe(str(numerals.write_recipe(tmp_path))).system("standard")
    folder = tmp_path / "run"
    train(recipe, folder, "standard")
    with (tmp_path / "train.en").open("a") as english, (tmp_path / "train.fr").open("a") as french:
        english.write("zero\n")
        french.write("zéro\n")
    with pytest.raises(FolderError, match="the corpus has changed since they were started"):
        train(recipe, folder, "standard")


def test_machines_that_read_other_data_are_refused(tmp_path, file, monkeypatch):
    monkeypatch.setattr(preparing, "gathered", lambda mine: [mine, ("another", mine[1])])
    with pytest.raises(ValueError, match="on one of the machines than on another"):
        prepare_task(file.system("mae"), tmp_path / "run", QUIET)
    assert not (tmp_path / "run").exists()


def test_a_folder_with_other_things_is_refused_and_untouched(tmp_path, file):
    for name in ("thesis.tex", "data", "b", "a"):
        (tmp_path / name).touch()
    with pytest.raises(FolderError, match=r"holds other things \(a, b, data, \.\.\.\)"):
        claim_folder(tmp_path, file.system("mae"))
    assert contents(tmp_path) == {"thesis.tex", "data", "a", "b"}


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("recipe.yaml", "is not a run of headwise: it has no recipe.yaml"),
        ("model", "is not finished: it has no model"),
        ("tokenizer", "is not whole: it has no tokenizer"),
    ],
)
def test_what_is_no_finished_run_cannot_be_opened(tmp_path, file, missing, said):
    claim_folder(tmp_path, file.system("mae"))
    for name in ("model", "tokenizer"):
        (tmp_path / name).mkdir()
    gone = tmp_path / missing
    gone.unlink() if gone.is_file() else gone.rmdir()
    with pytest.raises(FolderError, match=said):
        open_run(tmp_path)


def test_a_model_cut_short_is_written_anew_as_the_message_says(world, file):
    folder = train(file.system("standard"), world / "cut", "standard")
    result = (folder / "result.json").read_text()
    weights = folder / "model" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:1000])
    with pytest.raises(FolderError, match=r"model cannot be read .* delete result\.json"):
        open_run(folder)
    (folder / "result.json").unlink()
    train(file.system("standard"), folder, "standard")
    assert weights.read_bytes() == whole
    assert json.loads((folder / "result.json").read_text()) == json.loads(result)
