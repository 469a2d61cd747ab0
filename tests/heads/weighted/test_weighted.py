"""The Weighted Transformer's branched attention: what only it has."""

import copy

import pytest
import torch
import torch.nn.functional as F
from systems import DIM, HEADS, SYSTEMS, padding, randomize

import headwise as hw
from headwise.heads.system import Place
from headwise.heads.weighted import BranchedAttention
from headwise.heads.weighted.naive import naive_branched_feed_forward
from headwise.models.ablation import ablated

BATCH, TIME = 2, 5
FORMS = ("branched", "branched split")


def letter(*sizes, **options):
    """The layer of the equations, without residual sums inside."""
    return BranchedAttention(*sizes, **{**BranchedAttention.presets["paper"], **options})


PLACE = Place("encoder_self", 12, 4, 24, attention_dropout=0.2, ffn_dropout=0.3)


def on_simplex(weights):
    return bool((weights >= 0).all()) and abs(float(weights.detach().sum()) - 1) < 1e-6


def copy_projections(ours, theirs):
    for name in ("q_proj", "k_proj", "v_proj"):
        getattr(ours, name).load_state_dict(getattr(theirs, name).state_dict())


@pytest.mark.parametrize("ffn", ["shared", "split"])
@pytest.mark.parametrize("time", [2, 40])
def test_one_branch_is_attention_then_the_feed_forward(ffn, time):
    attention = randomize(hw.MultiHeadAttention(DIM, 1).double())
    branched = randomize(letter(DIM, 1, 16, ffn=ffn).double())
    copy_projections(branched, attention)
    with torch.no_grad():
        attention.out_proj.bias.zero_()
        branched.branch_output[0] = attention.out_proj.weight.t()
        branched.kappa.fill_(1)
        branched.alpha.fill_(1)
    x = torch.randn(BATCH, time, DIM, dtype=torch.float64)
    mask = {"key_padding_mask": padding(time, 1, time=time), "is_causal": True}
    attended = attention(x, **mask).output
    expected = branched.ffn_down(F.relu(branched.ffn_up(attended)))
    torch.testing.assert_close(branched(x, **mask).output, expected, rtol=1e-12, atol=1e-12)


def test_one_branch_starts_with_all_the_weight():
    branched = BranchedAttention(DIM, 1, 16)
    assert branched.kappa.tolist() == branched.alpha.tolist() == [1.0]


def test_all_weight_on_one_branch_is_that_branch_and_the_others_nothing():
    """κ = α = eᵢ: yᵢ = FFN(oᵢ Wᵢ), exactly, since every other branch counts zero."""
    branched = SYSTEMS["branched"].build()
    with torch.no_grad():
        for weights in (branched.kappa, branched.alpha):
            weights.zero_()
            weights[2] = 1.0
    x = torch.randn(BATCH, 30, DIM, dtype=torch.float64)
    before = branched(x).output
    with torch.no_grad():
        branched.branch_output[[0, 1, 3]] += 1
    torch.testing.assert_close(branched(x).output, before, rtol=0, atol=1e-14)


