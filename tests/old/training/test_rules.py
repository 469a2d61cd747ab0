"""The rules of training in the loops of others: plain PyTorch, transformers, Lightning."""

import warnings

import pytest
import torch
import toy
import transformers
from torch import nn

import headwise as hw
from headwise.heads.watching import UntrainedRuleWarning

BOTH = {"encoder_self": "mae", "decoder_cross": "weighted"}
STEPS = 12


def gates_of(model):
    """The parameters of MAE's gates, which no optimizer has."""
    return [p for name, p in model.named_parameters() if ".gate." in name]


def batches(number):
    """Batches of reversals."""
    return [toy.join(toy.Reversals(8, seed=seed).items) for seed in range(number)]


def on_simplex(model):
    layers = [m for m in model.modules() if isinstance(m, hw.BranchedAttention)]
    weights = torch.stack([w.detach() for layer in layers for w in (layer.kappa, layer.alpha)])
    return bool((weights >= 0).all()) and torch.allclose(weights.sum(-1), torch.ones(len(weights)))


def train(model, rules, lr=0.01, steps=STEPS, **options):
    """The loop of the README."""
    optimizer = torch.optim.AdamW(rules.parameter_groups(lr=lr, **options))
    for batch in batches(steps):
        rules.before_step(lambda batch=batch: model(**batch).loss)
        with rules.step(optimizer):
            model(**batch).loss.backward()
        optimizer.step()
        rules.after_step()
        optimizer.zero_grad()
    return optimizer


# In a loop of one's own


def test_several_rules_work_together():
    model = toy.model(BOTH).train()
    gates = [p.detach().clone() for p in gates_of(model)]
    rules = hw.training_rules(model, STEPS, settings={"weighted": {"learning_rate": 0.3}})
    assert set(rules.rules) == {"mae", "weighted"}
    train(model, rules)
    assert on_simplex(model)
    # Steps 0, 5 and 10 had a G step; no optimizer has the gates.
    assert any(not torch.equal(p, q) for p, q in zip(gates_of(model), gates, strict=True))
    assert all(p.requires_grad for p in model.parameters())


def test_every_parameter_is_in_one_group_or_is_moved_by_its_rule():
    model = toy.model(BOTH)
    rules = hw.training_rules(model, STEPS)
    groups = rules.parameter_groups(lr=0.1, weight_decay=0.5)
    decayed, spared, own = groups
    assert decayed["weight_decay"] == 0.5 and spared["weight_decay"] == own["weight_decay"] == 0
    ids = [id(p) for group in groups for p in group["params"]]
    gates = {id(p) for p in gates_of(model)}
    assert len(set(ids)) == len(ids) and not set(ids) & gates
    assert set(ids) | gates == {id(p) for p in model.parameters()}
    assert [p.shape for p in own["params"]] == [(4,), (4,)]


def test_g_steps_come_as_the_paper_says():
    model, seen = toy.model("mae").train(), []
    rules = hw.training_rules(model, STEPS, steps_per_epoch=2, settings={"mae": {"period": 3}})
    optimizer = torch.optim.SGD(rules.parameter_groups(lr=0.0), lr=0.0)
    (batch,) = batches(1)
    for step in range(STEPS):
        rules.before_step(lambda step=step: seen.append(step) or model(**batch).loss)
        with rules.step(optimizer):
            model(**batch).loss.backward()
        rules.after_step()
    assert seen == [0, 1, 6, 7]  # epochs 0 and 3


