"""Gates over a pretrained model are put on, taken off, saved, folded, trained and refused."""

import copy
import json

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from support.architectures import (
    EIGHT,
    MODELS,
    OPTIONS,
    TINY,
    assert_near,
    attentions,
    build,
    called,
    gate,
    labelled,
    refused,
    tokens,
    train_at_random,
)
from torch import nn

import headwise as hw


def gated_paths(model):
    return [path[: -len(".head_gates")] for path, _ in model.named_modules()
            if path.endswith("head_gates")]  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_gates_stand_over_every_attention_and_their_parameters_are_known(name):
    model = build(name)
    projections, plain = attentions(model), {id(p) for p in model.parameters()}
    hw.gate_heads(model)
    assert gated_paths(model) == list(projections)
    added = {id(p) for p in model.parameters()} - plain
    assert {id(p) for p in hw.gate_parameters(model)} == added
    outputs = {id(p) for each in projections.values() for p in each.parameters()}
    assert {id(p) for p in hw.output_parameters(model)} == outputs


def test_layers_and_sites_choose_attentions():
    chosen = {"layers": [1], "sites": ["decoder_self", "decoder_cross"]}
    paths = gated_paths(hw.gate_heads(build("bart"), **chosen))
    assert paths == [f"model.decoder.layers.1.{name}_attn" for name in ("self", "encoder")]
    (path,) = gated_paths(hw.gate_heads(build("bart"), layers=0, sites="encoder_self"))
    assert path == "model.encoder.layers.0.self_attn"


class OwnAttention(nn.Module):
    """An attention that no table knows."""

    def __init__(self):
        super().__init__()
        self.heads, self.is_causal, self.out = 3, False, nn.Linear(12, 8)

    def forward(self, hidden_states):
        return self.out(hidden_states.repeat(1, 1, 2)[..., :12])


def test_attentions_of_ones_own_take_gates_by_a_layout():
    model, x = nn.Sequential(OwnAttention()), torch.randn(2, 5, 8)
    before = model(x)
    refused({"OwnAttention", "HeadLayout"}, hw.gate_heads, model)
    layouts = {"OwnAttention": hw.HeadLayout(projection="out", num_heads="heads")}
    hw.gate_heads(model, layouts=layouts)
    assert_near(model(x), before)
    assert not torch.allclose(train_at_random(model)(x), before)


REFUSED = [
    (lambda: hw.gate_heads(gate("bert")), {"remove_gates", "bert.encoder.layer.0.attention"}),
    (lambda: hw.gate_heads(hw.MultiHeadAttention(8, 2)), {"MultiHeadAttention", "with_attention"}),
    (lambda: hw.gate_heads(build("bert"), "moa"), {"MixtureOfAttentionHeads", "gated"}),
    (lambda: hw.gate_heads(build("bert"), sites="decoder_self"), {"decoder_self", "encoder_self"}),
    (lambda: hw.gate_heads(build("bert"), gate_windows=1), {"gate_windows", "gate_window"}),
    (lambda: hw.prune_heads(gate("gpt2"), {0: [1]}), {"remove_gates", "transformer.h.0.attn"}),
    (lambda: hw.fold_gates(build("gpt2")), {"gate_heads"}),
    (lambda: hw.fold_gates(gate("gpt2")), {"transformer.h.0.attn", "gate='static'"}),
]


@pytest.mark.parametrize(("call", "must_name"), REFUSED)
def test_what_cannot_be_gated_or_folded_is_refused(call, must_name):
    refused(must_name, call)


