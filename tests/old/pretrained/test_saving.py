"""Gates are saved alone, and loaded over the untouched model."""

import copy
import json
import random
import warnings

import pytest
import torch
from architectures import ARCHITECTURES, inputs, tiny, tiny_sizes
from gated import train_at_random
from huggingface_hub import ModelCard
from local_hub import LocalHub
from peft import LoraConfig, get_peft_model
from transformers import BertForSequenceClassification, GPT2Config, GPT2Model

import headwise as hw
from headwise.models import hub


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_saved_and_loaded(name, tmp_path):
    model = train_at_random(hw.gate_heads(tiny(name), dropped_heads=2, gate_hidden_dim=7))
    hw.save_gates(model, tmp_path / "gates")
    assert sorted(path.name for path in (tmp_path / "gates").iterdir()) == [
        "README.md",
        "head_gates.json",
        "head_gates.safetensors",
    ]
    loaded = hw.load_gates(tiny(name), tmp_path / "gates")
    given = inputs(model, random.Random(0))
    assert torch.equal(loaded(**given).logits, model(**given).logits)


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
@torch.no_grad()
def test_other_gates_saved_and_loaded(name, tmp_path):
    for given_by in (
        hw.GatedAttention.presets["quantizable-transformers"],
        {"gate_activation": "softplus", "gate_inputs": 5, "gate": "elementwise"},
    ):
        model = train_at_random(hw.gate_heads(tiny(name), "gated", **given_by))
        hw.save_gates(model, tmp_path)
        loaded = hw.load_gates(tiny(name), tmp_path)
        given = inputs(model, random.Random(0))
        assert torch.equal(loaded(**given).logits, model(**given).logits)


