"""Configurations: names of other tools, and arguments, of which unknown ones are errors."""

import json

import pytest
from transformers import AutoConfig

import headwise as hw
from headwise.models.masked_lm import MaskedLMConfig

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
    with pytest.raises(ValueError, match="num_key_value_heads is 5, expected a divisor of"):
        hw.CausalLMConfig(**SIZES, num_key_value_heads=5)


SMALL = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 24, "layers": 1}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("activation", r"activation is not an argument of MaskedLMConfig; did you mean 'ffn_act"),
        ("ffn_dims", r"did you mean 'ffn_dim'\?"),
        ("num_label", r"did you mean 'num_labels'\?"),
        ("xyz", r"xyz is not an argument of MaskedLMConfig$"),
        ("hidden_size", r"here its name is 'embed_dim'"),
        ("temperature", r"a setting of generation: give it to generate\(\)"),
    ],
)
def test_an_argument_that_nothing_reads_is_an_error(given, said):
    with pytest.raises(TypeError, match=said):
        MaskedLMConfig(**SMALL, **{given: 1})


def test_what_transformers_takes_of_every_configuration_passes():
    config = MaskedLMConfig(
        **SMALL,
        architectures=["MaskedLM"],
        attn_implementation="eager",
        dtype="bfloat16",
        name_or_path="here",
        num_labels=3,
        return_dict=False,
        tokenizer_class="PreTrainedTokenizerFast",
        sep_token_id=2,
        use_cache=False,
    )
    assert (config.num_labels, str(config.dtype)) == (3, "torch.bfloat16")
    assert MaskedLMConfig(**config.to_dict()).to_dict() == config.to_dict()


def written(folder, **changes):
    """The folder of a saved configuration with other keys."""
    MaskedLMConfig(**SMALL).save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


@pytest.mark.parametrize("kind", [AutoConfig, MaskedLMConfig])
def test_files_of_newer_transformers_are_read(kind, tmp_path):
    newer = {"transformers_version": "99.0", "invented_since": True}
    config = kind.from_pretrained(written(tmp_path / "newer", **newer))
    assert config.embed_dim == 16 and not hasattr(config, "invented_since")
    with pytest.raises(TypeError, match="did you mean 'ffn_dropout'"):
        kind.from_pretrained(written(tmp_path / "wrong", ffn_drop_out=0.1))


def test_generation_reads_its_own_length():
    with pytest.raises(TypeError, match="max_length is not an argument of Seq2SeqLMConfig"):
        hw.Seq2SeqLMConfig(max_length=5)
    assert hw.CausalLMConfig(**SMALL, max_length=5).max_length == 5


@pytest.mark.parametrize(
    "changes",
    [
        {"share_embeddings": False},
        {"positions": "rotary"},
        {"positions": "learned"},
        {"head_dim": 8},
        {"num_key_value_heads": 2},
        {"dropout": 0.3},
    ],
    ids=str,
)
def test_what_is_given_in_place_of_saved_values_goes_through_the_constructor(changes, tmp_path):
    sizes = {"vocab_size": 20, "embed_dim": 16, "num_heads": 4, "ffn_dim": 24, "layers": 1}
    hw.CausalLMConfig(**sizes).save_pretrained(tmp_path)
    expected = hw.CausalLMConfig(**sizes, **changes)
    for read in (hw.CausalLMConfig, AutoConfig):
        found = read.from_pretrained(tmp_path, **changes)
        assert found.to_diff_dict() == expected.to_diff_dict()
    with pytest.raises(ValueError, match="norm is 'nonsense'"):
        hw.CausalLMConfig.from_pretrained(tmp_path, norm="nonsense")


@pytest.mark.parametrize("layers", [0, -1])
def test_a_model_without_layers_is_refused(layers):
    with pytest.raises(ValueError, match=r"the numbers of layers are {'decoder': .*}, expected po"):
        hw.CausalLMConfig(layers=layers)


def test_a_model_may_have_an_encoder_alone():
    assert hw.Seq2SeqLMConfig(encoder_layers=1, decoder_layers=0).num_key_value_heads == 8
