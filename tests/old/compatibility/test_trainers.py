"""Trainers and loops of others, which follow the systems' rules of training."""

import copy
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from compatible import compatible, tiny_model
from tiny import PAD, tokens
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

import headwise as hw
from headwise.heads.watching import UntrainedRuleWarning

TOOL = "Trainer and Lightning"
STEPS, BATCH, ACCUMULATED, EPOCH = 6, 2, 2, 3  # three steps of two batches of two are an epoch
# By the published period of five epochs, the first alone has G steps.
GATE_STEPS = EPOCH


class RulesTrainer(hw.RulesMixin, Trainer):
    pass


class RulesSeq2SeqTrainer(hw.RulesMixin, Seq2SeqTrainer):
    pass


def texts(seed: int = 0) -> list[dict[str, Tensor]]:
    torch.manual_seed(seed)
    rows = tokens(EPOCH * BATCH * ACCUMULATED, 6)
    return [{"input_ids": row, "labels": row} for row in rows]


def pairs() -> list[dict[str, Tensor]]:
    return [{**text, "labels": text["labels"].flip(0)} for text in texts()]


def options(folder: Any, **others: Any) -> dict[str, Any]:
    return {
        "output_dir": str(folder),
        "max_steps": STEPS,
        "per_device_train_batch_size": BATCH,
        "gradient_accumulation_steps": ACCUMULATED,
        "max_grad_norm": 0.1,
        "learning_rate": 0.01,
        "weight_decay": 0.1,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        **others,
    }


