"""Recipes: one YAML file per experiment, whose keys are all checked.

A recipe says which data are read, which model is built and how it is trained. It also names the
systems to compare: each is a set of changes to the rest of the recipe.

    data: {path: interface-strings, options: {language: fr}}
    model: {embed_dim: 128, num_heads: 8}
    training: {max_steps: 600}
    systems:
      standard: {}
      wide: {model: {ffn_dim: 2048}}
"""

import importlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, field_validator

from headwise.data.settings import Data
from headwise.messages import one_of, shown
from headwise.models.inspect import check_ablations
from headwise.settings import LARGEST_SEED, FrozenSettings, Settings
from headwise.training.settings import TrainingSettings

if TYPE_CHECKING:
    from headwise.tasks.task import Task

TASKS = {
    "translation": "headwise.tasks.translation:Translation",
    "language-modelling": "headwise.tasks.language:LanguageModelling",
    "masked-language-modelling": "headwise.tasks.masked:MaskedLanguageModelling",
    "classification": "headwise.tasks.classification:Classification",
    "probing": "headwise.tasks.probing:Probing",
    "images": "headwise.tasks.images:Images",
    "speech-enhancement": "headwise.tasks.speech:SpeechEnhancement",
}
SEED, SYSTEM = "{seed}", "{system}"  # what stands in `model.pretrained` for them
# A name becomes a part of a folder's name, and the command line separates names by commas.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w+-]*$")]


class RecipeError(ValueError):
    """A recipe that cannot be used; the message names the key and how to mend it."""


def task_class(name: Any) -> "type[Task]":
    """Returns the class of a task: one of `TASKS`, or a user's own, named `module:Class`.

    Raises:
        ValueError: there is no such task.
    """
    module, colon, kind = TASKS.get(str(name), str(name)).partition(":")
    if not colon:
        raise ValueError(f"there is no task {shown(name)}, {one_of(name, TASKS)}")
    return getattr(importlib.import_module(module), kind)


class Evaluation(FrozenSettings):
    """How a finished model is evaluated; a task adds its own keys by a subclass."""

    ablation: dict[str, str | dict[str, Any]] = {}
    """Changes what trained systems compute in evaluation: the name of a system, then the name of
    one of its ablations, or a mapping with `name` and options. `headwise recipes --keys SYSTEM`
    lists them."""

    @field_validator("ablation")
    @classmethod
    def _check_ablation(cls, ablation: dict[str, Any]) -> dict[str, Any]:
        check_ablations(ablation)
        return ablation


class System(Settings):
    """One system of a comparison: its changes to the recipe."""

    description: str = ""
    """A line that describes the system in lists and reports."""
    model: dict[str, Any] = {}
    """Keys of `model` that this system sets otherwise."""
    training: dict[str, Any] = {}
    """Keys of `training` that this system sets otherwise."""


class Recipe(Settings):
    """One experiment; the recipe of a task narrows `data` and `evaluation`, and may add keys."""

    title: str = ""
    """What pages are called. Default: the description."""
    description: str = ""
    """A line that describes the recipe in lists."""
    base: str | None = None
    """Another recipe, by name or path, whose keys hold where this one has none."""
    task: str
    """Name of the task, or `module:Class` of one of your own."""
    data: Data
    """The data to train and evaluate on."""
    model: dict[str, Any] = {}
    """Arguments of the model's configuration: its sizes, and `attention`. `pretrained` names the
    folder of a finished run from whose weights training starts; sizes, attention and vocabulary are
    those of that run, and where it has standard attention, `attention` may name a system that can
    start with the same output. `{system}` and `{seed}` in the name stand for those of each run."""
    training: TrainingSettings
    """How the model is trained."""
    evaluation: Evaluation = Field(default_factory=Evaluation)
    """How the trained model is evaluated."""
    systems: dict[Name, System] = {}
    """The systems to compare: each name has the system's changes to the recipe. The first is the
    baseline."""
    datasets: dict[Name, dict[str, Any]] = {}
    """The data sets to compare on: each name has its changes to `data`. Every system is trained and
    evaluated on each."""
    seeds: list[Annotated[int, Field(ge=0, le=LARGEST_SEED)]] = []
    """Seeds of a comparison, which trains every system once with each; by default `training.seed`
    alone."""

    @property
    def pretrained(self) -> str | None:
        """What `model.pretrained` names; None if the model starts afresh."""
        return self.model.get("pretrained")

    @property
    def model_arguments(self) -> dict[str, Any]:
        """The keys of `model` that are arguments of its configuration."""
        return {key: value for key, value in self.model.items() if key != "pretrained"}

    def pretrained_folder(self) -> Path | None:
        """Returns the folder of the model that training starts from; None if it starts afresh."""
        if self.pretrained is None:
            return None
        run = Path(str(self.pretrained).replace(SEED, str(self.training.seed))).expanduser()
        return run if (run / "config.json").is_file() else run / "model"

    def own_modules(self) -> list[str]:
        """The modules of classes that the recipe names as module:Class."""
        named = f"{self.model.get('attention')} {self.task} {self.training.rules}"
        return sorted(set(re.findall(r"([\w.]+):[A-Za-z_]", named)))
