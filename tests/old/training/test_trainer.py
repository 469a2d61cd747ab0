"""What the trainer does besides G and F steps: optimizer, precision, validation, epochs."""

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import toy

from headwise.heads.mae import GateSettings
from headwise.training import trainer as training
from headwise.training.trainer import Trainer

IN_TURNS = {"mae": GateSettings(period=2, unit="steps", learning_rate=0.5)}
AGAIN = {
    **toy.PLANS,
    **{name: name for name in ("weighted", "agreement", "moh")},
    "tim": {"encoder_self": {"system": "tim", "layers": [0]}},
}


def trainer(folder, network, **options):
    data = (toy.Reversals(40), toy.Reversals(8, seed=1))
    return Trainer(network, *data, toy.join, toy.settings(**options), folder, console=toy.quiet())


def losses(run, kind="loss"):
    return [loss for _, name, loss in toy.curve(run) if name == kind]


def test_the_first_loss_is_that_of_the_first_batch(tmp_path):
    """Label-smoothed cross entropy per label, over all batches of the step."""
    network = toy.model(dropout=0.0)
    how = {"gradient_accumulation": 2, "max_steps": 1}
    made = trainer(tmp_path, network, **how)
    batches = list(made.get_train_dataloader())[:2]
    total, labels = 0.0, 0
    with torch.no_grad():
        for batch in batches:
            logits = network(**batch).logits.flatten(0, 1)
            total += float(
                F.cross_entropy(
                    logits, batch["labels"].flatten(), label_smoothing=0.1, reduction="sum"
                )
            )
            labels += int((batch["labels"] != -100).sum())
    made.train()
    found = [record["loss"] for record in made.state.log_history if "loss" in record]
    assert found == [pytest.approx(total / labels, rel=1e-5)]


def test_auxiliary_losses_count_once_whatever_is_accumulated(tmp_path):
    network = toy.model({"encoder_self": toy.MOA | {"balance_coef": 5.0}}, dropout=0.0)
    made = trainer(tmp_path, network, gradient_accumulation=3, max_steps=1)
    batches = list(made.get_train_dataloader())[:3]
    with torch.no_grad():
        network.train()
        outputs = [network(**batch) for batch in batches]
    counts = [int((batch["labels"] != -100).sum()) for batch in batches]
    tokens = sum(float(o.token_loss) * n for o, n in zip(outputs, counts, strict=True))
    auxiliary = sum(float(o.auxiliary_loss) for o in outputs) / 3
    assert auxiliary > 1
    made.train()
    (found,) = [record["loss"] for record in made.state.log_history if "loss" in record]
    assert found == pytest.approx(tokens / sum(counts) + auxiliary, rel=1e-5)


def test_weight_decay_spares_biases_norms_and_gates(tmp_path):
    network = toy.model("mae")
    optimizer = trainer(tmp_path, network, weight_decay=0.1).create_optimizer()
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    by_decay = {
        group["weight_decay"]: {names[id(p)] for p in group["params"]}
        for group in optimizer.param_groups
    }
    assert not any("bias" in n or "norm" in n or ".gate." in n for n in by_decay[0.1])
    assert all("bias" in n or "norm" in n for n in by_decay[0.0])
    assert "encoder.layers.0.self_attention.q_proj.weight" in by_decay[0.1]


def test_settings_reach_the_optimizer(tmp_path):
    options = {"adam_betas": (0.8, 0.7), "adam_epsilon": 1e-5, "learning_rate": 0.25}
    options["clip_norm"] = 0.5
    made = trainer(tmp_path, toy.model(), warmup_steps=4, **options)
    optimizer = made.create_optimizer()
    scheduler = made.create_scheduler(12, optimizer)
    for group in optimizer.param_groups:
        assert (group["betas"], group["eps"]) == ((0.8, 0.7), 1e-5)
    assert made.args.max_grad_norm == 0.5
    assert scheduler.get_last_lr() == [0.25 / 4] * len(optimizer.param_groups)


