"""The papers' rules of training: MAE's gates and experts in turn, κ and α on the simplex."""

import copy
import os
import warnings
from itertools import combinations

import pytest
import torch
import transformers
from hypothesis import example, given
from hypothesis import strategies as st
from support import loops
from support.forms import build, inputs
from support.processes import on_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import headwise as hw
from headwise.heads.rules import TrainingWarning
from headwise.ops.replicas import full_tensor

RATE = 0.7
STEPS = {"period": 1, "unit": "steps"}


def squares(model):
    """A loss that gives every parameter a gradient; it counts its calls in `taken`."""

    def compute_losses(x):
        compute_losses.taken += 1
        yield (model(x).output - x).square().mean()

    compute_losses.taken = 0
    return compute_losses


def values(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def moved(before, after):
    return {name for name in before if not torch.equal(before[name], after[name])}


def watched(model, compute_losses, batches, **options):
    """For each step: how often the loss was asked for, what moved in it before, and what later."""
    steps, moments = [], {}

    def see(moment):
        moments[moment] = values(model), compute_losses.taken
        if moment == "step":
            (start, first), (middle, _), (end, last) = moments.values()
            steps.append((last - first, moved(start, middle), moved(middle, end)))

    trained = loops.train(model, compute_losses, batches, seen=see, **options)
    return steps, trained


# --- MAE: which steps -------------------------------------------------------------------------


def held(**options):
    """MAE in a module, and by itself."""
    layer = build("mae", train=True, **options)
    return nn.ModuleDict({"layer": layer}), layer


@pytest.mark.parametrize(
    ("settings", "epoch", "expected"),
    [
        ({}, 2, "GGFFFFFFFFGG"),
        ({"period": 2}, 3, "GGGFFFGGGFFF"),
        ({"period": 2}, 7 / 3, "GGGFFGGFFFGG"),  # 7 batches, of which a step accumulates 3
        ({"period": 3, "unit": "steps"}, 2, "GFFGFFGFFGFF"),
        ({"period": 4}, None, "GFFFGFFFGFFF"),  # of unknown epochs, steps are counted
        ({"method": "joint"}, 2, "F" * 12),
        ("uniform", 1, "F" * 12),  # gates that there are not need no steps
    ],
)
def test_gates_and_experts_take_turns(settings, epoch, expected):
    """A G step goes before the F step in every period-th epoch or step, counted from the first."""
    uniform = settings == "uniform"
    model, layer = held(**({"gate": "uniform"} if uniform else {}))
    settings = {"mae": STEPS if uniform else settings}
    steps, _ = watched(
        model, squares(layer), [inputs()] * 12, steps_per_epoch=epoch, settings=settings
    )
    assert "".join("FG"[times - 1] for times, *_ in steps) == expected


def test_a_g_step_moves_the_gates_alone_and_an_f_step_all_else():
    model, layer = held()
    names, gates = set(values(model)), {n for n in values(model) if ".gate." in n}
    learned = {n for n in names if n not in dict(model.named_buffers())}
    batches, losses, learning = [inputs() for _ in range(4)], squares(layer), []

    def compute_losses(x):
        learning.append({n for n, p in model.named_parameters() if p.requires_grad})
        yield from losses(x)
        compute_losses.taken = losses.taken

    compute_losses.taken = 0
    steps, trained = watched(model, compute_losses, batches, settings={"mae": STEPS})
    assert learning == 4 * [gates & learned, learned]  # a G step has no graph of anything else
    for times, by_g, by_f in steps:
        # A shift of what is normalised, or of all keys, changes no softmax.
        assert times == 2 and {n for n in gates if n.endswith("weight")} <= by_g <= gates
        assert by_f >= {n for n in learned - gates if "k_proj.bias" not in n}
        assert not by_f & gates  # nor the statistics of the gate
    known = {id(p) for group in trained.optimizer.param_groups for p in group["params"]}
    assert known == {id(p) for n, p in model.named_parameters() if n not in gates}


@pytest.mark.parametrize("parts", [1, 2])
def test_a_g_step_is_gradient_descent_on_the_mixture(parts):
    """Without momentum: two steps of one gradient move the gates by twice as much."""
    model, layer = held()
    layer.gate.norm.momentum = 0.0  # running statistics, by which causal gates are normalised
    twin, x = copy.deepcopy(layer), inputs(4)

    def compute_losses(x):
        for part in x.chunk(parts):
            yield (layer(part, is_causal=True).output - part).square().mean() / parts

    expected, gates = [], []
    for _ in range(2):
        loss = (twin(x, is_causal=True).output - x).square().mean()
        weights = list(twin.gate.parameters())
        with torch.no_grad():
            for weight, slope in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                weight -= RATE * slope
        expected.append([weight.detach().clone() for weight in weights])

    def see(moment):
        if moment == "gates":
            gates.append([weight.detach().clone() for weight in layer.gate.parameters()])

    settings = {"mae": {**STEPS, "learning_rate": RATE}}
    loops.train(model, compute_losses, [x, x], lr=0.0, settings=settings, seen=see)
    torch.testing.assert_close(gates, expected)


@pytest.mark.parametrize("frozen", ["all but the gates", "the gates", "joint"])
def test_what_is_frozen_takes_no_turn(frozen):
    """Of gates alone (the paper's FTG) each step is a G step, of experts alone an F step."""
    model, layer = held()
    for name, parameter in model.named_parameters():
        if frozen != "joint":
            parameter.requires_grad_((".gate." in name) == (frozen == "all but the gates"))
    twin, x, compute_losses = copy.deepcopy(layer), inputs(), squares(layer)
    method = {"method": "joint"} if frozen == "joint" else STEPS
    settings = {"mae": {**method, "learning_rate": RATE}}
    (step,), _ = watched(model, compute_losses, [x], settings=settings)
    assert step[0] == 1 and not step[1]
    gates, after = {n for n in values(model) if ".gate." in n}, values(model)
    learned = {n for n, p in model.named_parameters() if p.requires_grad and "k_proj.bias" not in n}
    assert {n for n in learned if "norm.bias" not in n} <= step[2]
    if frozen == "the gates":
        assert not step[2] & gates
        return
    assert frozen == "joint" or step[2] <= gates
    (twin(x).output - x).square().mean().backward()
    for name, weight in twin.gate.named_parameters():
        torch.testing.assert_close(after[f"layer.gate.{name}"], weight - RATE * weight.grad)


# --- MAE: what an F step draws ----------------------------------------------------------------


def telling(**options):
    """MAE whose output is how much each head counts, and whose gates are the same everywhere."""
    layer = build("mae", 4, train=True, drawn=False, **options)
    with torch.no_grad():
        for projection in (layer.v_proj, layer.out_proj):
            projection.weight.zero_()
            projection.bias.zero_()
        layer.v_proj.bias.fill_(1)
        layer.out_proj.weight.copy_(torch.eye(4))
        layer.gate.output.bias.copy_(torch.randn(layer.num_experts))
    return layer, layer.gate.output.bias.softmax(0).detach()


def counted(layer, x, **masks):
    """How much each head counts in the G step, and in the F step behind it."""
    told = []

    def compute_losses(x):
        told.append(layer(x, **masks).output)
        yield told[-1].mean()

    settings = {"mae": {**STEPS, "learning_rate": 1e-9}}
    loops.train(layer, compute_losses, [x], settings=settings)
    return told


@pytest.mark.parametrize("causal", [False, True])  # or each position has a gate, alike here
@pytest.mark.parametrize("dropped", [1, 2])
def test_draws_follow_the_gates(dropped, causal):
    """An F step has one expert for each sequence, as often as the gate says, and it alone."""
    layer, gates = telling(dropped_heads=dropped)
    mixed, drawn = counted(layer, inputs(4000, 2, 4), is_causal=causal)
    experts = torch.ones(layer.num_experts, 4, dtype=torch.float64)
    for expert, out in enumerate(combinations(range(4), dropped)):
        experts[expert, list(out)] = 0
    experts *= 4 / (4 - dropped)
    torch.testing.assert_close(mixed, (gates @ experts).expand_as(mixed))
    torch.testing.assert_close(drawn[:, :1], drawn[:, 1:])
    hits = (drawn[:, 0].unsqueeze(1) - experts).abs().sum(-1) < 1e-9
    assert (hits.sum(1) == 1).all()  # each is an expert, whole
    error = (gates * (1 - gates) / len(hits)).sqrt()
    assert ((hits.double().mean(0) - gates).abs() < 5 * error).all()


# --- Weighted ---------------------------------------------------------------------------------


def nearest(point):
    """The nearest point of the simplex: of each set of entries that may be positive, the best."""
    best = None
    for size in range(1, len(point) + 1):
        for kept in combinations(range(len(point)), size):
            candidate = torch.zeros_like(point)
            part = point[list(kept)]
            candidate[list(kept)] = part - (part.sum() - 1) / size
            distance = (candidate - point).norm()
            if (candidate >= 0).all() and (best is None or distance < best[0]):
                best = distance, candidate
    return best[1]


numbers = st.lists(st.floats(-3, 3), min_size=4, max_size=4)


@given(numbers, numbers)
@example([0.0] * 4, [1e6, -1e6, 0.0, 1e-6])  # numbers that swallow a one
@example([-3.0] * 4, [0.25, -0.75, 0.25, 0.25])
def test_after_each_step_both_are_the_nearest_point_of_the_simplex(kappa, alpha):
    layer = build("weighted", drawn=False)
    slopes = [torch.tensor(slope, dtype=torch.float64) for slope in (kappa, alpha)]
    reached = [w.detach() - s for w, s in zip((layer.kappa, layer.alpha), slopes, strict=True)]
    settings = {"learning_rate": 1.0, "warmup_steps": 1, "freeze_last": 0}
    options = {"settings": {"weighted": settings}, "optimizer": torch.optim.SGD}

    def compute_losses(_):
        yield layer.kappa @ slopes[0] + layer.alpha @ slopes[1]

    loops.train(layer, compute_losses, [None], **options)
    for weights, point in zip((layer.kappa, layer.alpha), reached, strict=True):
        torch.testing.assert_close(weights.detach(), nearest(point), rtol=1e-9, atol=1e-9)


FORMS = [{}, {"merged": True}, {"top_k": 2}, {"weights": "softmax"}]


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_the_weights_of_branches_learn_and_are_frozen_at_the_end(options):
    layer = build("weighted", train=True, **options)
    names = {"alpha"} if "merged" in options else {"kappa", "alpha"}
    settings = {"weighted": {"learning_rate": 0.3, "warmup_steps": 2, "freeze_last": 3}}
    batches = [inputs() for _ in range(8)]
    steps, _ = watched(layer, squares(layer), batches, settings=settings)
    assert [by_step & names for *_, by_step in steps] == [names] * 5 + [set()] * 3
    assert all("ffn_up.weight" in by_step for *_, by_step in steps)
    for weights in layer.branch_weights():
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(), torch.ones(()).double())


