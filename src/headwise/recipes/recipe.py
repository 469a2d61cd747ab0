"""Recipes: one YAML file per experiment.

A recipe describes the data, the model and the training. It also names the systems to compare: each
system is a set of changes to the rest of the recipe.

    data: {path: interface-strings, options: {language: fr}}
    model: {embed_dim: 128, num_heads: 8}
    training: {max_steps: 600}
    systems:
      standard: {}
      wide: {model: {ffn_dim: 2048}}
"""

import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from huggingface_hub.errors import StrictDataclassError
from pydantic import Field, ValidationError, create_model, field_validator, model_validator

from headwise.data.settings import Data, Name, absolute
from headwise.messages import expected_one_of, shown
from headwise.pretrained.ablate import check_ablations
from headwise.recipes.document import (
    Change,
    Document,
    RecipeError,
    check_names_in,
    flatten,
    merge_documents,
    parse_change,
    read_document,
    with_changes,
)
from headwise.recipes.errors import explain
from headwise.settings import LARGEST_SEED, FrozenSettings, Settings
from headwise.training.settings import TrainingSettings
from headwise.yaml import write_yaml

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
SEED, SYSTEM = "{seed}", "{system}"  # placeholders in `model.pretrained`
_COMPARISON_KEYS = ("systems", "datasets", "seeds")  # keys that a single run lacks
# The arguments of configurations that follow from the data.
FROM_DATA = {"vocab_size", "target_vocab_size", "max_length", "problem", "classes", "num_labels"}
FROM_DATA |= {f"{role}_token_id" for role in ("pad", "bos", "eos", "mask", "decoder_start")}
FROM_DATA |= {"sampling_rate", "window"}


def task_class(name: Any) -> "type[Task]":
    """Returns the class of a task: one of `TASKS`, or a user's own, named `module:Class`.

    The user's module has to be imported already, since a recipe may come from somebody else.

    Raises:
        ValueError: there is no such task.
    """
    path, _, class_name = TASKS.get(str(name), str(name)).partition(":")
    module = importlib.import_module(path) if str(name) in TASKS else sys.modules.get(path)
    if class_name and hasattr(module, class_name):
        return getattr(module, class_name)
    hint = f"; for a task of your own add --import {path}" if class_name else ""
    raise ValueError(f"there is no task {shown(name)}, {expected_one_of(name, TASKS)}{hint}")


class Evaluation(FrozenSettings):
    """How a finished model is evaluated; a task adds its own keys by a subclass."""

    test: bool = True
    """Whether the model is scored on the test split and on further test sets."""
    ablation: dict[str, str | dict[str, Any]] = {}
    """Ablations of trained systems: the name of a system, and the name of one of its ablations or a
    mapping with `name` and options. `headwise recipes --keys SYSTEM` lists them."""

    @field_validator("ablation")
    @classmethod
    def _check_ablation(cls, ablation: dict[str, Any]) -> dict[str, Any]:
        check_ablations(ablation)
        return ablation


class System(Settings):
    """A system of a comparison: its changes to the recipe."""

    description: str = ""
    """A line that describes the system in lists and reports."""
    model: dict[str, Any] = {}
    """Changes to `model`."""
    training: dict[str, Any] = {}
    """Changes to `training`."""


