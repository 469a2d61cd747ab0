"""The other ways to weigh branches: a softmax, random weights, one vector for two, top-k gating."""

import pytest
import torch
import toy
from systems import DIM, HEADS, SYSTEMS

from headwise.heads.rule import Moment
from headwise.heads.weighted import BranchedAttention
from headwise.models.ablation import ablated
from headwise.training.rules import TrainingRules

STEPS = 12
FORMS = {
    "softmax": {"weights": "softmax"},
    "merged": {"merged": True},
    "merged softmax": {"weights": "softmax", "merged": True},
    "top-k": {"top_k": 2},
}


def build(train=False, **options):
    return SYSTEMS["branched"].build(train=train, **options)


def inputs():
    return torch.randn(2, 5, DIM, dtype=torch.float64)


def assert_on_simplex(weights):
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))


def as_plain(layer, kappa, alpha):
    """The layer of the paper, with these weights."""
    plain = build(train=layer.training)
    state = {k: v for k, v in layer.state_dict().items() if k not in ("kappa", "alpha")}
    plain.load_state_dict(state, strict=False)
    with torch.no_grad():
        plain.kappa.copy_(kappa)
        plain.alpha.copy_(alpha)
    return plain


def test_a_softmax_is_the_layer_with_its_weights():
    layer, x = build(weights="softmax", train=True), inputs()
    kappa, alpha = layer.kappa.softmax(0), layer.alpha.softmax(0)
    out = layer(x)
    torch.testing.assert_close(out.output, as_plain(layer, kappa, alpha)(x).output)
    torch.testing.assert_close(out.routing.weights, alpha)


def test_a_softmax_starts_at_random_points_of_the_simplex():
    torch.manual_seed(0)
    layers = [
        BranchedAttention(DIM, HEADS, 16, weights="softmax", start="random") for _ in range(200)
    ]
    points = torch.stack([torch.stack(layer.branch_weights()) for layer in layers]).detach()
    assert_on_simplex(points)
    assert not torch.equal(points[:, 0], points[:, 1])
    torch.testing.assert_close(points.mean((0, 1)), torch.full((4,), 0.25), rtol=0, atol=0.03)
    assert points.std() > 0.15


def test_merged_weights_are_one_vector_in_both_places():
    layer, x = build(merged=True), inputs()
    assert "kappa" not in layer.state_dict() and layer.kappa is None
    torch.testing.assert_close(layer(x).output, as_plain(layer, layer.alpha, layer.alpha)(x).output)
    count, separate = (sum(p.numel() for p in module.parameters()) for module in (layer, build()))
    assert count == separate - HEADS


@pytest.mark.parametrize("train", [False, True])
def test_top_k_gating_sums_the_branches_of_largest_alpha_in_training_too(train):
    layer, x = build(top_k=2, train=train), inputs()
    with torch.no_grad():
        layer.alpha.copy_(torch.tensor([0.1, 0.4, 0.2, 0.3]))
    kept = torch.tensor([0, 4 / 7, 0, 3 / 7], dtype=torch.float64)
    out = layer(x)
    torch.testing.assert_close(out.routing.weights, kept)
    torch.testing.assert_close(out.output, as_plain(layer, layer.kappa, kept)(x).output)
    out.output.square().sum().backward()
    moved = layer.branch_output.grad.abs().sum((1, 2)) > 0
    assert moved.tolist() == [False, True, False, True]
    assert (layer.alpha.grad != 0).tolist() == [False, True, False, True]


def test_top_k_of_all_is_no_gating():
    layer, x = build(top_k=HEADS), inputs()
    with torch.no_grad():
        layer.alpha.copy_(torch.tensor([0.1, 0.4, 0.2, 0.3]))
    torch.testing.assert_close(layer(x).output, as_plain(layer, layer.kappa, layer.alpha)(x).output)


def test_random_weights_are_drawn_at_each_pass_of_training_alone():
    layer, x = build(weights="random", train=True), inputs()
    assert not {"kappa", "alpha"} & set(layer.state_dict())
    torch.manual_seed(0)
    draws = torch.stack([torch.stack(layer.branch_weights()) for _ in range(400)])
    assert_on_simplex(draws)
    assert not torch.equal(draws[:, 0], draws[:, 1])
    torch.testing.assert_close(
        draws.mean((0, 1)), torch.full((4,), 0.25, dtype=torch.float64), rtol=0, atol=0.03
    )
    assert draws.std() > 0.15

    first, second = layer(x), layer(x)
    assert not torch.equal(first.output, second.output)
    assert not torch.equal(first.routing.weights, second.routing.weights)
    first.output.sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())

    quarter = torch.full((4,), 0.25, dtype=torch.float64)
    out = layer.eval()(x)
    assert torch.equal(out.routing.weights, quarter)
    torch.testing.assert_close(out.output, as_plain(layer, quarter, quarter)(x).output)


