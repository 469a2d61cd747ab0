"""How long models take, system against system: steps of training, and generation.

Models are measured in turns: a round runs each of them on the same inputs, one after the other, and
ratios are taken within a round, so that a machine whose speed drifts does not matter. The median
over rounds counts, with the interval of order statistics (Conover 1999, *Practical Nonparametric
Statistics*, section 3.2).
"""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from headwise.models.modeling import HeadwiseModel
from headwise.tasks.scores import Record
from headwise.training.loss import flush_denormal
from headwise.training.rules import TrainingRules, settings_in_use

Batch = dict[str, Tensor]
# The second and the eighth of nine rounds are the ends of the interval: one may be disturbed.
_ROUNDS = 9
_TEXTS, _TOKENS = 8, 32  # how many texts are continued at once, and by how many tokens


class OverRounds(Record):
    """The median of a figure over the rounds of a measurement, with its 95% interval."""

    value: float
    low: float  # with fewer than six rounds, which have no interval, the lowest figure
    high: float
    rounds: int

    @classmethod
    def from_figures(cls, figures: Sequence[float]) -> Self:
        """Returns the median of one figure per round, with its interval.

        >>> print(OverRounds.from_figures([1.2, 1.0, 1.1, 1.3, 1.4, 1.6, 1.5, 9.0, 1.7]))
        value=1.4 low=1.1 high=1.7 rounds=9
        """
        from scipy.stats import quantile_test  # takes a second

        low, high = min(figures), max(figures)
        if len(figures) >= 6:
            low, high = quantile_test(figures, p=0.5).confidence_interval(0.95)
        value = statistics.median(figures)
        return cls(value=value, low=float(low), high=float(high), rounds=len(figures))


def relative_step_times(
    models: Mapping[str, HeadwiseModel],
    settings: Mapping[str, Mapping[str, Any]],
    batches: Sequence[Batch],
) -> dict[str, OverRounds]:
    """Times a forward and backward pass of each model, and divides it by that of the first.

    Where the rule of a system takes further passes, their share is part of the time. The models are
    of no use afterwards: rules may change their parameters. `settings` are those of rules, as
    `training.rules` of a recipe, and `batches` those of one round.
    """
    rules = {name: _attach_rules(model, settings[name]) for name, model in models.items()}

    def measure(name: str) -> float:
        return sum(_step_seconds(models[name], rules[name], batch) for batch in batches)

    with flush_denormal():  # as in training
        return _ratios(_take_turns(models, measure))


def relative_decoding_times(models: Mapping[str, HeadwiseModel]) -> dict[str, OverRounds]:
    """Times the generation of a token by each model, and divides it by that of the first.

    All models continue the same texts by the same number of tokens, each the most probable one.
    The result is empty if the models generate nothing.
    """
    first = next(iter(models.values()))
    if not first.can_generate():
        return {}
    max_positions = getattr(first.config, "max_positions", None) or 2 * _TOKENS
    tokens = min(_TOKENS, max_positions // 2)
    # What a model reads does not change how long it takes.
    texts = torch.ones(_TEXTS, tokens, dtype=torch.long, device=first.device)
    lengths = {"min_new_tokens": tokens, "max_new_tokens": tokens}

    def measure(name: str) -> float:
        model: Any = models[name].eval()
        options = {"attention_mask": texts, "do_sample": False, **lengths}
        return _seconds(model, lambda: model.generate(texts, **options))

    return _ratios(_take_turns(models, measure))


def _take_turns(models: Iterable[str], measure: Callable[[str], float]) -> dict[str, list[float]]:
    """Measures each model in each round, one model after the other."""
    rounds = [{name: measure(name) for name in models} for _ in range(1 + _ROUNDS)]
    return {name: [each[name] for each in rounds[1:]] for name in models}  # the first takes longer


def _ratios(seconds: Mapping[str, Sequence[float]]) -> dict[str, OverRounds]:
    baseline = next(iter(seconds.values()))
    return {
        name: OverRounds.from_figures([a / b for a, b in zip(times, baseline, strict=True)])
        for name, times in seconds.items()
    }


def _attach_rules(model: HeadwiseModel, settings: Mapping[str, Any]) -> TrainingRules:
    """Makes the rules of a model, with which its systems compute as in training."""
    settings = settings_in_use(model, settings)
    rules = TrainingRules(model, total_steps=1_000_000, settings=settings)
    rules.attach(torch.optim.SGD(rules.parameter_groups(lr=0.0)))
    return rules


def _step_seconds(model: Any, rules: TrainingRules, batch: Batch) -> float:
    """Times the passes of one step."""
    model.train()
    seconds = _seconds(model, lambda: model(**batch).loss.backward())
    model.zero_grad(set_to_none=True)
    for rule in rules.rules.values():
        if rule.steps_before:  # the first step has all that such a rule does once in `period`
            further = _seconds(model, lambda: rules.before_step(lambda: model(**batch).loss))
            seconds += further / getattr(rule.settings, "period", 1)
    return seconds


def _seconds(model: HeadwiseModel, run: Callable[[], object]) -> float:
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
