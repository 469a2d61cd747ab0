import pytest
from tiny import PLANS, config

import headwise as hw


@pytest.mark.parametrize(
    "options, parts",
    [
        ({"num_heads": 3}, ["embed_dim is 16", "num_heads = 3"]),
        ({"norm": "middle"}, ["norm is 'middle'", "'post' or 'pre'"]),
        ({"share_embeddings": "some"}, ["share_embeddings is 'some'", "'target'"]),
        ({"target_vocab_size": 9}, ["vocab_size is 23", "target_vocab_size is 9", "'target'"]),
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


def test_the_names_that_transformers_uses():
    made = config()
    assert (made.hidden_size, made.num_attention_heads, made.num_hidden_layers) == (16, 4, 2)
    assert made.is_encoder_decoder
    assert made.decoder_start_token_id == made.bos_token_id == 1
    assert config(decoder_start_token_id=5).decoder_start_token_id == 5
    assert config(share_embeddings="none").tie_word_embeddings is False
    assert config().target_vocab_size == config().vocab_size
