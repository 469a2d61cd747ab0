"""What systems decide and what heads read is noted while it is asked for, and no longer."""

import pytest
import tiny
import torch
from tiny import MOA, PLANS, padded, tokens

import headwise as hw
from headwise.heads.system import Routing, System
from headwise.models.causal_lm import CausalLM, CausalLMConfig
from headwise.models.decisions import Decisions, decisions_by_position, heads_read, record
from headwise.models.sites import AttentionSite, attention_sites, heads_sites
from headwise.ops.attention import attention_weights


def test_each_pass_is_noted_at_its_site():
    made = tiny.model(PLANS["all mixed"])
    with record(made) as decided:
        for length in (5, 3):
            made(input_ids=tokens(2, length), decoder_input_ids=tokens(2, 4))
    found = {
        (place.site, place.layer): [place.module.words.decision] * len(each)
        for place, each in decided.items()
    }
    assert found == {
        ("encoder_self", 0): ["competition"] * 2,
        ("encoder_self", 1): ["agreement"] * 2,
        ("decoder_self", 0): ["competition"] * 2,
        ("decoder_self", 1): ["choices"] * 2,
        ("decoder_cross", 1): ["branches"] * 2,
    }
    assert list(decided) == [place for place in attention_sites(made) if place in decided]
    first = next(iter(decided.values()))
    assert [routing.weights.shape[1] for routing in first] == [5, 3]


def test_it_is_what_the_systems_return():
    made, returned = tiny.model({"decoder_self": {**MOA, "layers": [1]}}), []
    (place,) = [p for p in attention_sites(made) if p.site == "decoder_self" and p.layer == 1]
    place.module.register_forward_hook(lambda module, args, out: returned.append(out.routing))
    with record(made) as decided:
        out = made.train()(input_ids=tokens(2, 3), labels=tokens(2, 4))
    ((noted,),) = decided.values()
    assert torch.equal(noted.weights, returned[0].weights)
    assert torch.equal(noted.indices, returned[0].indices)
    assert torch.equal(noted.loss, out.auxiliary_loss)
    assert not noted.weights.requires_grad and not noted.loss.requires_grad
    out.loss.backward()  # nothing of the graph was taken away


def test_an_error_inside_leaves_no_hooks():
    made = tiny.model("mae")
    with pytest.raises(KeyError), record(made):
        raise KeyError
    # A system has one hook of its own, which notes its loss.
    assert all(len(m._forward_hooks) == isinstance(m, System) for m in made.modules())


@pytest.mark.parametrize("training", [True, False])
def test_positions_are_told_of_where_systems_decide_for_each(training):
    plan = {"decoder_self": [{"system": "agreement", "layers": [0]}, {**MOA, "layers": [1]}]}
    plan["decoder_self"].append({"system": "weighted", "layers": [2]})  # for none in particular
    config = CausalLMConfig(
        tiny.VOCABULARY, embed_dim=16, num_heads=4, ffn_dim=24, layers=3, attention=plan
    )
    made = CausalLM(config).train(training)
    ids = tokens(2, 5)
    decided = decisions_by_position(made, input_ids=ids)
    assert {place.layer for place in decided} <= {0, 1}
    moa = next(each for place, each in decided.items() if place.layer == 1)
    assert moa.indices is not None and moa.weights.shape[:2] == (2, 5)
    assert made.training == training and not moa.weights.requires_grad
    with record(made.eval()) as noted, torch.no_grad():
        made(input_ids=ids)
    expected = next(each[0] for place, each in noted.items() if place.layer == 1)
    assert torch.equal(moa.weights, expected.weights)


def test_a_compiled_model_tells_them_too():
    made = tiny.model(PLANS["all mixed"]).eval()
    inputs = {"input_ids": tokens(2, 5), "decoder_input_ids": tokens(2, 4)}
    compiled = torch.compile(made, backend="eager")
    compiled(**inputs)
    with record(made) as expected:
        made(**inputs)
    for _ in range(2):
        with record(compiled) as decided:
            compiled(**inputs)
        assert len(decided) == len(expected) == 5
        for told, noted in zip(decided.values(), expected.values(), strict=True):
            assert torch.equal(told[0].weights, noted[0].weights)


def place(site="", path="first"):
    return AttentionSite(site, 0, hw.MultiHeadAttention(8, 2), path)


def by_position(padding=None, indices=None):
    weights = torch.tensor([[[0.25, 0.75], [0.5, 0.5]], [[1.0, 0.0], [0.125, 0.875]]])
    return Routing(weights, indices, padding=padding)


PADDING = torch.tensor([[False, False], [True, False]])


