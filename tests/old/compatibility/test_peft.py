"""peft: adapters on linear maps and on the tensors of systems, merging, saving, training."""

import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import pytest
import torch
import transformers
from adapted import adapted, assert_adapters_learn_and_merge, batch, outputs, peft
from compatible import compatible, tiny_model
from packaging.version import Version
from tiny import tokens
from torch import Tensor
from transformers import Trainer, TrainingArguments
from transformers.integrations.peft import MIN_PEFT_VERSION

import headwise as hw
from headwise.heads.watching import UntrainedRuleWarning

TOOL, NEEDS = "peft", ("peft",)

TASKS = {
    "causal": "CAUSAL_LM",
    "seq2seq": "SEQ_2_SEQ_LM",
    "classifier": "SEQ_CLS",
    "masked": None,
}
# Tensors of the systems that are no weights of linear modules; elsewhere a weight of such a one.
TENSORS: dict[str, Sequence[str]] = {
    "weighted": ["branch_output"],
    "agreement": ["capsule_weight", "vote_weight"],
    "tim": [
        f"{part}.{name}_weight"
        for part in ("self_attention", "exchange")
        for name in ["q", "k", "out"]
    ],
    "moa": ["expert_query", "expert_output"],
}
NO_LINEAR_MAPS = "No `target_modules` passed but also no `target_parameters` found"
RulesTrainer = type("RulesTrainer", (hw.RulesMixin, Trainer), {})


def some_lora(system: str, kind: str, modules_to_save: list[str] | None = None) -> Any:
    """LoRA on all that a system has, less what cannot be adapted together."""
    maps: Any = (
        []
        if system == "tim"
        else r".*(q_proj|k_proj|v_proj|router|ffn_up|ffn_down|gate_proj|gate\.hidden)"
    )
    return peft.LoraConfig(
        r=2,
        target_modules=maps,
        target_parameters=TENSORS.get(system) if system == "tim" else None,
        task_type=TASKS[kind],
        modules_to_save=modules_to_save,
    )


@pytest.mark.parametrize("kind", ["causal", "seq2seq"])
@compatible(
    TOOL,
    'LoRA on all linear maps (`target_modules="all-linear"`): only adapters learn, and merging '
    "leaves the output as it is",
    needs=NEEDS,
    refused={"tim": NO_LINEAR_MAPS},
)
def test_linear_maps(system, kind):
    config = peft.LoraConfig(r=2, target_modules="all-linear", task_type=TASKS[kind])
    assert_adapters_learn_and_merge(tiny_model(kind, system), batch(kind), config)


@pytest.mark.parametrize("kind", ["causal", "seq2seq"])
@compatible(
    TOOL,
    "LoRA on the tensors of experts, branches, votes and mechanisms (`target_parameters`), and "
    "merging",
    needs=NEEDS,
)
def test_tensors(system, kind):
    names = TENSORS.get(system, ["out_proj.weight"])
    config = peft.LoraConfig(r=2, target_modules=[], target_parameters=names, task_type=TASKS[kind])
    assert_adapters_learn_and_merge(tiny_model(kind, system), batch(kind), config)


@compatible(
    TOOL,
    "LoRA on a system's linear maps and its tensors together (`merge_and_unload()` twice where "
    "one is within the other)",
    needs=NEEDS,
    refused={"tim": "ParamWrapper has no attribute `self_attention`"},
)
def test_linear_maps_and_tensors(system):
    names = [*TENSORS.get(system, ["out_proj.weight"])]
    maps = {"target_modules": r".*(q_proj|k_proj|v_proj|gate\.(hidden|output)|ffn_up|ffn_down)"}
    if system == "tim":
        names, maps = [*names, "ffn_up_weight"], {"target_modules": []}
    config = peft.LoraConfig(r=2, target_parameters=names, task_type="CAUSAL_LM", **maps)
    assert_adapters_learn_and_merge(tiny_model("causal", system), batch("causal"), config)


@compatible(
    TOOL,
    "Default target modules (`LoraConfig()`)",
    needs=NEEDS,
    refused={"tim": "not found in the base model. Please check the target modules"},
)
def test_default_target_modules(system):
    model = peft.get_peft_model(tiny_model("causal", system), peft.LoraConfig())
    maps = {
        name.split(".lora_")[0].rpartition(".")[2]
        for name, p in model.named_parameters()
        if p.requires_grad
    }
    assert maps == {"v_proj"} if system == "moa" else {"q_proj", "v_proj"}


