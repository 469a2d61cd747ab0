"""One system of a recipe, trained and evaluated, whatever the task.

A run lives in a folder of its own:

    recipe.yaml         what it is a run of; nothing else is ever trained in the folder
    corpus.sha256       and on what data (of a comparison: in the folder above)
    tokenizer/, ...     what encodes the data
    checkpoint-N/       what it resumes from
    model/              the final model, a Hugging Face folder
    outputs.txt         what it wrote for the test part, one a line, where it writes
    pictures/           and what it drew
    outcome.json        all that its evaluation gave
    outcome-NAME.json   and all that its evaluation on the further test set NAME gave, with
                        outputs-NAME.txt and pictures-NAME/; these may be added later
    result.json         figures; once it is there the run is finished
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import BaseModel, ValidationError
from rich.console import Console
from safetensors import SafetensorError
from transformers import set_seed

from headwise.analysis.cost import count_macs, count_parameters
from headwise.analysis.former_results import without_former_keys
from headwise.analysis.recording import record_attention
from headwise.analysis.results import Course, EarlyStop, RunResult
from headwise.files import write_bytes, write_text
from headwise.models.ablation import LEARNED, ablated, held_systems
from headwise.models.base import HeadwiseModel
from headwise.models.config import TransformerConfig
from headwise.models.plan import rules_by_name, system_name
from headwise.models.sites import attention_sites
from headwise.recipe import differences, load_recipe, to_yaml, with_defaults
from headwise.recipe.catalogue import task_class
from headwise.recipe.settings import EvaluationSettings, ModelSettings, Recipe
from headwise.tasks.outcome import Outcome, Score
from headwise.tasks.task import Items, Task
from headwise.training.batching import BatchLoader, TokenBudgetSampler
from headwise.training.progress import RunBars
from headwise.training.run import MODEL, Run, run_training
from headwise.training.settings import TrainingSettings
from headwise.training.validation import validation_loss

TEST = "test"  # the name of the test part
RECIPE, CORPUS, RESULT = "recipe.yaml", "corpus.sha256", "result.json"
OUTPUTS, PICTURES, OUTCOME = "outputs.txt", "pictures", "outcome.json"
# Differences in these keys make no other run.
_NOT_OF_TRAINING = ("description:", "data.tests.")
_Record = TypeVar("_Record", bound=BaseModel)


class FolderError(ValueError):
    """An output folder that holds something else; the message says what."""


def prepare_task(
    recipe: Recipe,
    folder: Path,
    console: Console,
    *,
    claimed: Recipe | None = None,
    stamp_name: str = RECIPE,
) -> Task:
    """Read a recipe's data and learn what encodes them, or load what `folder` has.

    Args:
        recipe: says which data.
        folder: becomes that of `claimed`, once the data have been read.
        console: for facts about the data.
        claimed: by default the recipe; a comparison's folder is that of several.
        stamp_name: as in `claim_folder`.

    Raises:
        FolderError: the runs in `folder` were started on other data, or it is of something else.
    """
    claimed = claimed or recipe
    check_folder(folder, claimed, stamp_name)
    task = task_class(recipe.task).prepare(recipe, folder)
    for label, words in task.notes.items():
        console.print(f"{label}: {words}", style="dim", highlight=False, markup=False)
    if is_other_data(task, folder):
        raise FolderError(
            f"{folder} holds runs on other data: the corpus has changed since they were started; "
            f"use another output folder"
        )
    claim_folder(folder, claimed, stamp_name)
    if is_main_process() and not (folder / CORPUS).is_file():
        task.save(folder)
        write_text(folder / CORPUS, task.digest() + "\n")
    return task


def is_other_data(task: Task, folder: Path) -> bool:
    """Whether the runs in a folder were started on other data than these."""
    stamp = folder / CORPUS
    return stamp.is_file() and stamp.read_text(encoding="utf-8").strip() != task.digest()


def batches(
    task: Task, part: Items, settings: TrainingSettings, seed: int | None = None
) -> BatchLoader:
    """The batches of one part; in a fixed order without a seed."""
    sampler = TokenBudgetSampler(
        part.lengths, settings.batch_tokens, seed=seed or 0, shuffle=seed is not None
    )
    return BatchLoader(part, sampler, task.collate)


def build_model(recipe: Recipe, task: Task) -> HeadwiseModel:
    """Returns the model of a recipe, initialised from the recipe's seed."""
    set_seed(recipe.training.seed)
    return task.build_model(recipe.model)


