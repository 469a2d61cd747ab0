r"""What gates over the heads of a pretrained model cost: forward and backward, with and without.

    python benchmarks/gated_pretrained.py                  # d = 512, 8 heads, batch 8, length 128
    python benchmarks/gated_pretrained.py --device cuda --width 1024 --heads 16 --length 512

The models are GPT-2 and BERT of transformers with random weights, and a quarter of each text of a
second batch is padding. Each round runs a model without and with gates on the same batch, one after
the other; the table shows the median over rounds of the ratio, and its 95% interval. Gates compute
as in a step in which everything learns.

    python benchmarks/gated_pretrained.py --generate --batch 1

has GPT-2 generate 32 tokens from 16 by a cache instead, which gates of their own position can do.

    python benchmarks/gated_pretrained.py --training --width 2048 --heads 16 --layers 4 \
        --batch 1 --length 512 --rounds 3 [--dtype bfloat16]

trains gates alone, LoRA and all weights of a Llama instead. Held is what tensors take after the
forward pass, peak the most that they take until the end of the backward pass, gradients included;
weights and the workspaces of kernels count in neither. Speed is in tokens for each second of
processor time, over that of all weights in the same round.
"""

import argparse
import copy
import statistics
import time
import weakref
from collections.abc import Callable
from typing import Any

import peft
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

import headwise as hw
from headwise.analysis.speed import Rounds, relative_step_times

SYSTEMS = {
    "mae": {},
    "gated": {},
    "moh": {"shared_heads": 2, "top_k": 6},
}
VOCABULARY = 8000
JOINT = {"mae": {"method": "joint"}}


def gates(system: str, **options: Any) -> Callable[[nn.Module], nn.Module]:
    return lambda model: hw.gate_heads(model.requires_grad_(False), system, **options)


def lora(model: nn.Module) -> nn.Module:
    maps = ["q_proj", "k_proj", "v_proj", "o_proj"]
    return peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=maps))


TRAINED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "all weights": lambda model: model,
    "LoRA of the attention": lora,
    "MAE's gates": gates("mae"),
    "gated, a gate for a head": gates("gated"),
    "gated, a gate for an element": gates("gated", gate="elementwise"),
    "MoH": gates("moh"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="of the CPU")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--generate", action="store_true", help="generate() with a cache")
    parser.add_argument("--training", action="store_true", help="gates alone, LoRA, all weights")
    parser.add_argument("--dtype", default="float32", help="of a model in --training")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    if options.training and options.device != "cpu":
        parser.error("--training measures the time of the processor: it needs --device cpu")
    if options.training:
        print_training(options)
        return

    if options.generate:
        print_generating(options)
        return
    table = Table("model", "padding", *SYSTEMS, title="Time with gates over time without")
    for kind in ("gpt2", "bert"):
        plain = made(kind, options).to(options.device)
        models = {"plain": plain}
        for system, settings in SYSTEMS.items():
            models[system] = hw.gate_heads(copy.deepcopy(plain), system, **settings)
        rules = {name: JOINT if name == "mae" else {} for name in models}
        for padded in (False, True):
            batch = one_batch(options, padded)
            rounds = Rounds(options.rounds, options.rounds)
            times = relative_step_times(models, rules, [batch], rounds)
            cells = [
                f"{t.value:.3f} ({t.low:.3f} to {t.high:.3f})" for t in list(times.values())[1:]
            ]
            table.add_row(kind, "yes" if padded else "no", *cells)
    Console().print(table)


def made(kind: str, options: argparse.Namespace) -> nn.Module:
    """A model for training."""
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": options.width,
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.heads,
        "max_position_embeddings": options.length,
    }
    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(**sizes)).train()
    return BertForMaskedLM(BertConfig(**sizes, intermediate_size=4 * options.width)).train()


@torch.no_grad()
def print_generating(options: argparse.Namespace) -> None:
    """Prints how much longer `generate()` takes with gates, in processor time."""
    systems = {**SYSTEMS, "mae": {"gate_window": 1}}
    plain = made("gpt2", options).to(options.device).eval()
    models = {name: hw.gate_heads(copy.deepcopy(plain), name, **systems[name]) for name in systems}
    ratios: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(options.rounds):
        before = generate_seconds(plain, options)
        for name, model in models.items():
            ratios[name].append(generate_seconds(model, options) / before)
    table = Table(*systems, title="Time of generate() with gates over time without")
    found = ratios.values()
    table.add_row(*(f"{statistics.median(r):.2f} ({min(r):.2f} to {max(r):.2f})" for r in found))
    Console().print(table)


def generate_seconds(model: Any, options: argparse.Namespace) -> float:
    tokens = torch.full((options.batch, 16), 5, device=options.device)
    given = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "do_sample": False}
    start = time.process_time()
    model.generate(**given, max_new_tokens=32, eos_token_id=None, pad_token_id=0)
    return time.process_time() - start


def print_training(options: argparse.Namespace) -> None:
    """Prints what each way of training holds, and how fast it is."""
    batch = {**one_batch(options, padded=False), "use_cache": False}
    models, memory = {}, {}
    for name, prepare in TRAINED.items():
        models[name] = prepare(llama(options)).train()
        learned = sum(p.numel() for p in models[name].parameters() if p.requires_grad)
        with Alive() as alive:
            loss = models[name](**batch).loss
            held = alive.bytes
            loss.backward()
        memory[name] = (f"{learned:,}", *(f"{n / 2**20:.1f}" for n in (held, alive.most)))
        models[name].zero_grad()
    ratios: dict[str, list[float]] = {name: [] for name in TRAINED}
    for _ in range(options.rounds):
        seconds = {name: step_seconds(model, batch) for name, model in models.items()}
        for name in TRAINED:
            ratios[name].append(seconds["all weights"] / seconds[name])
    table = Table("trained", "parameters", "held, MiB", "peak, MiB", "speed", title=options.dtype)
    for name in TRAINED:
        found = ratios[name]
        speed = f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"
        table.add_row(name, *memory[name], speed)
    Console(width=120).print(table)


def llama(options: argparse.Namespace) -> nn.Module:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=options.width,
        intermediate_size=11 * options.width // 4,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.heads // 4,
    )
    return LlamaForCausalLM(config).to(options.device, getattr(torch, options.dtype))


def step_seconds(model: nn.Module, batch: dict[str, Any]) -> float:
    start = time.process_time()
    model(**batch).loss.backward()
    model.zero_grad()
    return time.process_time() - start


class Alive(TorchDispatchMode):
    """Counts the bytes of the tensors that operations make, while they are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.most = 0
        self.known: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = tree_leaves((args, kwargs or {}))
        before = {t.untyped_storage()._cdata for t in given if isinstance(t, torch.Tensor)}
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self.note(tensor.untyped_storage(), before)
        return made

    def note(self, storage: torch.UntypedStorage, before: set[int]) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.known or key in before:  # views of tensors that are there already
            return
        self.known.add(key)
        self.bytes += size
        self.most = max(self.most, self.bytes)
        weakref.finalize(storage, self.forget, key, size)

    def forget(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.bytes -= size


def one_batch(options: argparse.Namespace, padded: bool) -> dict[str, torch.Tensor]:
    """Random tokens with labels."""
    tokens = torch.randint(VOCABULARY, (options.batch, options.length), device=options.device)
    batch = {"input_ids": tokens, "labels": tokens}
    if padded:
        batch["attention_mask"] = torch.ones_like(tokens)
        batch["attention_mask"][:, -options.length // 4 :] = 0
    return batch


if __name__ == "__main__":
    main()
