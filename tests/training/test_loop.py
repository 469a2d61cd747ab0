"""The loop of training: its steps, its losses, its learning rate, and what is kept in the end."""

import math
import signal
from itertools import accumulate

import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from support import toy_training as toy
from torch import Tensor

import headwise as hw
from headwise.models.inspect import find_systems, layer_label
from headwise.training.console import StopSignal, last_progress

SMOOTHING = 0.1  # of the models' configuration, in training alone
MOA = {"system": "moa", "size": "2K4E8D", "balance_coef": 5.0}
# Each example is a training, and smaller ones are no easier to read.
FEW = settings(max_examples=settings().max_examples // 2, phases=[Phase.explicit, Phase.generate])


def factor(schedule: str, step: int, warmup: int, total: int) -> float:
    """The learning rate of a step, from 1, over the highest one; `warmup` is at least 1."""
    if step <= warmup:
        return step / warmup
    done = (step - warmup) / (total + 1 - warmup)
    return {
        "inverse-sqrt": warmup**0.5 * step**-0.5,  # of Vaswani et al. 2017, section 5.3
        "linear": 1 - done,
        "cosine": (1 + math.cos(math.pi * done)) / 2,
        "constant": 1.0,
    }[schedule]


def summed_loss(model, batch: dict[str, Tensor], smoothing: float = 0.0) -> Tensor:
    logits = model(**batch).logits.flatten(0, 1)
    options = {"label_smoothing": smoothing, "reduction": "sum"}
    return F.cross_entropy(logits, batch["labels"].flatten(), **options)


def count(batch: dict[str, Tensor]) -> int:
    return int((batch["labels"] != -100).sum())


def mean_loss(model, items) -> float:
    """Over all labels of some items, each computed by itself."""
    model.eval()
    with torch.no_grad():
        batches = [toy.join([item]) for item in items]
        total = sum(float(summed_loss(model, batch)) for batch in batches)
        return total / sum(map(count, batches))


class RecordingCollate:
    """A collate function that keeps the batches of what is trained on."""

    def __init__(self) -> None:
        self.data = toy.Reversals()
        self.batches: list[list[int]] = []

    def __call__(self, items):
        if items[0]["of"] is self.data:
            self.batches.append([item["index"] for item in items])
        return toy.join(items)


def make_optimizer(model, recipe: dict) -> torch.optim.Optimizer:
    """Matrices and embeddings are decayed, and what has one dimension is not."""
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": recipe["decay"]},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    if recipe["optimizer"] == "nesterov":
        return torch.optim.SGD(groups, lr=1.0, momentum=recipe["momentum"], nesterov=True)
    return torch.optim.AdamW(groups, betas=recipe["betas"], eps=1e-6)


# --- a step -----------------------------------------------------------------------------------

RECIPES = st.fixed_dictionaries(
    {
        "schedule": st.sampled_from(["inverse-sqrt", "linear", "cosine", "constant"]),
        "warmup": st.integers(1, 3),
        "steps": st.integers(1, 5),
        "accumulation": st.integers(1, 2),
        "clip": st.sampled_from([0.0, 0.3]),
        "decay": st.sampled_from([0.0, 0.4]),
        "optimizer": st.sampled_from(["adam", "nesterov"]),
        "betas": st.sampled_from([(0.9, 0.98), (0.5, 0.7)]),
        "momentum": st.sampled_from([0.5, 0.9]),
        "precomputed": st.booleans(),
    }
)
ALL = {"schedule": "cosine", "warmup": 2, "steps": 5, "accumulation": 2, "clip": 0.3, "decay": 0.4}
ALL |= {"optimizer": "adam", "betas": (0.5, 0.7), "momentum": 0.5, "precomputed": True}


@FEW
@given(RECIPES)
@example(ALL)
def test_training_takes_the_steps_of_a_plain_loop(tmp_path_factory, recipe):
    """Weights, losses and learning rates; a step of several batches is one of all their labels."""
    collate, steps, lr = RecordingCollate(), recipe["steps"], 0.05
    run = toy.train(
        tmp_path_factory.mktemp("run"),
        data=(collate.data, toy.Reversals(12, seed=1)),
        collate=collate,
        schedule=recipe["schedule"],
        warmup_steps=recipe["warmup"],
        max_steps=steps,
        evaluate_every=steps,
        gradient_accumulation=recipe["accumulation"],
        clip_norm=recipe["clip"],
        weight_decay=recipe["decay"],
        optimizer=recipe["optimizer"],
        adam_betas=recipe["betas"],
        adam_epsilon=1e-6,
        momentum=recipe["momentum"],
        learning_rate=lr,
        gradient_checkpointing=recipe["precomputed"],
    )
    model = toy.model()
    optimizer = make_optimizer(model, recipe)
    batches = [toy.join([collate.data[i] for i in batch]) for batch in collate.batches]
    assert len(batches) < 4 or len(set(map(count, batches))) > 1  # a mean of means would show
    for step in range(1, steps + 1):
        group = batches[(step - 1) * recipe["accumulation"] : step * recipe["accumulation"]]
        model.train()
        loss = sum(summed_loss(model, batch, SMOOTHING) for batch in group)
        loss = loss / sum(map(count, group))
        loss.backward()
        if recipe["clip"]:
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe["clip"])
        rate = lr * factor(recipe["schedule"], step, recipe["warmup"], steps)
        for parameter_group in optimizer.param_groups:
            parameter_group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        assert run.rates[step - 1] == pytest.approx(rate, rel=1e-12)
        assert run.losses[step] == pytest.approx(float(loss.detach()), rel=1e-6)  # in float32
        for name, weight in model.state_dict().items():
            torch.testing.assert_close(
                run.weights[step - 1][name], weight, rtol=1e-7, atol=1e-9, msg=f"{step} {name}"
            )
    assert run.validations == {steps: pytest.approx(mean_loss(model, toy.Reversals(12, seed=1)))}