def test_an_accumulated_g_step_is_one_on_all_batches():
    """Two halves of a batch, their losses halved, move the gates as the whole does."""
    models = [toy.model("mae", dropout=0.0).train() for _ in range(2)]
    for model in models:
        for layer in model.modules():
            if isinstance(layer, hw.MixtureOfAttentiveExperts):
                layer.gate.dropout, layer.gate.norm.momentum = 0.0, 0.0
                layer.causal_queries = True  # running statistics, the same for every division
    whole = {name: tensor[:4] for name, tensor in toy.join(toy.Reversals(8).items[:4]).items()}
    halves = [{name: tensor[i : i + 2] for name, tensor in whole.items()} for i in (0, 2)]
    count = (whole["labels"] != -100).sum()

    def losses(model, parts):
        return (model(**part, num_items_in_batch=count).loss for part in parts)

    for model, parts in zip(models, ([whole], halves), strict=True):
        rules = hw.training_rules(model, STEPS)
        rules.before_step(lambda model=model, parts=parts: losses(model, parts))
    for one, two in zip(*map(gates_of, models), strict=True):
        torch.testing.assert_close(one, two)


def test_the_rules_rate_wins_over_a_schedule_and_a_loaded_state():
    model = toy.model({"encoder_self": "weighted"}).train()
    rules = hw.training_rules(model, 100, settings={"weighted": {"warmup_steps": 2}})
    optimizer = torch.optim.AdamW(rules.parameter_groups(lr=0.5))
    optimizer.load_state_dict(optimizer.state_dict())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    rates = []
    for batch in batches(4):
        with rules.step(optimizer):
            model(**batch).loss.backward()
        rates.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        rules.after_step()
        schedule.step()
    peak = (16 / 1) ** -0.5 * 2**-0.5
    assert [rate[-1] for rate in rates] == pytest.approx(
        [peak * min((2 / s) ** 0.5, s / 2) for s in (1, 2, 3, 4)]
    )
    assert all(rate[:-1] == [0.0, 0.0] for rate in rates)


def test_a_loop_that_goes_on_where_it_stopped():
    def rules_of(model):
        return hw.training_rules(model, STEPS, settings={"weighted": {"learning_rate": 0.1}})

    whole, first = (toy.model(BOTH, dropout=0.0).train() for _ in range(2))
    for model in (whole, first):
        for layer in model.modules():
            if isinstance(layer, hw.MixtureOfAttentiveExperts):
                layer.gate.dropout = 0.0
    torch.manual_seed(5)
    train(whole, rules_of(whole))

    torch.manual_seed(5)
    rules = rules_of(first)
    optimizer = torch.optim.AdamW(rules.parameter_groups(lr=0.01))
    for number, batch in enumerate(batches(STEPS)):
        if number == 7:
            saved = rules.state_dict(), optimizer.state_dict()
            rules = rules_of(first)
            optimizer = torch.optim.AdamW(rules.parameter_groups(lr=0.01))
            rules.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        rules.before_step(lambda batch=batch: first(**batch).loss)
        with rules.step(optimizer):
            first(**batch).loss.backward()
        optimizer.step()
        rules.after_step()
        optimizer.zero_grad()
    for one, two in zip(whole.parameters(), first.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"total_steps": 0}, "total_steps is 0, expected a positive number"),
        ({"total_steps": 5, "steps_per_epoch": 0}, "steps_per_epoch is 0"),
        ({"total_steps": 5, "settings": {"maee": {}}}, "settings name 'maee'.*did you mean 'mae'"),
        ({"total_steps": 5, "settings": {"mae": {"period": 0}}}, r"mae.period is 0"),
        ({"total_steps": 5, "settings": {"mae": {"perod": 2}}}, "'perod'.*did you mean 'period'"),
        ({"total_steps": 5, "settings": {"weighted": {"freeze_last": 6}}}, r"weighted.freeze_last"),
    ],
)
def test_wrong_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        hw.training_rules(toy.model(BOTH), **options)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda out: out.output.mean(), "loss is a Tensor, expected a function"),
        (lambda out: lambda: {"loss": out.output.mean()}, "loss gives a dict, expected a tensor"),
        (lambda out: lambda: out.output.mean().item(), "loss gives a float, expected a tensor"),
        (lambda out: lambda: None, "loss gives a NoneType, expected a tensor"),
        (lambda out: lambda: out, r"loss gives a Tensor of shape \(2, 5, 16\), expected a tensor"),
    ],
)
def test_what_is_no_loss_is_named(given, message):
    layer = hw.MixtureOfAttentiveExperts(16, 4)
    with pytest.raises(TypeError, match=message):
        hw.training_rules(layer, STEPS).before_step(given(layer(torch.randn(2, 5, 16))))


