"""Models that were saved, loaded, converted, checkpointed, resized or trained stay right."""

import copy
import subprocess
import sys

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_models import KINDS, PLANS, blocks, inputs, labels, model, systems_of

import headwise as hw
from headwise.models.inspect import find_attentions, observe

AUTO = {
    "causal": transformers.AutoModelForCausalLM,
    "masked": transformers.AutoModelForMaskedLM,
    "classifier": transformers.AutoModelForSequenceClassification,
    "seq2seq": transformers.AutoModelForSeq2SeqLM,
    "speech": transformers.AutoModel,
}
# What starts as standard attention does.
STARTING = ["mae", "gated", "differential", {**PLANS["moh"], "top_k": 3}]
FEW = settings(max_examples=max(1, settings().max_examples // 5))


@pytest.mark.parametrize("kind", AUTO)
def test_the_auto_classes_load_it(kind, tmp_path):
    """In shards too; the class without a head gives hidden states, and is saved for the other."""
    net, kwargs = model(kind, "mae"), inputs(kind)
    net.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1 and not list(tmp_path.glob("*.bin"))
    loaded = AUTO[kind].from_pretrained(tmp_path)
    assert type(loaded) is type(net) and not loaded.training
    torch.testing.assert_close(loaded(**kwargs).logits, net(**kwargs).logits)
    half = AUTO[kind].from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    if kind == "speech":
        return
    body = transformers.AutoModel.from_pretrained(tmp_path)
    hidden = net.base_model(**kwargs).last_hidden_state
    torch.testing.assert_close(body(**kwargs).last_hidden_state, hidden)
    body.save_pretrained(tmp_path / "body")
    state = AUTO[kind].from_pretrained(tmp_path / "body").base_model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in body.state_dict().items())


def test_importing_the_models_registers_them_with_the_auto_classes(tmp_path):
    model("causal", "moa").config.save_pretrained(tmp_path)
    code = (
        "import sys; before = [*sys.meta_path]; import headwise; assert sys.meta_path == before; "
    )
    code += "import headwise.models; from transformers import AutoConfig as Auto; "
    code += "print(type(Auto.from_pretrained(sys.argv[1])).__name__)"
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, check=True)
    assert done.stdout.decode().strip() == "CausalLMConfig"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plan", STARTING, ids=str)
@FEW
@given(data=st.data())
def test_other_systems_start_with_the_output_of_a_trained_model(kind, data, plan):
    """What is frozen stays so, and the two share no memory."""
    standard, kwargs = model(kind, **data.draw(blocks(kind))), inputs(kind)
    next(iter(standard.parameters())).requires_grad_(False)
    before = copy.deepcopy(standard.state_dict())
    net = standard.with_attention(plan)
    assert (net.config.attention, standard.config.attention) == (plan, "standard")
    assert not net.training and not next(iter(net.parameters())).requires_grad
    expected = standard(**kwargs).logits
    torch.testing.assert_close(net(**kwargs).logits, expected, rtol=1e-6, atol=1e-6)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(value, before[n]) for n, value in standard.state_dict().items())


def test_a_system_that_cannot_start_so_is_refused_by_name():
    standard = model("seq2seq")
    for plan, must_name in (
        ({"decoder_cross": "moa"}, {"decoder_cross", "moa"}),
        ({"decoder_self": {"system": "agreement", "layers": [1]}}, {"decoder_self", "agreement"}),
        ({"decoder_cross": "weighted"}, {"decoder_cross", "weighted"}),
        ("tim", {"tim", "trained"}),  # also where a plan has too few layers for it
        (PLANS["tim"], {"tim"}),
        (PLANS["moh"] | {"top_k": 1}, {"moh", "top_k"}),
    ):
        with pytest.raises(ValueError) as error:
            standard.with_attention(plan)
        assert not [name for name in must_name if name not in str(error.value)], error.value
    fewer = standard.with_attention(PLANS["moh"], neutral=False)
    assert {type(module) for module in systems_of(fewer).values()} == {hw.MoH}
    state = fewer.state_dict()
    assert all(torch.equal(state[n], value) for n, value in standard.state_dict().items())


@pytest.mark.parametrize("kind", ["adaptive", "seq2seq"])
def test_what_cannot_be_resized_says_so(kind):
    with pytest.raises(NotImplementedError, match="resize"):
        model(kind).resize_token_embeddings(60)


@pytest.mark.parametrize("kind", ["causal", "seq2seq"])
@pytest.mark.parametrize("system", PLANS)
def test_layers_computed_twice_learn_the_same(kind, system):
    """Gradient checkpointing changes no loss, gradient, statistic, or random number.

    Nor is anything recorded or observed twice.
    """
    rates = {"dropout": 0.1, "attention_dropout": 0.1, "ffn_dropout": 0.1}
    plain, results, observed = model(kind, system, **rates).train(), [], []
    checkpointed = copy.deepcopy(plain)
    checkpointed.activation_checkpointing_enable()
    for net in (plain, checkpointed):
        torch.manual_seed(3)
        with hw.record(net) as decided, observe(net, lambda path, _: observed.append(path)):
            loss = net(**inputs(kind), labels=labels(kind)).loss
            loss.backward()
        assert all(len(passes) == 1 for passes in decided.values())
        gradients = [parameter.grad for parameter in net.parameters()]
        results.append([loss.detach(), torch.rand(1), *gradients, *net.buffers()])
    torch.testing.assert_close(results[1], results[0])
    paths = [*find_attentions(plain)]
    assert sorted(observed) == sorted(2 * paths)
