"""What gates over the heads of a pretrained model cost: forward and backward, with and without.

    python benchmarks/gated_pretrained.py                  # d = 512, 8 heads, batch 8, length 128
    python benchmarks/gated_pretrained.py --device cuda --width 1024 --heads 16 --length 512

The models are GPT-2 and BERT of transformers with random weights, and a quarter of each text of a
second batch is padding. Each round runs a model without and with gates on the same batch, one after
the other; the table shows the median over rounds of the ratio, and its 95% interval. Gates compute
as in a step in which everything learns.
"""

import argparse
import copy

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

import headwise as hw
from headwise.analysis.speed import Rounds, relative_step_times

SYSTEMS = {
    "mae": {},
    "gated": {"gate_start": "neutral"},
    "moh": {"shared_heads": 2, "top_k": 6, "router_start": "neutral"},
}
VOCABULARY = 8000
JOINT = {"mae": {"method": "joint"}}


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
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)

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
