"""After `import headwise`, transformers' Auto classes know our models.

Our models register themselves when they are imported, which takes as long as importing what
transformers has for models. So this waits until somebody imports the Auto classes.

A module of transformers may import them before it is whole, and so may a module of headwise that
our models import in turn. So this also waits until no module of either is being imported.
"""

import importlib
import importlib.abc
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
    """Finds the modules of both packages as the other finders do, and counts those under way."""

    def __init__(self) -> None:
        self.under_way = 0

    def find_spec(
        self, name: str, path: Any, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(("transformers.", "headwise.")):
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """Loads a module by its own loader, and after the outermost one our models, if they are due."""

    def __init__(self, loader: Any, finder: _Finder) -> None:
        self.loader = loader
        self.finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)  # `python -m` asks for the code

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self.loader
        self.finder.under_way += 1
        try:
            self.loader.exec_module(module)
        finally:
            self.finder.under_way -= 1
        if self.finder.under_way or _AUTO_CLASSES not in sys.modules:
            return
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)  # its work is done
        # If they are being imported, they register themselves a moment later.
        if _OUR_MODELS not in sys.modules:
            importlib.import_module(_OUR_MODELS)
