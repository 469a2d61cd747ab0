"""Processes that share each batch train as one process does."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import run_folders, tiny_tasks
from support import toy_training as toy
from support.processes import on_ranks
from support.road import index_batches

G_STEPS = {"period": 2, "unit": "steps", "learning_rate": 0.5}
MOA = {"system": "moa", "size": "2K4E8D"}
EXPERTS = {"encoder_self": MOA, "decoder_self": MOA, "decoder_cross": MOA}
MAE = {"system": "mae", "gate_dropout": 0.0}  # each process would draw its own
MAE_6 = {"encoder_self": {**MAE, "dropped_heads": 2}, "decoder_cross": MAE}
NESTEROV = {"optimizer": "nesterov", "learning_rate": 2.0, "momentum": 0.9}  # too fast
LAST = {"max_steps": 4, "final_model": "last", "evaluate_every": 2}


class Scenario(NamedTuple):
    """A plan of attentions, settings of the training, and options of the model."""

    attention: Any
    settings: Mapping[str, Any] = MappingProxyType({})
    options: Mapping[str, Any] = MappingProxyType({})


SCENARIOS = {
    "accumulated and clipped": Scenario(
        "standard",
        {"gradient_accumulation": 2, "clip_norm": 0.5},
        {"norm": "pre", "share_embeddings": "none"},
    ),
    "weights on a simplex": Scenario("weighted"),
    "experts and gates in turns": Scenario(MAE, {"mae": G_STEPS}),
    "groups of experts, accumulated": Scenario(MAE_6, {"mae": G_STEPS, "gradient_accumulation": 2}),
    "loads of experts": Scenario(EXPERTS, {"gradient_accumulation": 2}),
    "stopped early": Scenario(
        "standard", {"max_steps": 7, "evaluate_every": 1, "patience": 1, **NESTEROV}
    ),
}


class Signalled:
    """A collate function: while a process joins its third batch, a signal reaches it alone."""

    def __init__(self, rank: int) -> None:
        self.left = 3 if rank == 1 else 0

    def __call__(self, items: list[Any]) -> dict[str, torch.Tensor]:
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGINT)
        return toy.join(items)


def course(name: str, folder: Path, *, stopped: bool = False, **settings: Any) -> list[Any]:
    """Losses, validation losses, and the final weights, of a scenario in this process.

    Where it is `stopped`, a signal comes to the second process, and the training goes on.
    """
    scenario = SCENARIOS[name]

    def train(**more: Any) -> toy.Trained:
        model = toy.model(scenario.attention, **scenario.options)
        return toy.train(folder, model, **{**LAST, **scenario.settings, **settings, **more})

    if stopped:
        with pytest.raises(toy.Interrupted):
            train(collate=Signalled(int(os.environ["RANK"])))
    run = train()
    weights = {name: weight.tolist() for name, weight in sorted(run.model.state_dict().items())}
    return [run.losses, run.validations, weights]


def courses(folder: Path, names: tuple[str, ...], **settings: Any) -> dict[str, list[Any]]:
    return {name: course(name, folder / name, **settings) for name in names}


@cache
def of_one(folder: Path, name: str) -> list[Any]:
    return course(name, folder / name)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The course of a scenario in one process."""
    folder = tmp_path_factory.mktemp("alone")
    return lambda name: of_one(folder, name)


def assert_same(found: list[Any], expected: list[Any]) -> None:
    """Losses are recorded in float32; the weights are of float64."""
    for one, other, bound in zip(found, expected, (1e-6, 1e-6, 1e-8), strict=True):
        assert one.keys() == other.keys()
        for key, value in other.items():
            pair = [torch.tensor(x, dtype=torch.float64) for x in (one[key], value)]
            bounds = {"rtol": bound, "atol": bound}
            torch.testing.assert_close(*pair, **bounds, msg=lambda why, key=key: f"{key}: {why}")


# --- batches ----------------------------------------------------------------------------------


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=40),
    world=st.integers(1, 6),
    budget=st.integers(30, 400),
    epoch=st.integers(0, 2),
)
def test_the_shares_of_all_processes_are_the_batches_of_one(lengths, world, budget, epoch):
    """Or an error names the budget, the processes and the sequences that leave no room."""
    share = {"epoch": epoch, "seed": 2, "world_size": world}
    batches = index_batches(lengths, budget, epoch=epoch, seed=2)
    if min(map(len, batches)) >= world:
        ranks = [index_batches(lengths, budget, rank=rank, **share) for rank in range(world)]
        assert [list(chain(*own)) for own in zip(*ranks, strict=True)] == batches
        assert all(own for rank in ranks for own in rank)
        return
    assert world > 1 and (len(lengths) < world or budget < 2 * world * max(lengths))
    with pytest.raises(ValueError) as told:
        index_batches(lengths, budget, rank=0, **share)
    assert str(world) in str(told.value)


def test_a_budget_without_room_for_all_processes_is_an_error_before_training(tmp_path):
    """Whether of what is trained on or of the validation part; it says what would do."""
    with pytest.raises(ValueError) as told:
        index_batches([900] * 20, 1000, world_size=8)
    for name in ("batch_tokens", "1000", "8", "900", "14400"):
        assert name in str(told.value)
    small = (toy.Reversals(), toy.Reversals(1))
    with pytest.raises(AssertionError, match="lengths"):
        on_ranks(2, lambda: toy.train(tmp_path, data=small, max_steps=1))
    assert not list(tmp_path.rglob("*.safetensors"))


# --- courses ----------------------------------------------------------------------------------


def test_two_processes_take_the_steps_of_one(alone, tmp_path):
    """Gradients, clipping, rules and statistics are those of whole batches."""
    names = tuple(SCENARIOS)
    first, second = on_ranks(2, courses, tmp_path, names)
    assert first == second
    for name in names:
        assert_same(first[name], alone(name))
    assert max(first["stopped early"][0]) == 3


def test_processes_stop_together_and_go_on(alone, tmp_path):
    """A signal that reaches the second process alone stops both after the same step."""
    name = "experts and gates in turns"

    def work() -> list[Any]:
        return course(name, tmp_path, stopped=True)

    for found in on_ranks(2, work):
        assert_same(found, alone(name))


@pytest.mark.nightly
@pytest.mark.parametrize("number", [3, 4])
def test_more_processes_take_the_steps_of_one(alone, tmp_path, number):
    for name, found in on_ranks(number, courses, tmp_path, tuple(SCENARIOS))[0].items():
        assert_same(found, alone(name))


DIVIDED = ("accumulated and clipped", "weights on a simplex", "loads of experts")


@pytest.mark.nightly
def test_a_divided_model_takes_the_steps_of_a_whole_one(alone, tmp_path):
    """By FSDP; one process goes on from what two have left, since what they save is whole."""
    names = (*DIVIDED, "experts and gates in turns")
    divided = on_ranks(2, lambda: courses(tmp_path, names, fsdp=True))[0]
    for name in names:
        assert_same(divided[name], alone(name))
    for name in DIVIDED:
        for path in sorted((tmp_path / name).iterdir())[1:]:  # all but the first checkpoint
            subprocess.run(["rm", "-r", path], check=True)
        assert_same(course(name, tmp_path / name), alone(name))


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
