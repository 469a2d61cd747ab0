"""The folder of a run's model, `RUN/model`, as other tools read it.

Beside the weights and the configuration it has what the task gives to other tools, such as a
tokenizer, and a model card, `README.md`.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from headwise.analysis.results import RunResult, versions
from headwise.data.settings import HubSettings
from headwise.files import write_text, written_whole
from headwise.recipes import to_yaml
from headwise.recipes.settings import Recipe
from headwise.tasks.outcome import Score
from headwise.tasks.task import Task
from headwise.training.run import MODEL

CARD = "README.md"

_TEMPLATE = Path(__file__).with_name("model_card.md.jinja")
# Names of scores whose names on the hub are others.
_METRICS = {"chrF": "chrf", "Pearson": "pearsonr", "Spearman": "spearmanr"}


def write_for_tools(folder: Path, task: Task, recipe: Recipe, result: RunResult) -> None:
    """Completes the folder of a run's model; files of an earlier call are replaced."""
    model = folder / MODEL
    with TemporaryDirectory(prefix=".partial-", dir=folder) as made:
        task.save_for_tools(Path(made), recipe)
        for path in Path(made).iterdir():
            with written_whole(model / path.name) as partial:
                path.rename(partial)
    write_text(model / CARD, model_card(task, recipe, result).content)


def model_card(task: Task, recipe: Recipe, result: RunResult) -> ModelCard:
    """Returns the model card of a run: how to use the model, its data, scores and recipe."""
    return ModelCard.from_template(
        _card_data(task, recipe, result),
        str(_TEMPLATE),
        task=task,
        recipe=recipe,
        result=result,
        scores=_all_scores(result),
        yaml=to_yaml(recipe),
        versions=versions(),
    )


def _card_data(task: Task, recipe: Recipe, result: RunResult) -> ModelCardData:
    """What the hub reads of a card; the license is for the user to add."""
    data = recipe.data
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
        model_name=f"{recipe.task}-{result.system}",
        eval_results=results,
    )


def _all_scores(result: RunResult) -> dict[str, list[Score]]:
    return {"test": result.scores, **result.tests}


def _metric(score: Score) -> str:
    name = score.name.partition(",")[0]
    return _METRICS.get(name, name.lower().replace(" ", "_"))
