"""Speed of every system on a GPU beside its ceilings, and whether it computes there what it should.

    python benchmarks/gpu.py                                     # all parts, d = 512 and 2048
    python benchmarks/gpu.py --parts layers --dims 512 1024 2048 4096 --output layers.json
    python benchmarks/gpu.py --device cpu --dims 64 --seconds 5  # a trial without a GPU

`correctness`: every system's layer, and a small language model, forward and backward in float32
(without TF32) and bfloat16, beside the same weights and inputs in float64 on the CPU. Which of
forward, backward and a decoding step has the host wait for the GPU, after a warm-up: PyTorch raises
there.

`layers`: forward and backward beside `nn.MultiheadAttention`, transformers' JetMoE among them. The
Weighted Transformer and TIM take the place of more than attention, so `nn.TransformerEncoderLayer`
stands beside them. `decoding`: a token of a language model by greedy search. `training`: a step of
a language model.

Contenders run in turns. A figure is the median over rounds, a ratio the median of ratios within
rounds. The roofline share is the shortest time that the card's ceilings allow over the measured:
the FLOPs of torch's counter at the speed of a large product, or the bytes that have to be moved at
least (weights twice, their gradients, input, output and theirs, once each) at the speed of a large
copy, whichever takes longer. Both speeds are measured first. Weights are not trained.
"""

import argparse
import copy
import gc
import json
import math
import os
import statistics
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from attention import jetmoe_attention, run_jetmoe
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import headwise as hw
from headwise.files import write_text
from headwise.heads.system import System

SYSTEMS: dict[str, dict[str, Any]] = {
    "standard": {"system": "standard"},
    "mae": {"system": "mae", "gate_dropout": 0.0},
    "moa": {"system": "moa"},
    "moh": {"system": "moh"},
    "gated": {"system": "gated"},
    "differential": {"system": "differential"},
    "agreement, EM": {"system": "agreement"},
    "agreement, simple": {"system": "agreement", "routing": "simple"},
    "weighted": {"system": "weighted"},
    "tim": {"system": "tim"},
}
WHOLE_LAYERS = ("weighted", "tim")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
VOCABULARY = 8192
CONSOLE = Console(width=150)
Run = Callable[[], Any]


class Ceilings(NamedTuple):
    """What the card does at best."""

    flops: dict[str, float]  # a second, by dtype
    bytes: float  # read and written in a second

    def seconds(self, flops: float, size: float, dtype: str) -> float:
        """The shortest time for so many FLOPs and bytes."""
        return max(flops / self.flops[dtype], size / self.bytes)


