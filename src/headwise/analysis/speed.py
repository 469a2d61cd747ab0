"""How long models take, system against system: steps of training, and generation.

Everything is measured in turns: a round runs every model on the same inputs, one model after the
other, and ratios are taken within a round, so that a machine whose speed drifts does not matter.
The median over rounds counts. Its interval is that of order statistics: how many of n rounds lie
below the true median has a binomial distribution with probability 1/2 (Conover 1999, *Practical
Nonparametric Statistics*, section 3.2), whatever the distribution of times is.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headwise.models.inspect import systems
from headwise.models.plan import system_class
from headwise.tasks.scores import Record
from headwise.training.loss import own_draws
from headwise.training.rules import TrainingRules, training_rules

Batch = dict[str, Tensor]
_TEXTS, _GENERATED = 8, 32  # that are continued at once, and tokens that each gets


class OverRounds(Record):
    """The median of a figure over the rounds of a measurement, with its 95% interval."""

    value: float  # the median over rounds
    # Lower end of the interval of the median; with fewer than six rounds, which have none, the
    # lowest figure.
    low: float
    high: float  # upper end, or the highest figure
    rounds: int  # number of rounds

    @classmethod
    def of(cls, figures: Sequence[float]) -> Self:
        """Returns the median of one figure per round.

        >>> print(OverRounds.of([1.2, 1.0, 1.1, 1.3, 1.4, 1.6, 1.5, 9.0, 1.7]))
        value=1.4 low=1.1 high=1.7 rounds=9
        """
        from scipy.stats import quantile_test  # imported here: it takes a second

        low, high = min(figures), max(figures)
        if len(figures) >= 6:
            low, high = quantile_test(figures, p=0.5).confidence_interval(0.95)
        return cls(
            value=statistics.median(figures), low=float(low), high=float(high), rounds=len(figures)
        )


class Rounds(NamedTuple):
    """How often a measurement is repeated."""

    least: int  # so often in any case; one round more goes first and is not counted
    most: int
    seconds: float = 0.0  # between the two, no further round begins after this time


class DecodingSpeed(Record):
    """How fast a model generates."""

    tokens_per_second: OverRounds
    relative_time: OverRounds  # time for a token divided by the baseline's, within each round


def relative_step_times(
    models: Mapping[str, PreTrainedModel],
    settings: Mapping[str, Mapping[str, Any]],
    batches: Sequence[Batch],
    rounds: Rounds,
) -> dict[str, OverRounds]:
    """The time of each model's forward and backward pass over that of the first.

    Where a system's rule of training takes further passes, their share is part of the time.
    Parameters do not change, but running statistics do. As in training, the smallest numbers are
    taken as zero.
    """
    rules = {name: _attached_rules(model, settings[name]) for name, model in models.items()}

    def measure(name: str) -> float:
        return sum(_step_seconds(models[name], rules[name], batch) for batch in batches)

    torch.set_flush_denormal(True)
    try:
        return _relative(_in_turns(list(models), measure, rounds))
    finally:
        torch.set_flush_denormal(False)


def step_seconds(
    model: PreTrainedModel, settings: Mapping[str, Any], batches: Sequence[Batch]
) -> float:
    """The time of a model's forward and backward pass, the median over batches behind the first."""
    rules = _attached_rules(model, settings)
    seconds = [_step_seconds(model, rules, batch) for batch in (batches[0], *batches)]
    return statistics.median(seconds[1:])


def decoding_speeds(
    models: Mapping[str, PreTrainedModel], rounds: Rounds
) -> dict[str, DecodingSpeed]:
    """How many tokens each model generates in a second, and its time per token over the first's.

    All models write the same number of tokens behind the same random ones, always the most probable
    token. Empty if they generate nothing.
    """
    first = next(iter(models.values()))
    if not first.can_generate():
        return {}
    longest = getattr(first.config, "max_positions", None) or 2 * _GENERATED
    number = min(_GENERATED, longest // 2)
    # What a model reads does not change how long it takes.
    given = torch.arange(_TEXTS * number).reshape(_TEXTS, number) % first.config.vocab_size

    def measure(name: str) -> float:
        model = models[name].eval()
        tokens = given.to(model.device)
        length = {"min_new_tokens": number, "max_new_tokens": number, "do_sample": False}
        mask = torch.ones_like(tokens)
        seconds = _seconds(model, lambda: model.generate(tokens, attention_mask=mask, **length))
        return seconds / (_TEXTS * number)

    seconds = _in_turns(list(models), measure, rounds)
    relative = _relative(seconds)
    return {
        name: DecodingSpeed(
            tokens_per_second=OverRounds.of([1 / each for each in of_name]),
            relative_time=relative[name],
        )
        for name, of_name in seconds.items()
    }


def _in_turns(
    names: Sequence[str], measure: Callable[[str], float], rounds: Rounds
) -> dict[str, list[float]]:
    """What `measure` finds of each name in each round, after one that is not counted."""
    found: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        measure(name)
    start = time.perf_counter()
    for done in range(rounds.most):
        if done >= rounds.least and time.perf_counter() - start > rounds.seconds:
            break
        for name in names:
            found[name].append(measure(name))
    return found


def _relative(found: Mapping[str, Sequence[float]]) -> dict[str, OverRounds]:
    """Figures over those of the first name in the same round."""
    first = next(iter(found.values()))
    return {
        name: OverRounds.of([own / of_first for own, of_first in zip(of_name, first, strict=True)])
        for name, of_name in found.items()
    }


def _attached_rules(model: PreTrainedModel, settings: Mapping[str, Any]) -> TrainingRules:
    """The rules of a model, whose systems then compute as in training; nothing is updated."""
    held = {type(system).rule for system in systems(model).values()}
    own = {key: of for key, of in settings.items() if system_class(key).rule in held}
    rules = training_rules(model, total_steps=1_000_000, settings=own)
    rules.attach(torch.optim.SGD(rules.parameter_groups(lr=0.0)))
    return rules


def _step_seconds(model: PreTrainedModel, rules: TrainingRules, batch: Batch) -> float:
    model.train()
    # The random state of the caller's run is none of a measurement's business.
    with own_draws():
        seconds = _seconds(model, lambda: model(**batch).loss.backward())
    model.zero_grad(set_to_none=True)
    for rule in rules.rules.values():
        if rule.steps_before:
            # The first step of a training has what such a rule does in one of so many.
            seconds += _seconds_before(model, rules, batch) / getattr(rule.settings, "period", 1)
    return seconds


def _seconds_before(model: PreTrainedModel, rules: TrainingRules, batch: Batch) -> float:
    """The time of what rules compute before a step; parameters are then as they were."""
    moved = [p for rule in rules.rules.values() for p in rule.without_optimizer()]
    before = [p.detach().clone() for p in moved]
    with own_draws():
        seconds = _seconds(model, lambda: rules.before_step(lambda: model(**batch).loss))
    with torch.no_grad():
        for parameter, value in zip(moved, before, strict=True):
            parameter.copy_(value)
    return seconds


def _seconds(model: PreTrainedModel, run: Callable[[], object]) -> float:
    _synchronize(model)
    start = time.perf_counter()
    run()
    _synchronize(model)
    return time.perf_counter() - start


def _synchronize(model: PreTrainedModel) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize()