@pytest.mark.parametrize("name", [*FORMS, "random"])
@pytest.mark.parametrize("ablation", ["uniform", "random", "top-k"])
def test_every_form_can_be_evaluated_otherwise(name, ablation):
    layer, x = build(**FORMS.get(name, {"weights": "random"})), inputs()
    options = {"top_k": 1} if ablation == "top-k" else {}
    before = layer(x).output
    with ablated(layer, {"weighted": {"name": ablation, **options}}):
        kappa, alpha = layer.branch_weights()
        if ablation == "uniform":
            assert kappa.tolist() == alpha.tolist() == [1 / HEADS] * HEADS
        elif ablation == "top-k":
            assert int((alpha != 0).sum()) == 1
        torch.testing.assert_close(layer(x).output, as_plain(layer, kappa, alpha)(x).output)
    assert torch.equal(layer(x).output, before)


# Training


@pytest.mark.parametrize("name", FORMS)
def test_every_form_learns_on_the_simplex_and_is_frozen_at_the_end(tmp_path, name):
    system = {"system": "weighted", "preset": "paper", **FORMS[name]}
    how = toy.settings(
        weighted={"learning_rate": 0.3, "warmup_steps": 2, "freeze_last": 3}, final_model="last"
    )
    trainer = toy.watch(tmp_path, toy.model({"encoder_self": system}, dropout=0.0), how)
    layer = trainer.model.encoder.layers[0].self_attention
    learned = [n for n in trainer.state_of_model() if n.endswith(("kappa", "alpha"))]
    assert len(learned) == (1 if "merged" in name else 2)
    moves = []
    for ((_, before, after),) in trainer.steps:
        moves.append(any(not torch.equal(before[n], after[n]) for n in learned))
        for n in learned:
            assert_on_simplex(after[n].softmax(0) if "softmax" in name else after[n])
    assert moves == [True] * (STEPS - 3) + [False] * 3
    if "softmax" in name:
        assert not torch.allclose(layer.alpha.sum(), torch.tensor(1.0))  # logits: not projected
    (record,) = trainer.rules.record()["weighted"].values()
    kappa, alpha = layer.branch_weights()
    assert (record["kappa"], record["alpha"]) == (kappa.tolist(), alpha.tolist())


def test_a_gated_branch_may_come_back():
    """The projection moves all alike: a branch left out may overtake one that shrinks."""
    layer = build(top_k=2, train=True)
    with torch.no_grad():
        layer.alpha.copy_(torch.tensor([0.1, 0.4, 0.24, 0.26]))
        layer.alpha[3] -= 0.1  # what an optimizer's step may do
    rule = TrainingRules(layer, {}).rules["weighted"]
    rule.after_update(Moment(0, STEPS))
    assert (layer.branch_weights()[1] > 0).tolist() == [False, True, True, False]


def test_random_weights_leave_nothing_to_learn_by_a_rule(tmp_path):
    network = toy.model({"encoder_self": {"system": "weighted", "weights": "random"}})
    trainer = toy.watch(tmp_path, network, toy.settings())
    assert trainer.rules.record() == {}
    assert len(trainer.optimizer.param_groups) == 2


# Construction


@pytest.mark.parametrize(("given", "gain"), [(None, 4.0), (1.0, 1.0), (2.5, 2.5)])
def test_the_output_gain_scales_what_a_branch_adds_at_the_start(given, gain):
    letter = BranchedAttention.presets["paper"]
    layer = BranchedAttention(64, 4, 256, output_gain=given, **letter)
    bound = gain * (6 / (16 + 64)) ** 0.5
    assert float(layer.branch_output.detach().abs().max()) == pytest.approx(bound, rel=0.01)
    assert float(layer.ffn_up.weight.detach().abs().max()) <= (6 / (64 + 256)) ** 0.5


@pytest.mark.parametrize(
    "options, parts",
    [
        ({"weights": "sparsemax"}, ["weights is 'sparsemax'", "simplex, softmax, random"]),
        ({"top_k": 0}, ["top_k is 0", "1 to num_branches = 2"]),
        ({"top_k": 3}, ["top_k is 3", "1 to num_branches = 2"]),
        ({"top_k": 1, "weights": "random"}, ["top_k is 1", "weights='random'", "leave top_k out"]),
        ({"output_gain": 0.0}, ["output_gain is 0.0", "positive"]),
    ],
)
def test_wrong_options(options, parts):
    with pytest.raises(ValueError) as error:
        BranchedAttention(8, 2, 4, **options)
    assert all(part in str(error.value) for part in parts), error.value
