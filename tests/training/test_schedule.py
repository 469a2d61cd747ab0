"""Learning rate schedules."""

from itertools import pairwise

import pytest
import torch

from headwise.training.schedule import learning_rate_factor, learning_rate_scheduler


@pytest.mark.parametrize("schedule", ["inverse-sqrt", "linear", "constant"])
def test_grows_in_a_straight_line_to_one_at_the_end_of_the_warmup(schedule):
    factors = [learning_rate_factor(step, schedule, 4, 100) for step in range(4)]
    assert factors == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize("schedule", ["inverse-sqrt", "linear", "constant"])
@pytest.mark.parametrize("warmup", [0, 1])
def test_without_warmup_starts_at_the_peak(schedule, warmup):
    assert learning_rate_factor(0, schedule, warmup, 100) == pytest.approx(1.0, abs=0.02)


def test_inverse_square_root_halves_at_four_times_the_warmup():
    assert learning_rate_factor(4 * 100 - 1, "inverse-sqrt", 100, 10**6) == 0.5


def test_inverse_square_root_is_that_of_the_transformer_paper():
    # d^-0.5 · min(s^-0.5, s · w^-1.5) has its peak (d · w)^-0.5 at the end of the warm-up.
    width, warmup = 512, 4000
    peak = (width * warmup) ** -0.5
    for step in (1, 100, 4000, 4001, 100_000):
        paper = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
        ours = peak * learning_rate_factor(step - 1, "inverse-sqrt", warmup, 10**6)
        assert ours == pytest.approx(paper)


def test_linear_falls_evenly_and_is_not_zero_at_the_last_step():
    factors = [learning_rate_factor(step, "linear", 2, 10) for step in range(1, 11)]
    falls = [a - b for a, b in pairwise(factors)]
    assert factors[0] == 1.0
    assert falls == pytest.approx([1 / 9] * 9)
    assert factors[8] == pytest.approx(1 / 9)  # the tenth and last step
    assert factors[9] == 0.0


def test_linear_never_falls_below_zero():
    assert learning_rate_factor(50, "linear", 2, 10) == 0.0


def test_constant_stays():
    assert {learning_rate_factor(step, "constant", 5, 10) for step in range(5, 500)} == {1.0}


def test_scheduler_multiplies_the_peak():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    scheduler = learning_rate_scheduler(optimizer, "inverse-sqrt", 2, 100)
    rates = []
    for _ in range(8):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates[:2] == pytest.approx([0.15, 0.3])
    assert rates[7] == pytest.approx(0.15)