def test_a_model_with_another_head_or_with_adapters(tmp_path):
    model = train_at_random(hw.gate_heads(tiny("bert")))
    hw.save_gates(model, tmp_path)
    other = hw.load_gates(BertForSequenceClassification(model.config), tmp_path)
    adapted = get_peft_model(tiny("bert"), LoraConfig(target_modules=["query"]))
    hw.load_gates(adapted, tmp_path)
    for loaded in (other, adapted):
        for parameter, expected in zip(
            hw.gate_parameters(loaded), hw.gate_parameters(model), strict=True
        ):
            assert torch.equal(parameter, expected)
    hw.save_gates(adapted, tmp_path / "adapted")
    hw.load_gates(tiny("bert"), tmp_path / "adapted")


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_what_transformers_saves_is_warned_of_and_comes_back(name, tmp_path):
    model = copy.deepcopy(train_at_random(hw.gate_heads(tiny(name)))).eval()
    given = inputs(model, random.Random(0))
    expected = model(**given).logits
    with pytest.warns(UserWarning, match=r"call headwise\.save_gates\(model, folder\)") as caught:
        model.save_pretrained(tmp_path)
    assert [warned.filename for warned in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.save_pretrained(tmp_path)
    hw.save_gates(model, tmp_path)
    bare = type(model).from_pretrained(tmp_path)
    assert not torch.allclose(bare(**given).logits, expected)
    assert torch.equal(hw.load_gates(bare, tmp_path)(**given).logits, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hw.remove_gates(bare).save_pretrained(tmp_path)


def test_another_tool_may_have_changed_how_a_model_is_saved():
    model = tiny("gpt2")
    model.save_pretrained = saved = lambda: "another tool"
    with hw.record(model), hw.ablated(model, "transformer.h.0.attn", head=0):
        assert model.save_pretrained is saved
    assert hw.remove_gates(hw.gate_heads(model)).save_pretrained is saved
    with pytest.warns(UserWarning, match="save_gates"):
        assert hw.gate_heads(model).save_pretrained() == "another tool"
    assert model.save_pretrained is saved


def test_gates_that_peft_holds(tmp_path):
    config = LoraConfig(target_modules=["query"], modules_to_save=["head_gates.system"])
    model = get_peft_model(hw.gate_heads(tiny("bert")), config)
    with pytest.raises(ValueError, match="merge_and_unload"):
        hw.save_gates(model, tmp_path)
    hw.save_gates(model.merge_and_unload(), tmp_path)
    hw.load_gates(tiny("bert"), tmp_path)


@torch.no_grad()
def test_parts_with_other_gates_are_saved_by_themselves(tmp_path):
    model, loaded = tiny("t5"), tiny("t5")
    hw.gate_heads(model.encoder, "gated")
    hw.gate_heads(model.decoder, "gated", gate_activation="softplus")
    train_at_random(model)
    with pytest.raises(ValueError, match=r"at 'decoder\.block\.0.*save each part by itself"):
        hw.save_gates(model, tmp_path)
    for part in ("encoder", "decoder"):
        hw.save_gates(getattr(model, part), tmp_path / part)
        hw.load_gates(getattr(loaded, part), tmp_path / part)
    given = inputs(model, random.Random(0))
    assert torch.equal(loaded(**given).logits, model(**given).logits)


def test_differences_are_named(tmp_path):
    hw.save_gates(hw.gate_heads(tiny("bert")), tmp_path)
    small = tiny("bert", sizes={**tiny_sizes(), "heads": 2, "layers": 1})
    with pytest.raises(ValueError, match=r"embed_dim 8, saved was 12.* and 1 more"):
        hw.load_gates(small, tmp_path)
    with pytest.raises(ValueError, match="is missing"):
        hw.load_gates(tiny("gpt2"), tmp_path)
    with pytest.raises(ValueError, match="has gates over its heads already"):
        hw.load_gates(hw.gate_heads(tiny("bert")), tmp_path)
    with pytest.raises(ValueError, match=r"has no head_gates\.json"):
        hw.load_gates(tiny("bert"), tmp_path / "nowhere")
    with pytest.raises(ValueError, match="without gates"):
        hw.save_gates(tiny("bert"), tmp_path)
    assert not [module for module in small.modules() if isinstance(module, hw.systems.System)]


@pytest.mark.parametrize("broken", ["head_gates.json", "head_gates.safetensors"])
def test_files_that_are_not_whole(broken, tmp_path):
    hw.save_gates(hw.gate_heads(tiny("bert")), tmp_path)
    file = tmp_path / broken
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match="cannot be read"):
        hw.load_gates(tiny("bert"), tmp_path)


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda description: description.pop("options"), "lacks options"),
        (lambda description: description["options"].update(gate_depth=2), "does not take.*depth"),
        (
            lambda description: description.update(system="moa"),
            "json: system is MixtureOfAttentionH",
        ),
        (lambda description: description.update(system="maee"), r"json: .*'maee'.*mae"),
        (lambda description: description.update(system=["mae"]), r"json: .*\['mae'\]"),
        (lambda description: description.update(options=["mae"]), "options or attentions"),
        (lambda description: description.update(attentions=["0"]), "options or attentions"),
        (lambda description: description.update(attentions={"0": 1}), "options or attentions"),
    ],
)
def test_descriptions_that_are_wrong(change, words, tmp_path):
    hw.save_gates(hw.gate_heads(tiny("bert")), tmp_path)
    description = json.loads((tmp_path / "head_gates.json").read_text())
    change(description)
    (tmp_path / "head_gates.json").write_text(json.dumps(description))
    with pytest.raises(ValueError, match=words):
        hw.load_gates(tiny("bert"), tmp_path)


@pytest.mark.parametrize("found", [None, 1, "gates", ["system", "options", "attentions"]])
def test_a_description_that_is_no_mapping(found, tmp_path):
    hw.save_gates(hw.gate_heads(tiny("bert")), tmp_path)
    (tmp_path / "head_gates.json").write_text(json.dumps(found))
    with pytest.raises(ValueError, match=r"cannot be read.*lacks system, options, attentions"):
        hw.load_gates(tiny("bert"), tmp_path)


def test_tensors_of_other_options(tmp_path):
    hw.save_gates(hw.gate_heads(tiny("bert"), gate_hidden_dim=5), tmp_path)
    description = (tmp_path / "head_gates.json").read_text()
    (tmp_path / "head_gates.json").write_text(description.replace("5", "6"))
    model = tiny("bert")
    with pytest.raises(ValueError, match="is not what was saved"):
        hw.load_gates(model, tmp_path)
    assert not [module for module in model.modules() if isinstance(module, hw.systems.System)]


