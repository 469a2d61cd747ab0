"""Gates over a pretrained model are put on, taken off, saved, folded, trained and refused."""

import copy
import json

import pytest
import torch
import transformers as tf
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.architectures import (
    BY_POSITION,
    EIGHT,
    MODELS,
    OPTIONS,
    TINY,
    assert_near,
    attentions,
    build,
    gate,
    inputs,
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


@pytest.mark.filterwarnings("error:.*left out")  # none is
@pytest.mark.parametrize("name", MODELS)
def test_gates_stand_over_every_attention_and_their_parameters_are_known(name):
    model = build(name)
    projections, plain = attentions(model), {id(p) for p in model.parameters()}
    hw.gate_heads(model)
    assert gated_paths(model) == list(projections)
    added = {id(p) for p in model.parameters()} - plain
    assert {id(p) for p in hw.gate_parameters(model)} == added
    outputs = {id(p) for projection in projections.values() for p in projection.parameters()}
    assert {id(p) for p in hw.output_parameters(model)} == outputs


_UNTRIED = {
    "BloomForCausalLM": ("decoder_self", {}),
    "MptForCausalLM": ("decoder_self", {}),
    "FalconForCausalLM": ("decoder_self", {}),
    "GPTBigCodeForCausalLM": ("decoder_self", {}),
    "XGLMForCausalLM": ("decoder_self", {"ffn_dim": 8}),
    "GPTNeoForCausalLM": ("decoder_self", {"attention_types": [[["global", "local"], 1]]}),
    "DebertaV2ForMaskedLM": ("encoder_self", {}),
    "MPNetForMaskedLM": ("encoder_self", {}),
    "LongformerForMaskedLM": ("encoder_self", {"attention_window": 4}),
    "LEDModel": (
        "encoder_self",
        {"attention_window": 4, "decoder_layers": 1, "decoder_attention_heads": 4},
    ),
    "BigBirdPegasusForCausalLM": ("decoder_self", {"decoder_layers": 2, "decoder_ffn_dim": 8}),
    "CLIPVisionModel": ("encoder_self", {"image_size": 8, "patch_size": 4}),
    "CLIPTextModel": ("decoder_self", {}),
    "SiglipVisionModel": ("encoder_self", {"image_size": 8, "patch_size": 4}),
}


@pytest.mark.parametrize("name", _UNTRIED)
@torch.no_grad()
def test_heads_of_families_that_were_never_tried_are_found(name):
    """What is causal sees nothing later, what is not says so, and untrained gates change nothing"""
    kind, (site, settings) = getattr(tf, name), _UNTRIED[name]
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 40}
    sizes |= {"intermediate_size": 8, "pad_token_id": 1}
    model = kind(kind.config_class(**sizes, **settings)).eval()
    ids = tokens(2, 8)
    is_vision = "Vision" in name
    batch = {"pixel_values": torch.randn(2, 3, 8, 8)} if is_vision else {"input_ids": ids}
    batch |= {"use_cache": False} if site == "decoder_self" else {}
    before = model(**batch)[0]
    layouts = None
    if name == "CLIPTextModel":  # whose attention hears from its call alone that it is causal
        refused({"is_causal=True", "layouts={'CLIPAttention': "}, hw.gate_heads(model), **batch)
        hw.remove_gates(model)
        layouts = {"CLIPAttention": hw.HeadLayout(is_causal=True)}
    hw.gate_heads(model, sites=[site], layouts=layouts)
    assert len(gated_paths(model)) == 2
    assert_near(model(**batch)[0], before)
    before = train_at_random(model)(**batch)[0]
    ids[:, -1] = ids[:, -1] % 30 + 5
    moved = (model(**batch)[0] - before).abs().amax((0, 2)) > 1e-6
    assert not moved[:-1].any() if site == "decoder_self" else moved.all() or is_vision


def test_layers_and_sites_choose_attentions():
    sites = ["decoder_self", "decoder_cross"]
    paths = gated_paths(hw.gate_heads(build("bart"), layers=[1], sites=sites))
    assert paths == [f"model.decoder.layers.1.{name}_attn" for name in ("self", "encoder")]
    assert gated_paths(hw.gate_heads(build("bart"), layers=1, sites=sites[0])) == paths[:1]


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
    refused({"layouts={'OwnAttention': headwise.HeadLayout("}, hw.gate_heads, model)
    layouts = {"OwnAttention": hw.HeadLayout(projection="out", num_heads="heads")}
    refused({"OwnAttention", "'outer'"}, hw.gate_heads, model,
            layouts={"OwnAttention": hw.HeadLayout("outer")})  # fmt: skip
    refused({"'GPT'"}, hw.gate_heads, model, layouts={**layouts, "GPT": hw.HeadLayout()})
    with pytest.warns(UserWarning, match="left out: OwnAttention; .*layouts={'OwnAttention'"):
        hw.gate_heads(nn.ModuleList([build("bert"), model]))  # beside attentions that are known
    hw.gate_heads(model, layouts=layouts)
    assert_near(model(x), before)
    assert not torch.allclose(train_at_random(model)(x), before)


