"""The tasks by name. Each is imported when a recipe asks for it: some need an extra."""

import importlib
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

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
    """The class of a task.

    Raises:
        ValueError: there is none of that name, or it needs a package that is not installed.

    >>> task_class("translation").__name__
    'Translation'
    """
    if name not in TASKS:
        near = get_close_matches(str(name), TASKS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no task {name!r}, expected one of {', '.join(TASKS)}{hint}")
    module, _, kind = TASKS[name].partition(":")
    return getattr(importlib.import_module(module), kind)
