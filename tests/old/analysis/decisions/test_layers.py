"""How alike layers decide, where the answer is known."""

import numpy as np
import pytest
import torch
from decided import Places, of_two, standing

from headwise.analysis.decisions.layers import Layers


def draws(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def weights(*shape, seed=0):
    return torch.softmax(4 * draws(*shape, seed=seed), -1)


def compared(layers, described=None, padding=None, site="encoder_self"):
    counted = Layers()
    counted.add(Places(site, len(layers)).observed(layers, described, padding))
    (found,) = counted.result()
    return found


def test_layers_that_decide_alike_are_alike_whatever_number_a_unit_bears():
    first = weights(4, 50, 3)
    found = compared([first, first, first[..., [2, 0, 1]]])
    assert (found.stack, found.of, found.rows) == ("encoder", "positions", 200)
    assert found.likeness == [[pytest.approx(1, abs=1e-9)] * 3] * 3
    assert found.first_unit is None


@pytest.mark.parametrize("units", [2, 8, 32])
def test_layers_that_decide_independently_are_not_alike_however_many_units_they_have(units):
    found = [
        compared([weights(3, 20, units, seed=seed), weights(3, 20, units, seed=100 + seed)])
        for seed in range(10)
    ]
    assert np.mean([each.likeness[0][1] for each in found]) == pytest.approx(0, abs=0.03)


def test_it_is_what_a_plain_loop_finds():
    layers = [weights(3, 6, 3, seed=1), weights(3, 6, 4, seed=2)]
    padding = torch.zeros(3, 6, dtype=torch.bool)
    padding[0, 2:] = padding[2, 5:] = True
    found = compared(layers, padding=padding)
    one, other = ([], [])
    for sequence in range(3):
        for time in range(6):
            if not padding[sequence, time]:
                one.append(layers[0][sequence, time].double().numpy())
                other.append(layers[1][sequence, time].double().numpy())
    one, other = np.array(one) - np.mean(one, 0), np.array(other) - np.mean(other, 0)
    # By the likeness of rows instead of the covariance of units: linear CKA as it is written.
    gram, of_other = one @ one.T, other @ other.T
    norm = np.linalg.norm(gram) * np.linalg.norm(of_other)
    rv = (gram * of_other).sum() / norm
    draw = np.random.default_rng(0)
    by_chance = np.mean([_rv(one[draw.permutation(len(one))], other) for _ in range(4000)])
    exactly = np.trace(gram) * np.trace(of_other) / norm / (len(one) - 1)
    assert exactly == pytest.approx(by_chance, abs=0.005)
    assert found.likeness[0][1] == pytest.approx((rv - exactly) / (1 - exactly), rel=1e-5)
    assert found.likeness[1][0] == found.likeness[0][1]
    assert found.rows == len(one)


def _rv(one, other):
    def norm(a, b):
        return (np.square(a.T @ b)).sum()

    return norm(one, other) / np.sqrt(norm(one, one) * norm(other, other))


def test_two_units_have_the_plain_correlation_too():
    first, second = draws(4, 25), draws(4, 25, seed=1)
    mixed = 0.5 * first + 0.5 * second
    found = compared([of_two(first), of_two(1 - first), of_two(mixed)])
    expected = np.corrcoef([first.flatten(), 1 - first.flatten(), mixed.flatten()])
    assert np.array(found.first_unit) == pytest.approx(expected, abs=1e-6)
    assert found.first_unit[0][1] == pytest.approx(-1)
    assert found.likeness[0][1] == pytest.approx(1)  # the units bear each other's numbers
    # Without what is expected by chance, which is 1 / (N − 1) for two units.
    chance = 1 / 99
    likeness = (expected[0, 2] ** 2 - chance) / (1 - chance)
    assert found.likeness[0][2] == pytest.approx(likeness, abs=1e-6)


def test_what_a_quantity_has_to_do_with_the_decisions():
    loudness = 30 * draws(4, 25) - 10
    aside = draws(4, 25, seed=1)
    layers = [of_two((loudness + 10) / 30), of_two(aside)]
    levels = {"loud": loudness, "other": aside}
    found = compared(layers, standing(torch.zeros(4, 25).long(), levels=levels))
    columns = [layers[0][..., 0], layers[1][..., 0], loudness, aside]
    expected = np.corrcoef([column.flatten() for column in columns])
    assert np.array(found.first_unit) == pytest.approx(expected, abs=1e-6)
    loud, other = found.levels
    assert (loud.level, other.level) == ("loud", "other")
    assert loud.shares[0] == pytest.approx(1) and other.shares[1] == pytest.approx(1)
    assert loud.shares[1] == pytest.approx(1 - (1 - expected[1, 2] ** 2) * 99 / 98, abs=1e-6)
    assert loud.units[0] == [pytest.approx(1), pytest.approx(-1)]


def test_a_quantity_that_several_units_say_together_is_explained():
    layer = weights(4, 50, 5)
    level = layer @ torch.tensor([1.0, -2.0, 3.0, 0.5, 0.0])
    unrelated = [weights(4, 50, 5, seed=seed) for seed in range(1, 9)]
    described = standing(torch.zeros(4, 50).long(), levels={"loud": level})
    (found,) = compared([layer, *unrelated], described).levels
    assert found.shares[0] == pytest.approx(1, abs=1e-6)
    assert np.mean(found.shares[1:]) == pytest.approx(0, abs=0.02)
    design = np.c_[np.ones(200), unrelated[0].reshape(200, 5)[:, :4].double().numpy()]
    y = level.flatten().double().numpy()
    residual = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    share = 1 - residual.var() / y.var()
    assert found.shares[1] == pytest.approx(1 - (1 - share) * 199 / 195, abs=1e-6)


def test_decisions_for_sequences_are_compared_over_sequences():
    layer = weights(12, 3)
    described = standing(torch.zeros(12, 7).long(), levels={"loud": draws(12, 7)})
    found = compared([layer, layer[:, [1, 2, 0]]], described)
    assert (found.of, found.rows, found.levels) == ("sequences", 12, [])
    assert found.likeness[0][1] == pytest.approx(1)


def test_what_does_not_vary_is_like_nothing():
    uniform = torch.full((4, 5, 3), 1 / 3)
    described = standing(torch.zeros(4, 5).long(), levels={"loud": draws(4, 5)})
    found = compared([uniform, weights(4, 5, 3)], described)
    assert found.likeness == [[None, None], [None, pytest.approx(1)]]
    assert found.levels[0].shares[0] is None and found.levels[0].units[0] == [None] * 3


def test_one_layer_has_nothing_to_be_compared_with():
    counted = Layers()
    counted.add(Places("encoder_self", 1).observed([weights(2, 4, 3)]))
    counted.add(Places("encoder_self", 2).observed([torch.tensor([0.3, 0.7])] * 2))
    assert counted.result() == []