class Recorder:
    """Keeps all figures, and writes them anew after each: what has been measured stays."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.file: Path | None = options.output
        name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
        self.head = {"device": name, "torch": torch.__version__}
        self.records: list[dict[str, Any]] = []

    def add(self, **figures: Any) -> None:
        """Adds a record."""
        self.records.append(figures)
        if self.file is not None:
            text = json.dumps({**self.head, "records": self.records}, indent=1)
            write_text(self.file, text)


def main() -> None:
    """Runs the parts, one after the other."""
    options = parse_options()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    recorder = Recorder(options)
    CONSOLE.print(f"{recorder.head['device']}, torch {torch.__version__}, {options.dtype}")
    ceilings = measured_ceilings(options)
    recorder.add(part="ceilings", **ceilings._asdict())
    for dtype, speed in ceilings.flops.items():
        CONSOLE.print(f"large {dtype} product: {speed / 1e12:.1f} TFLOP/s")
    CONSOLE.print(f"large copy: {ceilings.bytes / 1e12:.2f} TB/s read and written")
    for part in options.parts:
        start = time.perf_counter()
        with tolerated(part):
            PARTS[part](options, recorder, ceilings)
        CONSOLE.print(f"{part} took {time.perf_counter() - start:.0f} s")


# Measuring


def measured_ceilings(options: argparse.Namespace) -> Ceilings:
    """The speed of a large product, by dtype, and of a large copy."""
    size = 8192 if options.device == "cuda" else 512
    flops = {}
    for name in {"float32", options.dtype}:
        a, b = torch.randn(2, size, size, device=options.device, dtype=DTYPES[name])
        flops[name] = 2 * size**3 / best_of(lambda a=a, b=b: a @ b, options)
    source = torch.zeros(8 * size * size, device=options.device)
    target = torch.empty_like(source)
    copied = best_of(lambda: target.copy_(source), options)
    return Ceilings(flops, 2 * source.numel() * source.element_size() / copied)


def best_of(run: Run, options: argparse.Namespace) -> float:
    """The shortest time of several runs."""
    return min(seconds_of(run, options) for _ in range(8))


def seconds_of(run: Run, options: argparse.Namespace) -> float:
    """How long something takes, on the device and with what the host needs to start it."""
    if options.device != "cuda":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    torch.cuda.synchronize()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    run()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1e3


def in_turns(runs: dict[str, Run], seconds: float, options: argparse.Namespace) -> dict[str, Any]:
    """The times of each run in each round. One that fails is left out, and its error printed."""
    gc.collect()  # graphs and models of earlier tables
    end = time.perf_counter() + seconds
    left = {}
    for name, run in runs.items():
        with tolerated(name):
            for _ in range(2):
                seconds_of(run, options)
            left[name] = run
        if time.perf_counter() > end:
            CONSOLE.print(f"[yellow]the time is over: {name} is the last that is measured")
            break
    times: dict[str, list[float]] = {name: [] for name in left}
    while left and len(next(iter(times.values()))) < options.rounds:
        for name, run in left.items():
            times[name].append(seconds_of(run, options))
        if time.perf_counter() > end:
            break
    return times


@contextmanager
def tolerated(what: str) -> Iterator[None]:
    """Prints an error, and goes on behind the block."""
    try:
        yield
    except Exception as error:
        frames = "".join(traceback.format_tb(error.__traceback__)[-2:])
        CONSOLE.print(f"[red]{what}: {type(error).__name__}: {str(error)[:600]}", highlight=False)
        CONSOLE.print(frames, markup=False, highlight=False)
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("default")
            with suppress(RuntimeError):  # after a fault of a kernel nothing works any more
                torch.cuda.empty_cache()


@contextmanager
def uncompiled() -> Iterator[None]:
    """Routing by agreement compiles nothing in the meantime."""
    with patch.dict(os.environ, {"HEADWISE_COMPILE": "0"}):
        yield


def flops_of(run: Run) -> float:
    """The FLOPs of a run, by torch's counter."""
    with uncompiled(), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def columns(title: str, *names: str) -> Table:
    """An empty table: a name, and figures at the right."""
    table = Table(title=title, title_justify="left")
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if number else "left")
    return table


def ratio_cell(times: list[float], of_baseline: list[float]) -> tuple[float, str]:
    """The median of the ratios within rounds, and it with the middle half as text."""
    ratios = [own / other for own, other in zip(times, of_baseline, strict=True)]
    if len(ratios) < 2:
        return ratios[0], f"{ratios[0]:.2f}"
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return middle, f"{middle:.2f} [{low:.2f}, {high:.2f}]"


# Systems, layers and models


