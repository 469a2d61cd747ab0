"""What is made of the scores of runs."""

import numpy as np
import pytest
from tiny_results import drawn

from evidence.claims import Quantity, Subject
from evidence.quantities import find_quantity, within_runs
from evidence.results import Run
from headwise.analysis.statistics.seeds_and_items import contrast
from headwise.recipes import load_recipe
from headwise.tasks.outcome import Score


def test_the_loss_of_masked_models_is_over_all_draws_of_the_masks():
    recipe = load_recipe("tim-bert").recipe
    score = Score(name="perplexity", value=1.0, higher_is_better=False)
    rows = {"loss": [[9.0, 1]], "perplexity": [[2.0, 4, 1], [4.0, 8, 3]]}
    run = Run.model_construct(scores=[score], rows=rows, loss=9.0, ablations={})
    quantity, subject = Quantity(kind="loss"), Subject(system="standard")
    for draws, loss in ((1, 9.0), (4, 0.5)):
        evaluation = recipe.evaluation.model_copy(update={"draws": draws})
        changed = recipe.model_copy(update={"evaluation": evaluation})
        assert find_quantity(quantity, subject, [run], changed).mean == loss


def test_a_change_within_runs_does_not_hold_what_runs_differ_by():
    before = drawn(np.random.default_rng(3), of_seeds=10.0)
    after = before._replace(scores=before.scores + 0.3, resamples=before.resamples + 0.3)
    change = within_runs(after, before._replace(resamples=before.resamples * 0.999))
    found = contrast([change])
    assert found.value == pytest.approx(0.3) and found.high - found.low < 1.0
    # A test of two systems would see nothing.
    assert contrast([after, before]).p_value > 0.5
