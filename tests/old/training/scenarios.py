"""Short trainings whose course must not depend on how many processes share the batches.

Run by `torchrun`, it trains all of them and writes what it saw to the file named on the command
line; `test_processes.py` compares that with a single process. With `--fsdp` it trains some of them
while the processes divide the model, for `test_sharding.py`.
"""

import copy
import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import toy

from headwise.analysis.decisions.snapshots import Snapshots
from headwise.training.run import Interrupted
from headwise.training.trainer import Trainer

Course = dict[str, list[float]]

# Of what is drawn, and of statistics over a batch, each process has its own.
# name: plan, settings, options of the model. Batches of 60 tokens have odd numbers of rows too.
SCENARIOS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "standard": ("standard", {}, {}),
    "standard, clipped and accumulated": (
        "standard",
        {"gradient_accumulation": 2, "clip_norm": 0.5},
        {"norm": "pre", "share_embeddings": "none"},
    ),
    "weighted": ("weighted", {}, {}),
    "standard, stopped early": (
        "standard",
        {"max_steps": 9, "evaluate_every": 1, "patience": 2, "learning_rate": 0.3},
        {},
    ),
}
# Gradients are accumulated and clipped, and weights projected.
SHARDED = ["standard, clipped and accumulated", "weighted"]
# Losses are recorded in float32, the weights they move are not; snapshots have five digits.
TOLERANCES = {"loss": 1e-6, "validation": 1e-6, "weights": 1e-8, "snapshots": 2e-5}


def differing(found: dict[str, Course], expected: dict[str, Course]) -> list[str]:
    """Says where courses are not those that are expected."""
    assert found.keys() == expected.keys()
    return [
        f"{name}, {what}: {found[name][what]}, expected {figures}"
        for name, course in expected.items()
        for what, figures in course.items()
        if found[name][what] != pytest.approx(figures, abs=TOLERANCES[what])
    ]


class StopsOneProcess:
    """A collate function that interrupts one process during its third batch."""

    def __init__(self, process: int) -> None:
        self.calls_left = 3 if int(os.environ.get("RANK", "0")) == process else -1

    def __call__(self, items: list[Any]) -> dict[str, torch.Tensor]:
        self.calls_left -= 1
        if self.calls_left == 0:
            signal.raise_signal(signal.SIGINT)
        return toy.join(items)


def course(
    name: str, folder: Path, *, stopped_process: int | None = None, fsdp: bool = False
) -> Course:
    """Loss of each step, validation losses, and the norms of the final weights and statistics."""
    plan, options, sizes = SCENARIOS[name]
    how = toy.settings(
        **{"max_steps": 4, "evaluate_every": 2, "final_model": "last", "fsdp": fsdp, **options}
    )
    # In float64, rounding cannot hide a wrong step, nor pass for one.
    network = toy.model(plan, dropout=0.0, **sizes).double()
    task: Any = SimpleNamespace(
        validation=toy.Reversals(8, seed=1), collate=toy.join, positions=lambda batch: {}
    )
    snapshot = Snapshots(task, how.batch_tokens)
    if stopped_process is not None:
        stops = StopsOneProcess(stopped_process)
        try:
            toy.train(folder, copy.deepcopy(network), how, stops, snapshot=snapshot)
        except Interrupted as stop:
            assert str(stop) == "stopped at step 3", stop
        else:
            raise AssertionError("not stopped")
    run = toy.train(folder, network, how, snapshot=snapshot)
    state = run.model.state_dict()
    return {
        "loss": [record["loss"] for record in run.history if "loss" in record],
        "validation": [record["eval_loss"] for record in run.history if "eval_loss" in record],
        "weights": [float(state[name].double().norm()) for name in sorted(state)],
        "snapshots": [
            figure
            for record in run.history
            for found in record.get("snapshot", {}).values()
            for figure in (record["step"], found["entropy"], *found["shares"], *found["weights"])
        ],
    }


def held(folder: Path) -> list[float]:
    """The share that this process holds of the weights, and of what Adam keeps of them."""
    network = toy.model("mae")
    whole = sum(parameter.nbytes for parameter in network.parameters())
    data = (toy.Reversals(40), toy.Reversals(8, seed=1), toy.join)
    how = toy.settings(max_steps=1, fsdp=True)
    trainer = Trainer(network, *data, how, folder, console=toy.quiet())
    trainer.train()
    averages = [state["exp_avg"] for state in trainer.optimizer.state.values()]
    here = [sum(x.to_local().nbytes for x in of) for of in (trainer.model.parameters(), averages)]
    return [here[0] / whole, here[1] / sum(average.nbytes for average in averages)]


if __name__ == "__main__":
    found = Path(sys.argv[1])
    fsdp = "--fsdp" in sys.argv
    names = SHARDED if fsdp else SCENARIOS
    courses = {name: course(name, found.parent / name, fsdp=fsdp) for name in names}
    courses["stopped"] = course("weighted", found.parent / "stopped", stopped_process=1, fsdp=fsdp)
    if fsdp:
        courses["held"] = {"weights": held(found.parent / "held")}
    torch.distributed.barrier()
    if torch.distributed.get_rank() == 0:
        found.write_text(json.dumps(courses), encoding="utf-8")
