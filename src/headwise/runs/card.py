"""The model card of a run, `model/README.md`, as the Hugging Face Hub reads it."""

from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from headwise.analysis.results import RunResult, versions
from headwise.files import write_text
from headwise.recipes.recipe import Recipe, to_yaml
from headwise.runs.names import MODEL
from headwise.tasks.scores import Score
from headwise.tasks.task import Task

_TEMPLATE = Path(__file__).with_name("model_card.md.jinja")
# Scores that have other names on the hub.
_METRICS = {"chrF": "chrf", "Pearson": "pearsonr", "Spearman": "spearmanr"}


def write_card(folder: Path, task: Task, recipe: Recipe, result: RunResult) -> None:
    """Writes how the model of a run is used, and its data, scores and recipe."""
    of_parts = {"test": result.scores, **result.tests}
    plan = task.model_class.config_class.from_pretrained(folder / MODEL).systems()
    systems = dict.fromkeys(of_layer["system"] for site in plan.values() for of_layer in site)
    systems.pop("standard", None)
    path, called = recipe.data.path, recipe.data.called
    is_elsewhere = path is None or path in task.built_in or Path(path).exists()
    on_hub = None if is_elsewhere else path
    results = [
        EvalResult(
            task_type=task.pipeline or recipe.task,
            dataset_type=on_hub or called,
            dataset_name=called,
            dataset_split=part,
            metric_type=_metric(score),
            metric_name=score.name,
            metric_value=round(score.value, score.digits + 1),
        )
        for part, scores in of_parts.items()
        for score in scores
    ]
    read_by_hub = ModelCardData(  # the license is for the user to add
        library_name="headwise",
        pipeline_tag=task.pipeline,
        tags=["headwise", recipe.task, *systems],
        datasets=[on_hub] if on_hub else None,
        metrics=list(dict.fromkeys(map(_metric, result.scores))),
        model_name=f"{recipe.task}-{result.system}",
        eval_results=results,
    )
    card = ModelCard.from_template(
        read_by_hub,
        str(_TEMPLATE),
        task=task,
        recipe=recipe,
        result=result,
        scores=of_parts,
        yaml=to_yaml(recipe),
        versions=versions(),
    )
    write_text(folder / MODEL / "README.md", card.content)


def _metric(score: Score) -> str:
    name = score.name.partition(",")[0]
    return _METRICS.get(name, name.lower().replace(" ", "_"))