class Recipe(Settings):
    """One experiment; the recipe of a task has its own `data` and `evaluation`, and more keys."""

    title: str = ""
    """The title of pages. Default: the task and the data."""
    description: str = ""
    """A line that describes the recipe in lists."""
    base: str | None = None
    """Another recipe, by name or path, from which this one inherits."""
    system: str = ""
    """The name of the system, in the recipe of a run."""
    task: str
    """Name of the task, or `module:Class` of one of your own."""
    data: Data
    """The data to train and evaluate on."""
    model: dict[str, Any] = {}
    """Arguments of the model's configuration: its sizes, and `attention`. `pretrained` is the
    folder of a finished run, with whose weights the training starts; sizes, attention and
    vocabulary are those of that run. Where that run has standard attention, `attention` may name a
    system that can start with the same output. `{system}` and `{seed}` in the folder's name are
    replaced by those of each run."""
    training: TrainingSettings
    """How the model is trained."""
    evaluation: Evaluation = Field(default_factory=Evaluation)
    """How the trained model is evaluated."""
    systems: dict[Name, System] = {}
    """The systems to compare, by name; the first is the baseline."""
    datasets: dict[Name, dict[str, Any]] = {}
    """The data sets to compare on: each name has its changes to `data`. Every system is trained and
    evaluated on every data set."""
    seeds: list[Annotated[int, Field(ge=0, le=LARGEST_SEED)]] = []
    """Seeds of a comparison: every system is trained once with each seed. By default
    `training.seed` alone."""

    @field_validator("model")
    @classmethod
    def _absolute_pretrained(cls, model: dict[str, Any]) -> dict[str, Any]:
        folder = model.get("pretrained")
        if not isinstance(folder, str | None):
            raise ValueError(f"pretrained is {shown(folder)}, expected a folder in quotes")
        return {**model, "pretrained": absolute(folder)} if folder else model

    @field_validator("seeds")
    @classmethod
    def _check_seeds(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) < len(seeds):  # equal runs would count as several
            raise ValueError(f"the seeds are {seeds}, expected different numbers")
        return seeds

    @model_validator(mode="after")
    def _check_stream(self) -> Self:
        training = self.training
        if self.data.streaming and (training.max_steps is None or training.loader_workers):
            raise ValueError(
                f"data.streaming is true, training.max_steps is {training.max_steps} and "
                f"training.loader_workers is {training.loader_workers}, expected a number of steps "
                f"and 0: a stream has no length, and the process that trains reads it"
            )
        return self

    @property
    def display_name(self) -> str:
        """The title of pages."""
        return self.title or f"{self.task.replace('-', ' ')} on {self.data.display_name}"

    @property
    def pretrained(self) -> str | None:
        """The key `model.pretrained`; None if the model is new."""
        return self.model.get("pretrained")

    @property
    def model_arguments(self) -> dict[str, Any]:
        """The keys of `model` that are arguments of its configuration."""
        return {key: value for key, value in self.model.items() if key != "pretrained"}

    def pretrained_folder(self) -> Path | None:
        """Returns the folder of the pretrained model; None if the model is new."""
        if self.pretrained is None:
            return None
        run = Path(str(self.pretrained).replace(SEED, str(self.training.seed))).expanduser()
        return run if (run / "config.json").is_file() else run / "model"


def load_recipe(name: str, changes: Sequence[str] = ()) -> "RecipeFile":
    """Reads a recipe that headwise ships, by its name, or a recipe of your own, by its path.

    Args:
        name: `interface-strings`, or `my/recipe.yaml`.
        changes: arguments of `--set`, each `key.key=value`.

    Raises:
        RecipeError: the recipe does not exist, or it has unknown keys or wrong values.

    >>> load_recipe("interface-strings", ["training.max_steps=100"]).recipe.training.max_steps
    100
    """
    return RecipeFile(name, read_document(name), [parse_change(change) for change in changes])


