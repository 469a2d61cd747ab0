"""The gates by themselves: where they start, and what analyses and ablations make of them."""

import pytest
import torch
from systems import DIM, HEADS, SYSTEMS

import headwise as hw
from headwise.heads.ablations import drawn_weights
from headwise.models.ablation import ablation_of

GATED = [name for name in SYSTEMS if name.startswith("gated")]
BATCH, TIME = 2, 4


def heads_of(layer, x):
    """What the heads of the layer read."""
    seen = []
    layer.observers = (seen.append,)
    layer(x, is_causal=True)
    return seen[0].outputs


def gates_of(layer, x):
    """The gates `(heads, head_dim)` of one position."""
    gates = (2.0 if layer.neutral_start else 1.0) / (1 + torch.exp(-(layer.gate_proj.weight @ x)))
    return gates.view(HEADS, -1).expand(-1, layer.head_dim)


@pytest.mark.parametrize("gate", ["headwise", "elementwise"])
@pytest.mark.parametrize("train", [False, True])
def test_a_neutral_start_is_standard_attention_to_the_last_bit(gate, train):
    standard = hw.MultiHeadAttention(DIM, HEADS)
    gated = hw.GatedAttention(DIM, HEADS, gate=gate, gate_start="neutral")
    missing, unexpected = gated.load_state_dict(standard.state_dict(), strict=False)
    assert missing == ["gate_proj.weight"] and not unexpected
    x = torch.randn(BATCH, TIME, DIM)
    out = gated.train(train)(x, is_causal=True)
    assert torch.equal(out.output, standard(x, is_causal=True).output)
    assert (out.routing.weights == 1).all()


@pytest.mark.parametrize("gate", ["headwise", "elementwise"])
@pytest.mark.parametrize("gate_start", ["random", "neutral"])
@pytest.mark.parametrize("source", [hw.MultiHeadAttention, torch.nn.MultiheadAttention])
def test_from_a_standard_attention_the_output_stays_to_the_last_bit(source, gate_start, gate):
    """σ(0) is 1/2 and twice the projection its inverse: both are exact in binary numbers."""
    options = {"batch_first": True} if source is torch.nn.MultiheadAttention else {}
    source = source(DIM, HEADS, kdim=2, vdim=3, **options)
    torch.nn.init.normal_(source.out_proj.bias)
    standard = hw.MultiHeadAttention.from_attention(source)
    gated = hw.GatedAttention.from_attention(source, gate=gate, gate_start=gate_start)
    query, key, value = (torch.randn(BATCH, TIME, d) for d in (DIM, 2, 3))
    assert torch.equal(gated(query, key, value).output, standard(query, key, value).output)
    gated(query, key, value).output.square().sum().backward()
    assert gated.gate_proj.weight.grad.abs().amin(1).min() > 0


def ablated(layer, x, name, **options):
    layer.ablation = ablation_of(layer, name, options)
    out = layer(x, is_causal=True)
    layer.ablation = None
    return out


def changed(ablation, gates, shares):
    """The gates `(heads, elements)` of one position as an ablation has them, one by one."""
    mean = sum(float(g) for row in gates for g in row) / gates.numel()
    heads = [sum(float(g) for g in row) / len(row) for row in gates]
    out = torch.zeros_like(gates)
    for i, row in enumerate(gates):
        for e, gate in enumerate(row):
            out[i, e] = {
                "open": 1.0,
                "uniform": mean,
                "random": float(shares[i]) * sum(heads),
                "without-top-head": 0.0 if heads[i] == max(heads) else float(gate),
                "without-head": 0.0 if i == 1 else float(gate),
                "only-head": float(gate) if i == 1 else 0.0,
            }[ablation]
    return out


@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("ablation", hw.GatedAttention.ablations)
@torch.no_grad()
def test_ablations_gate_by_gate(name, ablation):
    layer = SYSTEMS[name].build()
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    heads = heads_of(layer, x)
    options = {"head": 1} if ablation in ("without-head", "only-head") else {}
    out = ablated(layer, x, ablation, **options)
    (shares,) = drawn_weights(HEADS, 1, 0, 0, 1)
    for b in range(BATCH):
        for t in range(TIME):
            gates = changed(ablation, gates_of(layer, x[b, t]), shares)
            gated = (heads[b, :, t] * gates).flatten()
            torch.testing.assert_close(out.output[b, t], layer.out_proj(gated))
            if not options:  # heads left out for all attentions keep the gates that they had
                torch.testing.assert_close(out.routing.weights[b, t], gates.mean(1))


def test_over_heads_it_starts_neutral_unless_told_otherwise():
    x, read = torch.randn(2, 5, 10), torch.randn(2, 5, 12)
    over = hw.GatedAttention.over_heads(10, 4, 3)
    torch.testing.assert_close(over(x, value=read).output, read, rtol=0, atol=0)
    with pytest.raises(ValueError, match="gate_start is 'random', expected 'neutral'"):
        hw.GatedAttention.over_heads(10, 4, 3, gate_start="random")
    half_open = hw.GatedAttention.over_heads(10, 4, 3, neutral=False)
    assert half_open(x, value=read).routing.weights.max() < 1
