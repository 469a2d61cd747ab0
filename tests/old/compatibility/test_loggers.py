"""Loggers: figures of a run in their files."""

import pytest
import torch
from compatible import compatible, tiny_model
from rich.console import Console
from torch.utils.data import Dataset

from headwise.data.running.dataset import collate_blocks
from headwise.training.loggers import LOGS
from headwise.training.run import run_training
from headwise.training.settings import TrainingSettings


class Blocks(Dataset):
    """Blocks of tokens that count up."""

    def __init__(self):
        self.items = [torch.arange(start, start + 6) for start in range(1, 9)]
        self.lengths = [6] * len(self.items)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


@compatible(
    "loggers",
    "`training.report_to: [tensorboard]`: losses, learning rate and validation",
    needs=("tensorboard",),
)
def test_tensorboard(system, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = TrainingSettings(
        max_steps=2, warmup_steps=1, evaluate_every=2, log_every=1, report_to=["tensorboard"]
    )
    run = run_training(
        tiny_model("causal", system),
        Blocks(),
        Blocks(),
        lambda items: collate_blocks(items, 0),
        settings,
        tmp_path,
        console=Console(quiet=True),
    )
    (file,) = (tmp_path / LOGS).glob("events.*")
    events = EventAccumulator(str(file)).Reload()
    names = {"train/loss": "loss", "train/learning_rate": "learning_rate", "eval/loss": "eval_loss"}
    for name, key in names.items():
        expected = {r["step"]: r[key] for r in run.history if key in r}
        found = {event.step: event.value for event in events.Scalars(name)}
        assert found == pytest.approx(expected, rel=1e-5) and found