def test_a_frozen_weight_counts_in_no_norm_that_is_clipped():
    """A huge gradient of κ leaves those of all others as they are, where κ is frozen."""
    found, x = [], inputs()
    for scale in (0.0, 1e6):
        torch.manual_seed(0)
        layer = build("weighted", train=True)

        def compute_losses(x, layer=layer, scale=scale):
            yield (layer(x).output - x).square().mean() + scale * layer.kappa.sum()

        options = {"settings": {"weighted": {"freeze_last": 1}}, "optimizer": torch.optim.SGD}
        loops.train(layer, compute_losses, [x], clip=0.1, **options)
        found.append(values(layer))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    ("settings", "peak", "warmup", "frozen"),
    [
        ({}, (16 / 3) ** -0.5 * 400**-0.5, 400, 4),
        ({"learning_rate": 0.2, "warmup_steps": 5, "freeze_last": 2}, 0.2, 5, 2),
    ],
)
def test_the_weights_of_branches_have_a_learning_rate_of_their_own(settings, peak, warmup, frozen):
    """(d/N)^-½ min(s^-½, s·400^-3/2) in a model of N layers; none in the last sixth of steps."""
    sizes = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 16, "vocab_size": 9}
    model = hw.CausalLM(hw.CausalLMConfig(**sizes, layers=3, attention="weighted"))
    weights = [p for name, p in model.named_parameters() if name.endswith(("kappa", "alpha"))]
    other = model.get_output_embeddings().weight
    ids = torch.randint(3, 9, (2, 4))

    def compute_losses(ids):
        yield model(ids, labels=ids).loss

    settings = {"weighted": settings}
    trained = loops.train(model, compute_losses, [ids] * 24, settings=settings, lr=0.123)
    for step, rates in enumerate(trained.rates, start=1):
        expected = peak * min((warmup / step) ** 0.5, step / warmup)
        expected = 0.0 if step > 24 - frozen else expected
        assert [rates[id(p)] for p in weights] == pytest.approx([expected] * 6, rel=1e-12)
        assert rates[id(other)] == 0.123