def empty_model(settings: ModelSettings, task: Task) -> HeadwiseModel:
    """Returns a model that has no memory for its weights: to count them, or to see its systems."""
    with torch.device("meta"):
        return task.model_class(task.model_config(settings))


def train_system(
    recipe: Recipe, name: str, folder: Path, task: Task, console: Console, label: str = ""
) -> RunResult:
    """Train and evaluate one system in `folder`, from wherever an earlier start got to.

    Args:
        recipe: of the system.
        name: of the system.
        folder: of the run.
        task: the recipe's data.
        console: for the bars.
        label: what they call the run; by default the name.

    Raises:
        FolderError: the folder is that of another run.
        Interrupted: Ctrl-C came; the next call goes on.
    """
    claim_folder(folder, recipe)
    finished = finished_result(recipe, folder, task, console, label or name)
    if finished is not None:
        return finished
    if is_main_process():
        task.save(folder)
    run = train_model(recipe, folder, task, console, label or name)
    assert isinstance(run.model, HeadwiseModel)
    model = run.model
    outcome = evaluate(model, task, task.test, recipe.evaluation, console, label or name)
    result = RunResult(
        system=name,
        seed=recipe.training.seed,
        parameters=count_parameters(model),
        macs=count_macs(model, task.cost_lengths(recipe)),
        macs_lengths=task.cost_lengths(recipe),
        steps=run.steps,
        early_stop=EarlyStop(planned_steps=run.planned_steps, best_step=run.best_step)
        if run.stopped_early
        else None,
        seconds=run.history[-1]["seconds"],
        threads=list(dict.fromkeys(r["threads"] for r in run.history if "threads" in r)),
        validation_loss=validation_loss(model, batches(task, task.validation, recipe.training)),
        history=curves(run.history),
        scores=outcome.scores,
        attention=record_attention(model, batches(task, task.test, recipe.training)),
        courses=_courses(model, run.history),
        words={
            system_name(type(place.module)): place.module.words for place in attention_sites(model)
        },
    )
    if is_main_process():
        _write_outcome(outcome, folder, task)
        write_text(folder / RESULT, result.model_dump_json(indent=1))
    return _with_tests(result, recipe, folder, task, console, label or name)


def _with_tests(
    result: RunResult, recipe: Recipe, folder: Path, task: Task, console: Console, label: str
) -> RunResult:
    """Returns the result of a finished run with the scores on all further test sets.

    The run is evaluated on those that it was not evaluated on before, or whose data have changed.
    """
    scores: dict[str, list[Score]] = {}
    model: HeadwiseModel | None = None
    for name, items in task.tests.items():
        outcome = stored_outcome(folder, task, name)
        if outcome is None:
            model = model or read_model(folder, type(task))
            outcome = evaluate(model, task, items, recipe.evaluation, console, f"{label} {name}")
            if is_main_process():
                _write_outcome(outcome, folder, task, name)
        scores[name] = outcome.scores
    if scores == result.tests:
        return result
    result = result.model_copy(update={"tests": scores})
    if is_main_process():
        write_text(folder / RESULT, result.model_dump_json(indent=1))
    return result


