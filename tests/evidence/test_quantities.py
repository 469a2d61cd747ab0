"""What is made of the scores of runs."""

import numpy as np
import pytest
from tiny_results import drawn

from evidence.quantities import within_runs
from headwise.analysis.statistics.seeds_and_items import contrast


def test_a_change_within_runs_does_not_hold_what_runs_differ_by():
    before = drawn(np.random.default_rng(3), of_seeds=10.0)
    after = before._replace(scores=before.scores + 0.3, resamples=before.resamples + 0.3)
    change = within_runs(after, before._replace(resamples=before.resamples * 0.999))
    found = contrast([change])
    assert found.value == pytest.approx(0.3) and found.high - found.low < 1.0
    # A test of two systems would see nothing.
    assert contrast([after, before]).p_value > 0.5