@pytest.mark.parametrize("system", ["mae", "weighted"])
def test_what_a_rule_moves_at_its_own_rate_is_not_clipped(tmp_path, system):
    """Jointly trained gates of MAE then learn as in G steps, which nothing clips."""
    options = {"max_steps": 1, "rules": {"mae": {"method": "joint"}}, "final_model": "last"}
    free, clipped = (
        toy.train(tmp_path / str(norm), toy.model(system), clip_norm=norm, **options)
        for norm in (0.0, 1e-12)
    )
    start, own = toy.model(system).state_dict(), 0
    for name, weight in clipped.model.state_dict().items():
        if "gate." in name or name.endswith((".alpha", ".kappa")):
            torch.testing.assert_close(weight, free.model.state_dict()[name])
            own += not torch.equal(weight, start[name])
    assert own


def test_losses_that_systems_add_count_once_whatever_is_accumulated(tmp_path):
    collate = RecordingCollate()
    model = toy.model({"encoder_self": MOA})
    data = (collate.data, toy.Reversals(12, seed=1))
    options = {"gradient_accumulation": 3, "max_steps": 1}
    loss = toy.train(tmp_path, model, data=data, collate=collate, **options).losses[1]
    batches = [toy.join([collate.data[i] for i in batch]) for batch in collate.batches[:3]]
    model = toy.model({"encoder_self": MOA}).train()
    outputs = [model(**batch) for batch in batches]
    total = sum(float(summed_loss(model, batch, SMOOTHING).detach()) for batch in batches)
    added = sum(float(out.auxiliary_loss.detach()) for out in outputs) / 3
    assert added > 1
    assert loss == pytest.approx(total / sum(map(count, batches)) + added, rel=1e-6)


def test_gates_take_their_steps_on_all_batches_that_are_accumulated(tmp_path):
    collate, plan = RecordingCollate(), {"encoder_self": {"system": "mae", "gate_dropout": 0.0}}
    model, rules = toy.model(plan), {"mae": {"unit": "steps", "learning_rate": 0.5}}
    data = (collate.data, toy.Reversals(12, seed=1))
    options = {"gradient_accumulation": 2, "max_steps": 1, "rules": rules}
    weights = toy.train(tmp_path, model, data=data, collate=collate, **options).weights[0]
    batches = [toy.join([collate.data[i] for i in batch]) for batch in collate.batches[:2]]
    model = toy.model(plan).train()
    sum(summed_loss(model, batch, SMOOTHING) for batch in batches).backward()
    for name, weight in model.named_parameters():
        if ".gate." in name:
            expected = weight - 0.5 * weight.grad / sum(map(count, batches))
            torch.testing.assert_close(weights[name], expected.detach(), rtol=1e-7, atol=1e-9)


