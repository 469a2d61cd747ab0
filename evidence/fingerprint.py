"""Tells whether the code still computes what it did when a result was made.

A hash of source files would change with each comment. So numbers are compared: the model of the
recipe is trained for three steps on random inputs by the rules of its systems, without dropout;
the losses of these steps, and that in evaluation, are its fingerprint. It sees the heads, the
models, auxiliary losses and rules, and no change of dropout, of the trainer or of beam search.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedConfig, set_seed

from evidence.experiments import recipe_hash
from evidence.results import Run
from headwise.models.base import HeadwiseModel
from headwise.recipes.catalogue import task_class
from headwise.recipes.settings import Recipe
from headwise.training.rules import TrainingRules

_STEPS, _LENGTH, _BATCH = 3, 12, 4
_RATE = 1e-3
_MANY_STEPS = 100_000  # of a run whose budget is in epochs
# Rounding that differs by machine and number of threads stays far below this.
_TOLERANCE = 1e-3
_COMPUTED: dict[str, list[float]] = {}  # hash of a recipe to its fingerprint


def fingerprint(recipe: Recipe) -> list[float]:
    """Returns the numbers that the code computes for a recipe of one system, computed once."""
    key = recipe_hash(recipe)
    if key not in _COMPUTED:
        _COMPUTED[key] = _compute(recipe)
    return _COMPUTED[key]


def _compute(recipe: Recipe) -> list[float]:
    task = task_class(recipe.task)
    config = task.nominal_config(recipe)
    for name in ("dropout", "attention_dropout", "ffn_dropout"):
        setattr(config, name, 0.0)
    with torch.random.fork_rng():
        set_seed(1)
        model = task.model_class(config)
        lengths = dict.fromkeys(task.cost_lengths(recipe), _LENGTH)
        inputs = {
            name: _random(tensor, config) for name, tensor in model.example_inputs(lengths).items()
        }
        rules = TrainingRules(model, recipe.training.of_rules())
        rules.total_steps = recipe.training.max_steps or _MANY_STEPS
        optimizer = torch.optim.AdamW(rules.parameter_groups(lr=_RATE, weight_decay=0.0))
        numbers = []
        model.train()
        for _ in range(_STEPS):
            rules.before_step(lambda: _square(model, inputs))
            with rules.step(optimizer):
                loss = _square(model, inputs)
                loss.backward()
            optimizer.step()
            rules.after_step()
            optimizer.zero_grad()
            numbers.append(loss.item())
        model.eval()
        with torch.no_grad():
            numbers.append(_square(model, inputs).item())
    return numbers


def _random(example: Tensor, config: PreTrainedConfig) -> Tensor:
    """Several sequences of random tokens, or of numbers from 0 to 1, in the shape of an example."""
    shape = (_BATCH, *example.shape[1:])
    if example.is_floating_point():
        return torch.rand(shape)  # of speech: magnitudes
    sizes = [getattr(config, name, None) for name in ("vocab_size", "target_vocab_size")]
    return torch.randint(3, min(size for size in sizes if size), shape)


def _square(model: HeadwiseModel, inputs: Mapping[str, Tensor]) -> Tensor:
    """A loss without labels: the mean square of the outputs, and what systems add in training."""
    outputs = model(**inputs)
    logits: Tensor = outputs.logits
    added = getattr(outputs, "auxiliary_loss", None)
    return logits.square().mean() + (0.0 if added is None else added)


def computes_alike(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two fingerprints are those of the same computation.

    >>> computes_alike([1.0, 2.0], [1.00001, 2.0]), computes_alike([1.0, 2.0], [1.0, 2.1])
    (True, False)
    """
    return len(one) == len(other) and all(
        math.isclose(a, b, rel_tol=_TOLERANCE) for a, b in zip(one, other, strict=True)
    )


def is_stale(runs: Sequence[Run], recipe: Recipe) -> bool:
    """Whether one of the runs was made by code that computes otherwise than today's."""
    return any(not computes_alike(run.fingerprint, fingerprint(recipe)) for run in runs)