# --- in any loop ------------------------------------------------------------------------------


def draws_alike(*_):
    torch.manual_seed(3)


class Both(nn.Module):
    """Systems of both rules, each of whose passes draws the same random numbers."""

    def __init__(self, is_causal=False, **options):
        super().__init__()
        self.mae = build("mae", train=True, causal_queries=True, **options)
        self.weighted = build("weighted", train=True)
        self.mae.gate.norm.momentum = 0.0
        self.is_causal = is_causal  # gates then normalise by running statistics

    def forward(self, x):
        draws_alike()
        return self.weighted(self.mae(x, is_causal=self.is_causal).output)


ALL = {"mae": STEPS, "weighted": {"learning_rate": 0.1, "warmup_steps": 2}}


@pytest.mark.parametrize("clip", [None, 0.05])
def test_the_scale_of_a_loss_changes_nothing(clip):
    """Of a GradScaler, which knows the parameters of the optimizer alone."""
    plain, scaler = Both(), torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaled = copy.deepcopy(plain)
    for settings in (ALL, {**ALL, "mae": {"method": "joint"}}):
        options = {"settings": settings, "clip": clip}
        batches = [inputs() for _ in range(3)]
        loops.train(plain, squares(plain), batches, **options)
        loops.train(scaled, squares(scaled), batches, scaler=scaler, **options)
        torch.testing.assert_close(values(scaled), values(plain))


