import json

import pytest
from tiny import PLANS, config

import headwise as hw
from headwise.models.config import TransformerConfig


@pytest.mark.parametrize(
    "options, parts",
    [
        ({"num_heads": 3}, ["embed_dim is 16", "num_heads = 3"]),
        ({"norm": "middle"}, ["norm is 'middle'", "'post' or 'pre'"]),
        ({"ffn_activation": "swish"}, ["ffn_activation is 'swish'", "'leaky-relu'"]),
        ({"positions": "rotary"}, ["positions is 'rotary'", "'learned'"]),
        ({"max_positions": 9}, ["max_positions is 9", "positions to 'learned'"]),
        ({"positions": "learned", "max_positions": 0}, ["max_positions is 0", "positive"]),
        ({"share_embeddings": "some"}, ["share_embeddings is 'some'", "'target'"]),
        ({"target_vocab_size": 9}, ["target_vocab_size is 9", "vocab_size = 23", "'target'"]),
    ],
)
def test_sizes_that_do_not_fit_are_errors(options, parts):
    with pytest.raises(ValueError) as error:
        config(**options)
    assert all(part in str(error.value) for part in parts)


@pytest.mark.parametrize("plan", PLANS)
def test_the_plan_is_part_of_what_is_saved(plan, tmp_path):
    saved = config(PLANS[plan], norm="pre", share_embeddings="target", label_smoothing=0.2)
    saved.save_pretrained(tmp_path)
    loaded = hw.Seq2SeqConfig.from_pretrained(tmp_path)
    assert loaded.attention == PLANS[plan]
    assert loaded.to_dict() == saved.to_dict()
    assert (loaded.norm, loaded.share_embeddings, loaded.label_smoothing) == ("pre", "target", 0.2)


def test_what_earlier_versions_saved_is_read(tmp_path):
    saved = {
        "architectures": ["Seq2SeqLM"],
        "attention": {"decoder_cross": {"system": "mae", "dropped_heads": 2}},
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "decoder_layers": 3,
        "decoder_start_token_id": 1,
        "dropout": 0.2,
        "dtype": "float32",
        "embed_dim": 16,
        "encoder_layers": 4,
        "eos_token_id": 2,
        "ffn_dim": 24,
        "ffn_dropout": 0.0,
        "is_encoder_decoder": True,
        "label_smoothing": 0.1,
        "max_target_length": 256,
        "model_type": "headwise-seq2seq",
        "norm": "post",
        "num_heads": 4,
        "pad_token_id": 0,
        "share_embeddings": "all",
        "target_vocab_size": 23,
        "tie_word_embeddings": True,
        "transformers_version": "5.23.0",
        "vocab_size": 23,
    }
    (tmp_path / "config.json").write_text(json.dumps(saved))
    loaded = hw.Seq2SeqConfig.from_pretrained(tmp_path)
    assert {name: getattr(loaded, name) for name in saved.keys() - {"dtype"}} == {
        name: value for name, value in saved.items() if name != "dtype"
    }
    assert loaded.depths() == {"encoder_self": 4, "decoder_self": 3, "decoder_cross": 3}


def test_only_a_decoder_behind_an_encoder_attends_over_it():
    assert config().place("decoder_self").cross_attention
    assert not config().place("encoder_self").cross_attention
    assert not config().place("decoder_cross").cross_attention
    assert not hw.CausalLMConfig().place("decoder_self").cross_attention


def test_a_configuration_has_to_say_what_it_is_made_of():
    with pytest.raises(NotImplementedError, match=r"TransformerConfig has no depths\(\)"):
        TransformerConfig()


def test_the_names_that_transformers_uses():
    made = config()
    assert (made.hidden_size, made.num_attention_heads, made.num_hidden_layers) == (16, 4, 2)
    assert made.is_encoder_decoder
    assert made.decoder_start_token_id == made.bos_token_id == 1
    assert config(decoder_start_token_id=5).decoder_start_token_id == 5
    assert config(share_embeddings="none").tie_word_embeddings is False
    assert config().target_vocab_size == config().vocab_size
