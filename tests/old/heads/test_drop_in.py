"""In the place of `nn.MultiheadAttention` inside PyTorch's own transformer layers and stacks."""

import copy
import warnings

import pytest
import torch
from systems import SYSTEMS, padding
from torch import nn

import headwise as hw
from headwise.models.plan import system_class

DIM, HEADS, BATCH, TIME, KEYS = 12, 4, 3, 5, 4
ALONE = [name for name, system in SYSTEMS.items() if system.build().replaces == "attention"]
LAYER = {"d_model": DIM, "nhead": HEADS, "dim_feedforward": 16, "batch_first": True}
CAUSAL = nn.Transformer.generate_square_subsequent_mask(TIME)
SOURCE = {
    "none": {},
    "padding": {"src_key_padding_mask": padding(5, 2, 3, time=TIME)},
    "causal": {"mask": CAUSAL},
    "causal, padding": {
        "mask": CAUSAL,
        "is_causal": True,
        "src_key_padding_mask": padding(5, 2, 3, time=TIME),
    },
}
TARGET = {
    "none": {},
    "masks": {
        "tgt_mask": CAUSAL,
        "tgt_key_padding_mask": padding(5, 2, 3, time=TIME),
        "memory_key_padding_mask": padding(4, 1, 3, time=KEYS),
    },
    "causal": {"tgt_mask": CAUSAL, "tgt_is_causal": True},
}


def attention(name, **options):
    return SYSTEMS[name].build(DIM, dtype=torch.float32, **options)


def with_ours(theirs):
    """A copy whose attentions are ours, and load the weights of theirs."""
    ours = copy.deepcopy(theirs)
    for layer in ours.layers:
        for name, child in list(layer.named_children()):
            if isinstance(child, nn.MultiheadAttention):
                layer.set_submodule(name, hw.MultiHeadAttention(DIM, HEADS))
    assert ours.load_state_dict(theirs.state_dict()).missing_keys == []
    return ours


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        # PyTorch's own: nested tensors are a prototype, and mixed mask types deprecated.
        warnings.filterwarnings("ignore", message=".*(nested|mismatched).*")
        yield


def encoder(num_layers=2, **options):
    """As users build it: PyTorch decides about its fast path before ours are put in."""
    layer = nn.TransformerEncoderLayer(**LAYER, dropout=0.0, **options)
    return nn.TransformerEncoder(layer, num_layers)


def decoder(num_layers=2, **options):
    layer = nn.TransformerDecoderLayer(**LAYER, dropout=0.0, **options)
    return nn.TransformerDecoder(layer, num_layers)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("masks", SOURCE)
