"""Gates over a pretrained model while it is trained."""

import copy
import random

import pytest
import torch
from architectures import inputs, tiny
from gated import train_at_random
from torch import nn
from transformers import Trainer, TrainingArguments

import headwise as hw

SYSTEMS = {
    "mae": {},
    "gated": {"gate_start": "neutral"},
    "moh": {"shared_heads": 1, "top_k": 1, "router_start": "neutral", "neutral": False},
}


def without_dropout(model):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("dropout", "attention_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model.train()


def labelled(model, side=None):
    given = inputs(model, random.Random(0), side=side)
    if "pixel_values" in given:
        return {**given, "labels": torch.tensor([0, 1, 0])}
    return {**given, "labels": given.get("decoder_input_ids", given.get("input_ids")).clone()}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["bert", "distilbert", "gpt2", "llama", "t5", "bart", "vit"])
def test_gradient_checkpointing_is_exact(name, reentrant):
    model = without_dropout(train_at_random(hw.gate_heads(tiny(name))))
    given = labelled(model)
    other = {k: v.flip(0) for k, v in given.items()}  # its padding is in other rows
    checkpointed = copy.deepcopy(model)
    checkpointed.gradient_checkpointing_enable({"use_reentrant": reentrant})
    for each in (model, checkpointed):
        losses = (factor * each(**batch).loss for factor, batch in ((1, given), (2, other)))
        if reentrant:  # it moves statistics in the backward pass: one pass after the other
            for loss in losses:
                loss.backward()
        else:
            sum(losses).backward()
    for (path, expected), found in zip(
        model.named_parameters(), checkpointed.parameters(), strict=True
    ):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-3, atol=1e-5, msg=path)
    for expected, found in zip(model.buffers(), checkpointed.buffers(), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("as_tuple", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_losses_of_the_system_are_added(name, checkpointing, as_tuple):
    model = hw.gate_heads(without_dropout(tiny(name)), "moh", **SYSTEMS["moh"])
    if checkpointing:
        model.gradient_checkpointing_enable()
    given = labelled(model)

    def loss(**more):
        output = model(**given, **more)
        return output[0] if as_tuple else output.loss

    options = {"return_dict": False} if as_tuple else {}
    with hw.record(model) as decisions:
        in_training = loss(**options)
    balance = sum(made[0].loss for made in decisions.values())
    gates = hw.gate_parameters(model)
    gradients = torch.autograd.grad(in_training, gates)
    model.eval()
    torch.testing.assert_close(in_training, loss(**options) + balance)
    assert balance > 0 and all(gradient.abs().sum() > 0 for gradient in gradients)


def test_gates_that_are_left_keep_their_losses():
    model = hw.gate_heads(without_dropout(tiny("t5")), "moh", **SYSTEMS["moh"])
    hw.remove_gates(model.encoder)
    given = labelled(model)
    with hw.record(model) as decisions:
        in_training = model(**given).loss
    balance = sum(made[0].loss for made in decisions.values())
    torch.testing.assert_close(in_training, model.eval()(**given).loss + balance)
    assert balance > 0
    hw.remove_gates(model)
    assert not any(each._forward_pre_hooks or each._forward_hooks for each in model.modules())


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_their_losses_are_a_mean_over_accumulated_batches(name, tmp_path):
    """A step of four batches of one row is that of one batch of the four rows, if all are alike.

    Of `BertForMaskedLM`, as it comes with transformers, it is four times that: it is told how many
    labels the step has, and does not divide by them. The ratio of its losses has to stay.
    """
    ids = torch.randint(5, 9, (8,))
    row = {"input_ids": ids, "labels": ids.clone()}
    model = hw.gate_heads(without_dropout(tiny(name)), "moh", balance_coef=5.0, **SYSTEMS["moh"])
    gradients = []
    for batches in (1, 4):
        trained = copy.deepcopy(model)
        arguments = TrainingArguments(
            tmp_path,
            max_steps=1,
            per_device_train_batch_size=4 // batches,
            gradient_accumulation_steps=batches,
            optim="sgd",
            learning_rate=1.0,
            max_grad_norm=0.0,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            save_strategy="no",
        )
        Trainer(trained, arguments, train_dataset=[row] * 4).train()
        pairs = zip(trained.parameters(), model.parameters(), strict=True)
        times = batches if name == "bert" else 1
        gradients.append([(new - old) / times for new, old in pairs])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)
    gates = [new - old for new, old in zip(*map(hw.gate_parameters, (trained, model)), strict=True)]
    assert all(change.abs().max() > 1e-3 for change in gates)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_they_are_added_to_a_smoothed_loss(name, tmp_path):
    """By `RulesMixin`: the Trainer itself computes that from the logits alone."""
    model = hw.gate_heads(without_dropout(tiny(name)), "moh", **SYSTEMS["moh"])
    arguments = TrainingArguments(tmp_path, label_smoothing_factor=0.3, use_cpu=True)
    given = labelled(model)
    labels = given["labels"][:, 1:] if name == "gpt2" else given["labels"]
    losses = [
        kind(model, arguments).compute_loss(model, dict(given), num_items_in_batch=items).detach()
        for kind in (Trainer, RulesTrainer)
        for items in (None, 2 * labels.numel())
    ]
    with hw.record(model) as decisions:
        logits = model(**given).logits
    logits = logits[:, :-1] if name == "gpt2" else logits
    smoothed = nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), label_smoothing=0.3
    )
    balance = sum(made[0].loss for made in decisions.values())
    whole = smoothed + balance
    torch.testing.assert_close(losses, [smoothed, smoothed / 2, whole, whole / 2])
    assert balance > 0


def test_reentrant_checkpointing_would_lose_their_gradient():
    model = hw.gate_heads(tiny("gpt2").train(), "moh", **SYSTEMS["moh"])
    model.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(RuntimeError, match="use_reentrant"):
        model(**labelled(model))
    with torch.no_grad():
        model(**labelled(model))


class RulesTrainer(hw.RulesMixin, Trainer):
    """transformers' Trainer, by the systems' rules."""


@pytest.mark.parametrize("method", ["block-coordinate-descent", "joint", "optimizer", None])
@pytest.mark.parametrize("frozen", [True, False])
def test_transformers_trainer(method, frozen, tmp_path):
    """`None`: a system without a rule of its own."""
    torch.manual_seed(0)
    model = tiny("gpt2").requires_grad_(not frozen)
    model = hw.gate_heads(
        model, "mae" if method else "gated", **({} if method else SYSTEMS["gated"])
    )
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    texts = torch.randint(5, 9, (16, 8))
    data = [{"input_ids": text, "labels": text} for text in texts]
    arguments = TrainingArguments(
        tmp_path, max_steps=6, learning_rate=1e-2, report_to="none", disable_tqdm=True, use_cpu=True
    )

    class Own(RulesTrainer):
        rule_settings = {"mae": {"method": method}} if method else {}

    Own(model, arguments, train_dataset=data).train()
    after = model.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    gates = {name for name in moved if "head_gates" in name}
    assert gates
    assert bool(moved - gates) == (not frozen)