REFUSED = [
    (lambda: hw.gate_heads(gate("bert")), {"remove_gates", "bert.encoder.layer.0.attention"}),
    (lambda: hw.gate_heads(hw.MultiHeadAttention(8, 2)), {"MultiHeadAttention", "with_attention"}),
    (lambda: hw.gate_heads(build("bert"), "moa"), {"moa", "one of 'mae', 'gated', 'moh'"}),
    (lambda: hw.gate_heads(build("bert"), "gatd"), {"one of 'mae', ", "mean 'gated'"}),
    (lambda: hw.gate_heads(build("bert"), hw.DifferentialAttention), {"mae, gated, moh,"}),
    (lambda: hw.gate_heads(build("bert"), layers=[2]), {"layers", "2", "0, 1"}),
    (lambda: hw.gate_heads(build("bert"), num_heads=4), {"num_heads", "gate_window"}),
    (lambda: hw.gate_heads(build("llama"), "moh", router="query-norm"), {"router", "top_k"}),
    (lambda: hw.gate_heads(nn.Linear(2, 2)), {"Linear"}),
    (lambda: hw.gate_heads(build("bert"), layers=[]), {"no attention"}),
    (
        lambda: hw.gate_heads(build("bert"), sites=["decoder_self"]),
        {"decoder_self", "encoder_self"},
    ),
    (lambda: hw.gate_heads(build("bert"), gate_windows=1), {"gate_windows", "gate_window"}),
    (
        lambda: hw.prune_heads(gate("gpt2"), {"transformer.h.0.attn": [1]}),
        {"remove_gates", "fold_gates"},
    ),
    (lambda: hw.load_gates(build("bert"), "/no/folder"), {"folder", "'/no/folder'", "the hub"}),
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
@pytest.mark.parametrize("system", BY_POSITION)
@pytest.mark.parametrize("name", ["bert", "gpt2"])
@torch.no_grad()
def test_what_a_mask_of_ones_own_hides_moves_no_gate(name, system, mask):
    """Gates that average over positions refuse such a mask."""
    seen, ids = MASKS[mask] & _CAUSAL if name == "gpt2" else MASKS[mask], tokens(1, 6)
    options = {"attention_mask": seen[None, None]}
    options |= {"use_cache": False} if name == "gpt2" else {}
    refused({"(1, 1, 6, 6)", "gate_window=1"}, gate(name), input_ids=ids, **options)
    system = "gated" if (name, system) == ("bert", "mae") else system
    model = gate(name, system, layers=[1], **BY_POSITION[system])
    before = model(input_ids=ids, **options).logits
    for position in range(6):
        changed = ids.clone()
        changed[0, position] = (ids[0, position] - 4) % 30 + 5
        moved = ((model(input_ids=changed, **options).logits - before).abs() > 1e-10).any(-1)[0]
        assert moved[position] and not moved[~seen[:, position]].any()


@torch.no_grad()
def test_packed_texts_are_gated_as_each_by_itself_or_refused():
    texts = [tokens(1, 3), tokens(1, 4)]
    ids, positions = torch.cat(texts, 1), torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
    for system, options in BY_POSITION.items():
        model = gate("gpt2", system, **options)
        packed = model(ids, position_ids=positions, use_cache=False).logits
        assert_near(packed, torch.cat([model(text, use_cache=False).logits for text in texts], 1))
    for name, system, options in (("gpt2", "mae", {}), ("gpt2", "mae", {"gate_window": 2}),
                                  ("bert", "mae", {})):  # fmt: skip
        model = gate(name, system, **options)
        refused({"packed", "gate_window=1"}, model, ids, position_ids=positions)


@torch.no_grad()
def test_a_mask_over_samples_is_no_padding_of_frames():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 8, "num_conv_pos_embedding_groups": 2, "conv_dim": [8]}
    sizes |= {"conv_kernel": [20], "conv_stride": [20], "num_feat_extract_layers": 1}
    model = hw.gate_heads(tf.Wav2Vec2Model(tf.Wav2Vec2Config(**sizes)).eval(), "gated")
    mask = torch.ones(1, 400).long()
    mask[:, 390:] = 0
    with hw.record(model) as decisions:
        model(torch.randn(1, 400), attention_mask=mask)
    ((routing,),) = decisions.values()
    assert routing.weights.size(1) == 20 and routing.padding is None


