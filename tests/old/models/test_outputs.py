"""What models return when they are asked for it, where no row of the compatibility page says it."""

import pytest
import torch
from tiny import MOA, VOCABULARY, strengthen, tokens
from torch import nn

import headwise as hw
from headwise.heads.system import AttentionOutput, Routing
from headwise.models.decisions import heads_read
from headwise.models.outputs import AuxiliaryLoss
from headwise.models.plan import system_class

MIXED = [{"system": "mae", "layers": [0], "gate_dropout": 0.0}, {**MOA, "layers": [1]}]
SIZES = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 24, "layers": 2, "dropout": 0.0}


def causal(plan=MIXED, **options):
    torch.manual_seed(0)
    sizes = {**SIZES, "vocab_size": VOCABULARY, **options}
    made = hw.CausalLM(hw.CausalLMConfig(attention={"decoder_self": plan}, **sizes))
    strengthen(made)
    return made.eval()


class Alone(system_class("tim")):
    """A layer whose attention is none of headwise's."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.self_attention = nn.MultiheadAttention(16, 2)


def test_attentions_of_chosen_heads_are_those_by_which_they_read():
    made, ids = causal(), tokens(2, 5)
    attentions, reads = made(ids, output_attentions=True).attentions, []
    with heads_read(made, lambda place, read: reads.append(read)):
        made(ids)
    torch.testing.assert_close(attentions[0], reads[0].weights())
    values = reads[1].v.expand(-1, 5, -1, -1)  # five experts
    every = attentions[1] @ values  # (batch, experts, queries, head_dim)
    chosen = reads[1].chosen  # (batch, queries, 2)
    for row in range(2):
        for query in range(5):
            for slot, expert in enumerate(chosen[row, query].tolist()):
                read = reads[1].outputs[row, slot, query]
                torch.testing.assert_close(every[row, expert, query], read)
            others = sorted({*range(5)} - {*chosen[row, query].tolist()})
            assert not attentions[1][row, others, query].any()


def test_a_layer_without_attention_of_ours_is_an_error():
    made = causal("standard")
    made.decoder.layers[1] = Alone(16, num_heads=2, ffn_dim=24, num_mechanisms=2)
    with pytest.raises(ValueError, match="layer 1 holds no module that derives from headwise"):
        made(tokens(1, 3), output_attentions=True)


def test_decisions_are_recorded_once_where_layers_are_computed_twice():
    made, ids = causal(), tokens(2, 5)
    made._set_gradient_checkpointing()
    with hw.record(made.train()) as decided:
        made(ids, labels=ids).loss.backward()
    assert [len(routings) for routings in decided.values()] == [1, 1]


def test_unknown_implementations_are_errors():
    with pytest.raises(ValueError, match="attn_implementation is 'paged', expected one of 'sdpa'"):
        causal(attn_implementation="paged")


def test_adaptive_embeddings_take_the_place_of_tokens():
    made, ids = causal("standard", adaptive_cutoffs=[6, 12]), tokens(2, 5)
    words = made.get_input_embeddings()(ids)
    assert torch.equal(made(inputs_embeds=words).logits, made(ids).logits)
    assert made.get_output_embeddings() is None


def test_losses_of_layers_on_several_devices_are_summed_on_the_first():
    auxiliary = AuxiliaryLoss()
    for device in ("meta", "cpu"):
        loss = torch.zeros((), device=device)
        auxiliary.collect(AttentionOutput(loss, None, Routing(loss, loss=loss)))
    assert auxiliary.total.device.type == "meta"