def test_standard_attention_in_an_encoder_changes_nothing(masks, norm_first, train):
    theirs = encoder(norm_first=norm_first).train(train)
    ours, x = with_ours(theirs), torch.randn(BATCH, TIME, DIM)
    real = ~SOURCE[masks].get("src_key_padding_mask", padding(5, 5, 5, time=TIME))
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            expected, got = theirs(x, **SOURCE[masks]), ours(x, **SOURCE[masks])
        torch.testing.assert_close(got[real], expected[real], rtol=1e-5, atol=1e-5)
        layers = theirs.layers[0](x), ours.layers[0](x)
        torch.testing.assert_close(*layers, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("masks", TARGET)
def test_standard_attention_in_a_decoder_changes_nothing(masks, norm_first, train):
    theirs = decoder(norm_first=norm_first).train(train)
    ours = with_ours(theirs)
    x, memory = torch.randn(BATCH, TIME, DIM), torch.randn(BATCH, KEYS, DIM)
    expected, got = theirs(x, memory, **TARGET[masks]), ours(x, memory, **TARGET[masks])
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def by_hand(layer, x, mask, **masks):
    """The post-norm encoder layer as its docstring says it, around our attention."""
    attended = layer.self_attn(x, key_padding_mask=mask, **masks).output
    x = layer.norm1(x + attended)
    return layer.norm2(x + layer.linear2(torch.relu(layer.linear1(x))))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", ALONE)
def test_every_attention_works_in_an_encoder(name, grad, causal):
    """In evaluation without gradients PyTorch would compute its own attention on nested tensors."""
    stack = encoder().eval()
    for layer in stack.layers:
        layer.self_attn = attention(name)
    x, mask = torch.randn(BATCH, TIME, DIM), padding(5, 2, 3, time=TIME)
    masks = {"mask": CAUSAL} if causal else {}
    with torch.set_grad_enabled(grad):
        got = stack(x, src_key_padding_mask=mask, **masks)
        expected = x
        for layer in stack.layers:
            expected = by_hand(layer, expected, mask, is_causal=causal)
    torch.testing.assert_close(got[~mask], expected[~mask], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ALONE)
def test_every_attention_learns_in_an_encoder_and_a_decoder(name):
    source, target = encoder(1), decoder(1)
    source.layers[0].self_attn = attention(name).train()
    target.layers[0].self_attn = attention(name).train()
    target.layers[0].multihead_attn = attention(name).train()
    x, y = torch.randn(BATCH, TIME, DIM), torch.randn(BATCH, KEYS, DIM)
    memory = source(y, src_key_padding_mask=padding(4, 2, 3, time=KEYS))
    target(x, memory, **TARGET["masks"]).square().sum().backward()
    for path, parameter in [*source.named_parameters(), *target.named_parameters()]:
        assert parameter.grad is not None and parameter.grad.isfinite().all(), path
        # A shift of all keys changes no softmax.
        is_empty = not parameter.numel()
        assert parameter.grad.any() or is_empty or path.endswith("k_proj.bias"), path


@pytest.mark.parametrize("name", ALONE)
def test_a_decoder_of_pytorch_shows_no_gate_its_future(name):
    """Its causal mask comes as a float mask, with or without is_causal."""
    options = {"causal_queries": True} if "mae" in name else {}
    stack = decoder(1).eval()
    stack.layers[0].self_attn = attention(name)
    stack.layers[0].multihead_attn = attention(name, **options)
    x, memory = torch.randn(BATCH, TIME, DIM), torch.randn(BATCH, KEYS, DIM)
    changed = x.clone()
    changed[:, 3:] += 1
    for masks in ({"tgt_mask": CAUSAL}, {"tgt_mask": CAUSAL, "tgt_is_causal": True}):
        before, after = stack(x, memory, **masks), stack(changed, memory, **masks)
        torch.testing.assert_close(after[:, :3], before[:, :3], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["weighted", "tim"])
def test_what_takes_the_place_of_more_is_refused(name):
    system = system_class(name).from_plan(hw.systems.Place("encoder_self", DIM, HEADS, 2 * DIM))
    with pytest.raises(ValueError, match=r"self_attn of a .* expected an attention alone: it tak"):
        nn.TransformerEncoderLayer(**LAYER).self_attn = system


TIME_FIRST = {**LAYER, "batch_first": False}
REFUSED = r"{} of a {} is an nn\.MultiheadAttention with batch_first=False.*over the batch"


@pytest.mark.parametrize("name", ALONE)
def test_a_place_whose_input_is_time_first_is_refused(name):
    """However it comes there: otherwise each token would read other texts, without a word."""
    layer, target = nn.TransformerEncoderLayer(**TIME_FIRST), decoder(1)
    with pytest.raises(ValueError, match=REFUSED.format("self_attn", "TransformerEncoderLayer")):
        layer.self_attn = attention(name)
    assert isinstance(layer.self_attn, nn.MultiheadAttention)
    target.layers[0].multihead_attn = nn.MultiheadAttention(DIM, HEADS)
    refused = REFUSED.format("multihead_attn", "TransformerDecoderLayer")
    with pytest.raises(ValueError, match=refused):
        target.set_submodule("layers.0.multihead_attn", attention(name))
    with pytest.raises(ValueError, match=REFUSED.format("inner", "ModuleDict")):
        nn.ModuleDict({"inner": nn.MultiheadAttention(DIM, HEADS)})["inner"] = attention(name)
