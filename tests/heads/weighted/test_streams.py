"""Branches with a residual stream each: where M is 1 the layer is the ordinary one."""

import pytest
import torch
from systems import DIM, HEADS, System, padding, randomize
from torch import nn

import headwise as hw
from headwise.heads.weighted import BranchedAttention

BATCH, TIME = 2, 5


def build(dim=DIM, branches=HEADS, ffn_dim=16, **options):
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
    layer = randomize(build(branches=1, norm=norm, ffn=ffn).double())
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
    layer = randomize(build(ffn=ffn, head_dim=3).double())
    one = randomize(build(branches=1, head_dim=3).double())
    with torch.no_grad():
        for x in "qkv":
            for kind in ("weight", "bias"):
                mine = getattr(getattr(one, f"{x}_proj"), kind)
                getattr(getattr(layer, f"{x}_proj"), kind).copy_(torch.cat([mine] * HEADS))
        layer.branch_output.copy_(one.branch_output.expand_as(layer.branch_output))
        for weights, value in (*((w, 1 / HEADS) for w in layer.learned_weights()),):
            weights.fill_(value)
        for weights in one.learned_weights():
            weights.fill_(1)
        for name in ("ffn_up", "ffn_down", "norm1", "norm2"):
            getattr(layer, name).load_state_dict(getattr(one, name).state_dict())
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    torch.testing.assert_close(layer(x).output, one(x).output, rtol=1e-12, atol=1e-12)


def test_even_branches_add_what_the_heads_of_an_ordinary_layer_do():
    """With pre-norm, up to the feed-forward: x + Σᵢ oᵢWᵢ, which is multi-head attention."""
    layer = randomize(build(norm="pre").double())
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


@pytest.mark.parametrize("batch, time", [(1, 1), (2, 3)])
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


def test_gradients_equal_finite_differences():
    layer = randomize(build(8, 2, 4).double())
    x = torch.randn(1, 3, 8, dtype=torch.float64, requires_grad=True)
    parameters = tuple(layer.parameters())

    def output(x, *parameters):
        return layer(x, is_causal=True).output

    assert torch.autograd.gradcheck(output, (x, *parameters))


LAYER = {"system": "weighted", "inner": "residual", "start": "even"}


@pytest.mark.parametrize("plan", [LAYER, {"encoder_self": LAYER}], ids=["both", "encoder"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_model_of_one_branch_is_the_standard_model(plan, norm):
    """An identity: the rung from which the ladder of docs/readings.md starts."""
    sizes = {"embed_dim": 8, "num_heads": 1, "ffn_dim": 16, "encoder_layers": 2}
    sizes |= {"decoder_layers": 2, "vocab_size": 20, "norm": norm}
    standard = hw.Seq2SeqLM(hw.Seq2SeqConfig(**sizes)).double().eval()
    weighted = hw.Seq2SeqLM(hw.Seq2SeqConfig(attention=plan, **sizes)).double().eval()
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


def test_learned_weights_start_even_or_at_random():
    even = build()
    assert even.kappa.tolist() == even.alpha.tolist() == [1 / HEADS] * HEADS
    drawn = build(start="random")
    assert len(set(drawn.alpha.tolist())) == HEADS


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_maps_start_at_the_scale_of_an_ordinary_layer(norm):
    layer = build(64, 4, 256, norm=norm)
    largest = float(layer.branch_output.detach().abs().max())
    assert largest == pytest.approx((6 / (64 + 64)) ** 0.5, rel=0.02)
