"""Times of steps and of generation: what is measured, in turns, with a clock of our own."""

import pytest
import torch
from support.tiny_models import inputs, labels, model

import headwise as hw
from headwise.analysis import speed
from headwise.analysis.speed import Rounds, decoding_speeds, relative_step_times, step_seconds

BATCHES = [inputs("causal") | {"labels": labels("causal")} for _ in range(2)]
MAE = {"mae": {"period": 5, "unit": "steps"}}


@pytest.fixture
def clock(monkeypatch):
    """A clock that a forward pass in training moves by what is said of its model; and who ran."""

    class Clock:
        now = 0.0

        def perf_counter(self):
            return self.now

    made, forward = Clock(), hw.CausalLM.forward
    made.takes, made.ran = {}, []

    def seen(self, *args, **given):
        made.ran.append(self)
        seconds = made.takes[self]
        made.now += seconds(len(made.ran)) if callable(seconds) else seconds
        return forward(self, *args, **given)

    monkeypatch.setattr(hw.CausalLM, "forward", seen)
    monkeypatch.setattr(speed, "time", made)
    return made


def test_models_are_measured_in_turns_so_that_drift_and_the_first_round_do_not_matter(clock):
    models = {"a": model("causal"), "b": model("causal")}
    drift = lambda count: 2.0 ** ((count - 1) // 4)  # noqa: E731 - each round of four passes
    clock.takes = {models["a"]: drift, models["b"]: lambda n: 3 * drift(n) * (50 if n < 13 else 1)}
    found = relative_step_times(models, {"a": {}, "b": {}}, BATCHES, Rounds(7, 7))
    assert clock.ran[:8] == 2 * [*2 * [models["a"]], *2 * [models["b"]]]
    assert (found["a"].value, found["b"].value, found["b"].rounds) == (1.0, 3.0, 7)
    assert found["b"].low == 3.0 and found["b"].high == 150.0  # two rounds were disturbed
    for seconds, rounds in ((0, 2), (30, 3), (1000, 6)):
        clock.takes = dict.fromkeys(models.values(), 3.0)  # a round takes 12 seconds
        found = relative_step_times(models, {"a": {}, "b": {}}, BATCHES, Rounds(2, 6, seconds))
        assert found["b"].rounds == rounds


@pytest.mark.parametrize(("rules", "ratio"), [(MAE, 2 + 2 / 5), ({"mae": {"method": "joint"}}, 2)])
def test_a_step_has_its_share_of_the_further_passes_of_its_rule(clock, rules, ratio):
    models = {"standard": model("causal"), "mae": model("causal", "mae")}
    clock.takes = {models["standard"]: 1.0, models["mae"]: 2.0}
    settings = dict.fromkeys(models, rules)  # the recipe's, of which standard attention has none
    found = relative_step_times(models, settings, BATCHES, Rounds(2, 2))
    assert found["mae"].value == pytest.approx(ratio)
    assert step_seconds(models["mae"], rules, BATCHES) == pytest.approx(ratio)


@pytest.mark.parametrize("plan", ["standard", "mae"])
def test_parameters_gradients_and_random_draws_are_left_alone(plan):
    made = model("causal", plan)
    before = {name: p.detach().clone() for name, p in made.named_parameters()}
    state = torch.get_rng_state()
    relative_step_times({"only": made}, {"only": MAE}, BATCHES, Rounds(1, 1))
    assert torch.equal(state, torch.get_rng_state())
    for name, p in made.named_parameters():
        assert torch.equal(p, before[name]) and p.grad is None and p.requires_grad


def test_generation_is_counted_in_tokens(clock):
    models = {"a": model("causal"), "b": model("causal")}
    clock.takes = {models["a"]: 2.0, models["b"]: 3.0}  # for a token of each of the texts
    found = decoding_speeds(models, Rounds(2, 2))
    texts, tokens = 8, 32
    assert clock.ran.count(models["a"]) == 3 * tokens == clock.ran.count(models["b"])
    assert found["a"].tokens_per_second.value == pytest.approx(texts / 2.0)
    assert found["b"].tokens_per_second.value == pytest.approx(texts / 3.0)
    assert found["b"].relative_time.value == pytest.approx(1.5)
    assert decoding_speeds({"masked": model("masked")}, Rounds(1, 1)) == {}