def test_half_precision_is_near_and_its_weights_are_not_halved(tmp_path):
    """On a processor, `auto` is float32, to the bit."""
    runs = {
        name: toy.train(tmp_path / name, toy.model().float(), precision=name, max_steps=3)
        for name in ("float32", "auto", "bf16")
    }
    assert all(weight.dtype != torch.bfloat16 for weight in runs["bf16"].weights[-1].values())
    whole, half = runs["float32"].losses, runs["bf16"].losses
    assert whole != half and list(whole.values()) == pytest.approx(list(half.values()), rel=0.02)
    if not torch.cuda.is_available():
        assert runs["auto"].losses == whole


@pytest.mark.parametrize("part", ["gates", "gates+output", "nothing"])
def test_what_is_not_trained_stays_to_the_bit(tmp_path, part):
    model = toy.model("gated")
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    learning = [] if part == "nothing" else hw.gate_parameters(model)
    learning = [*learning, *(hw.output_parameters(model) if part == "gates+output" else [])]
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    run = toy.train(
        tmp_path, model, trainable=part, max_steps=3, final_model="last", weight_decay=0.1
    )
    after = run.model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {names[id(parameter)] for parameter in learning}
    assert run.steps == (0 if part == "nothing" else 3)


# --- batches, validations and records ---------------------------------------------------------


def test_epochs_are_steps_that_are_logged_and_validated(tmp_path):
    collate = RecordingCollate()
    data = (collate.data, toy.Reversals(12, seed=1))
    options = {"max_steps": None, "epochs": 2.5, "evaluate_every": 10, "log_every": 7}
    run = toy.train(tmp_path, data=data, collate=collate, **options)
    epoch = list(accumulate(map(len, collate.batches))).index(80) + 1
    assert run.steps == math.ceil(2.5 * epoch)
    # The last step is validated wherever it falls; training losses are means since the last one.
    assert list(run.validations) == [*range(10, run.steps, 10), run.steps]
    assert list(run.losses) == list(range(7, run.steps + 1, 7))


def test_a_plateau_lowers_the_rate_after_its_patience(tmp_path):
    """An equal loss is no better one; after a fall the patience starts anew."""
    plateau = {"patience": 2, "factor": 0.1}
    options = {"schedule": "plateau", "plateau": plateau, "learning_rate": 0.3, "warmup_steps": 3}
    run = toy.train(tmp_path, evaluate_every=2, max_steps=20, **options)
    expected, scale, best, waited = [], 1.0, math.inf, 0
    for step, loss in run.validations.items():
        expected.append(0.3 * scale * min(1.0, step / 3))  # by then the one before has its effect
        waited = 0 if loss < best else waited + 1
        best = min(best, loss)
        if waited == 2:
            scale, waited = 0.1 * scale, 0
    assert run.rates[1::2] == pytest.approx(expected)
    assert expected[-1] <= 0.03  # it did fall


# --- the end ----------------------------------------------------------------------------------


def other_task() -> tuple[toy.Reversals, toy.Reversals]:
    """Data whose validation loss is lowest early: what is learned later is another task."""
    data = toy.Reversals(40)
    for item in data.items:
        item["labels"] = [3] * (len(item["labels"]) - 1) + [2]
    return data, toy.Reversals(12)


WORSE = {"learning_rate": 0.03, "schedule": "constant", "warmup_steps": 1, "keep_checkpoints": 2}