def test_each_unit_of_each_decision_has_a_row():
    frame = Decisions({place(): [by_position(PADDING)]}).frame()
    assert list(frame.columns) == [
        "path", "pass", "sequence", "position", "unit", "weight", "chosen"
    ]  # fmt: skip
    assert frame.drop(columns=["path", "chosen"]).to_numpy().tolist() == [
        [0, 0, 0, 0, 0.25],
        [0, 0, 0, 1, 0.75],
        [0, 0, 1, 0, 0.5],
        [0, 0, 1, 1, 0.5],
        [0, 1, 1, 0, 0.125],
        [0, 1, 1, 1, 0.875],
    ]
    assert set(frame["path"]) == {"first"} and frame["chosen"].all()


def test_without_pandas_it_is_a_list_of_rows(monkeypatch):
    decisions = Decisions({place(): [by_position(PADDING)]})
    expected = decisions.frame(tokens=[["a", "b"], ["c"]])
    monkeypatch.setattr("headwise.models.decisions.find_spec", lambda name: None)
    rows = decisions.frame(tokens=[["a", "b"], ["c"]])
    assert rows == expected.to_dict("records")
    assert rows[-1] == {
        "path": "first", "pass": 0, "sequence": 1, "position": 1, "unit": 1, "weight": 0.875,
        "chosen": True, "token": "c",
    }  # fmt: skip


def test_what_is_chosen_is_marked():
    indices = torch.tensor([[[1], [0]], [[0], [1]]])
    frame = Decisions({place(): [by_position(indices=indices)]}).frame()
    assert frame["chosen"].tolist() == [False, True, True, False, True, False, False, True]


@pytest.mark.parametrize(
    "given",
    [[["a", "b"], ["pad", "c"]], [["a", "b"], ["c"]], torch.tensor([[7, 8], [0, 9]])],
    ids=["all positions", "real positions", "ids"],
)
def test_tokens_stand_beside_their_positions(given):
    frame = Decisions({place(): [by_position(PADDING)]}).frame(tokens=given)
    expected = [7, 7, 8, 8, 9, 9] if isinstance(given, torch.Tensor) else list("aabbcc")
    assert frame["token"].tolist() == expected


def test_each_stack_has_its_own_tokens():
    made = tiny.model({"encoder_self": MOA, "decoder_self": "mae", "decoder_cross": "weighted"})
    ids, mask = padded([5, 3], 5)
    target = tokens(2, 4)
    with hw.record(made) as decisions:
        made(input_ids=ids, attention_mask=mask, decoder_input_ids=target)
    frame = decisions.frame(tokens={"encoder": ids, "decoder": target})
    for path, read in (("model.encoder.layers.0", ids), ("model.decoder.layers.1", target)):
        rows = frame[frame["path"] == f"{path}.self_attention"]
        at = rows.groupby(["sequence", "position"])
        assert at["token"].first().tolist() == read[read != tiny.PAD].tolist()
    everywhere = frame[frame["path"] == "model.decoder.layers.1.cross_attention"]
    assert everywhere["token"].isna().all() and everywhere["sequence"].isna().all()


def test_tokens_of_other_positions_are_refused():
    decisions = Decisions({place(): [by_position(PADDING)]})
    for wrong in ([["a", "b"]], [["a", "b", "c"], ["d"]]):
        with pytest.raises(ValueError, match=r"first decided for 2 sequences of 2 positions"):
            decisions.frame(tokens=wrong)
    decisions = Decisions({place(): [by_position(), by_position()]})
    with pytest.raises(ValueError, match=r"tokens are those of one pass, but first has made 2"):
        decisions.frame(tokens=[["a", "b"], ["c", "d"]])


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


ROTARY = {"positions": "rotary", "qk_norm": True}


@pytest.mark.parametrize(
    "blocks", [{}, {**ROTARY, "num_key_value_heads": 2}], ids=["old", "modern"]
)
def test_chosen_heads_are_named_and_the_others_can_be_had(blocks):
    made = tiny.model({"encoder_self": {**MOA, "layers": [0]}}, **blocks)
    each = blocks.get("num_key_value_heads", 1)  # heads of an expert
    ids, mask = padded([5, 3], 5)
    reads = noted(made, input_ids=ids, attention_mask=mask, decoder_input_ids=tokens(2, 4))
    chosen, dense = reads[0][1], reads[1][1]
    assert dense.chosen is None and dense.num_heads == 4 and dense.every_head() is dense
    assert chosen.chosen.shape == (2, 5, 2 * each) and chosen.num_heads == 5 * each
    indices = chosen.routing.indices  # those of the first head of keys come first
    assert torch.equal(chosen.chosen, torch.cat([indices + 5 * i for i in range(each)], -1))
    every = chosen.every_head()
    assert every.chosen is None and every.num_heads == 5 * each
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
