"""The tasks by name.

A task is imported only when a recipe asks for it, since some need optional packages.
"""

import importlib
from typing import TYPE_CHECKING, Any

from headwise.messages import one_of, shown

if TYPE_CHECKING:
    from headwise.tasks.task import Task

TASKS = {
    "translation": "headwise.tasks.translation:Translation",
    "language-modelling": "headwise.tasks.language_modelling:LanguageModelling",
    "masked-language-modelling": (
        "headwise.tasks.masked_language_modelling:MaskedLanguageModelling"
    ),
    "classification": "headwise.tasks.classification:Classification",
    "probing": "headwise.tasks.probing:Probing",
    "images": "headwise.tasks.images:Images",
    "speech-enhancement": "headwise.tasks.speech:SpeechEnhancement",
}


def task_class(name: Any) -> "type[Task]":
    """Returns the class of a task by its name in recipes.

    Raises:
        ValueError: no task has this name, or the task needs a package that is not installed.
    """
    if not isinstance(name, str) or name not in TASKS:
        raise ValueError(f"there is no task {shown(name)}, {one_of(name, TASKS)}")
    module, _, kind = TASKS[name].partition(":")
    return getattr(importlib.import_module(module), kind)