# --- attaching them to an optimizer -----------------------------------------------------------


def attached(model, optimizer=torch.optim.AdamW, **options):
    rules = hw.TrainingRules(model, 2, **options)
    return rules, rules.attach(optimizer(rules.parameter_groups(lr=0.01)))


def test_a_step_of_mae_without_what_comes_before_it_is_an_error():
    layer = build("mae", train=True)
    rules, optimizer = attached(layer, settings={"mae": STEPS})
    rules.before_step(lambda: squares(layer)(inputs()))
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"without what mae needs.*rules\.before_step"):
        optimizer.step()
    assert rules.progress.step == 1


@pytest.mark.parametrize("left_out", ["nothing", "weighted.alpha"])
def test_an_optimizer_of_other_groups_is_refused(left_out):
    model = Both()
    parameters = [p for name, p in model.named_parameters() if name != left_out]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    with pytest.raises(ValueError, match=r"no group of weighted\.kappa, weighted\.alpha alone"):
        hw.TrainingRules(model, 2).attach(optimizer)
    joint = hw.TrainingRules(model.mae, 2, settings={"mae": {"method": "joint"}})
    with pytest.raises(ValueError, match=r"no group of gate\..*alone.*BlockCoordinateDescent"):
        joint.attach(optimizer)


def test_matrices_alone_are_decayed_and_what_rules_move_has_groups_of_its_own_or_none():
    model, undecayed = Both(), ("kappa", "alpha", "norm", "bias")
    names = {id(p): name for name, p in model.named_parameters() if ".gate." not in name}
    groups = hw.TrainingRules(model, 9).parameter_groups(lr=0.5, weight_decay=0.2)
    found = {names[id(p)]: group["weight_decay"] for group in groups for p in group["params"]}
    for name, decay in found.items():
        assert decay == (0.0 if any(part in name for part in undecayed) else 0.2), name
    assert found.keys() == set(names.values())


