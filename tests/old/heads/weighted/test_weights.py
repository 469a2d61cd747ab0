"""The other ways to weigh branches: a softmax, random weights, one vector for two, top-k gating."""

import pytest
import torch
import toy
from systems import DIM, SYSTEMS

from headwise.heads.rule import Moment
from headwise.training.rules import TrainingRules

STEPS = 12
FORMS = {
    "plain": {},
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
