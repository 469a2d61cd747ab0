"""The Weighted Transformer's branched attention: what only it has."""

import pytest
import torch
from systems import DIM, HEADS, padding, randomize
from torch import nn

import headwise as hw
from headwise.heads.weighted import BranchedAttention

BATCH, TIME = 2, 5


def letter(*sizes, **options):
    """The layer of the equations, without residual sums inside."""
    return BranchedAttention(*sizes, **{**BranchedAttention.presets["paper"], **options})


def on_simplex(weights):
    return bool((weights >= 0).all()) and abs(float(weights.detach().sum()) - 1) < 1e-6


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
