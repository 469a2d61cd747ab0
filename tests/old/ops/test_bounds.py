"""Sizes that no machine holds are refused before memory is taken for them."""

import pytest

import headwise as hw

MILLION, TRILLION = 10**6, 10**12


@pytest.mark.parametrize(
    ("config", "sizes", "said"),
    [
        (hw.CausalLMConfig, {"embed_dim": 8 * TRILLION}, "embed_dim is 8,000,000,000,000"),
        (hw.CausalLMConfig, {"embed_dim": 8 * 10**200}, "embed_dim is 10^"),
        (hw.CausalLMConfig, {"vocab_size": TRILLION}, "vocab_size is 1,000,000,000,000"),
        (hw.CausalLMConfig, {"layers": 100_000}, "the number of layers of decoder is 100,000"),
        (hw.CausalLMConfig, {"ffn_dim": 0}, "ffn_dim is 0, expected a positive number"),
        (hw.Seq2SeqLMConfig, {"decoder_layers": 100_000}, "the number of layers of decoder is 100"),
        (hw.Seq2SeqLMConfig, {"ffn_dim": TRILLION}, "ffn_dim is 1,000,000,000,000"),
        (hw.SequenceClassifierConfig, {"hidden_dim": TRILLION}, "hidden_dim is 1,000,000,000,000"),
        (
            hw.MaskedLMConfig,
            {"positions": "learned", "max_positions": TRILLION},
            "max_positions is 1,000,000,000,000",
        ),
        (hw.SpeechEnhancerConfig, {"front_channels": [MILLION]}, "front_channels is"),
        (
            hw.SpeechEnhancerConfig,
            {"sampling_rate": 10**15},
            "sampling_rate is 1,000,000,000,0",
        ),
    ],
)
def test_a_model_that_no_machine_holds(config, sizes, said):
    with pytest.raises(ValueError) as caught:
        config(**sizes)
    assert said in str(caught.value)
