"""A layer of independent mechanisms: the paper's algorithm, and what every system must stand."""

import pytest
import test_equations
import tim_reference
import torch
import torch.nn.functional as F
from systems import ROTARY_BASE, padding, randomize, with_positions
from torch import Tensor, nn

from headwise.heads.tim import IndependentMechanismsLayer
from headwise.heads.tim.mechanisms import attention_between_groups, grouped_layer_norm

DIM, HEADS, FFN, KDIM = 12, 4, 16, 6
BATCH, TIME, KEYS = 2, 4, 5

# Two heads of keys, and rotary positions, which `build` adds.
MODERN = {
    "num_key_value_heads": 2,
    "qk_norm": True,
    "head_dim": 4,
    "norm_kind": "rms",
    "ffn_activation": "swiglu",
}
FORMS = {
    "two mechanisms": {},
    "four mechanisms": {"num_mechanisms": 4, "exchange_heads": 1},
    "one mechanism": {"num_mechanisms": 1},
    "no competition": {"competition": False},
    "no exchange": {"exchange_heads": 0},
    "pre-norm": {"norm": "pre"},
    "competition of the normalised": {"norm": "pre", "competition_input": "normalised"},
    "biases, other heads": {"bias": True, "head_dim": 5},
    "leaky": {"ffn_activation": "leaky-relu", "norm": "pre"},
    "decoder": {"cross_attention": True},
    "decoder, other width": {"cross_attention": True, "kdim": KDIM},
    "decoder, pre-norm": {"cross_attention": True, "norm": "pre"},
    "decoder, biases": {"cross_attention": True, "bias": True, "kdim": KDIM},
    "modern": {**MODERN, "norm": "pre"},
    "decoder, modern": {**MODERN, "cross_attention": True, "ffn_activation": "geglu"},
    "decoder, alone": {"cross_attention": True, "competition": False, "exchange_heads": 0},
}
each_form = pytest.mark.parametrize("form", FORMS)
DECODERS = [form for form in FORMS if "decoder" in form]

MASKS = {**test_equations.MASKS, **test_equations.MASKS_PER_HEAD}


def build(form="two mechanisms", *, dtype=torch.float64, train=False, **more):
    """A layer with random parameters, those of its norms too."""
    options = {"num_mechanisms": 2, "exchange_head_dim": 3, **FORMS[form], **more}
    layer = IndependentMechanismsLayer(DIM, HEADS, FFN, **options)
    if "modern" in form:
        layer.register_forward_pre_hook(with_positions, with_kwargs=True)
    return randomize(layer.to(dtype)).train(train)


def inputs(layer, batch=BATCH, time=TIME, keys=KEYS, dtype=torch.float64):
    """x and, for a decoder's layer, a memory."""
    x = torch.randn(batch, time, DIM, dtype=dtype, requires_grad=True)
    if layer.cross_attention is None:
        return (x,)
    return x, torch.randn(batch, keys, layer.kdim, dtype=dtype, requires_grad=True)


def memory_mask(layer, *lengths):
    if layer.cross_attention is None:
        return {}
    return {"memory_key_padding_mask": padding(*lengths, time=KEYS)}


def check(layer, *given, **masks):
    """Output, competition and all gradients are those of the loops."""
    p = dict(layer.named_parameters())
    heads = 0 if layer.exchange is None else layer.exchange.num_heads
    expected, competition = tim_reference.layer(
        p,
        *given,
        heads=HEADS,
        exchange_heads=heads,
        pre_norm=layer.pre_norm,
        ffn_activation=layer.ffn_activation,
        of_stream=layer.competition_input == "stream",
        base=ROTARY_BASE if layer._forward_pre_hooks else None,
        **masks,
    )
    out = layer(*given, **masks)
    torch.testing.assert_close(out.output, expected, rtol=1e-9, atol=1e-9)
    assert (out.routing is None) == (competition is None)
    if competition is not None:
        torch.testing.assert_close(out.routing.weights, competition, rtol=1e-9, atol=1e-9)
        assert out.routing.indices is None and out.routing.loss is None
    direction = torch.randn_like(expected)
    leaves = [*given, *p.values()]
    grads = [
        torch.autograd.grad(y, leaves, direction, allow_unused=True, materialize_grads=True)
        for y in (out.output, expected)
    ]
    torch.testing.assert_close(*grads, rtol=1e-8, atol=1e-8)


