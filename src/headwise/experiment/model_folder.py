"""The folder of a run's model, `RUN/model`, as other tools read it.

Beside the weights and the configuration it has what the task gives to other tools, such as a
tokenizer, and a model card, `README.md`.
"""

import platform
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from huggingface_hub import EvalResult, ModelCard, ModelCardData

import headwise
from headwise.analysis.results import RunResult
from headwise.files import no_space_told, write_text, written_whole
from headwise.recipe import to_yaml
from headwise.recipe.settings import Recipe
from headwise.tasks.outcome import Score
from headwise.tasks.splits import HubSettings
from headwise.tasks.task import Task
from headwise.training.run import MODEL

CARD = "README.md"

_USAGE = {
    "text-generation": """\
from transformers import pipeline

write = pipeline("text-generation", model="MODEL")
write("The")""",
    "fill-mask": """\
from transformers import pipeline

fill = pipeline("fill-mask", model="MODEL")
fill(f"The {fill.tokenizer.mask_token} of the text.")""",
    "text-classification": """\
from transformers import pipeline

classify = pipeline("text-classification", model="MODEL")
classify("A text.", truncation=True)""",
    "translation": """\
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

source = target = AutoTokenizer.from_pretrained("MODEL")
# If the target language has a vocabulary of its own:
# target = AutoTokenizer.from_pretrained("MODEL", subfolder="target")
model = AutoModelForSeq2SeqLM.from_pretrained("MODEL")
batch = source(["Open the file."], return_tensors="pt")
target.batch_decode(model.generate(**batch), skip_special_tokens=True)""",
}
# Names of scores whose names on the hub are others.
_METRICS = {"chrF": "chrf", "Pearson": "pearsonr", "Spearman": "spearmanr"}


def write_for_tools(folder: Path, task: Task, recipe: Recipe, result: RunResult) -> None:
    """Completes the folder of a run's model; files of an earlier call are replaced.

    Args:
        folder: the folder of the run.
        task: its data.
        recipe: of the run.
        result: what its evaluation gave.
    """
    model = folder / MODEL
    with (
        no_space_told(model),
        TemporaryDirectory(prefix=".partial-", dir=folder) as made,
    ):
        task.save_for_tools(Path(made), recipe)
        for path in Path(made).iterdir():
            with written_whole(model / path.name) as partial:
                path.rename(partial)
    write_text(model / CARD, model_card(task, recipe, result).content)


def model_card(task: Task, recipe: Recipe, result: RunResult) -> ModelCard:
    """Returns the model card of a run: how to use the model, its data, scores and recipe."""
    name = f"{recipe.task}-{result.system}"
    parts = [
        f"# {name}",
        f"A model of {recipe.task.replace('-', ' ')}, trained by headwise {headwise.__version__}. "
        f"Its attention is `{result.system}`; the recipe below says it in full.",
        "## Use",
        f"The classes of the model are those of headwise, which has to be installed and imported. "
        f"`MODEL` is this folder, or its name on the hub:\n\n{_code(_usage(task))}",
        "## Data",
        "\n".join(f"- {label}: {text}" for label, text in task.notes.items()),
        "## Scores",
        _scores(result),
        "## Model and training",
        "\n".join(f"- {label}: {text}" for label, text in _facts(task, result).items()),
        "## Recipe",
        f"```yaml\n{to_yaml(recipe)}```",
    ]
    text = "\n\n".join(parts)
    return ModelCard(f"---\n{_card_data(name, task, recipe, result).to_yaml()}\n---\n\n{text}\n")


def _card_data(name: str, task: Task, recipe: Recipe, result: RunResult) -> ModelCardData:
    """What the hub reads of a card; the license is for the user to add."""
    data = _data(recipe)
    on_hub = isinstance(data, HubSettings) and not Path(data.name).exists()
    results = [
        EvalResult(
            task_type=task.pipeline or recipe.task,
            dataset_type=data.name if on_hub else data.corpus,
            dataset_name=data.name if on_hub else data.corpus,
            dataset_split=part,
            metric_type=_metric(score),
            metric_name=score.name,
            metric_value=round(score.value, score.digits + 1),
        )
        for part, scores in _all_scores(result).items()
        for score in scores
    ]
    return ModelCardData(
        library_name="headwise",
        pipeline_tag=task.pipeline,
        tags=["headwise", recipe.task, *result.words],
        datasets=[data.name] if on_hub else None,
        metrics=list(dict.fromkeys(_metric(score) for score in result.scores)),
        model_name=name,
        eval_results=results,
    )


def _data(recipe: Any) -> Any:
    """The settings of the data, which the recipe of every task has."""
    return recipe.data


def _usage(task: Task) -> str:
    text = _USAGE.get(task.pipeline or "")
    if text is None:
        kind = task.model_class.__name__
        return f'import headwise\n\nmodel = headwise.{kind}.from_pretrained("MODEL")'
    return f"import headwise  # so that transformers knows the model\n{text}"


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _all_scores(result: RunResult) -> dict[str, list[Score]]:
    return {"test": result.scores, **result.tests}


def _metric(score: Score) -> str:
    name = score.name.partition(",")[0]
    return _METRICS.get(name, name.lower().replace(" ", "_"))


def _scores(result: RunResult) -> str:
    """A table of all scores with their intervals."""
    lines = [
        "| part | score | value | 95% interval | computed |",
        "| --- | --- | --: | --- | --- |",
    ]
    for part, scores in _all_scores(result).items():
        for score in scores:
            digits = score.digits + 1
            ends = score.interval
            interval = "" if ends is None else f"{ends[0]:.{digits}f} to {ends[1]:.{digits}f}"
            cells = (part, score.name, f"{score.value:.{digits}f}", interval, score.note)
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def _facts(task: Task, result: RunResult) -> dict[str, str]:
    lengths = ", ".join(f"{length} in the {stack}" for stack, length in result.macs_lengths.items())
    return {
        "parameters": f"{result.parameters:,}",
        "multiply-accumulates": f"{result.macs:,} of a forward pass ({lengths})",
        "steps": f"{result.steps:,}, seed {result.seed}",
        "validation loss": f"{result.validation_loss:.4f} {task.loss_name}",
        "versions": f"headwise {headwise.__version__}, transformers {transformers.__version__}, "
        f"PyTorch {torch.__version__}, Python {platform.python_version()}",
    }