def test_an_optimizer_may_compute_the_loss_itself():
    """In a closure, as Lightning has it: the gradients are there when it has been called."""
    found = []
    for by_closure in (False, True):
        torch.manual_seed(2)
        layer = build("mae", train=True)
        rules, optimizer = attached(layer, settings={"mae": {"method": "joint"}})
        x = inputs()

        def closure(layer=layer, optimizer=optimizer, x=x):
            optimizer.zero_grad()
            (loss,) = squares(layer)(x)
            loss.backward()
            return loss

        for _ in range(2):
            rules.before_step(list)
            if not by_closure:
                closure()
            optimizer.step(closure if by_closure else None)
        found.append(values(layer))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_a_step_that_a_scaler_skips_is_none():
    model, x = Both(), inputs()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    rules = hw.TrainingRules(model, 2, settings={"mae": {"method": "joint"}})
    optimizer = rules.attach(torch.optim.AdamW(rules.parameter_groups(lr=0.01)))
    for scale, steps in ((1.0, 1), (float("inf"), 1), (1.0, 2)):
        before = values(model)
        rules.before_step(list)
        scaler.scale(scale * model(x).output.square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert rules.progress.step == steps
        assert all(weight.grad is None for weight in model.mae.gate.parameters())
        changed = {name for name in moved(before, values(model)) if "gate.norm" not in name}
        assert bool(changed) == (scale == 1.0)


def test_what_learns_without_its_rule_is_told_once():
    layer = build("weighted", train=True)
    with pytest.warns(TrainingWarning, match="without its rule of training") as told:
        for _ in range(2):
            layer(inputs()).output.sum().backward()
    assert len(told) == 1


def test_what_is_frozen_needs_no_rule(recwarn):
    layer = build("mae", train=True).requires_grad_(False)
    for _ in range(2):
        layer(inputs().requires_grad_()).output.sum().backward()
    assert not recwarn.list


@pytest.mark.parametrize("is_used", [False, True])
def test_a_loss_that_nobody_trains_by_is_told(is_used):
    layer = build("moa", train=True)
    with warnings.catch_warnings(record=True) as told:
        for _ in range(3):
            out = layer(inputs())
            (out.output.sum() + (out.routing.loss if is_used else 0)).backward()
    assert ["is in no loss" in str(each.message) for each in told] == [True] * (not is_used)


def test_a_training_that_goes_on_is_told_once():
    layer = build("weighted", train=True)
    _, optimizer = attached(layer)
    with pytest.warns(TrainingWarning, match="after total_steps=2") as told:
        for _ in range(4):
            optimizer.step()
    assert len(told) == 1


class Renamed(hw.BranchedAttention):
    """Of somebody else; it has the rule of the system that it derives from."""


WRONG = {
    "a system that is not there": (
        {"mae": {}},
        "settings name 'mae', expected some of .* weighted",
    ),
    "a misspelled name": ({"weigthed": {}}, "did you mean 'weighted'"),
    "a misspelled key": ({"weighted": {"freeze_lst": 2}}, "did you mean 'freeze_last'"),
    "too long": ({"weighted": {"freeze_last": 3}}, "freeze_last is 3, but .* 2 steps"),
}


@pytest.mark.parametrize("name", WRONG)
def test_settings_that_fit_no_rule_are_named(name):
    settings, message = WRONG[name]
    layers = nn.ModuleList([build("weighted"), Renamed(12, 4, ffn_dim=16)])
    with pytest.raises(ValueError, match=message):
        hw.TrainingRules(layers, 2, settings=settings)
    rules = hw.TrainingRules(layers, 2, settings={"weighted": {"freeze_last": 1}})
    assert rules.rules["weighted"].settings.freeze_last == 1


def shared(wrapper=None):
    """Norms that were clipped, and parameters, of a loop in one process or in one of two."""
    torch.manual_seed(0)
    model, batches = Both(gate_dropout=0.0, is_causal=True), [inputs(4) for _ in range(4)]
    rank, number = 0, 1
    if wrapper is not None:
        torch.distributed.init_process_group("gloo")
        rank, number = int(os.environ["RANK"]), 2
    if wrapper == "fully_shard":
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    settings = {"mae": {"method": "joint"}, "weighted": {"learning_rate": 0.3, "freeze_last": 2}}
    rules = hw.TrainingRules(model, 4, settings=settings)
    optimizer = rules.attach(torch.optim.SGD(rules.parameter_groups(lr=0.1)))
    trained, norms = model, []
    if wrapper == "DistributedDataParallel":
        assert not rules.leaves_out_gradients
        trained = nn.parallel.DistributedDataParallel(model)
    for x in batches:
        x = x.chunk(number)[rank]
        rules.before_step(list)
        (trained(x).output - x).square().mean().backward()
        norms.append(full_tensor(nn.utils.clip_grad_norm_(model.parameters(), 0.05)).item())
        optimizer.step()
        optimizer.zero_grad()
    return norms, {name: full_tensor(p.detach()).tolist() for name, p in model.named_parameters()}


@pytest.mark.parametrize("wrapper", ["DistributedDataParallel", "fully_shard"])
def test_two_processes_take_the_steps_of_one(wrapper):
    """What is frozen is in no norm that is clipped, also where gradients are summed or divided."""
    norms, parameters = shared()
    for found in on_ranks(2, shared, wrapper):
        assert found[0] == pytest.approx(norms, rel=1e-9)
        for name, value in parameters.items():
            torch.testing.assert_close(found[1][name], value, rtol=1e-9, atol=1e-12)


def test_rules_end_where_their_training_does():
    """At its last step, or in the middle of it when the model and the optimizer get new ones."""
    layer = build("weighted", train=True)
    first, optimizer = attached(layer, settings={"weighted": {"freeze_last": 2}})

    def learns():
        optimizer.zero_grad()
        layer(inputs()).output.square().mean().backward()
        return layer.kappa.grad is not None

    assert not learns()
    first.step = 2
    assert learns()
    first.step = 0
    hw.TrainingRules(layer, 2, settings={"weighted": {"freeze_last": 0}}).attach(optimizer)
    assert learns()
    optimizer.step()
    assert first.step == 0 and optimizer.param_groups[-1]["lr"] > 0


def test_gates_that_an_optimizer_has_too_are_not_moved_by_it():
    """Where gates learn in steps of their own, they have no gradient when it takes its step."""
    found = []
    for takes_all in (False, True):
        torch.manual_seed(1)
        layer = build("mae", train=True)

        def optimizer(groups, layer=layer, takes_all=takes_all):
            return torch.optim.AdamW(layer.parameters() if takes_all else groups, weight_decay=0.0)

        options = {"settings": {"mae": STEPS}, "optimizer": optimizer, "lr": 1e-3}
        loops.train(layer, squares(layer), [inputs() for _ in range(3)], **options)
        found.append(values(layer))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_float16_is_refused_where_it_would_be_wrong():
    """No scaler scales the loss of a G step, nor do rules see what a fused optimizer skips."""
    layer = build("mae", train=True, dtype=torch.float32)
    rules, _ = attached(layer, settings={"mae": STEPS})
    x = inputs(dtype=torch.float32)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            if dtype == torch.bfloat16:
                rules.before_step(lambda: layer(x).output.square().mean())
                continue
            with pytest.raises(RuntimeError, match="float16"):
                rules.before_step(lambda: layer(x).output.square().mean())
    assert layer.mode == "expert" and all(p.requires_grad for p in layer.parameters())
    with torch.autocast("cpu", torch.float16):
        layer(x)  # an F step, which a scaler may scale

    layer = build("weighted", train=True)
    _, optimizer = attached(layer, lambda groups: torch.optim.AdamW(groups, fused=True))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(layer(inputs()).output.square().mean()).backward()
    with pytest.raises(RuntimeError, match="fused=False"):
        scaler.step(optimizer)


# --- in transformers' Trainer -----------------------------------------------------------------


def language_model(attention, **options):
    torch.manual_seed(0)
    sizes = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 16, "vocab_size": 12, "layers": 2}
    sizes |= {"dropout": 0.0, "attention": attention}
    model = hw.CausalLM(hw.CausalLMConfig(**sizes, **options)).double()
    model.register_forward_pre_hook(draws_alike)
    return model.train()


