"""From `nn.MultiheadAttention` and our own: state dicts, and systems that start equal."""

import pytest
import torch
from torch import nn

import headwise as hw
from headwise.heads.attention import Inputs
from headwise.heads.multi_head import standard_sizes
from headwise.ops.rotary import Rotary

MAE = hw.MixtureOfAttentiveExperts
PADDING = torch.tensor([[False] * 5, [True] * 2 + [False] * 3])
MASK = torch.eye(5).bool()
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


def drawn(attention: nn.Module) -> nn.Module:
    """With biases too, which PyTorch starts at zero."""
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return attention


def theirs_batch_first(*sizes, **options):
    return nn.MultiheadAttention(*sizes, batch_first=True, **options)


def equal(actual, expected):
    tolerance = TOLERANCE[expected.dtype] * max(1.0, expected.abs().max().item())
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("widths", [{}, {"kdim": 6, "bias": False}], ids=str)
@pytest.mark.parametrize("assign", [True, False])
def test_pytorchs_state_dict_loads(widths, assign):
    theirs = nn.MultiheadAttention(8, 2, **widths)
    ours = hw.MultiHeadAttention(8, 2, **widths)
    state = theirs.state_dict()
    given = dict(state)
    loaded = ours.load_state_dict(state, assign=assign)
    assert (loaded.missing_keys, loaded.unexpected_keys) == ([], [])
    assert state.keys() == given.keys()  # the caller's, as it was
    # Each projection has memory of its own, also where tensors are assigned.
    pointers = [weight.untyped_storage().data_ptr() for weight in ours.parameters()]
    assert len(set(pointers)) == len(pointers)


def test_what_a_subclass_adds_is_missing():
    state = nn.MultiheadAttention(8, 2).state_dict()
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "gate.norm.weight"'):
        MAE(8, 2).load_state_dict(state)
    loaded = MAE(8, 2).load_state_dict(state, strict=False)
    assert loaded.unexpected_keys == []
    assert all(name.startswith("gate.") for name in loaded.missing_keys)
    assert MAE(8, 2, gate="uniform").load_state_dict(state).missing_keys == []


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("masks", [{}, {"key_padding_mask": PADDING}, {"attn_mask": MASK}])
@pytest.mark.parametrize("widths", [{}, {"kdim": 7, "vdim": 3}, {"bias": False}], ids=str)
@pytest.mark.parametrize("kind", [theirs_batch_first, hw.MultiHeadAttention])
def test_it_is_equal_whatever_the_sizes_and_masks(kind, widths, masks, dtype):
    source = drawn(kind(6, 3, **widths).to(dtype)).eval()
    sizes = (6, source.kdim, source.vdim)
    query, key, value = (torch.randn(2, 5, width, dtype=dtype) for width in sizes)
    expected = source(query, key, value, **masks)[0]
    for system, options in (
        (hw.MultiHeadAttention, {}),
        (MAE, {"dropped_heads": 2}),
        (MAE, {"gate": "uniform"}),
        (MAE, {"causal_queries": True, "gate_window": 2}),
    ):
        made = system.from_attention(source, **options)
        equal(made(query, key, value, **masks)[0], expected)


MODERN = {
    "num_key_value_heads": 2,
    "head_dim": 4,
    "qk_norm": True,
    "norm_eps": 1e-3,
    "bias": "qkv",
}


@pytest.mark.parametrize("changed", [{}, {"bias": False}, {"qk_norm": False, "norm_eps": 1e-6}])
@pytest.mark.parametrize("system", [hw.MultiHeadAttention, MAE, hw.DifferentialAttention])
def test_heads_that_share_keys_norms_and_biases_of_projections_alone(system, changed):
    source = drawn(hw.MultiHeadAttention(12, 4, **{**MODERN, **changed})).double().eval()
    x, turns = torch.randn(2, 5, 12).double(), Rotary(torch.arange(5))
    made = system.from_attention(source)
    assert made.num_key_value_heads == 2 and made.key_size() == (2, 4)
    equal(made(x, rotary=turns).output, source(x, rotary=turns).output)
    assert standard_sizes(made) == standard_sizes(source)


@pytest.mark.parametrize(
    "option, message",
    [
        ({"num_key_value_heads": 4}, "num_key_value_heads is 4, expected 2, as in the attention"),
        ({"qk_norm": False}, "qk_norm is False, expected True"),
        ({"norm_eps": 1e-5}, "norm_eps is 1e-05, expected 0.001"),
        ({"bias": True}, "bias is True, expected qkv"),
    ],
)
def test_an_attention_with_other_options_is_an_error(option, message):
    source = hw.MultiHeadAttention(12, 4, **MODERN)
    with pytest.raises(ValueError, match=message):
        MAE(12, 4, **{**MODERN, **option}).start_as_standard(source)
    with pytest.raises(ValueError, match=f"{next(iter(option))} is given"):
        MAE.from_attention(source, **option)


