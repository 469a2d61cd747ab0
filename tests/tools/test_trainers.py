"""Trainers of others follow the papers' rules, and loggers hold the figures of a run."""

from importlib.util import find_spec

import accelerate
import pytest
import torch
from support.loops import rule_settings, train
from support.run_folders import result
from support.tiny_models import inputs, model
from support.tiny_tasks import run, write_recipe
from torch.utils.data import DataLoader
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

import headwise as hw

pytestmark = pytest.mark.nightly

SYSTEMS = ("standard", "mae", "weighted")
STEPS, BATCH = 6, 2
TEXTS = [
    {"input_ids": ids, "labels": ids} for ids in inputs("causal", STEPS * BATCH, 6)["input_ids"]
]
BATCHES = [
    {"input_ids": torch.stack([text["input_ids"] for text in TEXTS[at : at + BATCH]])}
    for at in range(0, STEPS * BATCH, BATCH)
]
RULES = {"mae": {"period": 2, "unit": "steps"}}


def weights_by_own_loop(system: str, batches: list = BATCHES) -> dict:
    made = model("causal", system).train()

    def loss(batch):
        torch.manual_seed(7)  # which experts are drawn; loaders of data draw numbers too
        yield made(**batch, labels=batch["input_ids"]).loss

    train(made, loss, batches, settings=RULES if system == "mae" else None, lr=0.01)
    return made.state_dict()


@pytest.mark.parametrize("system", SYSTEMS)
def test_lightning_ends_with_the_weights_of_the_own_loop(system, tmp_path):
    """Also when it is stopped half-way, and goes on from its checkpoint."""
    lightning = pytest.importorskip("pytorch_lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model("causal", system).train()

        def configure_optimizers(self):
            settings = RULES if system == "mae" else None
            self.rules = hw.TrainingRules(self, total_steps=STEPS, settings=settings)
            return self.rules.attach(torch.optim.AdamW(self.rules.parameter_groups(lr=0.01)))

        def on_train_batch_start(self, batch, batch_idx):
            self.rules.step = self.trainer.global_step
            self.rules.before_step(lambda: self.training_step(batch))

        def training_step(self, batch):
            torch.manual_seed(7)
            return self.model(**batch).loss

    how = {"accelerator": "cpu", "default_root_dir": tmp_path, "logger": False}
    off = ("progress_bar", "model_summary", "checkpointing")
    how |= {f"enable_{name}": False for name in off}
    half = STEPS // 2  # an epoch
    data, path = DataLoader(TEXTS[: half * BATCH], batch_size=BATCH), str(tmp_path / "half.ckpt")
    first, again = (Module().train() for _ in range(2))
    stopped = lightning.Trainer(max_epochs=1, **how)
    stopped.fit(first, data)
    stopped.save_checkpoint(path)
    lightning.Trainer(max_epochs=2, **how).fit(again, data, ckpt_path=path)
    ours = weights_by_own_loop(system, BATCHES[:half] * 2)
    for name, value in again.model.state_dict().items():
        torch.testing.assert_close(value, ours[name], msg=name)


@pytest.mark.parametrize("system", SYSTEMS)
def test_accelerate_ends_with_the_weights_of_the_own_loop(system):
    """Whose optimizer is a wrapper, with hooks of its own that nobody calls."""
    accelerator = accelerate.Accelerator(cpu=True)
    made = model("causal", system).train()
    rules = hw.TrainingRules(made, STEPS, settings=RULES if system == "mae" else None)
    groups = rules.parameter_groups(lr=0.01)
    wrapped, optimizer = accelerator.prepare(made, torch.optim.AdamW(groups))
    rules.attach(optimizer)

    def loss(batch):
        torch.manual_seed(7)
        return wrapped(**batch, labels=batch["input_ids"]).loss

    for batch in BATCHES:
        rules.before_step(lambda batch=batch: loss(batch))
        accelerator.backward(loss(batch))
        optimizer.step()
        optimizer.zero_grad()
    assert rules.step == STEPS
    ours = weights_by_own_loop(system)
    for name, value in made.state_dict().items():
        torch.testing.assert_close(value, ours[name], msg=name)


def test_sequence_to_sequence_trainer_generates_and_follows_the_rules(tmp_path):
    made = model("seq2seq", "mae").float()
    made.generation_config.max_length = 12
    rows = inputs("causal", 8, 6)["input_ids"]
    pairs = [{"input_ids": row, "labels": row.flip(0)} for row in rows]
    options = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "save_strategy": "no"}
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(tmp_path), max_steps=2, predict_with_generate=True, **options
    )
    trainer = rule_settings(Seq2SeqTrainer, RULES)(made, arguments, train_dataset=pairs)
    trainer.train()
    assert trainer.rules.step == 2
    predicted = torch.as_tensor(trainer.predict(pairs).predictions)
    generated = made.generate(rows, do_sample=False)
    assert torch.equal(predicted[:, : generated.size(1)], generated)


def test_tensorboard_has_the_figures_of_a_run(tmp_path):
    if not find_spec("tensorboard"):
        pytest.skip("tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recipe = write_recipe("translation", tmp_path, training={"report_to": ["tensorboard"]})
    done = run("train", recipe, "--system", "standard", "--output", tmp_path / "run")
    assert done.exit_code == 0, done.output
    (file,) = (tmp_path / "run").rglob("events.*")
    events = EventAccumulator(str(file)).Reload()
    expected = {
        row["step"]: row["loss"] for row in result(tmp_path / "run")["history"] if "loss" in row
    }
    found = {event.step: event.value for event in events.Scalars("loss")}
    assert found and found == pytest.approx(expected, rel=1e-5)
