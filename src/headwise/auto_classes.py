"""After `import headwise`, transformers' Auto classes find our configurations by their names.

Our models register themselves when they are imported, which takes seconds. So that `import
headwise` need not wait for that, it leaves the names of our configurations in the table of
transformers, which imports the module of a configuration when one is asked for. The table is there
once somebody imports the Auto classes.
"""

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

_TABLE = "transformers.models.auto.configuration_auto"
_CONFIGS = {
    "headwise-causal-lm": "CausalLMConfig",
    "headwise-masked-lm": "MaskedLMConfig",
    "headwise-sequence-classifier": "SequenceClassifierConfig",
    "headwise-seq2seq-lm": "Seq2SeqLMConfig",
    "headwise-speech-enhancer": "SpeechEnhancerConfig",
}


def register_names() -> None:
    """Puts our names into the table at once if it is there, else as soon as it is."""
    if _TABLE in sys.modules:
        _fill(sys.modules[_TABLE])
    else:
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds the module of the table as Python does, once, and fills the table behind it."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != _TABLE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        loader: Any = spec and spec.loader
        load = loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            _fill(module)

        loader.exec_module = exec_module
        return spec


def _fill(table: Any) -> None:
    package = sys.modules[__package__ or ""]
    for model_type, name in _CONFIGS.items():
        table.CONFIG_MAPPING_NAMES.setdefault(model_type, name)
        # The table looks into this module for it, which imports ours at that moment.
        table.CONFIG_MAPPING._modules[table.model_type_to_module_name(model_type)] = package