class RecipeFile:
    """A recipe with the changes of the command line, which win over the changes of its systems.

    Args:
        name: name or path of the recipe, for messages.
        document: its keys.
        changes: keys and values of `--set`.

    Attributes:
        recipe: the recipe with its lists of systems and data sets. If it has no data of its own, it
            has those of the first data set. `system` checks its model.
        has_data: whether the recipe has data of its own, beside its data sets.
    """

    def __init__(self, name: str, document: Document, changes: Sequence[Change] = ()) -> None:
        self.name, self._changes = name, list(changes)
        self._document = with_changes(document, changes)
        datasets = self._document.get("datasets")
        paths = flatten(self._document)
        has_source = any(path.startswith(("data.path", "data.files.train")) for path in paths)
        self.has_data = has_source or not datasets or not isinstance(datasets, Mapping)
        first_dataset = None if self.has_data else next(iter(datasets or ()))
        self.recipe = self._validate(self._with_data(first_dataset), name)

    @property
    def system_names(self) -> list[str]:
        """The names of the recipe's systems; the first is the baseline."""
        return list(self.recipe.systems)

    @property
    def dataset_names(self) -> list[str]:
        """The names of the recipe's data sets; empty if `data` describes the only one."""
        return list(self.recipe.datasets)

    def system(
        self, name: str | None, dataset: str | None = None, changes: Sequence[Change] = ()
    ) -> Recipe:
        """Returns the recipe of one run: of a system on a data set.

        Raises:
            RecipeError: there is no such system or data set, or the recipe of the run is wrong.
        """
        if dataset is None and not self.has_data:
            raise RecipeError(
                f"recipe {self.name} has no data of its own, expected the name of one of its data "
                f"sets: {', '.join(self.dataset_names)}"
            )
        names, datasets = filter(None, [name]), filter(None, [dataset])
        check_names_in(self._document, self.name, names, datasets)
        document = self._with_data(dataset)
        where = [self.name, *([f"data set {dataset}"] if dataset else [])]
        if name is not None:
            system = self.recipe.systems[name]
            where.append(f"system {name}")
            system_changes = {"system": name, "model": system.model, "training": system.training}
            document = merge_documents(document, system_changes)
        document = with_changes(document, [*self._changes, *changes])
        for key in _COMPARISON_KEYS:
            document.pop(key, None)
        model = document.get("model") or {}
        if (folder := model.get("pretrained")) is not None and name is not None:
            document["model"] = {**model, "pretrained": str(folder).replace(SYSTEM, name)}
        return self._validate(document, ", ".join(where), has_model=True)

    def is_set(self, keys: Sequence[str], system: str | None = None) -> bool:
        """Whether `--set`, or a system, changes the value of a key."""
        changed = with_changes({}, self._changes)
        value = self.recipe.systems[system].model_dump() if system else changed
        for key in keys:
            if not isinstance(value, Mapping):
                return True
            if key not in value:
                return False
            value = value[key]
        return True

    def check_comparable(self) -> None:
        """Raises `RecipeError` if `--set` gives all systems the same attention."""
        systems = self.recipe.systems
        changed = [name for name, system in systems.items() if "attention" in system.model]
        if changed and self.is_set(("model", "attention")):
            raise RecipeError(
                f"--set model.attention would give every system the same attention; change one "
                f"system with --set systems.{changed[0]}.model.attention=..."
            )

    def yaml(self) -> str:
        """Returns the recipe as YAML, with all its values, the defaults included."""
        values = self.recipe.model_dump(mode="json")
        if not self.has_data:
            values["data"] = self._document.get("data") or {}
        return write_yaml(values)

    def _with_data(self, dataset: str | None) -> Document:
        if dataset is None:
            return dict(self._document)
        return merge_documents(self._document, {"data": self._document["datasets"][dataset]})

    def _validate(self, document: Document, where: str, *, has_model: bool = False) -> Recipe:
        try:
            task = task_class(document.get("task"))
            try:
                recipe = task.recipe_class.model_validate(document)
            except ValidationError as error:
                raise ValueError(explain(error, document, task.recipe_class)) from error
            _check_options(task, recipe.data)
            if has_model:
                _check_model(task, recipe)
        except ValueError as error:
            raise RecipeError(f"recipe {where}:\n  {error}") from error
        return recipe


def to_yaml(recipe: Recipe) -> str:
    """Returns a recipe as YAML, with all its values, the defaults included."""
    return write_yaml(recipe.model_dump(mode="json"))


def _check_options(task: "type[Task]", data: Data) -> None:
    """Raises `ValueError` if installed data have no such option."""
    sources = {"data": data} | {f"data.tests.{name}": data.test_set(name) for name in data.tests}
    for path, source in sources.items():
        if (function := task.built_in.get(source.path or "")) is None:
            continue
        arguments: dict[str, Any] = {
            name: (option.annotation, ... if option.default is option.empty else option.default)
            for name, option in signature(function).parameters.items()
        }
        options_class = create_model("Options", __base__=Settings, **arguments)
        try:
            options_class.model_validate(source.options)
        except ValidationError as error:
            message = explain(error, source.options, options_class, f"{path}.options.")
            raise ValueError(message) from error


def _check_model(task: "type[Task]", recipe: Recipe) -> None:
    """Raises `ValueError` if the keys of `model` make no model."""
    folder = recipe.pretrained_folder()
    if folder is not None and not (folder / "config.json").is_file():
        return  # a finished run can be used without its pretrained model
    if derived := sorted(FROM_DATA & recipe.model.keys()):
        raise ValueError(f"model.{derived[0]} follows from the data: leave it out")
    try:
        task.config(recipe)
    except (ArithmeticError, StrictDataclassError, TypeError, ValueError) as error:
        # The message of huggingface_hub on a field with a value of another type.
        prefix = r"^Validation error for field '(\w+)': \w+: "
        reason = re.sub(prefix, r"model.\1: ", " ".join(str(error).split()))
        raise ValueError(reason if reason.startswith("model.") else f"model: {reason}") from error