ROWS = torch.randint(3, 12, (12, 6), generator=torch.Generator().manual_seed(1))
DATA = [{"input_ids": row, "labels": row} for row in ROWS]
RULES = {
    "mae": {"mae": {"period": 2}},
    "weighted": {"weighted": {"learning_rate": 0.2, "warmup_steps": 2, "freeze_last": 2}},
}


def trainer(model, folder, attention="", **options):
    """Six batches an epoch, of which two are a step."""

    class Trainer(loops.rule_settings(transformers.Trainer, RULES.get(attention, {}))):
        def get_train_dataloader(self):
            return self.accelerator.prepare(torch.utils.data.DataLoader(DATA, batch_size=2))

    defaults = {"max_steps": 9, "gradient_accumulation_steps": 2, "max_grad_norm": 0.1}
    defaults |= {"learning_rate": 0.01, "lr_scheduler_type": "constant", "optim": "adamw_torch"}
    defaults |= {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "save_strategy": "no"}
    arguments = transformers.TrainingArguments(str(folder), **{**defaults, **options})
    return Trainer(model, arguments, train_dataset=DATA)


@pytest.mark.parametrize(
    ("attention", "counts"), [("mae", True), ("mae", False), ("weighted", True), ("moa", True)]
)
def test_transformers_trainer_and_a_loop_of_ones_own_end_alike(attention, counts, tmp_path):
    """With `RulesMixin`: accumulated over two batches, clipped, by epochs of three steps.

    The model counts the labels of a step, or the Trainer divides by the number of its batches.
    """
    theirs, ours = language_model(attention).eval(), language_model(attention)
    before = values(ours)
    their_loop = trainer(theirs, tmp_path, attention)
    their_loop.model_accepts_loss_kwargs = counts
    their_loop.train()

    def compute_losses(rows):
        for part in rows.split(2):
            counted = {"num_items_in_batch": rows[:, 1:].numel()} if counts else {}
            yield ours(part, labels=part, **counted).loss / (1 if counts else 2)

    options = {"settings": RULES.get(attention, {}), "clip": 0.1, "lr": 0.01}
    loops.train(ours, compute_losses, list(ROWS.split(4)) * 3, steps_per_epoch=3, **options)
    torch.testing.assert_close(values(theirs), values(ours), rtol=1e-9, atol=1e-11)
    assert len(moved(before, values(ours))) > 10