def train_model(recipe: Recipe, folder: Path, task: Task, console: Console, label: str) -> Run:
    """Trains the model of a recipe in `folder`; nothing is evaluated but the validation loss.

    Raises:
        ValueError: a sequence is too long for `batch_tokens` or for the model's positions, or an
            ablation of the recipe does not fit the model.
        Interrupted: Ctrl-C came; the next call goes on.
    """
    for part in (task.validation, task.test):
        batches(task, part, recipe.training)  # too long for batch_tokens: found before training
    task.check_positions(task.model_config(recipe.model))
    model = build_model(recipe, task)
    with torch.random.fork_rng(), ablated(model, recipe.evaluation.ablation):
        pass  # one that does not fit the model: found before training, whose draws stay the same
    return run_training(
        model,
        task.train,
        task.validation,
        task.collate,
        recipe.training,
        folder,
        measure=task.measure,
        label=label,
        console=console,
    )


def finished_result(
    recipe: Recipe, folder: Path, task: Task, console: Console, label: str
) -> RunResult | None:
    """Returns the result of a run, or None while it is not finished.

    It has the scores on all further test sets, on which the run is evaluated if need be. The
    arguments are those of `train_system`.
    """
    if not (folder / RESULT).is_file():
        return None
    claim_folder(folder, recipe)  # which may name other test sets than before
    _score_again_if_old(folder, task, recipe, console, label)
    result = _read_result(folder / RESULT, task.model_config(recipe.model))
    return _with_tests(result, recipe, folder, task, console, label)


def evaluate(
    model: HeadwiseModel,
    task: Task,
    part: Items,
    settings: EvaluationSettings,
    console: Console,
    label: str,
) -> Outcome:
    """Evaluates a model on a part of the data and shows a progress bar."""
    with (
        as_evaluated(model, settings, console, label),
        torch.no_grad(),
        torch.random.fork_rng(),
        RunBars(console, transient=True) as bars,
    ):
        bar = bars.begin(label, len(part), figures=f"{task.item_name} evaluated")
        model.eval()
        return task.evaluate(model, part, settings, lambda n: bars.update(bar, advance=n))


@contextmanager
def as_evaluated(
    model: HeadwiseModel, settings: EvaluationSettings, console: Console, label: str
) -> Iterator[None]:
    """While this context is open, the model computes with the ablations of the evaluation."""
    for name, asked in settings.ablation.items():
        if asked != LEARNED and not held_systems(model, name):
            console.print(
                f"evaluation.ablation names {name}, which changes nothing: {label} has no system "
                f"of that name",
                style="yellow",
                highlight=False,
            )
    with ablated(model, settings.ablation):
        yield


def read_outcome(folder: Path, part: str = TEST) -> Outcome:
    """What the evaluation of a finished run on the test part, or a further test set, gave."""
    return read_record(Outcome, folder / _of_part(OUTCOME, part), _evaluate_again(folder))


def stored_outcome(folder: Path, task: Task, part: str) -> Outcome | None:
    """What an earlier evaluation of a run gave on the items of a part; None without any.

    Args:
        folder: of the run.
        task: its data.
        part: `test`, or the name of a further test set.
    """
    path = folder / _of_part(OUTCOME, part)
    if not path.is_file() or _is_old(path):
        return None
    outcome = read_outcome(folder, part)
    return outcome if outcome.digest == task.digest_of(part) else None


def _score_again_if_old(
    folder: Path, task: Task, recipe: Recipe, console: Console, label: str
) -> None:
    """Evaluate a finished run of an older headwise again."""
    if is_main_process() and _is_old(folder / OUTCOME):
        model = read_model(folder, type(task))
        outcome = evaluate(model, task, task.test, recipe.evaluation, console, label)
        _write_outcome(outcome, folder, task)


