"""After `import headwise`, transformers' Auto classes know our models.

Our models register themselves when they are imported, which takes as long as importing what
transformers has for models. So this waits until somebody imports the Auto classes.
"""

import importlib
import importlib.abc
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_AUTO_CLASSES = "transformers.models.auto.configuration_auto"
_OUR_MODELS = "headwise.models"  # registers all of them


def register_when_used() -> None:
    """Registers our models at once if the Auto classes are there, else as soon as they are."""
    if _AUTO_CLASSES in sys.modules:
        importlib.import_module(_OUR_MODELS)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the module of the Auto classes as the others do, and has our models follow it."""

    def find_spec(
        self, name: str, path: Any, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _AUTO_CLASSES:
            return None
        sys.meta_path.remove(self)  # its work is done, and the others are to find the module
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads a module by its own loader, then our models."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        # If they are being imported, they register themselves a moment later.
        if _OUR_MODELS not in sys.modules:
            importlib.import_module(_OUR_MODELS)
