"""CKA of heads from running sums: known pairs, the definition in plain loops, and chance."""

import math

import pytest
import torch

from headwise.analysis.decisions.cka import HeadMoments

DOUBLE = torch.float64


def cka(*heads, dtype=DOUBLE, batches=1):
    """Of heads that are `(positions, head_dim)` each."""
    moments = HeadMoments()
    for part in torch.stack(heads, dim=1).to(dtype).chunk(batches):
        moments.add(part)
    return moments.cka()


def naive_hsic(x, y):
    """The unbiased estimate as the equation reads, with the kernels themselves."""
    n = len(x)
    k, m = ([[float(a @ b) if i != j else 0.0 for j, b in enumerate(z)] for i, a in enumerate(z)]
            for z in (x, y))  # fmt: skip
    trace = sum(k[i][j] * m[j][i] for i in range(n) for j in range(n))
    sums = sum(map(sum, k)) * sum(map(sum, m))
    product = sum(sum(k[i]) * sum(m[i]) for i in range(n))
    return (trace + sums / (n - 1) / (n - 2) - 2 * product / (n - 2)) / (n * (n - 3))


def naive_cka(x, y):
    return naive_hsic(x, y) / math.sqrt(naive_hsic(x, x) * naive_hsic(y, y))


@pytest.mark.parametrize("positions", [4, 7, 12])
def test_it_is_the_definition(positions):
    heads = [torch.randn(positions, 3, dtype=DOUBLE) + 2 for _ in range(3)]
    heads[1] += heads[0]
    made = cka(*heads)
    for i, x in enumerate(heads):
        for j, y in enumerate(heads):
            if naive_hsic(x, x) > 0 and naive_hsic(y, y) > 0:
                assert float(made[i, j]) == pytest.approx(naive_cka(x, y), abs=1e-9)
            else:  # so few positions may leave nothing of a head
                assert math.isnan(made[i, j])


def test_many_batches_are_as_one():
    heads = torch.randn(4, 60, 5, dtype=DOUBLE) * 3 + 100
    heads[1] += heads[0]
    together = cka(*heads)
    for batches in (2, 7, 60):
        torch.testing.assert_close(cka(*heads, batches=batches), together, rtol=1e-9, atol=1e-9)


def test_float32_outputs_far_from_zero_lose_nothing():
    heads = torch.randn(3, 500, 8, dtype=DOUBLE) + 50
    heads[1] += heads[0] - 50
    torch.testing.assert_close(
        cka(*heads, dtype=torch.float32, batches=5), cka(*heads), rtol=1e-4, atol=1e-5
    )


def test_copies_rotations_shifts_and_scales_are_alike():
    x = torch.randn(40, 6, dtype=DOUBLE)
    rotation, _ = torch.linalg.qr(torch.randn(6, 6, dtype=DOUBLE))
    made = cka(x, x.clone(), x @ rotation, 5 * x - 3)
    torch.testing.assert_close(made, torch.ones(4, 4, dtype=DOUBLE))


def test_another_map_of_the_same_is_less_alike():
    """CKA weighs directions by their variance: half of it shared gives a half."""
    shared, first, second = torch.randn(3, 4000, 1, dtype=DOUBLE)
    # Kernels of two equally strong directions each, one of them shared: 1 / √(2 · 2).
    made = cka(torch.cat([shared, first], 1), torch.cat([shared, second], 1))
    assert float(made[0, 1]) == pytest.approx(0.5, abs=0.05)


def test_independent_heads_are_at_zero_whatever_their_width():
    """The plain estimate would be near 1 with 20 positions of 64 dimensions."""
    draws = torch.stack([cka(torch.randn(20, 64), torch.randn(20, 64))[0, 1] for _ in range(300)])
    assert abs(float(draws.mean())) < 4 * float(draws.std()) / 300**0.5
    assert float(draws.std()) == pytest.approx(2**0.5 / 20, rel=0.25)


def test_a_head_that_says_the_same_everywhere_is_like_none():
    x = torch.randn(30, 4)
    for same in (torch.zeros(30, 4), torch.full((30, 4), 0.1) + torch.tensor([3.0, 1.0, 7.0, 0.3])):
        made = cka(x, same, x, dtype=torch.float32, batches=3)
        assert made[1].isnan().all() and made[:, 1].isnan().all()
        assert float(made[0, 2]) == pytest.approx(1.0, abs=1e-4)


def test_too_few_positions_say_nothing():
    assert cka(*torch.randn(2, 3, 4)).isnan().all()
    empty = HeadMoments()
    empty.add(torch.randn(0, 2, 4))
    assert empty.cka().shape == (0, 0)


def test_memory_does_not_grow():
    def numbers(moments):
        return sum(sum_.numel() for sum_ in moments.sums.values()) + moments.shift.numel()

    moments = HeadMoments()
    moments.add(torch.randn(10, 3, 4))
    before = numbers(moments)
    for _ in range(20):
        moments.add(torch.randn(10, 3, 4))
    assert numbers(moments) == before and moments.count == 210