@pytest.mark.parametrize("kind", [theirs_batch_first, hw.MultiHeadAttention])
@pytest.mark.parametrize("system", [hw.MultiHeadAttention, MAE])
def test_it_is_as_the_source_was(kind, system):
    source = drawn(kind(8, 2, kdim=6, vdim=4, dropout=0.25)).bfloat16()
    source.out_proj.weight.requires_grad_(False)
    before = {name: value.clone() for name, value in source.state_dict().items()}
    for training in (True, False):
        made = system.from_attention(source.train(training))
        assert all(module.training is training for module in made.modules())
    assert (made.kdim, made.vdim, made.dropout) == (6, 4, 0.25)
    assert {weight.dtype for weight in made.parameters()} == {torch.bfloat16}
    assert system.from_attention(source, dropout=0.5).dropout == 0.5
    frozen = {name for name, weight in made.named_parameters() if not weight.requires_grad}
    assert frozen == {"out_proj.weight"}
    assert all(weight.is_leaf for weight in made.parameters())
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(before[name], value) for name, value in source.state_dict().items())
    meta = system.from_attention(kind(8, 2).to("meta"))
    assert {weight.device.type for weight in meta.parameters()} == {"meta"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hw.MixtureOfAttentionHeads.from_attention, "share one key and one value head"),
        (lambda: hw.AgreementAttention.from_attention, "a ReLU and a routing"),
        (lambda: hw.BranchedAttention.from_attention, "the place of the feed-forward behind"),
        (lambda: hw.IndependentMechanismsLayer.from_attention, "the place of a whole layer"),
    ],
)
def test_where_the_output_cannot_stay_equal_the_error_says_why(make, message):
    with pytest.raises(ValueError, match=f"cannot start from a standard .*{message}"):
        make()(nn.MultiheadAttention(8, 2))


class Sharper(hw.MultiHeadAttention):
    """A user's system, which does not say how it starts."""

    def attend(self, q, k, v, mask, is_causal):
        return super().attend(2 * q, k, v, mask, is_causal)


class Scaled(hw.MultiHeadAttention):
    """A user's system, which does."""

    def __init__(self, embed_dim, num_heads, **options):
        super().__init__(embed_dim, num_heads, **options)
        self.scale = nn.Parameter(torch.randn(()))

    def start_neutral(self):
        nn.init.ones_(self.scale)

    def combine(self, heads, inputs, choice):
        return super().combine(heads * self.scale, inputs, choice)


def test_a_system_of_a_users_own():
    source, x = drawn(hw.MultiHeadAttention(8, 2)), torch.randn(2, 3, 8)
    equal(Scaled.from_attention(source)(x).output, source(x).output)
    with pytest.raises(ValueError, match=r"Sharper cannot start .* overrides start_neutral"):
        Sharper.from_attention(source)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True), {}, "with add_bias_kv=True"),
        (lambda: nn.MultiheadAttention(8, 2, add_zero_attn=True), {}, "with add_zero_attn=True"),
        (lambda: MAE(8, 2), {}, "attention is a MixtureOfAttentiveExperts, expected standard"),
        (lambda: Sharper(8, 2), {}, "attention is a Sharper, expected standard attention"),
        (lambda: nn.Linear(8, 8), {}, "attention is a Linear, expected standard attention"),
        (lambda: nn.MultiheadAttention(8, 2), {}, "batch_first=False, expected True"),
        (lambda: theirs_batch_first(8, 2), {"num_heads": 4}, "num_heads is given"),
    ],
)
@pytest.mark.parametrize("system", [hw.MultiHeadAttention, MAE])
def test_what_is_no_standard_attention_is_an_error(system, source, options, message):
    with pytest.raises(ValueError, match=message):
        system.from_attention(source(), **options)


def test_weights_that_an_adapter_has_replaced_are_an_error():
    source = hw.MultiHeadAttention(8, 2)
    nn.utils.parametrizations.weight_norm(source.q_proj)
    with pytest.raises(ValueError, match=r"in its weights q_proj\.parametrizations"):
        MAE.from_attention(source)


def test_the_sizes_of_both_have_to_agree():
    with pytest.raises(ValueError, match="num_heads is 2, expected 4, as in the attention whose"):
        MAE(8, 2).start_as_standard(hw.MultiHeadAttention(8, 4))
    with pytest.raises(ValueError, match="bias is True, expected False"):
        hw.MultiHeadAttention(8, 2).start_as_standard(hw.MultiHeadAttention(8, 2, bias=False))


@pytest.mark.parametrize(
    ("system", "options"),
    [
        (MAE, {}),
        (MAE, {"dropped_heads": 2, "gate_window": 2}),
        (hw.GatedAttention, {}),
        (hw.GatedAttention, {"gate": "elementwise"}),
        (hw.GatedAttention, {"gate_activation": "softplus", "gate_inputs": 3, "gate_bias": True}),
        (hw.MixtureOfHeads, {"shared_heads": 2, "top_k": 2}),
        (hw.MixtureOfHeads, {"shared_heads": 0, "top_k": 4}),
    ],
)
def test_over_heads_of_another_module(system, options):
    over = system.over_heads(10, 4, 3, **options).eval()
    started = {"gate_start": "neutral"} if system is hw.GatedAttention else {}
    whole = system(10, 4, head_dim=3, **started, **options).eval()
    assert not {name for name, _ in over.named_parameters() if "_proj." in name} - {
        *("gate_proj.weight", "gate_proj.bias")
    }
    x, read = torch.randn(2, 5, 10), torch.randn(2, 5, 12)
    torch.testing.assert_close(over(x, value=read).output, read, rtol=0, atol=1e-6)
    # Not neutral any more, it computes what the whole layer does between attending and projecting.
    for parameter in over.parameters():
        nn.init.normal_(parameter)
    whole.load_state_dict(over.state_dict(), strict=False)
    nn.init.eye_(whole.out_proj.weight), nn.init.zeros_(whole.out_proj.bias)
    padding = torch.tensor([[False] * 5, [True] * 2 + [False] * 3])
    for causal in (False, True):
        out = over(x, value=read, is_causal=causal, query_padding_mask=padding)
        heads = read.unflatten(-1, (4, 3)).transpose(1, 2)
        inputs = Inputs(x, x, x, padding, causal, None, None)
        expected, routing = whole.combine(heads, inputs, None)
        torch.testing.assert_close(out.output @ whole.out_proj.weight.T, expected)
        torch.testing.assert_close(out.routing.weights, routing.weights)