@pytest.mark.parametrize(
    "config",
    [
        lambda maps: peft.LoraConfig(r=2, target_modules=maps, use_dora=True),
        lambda maps: peft.AdaLoraConfig(target_modules=maps, total_step=10),
        lambda maps: peft.LoHaConfig(r=2, target_modules=maps),
        lambda maps: peft.OFTConfig(oft_block_size=4, target_modules=maps),
        lambda maps: peft.IA3Config(target_modules=maps, feedforward_modules=["ffn_down"]),
    ],
    ids=["DoRA", "AdaLoRA", "LoHa", "OFT", "IA3"],
)
@compatible(
    TOOL,
    "DoRA, AdaLoRA, LoHa, OFT and IA³ on linear maps, and merging",
    needs=NEEDS,
    refused={"tim": "not found in the base model. Please check the target modules"},
)
def test_other_adapters(system, config):
    maps = ["q_proj", "v_proj", "ffn_up", "ffn_down"]
    model, inputs = tiny_model("causal", system), batch("causal")
    assert_adapters_learn_and_merge(model, inputs, config(maps), torch.float32)


@pytest.mark.parametrize("kind", ["causal", "seq2seq", "classifier"])
@compatible(
    TOOL,
    "`get_peft_model` with the task types CAUSAL_LM, SEQ_2_SEQ_LM and SEQ_CLS, `modules_to_save`, "
    "saving and loading adapters",
    needs=NEEDS,
)
def test_saving(system, kind, tmp_path):
    head = "classifier" if kind == "classifier" else "lm_head"
    with_adapters, inputs = (
        adapted(tiny_model(kind, system), some_lora(system, kind, [head])),
        batch(kind),
    )
    expected = outputs(with_adapters, inputs)
    with_adapters.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(tiny_model(kind, system), tmp_path)
    assert type(loaded) is type(with_adapters) is not peft.PeftModel
    assert torch.equal(outputs(loaded, inputs), expected)


@pytest.mark.parametrize("kind", ["causal", "seq2seq"])
@compatible(TOOL, "`generate()` with adapters, by greedy search and by beams", needs=NEEDS)
def test_generating(system, kind):
    with_adapters = adapted(tiny_model(kind, system), some_lora(system, kind)).eval()
    ids = tokens(2, 4)
    how = [{"num_beams": beams, "max_new_tokens": 5, "do_sample": False} for beams in (1, 3)]
    found = [with_adapters.generate(input_ids=ids, **each) for each in how]
    merged = with_adapters.merge_and_unload()
    for each, ours in zip(how, found, strict=True):
        assert torch.equal(merged.generate(input_ids=ids, **each), ours)


@compatible(
    TOOL,
    "Adapters trained by `RulesMixin`: all else stays as it was, batch norm's statistics too",
    needs=NEEDS,
)
def test_training(system, tmp_path):
    model = peft.get_peft_model(tiny_model("causal", system), some_lora(system, "causal"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    arguments = TrainingArguments(
        tmp_path,
        max_steps=2,
        per_device_train_batch_size=4,
        learning_rate=0.1,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        weight_decay=0.1,
    )
    texts = [{"input_ids": text, "labels": text} for text in tokens(8, 6)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UntrainedRuleWarning)
        RulesTrainer(model, arguments, train_dataset=texts).train()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) == ("lora_" not in name), name


@compatible(
    TOOL,
    "Gradient checkpointing with adapters (`enable_input_require_grads`): the same gradients",
    needs=NEEDS,
)
def test_gradient_checkpointing(system):
    model, inputs = (
        adapted(tiny_model("causal", system), some_lora(system, "causal")),
        batch("causal"),
    )

    def gradients() -> dict[str, Tensor]:
        model.zero_grad()
        torch.manual_seed(0)
        model.train()(**inputs).loss.backward()
        found = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
        return {name: gradient.clone() for name, gradient in found.items()}

    expected = gradients()
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    for name, gradient in gradients().items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=1e-6)


@compatible(TOOL, "transformers' own `add_adapter`, `save_pretrained`, `load_adapter`", needs=NEEDS)
def test_adapters_of_transformers(system, tmp_path):
    if Version(version("peft")) < Version(MIN_PEFT_VERSION):
        pytest.skip(f"transformers {transformers.__version__} asks for peft {MIN_PEFT_VERSION}")
    model, inputs = tiny_model("causal", system), batch("causal")
    plain = outputs(model, inputs)
    config = some_lora(system, "causal")
    config.init_lora_weights = False
    model.add_adapter(config)
    expected = outputs(model, inputs)
    assert not torch.allclose(expected, plain)
    model.save_pretrained(tmp_path)
    other = tiny_model("causal", system)
    other.load_adapter(str(tmp_path))
    assert torch.equal(outputs(other, inputs), expected)
    other.disable_adapters()
    torch.testing.assert_close(outputs(other, inputs), plain)
