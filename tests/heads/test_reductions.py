"""Where a system must equal standard attention, and ours must equal PyTorch's."""

import copy

import pytest
import torch
from support.forms import ATTENTIONS, DIM, HEADS, NINE, build, inputs, padding, strengthened
from torch import nn

import headwise as hw

pytestmark = pytest.mark.quick

BATCH, TIME, KEYS = 3, 5, 7
EXACT = {"rtol": 1e-12, "atol": 1e-12}
LATER = torch.ones(TIME, TIME, dtype=torch.bool).triu(1)  # True: hidden from a causal query
MASKED = {
    "no mask": {},
    "causal": {"is_causal": True},
    "padding": {"key_padding_mask": padding(5, 2, 1, time=TIME)},
}
each_mask = pytest.mark.parametrize("masks", MASKED.values(), ids=MASKED)


def torch_attention(*sizes, **options):
    """PyTorch's attention in float64, with biases that are not zero."""
    return strengthened(nn.MultiheadAttention(*sizes, batch_first=True, **options).double()).eval()


# --- ours is PyTorch's ------------------------------------------------------------------------


def random_mask(*shape):
    """Hides a third of the pairs, and no query's all."""
    mask = torch.rand(shape) < 0.35
    mask[..., 0] = False
    return mask


TORCH_MASKS = {
    "none": lambda keys: {},
    "padding": lambda keys: {"key_padding_mask": padding(keys, 2, 1, time=keys, left=True)},
    "float padding": lambda keys: {"key_padding_mask": torch.randn(BATCH, keys).double()},
    "boolean": lambda keys: {"attn_mask": random_mask(TIME, keys)},
    "float": lambda keys: {"attn_mask": torch.randn(TIME, keys).double()},
    "for each head": lambda keys: {"attn_mask": random_mask(BATCH * HEADS, TIME, keys)},
    "causal": lambda keys: {
        "attn_mask": torch.ones(TIME, keys, dtype=torch.bool).triu(1),
        "is_causal": True,
    },
    "rows that attend to nothing": lambda keys: {
        "attn_mask": random_mask(TIME, keys) | (torch.arange(TIME) == 2).unsqueeze(1)
    },
    "a sequence of padding alone": lambda keys: {
        "key_padding_mask": padding(keys, 2, 0, time=keys)
    },
}


@pytest.mark.parametrize("widths", [{}, {"kdim": 6, "vdim": 10}, {"bias": False}], ids=str)
@pytest.mark.parametrize("mask", TORCH_MASKS)
def test_standard_attention_is_pytorchs(mask, widths):
    """Outputs, weights by head and averaged, gradients; nothing to attend to is a read of zero."""
    their = torch_attention(DIM, HEADS, **widths)
    ours = hw.MultiHeadAttention(DIM, HEADS, **widths).double().eval()
    ours.load_state_dict(their.state_dict())
    query, key, value = inputs(BATCH, TIME).requires_grad_(), None, None
    if "kdim" in widths:
        key, value = inputs(BATCH, KEYS, 6), inputs(BATCH, KEYS, 10)
    memory = query if key is None else key, query if value is None else value
    masks = TORCH_MASKS[mask](memory[0].size(1))
    for average in (True, False):
        expected, weights = their(query, *memory, average_attn_weights=average, **masks)
        out = ours(query, key, value, need_weights=True, average_attn_weights=average, **masks)
        assert out.weights.shape == weights.shape
        with_nan = {"a sequence of padding alone", "rows that attend to nothing"}
        for x, y, nothing in ((out[0], expected, ours.out_proj.bias), (out[1], weights, 0)):
            finite = y.isfinite()
            assert bool(finite.all()) == (mask not in with_nan)
            torch.testing.assert_close(x[finite], y[finite], **EXACT)
            empty = torch.zeros_like(x) + (0 if nothing is None else nothing)
            torch.testing.assert_close(x[~finite], empty[~finite], **EXACT)
    plain = ours(query, key, value, **masks)
    assert plain.weights is None
    torch.testing.assert_close(plain.output, out.output, **EXACT)
    if mask not in with_nan:
        slopes = [torch.autograd.grad(y.square().sum(), query)[0] for y in (plain[0], expected)]
        torch.testing.assert_close(*slopes, **EXACT)


