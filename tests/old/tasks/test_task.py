"""What is generated to measure the speed of decoding: the same number of tokens by all models."""

import pytest
import tiny_tasks
import torch

from headwise.recipes import load_recipe
from headwise.recipes.catalogue import TASKS, task_class
from headwise.runs.preparing import build_model
from headwise.tasks import images, language_modelling, translation

TOKENS = {"translation": 5 * 7, "language-modelling": 7, "images": 5 * 7}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Task and a model that has learned nothing, by name of the task."""
    found = {}

    def make(name):
        if name not in found:
            path = tiny_tasks.write_recipe(name, tmp_path_factory.mktemp(name))
            recipe = load_recipe(str(path)).system("standard")
            task = task_class(name).prepare(recipe)
            found[name] = recipe, task, build_model(recipe, task).eval()
        return found[name]

    return make


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Five items of seven tokens."""
    for module, name in ((translation, "_DECODED_TOKENS"), (images, "_DECODED_PIXELS")):
        monkeypatch.setattr(module, "_DECODED", 5)
        monkeypatch.setattr(module, name, 7)
    monkeypatch.setattr(language_modelling, "_DECODED_TOKENS", 7)


@pytest.mark.parametrize("name", TOKENS)
@pytest.mark.parametrize("favoured", [None, "eos"])
def test_all_models_generate_the_same_number_of_tokens(made, name, favoured, monkeypatch):
    recipe, task, model = made(name)
    forward, steps = type(model).forward, []

    def favours(self, *args, **kwargs):
        out = forward(self, *args, **kwargs)
        steps.append(len(out.logits))
        if favoured and name != "images":  # whose images have no end
            out.logits[..., model.config.eos_token_id] += 1e4
        return out

    monkeypatch.setattr(type(model), "forward", favours)
    assert task.decode(model, recipe.evaluation) == TOKENS[name]
    assert len(steps) == 7


@pytest.mark.parametrize("name", TOKENS)
def test_the_random_numbers_of_others_stay_as_they_are(made, name):
    recipe, task, model = made(name)
    state = torch.get_rng_state()
    task.decode(model, recipe.evaluation)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("name", sorted(set(TASKS) - set(TOKENS)))
def test_other_tasks_generate_nothing(made, name):
    recipe, task, model = made(name)
    assert task.decode(model, recipe.evaluation) is None
