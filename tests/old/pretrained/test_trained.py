"""Trained gates compute what the equation says, from what the attention is called with."""

import random

import pytest
import torch
from architectures import ARCHITECTURES, inputs, set_attention, source, tiny
from gated import train_at_random
from reference import expert

import headwise as hw


def mixture(gates, parts):
    """Σ_S g_S f_S of experts that each leave one head out."""
    experts = (expert(list(parts), (left_out,)) for left_out in range(len(parts)))
    return sum(g * y for g, y in zip(gates, experts, strict=True))


def gates_of(expert_gate, summary):
    """softmax(W₂ tanh(W₁ BatchNorm(x))), by the running statistics."""
    norm = expert_gate.norm
    x = (summary - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
    x = x * norm.weight + norm.bias
    return expert_gate.output(torch.tanh(expert_gate.hidden(x))).softmax(-1)


def watch(model, path):
    """The inputs and outputs of a module, call by call."""
    calls = []
    model.get_submodule(path).register_forward_hook(
        lambda module, args, kwargs, output: calls.append((args, kwargs, output)), with_kwargs=True
    )
    return calls


@torch.no_grad()
def test_an_encoder_has_one_gate_for_a_sequence():
    model = train_at_random(hw.gate_heads(tiny("bert")))
    attention = model.bert.encoder.layer[1].attention
    calls = watch(model, "bert.encoder.layer.1.attention")
    heads = watch(model, "bert.encoder.layer.1.attention.self")
    given = inputs(model, random.Random(0), batch=3, side="left")
    model(**given)
    (hidden, *_), _, (output, _) = calls[0]
    read = heads[0][2][0]  # (batch, time, heads * head_dim), not yet gated
    system = attention.head_gates.system
    dense, width = attention.output.dense, system.head_dim
    for b, mask in enumerate(given["attention_mask"].bool()):
        gates = gates_of(system.gate, hidden[b][mask].mean(0))
        for t in range(hidden.size(1)):
            of_heads = read[b, t].view(-1, width), dense.weight.unflatten(1, (-1, width))
            parts = torch.einsum("hi,ohi->ho", *of_heads)
            mixed = mixture(gates, parts) + dense.bias
            expected = attention.output.LayerNorm(mixed + hidden[b, t])
            torch.testing.assert_close(output[b, t], expected)


@torch.no_grad()
def test_a_decoder_has_one_gate_for_a_position():
    model = train_at_random(hw.gate_heads(tiny("gpt2")))
    attention = model.transformer.h[1].attn
    system, projection = attention.head_gates.system, attention.c_proj
    calls = watch(model, "transformer.h.1.attn")
    given = inputs(model, random.Random(0), batch=3, side="left")
    model(**given, use_cache=False)
    (hidden, *_), _, (output, _) = calls[0]
    hw.remove_gates(model)
    read = []
    projection.register_forward_pre_hook(lambda module, args: read.append(args[0]))
    attention(*calls[0][0], **calls[0][1])  # without gates
    width = system.head_dim
    for b, mask in enumerate(given["attention_mask"].bool()):
        for t in mask.nonzero().flatten().tolist():
            gates = gates_of(system.gate, hidden[b, : t + 1][mask[: t + 1]].mean(0))
            of_heads = read[0][b, t].view(-1, width), projection.weight.unflatten(0, (-1, width))
            parts = torch.einsum("hi,hio->ho", *of_heads)
            expected = mixture(gates, parts) + projection.bias
            torch.testing.assert_close(output[b, t], expected)


# Others read the first position, or take no positions, so that padding before a text matters.
WITH_PADDING_BEFORE = (
    *("bert", "bert decoder", "xlm-roberta", "electra", "gpt2", "llama", "mistral"),
    *("qwen2", "qwen3", "t5"),
)
WITHOUT_POSITIONS = (
    *("xlm-roberta", "distilbert", "t5", "bart", "mbart", "marian", "bert to bert"),
    *("camembert", "mt5", "pegasus", "m2m100"),
)
WITHOUT_TEXT = ("whisper", "vit", "vit to gpt2")
PADDED = [
    *((name, "right") for name in ARCHITECTURES if name not in WITHOUT_TEXT),
    *((name, "left") for name in WITH_PADDING_BEFORE),
]


@pytest.mark.parametrize(("name", "side"), PADDED)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@torch.no_grad()
def test_padding_is_left_out(name, side, attention):
    model = train_at_random(hw.gate_heads(tiny(name)))
    set_attention(model, attention)
    given = source(model, random.Random(3), batch=3, time=7, side=side)
    # Positions are those of the tokens, padding apart, so that nothing else differs.
    mask = given["attention_mask"]
    options = {}
    if model.config.is_encoder_decoder:
        options["decoder_input_ids"] = torch.tensor([[2, 8, 6]])
    if name not in WITHOUT_POSITIONS:
        options["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    for row in range(1, 3):
        one = {k: v[row : row + 1] if k == "position_ids" else v for k, v in options.items()}
        real = mask[row].bool()
        alone = {k: v[:, real] if k == "position_ids" else v for k, v in one.items()}
        padded = model(
            input_ids=given["input_ids"][row : row + 1], attention_mask=mask[row : row + 1], **one
        ).logits
        whole = model(input_ids=given["input_ids"][row : row + 1, real], **alone).logits
        if padded.dim() == 3 and padded.size(1) == mask.size(1):
            padded = padded[:, real]
        torch.testing.assert_close(padded, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["bert decoder", "gpt2", "llama", "qwen3", "t5", "bart"])
@torch.no_grad()
def test_no_gate_of_a_decoder_sees_later_positions(name):
    model = train_at_random(hw.gate_heads(tiny(name)))
    given = inputs(model, random.Random(0), batch=1, time=6, side="right")
    key = "decoder_input_ids" if "decoder_input_ids" in given else "input_ids"
    before = model(**given).logits
    given[key][:, -1] = (given[key][:, -1] - 4) % 30 + 5
    after = model(**given).logits
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert not torch.allclose(before[:, -1], after[:, -1])
