"""The least, mean and greatest weight of frequent tokens, against plain loops."""

import pytest
import torch
from decided import Places, standing

from headwise.analysis.decisions.ranges import TOKENS, UNITS, Ranges


def batch(seed, units=6, time=12):
    generator = torch.Generator().manual_seed(seed)
    weights = torch.softmax(3 * torch.rand(5, time, units, generator=generator), -1)
    # Small numbers are frequent.
    tokens = (40 * torch.rand(5, time, generator=generator) ** 3).long()
    return weights, tokens


def ranges(*batches, padding=None):
    counted, places = Ranges(), Places("encoder_self", 1)
    for weights, tokens in batches:
        counted.add(places.observed([weights], standing(tokens), padding))
    (found,) = counted.result()
    return found


def test_they_are_what_a_plain_loop_finds():
    batches = [batch(0), batch(1)]
    found = ranges(*batches)
    occurrences = {}
    for weights, tokens in batches:
        for row, rows in zip(tokens.tolist(), weights, strict=True):
            for token, weight in zip(row, rows, strict=True):
                occurrences.setdefault(token, []).append(weight.double())
    counts = {token: len(of) for token, of in occurrences.items()}
    assert [each.count for each in found.tokens] == sorted(counts.values(), reverse=True)[:TOKENS]
    for each in found.tokens:
        stacked = torch.stack(occurrences[each.token])
        assert each.name == f"t{each.token}" and each.count == len(stacked)
        means = stacked.mean(0)
        assert [unit.unit for unit in each.units] == means.argsort(descending=True)[:UNITS].tolist()
        for unit in each.units:
            column = stacked[:, unit.unit]
            expected = [float(value) for value in (column.min(), column.mean(), column.max())]
            assert [unit.least, unit.mean, unit.greatest] == pytest.approx(expected, abs=1e-6)
    rows = torch.cat([weights.flatten(0, 1) for weights, _ in batches]).double()
    tokens = torch.cat([tokens.flatten() for _, tokens in batches])
    means = torch.stack([rows[tokens == token].mean(0) for token in tokens])
    spread = (means - rows.mean(0)).square().sum(1).mean().sqrt()
    assert found.spread == pytest.approx(float(spread), rel=1e-5)


def test_nothing_is_said_where_no_token_stands_or_a_decision_is_of_no_position():
    counted, places = Ranges(), Places("encoder_self", 1)
    weights, tokens = batch(5)
    counted.add(places.observed([weights]))
    counted.add(places.observed([weights[:, 0]], standing(tokens)))
    counted.add(places.observed([weights * torch.nan], standing(tokens)))  # of a run that diverged
    assert counted.result() == []
