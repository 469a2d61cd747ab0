"""The gates by themselves: where they start, and what analyses and ablations make of them."""

import math

import pytest
import reference
import torch
import transformers
from systems import DIM, HEADS, SYSTEMS

import headwise as hw
from headwise.heads.ablations import drawn_weights
from headwise.models.ablation import ablation_of

GATED = [name for name in SYSTEMS if name.startswith("gated")]
BATCH, TIME = 2, 4


OTHERS = {
    "doubled": {"gate_activation": "doubled-sigmoid", "gate_bias": True},
    "softplus": {"gate_activation": "softplus", "gate_bias": True},
    "first entries": {"gate_inputs": 5, "gate": "elementwise"},
    "shares": {"gate_activation": "softplus", "gate_inputs": "head"},
}


def heads_of(layer, x):
    """What the heads of the layer read."""
    seen = []
    layer.observers = (seen.append,)
    layer(x, is_causal=True)
    return seen[0].outputs


def gates_of(layer, x):
    """The gates `(heads, head_dim)` of one position."""
    p, rows = dict(layer.named_parameters()), len(layer.gate_proj.weight)
    gates = [reference.head_gate(p, x, HEADS, r * HEADS // rows, r, layer) for r in range(rows)]
    return torch.stack(gates).view(HEADS, -1).expand(-1, layer.head_dim)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", OTHERS)
def test_so_is_a_neutral_start_of_every_other_gate(name, dtype):
    standard = hw.MultiHeadAttention(DIM, HEADS).to(dtype)
    gated = hw.GatedAttention.from_attention(standard, gate_start="neutral", **OTHERS[name])
    x = torch.randn(BATCH, TIME, DIM, dtype=dtype)
    out = gated.to(dtype)(x)
    assert torch.equal(out.output, standard(x).output)
    assert (out.routing.weights == 1).all()
    out.output.square().sum().backward()
    assert all((p.grad != 0).any() for p in gated.gate_proj.parameters())


@pytest.mark.parametrize("name", OTHERS)
def test_from_a_standard_attention_every_other_gate_is_the_same_to_rounding(name):
    standard = hw.MultiHeadAttention(DIM, HEADS).double()
    gated = hw.GatedAttention.from_attention(standard, **OTHERS[name])
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    torch.testing.assert_close(gated(x).output, standard(x).output, rtol=1e-12, atol=1e-12)


def test_other_inputs_than_its_own_do_not_change_a_gate():
    """The first m entries are all that counts, or the head's own share."""
    x = torch.randn(1, 1, DIM)
    moved = x.clone()
    moved[..., 3:6] += 1  # the share of the second of four heads
    for inputs, unmoved in ((3, [0, 1, 2, 3]), (6, []), ("head", [0, 2, 3]), ("all", [])):
        gated = hw.GatedAttention(DIM, HEADS, gate_inputs=inputs)
        same = gated(x).routing.weights == gated(moved).routing.weights
        assert same[0, 0].nonzero().flatten().tolist() == unmoved, inputs


@pytest.mark.parametrize("gate", ["headwise", "elementwise"])
@pytest.mark.parametrize("inputs", [0, 5, "head", "all"])
@pytest.mark.parametrize("activation", ["sigmoid", "softplus"])
@torch.no_grad()
def test_gates_are_static_where_no_input_changes_them(gate, inputs, activation):
    options = {"gate": gate, "gate_inputs": inputs, "gate_activation": activation}
    gated = hw.GatedAttention(DIM, HEADS, gate_bias=True, **options)
    gated.gate_proj.bias.normal_()
    if inputs:
        assert gated.static_scales() is None
        gated.gate_proj.weight.zero_()
    scales = gated.static_scales().expand(-1, gated.head_dim)
    torch.testing.assert_close(scales, gates_of(gated, torch.randn(DIM)))


@pytest.mark.parametrize(
    ("config", "theirs", "name", "options"),
    [
        ("LagunaConfig", {"gating": "per-head"}, "g_proj", {"gate_activation": "softplus"}),
        (
            *("LagunaConfig", {"gating": "per-element"}, "g_proj"),
            {"gate_activation": "softplus", "gate": "elementwise"},
        ),
        ("AfmoeConfig", {"num_dense_layers": 1}, "gate_proj", {"gate": "elementwise"}),
    ],
)
@torch.no_grad()
def test_gates_are_those_of_models_that_ship_with_them(config, theirs, name, options):
    """What reaches the output projection in transformers' layer is what our gates give."""
    sizes = {"hidden_size": DIM, "num_attention_heads": HEADS, "num_key_value_heads": 2}
    sizes |= {"vocab_size": 9, "intermediate_size": 8, "num_hidden_layers": 1, "head_dim": 6}
    model = transformers.AutoModel.from_config(getattr(transformers, config)(**sizes, **theirs))
    attention = model.eval().layers[0].self_attn
    seen = []
    attention.register_forward_pre_hook(
        lambda module, args, given: seen.append(given["hidden_states"]), with_kwargs=True
    )
    attention.o_proj.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    gate = getattr(attention, name)
    torch.nn.init.normal_(gate.weight)
    gates = hw.GatedAttention.over_heads(DIM, HEADS, 6, neutral=False, **options)
    gates.gate_proj.load_state_dict(gate.state_dict())
    tokens = torch.randint(9, (BATCH, TIME))
    model(tokens)
    torch.nn.init.zeros_(gate.weight)  # what is read, times the activation of 0
    model(tokens)
    x, expected, _, read = seen
    read = read / (math.log(2) if "gate_activation" in options else 0.5)
    torch.testing.assert_close(gates(x, value=read).output, expected)


def test_presets_have_as_many_parameters_as_their_papers_print():
    """Of BERT-base in table 4 of Quantizable Transformers, and appendix A.1 of Step 3.5 Flash."""
    width, heads, head_dim = 768, 12, 64
    for name, expected in {
        "quantizable-transformers": heads * (head_dim + 1),
        "quantizable-transformers-all-heads": heads * (width + 1),
        "step-3.5-flash": heads * width,
        "gated-attention-headwise": heads * width,
        "gated-attention-elementwise": heads * head_dim * width,
    }.items():
        gated = hw.GatedAttention(width, heads, **hw.GatedAttention.presets[name])
        assert sum(p.numel() for p in gated.gate_proj.parameters()) == expected
        assert (gated.gate_activation, gated.neutral_start) == ("sigmoid", False)


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
    with pytest.raises(ValueError, match=r"start at 1, and not at 0\.69, where a softplus is"):
        hw.GatedAttention.over_heads(10, 4, 3, gate_start="random", gate_activation="softplus")
    doubled = {"gate_start": "random", "gate_activation": "doubled-sigmoid"}
    over = hw.GatedAttention.over_heads(10, 4, 3, **doubled)
    torch.testing.assert_close(over(x, value=read).output, read, rtol=0, atol=0)
    half_open = hw.GatedAttention.over_heads(10, 4, 3, neutral=False)
    assert half_open(x, value=read).routing.weights.max() < 1
