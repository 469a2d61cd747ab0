"""Arguments of configurations: unknown ones are errors, but for those of newer files."""

import json

import pytest
from transformers import AutoConfig

import headwise as hw
from headwise.models.masked_lm import MaskedLMConfig

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