STARTING = {
    "standard": {},
    "mae": {"dropped_heads": 2},
    "gated": {},
    "gated neutral elementwise": {"gate_init": "neutral", "gate": "elementwise"},
    "moh": {"shared_heads": 1, "top_k": 3},
    "differential": {},
}


@pytest.mark.parametrize("sizes", [{}, {"kdim": 6, "vdim": 10}, {"bias": False}], ids=str)
@pytest.mark.parametrize("name", STARTING)
@each_mask
def test_what_starts_from_an_attention_computes_the_same(name, masks, sizes):
    """It is a copy: in mode and precision as the source, whose memory it does not share."""
    kind = NINE[name.split()[0]][0]
    sources = [torch_attention(DIM, HEADS, **sizes), build("standard", **sizes)]
    memory = [inputs(BATCH, TIME, sizes.get(width, DIM)) for width in ("kdim", "vdim")]
    for source in sources:
        source.out_proj.weight.requires_grad_(False)
        copied = kind.from_attention(source, **STARTING[name])
        x, source_masks = inputs(), dict(masks)
        if isinstance(source, nn.MultiheadAttention) and "is_causal" in masks:
            source_masks["attn_mask"] = LATER
        expected = source(x, *memory, **source_masks)[0]
        torch.testing.assert_close(copied(x, *memory, **masks).output, expected, **EXACT)
        assert copied.out_proj.weight.dtype == torch.float64 and not copied.training
        assert not copied.out_proj.weight.requires_grad and copied.v_proj.weight.requires_grad
        with torch.no_grad():
            for parameter in copied.parameters():
                parameter.add_(1)
        torch.testing.assert_close(source(x, *memory, **source_masks)[0], expected, rtol=0, atol=0)


# --- special cases of a system ----------------------------------------------------------------


@each_mask
@pytest.mark.parametrize("dropped", [1, 2])
def test_uniform_mixtures_are_standard_attention_to_the_bit(dropped, masks):
    uniform = build("mae", gate="uniform", dropped_heads=dropped, dtype=torch.float32)
    standard, x = hw.MultiHeadAttention(DIM, HEADS), inputs(dtype=torch.float32)
    standard.load_state_dict(uniform.state_dict())
    for training in (False, True):
        out = uniform.train(training)(x, **masks)
        assert torch.equal(out.output, standard(x, **masks).output)
        assert (out.routing.weights == 1 / uniform.num_experts).all()


def ordinary_layer(norm, heads, weights, **names):
    """PyTorch's layer around standard attention, with weights of modules by their names here."""
    kwargs = {"dropout": 0.0, "batch_first": True, "norm_first": norm == "pre"}
    layer = nn.TransformerEncoderLayer(DIM, heads, 16, **kwargs)
    layer.self_attn = hw.MultiHeadAttention(DIM, heads)
    state = {}
    for name, weight in weights.items():
        module, _, rest = name.partition(".")
        if module in names:
            state[f"{names[module]}.{rest}"] = weight
    layer.double().load_state_dict(state)
    return layer


