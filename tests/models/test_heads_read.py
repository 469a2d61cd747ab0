"""What heads read is noted while it is asked for, for every system, and no longer."""

import pytest
import tiny
import torch
from tiny import MOA, PLANS, padded, tokens

import headwise as hw
from headwise.models.heads_read import heads_read
from headwise.models.sites import heads_sites
from headwise.ops.attention import attention_weights


def noted(model, *args, **inputs):
    reads = []
    with heads_read(model, lambda place, read: reads.append((place, read))), torch.no_grad():
        model(*args, **inputs)
    return reads


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_every_system_says_what_its_heads_read(plan):
    made = tiny.model(PLANS[plan])
    ids, mask = padded([5, 3], 5)
    to, to_mask = padded([2, 4], 4)
    reads = noted(
        made,
        input_ids=ids,
        attention_mask=mask,
        decoder_input_ids=to,
        decoder_attention_mask=to_mask,
    )
    assert [(place.site, place.layer) for place, _ in reads] == [
        ("encoder_self", 0),
        ("encoder_self", 1),
        ("decoder_self", 0),
        ("decoder_cross", 0),
        ("decoder_self", 1),
        ("decoder_cross", 1),
    ]
    for place, read in reads:
        assert read.attention is place.module is made.get_submodule(place.path)
        assert place.system.module is made.get_submodule(place.system.path)
        queries = ids if place.site == "encoder_self" else to
        assert torch.equal(read.inputs.query_padding, queries == tiny.PAD)
        weights = read.weights()
        real = read.inputs.query_padding.logical_not()[:, None].expand(weights.shape[:3])
        sums = torch.ones_like(weights[..., 0])
        if plan == "differential":  # whose weights are a difference
            sums = 1 - read.routing.weights.transpose(1, 2)
        torch.testing.assert_close(weights.sum(-1)[real], sums[real])
        torch.testing.assert_close(weights @ read.v, read.outputs)
        if place.site != "decoder_self":  # nothing looks at the source's padding
            assert not weights.transpose(1, 3)[mask == 0].any()
        else:
            assert not weights.triu(1).any()
        torch.testing.assert_close(read.weights(slice(1, 2)), weights[1:])


def test_chosen_heads_are_named_and_the_others_can_be_had():
    made = tiny.model({"encoder_self": {**MOA, "layers": [0]}})
    ids, mask = padded([5, 3], 5)
    reads = noted(made, input_ids=ids, attention_mask=mask, decoder_input_ids=tokens(2, 4))
    chosen, dense = reads[0][1], reads[1][1]
    assert dense.chosen is None and dense.num_heads == 4 and dense.every_head() is dense
    assert chosen.chosen.shape == (2, 5, 2) and chosen.num_heads == 5
    every = chosen.every_head()
    assert every.chosen is None and every.num_heads == 5
    index = chosen.chosen.transpose(1, 2)[..., None].expand_as(chosen.outputs)
    torch.testing.assert_close(every.outputs.gather(1, index), chosen.outputs)
    index = chosen.chosen.transpose(1, 2)[..., None].expand_as(chosen.weights())
    torch.testing.assert_close(every.weights().gather(1, index), chosen.weights())


def test_a_system_of_ones_own_is_observed_as_it_attends():
    class Averaging(hw.MultiHeadAttention):
        def attend(self, q, k, v, mask, is_causal):
            return v.mean(2, keepdim=True).expand_as(q)

        def attention_weights(self, q, k, mask):
            return torch.full_like(attention_weights(q, k, mask), 1 / k.size(2))

    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    layer.self_attn = Averaging(8, 2)
    ((place, read),) = noted(layer.eval(), torch.randn(2, 5, 8))
    assert (place.site, place.path) == ("", "self_attn")
    assert torch.equal(read.weights(), torch.full((2, 2, 5, 5), 0.2))
    torch.testing.assert_close(read.weights() @ read.v, read.outputs)


def test_a_compiled_model_is_observed_and_runs_compiled_again():
    attention, calls, compilations = hw.MultiHeadAttention(8, 2).eval(), [], []

    def backend(graph, inputs):
        compilations.append(graph)

        def run(*args):
            calls.append(1)
            return graph(*args)

        return run

    compiled = torch.compile(attention, backend=backend)
    x = torch.randn(2, 3, 8)
    expected = compiled(x).output
    before, graphs = len(calls), len(compilations)
    assert before and len(noted(attention, x)) == 1
    with heads_read(compiled, lambda place, read: calls.append("noted")):
        assert torch.allclose(compiled(x).output, expected)
    assert calls[before:] == ["noted"]
    compiled(x)
    assert len(calls) == 2 * before + 1 and len(compilations) == graphs
    torch.compiler.reset()


def test_observers_come_and_go_by_themselves():
    made, first, second = tiny.model("standard"), [], []
    inputs = {"input_ids": tokens(1, 3), "decoder_input_ids": tokens(1, 2)}
    with heads_read(made, lambda place, read: first.append(read)):
        with pytest.raises(KeyError), heads_read(made, lambda place, read: second.append(read)):
            made(**inputs)
            raise KeyError
        made(**inputs)
    made(**inputs)
    assert (len(first), len(second)) == (12, 6)
    assert not any(place.module.observers for place in heads_sites(made))


def test_a_model_without_heads_is_refused():
    with pytest.raises(ValueError, match="Linear without any attention of headwise"):
        noted(torch.nn.Linear(2, 2), torch.ones(2))
