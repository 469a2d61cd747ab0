"""The Weighted Transformer evaluated with other κ and α."""

import copy

import pytest
import torch
from systems import DIM, HEADS, SYSTEMS

import headwise as hw
from headwise.heads.weighted import BranchedAttention
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
def test_random_weights_hold_while_decoding(name):
    layer = SYSTEMS[name].build()
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    cache = hw.AttentionCache()
    with ablated(layer, with_ablation("random")):
        steps = [layer(x[:, t : t + 1], cache=cache).output for t in range(TIME)]
        torch.testing.assert_close(torch.cat(steps, 1), layer(x, is_causal=True).output)


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


def test_nothing_is_trained_under_an_ablation():
    layer = SYSTEMS["branched"].build(train=True)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    learned = layer(x).output
    for mode in ("uniform", "random"):
        with ablated(layer, with_ablation(mode)):
            with pytest.raises(ValueError, match="ablated and in training mode"):
                layer(x)
            assert not torch.equal(layer.eval()(x).output, learned)
        assert torch.equal(layer.train()(x).output, learned)


def test_an_ablation_is_in_no_checkpoint_and_no_copy():
    layer = SYSTEMS["branched"].build()
    names = set(layer.state_dict())
    with ablated(layer, with_ablation("random")):
        assert set(layer.state_dict()) == names
        x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
        copied = copy.deepcopy(layer)(x).output
        assert not torch.equal(copied, layer(x).output)
    assert torch.equal(copied, layer(x).output)


def test_each_layer_of_a_model_draws_its_own():
    layers = torch.nn.ModuleList(BranchedAttention(DIM, HEADS, 16) for _ in range(3)).eval()
    learned = [layer.branch_weights()[1].tolist() for layer in layers]
    with ablated(layers, with_ablation("random", seed=4)):
        drawn = [weights for layer in layers for weights in layer.branch_weights()]
        assert len({tuple(weights.tolist()) for weights in drawn}) == 6
    with ablated(layers, with_ablation("top-k", top_k=2)):
        assert all(int((layer.branch_weights()[1] > 0).sum()) == 2 for layer in layers)
    with ablated(layers, {"weighted": "uniform"}), ablated(layers, {"weighted": "learned"}):
        # No wish: what was chosen stays.
        assert layers[0].branch_weights()[1].tolist() == [1 / HEADS] * HEADS
    with pytest.raises(RuntimeError), ablated(layers, {"weighted": "uniform"}):
        raise RuntimeError
    assert [layer.branch_weights()[1].tolist() for layer in layers] == learned


@pytest.mark.parametrize(
    "mode, options, parts",
    [
        ("equal", {}, ["is 'equal'", "learned, uniform, random, top-k"]),
        ("unifrom", {}, ["did you mean 'uniform'?"]),
        ("top-k", {}, ["lacks the option 'top_k'"]),
        ("uniform", {"top_k": 2}, ["the option 'top_k'", "expected none"]),
        ("top-k", {"top_k": "two"}, ["top_k is 'two'"]),
        ("top-k", {"top_k": 0}, ["top_k is 0", "1 to num_branches = 4"]),
        ("top-k", {"top_k": 5}, ["top_k is 5", "1 to num_branches = 4"]),
    ],
)
def test_wrong_weights_of_evaluation(mode, options, parts):
    layer = BranchedAttention(DIM, HEADS, 16)
    with pytest.raises(ValueError) as error, ablated(layer, with_ablation(mode, **options)):
        pass
    assert all(part in str(error.value) for part in parts), error.value
    assert layer.ablation is None