def of_one_branch(norm):
    """κ = α = 1."""
    ours = build("weighted", num_branches=1, norm=norm)
    assert ours.kappa.item() == ours.alpha.item() == 1
    output = {"out_proj.weight": ours.branch_output[0].t(), "out_proj.bias": torch.zeros(DIM)}
    names = {"ffn_up": "linear1", "ffn_down": "linear2", "norm1": "norm1", "norm2": "norm2"}
    names |= {name: f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
    return ours, ordinary_layer(norm, 1, ours.state_dict() | output, **names)


def of_a_single_mechanism(norm):
    """n_s = 1 competes with nobody, and has nobody to exchange anything with."""
    ours = build("tim", num_mechanisms=1, exchange_heads=0, norm=norm, bias=True)
    # Its maps are applied from the right.
    weights = {name: weight[0].t() for name, weight in ours.state_dict().items()}
    names = {"ffn_up": "linear1", "ffn_down": "linear2", "norm1": "norm1", "norm3": "norm2"}
    return ours, ordinary_layer(norm, HEADS, weights, self_attention="self_attn", **names)


@each_mask
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("special", [of_one_branch, of_a_single_mechanism])
def test_a_layer_of_one_part_is_the_ordinary_layer(special, norm, masks):
    ours, ordinary = special(norm)
    x, hidden = inputs(), masks.get("key_padding_mask")
    causal = {"src_mask": LATER, "is_causal": True} if "is_causal" in masks else {}
    expected = ordinary(x, src_key_padding_mask=hidden, **causal)
    torch.testing.assert_close(ours(x, **masks).output, expected, **EXACT)


@each_mask
def test_all_experts_of_a_router_at_zero_are_heads_that_share_keys(masks):
    """k = E and W = 0: each expert counts 1/E, so that W^O is divided by E."""
    moa = build("moa", num_experts=4, top_k=4, num_key_value_heads=1, head_dim=4)
    nn.init.zeros_(moa.router.weight)
    standard = hw.MultiHeadAttention(DIM, 4, head_dim=4, num_key_value_heads=1, bias=False)
    state = {
        "q_proj.weight": moa.expert_query.transpose(1, 2).flatten(0, 1),
        "k_proj.weight": moa.k_proj.weight,
        "v_proj.weight": moa.v_proj.weight,
        "out_proj.weight": moa.expert_output.flatten(0, 1).t() / 4,
    }
    standard.double().load_state_dict(state)
    x = inputs()
    out, expected = moa(x, need_weights=True, **masks), standard(x, need_weights=True, **masks)
    torch.testing.assert_close(out.output, expected.output, **EXACT)
    torch.testing.assert_close(out.weights, expected.weights, **EXACT)


# --- in PyTorch's layers ----------------------------------------------------------------------

CAUSAL = torch.zeros(TIME, TIME, dtype=torch.float64).masked_fill(LATER, float("-inf"))
HIDDEN = padding(5, 2, 3, time=TIME)


# PyTorch's own: nested tensors are a prototype, and mixed types of masks deprecated.
quietly = pytest.mark.filterwarnings("ignore:.*nested.*", "ignore:.*mismatched.*")


def stack(kind, **options):
    layer = kind(DIM, HEADS, 16, dropout=0.0, batch_first=True, **options)
    is_encoder = kind is nn.TransformerEncoderLayer
    model = (nn.TransformerEncoder if is_encoder else nn.TransformerDecoder)(layer, num_layers=2)
    return strengthened(model.double())


@quietly
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", [nn.TransformerEncoderLayer, nn.TransformerDecoderLayer])
def test_standard_attention_changes_no_layer_of_pytorch(kind, training):
    """Also where its own kernel would take packed weights: in evaluation, without gradients."""
    for norm_first in (False, True):
        model = stack(kind, norm_first=norm_first).train(training)
        ours = copy.deepcopy(model)
        for path, module in list(ours.named_modules()):
            if isinstance(module, nn.MultiheadAttention):
                ours.set_submodule(path, hw.MultiHeadAttention.from_attention(module))
        x, memory = inputs(), inputs(BATCH, 4)
        cases = [{}, {"src_key_padding_mask": HIDDEN}, {"mask": CAUSAL, "is_causal": True}]
        sequences = (x,)
        if kind is nn.TransformerDecoderLayer:
            memory_mask = {"memory_key_padding_mask": padding(4, 1, 3, time=4)}
            cases = [{}, {"tgt_mask": CAUSAL, "tgt_key_padding_mask": HIDDEN, **memory_mask}]
            sequences = (x, memory)
        for masks in cases:
            for gradients in (True, False):
                with torch.set_grad_enabled(gradients):
                    expected, got = model(*sequences, **masks), ours(*sequences, **masks)
                real = ~HIDDEN if "src_key_padding_mask" in masks else slice(None)
                torch.testing.assert_close(got[real], expected[real], **EXACT)


@quietly
@pytest.mark.parametrize("kept", [0, 1])  # a layer of PyTorch's hands on a nested tensor
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_every_attention_is_called_by_pytorchs_layers(name, gradients, kept):
    """Each layer computes with it what the layer's docstring says."""
    model = stack(nn.TransformerEncoderLayer).eval()
    for layer in model.layers[kept:]:
        layer.self_attn = build(name)
    x, masks = inputs(), {"src_key_padding_mask": HIDDEN}
    with torch.set_grad_enabled(gradients):
        for causal in (False, True):
            expected = x
            for layer in model.layers[:kept]:
                mask = CAUSAL if causal else None
                expected = layer(x, mask, src_key_padding_mask=HIDDEN, is_causal=causal)
            for layer in model.layers[kept:]:
                read, _ = layer.self_attn(expected, key_padding_mask=HIDDEN, is_causal=causal)
                expected = layer.norm1(expected + read)
                expected = layer.norm2(expected + layer.linear2(layer.linear1(expected).relu()))
            got = model(x, **masks, **({"mask": CAUSAL} if causal else {}))
            torch.testing.assert_close(got[~HIDDEN], expected[~HIDDEN], **EXACT)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_in_a_decoder_of_pytorch_no_later_token_is_read(name):
    """By neither of its attentions: the queries of the second come one after another too."""
    layer = stack(nn.TransformerDecoderLayer).eval().layers[0]
    layer.self_attn, layer.multihead_attn = build(name), build(name)
    x, memory, causal = inputs(), inputs(BATCH, 4), {"tgt_mask": CAUSAL, "tgt_is_causal": True}
    expected = layer(x, memory, **causal)
    x[:, 3:] += 1
    torch.testing.assert_close(layer(x, memory, **causal)[:, :3], expected[:, :3], **EXACT)


class Subclass(nn.TransformerEncoderLayer):
    pass


@pytest.mark.parametrize("kind", [nn.TransformerEncoderLayer, Subclass])
@pytest.mark.parametrize(("name", "batch_first"), [("mae", False), ("weighted", True)])
def test_a_place_of_another_kind_is_refused(name, batch_first, kind):
    """Otherwise each token would attend to those of other texts, without a word."""
    layer = kind(DIM, HEADS, 16, batch_first=batch_first)
    with pytest.raises(ValueError, match="self_attn" if batch_first else "batch_first"):
        layer.self_attn = build(name)


OTHER_SIZES = {"num_heads": 2, "num_key_value_heads": 2, "qk_norm": True, "bias": False}


def test_a_subclass_without_a_feed_forward_of_its_own_may_hold_a_system_that_has_one():
    class Sparse(nn.TransformerEncoderLayer):
        _ff_block = staticmethod(torch.zeros_like)

    Sparse(DIM, HEADS, 16, batch_first=True).self_attn = build("weighted")


@pytest.mark.parametrize(
    ("first", "options"), [(False, {}), *((True, {o: v}) for o, v in OTHER_SIZES.items())]
)
def test_an_attention_that_does_not_fit_is_not_taken_over(first, options):
    with pytest.raises(ValueError, match=next(iter(options), "batch_first")):
        source = nn.MultiheadAttention(DIM, HEADS, batch_first=first)
        hw.MultiHeadAttention.from_attention(source, **options)
