"""One system of a recipe, trained and evaluated.

A run lives in a folder of its own:

    recipe.yaml         what it is a run of; nothing else is ever trained in the folder
    corpus.sha256       and on what data (of a comparison: in the folder above)
    tokenizer/          the vocabularies
    checkpoint-N/       what it resumes from
    model/              the final model, a Hugging Face folder
    translations.txt    of the test part, one a line
    result.json         figures; once it is there the run is finished
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from safetensors import SafetensorError
from transformers import set_seed

from headwise.analysis.cost import count_macs, count_parameters
from headwise.analysis.recording import record_attention
from headwise.analysis.results import BranchTrajectory, RunResult, Score
from headwise.files import write_text
from headwise.models.config import Seq2SeqConfig
from headwise.models.seq2seq import Seq2SeqLM
from headwise.models.sites import attention_sites
from headwise.recipe import ModelSettings, Recipe, differences, load_recipe, to_yaml, with_defaults
from headwise.tasks.corpora import PARTS, Corpus, Pair, load_corpus
from headwise.tasks.metrics import EvaluationSettings, TranslationScore, score
from headwise.tasks.tokenization import TranslationTokenizer
from headwise.tasks.translating import translate
from headwise.tasks.translation import TranslationDataset, TranslationItem, collate
from headwise.training.batching import BatchLoader, TokenBudgetSampler
from headwise.training.branches import branched_attentions
from headwise.training.run import MODEL, run_training
from headwise.training.validation import validation_loss

RECIPE, CORPUS, TOKENIZER, TRANSLATIONS, RESULT = (
    "recipe.yaml",
    "corpus.sha256",
    "tokenizer",
    "translations.txt",
    "result.json",
)
MACS_LENGTHS = (10, 10)  # those of the MoA paper's tables


class FolderError(ValueError):
    """An output folder that holds something else; the message says what."""


@dataclass
class Data:
    """A corpus with its vocabularies and encoded parts."""

    corpus: Corpus
    tokenizer: TranslationTokenizer
    train: TranslationDataset
    validation: TranslationDataset
    test: TranslationDataset

    def collate(self, items: Sequence[TranslationItem]) -> dict[str, torch.Tensor]:
        """Joins items into a batch."""
        return collate(items, self.tokenizer.pad_token_id)

    def batches(
        self, part: TranslationDataset, recipe: Recipe, seed: int | None = None
    ) -> BatchLoader:
        """The batches of one part; in a fixed order without a seed."""
        sampler = TokenBudgetSampler(
            part.lengths, recipe.training.batch_tokens, seed=seed or 0, shuffle=seed is not None
        )
        return BatchLoader(part, sampler, self.collate)


def prepare_data(recipe: Recipe, folder: Path, console: Console) -> Data:
    """Read the corpus; learn the vocabularies, or load those that `folder` has."""
    corpus = load_corpus(recipe.data)
    for line in corpus.notes.summary():
        console.print(line, style="dim", highlight=False, markup=False)
    _check_same_corpus(corpus, folder)
    if (folder / TOKENIZER).is_dir():
        tokenizer = TranslationTokenizer.load(folder / TOKENIZER)
    else:
        tokenizer = TranslationTokenizer.train(corpus.train, recipe.tokenizer)
        if is_main_process():
            tokenizer.save(folder / TOKENIZER)
    parts = (corpus.train, corpus.validation, corpus.test)
    return Data(corpus, tokenizer, *(TranslationDataset(part, tokenizer) for part in parts))


def _check_same_corpus(corpus: Corpus, folder: Path) -> None:
    """Raise `FolderError` if the runs in `folder` were started on other data."""
    digest = hashlib.sha256()
    for part in PARTS:
        for pair in getattr(corpus, part):
            digest.update("\0".join((part, *pair, "")).encode("utf-8", "surrogatepass"))
    stamp = folder / CORPUS
    if not stamp.is_file():
        if is_main_process():
            write_text(stamp, digest.hexdigest() + "\n")
    elif stamp.read_text(encoding="utf-8").strip() != digest.hexdigest():
        raise FolderError(
            f"{folder} holds runs on other data: the corpus has changed since they were started; "
            f"use another output folder"
        )


def build_model(recipe: Recipe, tokenizer: TranslationTokenizer) -> Seq2SeqLM:
    """The model of a recipe, its weights drawn by the recipe's seed."""
    set_seed(recipe.training.seed)
    return Seq2SeqLM(model_config(recipe.model, tokenizer))


