"""Stacks against `torch.nn`'s own, and the parts around attention."""

import math

import pytest
import torch
from tiny import config, padded, tokens
from torch import nn

import headwise as hw
from headwise.models.embedding import embed, sinusoids, token_positions


def copy_attention(ours: hw.MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    projections = ours.q_proj, ours.k_proj, ours.v_proj
    theirs.in_proj_weight.copy_(torch.cat([proj.weight for proj in projections]))
    theirs.in_proj_bias.copy_(torch.cat([proj.bias for proj in projections]))
    theirs.out_proj.load_state_dict(ours.out_proj.state_dict())


@torch.no_grad()
def pytorchs(made: hw.Seq2SeqLM) -> nn.Transformer:
    """The same stacks and weights as `nn.Transformer`."""
    c = made.config
    theirs = nn.Transformer(
        c.embed_dim,
        c.num_heads,
        c.encoder_layers,
        c.decoder_layers,
        c.ffn_dim,
        dropout=0.0,
        batch_first=True,
        norm_first=c.norm == "pre",
        dtype=torch.float64,
    )
    for ours, layer in zip(
        [*made.encoder.layers, *made.decoder.layers],
        [*theirs.encoder.layers, *theirs.decoder.layers],
        strict=True,
    ):
        copy_attention(ours.self_attention, layer.self_attn)
        norms = [ours.self_attention_residual]
        if ours.cross_attention is not None:
            copy_attention(ours.cross_attention, layer.multihead_attn)
            norms.append(ours.cross_attention_residual)
        norms.append(ours.feed_forward_residual)
        layer.linear1.load_state_dict(ours.feed_forward.ffn_up.state_dict())
        layer.linear2.load_state_dict(ours.feed_forward.ffn_down.state_dict())
        for i, residual in enumerate(norms, start=1):
            getattr(layer, f"norm{i}").load_state_dict(residual.norm.state_dict())
    if c.norm == "pre":
        theirs.encoder.norm.load_state_dict(made.encoder.final_norm.state_dict())
        theirs.decoder.norm.load_state_dict(made.decoder.final_norm.state_dict())
    else:  # PyTorch normalises once more
        theirs.encoder.norm = theirs.decoder.norm = None
    return theirs


def embedded(words, padding=None, offset=0, learned=None):
    positions = token_positions(words, padding, offset, learned)
    return embed(words, positions, "sinusoidal", math.sqrt(words.size(-1)), learned)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_standard_model_equals_pytorchs_transformer(norm):
    made = hw.Seq2SeqLM(config(norm=norm)).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    theirs = pytorchs(made)
    source, mask = padded([5, 3], 5)
    target = tokens(2, 4)
    out = made(input_ids=source, attention_mask=mask, decoder_input_ids=target)
    hidden = theirs(
        embedded(made.encoder.embedding(source)),
        embedded(made.decoder.embedding(target)),
        tgt_mask=torch.ones(4, 4, dtype=torch.bool).triu(1),
        src_key_padding_mask=mask == 0,
        memory_key_padding_mask=mask == 0,
    )
    torch.testing.assert_close(out.logits, hidden @ made.lm_head.weight.T)


@pytest.mark.parametrize("dim", [6, 7])
def test_positions_by_their_formula(dim):
    table = sinusoids(torch.arange(4), dim)
    assert table.shape == (4, dim)
    for t in range(4):
        for channel in range(dim):
            angle = t / 10_000 ** (2 * (channel // 2) / dim)
            expected = math.cos(angle) if channel % 2 else math.sin(angle)
            assert table[t, channel].item() == pytest.approx(expected, abs=1e-6)


def test_embeddings_are_scaled_and_start_at_the_offset():
    embedding = nn.Embedding(9, 6)
    ids = torch.tensor([[3, 4, 5]])
    x = embedded(embedding(ids), offset=2)
    expected = embedding.weight[3:6] * math.sqrt(6) + sinusoids(torch.arange(2, 5), 6)
    torch.testing.assert_close(x[0], expected)


def test_learned_positions_are_added_to_tokens_before_both_are_scaled():
    embedding, learned = nn.Embedding(9, 6), nn.Embedding(7, 6)
    x = embedded(embedding(torch.tensor([[3, 4, 5]])), offset=2, learned=learned)
    expected = (embedding.weight[3:6] + learned.weight[2:5]) * math.sqrt(6)
    torch.testing.assert_close(x[0], expected)
    ids = torch.tensor([[0, 3, 4], [3, 4, 0]])
    x = embedded(embedding(ids), ids == 0, learned=learned)
    torch.testing.assert_close(x[0, 1:], x[1, :2])


def test_a_token_stands_behind_the_tokens_before_it_whatever_the_padding():
    embedding = nn.Embedding(9, 6)
    ids = torch.tensor([[0, 0, 3, 4], [3, 4, 0, 0], [3, 0, 4, 0]])
    x = embedded(embedding(ids), ids == 0)
    expected = embedded(embedding(torch.tensor([[3, 4]])))[0]
    for row, places in enumerate([[2, 3], [0, 1], [0, 2]]):
        torch.testing.assert_close(x[row, places], expected)
    seen = torch.tensor([[True, False, False, False, True]])
    x = embedded(embedding(torch.tensor([[4, 0]])), seen, offset=3)
    torch.testing.assert_close(x[0, 0], embedded(embedding(torch.tensor([[4]])), offset=2)[0, 0])


@pytest.mark.parametrize("kind", ["dropout", "attention_dropout", "ffn_dropout"])
def test_each_dropout_is_of_training_only(kind):
    made = hw.Seq2SeqLM(config(**{kind: 0.5})).eval()
    batch = {"input_ids": tokens(2, 5), "decoder_input_ids": tokens(2, 4)}
    assert torch.equal(made(**batch).logits, made(**batch).logits)
    made.train()
    assert not torch.equal(made(**batch).logits, made(**batch).logits)
