"""Speed of every system beside standard attention, on any device.

    python benchmarks/speed.py layer             # a layer, forward and backward: d=512, 16 × 128
    python benchmarks/speed.py step              # a training step: 2 + 2 layers, d=128, 64 × 16
    python benchmarks/speed.py decode            # greedy decoding: 6 + 6 layers, d=512, 16 texts
    python benchmarks/speed.py decode --batch 1
    python benchmarks/speed.py layer --device cuda --dtype bfloat16 --dim 2048 --time 512

`layer` has attentions over `nn.MultiheadAttention`, and whole layers, as models build them, over
`nn.TransformerEncoderLayer`: the Weighted Transformer and TIM take the place of more than an
attention. `step` is forward, backward and Adam of an encoder-decoder with one system in all of its
attentions, over our standard model; the rules of training do nothing there. `decode` has the same
models translate random texts of 16 tokens into 32 tokens. Beside our standard model stands Marian,
an encoder-decoder of transformers of the same size.

A round measures all of them, one after the other, with `torch.utils.benchmark`. Ratios are taken
within a round, so that a machine whose speed drifts does not matter. The table has the median over
rounds with its 95% interval. Nothing is trained: weights are random, and routers are drawn such
that tokens spread over all experts.
"""

import argparse
import json
import subprocess
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils import benchmark
from transformers import MarianConfig, MarianMTModel

import headwise as hw
from headwise.analysis.results import machine, versions
from headwise.analysis.speed import OverRounds
from headwise.files import write_text
from headwise.heads.rules import TrainingWarning
from headwise.models.modeling import Layer

VOCABULARY, TOKENS = 2_000, 32  # as many tokens are decoded
# What each measurement has where the command line does not say otherwise. `ffn` is the width of
# feed-forwards over that of the model. `moa`: how many experts MoA has for each one that a token
# chooses, and how wide these are over the heads of standard attention.
DEFAULTS: dict[str, dict[str, Any]] = {
    "layer": {"dim": 512, "ffn": 4, "batch": 16, "time": 128, "moa": [(1, 1), (4, 1), (8, 1)]},
    "step": {"dim": 128, "ffn": 2, "batch": 64, "time": 16, "layers": 2, "moa": [(2, 2), (4, 2)]},
    "decode": {"dim": 512, "ffn": 4, "batch": 16, "time": 16, "layers": 6, "moa": [(1, 1), (4, 1)]},
}
Run = Callable[[], object]


class Contender(NamedTuple):
    """Something that is timed, and the name of what it is compared with."""

    name: str
    baseline: str  # the name of the one whose time is 1
    run: Run