def sizes_at(dim: int) -> tuple[int, int, str]:
    """Heads, the width of one, and the size of MoA with as many chosen heads, of four times."""
    head_dim = 64 if dim <= 512 else 128
    if dim < 512:
        head_dim = max(8, dim // 8)
    heads = dim // head_dim
    return heads, head_dim, f"{heads}K{4 * heads}E{head_dim}D"


def plan_at(name: str, dim: int) -> dict[str, Any]:
    """The plan of a system, with sizes that fit the width."""
    heads, _, size = sizes_at(dim)
    plan = dict(SYSTEMS[name])
    if plan["system"] == "moa":
        plan["size"] = size
    if plan["system"] == "moh":
        plan |= {"shared_heads": heads // 4, "top_k": heads // 2}
    if plan["system"] == "tim":
        plan["layers"] = "all"
    return plan


def language_model(
    name: str, dim: int, layers: int, device: str | None = None, dtype: str = "float32"
) -> hw.CausalLM:
    """A decoder with one system in all layers."""
    config = hw.CausalLMConfig(
        vocab_size=VOCABULARY,
        embed_dim=dim,
        num_heads=sizes_at(dim)[0],
        ffn_dim=4 * dim,
        layers=layers,
        attention={"decoder_self": plan_at(name, dim)},
        dropout=0.0,
    )
    with nullcontext() if device is None else torch.device(device):
        return spread(hw.CausalLM(config)).to(DTYPES[dtype])


def layer_of(name: str, dim: int) -> nn.Module:
    """The attention of a system, or what it has in the place of a layer."""
    model = language_model(name, dim, 1)
    found = [m for m in model.modules() if isinstance(m, System)]
    return found[0]


@torch.no_grad()
def spread(module: Any) -> Any:
    """Draws routers anew, which start at zero: tokens spread over experts, as in training."""
    for name, parameter in module.named_parameters():
        if "router" in name:
            nn.init.normal_(parameter)
    return module


def output_and_loss(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """What a layer gives, and what it adds to the loss."""
    out = module(x)
    if isinstance(out, Tensor):
        return out, None
    return out.output, None if out.routing is None else out.routing.loss


def forward_backward(module: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The output of a layer, and gradients of its input and weights."""
    x = x.detach().requires_grad_()
    module.zero_grad(set_to_none=True)
    output, added = output_and_loss(module, x)
    loss = (output.float() if output.dtype != torch.float64 else output).square().mean()
    (loss if added is None else loss + added.to(loss.dtype)).backward()
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    assert x.grad is not None
    return output.detach(), [x.grad, *gradients]


# Correctness


def correctness(options: argparse.Namespace, recorder: Recorder, _: Ceilings) -> None:
    """Prints relative errors, and what is the same and what waits."""
    dim = min(options.dims)
    names = (
        "error of",
        "layer: output",
        "gradients",
        "model: loss",
        "gradients",
        "waits",
    )
    table = columns(f"relative errors to float64 on the CPU, d={dim}", *names)
    for name in options.systems:
        for dtype in ("float32", options.dtype):
            cells: dict[str, Any] = {}
            with tolerated(f"{name}, {dtype}, layer"), uncompiled():
                cells["layer output"], cells["layer gradients"] = layer_errors(
                    name, dim, dtype, options
                )
            with tolerated(f"{name}, {dtype}, model"), uncompiled():
                cells["model loss"], cells["model gradients"] = model_errors(
                    name, dim, dtype, options
                )
            with tolerated(f"{name}, {dtype}, waiting"), uncompiled():
                cells["waits"] = who_waits(name, dim, dtype, options)
            order = ("layer output", "layer gradients", "model loss", "model gradients")
            errors = [f"{cells[key]:.1e}" if key in cells else "failed" for key in order]
            errors.append(cells.get("waits", "failed"))
            table.add_row(f"{name}, {dtype}", *errors)
            CONSOLE.print(f"{name}, {dtype}: {' '.join(errors)}")
            recorder.add(part="correctness", system=name, dtype=dtype, dim=dim, **cells)
    CONSOLE.print(table)


def rounded(module: Any, dtype: torch.dtype) -> Any:
    """A copy in float64 whose weights a dtype has exactly, but for running statistics."""
    return copy.deepcopy(module).to(dtype).double()


def layer_errors(
    name: str, dim: int, dtype: str, options: argparse.Namespace
) -> tuple[float, float]:
    """Of the output and of all gradients."""
    torch.manual_seed(1)
    exact = rounded(layer_of(name, dim), DTYPES[dtype])
    x = torch.randn(4, 64, dim).to(DTYPES[dtype]).double()
    wanted = forward_backward(exact.train(), x)
    module = copy.deepcopy(exact).to(options.device, DTYPES[dtype])
    got = forward_backward(module.train(), x.to(options.device, DTYPES[dtype]))
    return error([got[0]], [wanted[0]]), error(got[1], wanted[1])


def model_errors(
    name: str, dim: int, dtype: str, options: argparse.Namespace
) -> tuple[float, float]:
    """Of the loss and of all gradients of a small model."""
    torch.manual_seed(2)
    exact = rounded(language_model(name, dim, 2), DTYPES[dtype]).train()
    model = copy.deepcopy(exact).to(options.device, DTYPES[dtype])
    ids = torch.randint(3, VOCABULARY, (4, 64))
    losses = []
    for each in (model, exact):
        there = ids.to(each.device)
        loss = each(input_ids=there, labels=there).loss
        loss.backward()
        losses.append([loss.detach()])
    got, wanted = (
        [p.grad for p in each.parameters() if p.grad is not None] for each in (model, exact)
    )
    return error(*losses), error(got, wanted)


def error(got: list[Tensor], wanted: list[Tensor]) -> float:
    """The norm of all differences over that of what is wanted."""
    pairs = [(g.double().cpu(), w) for g, w in zip(got, wanted, strict=True)]
    squares = sum(float((g - w).square().sum()) for g, w in pairs)
    return math.sqrt(squares / sum(float(w.square().sum()) for _, w in pairs))


def who_waits(name: str, dim: int, dtype: str, options: argparse.Namespace) -> str:
    """Which of forward, backward and decoding steps has the host wait for the GPU."""
    if options.device != "cuda":
        return "no GPU"
    model = language_model(name, dim, 2, options.device, dtype)
    ids = torch.randint(3, VOCABULARY, (4, 32), device=options.device)
    mask = torch.ones_like(ids)
    loss: list[Tensor] = []
    decoding = Decoding(model, ids)
    steps: dict[str, Run] = {
        "forward": lambda: loss.append(
            model.train()(input_ids=ids, attention_mask=mask, labels=ids).loss
        ),
        "backward": lambda: loss.pop().backward(),
        "decoding": decoding.step,
    }
    for step in steps.values():
        step()
    torch.cuda.synchronize()
    waiting = []
    for what, step in steps.items():
        torch.cuda.set_sync_debug_mode("error")
        try:
            step()
        except RuntimeError as problem:
            waiting.append(what)
            frames = [f for f in traceback.extract_tb(problem.__traceback__) if "headwise" in f[0]]
            CONSOLE.print(f"[red]{name}: {what} waits in {frames[-1] if frames else problem}")
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return ", ".join(waiting) or "nothing"


# Layers


def layers(options: argparse.Namespace, recorder: Recorder, ceilings: Ceilings) -> None:
    """Prints ratios to PyTorch's modules."""
    dtypes = [options.dtype, "float32"]
    for dim in options.dims:
        for dtype in dtypes:
            # In float32 MoA alone: it has another way there.
            names = options.systems if dtype == options.dtype else ["standard", "moa"]
            layers_at(dim, dtype, names, options, recorder, ceilings)


def layers_at(
    dim: int,
    dtype: str,
    names: list[str],
    options: argparse.Namespace,
    recorder: Recorder,
    ceilings: Ceilings,
) -> None:
    """Prints the table of one width."""
    x = torch.randn(options.tokens // options.time, options.time, dim, device=options.device)
    x = x.to(DTYPES[dtype])
    modules: dict[str, nn.Module] = {}
    for name, build in layer_contenders(dim, names).items():
        with tolerated(f"{name}, d={dim}"), torch.device(options.device):
            modules[name] = build().to(x.dtype).train()
    runs = {name: (lambda m=module: forward_backward(m, x)) for name, module in modules.items()}
    share = options.seconds / len(options.dims) / 2
    compiles = options.compile_routing and dim == min(options.dims)
    with patch.dict(os.environ, {} if compiles else {"HEADWISE_COMPILE": "0"}):
        times = in_turns(runs, share, options)
    heads, _, size = sizes_at(dim)
    title = (
        f"layers: d={dim}, {heads} heads, MoA {size}, {tuple(x.shape[:2])} tokens, {dtype}, "
        f"forward and backward{', routing compiled' if compiles else ''}"
    )
    table = columns(title, "layer", "ms", "over", "ratio", "GFLOP", "roofline share")
    for name, each in times.items():
        weights = sum(p.numel() for p in modules[name].parameters())
        least = (3 * weights + 4 * x.numel()) * x.element_size()
        flops = math.nan
        with tolerated(f"{name}: FLOPs"):
            flops = flops_of(runs[name])
        middle = statistics.median(each)
        baseline = (
            "encoder layer" if name in (*WHOLE_LAYERS, "torch encoder layer") else "attention"
        )
        of_baseline = times.get(f"torch {baseline}")  # none if it failed
        ratio, cell = ratio_cell(each, of_baseline) if of_baseline else (math.nan, "–")
        roofline = ceilings.seconds(flops, least, dtype) / middle
        recorder.add(
            part="layers",
            dim=dim,
            dtype=dtype,
            layer=name,
            ms=middle * 1e3,
            rounds=len(each),
            over=baseline,
            ratio=ratio,
            flops=flops,
            roofline=roofline,
        )
        cells = (f"{middle * 1e3:.2f}", baseline, cell, f"{flops / 1e9:.3g}", f"{roofline:.0%}")
        table.add_row(name, *cells)
    CONSOLE.print(table)


def layer_contenders(dim: int, names: list[str]) -> dict[str, Callable[[], nn.Module]]:
    """What builds each layer."""
    heads, head_dim, _ = sizes_at(dim)

    def jetmoe() -> nn.Module:
        module = jetmoe_attention(dim, heads, 4 * heads, head_dim)
        if module is None:
            raise ImportError("this transformers has no JetMoE")
        return Called(module, run_jetmoe)

    contenders: dict[str, Callable[[], nn.Module]] = {
        "torch attention": lambda: Called(
            nn.MultiheadAttention(dim, heads, batch_first=True),
            lambda m, x: m(x, x, x, need_weights=False)[0],
        ),
        **{name: (lambda name=name: layer_of(name, dim)) for name in names},
    }
    if "moa" in names:
        contenders["JetMoE"] = jetmoe
    if any(name in WHOLE_LAYERS for name in names):
        contenders["torch encoder layer"] = lambda: nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, dropout=0.0, batch_first=True
        )
    return contenders


class Called(nn.Module):
    """A module that is called in a way of its own."""

    def __init__(self, module: nn.Module, call: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.module = module
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        """Its output."""
        return self.call(self.module, x)


# Decoding


class Decoding:
    """Greedy search by a model, step by step, with nothing on the host but the loop."""

    def __init__(self, model: hw.CausalLM, ids: Tensor) -> None:
        self.model = model.eval()
        with torch.no_grad():
            out = self.model(input_ids=ids, use_cache=True, logits_to_keep=1)
        self.prompt = (out.logits.argmax(-1), out.cache)
        self.rewind()

    @torch.no_grad()
    def step(self) -> None:
        """Reads the last token, and chooses the next."""
        self.model.eval()
        given = {"input_ids": self.token, "cache": self.cache, "use_cache": True}
        self.token = self.model(**given, logits_to_keep=1).logits.argmax(-1)

    def rewind(self) -> None:
        """Goes back to the end of the prompt."""
        self.token, self.cache = copy.deepcopy(self.prompt)

    def run(self, steps: int) -> None:
        """Makes so many steps."""
        self.rewind()
        for _ in range(steps):
            self.step()


def decoding(options: argparse.Namespace, recorder: Recorder, ceilings: Ceilings) -> None:
    """Prints ratios to our own standard model."""
    share = options.seconds / (len(options.decoding_dims) * len(options.batches))
    for dim in options.decoding_dims:
        for batch in options.batches:
            with tolerated(f"decoding, d={dim}, batch {batch}"):
                decoding_at(dim, batch, share, options, recorder, ceilings)


def decoding_at(
    dim: int,
    batch: int,
    share: float,
    options: argparse.Namespace,
    recorder: Recorder,
    ceilings: Ceilings,
) -> None:
    """Prints the table of one width and batch."""
    ids = torch.randint(3, VOCABULARY, (batch, options.prompt), device=options.device)
    states: dict[str, Decoding] = {}
    for name in dict.fromkeys(["standard", *options.systems]):
        with tolerated(f"{name}, d={dim}, batch {batch}"):
            model = language_model(name, dim, options.depth, options.device, options.dtype)
            states[name] = Decoding(model, ids)
    runs = {name: (lambda s=state: s.run(options.steps)) for name, state in states.items()}
    with uncompiled():
        times = in_turns(runs, share, options)
    title = f"decoding: {options.depth} layers, d={dim}, batch {batch}, {options.dtype}"
    table = columns(title, "system", "ms a token", "over standard", "roofline share")
    for name, each in times.items():
        middle = statistics.median(each) / options.steps
        ratio, cell = ratio_cell(each, times["standard"])
        state = states[name]
        state.rewind()
        weights = sum(p.numel() for p in state.model.parameters())
        # A product reads a number of a weight or of the cache, which sequences may share.
        least = min(weights, flops_of(state.step) / 2) * DTYPES[options.dtype].itemsize
        roofline = ceilings.seconds(0.0, least, options.dtype) / middle
        recorder.add(
            part="decoding",
            dim=dim,
            batch=batch,
            system=name,
            ms=middle * 1e3,
            rounds=len(each),
            ratio=ratio,
            roofline=roofline,
        )
        table.add_row(name, f"{middle * 1e3:.3f}", cell, f"{roofline:.0%}")
    CONSOLE.print(table)


# Training


def training(options: argparse.Namespace, recorder: Recorder, ceilings: Ceilings) -> None:
    """Prints ratios to our own standard model."""
    share = options.seconds / len(options.decoding_dims)
    for dim in options.decoding_dims:
        with tolerated(f"training, d={dim}"):
            training_at(dim, share, options, recorder, ceilings)


def training_at(
    dim: int, share: float, options: argparse.Namespace, recorder: Recorder, ceilings: Ceilings
) -> None:
    """Prints the table of one width."""
    batch = options.tokens // options.time
    ids = torch.randint(3, VOCABULARY, (batch, options.time), device=options.device)
    runs: dict[str, Run] = {}
    for name in dict.fromkeys(["standard", *options.systems]):
        with tolerated(f"{name}, d={dim}"):
            model = language_model(name, dim, options.depth, options.device, options.dtype).train()
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, fused=True)
            runs[name] = training_step(model, optimizer, ids)
    with uncompiled(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # models are trained without their rules
        times = in_turns(runs, share, options)
    heads = sizes_at(dim)[0]
    title = (
        f"training: {options.depth} layers, d={dim}, {heads} heads, {tuple(ids.shape)} tokens, "
        f"{options.dtype}, Adam"
    )
    table = columns(title, "system", "ms", "over standard", "GFLOP", "roofline share")
    for name, each in times.items():
        flops = math.nan
        with tolerated(f"{name}: FLOPs"):
            flops = flops_of(runs[name])
        middle = statistics.median(each)
        ratio, cell = ratio_cell(each, times["standard"])
        roofline = ceilings.seconds(flops, 0.0, options.dtype) / middle
        recorder.add(
            part="training",
            dim=dim,
            system=name,
            ms=middle * 1e3,
            rounds=len(each),
            ratio=ratio,
            flops=flops,
            roofline=roofline,
        )
        table.add_row(name, f"{middle * 1e3:.1f}", cell, f"{flops / 1e9:.3g}", f"{roofline:.0%}")
    CONSOLE.print(table)


def training_step(model: hw.CausalLM, optimizer: torch.optim.Optimizer, ids: Tensor) -> Run:
    """Forward, backward and a step of the optimizer."""

    def step() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


PARTS: dict[str, Callable[[argparse.Namespace, Recorder, Ceilings], None]] = {
    "correctness": correctness,
    "layers": layers,
    "decoding": decoding,
    "training": training,
}


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--dims", type=int, nargs="+", default=[512, 2048], help="embed_dim")
    parser.add_argument(
        "--decoding-dims", type=int, nargs="+", help="of decoding and training; as --dims"
    )
    parser.add_argument("--tokens", type=int, default=8192, help="of a step of layers, training")
    parser.add_argument("--time", type=int, default=512, help="length of their sequences")
    parser.add_argument("--depth", type=int, default=6, help="layers of models")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16], help="of decoding")
    parser.add_argument("--prompt", type=int, default=64, help="tokens before decoding")
    parser.add_argument("--steps", type=int, default=32, help="of a decoding")
    parser.add_argument(
        "--compile-routing", action="store_true", help="agreement compiles, at the least width"
    )
    parser.add_argument("--rounds", type=int, default=15, help="at most")
    parser.add_argument("--seconds", type=float, default=90, help="of a part, about")
    parser.add_argument("--output", type=Path, help="a JSON file for all figures")
    options = parser.parse_args()
    options.decoding_dims = options.decoding_dims or options.dims
    return options


if __name__ == "__main__":
    main()