def test_with_branches_that_stay_positive_and_unit_weights_it_is_multi_head_attention():
    """The paper's remark that κ = α = 1 recovers equation 3. It holds where the ReLU does nothing,
    and then up to the biases: Σᵢ FFN(oᵢWᵢ) is linear in Σᵢ oᵢWᵢ.
    """
    attention = randomize(hw.MultiHeadAttention(DIM, HEADS).double())
    branched = randomize(letter(DIM, HEADS, 16).double())
    copy_projections(branched, attention)
    with torch.no_grad():
        attention.out_proj.bias.zero_()
        branched.branch_output.copy_(attention.out_proj.weight.t().unflatten(0, (HEADS, -1)))
        branched.kappa.fill_(1)
        branched.alpha.fill_(1)
        branched.ffn_up.bias.fill_(1000)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    ffn_up, ffn_down = branched.ffn_up, branched.ffn_down
    hidden = attention(x).output @ ffn_up.weight.t() + HEADS * ffn_up.bias
    expected = hidden @ ffn_down.weight.t() + HEADS * ffn_down.bias
    torch.testing.assert_close(branched(x).output, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("ffn", ["shared", "split"])
def test_the_papers_base_model_takes_192_weights_more(ffn):
    """The paper's count, for 6 encoder and 6 decoder layers of 8 branches, biases apart."""
    with torch.device("meta"):
        branched = letter(512, 8, 2048, ffn=ffn)
        attention = hw.MultiHeadAttention(512, 8)
    feed_forward = 2 * 512 * 2048 + 512 + 2048
    standard = sum(p.numel() for p in attention.parameters()) - 512 + feed_forward
    assert sum(p.numel() for p in branched.parameters()) - standard == 2 * 8
    assert 12 * 2 * 8 == 192


@pytest.mark.parametrize(
    ("plan", "branches", "count"),
    [("weighted", 8, 192), ({"encoder_self": "weighted"}, 16, 192), ("weighted", 16, 384)],
    ids=str,
)
def test_192_weights_by_either_placement(plan, branches, count):
    """The paper's count fits branches in both stacks if there are 8, in the encoder if 16."""
    config = hw.Seq2SeqConfig(
        vocab_size=9,
        embed_dim=16,
        num_heads=branches,
        ffn_dim=16,
        encoder_layers=6,
        decoder_layers=6,
        attention=plan,
    )
    with torch.device("meta"):
        model = hw.Seq2SeqLM(config)
    found = [p.numel() for n, p in model.named_parameters() if n.endswith(("kappa", "alpha"))]
    assert sum(found) == count


def test_checkpoints_hold_the_promised_names():
    linear = ("q_proj", "k_proj", "v_proj", "ffn_up", "ffn_down")
    names = {f"{layer}.{kind}" for layer in linear for kind in ("weight", "bias")}
    branched = BranchedAttention(DIM, 3, 15, head_dim=5, kdim=7, vdim=8)
    norms = {f"{norm}.{kind}" for norm in ("norm1", "norm2") for kind in ("weight", "bias")}
    assert set(branched.state_dict()) == names | norms | {"branch_output", "kappa", "alpha"}
    assert set(letter(DIM, 4, 16).state_dict()) == names | {"branch_output", "kappa", "alpha"}
    assert branched.branch_output.shape == (3, 5, DIM)
    assert branched.kappa.shape == branched.alpha.shape == (3,)
    assert branched.ffn_up.weight.shape == (15, DIM)
    assert branched.k_proj.weight.shape == (15, 7)


def test_it_starts_even_or_at_random_points_of_the_simplex():
    torch.manual_seed(0)
    even = BranchedAttention(DIM, HEADS, 16)
    assert even.kappa.tolist() == even.alpha.tolist() == [0.25] * 4
    layers = [BranchedAttention(DIM, HEADS, 16, start="random") for _ in range(200)]
    points = torch.stack([torch.stack([layer.kappa, layer.alpha]) for layer in layers]).detach()
    assert all(on_simplex(point) for point in points.flatten(0, 1))
    assert not torch.equal(points[:, 0], points[:, 1])
    torch.testing.assert_close(points.mean((0, 1)), torch.full((4,), 0.25), rtol=0, atol=0.03)
    assert points.std() > 0.15


def test_maps_start_as_those_of_a_model():
    """Glorot's bounds, for the feed-forward and for each branch's map by itself where κ is 1/M."""
    torch.manual_seed(0)
    for layer, branch, heads_dim in (
        (letter(64, 4, 256), lambda weight: weight / 4, 16),
        (BranchedAttention(64, 4, 256), lambda weight: weight, 64),  # of all branches together
    ):
        for weight, inputs, outputs in (
            (layer.ffn_up.weight, 64, 256),
            (layer.ffn_down.weight, 256, 64),
            (branch(layer.branch_output), heads_dim, 64),
        ):
            largest = float(weight.detach().abs().max())
            assert largest == pytest.approx((6 / (inputs + outputs)) ** 0.5, rel=0.01)
        assert not layer.ffn_up.bias.any() and not layer.ffn_down.bias.any()


def test_reset_after_meta():
    with torch.device("meta"):
        layer = BranchedAttention(DIM, HEADS, 16, start="random")
    layer.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(float("nan"))
    layer.reset_parameters()
    assert all(parameter.isfinite().all() for parameter in layer.parameters())
    assert on_simplex(layer.kappa) and on_simplex(layer.alpha)
    before = layer.alpha.clone()
    layer.reset_parameters()
    assert not torch.equal(layer.alpha, before)


def test_reset_spares_what_from_pretrained_has_loaded(monkeypatch):
    layer = BranchedAttention(DIM, HEADS, 16)
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    for name in ("uniform_", "xavier_uniform_", "zeros_"):
        monkeypatch.setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)
    layer.reset_parameters()
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