_ROW = torch.arange(6)
_CAUSAL, _TEXTS = _ROW.unsqueeze(1) >= _ROW, (_ROW.unsqueeze(1) < 2) == (_ROW < 2)
MASKS = {"causal": _CAUSAL, "packed": _TEXTS, "packed, causal": _TEXTS & _CAUSAL}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("system", OPTIONS)
@pytest.mark.parametrize("name", ["bert", "gpt2"])
@torch.no_grad()
def test_what_a_mask_of_ones_own_hides_moves_no_gate(name, system, mask):
    model, ids, seen = gate(name, system, layers=[1]), tokens(1, 6), MASKS[mask]
    seen = seen & _CAUSAL if name == "gpt2" else seen
    how = {"attention_mask": seen[None, None], **({"use_cache": False} if name == "gpt2" else {})}
    before = model(input_ids=ids, **how).logits
    for changed in range(6):
        other = ids.clone()
        other[0, changed] = (ids[0, changed] - 4) % 30 + 5
        moved = (model(input_ids=other, **how).logits != before).any(-1)[0]
        assert moved[changed] and not moved[~seen[:, changed]].any()


@torch.no_grad()
def test_packed_texts_are_gated_as_each_by_itself():
    """Also by gates of a window, and with padding behind them."""
    for options in ({}, {"gate_window": 2}):
        model, texts = gate("gpt2", **options), [tokens(1, 3), tokens(1, 4)]
        places = torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
        packed = model(torch.cat(texts, 1), position_ids=places, use_cache=False).logits
        alone = [model(text, use_cache=False).logits for text in texts]
        assert_near(packed, torch.cat(alone, 1))


WAYS_OUT = {"use_cache=False", "gate_window=1", "from_transformers", "MixtureOfAttentiveExperts"}


@pytest.mark.parametrize("name", ["gpt2", "llama", "bart"])
def test_gates_that_look_back_refuse_a_cache_of_what_they_have_not_seen(name):
    read = {"input_ids": tokens(2, 5), "max_new_tokens": 3, "do_sample": False}
    for how in ({}, {"cache_implementation": "static"}):
        refused(WAYS_OUT, gate(name).generate, **read, **how)
    expected = gate(name).generate(**read, use_cache=False)
    assert expected.size(1) == 4 if name == "bart" else 8
    window = gate(name, gate_window=1)
    without, cached = (window.generate(**read, use_cache=cache) for cache in (False, True))
    assert torch.equal(without, cached)


@pytest.mark.parametrize("system", OPTIONS)
@torch.no_grad()
def test_gates_are_read_from_what_save_pretrained_has_written(system, tmp_path):
    model, ids = gate("gpt2", system), tokens(2, 5)
    with pytest.warns(UserWarning, match="load_gates"):
        model.save_pretrained(tmp_path)
    plain = type(model).from_pretrained(tmp_path, dtype=model.dtype)
    assert not hw.gate_parameters(plain)
    loaded = hw.load_gates(plain, tmp_path)
    how = {"input_ids": ids, "use_cache": False}
    assert_near(loaded(**how).logits, model(**how).logits)


def test_gates_are_loaded_over_the_model_they_were_saved_from_alone(tmp_path):
    """Its head may be another. A model that is refused gets no gates."""
    model = gate("bert")
    hw.save_gates(model, tmp_path)
    other = hw.load_gates(tf.BertForSequenceClassification(model.config), tmp_path)
    pairs = zip(hw.gate_parameters(other), hw.gate_parameters(model), strict=True)
    assert all(torch.equal(one, two.to(one.dtype)) for one, two in pairs)

    def stays(model, *must_name, folder=tmp_path):
        names = list(model.state_dict())
        refused(must_name, hw.load_gates, model, folder)
        assert list(model.state_dict()) == names

    stays(build("bert", {**TINY, "head_dim": 2}), "embed_dim", "8", "16")
    stays(build("gpt2"), "encoder.layer.0.attention")
    stays(build("bert"), "nowhere", folder=tmp_path / "nowhere")
    description, tensors = (tmp_path / f"head_gates.{end}" for end in ("json", "safetensors"))
    whole = json.loads(description.read_text())
    for change in ({"system": "maee"}, {"options": {"gate_depth": 2}}, {"attentions": ["0"]}):
        description.write_text(json.dumps(whole | change))
        stays(build("bert"), "head_gates.json")
    description.write_text(json.dumps(whole))
    of_first = {name: each for name, each in load_file(tensors).items() if ".1." not in name}
    save_file(of_first, tensors)  # without those of the second layer
    stays(build("bert"), str(tensors), "weight")
    tensors.write_bytes(tensors.read_bytes()[:100])
    stays(build("bert"), str(tmp_path))


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_folded_model_computes_what_the_gated_one_does(name, tmp_path):
    model = train_at_random(hw.gate_heads(build(name), "gated", gate="static"))
    batch = called(name, model)
    before = model(**batch).logits
    assert not torch.allclose(build(name)(**batch).logits, before, rtol=0, atol=1e-5)
    assert hw.fold_gates(model) is model and not hw.gate_parameters(model)
    assert_near(model(**batch).logits, before)
    if name in ("gpt2", "bert"):
        model.save_pretrained(tmp_path)
        loaded = type(model).from_pretrained(tmp_path, dtype=model.dtype)
        assert_near(loaded(**batch).logits, before)


