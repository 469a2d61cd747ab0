"""What an analysis asks in one pass over all batches."""

import pytest
import torch

import headwise as hw
from headwise.analysis.decisions.record import ask


@pytest.mark.parametrize("size", [1, 4, 12])
def test_a_decision_for_everything_counts_once_however_many_batches_there_are(size):
    config = {"vocab_size": 9, "embed_dim": 8, "num_heads": 2, "ffn_dim": 8, "layers": 1}
    model = hw.CausalLM(hw.CausalLMConfig(**config, attention="weighted"))
    batches = [{"input_ids": part} for part in torch.randint(9, (12, 5)).split(size)]
    found = ask(model, batches, lambda batch: {})
    (entropy,), (load,) = found["entropy"].modules, found["load"]
    assert (entropy.decides, entropy.spread.rows, load.rows) == ("everything", 1, 1)
    assert found["sequences"] == 12