# Without its rule


def test_who_follows_the_rules_or_does_not_train_is_not_warned():
    model = toy.model(BOTH).train()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UntrainedRuleWarning)
        for batch in batches(2):
            model(**batch).loss.backward()  # gradients alone change nothing
        train(model, hw.training_rules(model, STEPS), steps=2)
        alone = toy.model({"encoder_self": "weighted"})
        for batch in batches(2):
            alone.eval()(**batch)


# Where a rule could be lost


@pytest.mark.parametrize("plan", ["mae", {"encoder_self": "weighted"}])
def test_an_optimizer_without_the_groups_of_the_rules_is_refused(plan):
    model = toy.model(plan).train()
    rules = hw.training_rules(model, STEPS)
    optimizer = torch.optim.AdamW(model.parameters())
    (batch,) = batches(1)
    with (
        pytest.raises(ValueError, match=r"optimizer has a group 0 of .* expected the groups of"),
        rules.step(optimizer),
    ):
        model(**batch).loss.backward()


def test_a_system_within_another_follows_its_rule():
    class Outer(hw.systems.System):
        def __init__(self):
            super().__init__()
            self.inner = hw.BranchedAttention(16, 4, ffn_dim=32)

    model = nn.ModuleDict({"outer": Outer()})
    assert list(hw.training_rules(model, STEPS).rules["weighted"].systems) == ["outer.inner"]


def test_the_scale_of_a_loss_does_not_move_the_gates():
    """`joint` moves the gates by the gradients of the loss, which a scaler has multiplied."""
    moved = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=1024.0)):
        model = toy.model("mae").train()
        rules = hw.training_rules(model, STEPS, settings={"mae": {"method": "joint"}})
        optimizer = torch.optim.SGD(rules.parameter_groups(lr=0.0), lr=0.0)
        torch.manual_seed(1)
        (batch,) = batches(1)
        with rules.step(optimizer, scaler):
            loss = model(**batch).loss
            (loss if scaler is None else scaler.scale(loss)).backward()
        moved.append(torch.cat([p.detach().flatten() for p in gates_of(model)]))
    torch.testing.assert_close(*moved)

    gates = gates_of(model)
    before = [gate.detach().clone() for gate in gates]
    with rules.step(optimizer, scaler):
        (scaler.scale(model(**batch).loss) * float("inf")).backward()
    assert all(torch.equal(p, q) for p, q in zip(gates, before, strict=True))


def test_a_gate_that_the_loss_does_not_need_stays():
    used, unused = (hw.MixtureOfAttentiveExperts(16, 4) for _ in range(2))
    rules = hw.training_rules(nn.ModuleList([used, unused]).train(), STEPS)
    before = [p.detach().clone() for layer in (used, unused) for p in layer.gate.parameters()]
    x = torch.randn(4, 5, 16)
    rules.before_step(lambda: used(x).output.square().mean())
    after = [p.detach() for layer in (used, unused) for p in layer.gate.parameters()]
    same = [torch.equal(p, q) for p, q in zip(before, after, strict=True)]
    half = len(same) // 2
    assert not all(same[:half]) and all(same[half:])


class Half(hw.BranchedAttention):
    """A subclass, which has its settings under its own name too."""


Renamed = Half


@pytest.mark.parametrize("name", ["weighted", f"{__name__}:Half", f"{__name__}:Renamed"])
def test_settings_have_the_name_of_any_system_with_the_rule(name):
    layer = Half(16, 4, ffn_dim=32)
    rules = hw.training_rules(layer, STEPS, settings={name: {"warmup_steps": 7}})
    assert rules.rules["weighted"].settings.warmup_steps == 7


