"""Adapters where a module's own forward pass does not go through a linear map by calling it."""

import pytest
import torch
from adapted import adapted, assert_adapters_learn_and_merge, batch, outputs, peft
from compatible import tiny_model
from tiny import model, tokens

import headwise as hw
from headwise.models.sites import attention_sites
from headwise.training.rules import training_rules

needs_peft = pytest.mark.skipif(peft is None, reason="needs peft")


@needs_peft
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("time", [2, 30], ids=["unfolded", "folded"])
@pytest.mark.parametrize("ffn", ["shared", "split"])
def test_a_branched_feed_forward(ffn, time, activation):
    made = model({"encoder_self": {"system": "weighted", "ffn": ffn}}, ffn_activation=activation)
    inputs = {"input_ids": tokens(3, time), "labels": tokens(3, 4)}
    maps = peft.LoraConfig(r=2, target_modules=["ffn_up", "ffn_down"])
    assert_adapters_learn_and_merge(made, inputs, maps)


@needs_peft
@pytest.mark.parametrize(
    "maps", ["all-linear", ["bands.0", "bands.1", "projections.1", "clusters"]]
)
def test_an_adaptive_softmax_and_the_embedding_whose_weights_it_shares(maps):
    torch.manual_seed(0)
    made = hw.CausalLM(
        hw.CausalLMConfig(23, embed_dim=16, num_heads=4, ffn_dim=24, layers=1, adaptive_cutoffs=[9])
    )
    assert_adapters_learn_and_merge(
        made, batch("causal"), peft.LoraConfig(r=2, target_modules=maps)
    )


@needs_peft
@pytest.mark.parametrize("kind", ["causal", "masked", "seq2seq"])
def test_the_map_onto_the_vocabulary(kind):
    made = tiny_model(kind, "standard", share_embeddings="none" if kind == "seq2seq" else False)
    maps = peft.LoraConfig(r=2, target_modules=["lm_head"])
    assert_adapters_learn_and_merge(made, batch(kind), maps)


@needs_peft
def test_gates_that_are_trained_whole_keep_their_statistics_with_the_adapter(tmp_path):
    def build():
        return model({"encoder_self": "mae"})

    config = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["gate"])
    made, inputs = peft.get_peft_model(build(), config), batch("seq2seq")
    rules = training_rules(made, total_steps=2)
    optimizer = torch.optim.AdamW(rules.parameter_groups(lr=0.1))
    before = {name: value.clone() for name, value in made.state_dict().items()}
    for _ in range(2):
        made.train()
        rules.before_step(lambda: made(**inputs).loss)
        with rules.step(optimizer):
            made(**inputs).loss.backward()
        optimizer.step()
        rules.after_step()
        optimizer.zero_grad()
    changed = {name for name, value in made.state_dict().items() if not value.equal(before[name])}
    assert all("lora_" in name or ".gate.modules_to_save." in name for name in changed)
    for name in ("norm.running_mean", "norm.weight", "hidden.weight", "output.bias"):
        assert any(f"gate.modules_to_save.default.{name}" in each for each in changed), name
    expected = outputs(made, inputs)
    made.save_pretrained(tmp_path)
    torch.testing.assert_close(
        outputs(peft.PeftModel.from_pretrained(build(), tmp_path), inputs), expected
    )


@needs_peft
@pytest.mark.parametrize(
    "config",
    [
        lambda: peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["norm"]),
        lambda: peft.LNTuningConfig(target_modules=["norm"]),
    ],
    ids=["modules_to_save", "layer norm tuning"],
)
def test_the_norm_of_a_gate_without_the_gate_is_refused(config):
    made = peft.get_peft_model(model({"encoder_self": "mae"}), config())
    with pytest.raises(TypeError, match=r"modules_to_save=\['gate'\]"):
        made(**batch("seq2seq"))


@needs_peft
def test_systems_with_adapters_of_their_tensors_keep_their_places():
    made = model({"decoder_cross": {"system": "moa", "size": "2K5E4D"}})
    expected = [(site.site, site.layer) for site in attention_sites(made)]
    names = ["expert_query", "expert_output"]
    adapted(made, peft.LoraConfig(r=2, target_modules=[], target_parameters=names))
    assert [(site.site, site.layer) for site in attention_sites(made)] == expected
