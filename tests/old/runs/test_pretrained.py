"""`model.pretrained`: a run of any task starts from the weights of another."""

import shutil

import pytest
import tiny_tasks
import torch
import yaml
from rich.console import Console
from typer.testing import CliRunner

from headwise.cli import app
from headwise.recipes import RecipeError, load_recipe
from headwise.report.comparison import render_report
from headwise.runs.comparing import compare_systems
from headwise.runs.folder import FolderError
from headwise.runs.grid import parse_grid
from headwise.runs.one_run import train_system
from headwise.runs.preparing import build_model, claim_folder, prepare_task
from headwise.runs.reading import open_run, read_result

pytestmark = pytest.mark.usefixtures("few_rounds")

QUIET = Console(quiet=True)
# From what a task starts, and the part of its model that has the weights.
STARTS = {task: (task, "") for task in tiny_tasks.RECIPES}
STARTS["classification"] = STARTS["probing"] = ("masked-language-modelling", "encoder.")


def written(task, folder, **changes):
    """The recipe of a task as YAML, and its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = tiny_tasks.write_recipe(task, folder)
    raw = yaml.safe_load(path.read_text())
    for key, value in changes.items():
        raw[key] = {**raw.get(key, {}), **value} if isinstance(value, dict) else value
    path.write_text(yaml.safe_dump(raw))
    return raw, path


def train(recipe, folder):
    claim_folder(folder, recipe)
    return train_system(recipe, "run", folder, prepare_task(recipe, folder, QUIET), QUIET)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """Finished runs of standard attention and of gates: task and system to folder."""
    found = {}

    def finished(task, system="standard"):
        if (task, system) not in found:
            folder = tmp_path_factory.mktemp(f"{task}-{system}")
            _, path = written(task, folder / "data")
            train(load_recipe(str(path)).system(system), folder / "run")
            found[task, system] = folder / "run"
        return found[task, system]

    return finished


@pytest.mark.parametrize("task", tiny_tasks.RECIPES)
def test_every_task_starts_from_a_run(pretrained, task, tmp_path):
    kind, part = STARTS[task]
    run = pretrained(kind)
    raw, path = written(task, tmp_path / "data")
    for key in ("tokenizer", "palette"):
        raw.pop(key, None)  # they are the run's
    raw["model"] = {"pretrained": str(run)}
    path.write_text(yaml.safe_dump(raw))
    recipe = load_recipe(str(path)).recipe
    assert (recipe.model.embed_dim, recipe.model.num_heads) == (16, 4)
    given = prepare_task(recipe, tmp_path / "new", QUIET)
    weights = open_run(run)[1].state_dict()
    state = build_model(recipe, given).state_dict()
    shared = [name for name in state if name.startswith(part)]
    assert shared
    for name in shared:
        assert torch.equal(state[name], weights[name].cpu()), name
    assert given.encoding() == given.encoding_of(run)
    recipe.training.max_steps = 2
    assert train(recipe, tmp_path / "run").steps == 2


@pytest.mark.parametrize("system", [name for name in tiny_tasks.SYSTEMS if name != "standard"])
def test_other_systems_start_equal_from_standard_attention(pretrained, system, tmp_path):
    run = pretrained("language-modelling")
    _, path = written("language-modelling", tmp_path, model={"pretrained": str(run)})
    recipe = load_recipe(str(path)).system(system)
    task = prepare_task(recipe, tmp_path / "run", QUIET)
    if system not in ("mae", "gated"):
        with pytest.raises(ValueError, match=r"model.pretrained is .*cannot start from a standard"):
            build_model(recipe, task)
        return
    batch = task.collate([task.test[0], task.test[1]])
    made, before = build_model(recipe, task).eval(), open_run(run)[1].cpu()
    assert any(s["system"] == system for s in made.config.systems()["decoder_self"])
    with torch.no_grad():
        assert float(abs(made(**batch).loss - before(**batch).loss)) < 1e-5


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        (None, {"model": {"embed_dim": 32}}, r"model: embed_dim is 32, expected 16: .*leave model"),
        (None, {"tokenizer": {"vocab_size": 300}}, r"tokenizer.vocab_size is 300, expected 280: "),
        (None, {"model": {"attention": "moa"}}, r"attention is 'moa', .*only standard attention "),
        ("masked-language-modelling", {}, r"type 'headwise-causal-lm', expected type 'headwise-ma"),
    ],
)
def test_keys_that_contradict_the_run_are_named(pretrained, tmp_path, task, changes, message):
    run = pretrained("language-modelling", "mae")
    changes = {**changes, "model": {"pretrained": str(run), **changes.get("model", {})}}
    _, path = written(task or "language-modelling", tmp_path, systems={}, **changes)
    with pytest.raises(RecipeError, match=message):
        load_recipe(str(path))


def test_what_the_run_was_given_may_stand_in_the_recipe(tmp_path):
    rotary = {"positions": "rotary", "rope_parameters": {"rope_theta": 50.0}}
    _, path = written("language-modelling", tmp_path, systems={}, model=rotary)
    train(load_recipe(str(path)).recipe, tmp_path / "run")
    for given in (rotary, {**rotary, "rope_parameters": {"rope_type": "default"}}):
        changes = {**given, "pretrained": str(tmp_path / "run")}
        _, path = written("language-modelling", tmp_path, systems={}, model=changes)
        taken = load_recipe(str(path)).recipe.model.rope_parameters
        assert taken == {"rope_theta": 50.0, "rope_type": "default"}
    changes["rope_parameters"] = {"rope_theta": 60.0}
    _, path = written("language-modelling", tmp_path, systems={}, model=changes)
    with pytest.raises(RecipeError, match=r"rope_parameters is .*60.0.*, expected "):
        load_recipe(str(path))


def test_a_run_of_one_system_need_not_fit_the_others_of_a_recipe(pretrained, tmp_path):
    model = {"pretrained": str(pretrained("language-modelling", "mae"))}
    _, path = written("language-modelling", tmp_path, model=model)
    file = load_recipe(str(path))
    assert file.system("mae").model.attention == "mae"
    with pytest.raises(RecipeError, match=r"system moa:.*\n.*expected 'mae': the model in"):
        file.system("moa")


def test_a_folder_without_a_run(tmp_path):
    _, path = written("images", tmp_path, model={"pretrained": str(tmp_path / "none")})
    with pytest.raises(ValueError, match=r"model.pretrained is .*none, expected a folder with a"):
        prepare_task(load_recipe(str(path)).recipe, tmp_path / "run", QUIET)


def test_other_weights_are_noticed_when_a_run_goes_on(pretrained, tmp_path):
    run = tmp_path / "pretrained"
    shutil.copytree(pretrained("images"), run)
    _, path = written("images", tmp_path / "data", model={"pretrained": str(run)})
    recipe = load_recipe(str(path)).recipe
    train(recipe, tmp_path / "run")
    train(recipe, tmp_path / "run")  # it is finished
    change_weights(run)
    with pytest.raises(FolderError, match="was started from other weights"):
        train(recipe, tmp_path / "run")
    shutil.rmtree(run)
    recipe = load_recipe(str(tmp_path / "run" / "recipe.yaml")).recipe
    train(recipe, tmp_path / "run")  # a finished run does without


def change_weights(run):
    model = open_run(run)[1]
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    model.save_pretrained(run / "model")


@pytest.mark.parametrize(("tuned", "where"), [([], "seed1"), (["model.dropout=0,0.1"], "tries.*")])
def test_other_weights_are_noticed_by_a_comparison(pretrained, tmp_path, tuned, where):
    run, folder = shutil.copytree(pretrained("images"), tmp_path / "run"), tmp_path / "compared"
    _, path = written("images", tmp_path / "data", model={"pretrained": str(run)})
    file, others = load_recipe(str(path)), ([1], folder, "", QUIET)
    compare_systems(file, ["standard"], *others, grid=parse_grid(tuned))
    change_weights(run)
    with pytest.raises(FolderError, match=f"{where} was started from other weights"):
        compare_systems(file, ["standard", "mae"], *others, grid=parse_grid(tuned))
    assert not list(folder.glob("**/mae-seed1"))


def test_each_system_of_a_comparison_starts_from_its_own_run(tmp_path):
    _, path = written("images", tmp_path / "data")
    names = ["standard", "mae"]
    compare_systems(load_recipe(str(path)), names, [1, 2], tmp_path / "first", "", QUIET)
    parts = {"whole": {}, "gates": {"training": {"train": "gates"}}}
    parts["start"] = {"training": {"train": "nothing"}}
    pattern = str(tmp_path / "first" / "{system}-seed{seed}")
    _, path = written("images", tmp_path / "data", model={"pretrained": pattern})
    found = compare_systems(load_recipe(str(path)), names, [2], tmp_path / "second", "", QUIET)
    assert [system.runs[0].trained_parameters for system in found.systems] == [None, None]

    systems = {
        name: {"model": {"pretrained": pattern.replace("{system}", "mae")}, **part}
        for name, part in parts.items()
    }
    raw, path = written("images", tmp_path / "data")
    raw["systems"] = systems
    path.write_text(yaml.safe_dump(raw))
    file = load_recipe(str(path))
    found = compare_systems(file, list(parts), [2], tmp_path / "third", "", QUIET)
    assert "Trained parameters" in render_report(found)
    whole, gates, start = (system.runs for system in found.systems)
    assert start[0].trained_parameters == start[0].steps == 0
    assert 0 < gates[0].trained_parameters < gates[0].parameters
    assert whole[0].trained_parameters is None
    first = tmp_path / "first" / "mae-seed2"
    assert start[0].scores == read_result(first / "result.json").scores

    page = tmp_path / "curve.html"
    said = CliRunner().invoke(
        app,
        ["curve", str(tmp_path / "third"), "--over", "data.train_fraction", "--output", str(page)],
    )
    assert said.exit_code == 0, said.output
    assert [line.split()[0] for line in said.stdout.splitlines() if " 1 " in line] == sorted(parts)
    assert "Bits per dimension against data.train_fraction" in page.read_text()