@pytest.mark.parametrize("name", EIGHT)
def test_losses_of_the_gates_are_in_the_loss_of_the_model_in_training(name):
    model = gate(name, "moh")
    batch = labelled(name, model)
    plain = model(**batch).loss
    model.train()
    with hw.record(model) as decisions:
        loss = model(**batch).loss
    balance = sum(made.loss for each in decisions.values() for made in each)
    assert balance > 0
    torch.testing.assert_close(loss, plain + balance, rtol=1e-5, atol=0, check_dtype=False)
    as_tuple = model(**batch, return_dict=False)[0]
    torch.testing.assert_close(as_tuple, loss, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bart"])
def test_losses_of_the_gates_count_by_a_batchs_share_of_the_labels_of_a_step(name):
    """Over the batches of a step, their sum is what they are for all of it at once."""
    model = gate(name, "moh", balance_coef=10.0).train()
    batch = labelled(name, model)
    # As the Trainer counts labels: where it knows that the first is never predicted, without it.
    labels = batch["labels"][:, 1:] if name == "llama" else batch["labels"]
    whole, half = (
        model(**batch, num_items_in_batch=times * (labels != -100).sum()).loss for times in (1, 2)
    )
    with hw.record(model) as decisions:
        model(**batch)
    balance = sum(made.loss for each in decisions.values() for made in each)
    task = model.eval()(**batch, num_items_in_batch=(labels != -100).sum()).loss
    torch.testing.assert_close(whole, task + balance, rtol=1e-5, atol=0, check_dtype=False)
    # BART passes over the number, so that its own loss stays what it is.
    expected = (task if name == "bart" else task / 2) + balance / 2
    torch.testing.assert_close(half, expected, rtol=1e-5, atol=0, check_dtype=False)


@pytest.mark.filterwarnings("ignore")  # of a rule that is left out
@pytest.mark.parametrize("name", EIGHT)
def test_gates_learn_the_same_where_layers_are_computed_again(name):
    model = hw.gate_heads(build(name).requires_grad_(False), **OPTIONS["mae"])
    train_at_random(model).train()
    twin = copy.deepcopy(model)
    twin.gradient_checkpointing_enable({"use_reentrant": False})
    batch = labelled(name, model)
    for each in (model, twin):
        each(**batch).loss.backward()
    for one, other in zip(hw.gate_parameters(model), hw.gate_parameters(twin), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-7)
    for one, other in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(other, one)


@pytest.mark.nightly
@pytest.mark.parametrize("system", OPTIONS)
def test_adapters_of_peft_learn_and_are_saved_beside_gates(system, tmp_path):
    peft = pytest.importorskip("peft")
    how = {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True, "task_type": "CAUSAL_LM"}
    config = peft.LoraConfig(r=2, modules_to_save=["head_gates.system"], **how)
    model, ids = peft.get_peft_model(gate("gpt2", system), config).train(), tokens(4, 6)
    model(input_ids=ids, labels=ids).loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    moved = {key for key, value in model.named_parameters() if value.grad is not None}
    assert moved and all("lora_" in key or "modules_to_save" in key for key in moved)
    model.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(gate("gpt2", system), tmp_path).eval()
    assert torch.equal(loaded(input_ids=ids).logits, model.eval()(input_ids=ids).logits)
