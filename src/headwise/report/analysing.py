"""`headwise.analyse` and `headwise analyse`: of a model, of runs, and of models on a text."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import length_hint
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import DataLoader

from headwise.analysis.ablations import (
    Level,
    Quality,
    ablate,
    item_quality,
    loss_quality,
    task_quality,
)
from headwise.analysis.decisions import Batch, Describe, collect
from headwise.data.load import lines
from headwise.data.tokenizers import token_names
from headwise.pretrained.gates import with_identity_gates
from headwise.pretrained.layouts import HeadLayout
from headwise.report.analysis import Analysis, write_analyses
from headwise.report.text_models import (
    check_finite,
    describe_tokens,
    hide_words,
    longest_input,
    open_transformers_model,
    text_batch,
    text_task,
)
from headwise.runs.evaluate import FinishedRun, applied_ablations, check_same_items, open_run
from headwise.runs.folder import distinct_names, read_result
from headwise.runs.names import is_transformers_model
from headwise.training.console import bars, say_begin

MOST_TOKENS = 20_000  # of a text: an analysis makes a pass for each head


def analyse(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    tokens: str | None = None,
    names: Callable[[int], str] = str,
    quality: Callable[[], Any] | None = None,
    higher_is_better: bool = True,
    level: Level = "units",
    name: str = "model",
    layouts: Mapping[str, HeadLayout] | None = None,
) -> Analysis:
    """Analyses what the heads of a model do on data, and what each of them is worth.

    The batches are read once. Then `quality` measures the model once without any change, and once
    for each ablation: each edit of all systems of a kind, and each head and expert removed. Model
    and gradients are as before afterwards.

    Args:
        model: a headwise model, a plain model of transformers, or any module that holds systems of
            headwise or of your own. It is in evaluation mode meanwhile.
        batches: keyword arguments of its forward, batch by batch: a list, a `DataLoader`, or
            anything else that can be gone through once. Positions where `attention_mask` is 0 are
            padding. In the decoder of an encoder-decoder model, so are labels of -100 at the end.
        tokens: name of the argument with the numbers of tokens, `(batch, time)`; those of a decoder
            are its `decoder_input_ids`. Negative numbers are no tokens.
        names: returns the name of a token, such as `tokenizer.convert_ids_to_tokens`; by default
            its number.
        quality: a function that measures the model at the time of the call. It returns a number for
            each test item, always in the same order; or a total and a count for each, `(items, 2)`,
            such as the loss of its tokens and their number. Without it, nothing is ablated.
        higher_is_better: whether larger numbers of `quality` are better: not of losses.
        level: `"model"`: only what changes all systems of a kind at once is ablated; `"units"`:
            each unit is removed too; `"none"`: nothing is ablated.
        name: of the model, as the page shows it.
        layouts: as in `headwise.gate_heads`.

    Raises:
        ValueError: the model holds no system; there are no batches; a batch lacks what `tokens`
            names; or `quality` returns another shape.

    Example:
        >>> import torch
        >>> import headwise as hw
        >>> model = hw.CausalLM(hw.CausalLMConfig(vocab_size=9, embed_dim=8, num_heads=2,
        ...                                       ffn_dim=8, layers=1, attention="mae"))
        >>> batches = [{"input_ids": torch.randint(9, (3, 20))} for _ in range(2)]
        >>> analysis = hw.analyse(model, batches, tokens="input_ids")
        >>> analysis.decisions[0].weights.shape
        (120, 2)
    """
    console = Console(stderr=True)
    describe = describe_tokens(names, argument=tokens) if tokens is not None else None
    mean_quality = item_quality(quality, higher_is_better=higher_is_better) if quality else None
    with with_identity_gates(model, layouts):
        analysis = _analyse_model(model, batches, describe, mean_quality, level, name, console)
    if analysis.decisions:
        analysis.data = f"{analysis.decisions[0].sequences:,} sequences"
    return analysis


def analyse_runs(
    models: Sequence[Path],
    folder: Path,
    console: Console,
    *,
    split: str = "test",
    changes: Sequence[str] = (),
    level: Level = "units",
    text: Path | None = None,
    command: str = "",
) -> list[Analysis]:
    """Analyses finished runs on the same data, or language models on a text, and writes the page.

    Args:
        models: folders of runs; with a text, folders of models of transformers, or names on the
            hub.
        folder: of the page.
        console: for progress.
        split, changes: of the data of the runs, see `open_run`.
        level: of the ablations, see `analyse`.
        text: a file that language models of no run read line by line.
        command: the command line, for the page.
    """
    folders = list({model.resolve(): model for model in models}.values())
    names = distinct_names(folders)
    transformers_models = [model for model in folders if is_transformers_model(model)]
    if transformers_models and text is None:
        first = transformers_models[0]
        kind = "is a model" if first.is_dir() else "is no folder, at best a model on the hub"
        raise ValueError(f"{first} {kind}, which has no data: add --text FILE for it to read")
    if text is None:
        runs = [open_run(folder, split, console, changes) for folder in folders]
        for other in runs[1:]:
            check_same_items(runs[0], other)
        named_runs = zip(runs, names, strict=True)
        analyses = [_analyse_run(run, name, level, console) for run, name in named_runs]
    elif transformers_models != folders or changes or split != "test":
        raise ValueError(
            "--text is given, expected models of no run alone, and neither --set nor --split: "
            "a run reads its own data, which these options change"
        )
    else:
        pairs = zip(folders, names, strict=True)
        analyses = [_analyse_text(model, name, text, level, console) for model, name in pairs]
    write_analyses(analyses, folder, command)
    return analyses


# --- one model --------------------------------------------------------------------------------


def _analyse_run(run: FinishedRun, name: str, level: Level, console: Console) -> Analysis:
    model, task = run.read_model(), run.task
    check_finite(model, run.folder)
    items, evaluation = task.stored_items(run.split), run.recipe.evaluation
    indices = task.batches(run.split, run.recipe.training.batch_tokens)
    indices = [indices[number] for number in np.random.default_rng(0).permutation(len(indices))]
    batches = DataLoader(items, batch_sampler=indices, collate_fn=task.collate)  # it has a length
    with applied_ablations(model, evaluation, console, name):
        quality = task_quality(model, task, run.split, evaluation)
        analysis = _analyse_model(model, batches, task.describe, quality, level, name, console)
    analysis.data = f"{run.split}, {len(items):,} {task.item_name}"
    if analysis.decisions and analysis.decisions[0].sequences < len(items):
        analysis.data += f", of which {analysis.decisions[0].sequences:,} for all but the ablations"
    if (result := read_result(run.folder)) is not None:
        analysis.history = result.history
    return analysis


def _analyse_text(folder: Path, name: str, file: Path, level: Level, console: Console) -> Analysis:
    model, tokenizer = open_transformers_model(folder)
    batches, describe = _read_lines(model, tokenizer, file), describe_tokens(token_names(tokenizer))
    quality = loss_quality(model, batches)
    with with_identity_gates(model):
        analysis = _analyse_model(model, batches, describe, quality, level, name, console)
    tokens = sum(batch["input_ids"].numel() for batch in batches)
    analysis.data = f"{file.name}, the first {len(batches):,} lines, {tokens:,} tokens"
    if (longest := longest_input(model, tokenizer)) is not None:
        analysis.data += f", at most {longest:,} of a line"
    return analysis


def _read_lines(model: Any, tokenizer: Any, file: Path) -> list[dict[str, Tensor]]:
    """Reads the lines of a text as batches of one, with labels, up to 20,000 tokens.

    Raises:
        ValueError: the model is no language model, or the file has no text.
    """
    task, batches, tokens = text_task(model), [], 0
    if task not in ("language-modelling", "masked-language-modelling"):
        raise ValueError(
            f"--text is for language models, but the model is a {type(model).__name__}: give "
            f"headwise.analyse its batches in Python"
        )
    for line in lines(str(file)):
        if not line.strip() or tokens >= MOST_TOKENS:
            continue
        batch = text_batch(model, tokenizer, line)
        if task == "masked-language-modelling":
            batch = hide_words(batch, tokenizer)
        tokens += batch["input_ids"].numel()
        batches.append(batch)
    if not batches:
        raise ValueError(f"{file} is empty, expected a text with an item in each line")
    return batches


def _analyse_model(
    model: nn.Module,
    batches: Iterable[Batch],
    describe: Describe | None,
    quality: Quality | None,
    level: Level,
    name: str,
    console: Console,
) -> Analysis:
    """Reads the batches, then evaluates the ablations, with a bar for each."""
    ablations = None
    with bars(console, transient=True) as progress:
        say_begin(console, f"{name}: batches are read")
        bar = progress.add_task(name, total=length_hint(batches) or None, figures="batches read")
        decisions = collect(model, progress.track(batches, task_id=bar), describe)
    if quality is not None and level != "none":
        with bars(console, transient=True) as progress:
            say_begin(console, f"{name}: ablations are evaluated one by one")
            bar = progress.add_task(name, total=None, figures="ablations")
            ablations = ablate(model, quality, level, track=partial(progress.track, task_id=bar))
    return Analysis(decisions, ablations, name)