WAYS_OUT = {"use_cache=False", "gate_window=1", "from_transformers"}


@pytest.mark.parametrize("name", ["gpt2", "llama", "bart"])
def test_gates_that_look_back_refuse_a_cache_of_what_they_have_not_seen(name):
    arguments = {"input_ids": tokens(2, 5), "max_new_tokens": 3, "do_sample": False}
    for cache in ({}, {"cache_implementation": "static"}):
        refused(WAYS_OUT, gate(name).generate, **arguments, **cache)
    expected = gate(name).generate(**arguments, use_cache=False)
    assert expected.size(1) == 4 if name == "bart" else 8
    window = gate(name, gate_window=1)
    uncached, cached = (window.generate(**arguments, use_cache=use) for use in (False, True))
    assert torch.equal(uncached, cached)


@torch.no_grad()
def test_masks_given_by_position_to_parts_of_a_model_count():
    """Of a part of a model too, such as a base model or a wrapper around it."""
    model, ids = gate("bert"), tokens(2, 5)
    mask = torch.ones(2, 5).long()
    mask[1, 3:] = 0
    expected = model(ids, attention_mask=mask).logits
    assert torch.equal(model(ids, mask).logits, expected)
    assert torch.equal(nn.ModuleList([model])[0](ids, mask).logits, expected)
    ids[1, 3:] = 7
    assert torch.equal(model(ids, mask).logits[1, :3], expected[1, :3])


def test_gates_are_loaded_over_the_model_they_were_saved_from_alone(tmp_path):
    """Its head may be another. A model that is refused gets no gates."""
    model = gate("bert")
    hw.save_gates(model, tmp_path)
    other = hw.load_gates(tf.BertForSequenceClassification(model.config), tmp_path)
    pairs = zip(hw.gate_parameters(other), hw.gate_parameters(model), strict=True)
    assert all(torch.equal(loaded, saved.to(loaded.dtype)) for loaded, saved in pairs)

    def stays_ungated(model, *must_name, folder=tmp_path):
        names = list(model.state_dict())
        refused(must_name, hw.load_gates, model, folder)
        assert list(model.state_dict()) == names

    stays_ungated(build("bert", {**TINY, "head_dim": 2}), "gate", "size mismatch")
    stays_ungated(build("gpt2"), "encoder.layer.0.attention")
    stays_ungated(build("bert to bert"), "encoder_self", "decoder_self")
    (tmp_path / "empty").mkdir()
    stays_ungated(build("bert"), "empty", "save_gates", folder=tmp_path / "empty")
    model.save_pretrained(tmp_path / "whole")  # as transformers' Trainer does
    stays_ungated(build("bert"), "whole", "save_gates", folder=tmp_path / "whole")
    file = tmp_path / "head_gates.safetensors"
    tensors = load_file(file)
    with safe_open(file, "pt") as content:
        first, *others = json.loads(content.metadata()["gates"])
    assert first["system"] == "mae" and first["options"] == OPTIONS["mae"] and len(others) == 1
    for change, named in (({"system": "maee"}, "mae"), ({"options": {"gate_depth": 2}}, "gate_")):
        save_file(tensors, file, metadata={"gates": json.dumps([first | change])})
        stays_ungated(build("bert"), str(tmp_path), "layer.0", named)
    without_bias = {n: x for n, x in tensors.items() if not n.endswith("gate.output.bias")}
    save_file(without_bias, file, metadata={"gates": json.dumps([first])})
    stays_ungated(build("bert"), str(tmp_path), "gate.output.bias")
    save_file(tensors, file)
    stays_ungated(build("bert"), str(file), "save_gates")
    file.write_bytes(file.read_bytes()[:100])
    stays_ungated(build("bert"), str(file))


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_folded_model_computes_what_the_gated_one_does(name, tmp_path):
    model = train_at_random(hw.gate_heads(build(name), "gated", gate="static"))
    batch = inputs(name, model)
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
    balance = sum(routing.loss for passes in decisions.values() for routing in passes)
    assert balance > 0 and torch.equal(model(**batch, return_dict=False)[0], loss)
    torch.testing.assert_close(loss, plain + balance, rtol=1e-5, atol=0, check_dtype=False)


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
    balance = sum(routing.loss for passes in decisions.values() for routing in passes)
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
    twin.activation_checkpointing_enable({"use_reentrant": False})
    batch = labelled(name, model)
    for computed in (model, twin):
        computed(**batch).loss.backward()
    for once, twice in zip(hw.gate_parameters(model), hw.gate_parameters(twin), strict=True):
        torch.testing.assert_close(twice.grad, once.grad, rtol=1e-4, atol=1e-7)
    for once, twice in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(twice, once)


