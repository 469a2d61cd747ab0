"""peft: adapters on our models learn alone, merge, are saved and generate."""

import pytest
import torch
from support.tiny_models import inputs, labels, model

peft = pytest.importorskip("peft")

pytestmark = pytest.mark.nightly

SYSTEMS = ("standard", "mae", "moa")
TASKS = {"causal": "CAUSAL_LM", "seq2seq": "SEQ_2_SEQ_LM", "classifier": "SEQ_CLS"}
TENSORS = {"moa": ["expert_query", "expert_output"]}  # that are no weights of linear maps


def adapted(kind: str, system: str, **options):
    """A model with adapters whose weights make a difference."""
    config = peft.LoraConfig(r=2, task_type=TASKS[kind], **options)
    made = peft.get_peft_model(model(kind, system).train(), config).double()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.3)
    return made


def output(made, kind: str):
    with torch.no_grad():
        return made.eval()(**inputs(kind)).logits


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("of", ["linear maps", "tensors"])
def test_adapters_learn_alone_and_merge(kind, system, of):
    tensors = TENSORS.get(system, ["out_proj.weight"])
    maps = {"target_modules": "all-linear"}
    made = adapted(
        kind,
        system,
        **(maps if of == "linear maps" else {"target_modules": [], "target_parameters": tensors}),
    )
    made(**inputs(kind), labels=labels(kind)).loss.backward()
    learned = {name for name, p in made.named_parameters() if p.grad is not None and p.grad.any()}
    new_head = {name for name, _ in made.named_parameters() if "modules_to_save" in name}
    assert learned == {name for name, _ in made.named_parameters() if "lora_" in name} | new_head
    expected = output(made, kind)
    assert not torch.allclose(expected, output(model(kind, system), kind))
    torch.testing.assert_close(output(made.merge_and_unload(), kind), expected)


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("system", SYSTEMS)
def test_adapters_are_saved_and_loaded(kind, system, tmp_path):
    made = adapted(kind, system, target_modules=["q_proj", "v_proj", "ffn_up"])
    expected = output(made, kind)
    made.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(model(kind, system), tmp_path).double()
    torch.testing.assert_close(output(loaded, kind), expected)


@pytest.mark.parametrize("kind", ["causal", "seq2seq"])
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("beams", [1, 3])
def test_a_model_with_adapters_generates_what_the_merged_one_does(kind, system, beams):
    made = adapted(kind, system, target_modules=["q_proj", "v_proj", "ffn_up"]).eval()
    given = {"input_ids": inputs("causal")["input_ids"], "max_new_tokens": 5, "num_beams": beams}
    found = made.generate(**given, do_sample=False)
    merged = made.merge_and_unload()
    assert torch.equal(merged.generate(**given, do_sample=False), found)


@pytest.mark.parametrize("system", SYSTEMS)
def test_checkpointing_gives_adapters_the_same_gradients(system):
    made = adapted("causal", system, target_modules=["q_proj", "v_proj", "ffn_up"])

    def gradients():
        made.zero_grad()
        torch.manual_seed(0)
        made.train()(**inputs("causal"), labels=labels("causal")).loss.backward()
        return {n: p.grad.clone() for n, p in made.named_parameters() if p.requires_grad}

    expected = gradients()
    made.activation_checkpointing_enable()
    made.enable_input_require_grads()
    for name, gradient in gradients().items():
        torch.testing.assert_close(gradient, expected[name])
