"""Gates over a pretrained model together with adapters of peft."""

import warnings

import pytest
import torch
from adapted import adapted, outputs, peft
from architectures import tiny
from transformers import Trainer, TrainingArguments

import headwise as hw
from headwise.heads.watching import UntrainedRuleWarning

pytestmark = pytest.mark.skipif(peft is None, reason="needs peft")
SYSTEMS = {"mae": {}, "gated": {"gate_start": "neutral"}}


class RulesTrainer(hw.RulesMixin, Trainer):
    pass


def lora(modules_to_save):
    return peft.LoraConfig(
        r=2,
        target_modules=["c_attn", "c_proj"],
        fan_in_fan_out=True,
        modules_to_save=modules_to_save,
        task_type="CAUSAL_LM",
    )


def texts():
    rows = torch.randint(3, tiny("gpt2").config.vocab_size, (8, 6))
    return [{"input_ids": row, "labels": row} for row in rows]


def train(model, folder):
    arguments = TrainingArguments(
        str(folder),
        max_steps=2,
        learning_rate=0.1,
        per_device_train_batch_size=4,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", UntrainedRuleWarning)
        RulesTrainer(model, arguments, train_dataset=texts()).train()


@pytest.mark.parametrize("system", SYSTEMS)
def test_gates_are_trained_and_saved_with_the_adapters(system, tmp_path):
    def gated():
        return hw.gate_heads(tiny("gpt2"), system, **SYSTEMS[system])

    model = peft.get_peft_model(gated(), lora(["head_gates.system"]))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    train(model, tmp_path)
    changed = {name for name, value in model.state_dict().items() if not value.equal(before[name])}
    assert all("lora_" in name or "system.modules_to_save" in name for name in changed)
    learning = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert learning <= changed
    texts_of_two = {key: torch.stack([text[key] for text in texts()[:2]]) for key in texts()[0]}
    expected = outputs(model, texts_of_two)
    model.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(gated(), tmp_path)
    assert torch.equal(outputs(loaded, texts_of_two), expected)
    merged = outputs(loaded.merge_and_unload(), texts_of_two)
    torch.testing.assert_close(merged, expected, rtol=0, atol=1e-5)


def test_a_copy_of_the_gates_that_no_hook_calls_is_refused():
    model = adapted(hw.gate_heads(tiny("gpt2")), lora(["head_gates"]))
    with pytest.raises(RuntimeError, match=r"modules_to_save=\['head_gates.system'\]"):
        model(input_ids=torch.stack([text["input_ids"] for text in texts()]))
