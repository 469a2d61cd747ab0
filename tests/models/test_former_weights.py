"""Weights that earlier versions saved."""

import tiny
import torch
from safetensors.torch import save_file

import headwise as hw


def test_scalars_that_are_vectors_now(tmp_path):
    """They are vectors of one entry now, since fully_shard takes no scalars."""
    model = tiny.model("agreement")
    module = model.encoder.layers[0].self_attention
    former = {name: x.detach().clone() for name, x in model.state_dict().items()}
    former |= {name: x.reshape(()) for name, x in former.items() if ".beta_" in name}
    assert former["encoder.layers.0.self_attention.beta_a"].shape == ()
    other = tiny.model("agreement", seed=1)
    other.load_state_dict(former)
    assert torch.equal(other.encoder.layers[0].self_attention.beta_a, module.beta_a)
    model.save_pretrained(tmp_path)
    save_file(former, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded, found = hw.Seq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not found["mismatched_keys"] and not found["missing_keys"]
    given = hw.Seq2SeqLM.from_pretrained(None, config=model.config, state_dict=former)
    for copy in (loaded, given):
        state = copy.state_dict()
        assert all(torch.equal(state[name], x) for name, x in model.state_dict().items())