# Each mask with two forms; what is otherwise in the others does not look at masks.
CALLS = [
    (form, masks)
    for form in FORMS
    for masks in MASKS
    if form in ("two mechanisms", "decoder") or masks in ("causal, padding", "4-D float, padding")
]


@pytest.mark.parametrize(("form", "masks"), CALLS)
def test_equals_algorithm_1(form, masks):
    layer = build(form)
    check(layer, *inputs(layer), **MASKS[masks](HEADS, TIME, TIME), **memory_mask(layer, 3, KEYS))


@pytest.mark.parametrize("batch, time, keys", [(1, 1, 1), (1, 5, 3), (3, 1, 2)])
@each_form
def test_other_shapes_equal_algorithm_1(form, batch, time, keys):
    layer = build(form, train=True)  # without dropout there is no difference
    check(layer, *inputs(layer, batch, time, keys), is_causal=time > 1)


ALONE = {"num_mechanisms": 1, "exchange_heads": 0, "competition": False}


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("masks", ["none", "padding", "causal"])
@pytest.mark.parametrize("decodes", [False, True])
def test_one_mechanism_alone_is_an_ordinary_layer(decodes, masks, norm):
    layer = build(**ALONE, norm=norm, cross_attention=decodes)
    pad = padding(TIME, 2, time=TIME) if masks == "padding" else None
    given = {"key_padding_mask": pad, "is_causal": masks == "causal"}
    sequences = inputs(layer)
    out = layer(*sequences, **given, **memory_mask(layer, 3, KEYS))
    assert out.routing is None

    kind = nn.TransformerDecoderLayer if decodes else nn.TransformerEncoderLayer
    sizes = {"dim_feedforward": FFN, "dropout": 0.0, "norm_first": norm == "pre"}
    theirs = kind(DIM, HEADS, **sizes, batch_first=True).double()
    copy_to_torch(layer, theirs)
    causal = torch.ones(TIME, TIME, dtype=torch.bool).triu(1) if masks == "causal" else None
    names = (
        ("tgt_mask", "tgt_key_padding_mask") if decodes else ("src_mask", "src_key_padding_mask")
    )
    given = dict(zip(names, (causal, pad), strict=True)) | memory_mask(layer, 3, KEYS)
    expected = theirs(*sequences, **given)
    torch.testing.assert_close(out.output, expected, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def copy_to_torch(layer, theirs):
    """One mechanism's weights into a layer of torch.nn, whose biases become zero."""
    for name, parameter in theirs.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
    attentions = [(layer.self_attention, theirs.self_attn)]
    norms = [(layer.norm1, theirs.norm1), (layer.norm3, theirs.norm2)]
    if layer.cross_attention is not None:
        attentions.append((layer.cross_attention, theirs.multihead_attn))
        norms = [(layer.norm1, theirs.norm1), (layer.cross_norm, theirs.norm2)]
        norms.append((layer.norm3, theirs.norm3))
    for mine, other in attentions:
        packed = torch.cat([mine.q_weight, mine.k_weight, mine.v_weight], dim=2)
        other.in_proj_weight.copy_(packed[0].t())
        other.out_proj.weight.copy_(mine.out_weight[0].t())
    theirs.linear1.weight.copy_(layer.ffn_up_weight[0].t())
    theirs.linear2.weight.copy_(layer.ffn_down_weight[0].t())
    for mine, other in norms:
        other.weight.copy_(mine.weight[0])
        other.bias.copy_(mine.bias[0])


def sensitivity(layer, mechanisms) -> Tensor:
    """`(to, from)`: whether a mechanism's output has a gradient to a mechanism's input."""
    given = inputs(layer)
    output = layer(*given).output.unflatten(-1, (mechanisms, -1))
    rows = []
    for j in range(mechanisms):
        grads = torch.autograd.grad(output[:, :, j].square().sum(), given, retain_graph=True)
        by_mechanism = [grad.unflatten(-1, (mechanisms, -1)) for grad in grads]
        depends = [
            [bool((grad[:, :, i] != 0).any()) for grad in by_mechanism] for i in range(mechanisms)
        ]
        assert all(len(set(of_each)) == 1 for of_each in depends)  # of x and of the memory alike
        rows.append([of_each[0] for of_each in depends])
    return torch.tensor(rows)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("cross_attention", [False, True])
@pytest.mark.parametrize("mechanisms", [2, 4])
def test_mechanisms_are_independent_but_for_competition_and_exchange(
    mechanisms, cross_attention, norm
):
    def depends(**options):
        shape = {"num_mechanisms": mechanisms, "cross_attention": cross_attention, "norm": norm}
        return sensitivity(build(**shape, **options), mechanisms)

    apart = depends(competition=False, exchange_heads=0)
    assert torch.equal(apart, torch.eye(mechanisms).bool())
    assert depends(competition=False).all()
    if not cross_attention:  # competition looks at x alone
        assert depends(exchange_heads=0).all()


@pytest.mark.parametrize("learns", [False, True])
def test_the_norm_of_each_group_is_a_layer_norm_with_its_epsilon(learns):
    x, weight, bias = torch.randn(3, 8), torch.randn(2, 4), torch.randn(2, 4)
    with torch.set_grad_enabled(learns):
        normed = grouped_layer_norm(x, weight, bias, eps=0.1)
    parts = [F.layer_norm(x[:, 4 * j : 4 * j + 4], (4,), weight[j], bias[j], 0.1) for j in (0, 1)]
    torch.testing.assert_close(normed, torch.cat(parts, -1))


@pytest.mark.parametrize("causal", [False, True])
@each_form
def test_gradients_equal_finite_differences(form, causal):
    layer = build(form, train=True)
    parameters = dict(layer.named_parameters())
    masks = {"key_padding_mask": padding(3, 2, time=3), "is_causal": causal}

    def compute(*leaves):
        given = dict(zip(parameters, leaves[-len(parameters) :], strict=True))
        out = torch.func.functional_call(layer, given, leaves[: -len(parameters)], masks)
        return out.output if out.routing is None else (out.output, out.routing.weights)

    leaves = [*inputs(layer, time=3, keys=2), *parameters.values()]
    assert torch.autograd.gradcheck(compute, leaves, fast_mode=True)


def test_names_and_shapes_of_parameters():
    layer = IndependentMechanismsLayer(12, 4, 20, 2, cross_attention=True, kdim=8)
    shapes = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    square, inner, norm = (2, 6, 6), (2, 6, 8), (2, 6)
    assert shapes == {
        "competition_weight": (2, 6, 1),
        **{f"self_attention.{x}_weight": square for x in ("q", "k", "v", "out")},
        **{f"cross_attention.{x}_weight": square for x in ("q", "out")},
        **{f"cross_attention.{x}_weight": (2, 4, 6) for x in "kv"},
        **{f"exchange.{x}_weight": inner for x in "qkv"},
        "exchange.out_weight": (2, 8, 6),
        "ffn_up_weight": (2, 6, 10),
        "ffn_down_weight": (2, 10, 6),
        **{f"{x}.{y}": norm for x in ("norm1", "norm2", "norm3") for y in ("weight", "bias")},
        **{f"cross_norm.{y}": norm for y in ("weight", "bias")},
    }
    alone = build(competition=False, exchange_heads=0)
    assert not any(
        name.startswith((*alone.routing_parameters, "norm2", "cross"))
        for name in alone.state_dict()
    )


@pytest.mark.parametrize(
    ("mechanism", "heads", "width"),
    [
        (512, 2, 32),  # the paper's BERT: an eighth of a mechanism
        (256, 2, 16),
        (256, 4, 8),
        (512, 1, 32),  # not 64
        (32, 2, 4),  # not 2
    ],
)
def test_the_exchange_is_an_eighth_of_a_mechanism_from_4_to_32(mechanism, heads, width):
    sizes = {"num_heads": 2, "ffn_dim": 2, "num_mechanisms": 2}
    with torch.device("meta"):
        layer = IndependentMechanismsLayer(2 * mechanism, **sizes, exchange_heads=heads)
        paper = {"exchange_heads": heads, **IndependentMechanismsLayer.presets["paper"]}
        as_printed = IndependentMechanismsLayer(2 * mechanism, **sizes, **paper)
    assert layer.exchange.q_weight.shape == (2, mechanism, heads * width)
    assert as_printed.exchange.q_weight.shape == (2, mechanism, heads * 32)


@each_form
def test_weights_are_those_of_self_attention(form):
    """The heads of the first mechanism first."""
    layer = build(form)
    given = inputs(layer)
    out = layer(*given, is_causal=True, need_weights=True)
    assert out.weights.shape == (BATCH, HEADS, TIME, TIME)
    torch.testing.assert_close(out.weights.sum(-1), torch.ones(BATCH, HEADS, TIME).double())
    assert not out.weights.triu(1).any()
    mean = layer(*given, is_causal=True, need_weights=True, average_attn_weights=True).weights
    torch.testing.assert_close(mean, out.weights.mean(1))
    assert layer(*given).weights is None
    with torch.no_grad():
        layer.self_attention.q_weight[0] = 0  # attends evenly
        if layer.self_attention.q_bias is not None:
            layer.self_attention.q_bias[0] = 0
    last = layer(*given, need_weights=True).weights
    even = HEADS // layer.num_mechanisms
    assert (last[:, :even] - 1 / TIME).abs().max() < 1e-12
    if even < HEADS:
        assert (last[:, even:] - 1 / TIME).abs().max() > 1e-3


def test_dropout_reaches_every_attention():
    """Of the weights of self-attention, cross-attention and exchange."""
    parts = ("self_attention", "cross_attention", "exchange")
    for dropped in parts:
        layer = build("decoder", train=True, dropout=0.5)
        for name in parts:
            getattr(layer, name).dropout = 0.5 * (name == dropped)
        given = inputs(layer)
        assert not torch.equal(layer(*given).output, layer(*given).output)
        getattr(layer, dropped).dropout = 0.0
        assert torch.equal(layer(*given).output, layer(*given).output)


def test_weights_between_groups_are_dropped_or_doubled():
    q, v = torch.zeros(500, 2, 2, 1), torch.ones(500, 2, 2, 1)
    read = attention_between_groups(q, q, v, dropout=0.5)
    assert set(read.unique().tolist()) == {0.0, 1.0, 2.0}
    assert 0.9 < read.mean() < 1.1


@pytest.mark.parametrize("kind", ["dropout", "residual_dropout", "ffn_dropout"])
def test_each_dropout_is_of_training_only(kind):
    layer = build(**{kind: 0.5})
    given = inputs(layer)
    assert torch.equal(layer(*given).output, layer(*given).output)
    layer.train()
    assert not torch.equal(layer(*given).output, layer(*given).output)


@pytest.mark.parametrize(
    "form, change, message",
    [
        ("decoder", {"memory": None}, r"memory is None, expected .*\(batch, keys, 12\)"),
        ("no exchange", {"memory": torch.zeros(2, 5, 12)}, "memory was given, .*cross_attention"),
        ("decoder", {"x": torch.zeros(2, 4, 10)}, r"x has shape \(2, 4, 10\).*time, 12\)"),
        ("decoder", {"memory": torch.zeros(2, 5, 6)}, r"memory has shape \(2, 5, 6\), .* 12\)"),
        ("decoder", {"memory": torch.zeros(3, 5, 12)}, "memory has batch size 3, .* x, 2"),
        (
            "decoder",
            {"memory_key_padding_mask": padding(4, 4, time=4)},
            r"memory_key_padding_mask has shape \(2, 4\)",
        ),
    ],
)
def test_inputs_that_do_not_fit(form, change, message):
    layer = build(form, dtype=torch.float32)
    given = dict(zip(("x", "memory"), inputs(layer, dtype=torch.float32), strict=False))
    with pytest.raises(ValueError, match=message):
        layer(**{**given, **change})