# --- on the hub -------------------------------------------------------------------------------


@pytest.fixture
def local(tmp_path, monkeypatch):
    made = LocalHub(tmp_path / "hub")
    monkeypatch.setattr(hub, "HfApi", lambda **_: made)
    return made


@torch.no_grad()
def test_gates_are_sent_to_the_hub_and_fetched_by_name(local, tmp_path):
    model = train_at_random(hw.gate_heads(tiny("gpt2"), "gated", gate="elementwise"))
    model.name_or_path = "openai-community/gpt2"
    folder = tmp_path / "gates"
    folder.mkdir()
    (folder / "model.safetensors").write_text("The weights of the model stay here.")
    hw.save_gates(model, folder, push_to_hub="user/gates", private=True)
    assert local.calls[0] == {"made": "user/gates", "private": True}
    files = ["README.md", "head_gates.json", "head_gates.safetensors"]
    assert local.calls[1]["sent"] == files
    fresh = hw.load_gates(tiny("gpt2"), "user/gates", revision="v1")
    assert local.calls[2] == {"fetched": files[1:], "revision": "v1"}
    given = inputs(model, random.Random(0))
    assert torch.equal(fresh(**given).logits, model(**given).logits)


def test_the_card_says_over_which_model_and_how_they_are_loaded(local, tmp_path):
    model = hw.gate_heads(tiny("gpt2"), "gated", gate="elementwise")
    model.name_or_path = "openai-community/gpt2"
    hw.save_gates(model, tmp_path / "known", push_to_hub="user/gates")
    card = ModelCard.load(tmp_path / "known" / "README.md")
    assert card.data.base_model == "openai-community/gpt2"
    assert card.data.to_dict()["base_model_relation"] == "adapter"
    assert card.data.tags == ["headwise", "head-gates", "gated"]
    assert "The system `gated` with `gate='elementwise'` over the heads, in 2 of" in card.text
    loading = (
        "import headwise, transformers\n\n"
        'model = transformers.GPT2LMHeadModel.from_pretrained("openai-community/gpt2")\n'
        'headwise.load_gates(model, "user/gates")\n'
    )
    assert f"```python\n{loading}```" in card.text
    assert f"headwise {hw.__version__}, transformers " in card.text

    model.name_or_path = str(tmp_path)  # whose path is nobody else's business
    hw.save_gates(model, tmp_path / "unknown")
    card = ModelCard.load(tmp_path / "unknown" / "README.md")
    assert card.data.base_model is None and str(tmp_path) not in card.content
    assert "model = ...  # a GPT2LMHeadModel\n" in card.text

    (tmp_path / "known" / "README.md").write_text("My own words.")
    hw.save_gates(model, tmp_path / "known")
    assert (tmp_path / "known" / "README.md").read_text() == "My own words."


def test_without_the_hub_errors_say_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(OSError, match="folder is 'user/gates', which is no folder here") as found:
        hw.load_gates(tiny("gpt2"), "user/gates")
    assert "give a folder that is there, or user/name of a repository" in str(found.value)
    model = hw.gate_heads(tiny("gpt2"))
    with pytest.raises(OSError, match="push_to_hub is 'user/gates', and nothing could be sent"):
        hw.save_gates(model, tmp_path / "gates", push_to_hub="user/gates")
    hw.load_gates(tiny("gpt2"), tmp_path / "gates")  # they are saved all the same
    for missing in ("gates", "a/b/c", tmp_path / "gone"):
        with pytest.raises(ValueError, match=r"has no head_gates\.json, expected a folder that"):
            hw.load_gates(tiny("gpt2"), missing)


def test_gates_of_another_depth_are_refused(tmp_path):
    config = GPT2Config(vocab_size=9, n_embd=8, n_layer=2, n_head=2, n_positions=8)
    hw.save_gates(hw.gate_heads(GPT2Model(config)), tmp_path)
    config.n_layer = 3
    deeper = GPT2Model(config)
    with pytest.raises(ValueError, match=r"'h\.0\.attn' has layers 3, saved was 2"):
        hw.load_gates(deeper, tmp_path)
    assert not hw.gate_parameters(deeper)