@pytest.mark.parametrize(("final", "patience"), [("best", None), ("last", 2), ("average", 3)])
def test_the_final_model_is_of_the_steps_that_were_asked_for(tmp_path, final, patience):
    """Also of a training that is stopped early: after so many validations without a better loss."""
    options = {**WORSE, "max_steps": 14, "patience": patience, "final_model": final}
    run = toy.train(tmp_path, data=other_task(), **options)
    best = min(run.validations, key=run.validations.get)
    assert run.best_step == best
    assert run.steps == (14 if patience is None else best + 2 * patience)
    assert best < run.steps <= 14 and ("stopped early" in run.said) == (run.steps < 14)
    kept = {"best": [best], "last": [run.steps], "average": [run.steps - 2, run.steps]}[final]
    for name, weight in run.model.state_dict().items():
        mean = torch.stack([run.weights[step - 1][name] for step in kept]).mean(0)
        bound = 1e-6 if final == "average" else 0  # a mean is kept in float32
        torch.testing.assert_close(weight, mean.to(weight.dtype), rtol=bound, atol=bound)
    written = hw.Seq2SeqLM.from_pretrained(tmp_path / "model").state_dict()
    assert all(torch.equal(written[name], x) for name, x in run.model.state_dict().items())


def test_a_training_that_diverges_ends_and_says_what_to_try(tmp_path):
    options = {"learning_rate": 1e30, "warmup_steps": 0, "schedule": "constant", "max_steps": 8}
    run = toy.train(tmp_path, toy.model().float(), **options)
    assert (run.steps, run.best_step) == (2, None)
    assert not math.isfinite(run.validations[2])
    for name in ("nan", "2 of 8", "learning_rate", "warmup_steps", "clip_norm"):
        assert name in run.said
    again = toy.train(tmp_path, toy.model().float(), **options)  # it is finished
    assert again.weights == [] and again.steps == 2 and "learning_rate" in again.said


# --- who watches ------------------------------------------------------------------------------


def test_other_processes_see_how_far_a_training_is(tmp_path):
    run, progress = toy.train(tmp_path), last_progress(tmp_path)
    assert (progress["step"], progress["total"]) == (6, 6)
    assert progress["eval_loss"] == run.validations[6]
    assert last_progress(tmp_path / "model") is None


def test_a_logger_that_is_not_installed_is_an_error_before_any_work(tmp_path):
    with pytest.raises(ValueError, match=r"report_to names clearml, .*pip install clearml"):
        toy.train(tmp_path, report_to=["clearml"])
    assert not list(tmp_path.iterdir())


def test_a_second_signal_acts_at_once():
    with StopSignal() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.came
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_training_goes_on_as_if_nobody_measured(tmp_path):
    """What measures may draw and switch modes; it does so before the first step too."""

    def measure(model) -> dict[str, float]:
        return {"draw": float(torch.rand(())), "training": float(model.training)}

    plain = toy.train(tmp_path / "plain", toy.model(dropout=0.2))
    measured = toy.train(tmp_path / "measured", toy.model(dropout=0.2), measure=measure)
    assert measured.losses == plain.losses and measured.validations == plain.validations
    rows = [row for row in measured.history if "draw" in row]
    assert [row["step"] for row in rows] == [0, 2, 4, 6]
    assert ["eval_loss" in row for row in rows] == [False, True, True, True]
    assert all(row["training"] == 0.0 for row in rows)


def test_what_a_rule_follows_is_recorded_of_each_unit(tmp_path):
    run = toy.train(tmp_path, toy.model("weighted"))
    by_path = find_systems(run.model).items()
    places = {layer_label(path, system) for path, system in by_path if system.rule is not None}
    followed = [row for row in run.history if any(key.startswith("alpha") for key in row)]
    assert followed[0]["step"] == 0 and followed[-1]["step"] == run.steps
    for row in followed:
        names = {key.rpartition("/")[0] for key in row if "/" in key}
        assert names == {f"{weight} {place}" for weight in ("alpha", "kappa") for place in places}
        for name in names:  # a point of the simplex
            total = sum(x for key, x in row.items() if key.startswith(f"{name}/"))
            assert total == pytest.approx(1)
    assert followed[0] != {**followed[-1], "step": 0}


def test_rules_that_are_attached_anew_leave_no_hook_of_the_former():
    model = toy.model("weighted")
    rules = hw.TrainingRules(model, total_steps=3)
    optimizer = torch.optim.AdamW(rules.parameter_groups(lr=1e-3))
    for again in (rules, hw.TrainingRules(model, total_steps=3), rules):
        again.attach(optimizer)
        (rule,) = again.rules.values()
        hooks = [p._post_accumulate_grad_hooks for p in rule.own_group()]  # noqa: SLF001
        assert list(map(len, hooks)) == [1] * len(hooks) and hooks
