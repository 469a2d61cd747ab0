"""Names are checked before PyTorch is loaded, and no name is refused that a recipe may have."""

import subprocess
import sys

import pytest
from support.recipes import RecipeError, shipped

from headwise.recipes.keys import keys_of
from headwise.recipes.names import check_names
from headwise.recipes.recipe import TASKS

RECIPES = {document["task"]: name for name, document in shipped().items()}


@pytest.mark.parametrize("task", TASKS)
def test_every_key_of_a_task_is_known(task):
    keys = {key.name for key in keys_of(task)}
    changes = [f"{key}=null" for key in keys if not {"NAME", "="} & {*key.split("."), *key}]
    assert len(changes) > 50
    for change in changes:
        check_names(RECIPES[task], changes=[change])


@pytest.mark.parametrize("recipe", shipped())
def test_every_name_of_a_recipe_is_known(recipe):
    document = shipped()[recipe]
    check_names(recipe, document.get("systems", {}), document.get("datasets", {}))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("train lm-pydok", ["lm-pydok", "lm-pydoc"]),
        ("train lm-pydoc --system standrad", ["standrad", "standard"]),
        ("train lm-pydoc --dataset other", ["other"]),
        ("compare lm-pydoc --systems standard,mao", ["mao", "moa"]),
        ("compare lm-pydoc --set training.max_step=5", ["training.max_step", "max_steps"]),
        ("compare lm-pydoc --set traning.max_steps=5", ["traning", "training"]),
        ("compare lm-pydoc --set data.streamin=true", ["data.streamin", "streaming"]),
        ("compare lm-pydoc --set systems.moa.trainig.seed=1", ["trainig", "training"]),
        ("compare lm-pydoc --seeds 1,1", ["1,1"]),
        ("cost lm-pydoc --systems mao", ["mao", "moa"]),
    ],
)
def test_a_slip_is_told_with_what_was_meant(wrong, named):
    program = (
        "import sys; from headwise.cli import app\ntry: app()\nexcept SystemExit as e: status = e"
    )
    program += "\nassert status.code == 2 and not {'torch', 'transformers'} & set(sys.modules)"
    line = [sys.executable, "-c", program, *wrong.split()]
    done = subprocess.run(line, check=True, capture_output=True, text=True)
    assert all(name in done.stderr for name in named)


def test_a_task_of_ones_own_may_have_any_keys(tmp_path):
    recipe = tmp_path / "own.yaml"
    recipe.write_text("{task: 'own:Task', trainings: 1, data: {streams: 2}}", encoding="utf-8")
    check_names(str(recipe))
    with pytest.raises(RecipeError, match="max_step"):
        check_names(str(recipe), changes=["training.max_step=5"])
