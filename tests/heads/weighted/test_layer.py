"""The Weighted Transformer's branched attention: what only it has."""

import pytest
import torch
import torch.nn.functional as F
from systems import DIM, HEADS, SYSTEMS, System, padding, randomize
from torch import nn

import headwise as hw
from headwise.heads.system import Place
from headwise.heads.weighted import BranchedAttention

BATCH, TIME = 2, 5


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
    config = hw.Seq2SeqLMConfig(
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


def test_printing_tells_the_sizes():
    shown = "embed_dim=12, num_branches=4, head_dim=3, ffn_dim=16, ffn=shared"
    assert shown in repr(SYSTEMS["branched"].build())


# Residual streams inside


def streams(dim=DIM, branches=HEADS, ffn_dim=16, **options):
    """The layer whose branches have a residual stream each."""
    sizes = {"inner": "residual", "ffn": "split", "start": "even"}
    return BranchedAttention(dim, branches, ffn_dim, **{**sizes, **options})


def ordinary(layer, norm):
    """PyTorch's layer with the weights of one branch."""
    made = nn.TransformerEncoderLayer(
        DIM, 1, 16, dropout=0.0, norm_first=norm == "pre", batch_first=True
    ).double()
    attention = made.self_attn
    with torch.no_grad():
        for kind in ("weight", "bias"):
            parts = [getattr(getattr(layer, f"{x}_proj"), kind) for x in "qkv"]
            getattr(attention, f"in_proj_{kind}").copy_(torch.cat(parts))
        attention.out_proj.weight.copy_(layer.branch_output[0].t())
        attention.out_proj.bias.zero_()
        for ours, theirs in (
            (layer.ffn_up, made.linear1),
            (layer.ffn_down, made.linear2),
            (layer.norm1, made.norm1),
            (layer.norm2, made.norm2),
        ):
            theirs.load_state_dict(ours.state_dict())
    return made


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("ffn", ["split", "shared"])
def test_one_branch_is_the_ordinary_layer(norm, ffn):
    layer = randomize(streams(branches=1, norm=norm, ffn=ffn).double())
    with torch.no_grad():
        for weights in (layer.kappa, layer.alpha):
            weights.fill_(1)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    pad = padding(TIME, 3, time=TIME)
    expected = ordinary(layer, norm)(x, src_key_padding_mask=pad)
    out = layer(x, key_padding_mask=pad).output
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("ffn", ["split", "shared"])
def test_branches_that_read_the_same_are_one_ordinary_layer(ffn):
    """With κ = α = 1/M and equal branches: the streams are equal, and so is the rest."""
    layer = randomize(streams(ffn=ffn, head_dim=3).double())
    one = randomize(streams(branches=1, head_dim=3).double())
    with torch.no_grad():
        for x in "qkv":
            for kind in ("weight", "bias"):
                mine = getattr(getattr(one, f"{x}_proj"), kind)
                getattr(getattr(layer, f"{x}_proj"), kind).copy_(torch.cat([mine] * HEADS))
        layer.branch_output.copy_(one.branch_output.expand_as(layer.branch_output))
        for weights in layer.learned_weights():
            weights.fill_(1 / HEADS)
        for weights in one.learned_weights():
            weights.fill_(1)
        for name in ("ffn_up", "ffn_down", "norm1", "norm2"):
            getattr(layer, name).load_state_dict(getattr(one, name).state_dict())
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    torch.testing.assert_close(layer(x).output, one(x).output, rtol=1e-12, atol=1e-12)


def test_even_branches_add_what_the_heads_of_an_ordinary_layer_do():
    """With pre-norm, up to the feed-forward: x + Σᵢ oᵢWᵢ, which is multi-head attention."""
    layer = randomize(streams(norm="pre").double())
    heads = hw.MultiHeadAttention(DIM, HEADS).double()
    with torch.no_grad():
        for weights in layer.learned_weights():
            weights.fill_(1 / HEADS)
        for parameter in layer.ffn_down.parameters():
            parameter.zero_()
        for x in "qkv":
            ours, theirs = getattr(layer, f"{x}_proj"), getattr(heads, f"{x}_proj")
            theirs.load_state_dict(ours.state_dict())
        heads.out_proj.weight.copy_(layer.branch_output.flatten(0, 1).t())
        heads.out_proj.bias.zero_()
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    expected = x + heads(layer.norm1(x)).output
    torch.testing.assert_close(layer(x).output, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("batch, time", [(1, 1), (2, 5), (3, 1), (1, 9)])
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("ffn", ["split", "shared", "full"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_layer_is_the_equation(batch, time, norm, ffn, activation):
    system = System("branched", {"norm": norm, "ffn": ffn, "ffn_activation": activation})
    layer = system.build()
    x = torch.randn(batch, time, DIM, dtype=torch.float64, requires_grad=True)
    fast, (naive, *_) = layer(x).output, system.reference(layer, x)
    torch.testing.assert_close(fast, naive, rtol=1e-10, atol=1e-10)
    direction, leaves = torch.randn_like(naive), [x, *layer.parameters()]
    found = [torch.autograd.grad(y, leaves, direction) for y in (fast, naive)]
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


LAYER = {"system": "weighted", "inner": "residual", "start": "even"}


@pytest.mark.parametrize("plan", [LAYER, {"encoder_self": LAYER}], ids=["both", "encoder"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_model_of_one_branch_is_the_standard_model(plan, norm):
    """An identity: the rung from which the ladder of docs/readings.md starts."""
    sizes = {"embed_dim": 8, "num_heads": 1, "ffn_dim": 16, "encoder_layers": 2}
    sizes |= {"decoder_layers": 2, "vocab_size": 20, "norm": norm}
    standard = hw.Seq2SeqLM(hw.Seq2SeqLMConfig(**sizes)).double().eval()
    weighted = hw.Seq2SeqLM(hw.Seq2SeqLMConfig(attention=plan, **sizes)).double().eval()
    own = standard.state_dict()
    state = weighted.state_dict()
    for name in state:
        state[name] = own.get(name)
    for name in [name for name, tensor in state.items() if tensor is None]:
        path, _, kind = name.rpartition(".")
        layer, _, part = path.rpartition(".")
        if kind in ("kappa", "alpha"):
            state[name] = torch.ones(1, dtype=torch.float64)
        elif kind == "branch_output":
            state[name] = own[f"{path}.out_proj.weight"].t().unsqueeze(0)
        elif part in ("ffn_up", "ffn_down"):
            state[name] = own[f"{layer.rpartition('.')[0]}.feed_forward.{part}.{kind}"]
        elif part == "norm1":
            state[name] = own[f"{layer}_residual.norm.{kind}"]
        else:
            state[name] = own[f"{layer.rpartition('.')[0]}.feed_forward_residual.norm.{kind}"]
    weighted.load_state_dict(state)
    source, target = torch.randint(3, 20, (2, 6)), torch.randint(3, 20, (2, 4))
    given = {"input_ids": source, "decoder_input_ids": target}
    torch.testing.assert_close(
        weighted(**given).logits, standard(**given).logits, rtol=1e-12, atol=1e-12
    )