def test_passes_whose_layers_are_computed_again_together_are_right_or_refused():
    """Their masks differ, and the model has gone on to the second when the first is due."""
    model = hw.gate_heads(build("gpt2").requires_grad_(False), **OPTIONS["mae"])
    train_at_random(model).train()
    for layer in model.transformer.h:  # no pass moves the statistics by which a later one reads
        layer.attn.head_gates.system.gate.norm.momentum = 0.0
    arguments = {"input_ids": tokens(2, 5), "use_cache": False}
    plain = copy.deepcopy(model)
    model.activation_checkpointing_enable({"use_reentrant": False})
    whole, left = {}, {"attention_mask": torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])}

    def gradients(model, masks):
        model.zero_grad()
        sum(model(**arguments, **mask).logits.square().mean() for mask in masks).backward()
        return [parameter.grad for parameter in hw.gate_parameters(model)]

    for masks in ([whole] * 2, [left] * 2, [whole, left], [left, whole], [left], [whole]):
        if whole in masks and left in masks:
            with pytest.raises(RuntimeError, match="different masks"):
                gradients(model, masks)
        else:
            torch.testing.assert_close(gradients(model, masks), gradients(plain, masks))


def test_reentrant_checkpointing_which_takes_losses_away_is_refused():
    model = hw.gate_heads(build("gpt2").train(), "moh")
    model.activation_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        model(**labelled("gpt2", model))


def test_what_is_left_after_some_gates_are_removed_is_right():
    model, ids = gate("bert"), tokens(2, 5)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    other = gate("bert", layers=[1])
    other.load_state_dict(model.state_dict(), strict=False)
    hw.remove_gates(model.bert.encoder.layer[0])
    assert torch.equal(model(ids, mask).logits, other(ids, mask).logits)
    hw.remove_gates(model)
    hooks = [(m._forward_pre_hooks, m._forward_hooks) for m in model.modules()]  # noqa: SLF001
    assert not any(before or after for before, after in hooks)
    model = gate("gpt2")
    for layer in model.transformer.h:
        hw.remove_gates(layer)
    expected = build("gpt2").generate(ids, max_new_tokens=3)
    assert torch.equal(model.generate(ids, max_new_tokens=3), expected)  # through a cache again


def test_what_stands_in_for_gates_without_hooks_is_refused():
    """As nn.DataParallel makes it, and peft of more than the system."""
    model = gate("gpt2")
    model.transformer.h[1].attn.head_gates = copy.deepcopy(model.transformer.h[1].attn.head_gates)
    with pytest.raises(RuntimeError, match=r"h\.1\.attn.*modules_to_save.*DataParallel"):
        model(tokens(1, 3))


@torch.no_grad()
def test_gates_compute_the_same_in_a_compiled_model():
    """Also if it has run before they were put on, and while heads are ablated."""
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    batch = {"input_ids": tokens(2, 5), "attention_mask": mask, "use_cache": False}
    for system in OPTIONS:
        model, plain = gate("gpt2", system), build("gpt2")
        compiled = torch.compile(plain, backend="eager")
        before = compiled(**batch).logits
        with hw.ablated(compiled, "_orig_mod.transformer.h.0.attn", head=1):
            assert not torch.allclose(compiled(**batch).logits, before)
        hw.gate_heads(compiled, system, **OPTIONS[system]).load_state_dict(
            {f"_orig_mod.{name}": x for name, x in model.state_dict().items()}, strict=False
        )
        assert_near(compiled(**batch).logits, model(**batch).logits)
        assert_near(hw.remove_gates(compiled)(**batch).logits, before)


@pytest.mark.parametrize("system", OPTIONS)
def test_adapters_of_peft_learn_and_are_saved_beside_gates(system, tmp_path):
    """Adapters see what the gates have changed, so that merging them changes nothing."""
    peft = pytest.importorskip("peft")
    lora = {"target_modules": ["c_attn", "c_proj"], "modules_to_save": ["head_gates.system"]}
    config = peft.LoraConfig(r=2, **lora, fan_in_fan_out=True, task_type="CAUSAL_LM")
    model, ids = peft.get_peft_model(gate("gpt2", system), config).train(), tokens(4, 6)
    model(input_ids=ids, labels=ids).loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    moved = {key for key, value in model.named_parameters() if value.grad is not None}
    assert moved and all("lora_" in key or "modules_to_save" in key for key in moved)
    model.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(gate("gpt2", system), tmp_path).eval()
    expected = model.eval()(input_ids=ids).logits
    assert torch.equal(loaded(input_ids=ids).logits, expected)
    refused({"ModulesToSaveWrapper", "save_pretrained"}, hw.save_gates, model, tmp_path / "gates")
    assert_near(loaded.merge_and_unload()(input_ids=ids).logits, expected)
