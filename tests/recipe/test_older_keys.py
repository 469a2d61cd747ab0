"""Keys of older recipes, in files and on the command line."""

import pytest
import yaml
from small_recipe import SMALL, message

from headwise.recipe import load_recipe, to_yaml, with_defaults


def test_further_test_sets_of_speech_had_another_name(tmp_path):
    folders = {"noisy": "a", "clean": "b"}
    recipe = {
        "task": "speech-enhancement",
        "data": {"corpus": "generated", "transfer": {"voicebank": folders}},
        "training": {"max_steps": 1},
    }
    path = tmp_path / "older.yaml"
    path.write_text(yaml.safe_dump(recipe))
    file = load_recipe(str(path))
    assert file.notes == ["data.transfer is now data.tests"]
    assert list(file.recipe.data.tests) == ["voicebank"]


def test_keys_of_older_recipes_are_read_with_a_note(tmp_path):
    text = SMALL.replace("mae: {period: 2}", "gates: {period: 2}")
    text = text.replace("mae: {unit: steps}", "gates: {unit: steps}")
    assert text.count("gates:") == 2
    path = tmp_path / "old.yaml"
    text += "evaluation: {branches: top-k, branches_top_k: 2}\n"
    path.write_text(text, encoding="utf-8")
    changes = ["training.gates.learning_rate=0.5", "training.branches.freeze_last=1"]
    file = load_recipe(str(path), changes)
    mae = file.system("mae").training.mae
    assert (mae.period, mae.unit, mae.learning_rate) == (2, "steps", 0.5)
    assert file.recipe.training.weighted.freeze_last == 1
    assert file.recipe.evaluation.ablation == {"weighted": {"name": "top-k", "top_k": 2}}
    assert file.notes == [
        "training.gates is now training.mae",
        "systems.mae.training.gates is now systems.mae.training.mae",
        "evaluation.branches is now evaluation.ablation.weighted",
        "evaluation.branches_top_k is now evaluation.ablation.weighted",
        "training.branches is now training.weighted",
    ]
    old = to_yaml(file.recipe).replace("  mae:\n    method", "  gates:\n    method")
    assert "  gates:\n" in old and with_defaults(old) == to_yaml(file.recipe)


@pytest.mark.parametrize(
    "changes, ablation",
    [
        (["evaluation.branches=uniform"], {"weighted": {"name": "uniform"}, "mae": "uniform"}),
        (["evaluation.branches=learned"], {"mae": "uniform"}),
        (["evaluation={branches: uniform}"], {"weighted": {"name": "uniform"}}),
        (
            ["evaluation.branches=top-k", "evaluation.branches_top_k=2"],
            {"weighted": {"name": "top-k", "top_k": 2}, "mae": "uniform"},
        ),
    ],
)
def test_an_older_key_on_the_command_line_wins(tmp_path, changes, ablation):
    path = tmp_path / "own.yaml"
    path.write_text(SMALL + "evaluation: {ablation: {weighted: random, mae: uniform}}\n")
    file = load_recipe(str(path), changes)
    assert file.recipe.evaluation.ablation == ablation
    assert file.system("mae").evaluation.ablation == ablation
    assert "evaluation.branches is now evaluation.ablation.weighted" in file.notes_on_changes


def test_notes_on_changes_are_not_those_on_the_file(tmp_path):
    path = tmp_path / "old.yaml"
    path.write_text(SMALL.replace("mae: {period: 2}", "gates: {period: 2}"))
    file = load_recipe(str(path), ["evaluation.branches=uniform"])
    assert file.notes_on_changes == ["evaluation.branches is now evaluation.ablation.weighted"]
    assert file.notes == ["training.gates is now training.mae", *file.notes_on_changes]


def test_an_older_option_without_its_ablation_is_refused(small):
    said = message(small, "evaluation.branches_top_k=2")
    assert "evaluation.branches_top_k is 2, an option of an ablation that is not named" in said
    assert "give evaluation.ablation.weighted" in said


def test_an_older_key_beside_an_ablation_of_the_wrong_form(small):
    said = message(small, "evaluation={ablation: weighted, branches: uniform}")
    assert "evaluation.ablation is 'weighted', expected" in said


def test_a_number_is_no_name_of_a_system(small):
    said = message(small, "systems={2017: {training: {max_steps: 2}}}")
    assert "the key 2017 is a number, expected text; put it in quotes" in said