# In transformers' Trainer


class PlainTrainer(hw.RulesMixin, transformers.Trainer):
    rule_settings = {"weighted": {"learning_rate": 0.3, "freeze_last": 0}}  # noqa: RUF012


def arguments(folder, **options):
    return transformers.TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        per_device_train_batch_size=8,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        save_strategy="no",
        learning_rate=0.01,
        **{"max_steps": STEPS, **options},
    )


def test_the_mixin_refuses_settings_of_a_system_that_the_model_does_not_have(tmp_path):
    with pytest.raises(ValueError, match=r"settings name 'weighted', expected one of .*: mae"):
        PlainTrainer(toy.model("mae"), arguments(tmp_path), train_dataset=toy.Reversals(4))


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_mixin_keeps_the_rules_in_a_plain_trainer(tmp_path, accumulation):
    model = toy.model(BOTH)
    gates = [p.detach().clone() for p in gates_of(model)]
    trainer = PlainTrainer(
        model,
        arguments(tmp_path, gradient_accumulation_steps=accumulation),
        train_dataset=toy.Reversals(40),
        data_collator=toy.join,
    )
    trainer.train()
    assert trainer.state.global_step == STEPS
    assert on_simplex(model)
    assert any(not torch.equal(p, q) for p, q in zip(gates_of(model), gates, strict=True))
    known = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert not known & {id(p) for p in gates_of(model)}


def test_a_model_made_anew_is_the_one_that_is_trained(tmp_path):
    trainer = PlainTrainer(
        model_init=lambda: toy.model(BOTH),
        args=arguments(tmp_path),
        train_dataset=toy.Reversals(40),
        data_collator=toy.join,
    )
    first = trainer.model
    trainer.train()
    known = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    gates = {id(p) for p in gates_of(trainer.model)}
    assert trainer.model is not first
    assert known | gates == {id(p) for p in trainer.model.parameters()}
    assert on_simplex(trainer.model)


# In Lightning


def lightning_module(lightning):
    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = toy.model(BOTH)

        def training_step(self, batch, batch_idx):
            return self.model(**batch).loss if batch_idx != 2 else None

        def configure_optimizers(self):
            rules = hw.training_rules(self, total_steps=STEPS)
            return torch.optim.AdamW(rules.parameter_groups(lr=0.01))

    return Module()


def lightning_trainer(lightning, folder, callback, **options):
    return lightning.Trainer(
        accelerator="cpu",
        callbacks=[callback],
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def reversals():
    return torch.utils.data.DataLoader(toy.Reversals(40), batch_size=8, collate_fn=toy.join)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_lightning_keeps_the_rules(tmp_path, accumulation):
    lightning = pytest.importorskip("pytorch_lightning")
    from headwise.training.lightning import RulesCallback

    module = lightning_module(lightning)
    gates = [p.detach().clone() for p in gates_of(module)]
    callback = RulesCallback({"weighted": {"learning_rate": 0.3, "freeze_last": 0}})
    options = {"max_steps": STEPS, "accumulate_grad_batches": accumulation}
    lightning_trainer(lightning, tmp_path, callback, **options).fit(module, reversals())
    assert callback.rules.moment.step == STEPS
    # Five batches an epoch; the last step of an epoch may accumulate fewer than the others.
    assert callback.rules.steps_per_epoch == {1: 5, 2: 3}[accumulation]
    assert on_simplex(module)
    assert any(not torch.equal(p, q) for p, q in zip(gates_of(module), gates, strict=True))


def test_lightning_without_an_end_is_refused(tmp_path):
    lightning = pytest.importorskip("pytorch_lightning")
    from headwise.training.lightning import RulesCallback

    trainer = lightning_trainer(lightning, tmp_path, RulesCallback(), max_epochs=-1)
    with pytest.raises(ValueError, match="give it max_steps"):
        trainer.fit(lightning_module(lightning), reversals())
