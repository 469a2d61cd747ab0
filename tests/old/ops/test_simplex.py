"""The projection onto the simplex against what defines it."""

import pytest
import torch

from headwise.ops.simplex import keep_largest, project_to_simplex, random_simplex


@pytest.mark.parametrize("entries", [1, 2, 3, 8, 33])
@pytest.mark.parametrize("scale", [0.01, 1.0, 50.0])
def test_one_number_is_taken_from_all_that_stay_positive(entries, scale):
    x = (scale * torch.randn(entries, dtype=torch.float64)).requires_grad_()
    projected = project_to_simplex(x)
    taken = (x - projected)[projected > 0]
    torch.testing.assert_close(taken, taken[:1].expand_as(taken))
    assert (x[projected == 0] <= taken[0]).all()
    assert torch.autograd.gradcheck(project_to_simplex, x)


def test_no_point_of_the_simplex_is_nearer():
    x = torch.randn(200, 5, dtype=torch.float64)
    projected = project_to_simplex(x)
    torch.testing.assert_close(projected.sum(-1), torch.ones(200, dtype=torch.float64))
    assert (projected >= 0).all()
    others = torch.stack([random_simplex(5) for _ in range(300)]).double()
    distances = (others - x.unsqueeze(1)).norm(dim=-1).amin(-1)
    assert ((projected - x).norm(dim=-1) <= distances).all()


@pytest.mark.parametrize("large", [1e6, 1e30, -1e30])
def test_numbers_that_swallow_a_one(large):
    projected = project_to_simplex(torch.tensor([large, 0.0, large]))
    expected = [0.5, 0.0, 0.5] if large > 0 else [0.0, 1.0, 0.0]
    assert projected.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_near_as_it_can_be(dtype):
    x = torch.randn(200, 16).to(dtype)
    projected = project_to_simplex(x)
    assert projected.dtype == dtype
    exact = project_to_simplex(x.double()).to(dtype)
    torch.testing.assert_close(projected, exact, atol=0, rtol=torch.finfo(dtype).eps)


def test_random_points_are_spread_evenly():
    """Dirichlet(1, 1, 1): mean 1/3, variance 1/18, and each entry above ½ a quarter of the time."""
    generator = torch.Generator().manual_seed(0)
    points = torch.stack([random_simplex(3, generator=generator) for _ in range(4000)])
    torch.testing.assert_close(points.sum(-1), torch.ones(4000))
    assert (points >= 0).all()
    torch.testing.assert_close(points.mean(0), torch.full((3,), 1 / 3), rtol=0, atol=0.02)
    torch.testing.assert_close(points.var(0), torch.full((3,), 1 / 18), rtol=0.1, atol=0)
    torch.testing.assert_close(
        (points > 0.5).float().mean(0), torch.full((3,), 0.25), rtol=0, atol=0.03
    )


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_the_largest_are_kept(count):
    alpha = torch.rand(7, 4, dtype=torch.float64).softmax(-1).requires_grad_()
    for row in alpha:
        large = row >= row.sort().values[-count]
        expected = torch.where(large, row, 0) / row[large].sum()
        kept = keep_largest(row, count)
        torch.testing.assert_close(kept, expected)
        assert int((kept > 0).sum()) == count
        weights = torch.randn(4, dtype=torch.float64)
        got, wanted = (
            torch.autograd.grad(x @ weights, alpha, retain_graph=True)[0] for x in (kept, expected)
        )
        torch.testing.assert_close(got, wanted)
