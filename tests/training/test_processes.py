"""Processes that share each batch train as one process does."""

import os
import subprocess
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support import run_folders, tiny_tasks
from support import toy_training as toy
from support.forms import build, inputs
from support.processes import on_ranks
from support.road import index_batches

import headwise as hw

G_STEPS = {"period": 2, "unit": "steps", "learning_rate": 0.5}
MOA = {"system": "moa", "size": "2K4E8D"}
EXPERTS = {"encoder_self": MOA, "decoder_self": MOA, "decoder_cross": MOA}
MAE_6 = {"encoder_self": {"system": "mae", "dropped_heads": 2}, "decoder_cross": "mae"}
NESTEROV = {"optimizer": "nesterov", "learning_rate": 2.0, "momentum": 0.9}  # too fast
LAST = {"max_steps": 4, "final_model": "last", "evaluate_every": 2}


# A plan of attentions, settings of the training, and options of the model.
SCENARIOS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "accumulated and clipped": (
        "standard",
        {"gradient_accumulation": 2, "clip_norm": 0.5},
        {"norm": "pre", "share_embeddings": "none"},
    ),
    "weights on a simplex": ("weighted", {}, {}),
    "nothing": ("weighted", {"trainable": "nothing"}, {}),
    "stopped early": (
        "standard",
        {"max_steps": 7, "evaluate_every": 1, "patience": 1, **NESTEROV},
        {},
    ),
}


# Of what systems draw, and of statistics over a batch, each process has its own.
DRAWING: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "experts and gates in turns": ("mae", {"rules": {"mae": G_STEPS}}, {}),
    "groups of experts, accumulated": (
        MAE_6,
        {"rules": {"mae": G_STEPS}, "gradient_accumulation": 2},
        {},
    ),
    "loads of experts": (EXPERTS, {"gradient_accumulation": 2}, {}),
}


def course(name: str, folder: Path, *, stopped: bool = False, **settings: Any) -> list[Any]:
    """Losses, validation losses, and the last weights, of a scenario in this process.

    Where it is `stopped`, a signal comes to the second process, and the training goes on.
    """
    attention, training, options = (SCENARIOS | DRAWING)[name]

    def train(collate: Any = toy.join) -> tuple[Any, toy.Trained]:
        model = toy.model(attention, **options)
        return model, toy.train(folder, model, collate=collate, **{**LAST, **training, **settings})

    if stopped:
        with pytest.raises(toy.Interrupted):
            train(toy.Signalled(3 if os.environ["RANK"] == "1" else 0))
    model, run = train()
    model = run.model if settings.get("fsdp") else model  # which each process has for itself
    weights = {name: weight.tolist() for name, weight in sorted(model.state_dict().items())}
    return [run.losses, run.validations, weights]


