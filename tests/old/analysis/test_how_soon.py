"""How soon a system learns what the baseline does: histories with known answers."""

import math

import numpy as np
import pytest
from scipy.stats import ttest_ind

from headwise.analysis.how_soon import (
    by_training_loss,
    difference_at_equal_training_loss,
    how_soon,
    over_pairs,
    step_of,
    target,
)
from headwise.analysis.speed import OverRounds

TIME = OverRounds(value=1.5, low=1.2, high=2.0, rounds=9)


def history(losses, every=100):
    """Validations of a run."""
    return [{"step": every * n, "eval_loss": loss} for n, loss in enumerate(losses, 1)]


def falling(speed=1.0, steps=600, every=50, log_every=10, gap=0.3, noise=None):
    """Losses that fall as 2 + 5·exp(−speed·step/200), the training loss `gap` above."""

    def at(step):
        return 2 + 5 * math.exp(-speed * step / 200)

    made = []
    for step in range(log_every, steps + 1, log_every):
        middle = at(step - (log_every - 1) / 2)
        made.append({"step": step, "loss": middle + gap + (noise.normal(0, 0.05) if noise else 0)})
        if step % every == 0:
            made.append({"step": step, "eval_loss": at(step)})
    return made


# Steps


@pytest.mark.parametrize(
    ("losses", "step"),
    [
        ([5.0, 4.0, 3.0], 200),  # exactly at a validation
        ([5.0, 4.5, 3.5], 250),  # halfway between two
        ([3.0, 2.0, 1.0], 100),  # by the first: nothing is known before it
        ([5.0, 3.0, 9.0], 150),  # the first time counts
        ([math.nan, 3.0, 2.0], 200),  # no line from what is not known
        ([5.0, 4.1, 4.2], None),
        ([math.nan, math.nan], None),
        ([], None),
    ],
)
def test_the_first_step_at_a_loss(losses, step):
    assert step_of(history(losses), loss=4.0) == step


def test_the_target_is_the_lowest_loss_and_where_it_was_first():
    assert target(history([5.0, 3.0, 4.0, 3.0])) == (200, 3.0)
    assert target(history([math.nan, 3.0, math.inf])) == (200, 3.0)
    assert target(history([math.nan])) is None


def test_a_system_twice_as_fast_needs_half_of_the_steps():
    found = how_soon([falling(2.0)], [falling()], TIME)
    assert (found.pairs, found.reached, found.waited) == (1, 1, None)
    assert found.steps.value == pytest.approx(0.5, abs=1e-9)
    assert found.time.value == pytest.approx(0.75, abs=1e-9)
    # One seed tells nothing of the chance of training.
    assert found.steps.low is found.steps.high is found.time.low is None


def test_a_run_that_never_gets_there():
    found = how_soon([falling(0.5)], [falling()], TIME)
    assert (found.pairs, found.reached) == (1, 0)
    assert found.steps is found.time is None
    assert found.waited == 1.0


def test_a_baseline_that_got_worse_again_is_met_where_it_was_best():
    overfitted = history([5.0, 4.0, 3.0, 3.5, 4.0])
    found = how_soon([history([5.0, 3.0, 2.0, 2.0, 2.0])], [overfitted], TIME)
    assert found.steps.value == pytest.approx(200 / 300)


def test_pairs_that_never_get_there_count_as_the_slowest():
    baseline = [history([5.0, 4.0])]
    fast, slow, never = (history(losses) for losses in ([5.0, 3.0], [5.0, 3.9], [9.0, 8.0]))
    found = how_soon([fast, slow, never], baseline, TIME)
    assert (found.pairs, found.reached, found.waited) == (3, 2, 1.0)
    assert found.steps.value == pytest.approx((100 + 100 * 1.0 / 1.1) / 200)  # of the slow one
    assert found.steps.low is None
    # Of two, the one in the middle is that which never does.
    assert how_soon([fast, never], baseline, TIME).steps is None


