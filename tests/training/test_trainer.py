"""What the trainer does besides G and F steps: optimizer, precision, validation, epochs."""

import pytest
import torch
import torch.nn.functional as F
import toy

from headwise.training.trainer import Trainer


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
    assert "model.encoder.layers.0.self_attention.q_proj.weight" in by_decay[0.1]


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
