"""Has a change of the code changed a number? Fingerprints of what every shipped recipe computes.

    python benchmarks/fingerprints.py save before.json      # before the change
    python benchmarks/fingerprints.py compare before.json   # after it, on the same machine
    python benchmarks/fingerprints.py compare before.json tim-bert mae-wikitext103

Each system of each recipe trains for two steps, with its dropout, its rule and its order of data.
Compared are the data, the weights before and after, the losses of training and validation, and the
outputs of the final model, to the last bit. Data from elsewhere are replaced by those that come
with headwise, and wide models are made narrow. Fingerprints are of one machine and one
version of PyTorch, so that they are not kept with the code.
"""

import argparse
import hashlib
import json
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console
from rich.progress import track
from torch import Tensor
from transformers.utils.logging import disable_progress_bar

from headwise.recipes import load_recipe
from headwise.recipes.catalogue import task_class
from headwise.recipes.settings import Recipe
from headwise.recipes.shipped import shipped_recipes
from headwise.runs.preparing import batches, build_model
from headwise.training.run import run_training

BUILT_IN: dict[str, dict[str, Any]] = {
    "translation": {"corpus": "interface-strings", "language": "fr"},
    "language-modelling": {"corpus": "pydoc-topics"},
    "masked-language-modelling": {"corpus": "pydoc-topics"},
    "classification": {"corpus": "docstrings", "max_length": 64},
    "probing": {"corpus": "generated", "texts": {"corpus": "docstrings"}, "probe": "SeLen"},
    "images": {"corpus": "digits"},
    "speech-enhancement": {
        "corpus": "generated",
        "seconds": 1,
        "speakers": 10,
        "utterances": 20,
        "noise": ["white", "babble"],
    },
}
FROM_ELSEWHERE = {"hub", "files", "folders", "glue", "senteval"}
STEPS: dict[str, Any] = {
    "max_steps": 2,
    "evaluate_every": 2,
    "log_every": 1,
    "epochs": None,
    "precision": "float32",
    "loader_workers": 0,
    "gradient_accumulation": 1,
    "batch_tokens": 600,
    "patience": None,
    "report_to": [],
}
WIDEST = 256


class First:
    """The first items of a part."""

    def __init__(self, items: Any, number: int) -> None:
        self.items, self.number = items, min(number, len(items))
        self.lengths = list(islice(items.lengths, self.number))

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> Any:
        return self.items[range(self.number)[index]]


def main() -> None:
    """Save fingerprints, or say which of them differ from saved ones."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("action", choices=["save", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("recipes", nargs="*", help="by default every shipped one")
    options = parser.parse_args()
    torch.set_num_threads(1)
    disable_progress_bar()
    names = options.recipes or sorted(shipped_recipes())
    found = {name: fingerprints(name) for name in track(names, "recipes")}
    if options.action == "save":
        options.file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return
    before = json.loads(options.file.read_text(encoding="utf-8"))
    changed = [
        f"{name}, {system}: {', '.join(k for k in was | now if was.get(k) != now.get(k))}"
        for name in names
        for system in before.get(name, {}) | found[name]
        if (was := before.get(name, {}).get(system, {})) != (now := found[name].get(system, {}))
    ]
    print("\n".join(changed) or f"no number of {len(names)} recipes has changed")
    raise SystemExit(bool(changed))


def fingerprints(name: str) -> dict[str, dict[str, Any]]:
    """Those of each system of a recipe."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.yaml"
        path.write_text(yaml.safe_dump(small_recipe(name), sort_keys=False), encoding="utf-8")
        recipe = load_recipe(str(path))
        return {system: of_system(recipe.system(system)) for system in recipe.system_names}


def small_recipe(name: str) -> dict[str, Any]:
    """A shipped recipe with data that are here, a narrow model and few steps."""
    raw: dict[str, Any] = without(yaml.safe_load(load_recipe(name).yaml()), {"pretrained"})
    task = raw.get("task", "translation")
    if raw.pop("datasets", None) or task == "probing" or raw["data"]["corpus"] in FROM_ELSEWHERE:
        raw["data"] = BUILT_IN[task]
    elif raw["data"]["corpus"] == "pair":
        raw["data"] = {
            "corpus": "pair",
            "left": BUILT_IN["images"],
            "right": {"corpus": "photographs"},
        }
    for size in ("vocab_size", "source_vocab_size", "target_vocab_size"):
        if (raw.get("tokenizer") or {}).get(size):
            raw["tokenizer"][size] = min(raw["tokenizer"][size], 1000)
    if "adaptive_cutoffs" in raw["model"]:
        raw["model"]["adaptive_cutoffs"] = [100, 300]
    if "palette" in raw:
        raw["palette"]["colors"] = 32
    if "block_length" in raw:
        raw["block_length"] = min(raw["block_length"], 64)
        raw.pop("evaluation")
    if raw["model"]["embed_dim"] > WIDEST:
        for part in (raw, *raw["systems"].values()):
            model = part.get("model", {})
            if part is raw or "embed_dim" in model or "num_heads" in model:
                heads = model.get("num_heads", raw["model"]["num_heads"])
                model |= {"embed_dim": 32 * heads, "ffn_dim": 32 * heads}
    raw["training"] |= STEPS
    raw["training"].get("weighted", {}).pop("freeze_last", None)
    for system in raw["systems"].values():
        training = system.get("training", {})
        for key in STEPS.keys() & training.keys():
            del training[key]
    return raw


def without(values: Any, keys: set[str]) -> Any:
    """Nested values without some keys."""
    if isinstance(values, dict):
        return {key: without(value, keys) for key, value in values.items() if key not in keys}
    return values


def of_system(recipe: Recipe) -> dict[str, Any]:
    """The fingerprints of one system: of its data, its training and its final model."""
    with tempfile.TemporaryDirectory() as folder:
        task = task_class(recipe.task).prepare(recipe, Path(folder))
        validation = First(task.validation, 2)
        model = build_model(recipe, task)
        found: dict[str, Any] = {"start": digest(model.state_dict())}
        found["data"] = digest(list(islice(batches(task, task.train, recipe.training, seed=1), 2)))
        console = Console(quiet=True)
        run = run_training(
            model,
            task.train,
            validation,
            task.collate,
            recipe.training,
            Path(folder),
            console=console,
        )
    found["losses"] = [
        {key: value for key, value in record.items() if "loss" in key or key == "step"}
        for record in run.history
    ]
    found["end"] = digest(run.model.state_dict())
    batch = task.collate([validation[index] for index in range(len(validation))])
    with torch.no_grad():
        found["output"] = digest(dict(run.model.eval()(**batch)))
    return found


def digest(values: Any) -> str:
    """A hash of nested values, of tensors to the last bit."""
    hashed = hashlib.sha256()
    for piece in pieces(values):
        hashed.update(piece)
    return hashed.hexdigest()[:16]


def pieces(values: Any) -> Iterator[bytes]:
    """The bytes of nested values."""
    if isinstance(values, Tensor):
        yield str(values.dtype).encode()
        yield values.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    elif hasattr(values, "items"):
        for key, value in values.items():
            yield str(key).encode()
            yield from pieces(value)
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from pieces(value)
    elif values is not None and not hasattr(values, "__dict__"):
        yield repr(values).encode()


if __name__ == "__main__":
    main()
