"""No name is refused that a recipe may have; see test_commands for those that are told."""

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


def test_a_task_of_ones_own_may_have_any_keys(tmp_path):
    recipe = tmp_path / "own.yaml"
    recipe.write_text("{task: 'own:Task', trainings: 1, data: {streams: 2}}", encoding="utf-8")
    check_names(str(recipe))
    with pytest.raises(RecipeError, match="max_step"):
        check_names(str(recipe), changes=["training.max_step=5"])