def test_diverged_runs_are_no_targets_and_never_get_there():
    diverged = history([5.0, 4.5, math.nan, math.nan])
    whole = history([5.0, 4.0, 3.0, 2.0])
    found = how_soon([whole], [diverged, whole], TIME)
    assert (found.pairs, found.reached) == (1, 1)
    found = how_soon([diverged], [whole], TIME)
    assert (found.pairs, found.reached, found.waited) == (1, 0, 1.0)
    assert found.equal_training_loss is None
    assert how_soon([whole], [diverged], TIME).pairs == 0
    assert how_soon([whole], [history([math.nan])], TIME).steps is None


def test_a_run_that_was_validated_at_step_0_alone():
    untrained, whole = [{"step": 0, "eval_loss": 3.0}], history([5.0, 4.0, 3.0])
    assert how_soon([whole], [untrained], TIME).pairs == 0
    assert how_soon([whole], [untrained, whole], TIME).pairs == 1
    found = how_soon([untrained, whole, whole], [whole], TIME)
    assert (found.reached, found.steps.value, found.time.value) == (3, 1.0, 1.5)
    assert how_soon([untrained], [whole], TIME).time.value == 0.0


# Over seeds


def test_the_interval_is_welchs_where_both_systems_vary_alone():
    draw = np.random.default_rng(0)
    ours, theirs = draw.normal(3, 1, 4), draw.normal(1, 2, 3)
    found = over_pairs(ours[:, None] - theirs)
    expected = ttest_ind(ours, theirs, equal_var=False)
    interval = expected.confidence_interval(0.95)
    assert found.value == pytest.approx(ours.mean() - theirs.mean())
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (1, 1)])
def test_a_single_run_of_either_gives_no_interval(shape):
    found = over_pairs(np.arange(math.prod(shape), dtype=float).reshape(shape))
    assert found.low is found.high is None


def test_shares_are_averaged_as_logarithms():
    # Runs that need 1/2 and 2 times the steps of each run of the baseline are as fast as it is.
    baseline = [falling(), falling()]
    found = how_soon([falling(2.0), falling(0.5, steps=1200)], baseline, TIME)
    assert found.steps.value == pytest.approx(1.0)
    assert found.steps.low * found.steps.high == pytest.approx(1.0)
    assert found.steps.low < 0.5


@pytest.mark.slow
def test_the_interval_holds_the_true_share():
    """Runs whose speeds vary by a tenth; true share 0.8, three seeds each."""
    draw = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        theirs = [falling(math.exp(draw.normal(0, 0.1))) for _ in range(3)]
        ours = [falling(1.25 * math.exp(draw.normal(0, 0.1)), steps=1200) for _ in range(3)]
        steps = how_soon(ours, theirs, None).steps
        held += steps.low <= 0.8 <= steps.high
    assert held / 200 > 0.91


def test_the_interval_of_time_holds_that_of_a_step_too():
    runs = [falling(1.9), falling(2.1)]
    baseline = [falling(0.98), falling(1.02)]
    found = how_soon(runs, baseline, TIME)
    exact = OverRounds(value=1.5, low=1.5, high=1.5, rounds=9)
    narrow = how_soon(runs, baseline, exact)
    assert narrow.time.low == pytest.approx(1.5 * narrow.steps.low)
    assert found.time.value == narrow.time.value
    assert found.time.low < narrow.time.low < narrow.time.high < found.time.high
    # By no more than the two together.
    assert found.time.low > TIME.low * found.steps.low
    assert found.time.high < TIME.high * found.steps.high


# Loss at equal training loss


def test_the_training_loss_at_a_validation_is_that_of_its_step():
    points = by_training_loss(falling(gap=0.3))
    assert len(points) == 12
    # Away from the start, where the curve is bent.
    np.testing.assert_allclose(points[4:, 0] - points[4:, 1], 0.3, atol=0.01)


def test_a_gap_in_generalisation_is_found_whatever_the_speed():
    """A system that learns faster and has the same losses as the baseline is 0 apart."""
    fine = {"every": 20, "log_every": 4}
    baseline = by_training_loss(falling(**fine))
    same = difference_at_equal_training_loss(by_training_loss(falling(2.0, **fine)), baseline)
    assert same == pytest.approx(0, abs=0.02)
    # Its training loss is higher by 0.5, which is as good as a lower validation loss.
    better = by_training_loss(falling(2.0, gap=0.8, **fine))
    assert difference_at_equal_training_loss(better, baseline) == pytest.approx(-0.5, abs=0.02)
