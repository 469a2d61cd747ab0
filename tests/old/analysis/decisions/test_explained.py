"""How much of the decisions a label explains, where the answer is known."""

import numpy as np
import pytest
import torch
from decided import Places, of_two, standing

from headwise.analysis.decisions.explained import Explained


def draws(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def classes_of(number, *shape, seed=1):
    return torch.randint(number, shape, generator=torch.Generator().manual_seed(seed))


def explained(weights, described, padding=None, site="encoder_self"):
    counted = Explained()
    counted.add(Places(site, 1).observed([weights], described, padding))
    return {record.label: record for record in counted.result()}


@pytest.mark.parametrize("number", [2, 50, 600])
def test_a_label_that_says_nothing_explains_nothing_however_many_classes_it_has(number):
    tokens = classes_of(number, 20, 50)
    shares = []
    for seed in range(10):
        weights = torch.softmax(3 * draws(20, 50, 3, seed=seed), -1)
        found = explained(weights, standing(tokens))["token"]
        shares.append(found.share)
    assert np.mean(shares) == pytest.approx(0, abs=0.03)
    if number == 600:  # uncorrected, it would seem to explain half
        assert found.between > 0.4


def test_positions_count_in_classes_that_double():
    first = torch.tensor([0.1, 0.2, 0.3, 0.3, 0.9, 0.9, 0.9, 0.9, 0.4])
    weights = of_two(first.expand(6, 9))
    found = explained(weights, None)
    assert set(found) == {"position"}
    assert found["position"].classes == 5
    assert found["position"].share == pytest.approx(1)


def test_it_is_what_a_plain_loop_finds():
    weights = torch.softmax(draws(3, 7, 4), -1)
    label = classes_of(3, 3, 7) - 1  # -1: no class
    padding = torch.zeros(3, 7, dtype=torch.bool)
    padding[1, 4:] = padding[2, 2:] = True
    described = standing(torch.zeros(3, 7, dtype=torch.long), {"half": label})
    found = explained(weights, described, padding)["half"]
    rows = {}
    for sequence in range(3):
        for time in range(7):
            if not padding[sequence, time] and label[sequence, time] >= 0:
                row = weights[sequence, time].double().numpy()
                rows.setdefault(int(label[sequence, time]), []).append(row / row.sum())
    everything = [row for of in rows.values() for row in of]
    mean = sum(everything) / len(everything)
    total = sum(((row - mean) ** 2).sum() for row in everything)
    between = sum(len(of) * ((sum(of) / len(of) - mean) ** 2).sum() for of in rows.values())
    n, c = len(everything), len(rows)
    within = (total - between) / (n - c)
    assert (found.rows, found.classes) == (n, c)
    assert found.between == pytest.approx(between / total, rel=1e-6)
    # Kelley's own form: what is between the classes beyond that of as many degrees of freedom.
    assert found.share == pytest.approx((between - (c - 1) * within) / total, rel=1e-6)


def test_a_label_of_sequences_counts_sequences():
    """Positions of one sequence resemble each other: they are no evidence of their own."""
    sentences = classes_of(2, 40)
    shares = []
    for seed in range(20):
        level = draws(40, 1, seed=seed).expand(40, 25)  # of each sequence, whatever its class
        described = standing(torch.zeros(40, 25).long(), {"class": sentences})
        found = explained(of_two(level), described)["class"]
        assert (found.rows, found.of) == (40, "sequences")
        shares.append(found.share)
    assert np.mean(shares) == pytest.approx(0, abs=0.03)


def test_a_decision_for_a_sequence_is_explained_by_labels_of_sequences_alone():
    sentences = torch.tensor([0, 0, 1, 1])
    weights = of_two(torch.tensor([0.1, 0.1, 0.7, 0.7]))  # (batch, units)
    tokens = classes_of(3, 4, 5)
    found = explained(weights, standing(tokens, {"class": sentences, "half": tokens % 2}))
    assert set(found) == {"class", "length"}
    assert (found["class"].rows, found["class"].share) == (4, pytest.approx(1))
    assert (found["length"].classes, found["length"].share) == (1, 0)


def test_the_length_of_sequences_may_explain_decisions_for_them():
    lengths = torch.tensor([1, 2, 3, 4, 5, 7])
    padding = torch.arange(7) >= lengths.unsqueeze(1)
    weights = of_two(torch.tensor([0.1, 0.3, 0.3, 0.8, 0.8, 0.8]))  # 1, 2 to 3, 4 to 7
    found = explained(weights, standing(torch.zeros(6, 7).long()), padding)["length"]
    assert (found.rows, found.classes, found.share) == (6, 3, pytest.approx(1))


def test_nothing_explains_what_does_not_vary():
    tokens = classes_of(3, 4, 5)
    assert explained(torch.tensor([0.25, 0.75]), standing(tokens)) == {}  # decided once and for all
    found = explained(torch.full((4, 5, 3), 1 / 3), standing(tokens))
    assert [(each.between, each.share) for each in found.values()] == [(None, None)] * 2
