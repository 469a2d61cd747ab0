"""What heads decide and weigh can be seen, and heads can be switched off.

`record` and `ablated` against plain computations on the models' own weights.
"""

import numpy as np
import pytest
import torch
from support.architectures import (
    DECODERS,
    MODELS,
    PADDING,
    assert_near,
    attentions,
    build,
    gate,
    inputs,
    padding,
    refused,
    tokens,
    without,
)
from support.reference import gate as gate_by_hand

import headwise as hw
from headwise.models.inspect import find_systems
from headwise.pretrained.gates import with_identity_gates
from headwise.pretrained.record import capture_attention_weights


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_an_ablated_head_gives_zeros_to_the_projection(name):
    model = build(name)
    batch, names = inputs(name, model), list(model.state_dict())
    before, state = model(**batch).logits, torch.get_rng_state()
    with hw.record(model) as decisions:
        assert torch.equal(model(**batch).logits, before)
    assert not decisions
    for path in attentions(model):
        with hw.ablated(model, path, head=1):
            ablated = model(**batch).logits
        with without(model, {path: [1]}):
            assert_near(ablated, model(**batch).logits)
        assert not torch.equal(ablated, before)
    with hw.ablated(model, path, head=[0, 2]):
        ablated = model(**batch).logits
    with hw.ablated(model, path, head=np.int64(2)), hw.ablated(model, path, head=torch.tensor(0)):
        assert_near(model(**batch).logits, ablated)  # what is open at once adds up
    with without(model, {path: [0, 2]}):
        assert_near(ablated, model(**batch).logits)
    assert torch.equal(model(**batch).logits, before)
    assert list(model.state_dict()) == names
    assert torch.equal(torch.get_rng_state(), state)  # nothing is drawn


@pytest.mark.parametrize("name", ["gpt2", "llama", "bart"])
@torch.no_grad()
def test_heads_are_ablated_and_recorded_while_a_model_generates(name):
    """From a cache, by beams, with prompts that are padded on the left."""
    model = build(name)
    path = list(attentions(model))[-1]
    mask = padding(2, 5, "left")
    batch = {"input_ids": tokens(2, 5).masked_fill(mask, PADDING), "attention_mask": (~mask).long()}
    options = {"max_new_tokens": 4, "do_sample": False, "output_logits": True, "num_beams": 2}

    def generate():
        out = model.generate(**batch, **options, return_dict_in_generate=True)
        return out.sequences, torch.stack(out.logits)

    _, before = generate()
    with hw.ablated(model, path, head=2):
        texts, logits = generate()
    with without(model, {path: [2]}):
        expected_texts, expected = generate()
    assert torch.equal(texts, expected_texts) and not torch.allclose(logits, before)
    assert_near(logits, expected)
    model = gate(name, "gated")
    with hw.record(model) as decisions:
        model.generate(**batch, max_new_tokens=4)
    steps = [[routing.weights.size(1) for routing in passes] for passes in decisions.values()]
    assert [1] * 4 in steps if name == "bart" else steps == [[5, 1, 1, 1]] * 2
    table = decisions.frame()  # gates over transformers see no cache: each pass begins at 0
    for path, passes in decisions.items():
        for number, (weights, padding_mask) in enumerate((r.weights, r.padding) for r in passes):
            rows = table[(table["path"] == path) & (table["pass"] == number)]
            real = torch.ones(weights.shape[:2]) > 0 if padding_mask is None else ~padding_mask
            positions = rows[["sequence", "position"]].drop_duplicates()
            assert positions.to_numpy().tolist() == real.nonzero().tolist()
            assert rows["weight"].tolist() == weights[real].float().flatten().tolist()
    (first, *_), last = next(iter(decisions.values())), list(decisions)[-1]
    assert torch.equal(first.padding, mask) and first.weights.size(2) == 4
    assert find_systems(model)[last].layer == 1


@pytest.mark.parametrize("plan", ["mae", {"system": "moa", "size": "2K4E8D"}])
@pytest.mark.parametrize("kind", ["causal", "seq2seq"])
def test_positions_go_on_with_a_cache(kind, plan):
    """Also of cross-attention, whose cache holds the keys of the source."""
    sizes = {"vocab_size": 50, "embed_dim": 16, "num_heads": 4, "ffn_dim": 16}
    sizes |= {"layers": 1} if kind == "causal" else {"encoder_layers": 1, "decoder_layers": 1}
    names = {"causal": ("CausalLM", "decoder_self"), "seq2seq": ("Seq2SeqLM", "decoder_cross")}
    name, site = names[kind]
    config = getattr(hw, f"{name}Config")(**sizes, attention={site: plan})
    model = getattr(hw, name)(config).eval()
    with hw.record(model) as decisions:
        model.generate(tokens(1, 5), max_new_tokens=4, do_sample=False, eos_token_id=None)
    positions = decisions.frame().drop_duplicates(["pass", "position"])["position"].tolist()
    assert positions == list(range(8 if kind == "causal" else 4))


