"""Several systems of a recipe under one budget, side by side."""

import os
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console

from headwise.analysis.cost import count_parameters
from headwise.analysis.results import Comparison, PairedTest, RunResult, Sample, SystemSummary
from headwise.analysis.speed import relative_step_times
from headwise.experiment import (
    TRANSLATIONS,
    Data,
    claim_folder,
    is_main_process,
    model_config,
    prepare_data,
    train_system,
    with_seed,
)
from headwise.matching import match_parameters
from headwise.models.seq2seq import Seq2SeqLM
from headwise.recipe import ModelSettings, Recipe, RecipeFile, to_yaml
from headwise.tasks.corpora import Corpus, Pair
from headwise.tasks.metrics import EvaluationSettings, compare_to_baseline
from headwise.training.run import MODEL


def compare_systems(
    file: RecipeFile,
    systems: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    command: str,
    console: Console,
    *,
    match: bool = False,
) -> Comparison | None:
    """Train every system with every seed under one budget and put the figures side by side.

    What `folder` already holds is not trained again; the first system is the baseline, and with
    `match` the others are made as large as it is. With several processes only the main one gets a
    comparison, the others None.
    """
    file.check_comparable()
    recipes = {name: file.system(name) for name in systems}
    # Other systems and seeds may join later, but on the same data and vocabularies.
    shared = file.recipe.model_copy(update={"systems": {}})
    claim_folder(folder, shared, stamp_name="comparison.yaml")
    data = prepare_data(next(iter(recipes.values())), folder, console)
    matched: dict[str, str] = {}
    if match:
        recipes, matched = _match_parameters(recipes, data)
        for name, choice in matched.items():
            console.print(f"{name}: {choice}", style="dim", highlight=False, markup=False)
    runs: dict[str, list[RunResult]] = {name: [] for name in systems}
    for seed in seeds:
        for name, recipe in recipes.items():
            recipe = with_seed(recipe, seed)
            runs[name].append(
                train_system(recipe, name, folder / f"{name}-seed{seed}", data, console)
            )
    if dist.is_initialized():
        dist.destroy_process_group()  # from here on the main process works alone
    if not is_main_process():
        return None
    first = {name: folder / f"{name}-seed{seeds[0]}" for name in systems}
    translations = {
        name: (run / TRANSLATIONS).read_text(encoding="utf-8").split("\n")[:-1]
        for name, run in first.items()
    }
    times = _step_times(recipes, first, data)
    tests = _paired_tests(translations, data.corpus, next(iter(recipes.values())).evaluation)
    return Comparison(
        title=f"{file.name}: {', '.join(systems)}",
        baseline=systems[0],
        systems=[
            SystemSummary(
                name=name,
                description=file.recipe.systems[name].description,
                runs=runs[name],
                relative_step_time=times[name],
                paired_test=tests.get(name),
                matched=matched.get(name, ""),
            )
            for name in systems
        ],
        samples=_samples(data.corpus.test, translations),
        corpus=_corpus_facts(data),
        recipe=to_yaml(file.recipe),
        command=command,
        versions=_versions(),
        machine=_machine(),
    )


def _match_parameters(
    recipes: Mapping[str, Recipe], data: Data
) -> tuple[dict[str, Recipe], dict[str, str]]:
    """The recipes, widened or narrowed to the first one's size, and what was chosen for each."""

    def count(model: ModelSettings) -> int:
        with torch.device("meta"):
            return count_parameters(Seq2SeqLM(model_config(model, data.tokenizer)))

    baseline, *others = recipes
    target = count(recipes[baseline].model)
    sized, chosen = dict(recipes), {}
    for name in others:
        try:
            match = match_parameters(recipes[name].model, target, count)
        except ValueError as error:
            raise ValueError(f"--match parameters: {name}: {error}") from None
        chosen[name] = match.explain(recipes[name].model, target)
        sized[name] = recipes[name].model_copy(update={"model": match.model})
    return sized, chosen


def _step_times(
    recipes: Mapping[str, Recipe], runs: Mapping[str, Path], data: Data
) -> dict[str, float]:
    loader = data.batches(data.train, next(iter(recipes.values())), seed=0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batches = [
        {name: tensor.to(device) for name, tensor in batch.items()}
        for batch, _ in zip(loader, range(3), strict=False)
    ]
    models = {name: Seq2SeqLM.from_pretrained(run / MODEL).to(device) for name, run in runs.items()}
    gates = {name: recipe.training.gates for name, recipe in recipes.items()}
    return relative_step_times(models, gates, batches)


def _paired_tests(
    translations: Mapping[str, list[str]], corpus: Corpus, settings: EvaluationSettings
) -> dict[str, PairedTest]:
    baseline, *others = translations
    found = compare_to_baseline(
        translations[baseline],
        {name: translations[name] for name in others},
        [pair.target for pair in corpus.test],
        settings,
        language=corpus.target_language,
    )
    return {
        name: PairedTest(
            baseline=baseline, bleu_difference=test.bleu_delta, p_value=test.bleu_p_value
        )
        for name, test in found.items()
    }


def _samples(pairs: Sequence[Pair], translations: Mapping[str, list[str]]) -> list[Sample]:
    """Twelve sentences spread over the test part, of some length, identical outputs last."""
    candidates = [i for i, pair in enumerate(pairs) if len(pair.source.split()) >= 4]
    step = max(1, len(candidates) // 24)
    spread = candidates[::step][:24]
    spread.sort(key=lambda i: len({texts[i] for texts in translations.values()}) == 1)
    return [
        Sample(
            source=pairs[i].source,
            reference=pairs[i].target,
            translations={name: texts[i] for name, texts in translations.items()},
        )
        for i in spread[:12]
    ]


def _corpus_facts(data: Data) -> dict[str, str]:
    tokenizer = data.tokenizer
    vocabulary = f"{tokenizer.source_vocab_size:,} subwords, joint"
    if not tokenizer.is_joint:
        vocabulary = (
            f"{tokenizer.source_vocab_size:,} source and {tokenizer.target_vocab_size:,} target "
            f"subwords"
        )
    origin, *parts = data.corpus.notes.summary()
    facts = {"corpus": origin}
    facts |= dict(part.split(": ", 1) for part in parts)
    return {**facts, "vocabulary": vocabulary}


def _versions() -> dict[str, str]:
    packages = ("headwise", "torch", "transformers", "tokenizers", "sacrebleu")
    return {"python": platform.python_version()} | {p: metadata.version(p) for p in packages}


def _machine() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}"
    return f"CPU, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