# Weights of evaluation


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
    layers = torch.nn.ModuleList(letter(DIM, HEADS, 16) for _ in range(3)).eval()
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


# Construction


def test_a_plan_gives_it_the_models_sizes():
    layer = BranchedAttention.from_plan(PLACE)
    assert (layer.num_branches, layer.head_dim, layer.ffn_dim) == (4, 3, 24)
    assert (layer.dropout, layer.ffn_dropout, layer.ffn) == (0.2, 0.3, "split")
    other = BranchedAttention.from_plan(PLACE, num_branches=2, ffn="shared", ffn_dim=8)
    assert (other.num_branches, other.head_dim, other.ffn_dim, other.ffn) == (2, 6, 8, "shared")
    assert BranchedAttention.replaces == "feed-forward"


def test_dropout_of_the_feed_forward_is_of_training_only():
    layer = SYSTEMS["branched"].build(ffn_dropout=0.5)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    assert torch.equal(layer(x).output, layer(x).output)
    layer.train()
    assert not torch.equal(layer(x).output, layer(x).output)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("time", [3, 40])
def test_compiles_to_one_graph(name, time):
    torch.compiler.reset()
    layer = SYSTEMS[name].build(train=True)
    compiled = torch.compile(copy.deepcopy(layer), fullgraph=True, backend="aot_eager")
    x = torch.randn(BATCH, time, DIM, dtype=torch.float64, requires_grad=True)
    got, expected = compiled(x, is_causal=True).output, layer(x, is_causal=True).output
    torch.testing.assert_close(got, expected)
    got.square().sum().backward()
    expected.square().sum().backward()
    for mine, theirs in zip(compiled.parameters(), layer.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize(
    "args, options, parts",
    [
        ((8, 0, 4), {}, ["num_branches is 0", "positive"]),
        ((8, 2, 0), {}, ["ffn_dim is 0", "positive"]),
        ((10, 4, 4), {}, ["embed_dim is 10", "num_branches = 4", "head_dim"]),
        ((8, 2, 4), {"head_dim": 0}, ["head_dim is 0", "positive"]),
        ((8, 2, 4), {"ffn": "own"}, ["ffn is 'own'", "'shared'", "'split'"]),
        ((8, 2, 5), {"ffn": "split"}, ["ffn_dim is 5", "num_branches = 2", "'shared'"]),
        ((8, 2, 4), {"dropout": 1.0}, ["dropout is 1.0", "[0, 1)"]),
        ((8, 2, 4), {"ffn_dropout": -0.1}, ["ffn_dropout is -0.1", "[0, 1)"]),
    ],
)
def test_wrong_sizes(args, options, parts):
    with pytest.raises(ValueError) as error:
        BranchedAttention(*args, **options)
    assert all(part in str(error.value) for part in parts), error.value


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


def test_printing_tells_the_sizes():
    shown = "embed_dim=12, num_branches=4, head_dim=3, ffn_dim=16, ffn=shared"
    assert shown in repr(SYSTEMS["branched"].build())
