"""transformers: saving and loading by the Auto classes."""

import torch
from compatible import compatible, tiny_model
from tiny import tokens
from transformers import AutoModelForCausalLM

TOOL = "transformers"


@compatible(TOOL, "`save_pretrained`, `AutoModelForCausalLM.from_pretrained`")
def test_save_and_load(system, tmp_path):
    model, ids = tiny_model("causal", system), tokens(2, 5)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(ids).logits, model(ids).logits)