def model_config(model: ModelSettings, tokenizer: TranslationTokenizer) -> Seq2SeqConfig:
    """A recipe's model with the vocabularies that were learned for it."""
    return model.config(
        tokenizer.source_vocab_size,
        tokenizer.target_vocab_size,
        joint=tokenizer.is_joint,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )


def train_system(
    recipe: Recipe, name: str, folder: Path, data: Data, console: Console
) -> RunResult:
    """Train and evaluate one system in `folder`, from wherever an earlier start got to.

    Raises:
        FolderError: the folder is that of another run.
        Interrupted: Ctrl-C came; the next call goes on.
    """
    claim_folder(folder, recipe)
    if (folder / RESULT).is_file():
        return _read_result(folder / RESULT)
    if not (folder / TOKENIZER).is_dir() and is_main_process():
        data.tokenizer.save(folder / TOKENIZER)
    for part in (data.validation, data.test):
        data.batches(part, recipe)  # a sequence above batch_tokens is found before training
    run = run_training(
        build_model(recipe, data.tokenizer),
        data.train,
        data.validation,
        data.collate,
        recipe.training,
        folder,
        label=name,
        console=console,
    )
    model = run.model
    assert isinstance(model, Seq2SeqLM)
    translations, scored = evaluate_system(
        model, data.tokenizer, data.corpus.test, recipe.evaluation, data.corpus, console, name
    )
    result = RunResult(
        system=name,
        seed=recipe.training.seed,
        parameters=count_parameters(model),
        macs=count_macs(model, *MACS_LENGTHS),
        macs_lengths=MACS_LENGTHS,
        steps=run.steps,
        seconds=run.history[-1]["seconds"],
        validation_loss=validation_loss(model, data.batches(data.validation, recipe)),
        history=[
            {key: record[key] for key in ("step", "loss", "eval_loss", "seconds") if key in record}
            for record in run.history
            if "loss" in record or "eval_loss" in record
        ],
        score=_score_record(scored),
        attention=record_attention(model, data.batches(data.test, recipe)),
        branches=_trajectories(model, run.history),
    )
    if is_main_process():
        write_text(folder / TRANSLATIONS, "\n".join(translations) + "\n")
        write_text(folder / RESULT, result.model_dump_json(indent=1))
    return result


def _trajectories(model: Seq2SeqLM, history: Sequence[Mapping[str, Any]]) -> list[BranchTrajectory]:
    """How κ and α of each weighted attention moved while training; empty without any."""
    records = [record for record in history if "branches" in record]
    return [
        BranchTrajectory(
            site=place.site,
            layer=place.layer,
            steps=[record["step"] for record in records],
            kappa=[record["branches"][place.path]["kappa"] for record in records],
            alpha=[record["branches"][place.path]["alpha"] for record in records],
        )
        for place in attention_sites(model)
        if records and place.path in records[0]["branches"]
    ]


def _read_result(path: Path) -> RunResult:
    try:
        return RunResult.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        problem = error.errors()[0]["msg"]
        raise FolderError(
            f"{path} cannot be read ({problem}): delete it, and the same command evaluates the "
            f"run again from its checkpoints"
        ) from error