def _is_old(path: Path) -> bool:
    """Whether an older headwise wrote an outcome: with the items of one score, or of none."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return False  # whoever reads it says what to do
    return not isinstance(kept.get("items", []), dict)


def _write_outcome(outcome: Outcome, folder: Path, task: Task, part: str = TEST) -> None:
    outcome = outcome.model_copy(update={"digest": task.digest_of(part)})
    if outcome.outputs:
        write_text(folder / _of_part(OUTPUTS, part), "\n".join(outcome.outputs) + "\n")
    for number, picture in enumerate(outcome.pictures, 1):
        name = re.sub(r"[^a-z0-9]+", "-", picture.title.lower()).strip("-")
        write_bytes(folder / _of_part(PICTURES, part) / f"{number:02}-{name}.png", picture.bytes)
    write_text(folder / _of_part(OUTCOME, part), outcome.model_dump_json(indent=1))


def _of_part(name: str, part: str) -> str:
    """Returns the name of a file for a part: outcome.json, outcome-NAME.json."""
    stem, dot, suffix = name.partition(".")
    return name if part == TEST else f"{stem}-{part}{dot}{suffix}"


def curves(history: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Returns the losses and what was measured, by step."""
    kept = ("step", "loss", "eval_loss", "seconds")
    return [
        {key: record[key] for key in kept if key in record} | record.get("measured", {})
        for record in history
        if "loss" in record or "eval_loss" in record
    ]


def _courses(model: HeadwiseModel, history: Sequence[Mapping[str, Any]]) -> list[Course]:
    """What the rules of training recorded of each system; empty without any."""
    records = [(record["step"], found) for record in history if (found := _recorded(record))]
    courses = []
    for place in attention_sites(model):
        of_place = [(step, found[place.path]) for step, found in records if place.path in found]
        if of_place:
            courses.append(
                Course(
                    site=place.site,
                    layer=place.layer,
                    system=system_name(type(place.module)),
                    whole_layer=place.module.replaces == "layer",
                    steps=[step for step, _ in of_place],
                    values={name: [made[name] for _, made in of_place] for name in of_place[0][1]},
                )
            )
    return courses


def _recorded(record: Mapping[str, Any]) -> dict[str, dict[str, list[float]]]:
    """What rules recorded at a step, by path; runs that began long ago named it otherwise."""
    found = dict(record.get("recorded", {}))
    for name, rule in rules_by_name().items():
        if rule.former_key in record:
            found[name] = record[rule.former_key]
    return {path: made for of_rule in found.values() for path, made in of_rule.items()}


def _read_result(path: Path, config: TransformerConfig) -> RunResult:
    """The result of a finished run, also of one that was written by an older headwise."""
    return read_record(
        RunResult, path, _evaluate_again(path.parent), lambda raw: without_former_keys(raw, config)
    )


