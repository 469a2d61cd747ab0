"""The Weighted Transformer evaluated with other κ and α."""

import pytest
import torch
from systems import DIM, HEADS, SYSTEMS

from headwise.heads.weighted.naive import naive_branched_feed_forward
from headwise.models.ablation import ablated

BATCH, TIME = 2, 5
FORMS = ("branched", "branched split")


def on_simplex(weights):
    return bool((weights >= 0).all()) and abs(float(weights.detach().sum()) - 1) < 1e-6


def output_with(layer, x, kappa, alpha):
    """What it must give with these κ and α."""
    heads = []

    def noted(o, *rest):
        heads.append(o)
        return type(layer).combine(layer, o, *rest)

    layer.combine = noted
    layer(x)
    del layer.combine
    up, down = layer.ffn_up, layer.ffn_down
    weights = up.weight, up.bias, down.weight, down.bias
    split = layer.ffn == "split"
    return naive_branched_feed_forward(
        heads[0], layer.branch_output, kappa, alpha, *weights, split=split
    )


def with_ablation(name, **options):
    """What evaluation asks for."""
    return {"weighted": {"name": name, **options}}


@pytest.mark.parametrize("name", FORMS)
def test_uniform_weights(name):
    layer = SYSTEMS[name].build()
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    learned = layer(x).output
    with ablated(layer, with_ablation("uniform")):
        out = layer(x)
        quarter = torch.full((HEADS,), 0.25, dtype=torch.float64)
        torch.testing.assert_close(out.output, output_with(layer, x, quarter, quarter))
        assert torch.equal(out.routing.weights, quarter)
        assert not torch.allclose(out.output, learned)
    assert torch.equal(layer(x).output, learned)


@pytest.mark.parametrize("name", FORMS)
def test_random_weights_are_drawn_once(name):
    layer = SYSTEMS[name].build()
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    with ablated(layer, with_ablation("random", seed=1)):
        kappa, alpha = layer.branch_weights()
        assert on_simplex(kappa) and on_simplex(alpha) and not torch.equal(kappa, alpha)
        out = layer(x)
        torch.testing.assert_close(out.output, output_with(layer, x, kappa, alpha))
        assert torch.equal(layer(x).output, out.output)
    with ablated(layer, with_ablation("random", seed=2)):
        assert not torch.equal(layer(x).output, out.output)
    with ablated(layer, with_ablation("random", seed=1)):
        assert torch.equal(layer(x).output, out.output)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_top_k_keeps_the_branches_of_largest_alpha(name, top_k):
    layer = SYSTEMS[name].build()
    with torch.no_grad():
        layer.alpha.copy_(torch.tensor([0.1, 0.4, 0.2, 0.3]))
    kept = {1: [0, 1, 0, 0], 2: [0, 4 / 7, 0, 3 / 7], 4: [0.1, 0.4, 0.2, 0.3]}[top_k]
    expected = torch.tensor(kept, dtype=torch.float64)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    with ablated(layer, with_ablation("top-k", top_k=top_k)):
        out = layer(x)
    torch.testing.assert_close(out.routing.weights, expected)
    torch.testing.assert_close(out.output, output_with(layer, x, layer.kappa, expected))
