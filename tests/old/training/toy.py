"""A task that a tiny model can be trained on in no time: sequences to be reversed."""

import io
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from torch.utils.data import Dataset
from transformers import set_seed

from headwise.data.encoded import collate_tokens
from headwise.models.config import Seq2SeqLMConfig
from headwise.models.for_tasks import Seq2SeqLM
from headwise.training.run import Run, run_training
from headwise.training.settings import TrainingSettings

State = dict[str, torch.Tensor]

VOCABULARY = 20  # 0 padding, 1 start, 2 end
MOA = {"system": "moa", "size": "2K4E8D"}
PLANS: dict[str, Any] = {
    "standard": "standard",
    "mae": "mae",
    "moa": {"encoder_self": MOA, "decoder_self": MOA, "decoder_cross": MOA},
}


class Reversals(Dataset):
    """Random sequences of 2 to 9 tokens; the label is the sequence backwards."""

    def __init__(self, count: int, seed: int = 0) -> None:
        draw = random.Random(seed)
        self.items = []
        for _ in range(count):
            tokens = [draw.randrange(3, VOCABULARY) for _ in range(draw.randrange(2, 10))]
            self.items.append({"input_ids": [*tokens, 2], "labels": [*reversed(tokens), 2]})
        self.lengths = [(len(item["input_ids"]), len(item["labels"])) for item in self.items]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return self.items[index]


def join(items: list[Any]) -> dict[str, torch.Tensor]:
    """The collate function."""
    return collate_tokens(items, pad_token_id=0)


def model(attention: Any = "standard", *, seed: int = 3, **options: Any) -> Seq2SeqLM:
    """One layer each, 16 wide, 4 heads; options go to the configuration."""
    set_seed(seed)
    sizes = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 32}
    sizes |= {"encoder_layers": 1, "decoder_layers": 1, "vocab_size": VOCABULARY}
    return Seq2SeqLM(Seq2SeqLMConfig(attention=attention, **{**sizes, **options}))


def settings(**options: Any) -> TrainingSettings:
    """Every step's loss is recorded."""
    defaults = {"max_steps": 12, "batch_tokens": 60, "learning_rate": 3e-3, "warmup_steps": 4}
    defaults |= {"log_every": 1, "evaluate_every": 4}
    return TrainingSettings(**{**defaults, **options})


def quiet() -> Console:
    """A console that shows nothing."""
    return Console(quiet=True)


def train(
    folder: Path,
    network: Seq2SeqLM,
    how: TrainingSettings,
    collate: Any = join,
    data: Any = None,
    **looks: Any,
) -> Run:
    """Train on 40 reversals (5 batches of up to 60 tokens), or on other data; validate on 8."""
    parts = data or (Reversals(40), Reversals(8, seed=1))
    return run_training(network, *parts, collate, how, folder, **{"console": quiet()} | looks)


def said(*args: Any, **options: Any) -> tuple[Run, str]:
    """The run of `train`, and what the console says of it, beside validations."""
    written = io.StringIO()
    run = train(*args, console=Console(file=written, width=10_000), **options)
    lines = [line for line in written.getvalue().splitlines() if " valid " not in line]
    return run, "\n".join(lines)


def another_task() -> tuple[Reversals, Reversals]:
    """Data whose validation loss is lowest early: what is learned later is another task."""
    data = Reversals(40)
    for item in data.items:
        item["labels"] = [3] * (len(item["labels"]) - 1) + [2]
    return data, Reversals(8)


def weights(folder: Path, step: int) -> State:
    """Those of a checkpoint."""
    return load_file(folder / f"checkpoint-{step}" / "model.safetensors")


def assert_same(run: Run, reference: Run) -> None:
    """Two runs have the same losses and the same final weights."""
    assert curve(run) == curve(reference)
    state, expected = run.model.state_dict(), reference.model.state_dict()
    assert state.keys() == expected.keys()
    assert [name for name in state if not torch.equal(state[name], expected[name])] == []


def train_until(folder: Path, step: int) -> None:
    """Begin a run that Ctrl-C ends behind the checkpoint of a step."""

    def stop(items: list[Any]) -> dict[str, torch.Tensor]:
        if (folder / f"checkpoint-{step}").is_dir():
            raise KeyboardInterrupt
        return join(items)

    with pytest.raises(KeyboardInterrupt):
        train(folder, model(), settings(), stop)


def curve(run: Run) -> list[tuple[int, str, float]]:
    """Training and validation losses, step by step."""
    return [
        (record["step"], kind, record[kind])
        for record in run.history
        for kind in ("loss", "eval_loss")
        if kind in record
    ]
