"""A training that takes a moment; no other file of the tests names the trainer.

Users have it through `headwise train`, and it has no public name: whoever builds it anew edits this
file. Seen from outside are the items that are joined into batches, and the optimizer, by hooks.
"""

import io
import random
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from torch import Tensor
from torch.optim import optimizer as of_optimizers

import headwise as hw
from headwise.files import clear_leftovers, written_whole
from headwise.models.parameters import freeze_all_but
from headwise.training.batches import Batches
from headwise.training.checkpoints import write_model
from headwise.training.settings import TrainingSettings
from headwise.training.trainer import (
    Interrupted,
    Trainer,
    accelerator_for,
)

__all__ = ["Interrupted", "clear_leftovers", "write_model", "written_whole"]
VOCABULARY = 12  # 0 padding, 1 start, 2 end
STATE = ("model.safetensors", "training.pt", "config.json")  # of each checkpoint


class Reversals(torch.utils.data.Dataset):
    """Random sequences of 2 to 9 tokens; the label is the sequence backwards."""

    def __init__(self, count: int = 80, seed: int = 0) -> None:
        draw = random.Random(seed)
        drawn = [[draw.randrange(3, VOCABULARY) for _ in range(2 + n % 8)] for n in range(count)]
        self.items = [{"input_ids": [*x, 2], "labels": [*x[::-1], 2]} for x in drawn]
        self.lengths = [len(item["labels"]) for item in self.items]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**self.items[index], "index": index, "of": self}

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [self[index] for index in indices]

    def set_epoch(self, epoch: int) -> None:
        """They are the same in all epochs."""


def join(items: list[dict[str, Any]]) -> dict[str, Tensor]:
    """The batch of some items."""

    def padded(name: str, value: int) -> Tensor:
        rows = [torch.tensor(item[name]) for item in items]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)

    tokens = padded("input_ids", 0)
    return {"input_ids": tokens, "attention_mask": tokens != 0, "labels": padded("labels", -100)}


class Signalled:
    """A collate function: while the n-th batch is joined, Ctrl-C comes."""

    def __init__(self, call: int) -> None:
        self.left = call

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, Tensor]:
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGINT)
        return join(items)


def model(attention: Any = "standard", *, seed: int = 3, **options: Any) -> hw.Seq2SeqLM:
    """One layer each, in float64 and without dropout, where rounding hides no mistake."""
    torch.manual_seed(seed)
    sizes = {"embed_dim": 8, "num_heads": 4, "ffn_dim": 12, "encoder_layers": 1, "dropout": 0.0}
    sizes |= {"decoder_layers": 1, "vocab_size": VOCABULARY, "attention": attention}
    return hw.Seq2SeqLM(hw.Seq2SeqLMConfig(**{**sizes, **options})).double()


def settings_of(**settings: Any) -> TrainingSettings:
    """Settings of a training of 6 steps."""
    defaults = {"max_steps": 6, "batch_tokens": 60, "learning_rate": 3e-3, "warmup_steps": 2}
    defaults |= {"log_every": 1, "evaluate_every": 2, "precision": "float32"}
    return TrainingSettings(**{**defaults, **settings})


class Trained(NamedTuple):
    """Losses by step, the learning rate and the weights of each step, and what was said."""

    model: Any
    losses: dict[int, float]
    validations: dict[int, float]
    steps: int
    best_step: int | None
    rates: list[float]
    weights: list[dict[str, Tensor]]
    said: str
    history: list[dict[str, Any]]


def train(
    folder: Path,
    network: Any = None,
    *,
    data: Any = None,
    collate: Any = join,
    measure: Any = None,
    **settings: Any,
) -> Trained:
    """Train on 80 reversals, in 11 batches of up to 60 tokens, or on other data."""
    network = model() if network is None else network
    training = settings_of(**settings)
    parts = data or (Reversals(), Reversals(12, seed=1))
    console = Console(file=io.StringIO(), width=10_000)
    rates: list[float] = []
    weights: list[dict[str, Tensor]] = []

    def note_rate(optimizer: Any, *_: Any) -> None:
        rates.append(optimizer.param_groups[0]["lr"])

    def note_weights(*_: Any) -> None:
        weights.append({name: x.detach().clone() for name, x in network.state_dict().items()})

    with ExitStack() as stack:
        stack.callback(of_optimizers.register_optimizer_step_pre_hook(note_rate).remove)
        stack.callback(of_optimizers.register_optimizer_step_post_hook(note_weights).remove)
        accelerator = accelerator_for(training, folder)
        share = {"rank": accelerator.process_index, "world": accelerator.num_processes}
        share |= {"workers": training.loader_workers}
        batches = (
            Batches(items, collate, training.batch_tokens, seed=seed, **share)
            for items, seed in zip(parts, (training.seed, None), strict=True)
        )
        freeze_all_but(network, training.trainable)
        trainer = (network, *batches, training, folder, accelerator)
        run = Trainer(*trainer, console=console, measure=measure).fit()
        if accelerator.is_main_process and not (folder / "model").is_dir():
            write_model(type(network), training, folder, lambda path: None)
        accelerator.wait_for_everyone()
        final = type(network).from_pretrained(folder / "model")
    losses, validations = (
        {record["step"]: record[kind] for record in run.history if kind in record}
        for kind in ("loss", "eval_loss")
    )
    history = [{k: v for k, v in record.items() if k != "seconds"} for record in run.history]
    figures = (losses, validations, run.step, run.best_step, rates, weights)
    return Trained(final, *figures, console.file.getvalue(), history)