def test_epochs_in_place_of_steps(tmp_path):
    run = toy.train(tmp_path, toy.model(), toy.settings(max_steps=None, epochs=1.4))
    assert run.steps == 7  # of 5 batches an epoch
    assert [step for step, kind, _ in toy.curve(run) if kind == "eval_loss"] == [4, 7]


def test_the_last_step_is_validated_and_saved_wherever_it_falls(tmp_path):
    run = toy.train(tmp_path, toy.model(), toy.settings(max_steps=6, evaluate_every=4))
    assert [step for step, kind, _ in toy.curve(run) if kind == "eval_loss"] == [4, 6]
    assert (tmp_path / "checkpoint-6").is_dir()


@pytest.mark.parametrize("plan", toy.PLANS)
def test_half_precision_takes_nearly_the_same_course(tmp_path, plan):
    courses = [
        losses(
            toy.train(
                tmp_path / precision,
                toy.model(toy.PLANS[plan], dropout=0.0),
                toy.settings(precision=precision, max_steps=4),
            )
        )
        for precision in ("float32", "bf16")
    ]
    assert courses[0] != courses[1]
    assert courses[0][0] == pytest.approx(courses[1][0], rel=0.02)
    if plan == "standard":  # choices of experts may tip
        assert courses[0] == pytest.approx(courses[1], rel=0.02)


@pytest.mark.parametrize("has_bf16", [False, True])
def test_precision_is_bf16_where_the_gpu_has_it(monkeypatch, tmp_path, has_bf16):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bf16)
    assert [
        training._is_bf16(toy.settings(precision=precision))
        for precision in ("auto", "float32", "tf32", "bf16")
    ] == [has_bf16, False, False, True]


@pytest.mark.parametrize("precision", ["auto", "tf32"])
def test_a_cpu_computes_in_float32(tmp_path, precision):
    runs = [
        toy.train(tmp_path / name, toy.model("mae"), toy.settings(precision=name, max_steps=4))
        for name in (precision, "float32")
    ]
    toy.assert_same(*runs)


@pytest.mark.parametrize("plan", AGAIN)
def test_layers_that_are_computed_again_change_nothing(tmp_path, plan):
    how = {"max_steps": 4, **(IN_TURNS if plan == "mae" else {}), "gradient_accumulation": 2}
    runs = [
        toy.train(
            tmp_path / str(again),
            toy.model(AGAIN[plan]),
            toy.settings(gradient_checkpointing=again, **how),
        )
        for again in (False, True)
    ]
    toy.assert_same(*runs)


def test_a_folder_whose_name_begins_with_a_tilde_is_no_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    toy.train(Path("~/run"), toy.model(), toy.settings(max_steps=2, evaluate_every=2))
    assert (tmp_path / "~" / "run" / "model").is_dir() and not (tmp_path / "home").exists()


def test_layers_are_computed_again_in_the_backward_pass(tmp_path):
    network = toy.model()
    passes = []
    network.encoder.layers[0].self_attention.register_forward_hook(lambda *_: passes.append(1))
    toy.train(tmp_path, network, toy.settings(gradient_checkpointing=True, max_steps=1))
    in_training = 2
    assert len(passes) == in_training + len(list(trainer(tmp_path, network).get_eval_dataloader()))


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["mae", "moa", "weighted"])
def test_a_compiled_model_takes_the_same_course(monkeypatch, tmp_path, plan):
    """By a compiler that rounds as PyTorch does, so that losses have to be equal."""
    arguments = partial(training.TrainingArguments, torch_compile_backend="aot_eager")
    runs = []
    for compiled in (False, True):
        if compiled:
            monkeypatch.setattr(training, "TrainingArguments", arguments)
        how = toy.settings(compile=compiled, max_steps=4, **(IN_TURNS if plan == "mae" else {}))
        runs.append(toy.train(tmp_path / str(compiled), toy.model(toy.PLANS.get(plan, plan)), how))
    toy.assert_same(*runs)
