import pytest
import torch

import headwise as hw
from headwise.ops.precision import as_autocast, without_autocast


def test_tensors_follow_autocast_where_it_is_on():
    single, double = torch.ones(1), torch.ones(1, dtype=torch.float64)
    assert [x.dtype for x in as_autocast(single, double)] == [torch.float32, torch.float64]
    with torch.autocast("cpu", torch.bfloat16):
        assert [x.dtype for x in as_autocast(single, double)] == [torch.bfloat16, torch.float64]
        with without_autocast(single):
            assert as_autocast(single)[0].dtype == torch.float32


@pytest.mark.parametrize("system", ["weighted", "agreement", "mae", "tim", "moa"])
def test_models_pass_on_the_meta_device(system):
    """Which has no autocast to turn off."""
    plan = {"system": system, "layers": "all"}
    sizes = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 32, "vocab_size": 20}
    with torch.device("meta"):
        config = hw.Seq2SeqLMConfig(attention=plan, encoder_layers=1, decoder_layers=1, **sizes)
        model = hw.Seq2SeqLM(config)
        ids = torch.ones(2, 40, dtype=torch.long)
    assert model(input_ids=ids, decoder_input_ids=ids).logits.shape == (2, 40, 20)