def courses(folder: Path, names: tuple[str, ...], **settings: Any) -> dict[str, list[Any]]:
    return {name: course(name, folder / name, **settings) for name in names}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The course of a scenario in one process."""
    folder = tmp_path_factory.mktemp("alone")
    return cache(lambda name: course(name, folder / name))


def assert_same(found: list[Any], expected: list[Any]) -> None:
    """Losses are recorded in float32; the weights are of float64."""
    for one, other, bound in zip(found, expected, (1e-6, 1e-6, 1e-8)[-len(found) :], strict=True):
        assert one.keys() == other.keys()
        for key, value in other.items():
            pair = [torch.tensor(x, dtype=torch.float64) for x in (one[key], value)]
            bounds = {"rtol": bound, "atol": bound}
            torch.testing.assert_close(*pair, **bounds, msg=lambda why, key=key: f"{key}: {why}")


# --- batches ----------------------------------------------------------------------------------


def test_a_budget_without_room_for_all_processes_is_an_error_before_training(tmp_path):
    """Whether of what is trained on or of the validation part; it says what would do."""
    with pytest.raises(ValueError) as error:
        index_batches([900] * 20, 1000, world=8)
    for name in ("batch_tokens", "1000", "8", "900", "14400"):
        assert name in str(error.value)
    small = (toy.Reversals(), toy.Reversals(1))
    with pytest.raises(AssertionError, match="room for a sequence of each"):
        on_ranks(2, lambda: toy.train(tmp_path, data=small, max_steps=1))
    assert not list(tmp_path.rglob("*.safetensors"))


# --- courses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number", [2, *(pytest.param(number, marks=pytest.mark.nightly) for number in (3, 4))]
)
def test_processes_take_the_steps_of_one(alone, tmp_path, number):
    """Gradients, clipping and rules are those of whole batches."""
    first, *others = on_ranks(number, courses, tmp_path, tuple(SCENARIOS))
    assert all(other == first for other in others)
    for name, found in first.items():
        assert_same(found, alone(name))
    assert max(first["stopped early"][0]) < SCENARIOS["stopped early"][1]["max_steps"]


def test_processes_stop_together_and_go_on(tmp_path):
    """A signal that reaches the second process alone stops both after the same step."""
    names = ("experts and gates in turns", "loads of experts")

    def work() -> list[Any]:
        whole = courses(tmp_path / "whole", names)
        stopped = {name: course(name, tmp_path / "stopped" / name, stopped=True) for name in names}
        return [whole, stopped]

    for whole, stopped in on_ranks(2, work):
        for name in names:
            assert_same(stopped[name], whole[name])


def test_processes_that_draw_by_themselves_have_one_model(tmp_path):
    """The gates move by the mean of all gradients, as everything else does."""
    first, second = on_ranks(2, courses, tmp_path, tuple(DRAWING))
    assert first == second


def test_a_rule_learns_from_the_mean_of_all_gradients():
    def gates(*ranks: int) -> list[Any]:
        """After a step of MAE's gates on the batches of these processes."""
        torch.manual_seed(0)
        layer, batches = build("mae", train=True), [inputs() for _ in range(2)]
        layer.gate.norm.momentum = 0.0
        rules = hw.TrainingRules(layer, 1, settings={"mae": G_STEPS})
        rules.attach(torch.optim.SGD(rules.parameter_groups(lr=0.1)))
        outputs = (layer(batches[rank], is_causal=True).output for rank in ranks)
        rules.before_step(lambda: (output.square().mean() / len(ranks) for output in outputs))
        return [weight.tolist() for weight in layer.gate.parameters()]

    def work() -> list[Any]:
        torch.distributed.init_process_group("gloo")
        return gates(int(os.environ["RANK"]))

    for found in on_ranks(2, work):
        torch.testing.assert_close(found, gates(0, 1))


DIVIDED = ("accumulated and clipped", "weights on a simplex")


@pytest.mark.nightly
def test_a_divided_model_takes_the_steps_of_a_whole_one(alone, tmp_path):
    """By FSDP, also when it goes on after a stop; another number of processes is an error."""
    names = (*DIVIDED, *DRAWING)
    whole = on_ranks(2, lambda: courses(tmp_path / "whole", tuple(DRAWING)))[0]
    expected = {name: alone(name) for name in DIVIDED} | whole
    for folder, stopped in ((tmp_path / "divided", False), (tmp_path / "stopped", True)):
        train = partial(courses, folder, names, fsdp=True, stopped=stopped)
        divided = on_ranks(2, train)[0]
        for name in names:
            assert_same(divided[name], expected[name])
    with pytest.raises(ValueError, match=r"of 2 processes.* 1: .*--nproc-per-node 2"):
        course(DIVIDED[0], tmp_path / "divided" / DIVIDED[0])


@pytest.mark.nightly
def test_a_divided_model_learns_in_part(tmp_path):
    """What is frozen stays as it is, and gates that rules move apart do move."""
    options = {**LAST, "trainable": "gates", "rules": {"mae": G_STEPS}}

    def work() -> list[Any]:
        runs = [
            toy.train(tmp_path / str(fsdp), toy.model("mae"), **options, fsdp=fsdp)
            for fsdp in (False, True)
        ]
        return [{n: x.tolist() for n, x in run.model.state_dict().items()} for run in runs]

    whole, divided = on_ranks(2, work)[0]
    before = {name: x.tolist() for name, x in toy.model("mae").state_dict().items()}
    changed = {name for name in before if divided[name] != before[name]}
    assert changed and all("gate" in name for name in changed)
    assert_same([divided], [whole])


@pytest.mark.nightly
def test_the_command_under_torchrun_ends_with_the_scores_of_one(tmp_path):
    task = "language-modelling"
    recipe = tiny_tasks.write_recipe(task, tmp_path, model={"dropout": 0.0})
    for name, launcher in (("one", ""), ("two", "-m torch.distributed.run --nproc-per-node=2")):
        command = [sys.executable, *launcher.split(), "-m", "headwise", "train", str(recipe)]
        command += ["--system", "standard", "--output", str(tmp_path / name)]
        subprocess.run(command, check=True, capture_output=True, timeout=400)
    results = [run_folders.result(tmp_path / name) for name in ("one", "two")]
    one, two = ([score["value"] for score in result["scores"]] for result in results)
    assert two == pytest.approx(one, rel=1e-3)