def plans(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Returns the plan of attention of each system, by the name that the table shows."""
    heads, width = options.heads, options.dim // options.heads
    sizes = [f"{heads}K{n * heads}E{times * width}D" for n, times in options.moa]
    return {
        "standard": {"system": "standard"},
        "weighted": {"system": "weighted"},
        "agreement, EM": {"system": "agreement", "layers": "all"},
        "agreement, simple": {"system": "agreement", "routing": "simple", "layers": "all"},
        "mae": {"system": "mae"},
        "tim": {"system": "tim", "layers": "all"},
        **{f"moa {size}": {"system": "moa", "size": size} for size in sizes},
        "moh": {"system": "moh", "shared_heads": heads // 4, "top_k": heads // 2},
        "gated": {"system": "gated"},
        "differential": {"system": "differential"},
    }


# --- what is measured -------------------------------------------------------------------------


def layers(options: argparse.Namespace) -> list[Contender]:
    """Makes attentions, and then whole layers; the one of PyTorch comes first."""
    dim, heads, hidden = options.dim, options.heads, options.ffn * options.dim
    x = torch.randn(options.batch, options.time, dim, device=options.device, dtype=options.dtype)

    def training_pass(module: nn.Module, times: int, *arguments: Any, **keywords: Any) -> Run:
        """Makes a function that does a forward and backward pass; x is given so many times."""
        module.to(x.device, x.dtype).train()

        def run() -> None:
            inputs = [x.detach().requires_grad_()] * times
            output = module(*inputs, *arguments, **keywords)
            output = output if isinstance(output, Tensor) else output[0]
            (output.float().square().mean() + hw.auxiliary_loss(module)).backward()
            module.zero_grad(set_to_none=True)

        return run

    attention = nn.MultiheadAttention(dim, heads, batch_first=True)
    run = training_pass(attention, 3, need_weights=False)
    attentions = [Contender("nn.MultiheadAttention", "nn.MultiheadAttention", run)]
    layer: nn.Module = nn.TransformerEncoderLayer(dim, heads, hidden, 0.0, batch_first=True)
    whole = [Contender("PyTorch's layer", "PyTorch's layer", training_pass(layer, 1))]
    sizes = {"embed_dim": dim, "num_heads": heads, "ffn_dim": hidden, "layers": 1, "dropout": 0.0}
    for name, plan in plans(options).items():
        config = hw.SequenceClassifierConfig(**sizes, attention={**plan, "layers": [0]})
        systems = {site: by_layer[0] for site, by_layer in config.layer_specs().items()}
        layer = spread_tokens(Layer(config, systems, 0))
        system = layer.self_attention
        if system is not None and system.replaces == "attention":
            attentions.append(Contender(name, attentions[0].name, training_pass(system, 3)))
        whole.append(Contender(f"layer, {name}", whole[0].name, training_pass(layer, 1, {}, {})))
    return attentions + whole


def steps(options: argparse.Namespace) -> list[Contender]:
    """Makes training steps of all systems on the same random texts."""
    texts = torch.randint(3, VOCABULARY, (2, options.batch, options.time), device=options.device)

    def training_step(model: Any) -> Run:
        optimizer = torch.optim.Adam(model.train().parameters(), lr=1e-4, fused=True)

        def run() -> None:
            model(input_ids=texts[0], labels=texts[1]).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return run

    by_name = models(options)
    return [Contender(name, "standard", training_step(model)) for name, model in by_name.items()]


def decoding(options: argparse.Namespace) -> list[Contender]:
    """Makes greedy decoding by all systems of the same random texts, into outputs of one length."""
    texts = torch.randint(3, VOCABULARY, (options.batch, options.time), device=options.device)
    settings = {"min_new_tokens": TOKENS, "max_new_tokens": TOKENS, "num_beams": 1}
    settings |= {"do_sample": False, "attention_mask": torch.ones_like(texts)}
    return [
        Contender(name, "standard", partial(model.eval().generate, texts, **settings))
        for name, model in models(options).items()
    ]


def models(options: argparse.Namespace) -> dict[str, Any]:
    """Makes an encoder-decoder of each system, and Marian's of the same size."""
    hidden = options.ffn * options.dim
    stack = {"layers": options.layers, "attention_heads": options.heads, "ffn_dim": hidden}
    marian = MarianConfig(
        vocab_size=VOCABULARY,
        d_model=options.dim,
        activation_function="relu",
        dropout=0.0,
        pad_token_id=0,
        eos_token_id=2,
        forced_eos_token_id=None,
        decoder_start_token_id=1,
        **{f"{side}_{key}": n for side in ("encoder", "decoder") for key, n in stack.items()},
    )
    by_name: dict[str, Any] = {}
    for name, plan in plans(options).items():
        config = hw.Seq2SeqLMConfig(
            vocab_size=VOCABULARY,
            embed_dim=options.dim,
            num_heads=options.heads,
            ffn_dim=hidden,
            encoder_layers=options.layers,
            decoder_layers=options.layers,
            attention=plan,
            dropout=0.0,
        )
        by_name[name] = spread_tokens(hw.Seq2SeqLM(config))
    by_name["transformers' Marian"] = MarianMTModel(marian)
    return {name: model.to(options.device, options.dtype) for name, model in by_name.items()}


def spread_tokens(model: Any) -> Any:
    """Draws routers anew, which start at zero: tokens spread over experts, as in training."""
    for name, parameter in model.named_parameters():
        if "router" in name:
            nn.init.normal_(parameter)
    return model


# --- measuring --------------------------------------------------------------------------------


def measure(contenders: list[Contender], options: argparse.Namespace) -> pd.DataFrame:
    """Times all contenders, a row each; the first round only warms up."""
    threads = torch.get_num_threads()
    timers = [
        benchmark.Timer("run()", globals={"run": contender.run}, num_threads=threads)
        for contender in contenders
    ]
    rounds = [
        [timer.blocked_autorange(min_run_time=options.seconds).median for timer in timers]
        for _ in range(options.rounds + 1)
    ]
    seconds = pd.DataFrame(rounds[1:], columns=[contender.name for contender in contenders])
    rows = []
    for name, baseline, _ in contenders:
        ratio = OverRounds.from_figures((seconds[name] / seconds[baseline]).tolist())
        milliseconds = 1e3 * float(seconds[name].median())
        rows.append({"name": name, "over": baseline, "ms": milliseconds, **ratio.model_dump()})
    return pd.DataFrame(rows)


def main() -> None:
    """Measures and prints."""
    options = parse_options()
    torch.manual_seed(0)
    warnings.simplefilter("ignore", TrainingWarning)
    contenders = {"layer": layers, "step": steps, "decode": decoding}[options.what](options)
    chosen = [c for c in contenders if any(text in c.name for text in options.systems)]
    baselines = {c.baseline for c in chosen}
    table = measure([c for c in contenders if c in chosen or c.name in baselines], options)
    settings = {key: str(value) for key, value in vars(options).items()}
    git = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    commit = subprocess.run(git, cwd=Path(__file__).parent, capture_output=True, text=True).stdout
    about = {"options": settings, "machine": machine(), "versions": versions()}
    about["commit"] = commit.strip()
    print(*(f"{key}: {value}" for key, value in about.items()), sep="\n")
    print(table.to_string(index=False, float_format="{:.3g}".format))
    if options.json:
        about["results"] = table.to_dict("records")
        write_text(options.json, json.dumps(about, indent=1) + "\n")


def parse_options() -> argparse.Namespace:
    """Reads the command line, with the defaults of what is measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=DEFAULTS)
    parser.add_argument(
        "--systems", nargs="+", default=[""], help="texts; those alone whose names contain one"
    )
    parser.add_argument("--dim", type=int, help="width of the model")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--time", type=int, help="tokens of a text")
    parser.add_argument("--layers", type=int, help="of the encoder, and of the decoder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", type=partial(getattr, torch), default=torch.float32)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each, a round, at least")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    options = parser.parse_args()
    for key, value in DEFAULTS[options.what].items():
        if getattr(options, key, None) is None:
            setattr(options, key, value)
    return options


if __name__ == "__main__":
    main()
