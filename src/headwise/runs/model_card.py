"""The folder of a run's model, `RUN/model`, as other tools read it.

Beside the weights and the configuration it has what encodes data, such as a tokenizer, and a model
card, `README.md`.
"""

from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from headwise.analysis.results import RunResult, versions
from headwise.files import write_text
from headwise.recipes.recipe import Recipe, to_yaml
from headwise.runs.preparing import lines_of
from headwise.tasks.scores import Score
from headwise.tasks.task import Task
from headwise.training.run import MODEL

CARD = "README.md"

_TEMPLATE = Path(__file__).with_name("model_card.md.jinja")
# Names of scores whose names on the hub are others.
_METRICS = {"chrF": "chrf", "Pearson": "pearsonr", "Spearman": "spearmanr"}


def write_card(folder: Path, task: Task, recipe: Recipe, result: RunResult) -> None:
    """Writes the card of a run's model; that of an earlier call is replaced."""
    write_text(folder / MODEL / CARD, model_card(task, recipe, result).content)


def model_card(task: Task, recipe: Recipe, result: RunResult) -> ModelCard:
    """Returns the model card of a run: how to use the model, its data, scores and recipe."""
    return ModelCard.from_template(
        _card_data(task, recipe, result),
        str(_TEMPLATE),
        task=task,
        recipe=recipe,
        result=result,
        facts=lines_of(task.facts),
        scores=_all_scores(result),
        yaml=to_yaml(recipe),
        versions=versions(),
    )


def _card_data(task: Task, recipe: Recipe, result: RunResult) -> ModelCardData:
    """What the hub reads of a card; the license is for the user to add."""
    data = recipe.data
    hub = data.path
    if hub is None or hub in task.built_in or Path(hub).exists():
        hub = None
    results = [
        EvalResult(
            task_type=task.pipeline or recipe.task,
            dataset_type=hub or data.called,
            dataset_name=data.called,
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
        datasets=[hub] if hub else None,
        metrics=list(dict.fromkeys(_metric(score) for score in result.scores)),
        model_name=f"{recipe.task}-{result.system}",
        eval_results=results,
    )


def _all_scores(result: RunResult) -> dict[str, list[Score]]:
    return {"test": result.scores, **result.tests}


def _metric(score: Score) -> str:
    name = score.name.partition(",")[0]
    return _METRICS.get(name, name.lower().replace(" ", "_"))
