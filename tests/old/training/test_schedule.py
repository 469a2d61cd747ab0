"""Learning rate schedules."""

from itertools import pairwise

import pytest
import torch

from headwise.training.schedule import Plateau, learning_rate_factor


@pytest.mark.parametrize("schedule", ["inverse-sqrt", "linear", "cosine", "constant"])
def test_grows_in_a_straight_line_to_one_at_the_end_of_the_warmup(schedule):
    factors = [learning_rate_factor(step, schedule, 4, 100) for step in range(4)]
    assert factors == [0.25, 0.5, 0.75, 1.0]


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


def test_cosine_falls_slowly_then_fast_then_slowly_to_nearly_zero():
    factors = [learning_rate_factor(step, "cosine", 3, 103) for step in range(2, 104)]
    falls = [a - b for a, b in pairwise(factors)]
    assert factors[0] == 1.0 and factors[-1] == 0.0
    assert 0.0 < factors[-2] < 0.001  # the last step
    assert min(falls) > 0 and falls[50] == pytest.approx(max(falls), rel=0.01)
    # As far above the middle on one side as below it on the other.
    assert [a + b for a, b in zip(factors, reversed(factors), strict=True)] == pytest.approx(
        [1.0] * len(factors)
    )
    assert learning_rate_factor(500, "cosine", 3, 103) == 0.0


def test_plateau_waits_for_its_patience_and_forgets_after_a_better_loss():
    plateau = Plateau(warmup=0, factor=0.5, patience=3)
    scales = []
    for loss in (5.0, 6.0, 6.0, 4.0, 4.0, 4.0, 4.0, 4.5, 3.9, 4.0, 4.0, float("nan")):
        plateau.validated(loss)
        scales.append(plateau(100))
    # An equal loss is no better one, and NaN is none either.
    assert scales == [1.0] * 6 + [0.5] * 5 + [0.25]


def test_plateau_goes_on_from_the_state_of_its_scheduler():
    def scheduler():
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        plateau = Plateau(warmup=0, factor=0.5, patience=2)
        return optimizer, plateau, torch.optim.lr_scheduler.LambdaLR(optimizer, plateau)

    optimizer, plateau, before = scheduler()
    for loss in (1.0, 2.0, 2.0, 2.0):
        plateau.validated(loss)
    state = before.state_dict()
    optimizer, plateau, after = scheduler()
    after.load_state_dict(state)
    plateau.validated(2.0)  # the second since the rate fell
    optimizer.step()
    after.step()
    assert optimizer.param_groups[0]["lr"] == 0.25
