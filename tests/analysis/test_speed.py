"""Times of steps and of generation: what is measured, in turns, with a clock of our own."""

import pytest
from support.tiny_models import inputs, labels, model

import headwise as hw
from headwise.analysis import speed
from headwise.analysis.speed import relative_decoding_times, relative_step_times

BATCHES = [inputs("causal") | {"labels": labels("causal")} for _ in range(2)]
MAE = {"mae": {"period": 5, "unit": "steps"}}


@pytest.fixture
def clock(monkeypatch):
    """A clock that a forward pass moves by the seconds of its model; it notes which models ran."""

    class Clock:
        now = 0.0

        def perf_counter(self):
            return self.now

    clock, forward = Clock(), hw.CausalLM.forward
    clock.takes, clock.ran = {}, []

    def timed_forward(self, *args, **kwargs):
        clock.ran.append(self)
        seconds = clock.takes[self]
        clock.now += seconds(len(clock.ran)) if callable(seconds) else seconds
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(hw.CausalLM, "forward", timed_forward)
    monkeypatch.setattr(speed, "time", clock)
    return clock


def test_models_are_measured_in_turns_so_that_drift_and_the_first_round_do_not_matter(clock):
    models = {"a": model("causal"), "b": model("causal")}
    drift = lambda count: 2.0 ** ((count - 1) // 4)  # noqa: E731 - each round of four passes
    clock.takes = {models["a"]: drift, models["b"]: lambda n: 3 * drift(n) * (50 if n < 13 else 1)}
    times = relative_step_times(models, {"a": {}, "b": {}}, BATCHES)
    assert clock.ran[:8] == 2 * [*2 * [models["a"]], *2 * [models["b"]]]
    assert (times["a"].value, times["b"].value, times["b"].rounds) == (1.0, 3.0, 9)
    assert times["b"].low == 3.0 and times["b"].high == 150.0  # two rounds were disturbed


@pytest.mark.parametrize(("rules", "ratio"), [(MAE, 2 + 2 / 5), ({"mae": {"method": "joint"}}, 2)])
def test_a_step_has_its_share_of_the_further_passes_of_its_rule(clock, rules, ratio):
    models = {"standard": model("causal"), "mae": model("causal", "mae")}
    clock.takes = {models["standard"]: 1.0, models["mae"]: 2.0}
    settings = dict.fromkeys(models, rules)  # the recipe's, of which standard attention has none
    times = relative_step_times(models, settings, BATCHES)
    assert times["mae"].value == pytest.approx(ratio)


def test_generation_is_counted_in_tokens(clock):
    models = {"a": model("causal"), "b": model("causal")}
    clock.takes = {models["a"]: 2.0, models["b"]: 3.0}  # for a token of each of the texts
    times = relative_decoding_times(models)
    assert clock.ran.count(models["a"]) == 10 * 32 == clock.ran.count(models["b"])
    assert (times["a"].value, times["b"].value) == (1.0, pytest.approx(1.5))
    assert relative_decoding_times({"masked": model("masked")}) == {}