@pytest.mark.parametrize("name", ["gpt2", "bert", "bart"])
def test_an_error_leaves_the_model_as_it_was(name):
    model = build(name).train().requires_grad_(False)
    batch, path = inputs(name, model), next(iter(attentions(model)))
    before, modules = model(**batch).logits, [name for name, _ in model.named_modules()]

    def fails(*_):
        raise KeyError("mine")

    def in_the_middle():
        with hw.ablated(model.eval(), path, head=0), hw.record(model):
            model(**batch)
            fails()

    for call in (in_the_middle, lambda: hw.head_importance(model, [batch], loss=fails)):
        with pytest.raises(KeyError, match="mine"):
            call()
        assert [name for name, _ in model.named_modules()] == modules
        assert not any(parameter.requires_grad for parameter in model.parameters())
        assert torch.equal(model.train()(**batch).logits, before)


@torch.no_grad()
def test_contexts_may_end_in_any_order():
    model = build("gpt2")
    batch, path = inputs("gpt2", model), "transformer.h.1.attn"
    before = model(**batch).logits
    first, second = (hw.ablated(model, path, head=head) for head in (0, 2))
    for each in (first, second):
        each.__enter__()
    first.__exit__(None, None, None)
    ablated = model(**batch).logits
    second.__exit__(None, None, None)
    with without(model, {path: [2]}):
        assert_near(ablated, model(**batch).logits)
    assert torch.equal(model(**batch).logits, before)
    assert not find_systems(model)
    refused({"at 1", "transformer.h.0.attn"}, hw.ablated(model, 1, head=2).__enter__)


# Where the values of the heads come from, of one layer.
VALUES = {"bert": "self.value", "gpt2": "c_attn", "llama": "v_proj", "bart": "v_proj"}


@pytest.mark.parametrize("system", ["mae", "gated", "moh"])
@pytest.mark.parametrize("name", VALUES)
@torch.no_grad()
def test_decisions_scale_what_each_head_reads(name, system):
    """By the model's own eager attention: Σ_h a_h (A_h V_h) W_h, a being what is recorded."""
    side, noted = "left" if name in DECODERS else "right", {}
    model = gate(name, system)
    model.set_attn_implementation("eager")
    path, projection = list(attentions(model).items())[1]
    attention = model.get_submodule(path)

    def note_call(_, args, kwargs, output):
        noted.update(hidden=[*args, kwargs.get("hidden_states")][0], weights=output[1])

    attention.register_forward_hook(note_call, with_kwargs=True)
    values = attention.get_submodule(VALUES[name])
    values.register_forward_hook(lambda *call: noted.update(values=call[-1]))
    projection.register_forward_hook(lambda *call: noted.update(output=call[-1]))
    batch = inputs(name, model, side)
    with hw.record(model) as decisions:
        model(**batch, **({"output_attentions": True} if name == "bert" else {}))
    ((system_path, (routing,)),) = [item for item in decisions.items() if item[0].startswith(path)]
    real = torch.ones(3, 5).bool() if name == "bart" else batch["attention_mask"].bool()
    scales = 4 / 3 * (1 - routing.weights) if system == "mae" else routing.weights
    scales = scales if scales.dim() == 3 else scales.unsqueeze(1)
    heads = noted["values"].chunk(3, -1)[-1] if name == "gpt2" else noted["values"]
    heads = heads.unflatten(-1, (2 if name == "llama" else 4, -1)).transpose(1, 2)
    heads = noted["weights"] @ heads.repeat_interleave(4 // heads.size(1), dim=1)
    read = (heads.transpose(1, 2) * scales.unsqueeze(-1)).flatten(2)
    matrix = projection.weight if name == "gpt2" else projection.weight.T
    expected = read @ matrix + (0 if projection.bias is None else projection.bias)
    # Eager attention has its softmax in float32.
    assert_near(noted["output"][real].float(), expected[real].float())
    if system == "mae":  # decides by the mean of what is real, of a decoder up to each position
        p = {k: v.double() for k, v in find_systems(model)[system_path].state_dict().items()}
        for row, position in real.nonzero().tolist():
            last = position + 1 if name in DECODERS else 5
            hidden = noted["hidden"][row, :last][real[row, :last]].double()
            expected = torch.stack(gate_by_hand(p, list(hidden), 16)).float()
            weights = routing.weights[row, position] if name in DECODERS else routing.weights[row]
            assert_near(weights.float(), expected)


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama"])
@torch.no_grad()
def test_attention_weights_are_those_that_the_eager_model_returns(name):
    model, noted = build(name), {}
    batch = inputs(name, model)
    with with_identity_gates(model), capture_attention_weights(model, noted.__setitem__):
        model(**batch)
    assert list(noted) == list(attentions(model))
    model.set_attn_implementation("eager")
    expected = model(**batch, output_attentions=True).attentions
    assert all(map(torch.equal, noted.values(), expected))