def read_record(
    kind: type[_Record], path: Path, remedy: str, change: Callable[[Any], Any] = lambda raw: raw
) -> _Record:
    """Returns what a JSON file of a run holds.

    Args:
        kind: of the record.
        path: of the file.
        remedy: what the user can do if the file is damaged.
        change: makes what an older headwise has written into what is read today.

    Raises:
        FolderError: the file cannot be read.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return kind.model_validate_json(json.dumps(change(raw)))
    except json.JSONDecodeError as error:
        raise FolderError(f"{path} cannot be read ({error}): {remedy}") from error
    except (ValidationError, OSError) as error:
        problem = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise FolderError(f"{path} cannot be read ({problem}): {remedy}") from error


def _evaluate_again(folder: Path) -> str:
    return (
        f"delete {RESULT} in {folder}, and the same command evaluates the run again from its "
        f"checkpoints"
    )


def open_run(
    folder: Path,
    changes: Sequence[str] = (),
    note: Callable[[str], object] = lambda text: None,
) -> tuple[Recipe, HeadwiseModel]:
    """The recipe and the final model of a run, to be used with the settings of its evaluation.

    Args:
        folder: of the run.
        changes: to `evaluation` in its recipe, as `--set` takes them.
        note: called with each note on the changes, such as that a key has another name by now.

    Raises:
        FolderError: it is none, or it is not finished.
        ValueError: a change is not one of `evaluation`, the only keys that are read.
    """
    recipe = read_recipe(folder, changes, note, keys=("evaluation",))
    return recipe, read_model(folder, task_class(recipe.task))


def read_recipe(
    folder: Path,
    changes: Sequence[str] = (),
    note: Callable[[str], object] = lambda text: None,
    *,
    keys: Sequence[str] | None = None,
) -> Recipe:
    """The recipe of a run.

    Args:
        folder, changes, note: see `open_run`.
        keys: which keys changes may be of; by default those that the evaluation of its task reads.
    """
    inside = sorted(path.parent.name for path in folder.glob(f"*/{MODEL}"))
    if inside and not (folder / MODEL).exists():
        raise FolderError(f"{folder} holds several runs, name one of them: {', '.join(inside)}")
    _check_holds(folder, "a run of headwise", RECIPE)
    file = load_recipe(str(folder / RECIPE), changes)
    for text in file.notes_on_changes:
        note(text)
    known = task_class(file.recipe.task).evaluation_keys if keys is None else keys
    for change in changes:
        path = change.partition("=")[0].strip()
        if path.partition(".")[0] not in known:
            raise ValueError(
                f"--set is {change!r}, but a finished run does not read {path}; expected keys of "
                f"{', '.join(known)}. Train another run to change others"
            )
    return file.recipe


def read_model(folder: Path, task: type[Task]) -> HeadwiseModel:
    """The final model of a run, in evaluation mode.

    Raises:
        FolderError: the run is not finished, or its files are damaged.
    """
    _check_holds(folder, "finished", MODEL)
    _check_holds(folder, "whole", *task.saved)
    try:
        model = task.model_class.from_pretrained(folder / MODEL)
    except (SafetensorError, OSError, ValueError) as error:
        raise FolderError(
            f"{folder / MODEL} cannot be read ({error}): delete {RESULT} from {folder}, if it is "
            f"there, and start the run again, which writes the model anew from its checkpoints"
        ) from error
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    return model.eval()


def _check_holds(folder: Path, what: str, *names: str) -> None:
    for name in names:
        if not (folder / name).exists():
            raise FolderError(
                f"{folder} is not {what}: it has no {name}; name the folder of a run that "
                f"`headwise train` or `headwise compare` has finished"
            )


def with_seed(recipe: Recipe, seed: int) -> Recipe:
    """The recipe with another seed."""
    training = recipe.training.model_copy(update={"seed": seed})
    return recipe.model_copy(update={"training": training})


def claim_folder(folder: Path, recipe: Recipe, stamp_name: str = RECIPE) -> None:
    """Make `folder` the folder of this recipe's run, or find that it is.

    A comparison stamps its folder with another name than a run does.

    Raises:
        FolderError: as `check_folder` does.
    """
    check_folder(folder, recipe, stamp_name)
    stamp = folder / stamp_name
    if is_main_process() and (not stamp.is_file() or _differs(stamp, recipe)):
        folder.mkdir(parents=True, exist_ok=True)
        write_text(stamp, to_yaml(recipe))


def check_folder(folder: Path, recipe: Recipe, stamp_name: str = RECIPE) -> None:
    """Find out whether `folder` is, or can become, that of this recipe's run.

    Raises:
        FolderError: it holds the run of another recipe (says how they differ), or other things.
    """
    if not is_main_process():
        return
    if (folder / stamp_name).is_file():
        if changed := changed_keys(folder, recipe, stamp_name):
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


def _differs(stamp: Path, recipe: Recipe) -> list[str]:
    """Returns a line for each key that a recipe has otherwise than the one in a file."""
    return differences(with_defaults(stamp.read_text(encoding="utf-8")), to_yaml(recipe))


def changed_keys(folder: Path, recipe: Recipe, stamp_name: str = RECIPE) -> list[str]:
    """Returns a line for each key that a recipe has otherwise than the one that claimed a folder.

    Without such a claim there is none. Other descriptions and further test sets make no other run.
    """
    stamp = folder / stamp_name
    if not stamp.is_file():
        return []
    lines = _differs(stamp, recipe)
    return [line for line in lines if not line.startswith(_NOT_OF_TRAINING)]


def is_main_process() -> bool:
    """Whether this is the process that prints and writes; the only one without `torchrun`."""
    return int(os.environ.get("RANK", "0")) == 0