def evaluate_system(
    model: Seq2SeqLM,
    tokenizer: TranslationTokenizer,
    pairs: Sequence[Pair],
    settings: EvaluationSettings,
    corpus: Corpus,
    console: Console,
    label: str,
) -> tuple[list[str], TranslationScore]:
    """Translate the pairs' sources, with a bar, and score them against their targets."""
    if settings.branches != "learned" and not branched_attentions(model):
        console.print(
            f"evaluation.branches is {settings.branches}, which changes nothing: {label} has no "
            f"weighted branches",
            style="yellow",
            highlight=False,
        )
    with Progress(
        TextColumn("[bold]{task.description:<12}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("sentences translated"),
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task(label, total=len(pairs))
        translations = translate(
            model,
            tokenizer,
            [pair.source for pair in pairs],
            settings,
            advance=lambda count: progress.advance(task, count),
        )
    references = [pair.target for pair in pairs]
    scored = score(translations, references, settings, language=corpus.target_language)
    return translations, scored


def open_run(
    folder: Path, changes: Sequence[str] = ()
) -> tuple[Recipe, Seq2SeqLM, TranslationTokenizer]:
    """The recipe, the final model and the vocabularies of a run.

    Args:
        folder: of the run.
        changes: to its recipe, as `--set` takes them.

    Raises:
        FolderError: it is none, or it is not finished.
    """
    inside = sorted(path.parent.name for path in folder.glob(f"*/{MODEL}"))
    if inside and not (folder / MODEL).exists():
        raise FolderError(f"{folder} holds several runs, name one of them: {', '.join(inside)}")
    for name, what in ((RECIPE, "a run of headwise"), (MODEL, "finished"), (TOKENIZER, "whole")):
        if not (folder / name).exists():
            raise FolderError(
                f"{folder} is not {what}: it has no {name}; name the folder of a run that "
                f"`headwise train` or `headwise compare` has finished"
            )
    recipe = load_recipe(str(folder / RECIPE), changes).recipe
    try:
        model = Seq2SeqLM.from_pretrained(folder / MODEL)
    except (SafetensorError, OSError, ValueError) as error:
        raise FolderError(
            f"{folder / MODEL} cannot be read ({error}): delete {RESULT} from {folder}, if it is "
            f"there, and start the run again, which writes the model anew from its checkpoints"
        ) from error
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    return recipe, model, TranslationTokenizer.load(folder / TOKENIZER)


def with_seed(recipe: Recipe, seed: int) -> Recipe:
    """The recipe with another seed."""
    training = recipe.training.model_copy(update={"seed": seed})
    return recipe.model_copy(update={"training": training})


def claim_folder(folder: Path, recipe: Recipe, stamp_name: str = RECIPE) -> None:
    """Make `folder` the folder of this recipe's run, or find that it is.

    A comparison stamps its folder with another name than a run does.

    Raises:
        FolderError: it holds the run of another recipe (says how they differ), or other things.
    """
    text = to_yaml(recipe)
    stamp = folder / stamp_name
    if not is_main_process():
        return
    if stamp.is_file():
        changed = differences(with_defaults(stamp.read_text(encoding="utf-8")), text)
        changed = [line for line in changed if not line.startswith("description:")]
        if changed:
            raise FolderError(
                f"{folder} holds a run of another recipe:\n  "
                + "\n  ".join(changed)
                + "\nUse the recipe it was started with, or another output folder."
            )
        return
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is a file: use another output folder")
    strangers = sorted(p.name for p in folder.glob("[!.]*"))
    if strangers:
        shown = ", ".join(strangers[:3]) + (", ..." if len(strangers) > 3 else "")
        raise FolderError(
            f"{folder} holds other things ({shown}) and no {stamp_name}: use another output folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_text(stamp, text)


def _score_record(scored: TranslationScore) -> Score:
    return Score(
        bleu=scored.bleu,
        bleu_low=scored.bleu_interval[0],
        bleu_high=scored.bleu_interval[1],
        chrf=scored.chrf,
        bleu_signature=scored.bleu_signature,
        chrf_signature=scored.chrf_signature,
    )


def is_main_process() -> bool:
    """Whether this is the process that prints and writes; the only one without `torchrun`."""
    return int(os.environ.get("RANK", "0")) == 0