@contextmanager
def follows_the_rules(model: nn.Module, batches: int = ACCUMULATED) -> Iterator[None]:
    """The training within it has to be by the rules: what they say of steps and parameters holds.

    Args:
        model: a model that is to be trained for STEPS steps.
        batches: how many batches a G step reads.
    """
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    taken: list[str] = []  # the kind of step of each pass, of the first of these layers
    mixtures = [m for m in model.modules() if isinstance(m, hw.MixtureOfAttentiveExperts)]
    for first in mixtures[:1]:
        first.register_forward_pre_hook(
            lambda layer, _: taken.append(layer.step) if layer.training else None
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error", UntrainedRuleWarning)
        yield
    for name, value in model.named_parameters():
        assert not torch.equal(value, before[name]), name
    if mixtures:
        expected = {"gate": GATE_STEPS * batches, "expert": STEPS * ACCUMULATED}
        assert Counter(taken) == expected
    for module in model.modules():
        if isinstance(module, hw.BranchedAttention):
            for weights in module.learned_weights():
                assert weights.sum().item() == pytest.approx(1.0, abs=1e-6) and weights.min() >= 0


def assert_optimizer_spares(optimizer: Any, model: nn.Module) -> None:
    """The optimizer has everything but gates over experts."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    gates = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, hw.MixtureOfAttentiveExperts)
        for parameter in module.gate.parameters()
    }
    assert held == {id(parameter) for parameter in model.parameters()} - gates


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
@compatible(
    TOOL,
    "`Trainer` with `RulesMixin`: gradients accumulated and clipped, in float32 and bf16; resumed "
    "from a checkpoint it ends as if it had not been stopped",
)
def test_trainer(system, bf16, tmp_path):
    def trainer(model: nn.Module) -> RulesTrainer:
        how = options(tmp_path, bf16=bf16, save_strategy="steps", save_steps=4)
        return RulesTrainer(model, TrainingArguments(**how), train_dataset=texts())

    model, resumed = (tiny_model("causal", system) for _ in range(2))
    first = trainer(model)
    with follows_the_rules(model):
        first.train()
    assert_optimizer_spares(first.optimizer, model)
    trainer(resumed).train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    others = resumed.state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(value, others[name]), name


@compatible(
    TOOL,
    "`Seq2SeqTrainer` with `RulesMixin`, `predict_with_generate` and `compute_metrics`",
)
def test_seq2seq_trainer(system, tmp_path):
    def exact(predicted: Any) -> dict[str, float]:
        words = np.where(predicted.label_ids == -100, PAD, predicted.label_ids)
        # What is generated begins with the start symbol; both are padded to the same length.
        return {"same": float((predicted.predictions[:, 1:] == words[:, :-1]).mean())}

    model = tiny_model("seq2seq", system)
    model.generation_config.max_length = 12
    trainer = RulesSeq2SeqTrainer(
        model,
        Seq2SeqTrainingArguments(**options(tmp_path, predict_with_generate=True)),
        train_dataset=pairs(),
        eval_dataset=pairs()[:5],
        data_collator=default_data_collator,
        compute_metrics=exact,
    )
    with follows_the_rules(model):
        trainer.train()
    found = trainer.evaluate()
    assert 0 <= found["eval_same"] <= 1 and found["eval_loss"] > 0
    generated = model.generate(torch.stack([pair["input_ids"] for pair in pairs()[:5]]))
    predicted = torch.as_tensor(trainer.predict(pairs()[:5]).predictions)
    assert torch.equal(predicted[:, : generated.size(1)], generated)


@compatible(
    TOOL,
    "`Trainer` without the mixin: trains all parameters by gradients, and warns if the system has "
    "a rule",
)
def test_without_the_mixin(system, tmp_path):
    model = tiny_model("causal", system)
    trainer = Trainer(model, TrainingArguments(**options(tmp_path)), train_dataset=texts())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.train()
    warned = any(issubclass(each.category, UntrainedRuleWarning) for each in caught)
    assert warned == bool(hw.training_rules(model, STEPS).rules)


@pytest.mark.parametrize("kind", [Trainer, RulesTrainer])
@compatible(
    TOOL,
    "`label_smoothing_factor` of `Trainer`: the loss that `label_smoothing` of the model's "
    "configuration gives; what systems add to it with `RulesMixin` alone",
)
def test_label_smoothing(system, kind, tmp_path):
    model = tiny_model("causal", system).train()
    other = copy.deepcopy(model)
    other.config.label_smoothing = 0.3
    trainer = kind(model, TrainingArguments(**options(tmp_path, label_smoothing_factor=0.3)))
    rows = torch.stack([text["input_ids"] for text in texts()])
    batch = {"input_ids": rows, "labels": rows.masked_fill(rows == rows[0, 1], -100)}
    for items in (None, torch.tensor(80)):
        torch.manual_seed(1)
        found = trainer.compute_loss(model, dict(batch), num_items_in_batch=items)
        torch.manual_seed(1)
        expected = other(**batch, num_items_in_batch=items)
        torch.testing.assert_close(
            found, expected.loss if kind is RulesTrainer else expected.token_loss
        )
        assert (expected.loss > expected.token_loss) == (system in ("moa", "moh"))


@pytest.mark.parametrize("precision", ["no", "bf16"])
@compatible(TOOL, "accelerate, in a loop of one's own with `training_rules`", needs=("accelerate",))
def test_accelerate(system, precision):
    accelerate = import_module("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision)
    plain = tiny_model("causal", system).train()
    rules = hw.training_rules(plain, STEPS, steps_per_epoch=EPOCH)
    optimizer = torch.optim.AdamW(rules.parameter_groups(lr=0.01))
    loader = DataLoader(texts(), batch_size=BATCH, shuffle=True)
    model, optimizer, loader = accelerator.prepare(plain, optimizer, loader)
    with follows_the_rules(plain):
        for _ in range(STEPS // EPOCH):
            batches = list(loader)
            for some in zip(batches[::2], batches[1::2], strict=True):
                rules.before_step(lambda some=some: (model(**batch).loss / 2 for batch in some))
                with rules.step(optimizer):
                    for batch in some:
                        accelerator.backward(model(**batch).loss / 2)
                accelerator.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                rules.after_step()
                optimizer.zero_grad()
    assert_optimizer_spares(optimizer, plain)


lightning: Any = import_module("pytorch_lightning") if find_spec("pytorch_lightning") else None


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@compatible(
    TOOL,
    "Lightning with `RulesCallback`: gradients accumulated and clipped, in float32 and bf16; "
    "resumed from a checkpoint the rules go on where they were",
    needs=("pytorch_lightning",),
)
def test_lightning(system, precision, tmp_path):
    callback_class = import_module("headwise.training.lightning").RulesCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = tiny_model("causal", system)

        def training_step(self, batch: dict[str, Tensor]) -> Tensor:  # without the index
            loss: Tensor = self.model(**batch).loss
            return loss

        def configure_optimizers(self) -> Any:
            rules = hw.training_rules(self, total_steps=STEPS)
            return torch.optim.AdamW(rules.parameter_groups(lr=0.01))

    callbacks = []

    def train(module: Module, **how: Any) -> Any:
        callbacks.append(callback_class(warmup_steps=2))
        trainer = lightning.Trainer(
            accelerator="cpu",
            precision=precision,
            max_steps=STEPS,
            accumulate_grad_batches=ACCUMULATED,
            gradient_clip_val=0.1,
            callbacks=[callbacks[-1], keep],
            default_root_dir=tmp_path,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, DataLoader(texts(), batch_size=BATCH), **how)
        return trainer

    keep = lightning.callbacks.ModelCheckpoint(tmp_path, "{step}", save_top_k=-1)
    module = Module().train()
    with follows_the_rules(module, batches=1):
        trainer = train(module)
    assert_optimizer_spares(trainer.optimizers[0], module)
    moments: list[int] = []
    resumed = Module().train()
    resumed.on_before_optimizer_step = lambda _: moments.append(callbacks[-1].rules.moment.step)
    train(resumed, ckpt_path=tmp_path / f"step={EPOCH}.ckpt")
    assert moments == list(range(EPOCH, STEPS))
    moment = callbacks[-1].rules.moment
    assert (moment.warmup_steps, moment.peak_rate) == (2, 0.01)


@pytest.mark.skipif(lightning is None, reason="Lightning is not installed")
def test_the_peak_rate_is_not_that_of_a_rules_own_group():
    model = tiny_model("causal", "weighted")
    rules = hw.training_rules(model, total_steps=STEPS)
    optimizer = torch.optim.AdamW(rules.parameter_groups(lr=0.01))
    own = {id(p) for rule in rules.rules.values() for p in rule.own_group()}
    (group,) = [g for g in optimizer.param_groups if any(id(p) in own for p in g["params"])]
    group["lr"] = 0.014  # as after some steps, from a checkpoint
    callback = import_module("headwise.training.lightning").RulesCallback()
    batches = {"num_training_batches": STEPS, "accumulate_grad_batches": 1}
    trainer = SimpleNamespace(
        estimated_stepping_batches=STEPS, optimizers=[optimizer], global_step=2, **batches
    )
    callback.on_train_start(trainer, model)
    assert callback.rules.peak_rate == 0.01
