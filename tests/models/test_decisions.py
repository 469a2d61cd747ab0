"""What systems decide is noted while it is asked for, and no longer."""

import pytest
import tiny
import torch
from tiny import MOA, PLANS, tokens

from headwise.heads.system import System
from headwise.models.causal_lm import CausalLM, CausalLMConfig
from headwise.models.decisions import decisions_by_position, record
from headwise.models.sites import attention_sites


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


def test_parts_in_evaluation_stay_so():
    made = tiny.model(PLANS["all mixed"]).train()
    made.decoder.eval()
    modes = [module.training for module in made.modules()]
    with pytest.raises(TypeError):
        decisions_by_position(made, nothing=tokens(2, 5))
    assert [module.training for module in made.modules()] == modes