@pytest.mark.parametrize("attention", RULES)
def test_transformers_trainer_goes_on_as_if_it_had_not_stopped(attention, tmp_path):
    """From a checkpoint, with a warm-up; and it can train a second time."""
    kwargs = {"warmup_steps": 4, "lr_scheduler_type": "linear", "save_steps": 4}
    first = trainer(language_model(attention), tmp_path, attention, save_strategy="steps", **kwargs)
    first.train()
    again = trainer(language_model(attention), tmp_path / "again", attention, **kwargs)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert again.rules.step == first.rules.step == 9
    torch.testing.assert_close(values(again.model), values(first.model), rtol=0, atol=0)
    first.train()
    assert first.rules.step == 9 and moved(values(first.model), values(again.model))


def test_smoothed_labels_of_the_trainer_lose_no_loss_in_silence(tmp_path):
    """Those of the config keep it."""
    with pytest.warns(TrainingWarning, match="is in no loss"):
        trainer(language_model("moa"), tmp_path, max_steps=2, label_smoothing_factor=0.1).train()


# --- losses that systems add ------------------------------------------------------------------

ROUTERS = {"moa": "router.weight", "moh": "routed_router.weight"}


@pytest.mark.parametrize("system", ROUTERS)
def test_the_losses_in_a_model_that_drops_them_are_one_sum(system):
    """Of `headwise.auxiliary_loss`, through which the routers of PyTorch's layers learn."""
    layer = nn.TransformerEncoderLayer(12, 4, 16, 0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().train()
    for each in model.layers:
        each.self_attn = build(system, train=True)
    found, x = [], inputs()
    hooks = [
        each.self_attn.register_forward_hook(lambda *a: found.append(a[-1].routing.loss))
        for each in model.layers
    ]
    output = model(x)  # the losses' graphs live as long as that of the output
    added = hw.auxiliary_loss(model)
    torch.testing.assert_close(added, found[0] + found[1])
    routers = [each.self_attn.get_parameter(ROUTERS[system]) for each in model.layers]
    slopes = [torch.autograd.grad(y, routers, retain_graph=True) for y in (added, sum(found))]
    torch.testing.assert_close(*slopes)
    assert all(slope.abs().max() > 1e-6 for slope in slopes[0]) and output.requires_grad
    for hook in hooks:
        hook.remove()
    assert hw.auxiliary_loss(nn.Linear(2, 2)) == 0
