"""The names by which other tools look for sizes in a configuration."""

import json

import pytest
from transformers import AutoConfig

import headwise as hw

SIZES = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 24, "vocab_size": 23}
OTHER_NAMES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "max_position_embeddings": None,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
}
MOA = {"system": "moa", "size": "2K5E7D"}


def configs(**options):
    sizes = SIZES | options
    return [
        hw.CausalLMConfig(**sizes, layers=3),
        hw.MaskedLMConfig(**sizes, layers=3),
        hw.SequenceClassifierConfig(**sizes, layers=3, classes=["a", "b"]),
        hw.Seq2SeqLMConfig(**sizes, encoder_layers=3, decoder_layers=2),
    ]


@pytest.mark.parametrize("config", configs(), ids=lambda config: config.model_type)
def test_they_are_attributes_and_keys_but_are_not_saved(config, tmp_path):
    for name, value in OTHER_NAMES.items():
        assert getattr(config, name) == config.to_dict()[name] == value, name
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert not OTHER_NAMES.keys() & saved.keys()
    assert {name: saved[name] for name in SIZES} == SIZES
    loaded = AutoConfig.from_pretrained(tmp_path)
    for same in (loaded, type(config)(**config.to_dict()), config.from_dict(loaded.to_dict())):
        assert json.loads(same.to_json_string()) == saved


@pytest.mark.parametrize("config", configs(positions="learned", max_positions=9))
def test_learned_positions_set_a_limit(config):
    assert config.max_position_embeddings == 9


@pytest.mark.parametrize("attention", [MOA, {"system": "tim", "layers": "all"}, "mae"])
def test_heads_of_keys_are_those_of_the_plan(attention):
    for config in configs(attention=attention)[:2]:
        assert config.num_key_value_heads == (1 if attention is MOA else 4)


def test_another_name_with_another_value_is_an_error():
    with pytest.raises(TypeError, match=r"hidden_size is not an argument .* 'embed_dim'"):
        hw.CausalLMConfig(**SIZES, hidden_size=32)
    with pytest.raises(TypeError, match="num_key_value_heads is not an argument"):
        hw.CausalLMConfig(**SIZES, num_key_value_heads=5)
