"""`headwise.analyse` and `headwise analyse`: of a model, of runs, and of models on a text."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import length_hint
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import DataLoader

from headwise.analysis.ablations import Level, Quality, ablate, of_loss, of_numbers, of_task
from headwise.analysis.decisions import Batch, Describe, collect
from headwise.data.load import lines
from headwise.pretrained.gates import with_identity_gates
from headwise.pretrained.layouts import HeadLayout
from headwise.report.analysis import Analysis, write_analyses
from headwise.report.text_models import (
    check_finite,
    describe_text,
    hide_words,
    longest_input,
    open_plain,
    text_batch,
    text_task,
)
from headwise.runs.evaluate import FinishedRun, as_evaluated, check_same_items, open_run
from headwise.runs.folder import distinct_names, read_result
from headwise.runs.names import is_plain
from headwise.tasks.task import Positions
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
    described = _described(tokens, names) if tokens is not None else None
    measured = of_numbers(quality, higher_is_better=higher_is_better) if quality else None
    with with_identity_gates(model, layouts):
        found = _analysed(model, batches, described, measured, level, name, console)
    found.data = f"{found.decisions[0].sequences:,} sequences" if found.decisions else ""
    return found


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
    plain = [model for model in folders if is_plain(model)]
    if plain and text is None:
        kind = "is a model" if plain[0].is_dir() else "is no folder, at best a model on the hub"
        raise ValueError(f"{plain[0]} {kind}, which has no data: add --text FILE for it to read")
    if text is None:
        opened = [open_run(run, split, console, changes) for run in folders]
        for other in opened[1:]:
            check_same_items(opened[0], other)
        found = [
            _of_run(run, name, level, console) for run, name in zip(opened, names, strict=True)
        ]
    elif plain != folders or changes or split != "test":
        raise ValueError(
            "--text is given, expected models of no run alone, and neither --set nor --split: "
            "a run reads its own data, which these options change"
        )
    else:
        pairs = zip(folders, names, strict=True)
        found = [_of_text(model, name, text, level, console) for model, name in pairs]
    write_analyses(found, folder, command)
    return found


# --- one model --------------------------------------------------------------------------------


def _of_run(opened: FinishedRun, name: str, level: Level, console: Console) -> Analysis:
    model, task = opened.read_model(), opened.task
    check_finite(model, opened.folder)
    items, evaluation = task.stored(opened.split), opened.recipe.evaluation
    order = task.batches(opened.split, opened.recipe.training.batch_tokens)
    order = [order[number] for number in np.random.default_rng(0).permutation(len(order))]
    batches = DataLoader(items, batch_sampler=order, collate_fn=task.collate)  # it has a length
    with as_evaluated(model, evaluation, console, name):
        quality = of_task(model, task, opened.split, evaluation)
        found = _analysed(model, batches, task.describe, quality, level, name, console)
    found.data = f"{opened.split}, {len(items):,} {task.item_name}"
    if found.decisions and found.decisions[0].sequences < len(items):
        found.data += f", of which {found.decisions[0].sequences:,} for all but the ablations"
    result = read_result(opened.folder)
    found.history = result.history if result else ()
    return found


def _of_text(model_name: Path, name: str, file: Path, level: Level, console: Console) -> Analysis:
    model, tokenizer = open_plain(model_name)
    batches = _lines(model, tokenizer, file)
    quality = of_loss(model, batches)
    with with_identity_gates(model):
        found = _analysed(model, batches, describe_text(tokenizer), quality, level, name, console)
    tokens = sum(batch["input_ids"].numel() for batch in batches)
    found.data = f"{file.name}, the first {len(batches):,} lines, {tokens:,} tokens"
    if (longest := longest_input(model, tokenizer)) is not None:
        found.data += f", at most {longest:,} of a line"
    return found


def _lines(model: Any, tokenizer: Any, file: Path) -> list[dict[str, Tensor]]:
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


def _analysed(
    model: nn.Module,
    batches: Iterable[Batch],
    describe: Describe | None,
    quality: Quality | None,
    level: Level,
    name: str,
    console: Console,
) -> Analysis:
    """Reads the batches, then evaluates the ablations, with a bar for each."""
    table = None
    with bars(console, transient=True) as shown:
        say_begin(console, f"{name}: batches are read")
        bar = shown.add_task(name, total=length_hint(batches) or None, figures="batches read")
        decisions = collect(model, shown.track(batches, task_id=bar), describe)
    if quality is not None and level != "none":
        with bars(console, transient=True) as shown:
            say_begin(console, f"{name}: ablations are evaluated one by one")
            bar = shown.add_task(name, total=None, figures="ablations")
            table = ablate(model, quality, level, track=lambda each: shown.track(each, task_id=bar))
    return Analysis(decisions, table, name)


def _described(tokens: str, names: Callable[[int], str]) -> Describe:
    """Returns a function that finds the tokens of a batch, also those that a decoder reads."""

    def describe(batch: Batch) -> dict[str, Positions]:
        if tokens not in batch:
            raise ValueError(
                f"tokens names {tokens!r}, which a batch lacks: it has {', '.join(batch)}"
            )
        found = {}
        for stack, argument in (("encoder", tokens), ("decoder", "decoder_input_ids")):
            if argument in batch:
                known = {n: str(names(n)) for n in batch[argument].unique().tolist() if n >= 0}
                found[stack] = Positions(batch[argument].shape, batch[argument], known)
        return found

    return describe
