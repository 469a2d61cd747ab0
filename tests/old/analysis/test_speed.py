"""Relative times of steps: what is measured, with a clock of our own."""

import pytest
import torch

from headwise.analysis import speed
from headwise.analysis.speed import (
    Rounds,
    decoding_speeds,
    relative_step_times,
)
from headwise.heads.mae import MixtureOfAttentiveExperts
from headwise.heads.mae.rule import GateSettings
from headwise.models.seq2seq import Seq2SeqLM, Seq2SeqLMConfig

UNIFORM = {"encoder_self": {"system": "mae", "gate": "uniform"}}
BATCHES = [
    {"input_ids": torch.tensor([[5, 6, 2]]), "labels": torch.tensor([[7, 2]])},
    {"input_ids": torch.tensor([[5, 6, 8, 9, 2]]), "labels": torch.tensor([[7, 7, 7, 2]])},
]


def model(attention="standard"):
    config = Seq2SeqLMConfig(
        vocab_size=20,
        embed_dim=8,
        num_heads=4,
        ffn_dim=8,
        encoder_layers=1,
        decoder_layers=1,
        attention=attention,
    )
    return Seq2SeqLM(config)


def step_of(network):
    """How MAE computes at the moment: joint, gate or expert; joint too where there is none."""
    layers = [m for m in network.modules() if isinstance(m, MixtureOfAttentiveExperts)]
    return layers[0].step if layers else "joint"


def medians(times):
    return {name: time.value for name, time in times.items()}


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves by what each forward pass is said to take; and who ran, when."""

    class Clock:
        now = 0.0
        seconds: dict = {}  # noqa: RUF012 - set by each test
        ran: list = []  # noqa: RUF012

        def perf_counter(self):
            return self.now

    made = Clock()
    made.ran = []
    forward = Seq2SeqLM.forward

    def spy(self, **inputs):
        assert self.training
        step = step_of(self)
        made.ran.append((self, step))
        made.now += made.seconds[self, step](len(made.ran))
        return forward(self, **inputs)

    monkeypatch.setattr(Seq2SeqLM, "forward", spy)
    monkeypatch.setattr(speed, "time", made)
    return made


def test_rounds_take_models_in_turn_and_the_first_is_not_counted(clock):
    models = {"a": model(), "b": model()}
    # The first round (4 passes) makes b look ten times as slow.
    clock.seconds = {
        (models["a"], "joint"): lambda _: 1.0,
        (models["b"], "joint"): lambda count: 10.0 if count <= 4 else 2.0,
    }
    gates = {name: {} for name in models}
    assert relative_step_times(models, gates, BATCHES, Rounds(1, 1))["b"].value == 2.0
    assert [network for network, _ in clock.ran] == [
        *([models["a"]] * 2 + [models["b"]] * 2),
        *([models["a"]] * 2 + [models["b"]] * 2),
    ]


def test_a_machine_that_slows_down_does_not_matter(clock):
    models = {"a": model(), "b": model()}
    # Each round of 4 passes takes twice as long as the one before; one is disturbed.
    drift = lambda count: 2.0 ** ((count - 1) // 4)  # noqa: E731
    clock.seconds = {
        (models["a"], "joint"): drift,
        (models["b"], "joint"): lambda n: 3 * drift(n) * (50 if 8 < n <= 12 else 1),
    }
    gates = {name: {} for name in models}
    times = relative_step_times(models, gates, BATCHES, Rounds(3, 3))
    assert medians(times) == {"a": 1.0, "b": 3.0}
    # What is disturbed is in the spread.
    assert (times["b"].low, times["b"].high) == (3.0, 150.0)


def test_rounds_go_on_while_there_is_time(clock):
    models = {"a": model(), "b": model()}
    clock.seconds = dict.fromkeys(((each, "joint") for each in models.values()), lambda _: 1.0)
    gates = {name: {} for name in models}
    # A round of 4 passes takes 4 s.
    for seconds, rounds in ((0, 2), (9, 3), (10, 3), (13, 4), (1000, 6)):
        times = relative_step_times(models, gates, BATCHES, Rounds(2, 6, seconds))
        assert times["b"].rounds == rounds


# Decoding


def test_decoding_is_counted_in_tokens(clock):
    models = {"a": model(), "b": model()}
    said = []

    def decode(network):
        assert not network.training
        said.append(network)
        clock.now += 2.0 if network is models["a"] else 3.0
        return 100 if network is models["a"] else 75

    speeds = decoding_speeds(models, decode, Rounds(2, 2))
    assert said == [models["a"], models["b"]] * 3  # the first round is not counted
    assert speeds["a"].tokens_per_second.value == pytest.approx(50)
    assert speeds["b"].tokens_per_second.value == pytest.approx(25)
    assert speeds["a"].relative_time.value == 1.0
    assert speeds["b"].relative_time.value == pytest.approx(2.0)


# What is measured of a step


@pytest.mark.parametrize(
    ("plan", "gates", "ratio"),
    [
        ("mae", GateSettings(), 2 + 5 / 5),
        ("mae", GateSettings(period=2, unit="steps"), 2 + 5 / 2),
        ("mae", GateSettings(method="joint"), 4),
        (UNIFORM, GateSettings(), 2),
    ],
    ids=["every fifth", "every second", "jointly", "no gates to learn"],
)
def test_mae_takes_an_f_step_and_its_share_of_a_g_step(clock, plan, gates, ratio):
    models = {"standard": model(), "mae": model(plan)}
    clock.seconds = {
        (models["standard"], "joint"): lambda _: 1.0,
        (models["mae"], "expert"): lambda _: 2.0,
        (models["mae"], "gate"): lambda _: 5.0,
        (models["mae"], "joint"): lambda _: 4.0,
    }
    settings = {name: {"mae": gates} for name in models}
    times = relative_step_times(models, settings, BATCHES, Rounds(2, 2))
    assert medians(times) == {"standard": 1.0, "mae": pytest.approx(ratio)}


@pytest.mark.parametrize("plan", ["standard", "mae"])
def test_parameters_gradients_and_generator_are_left_alone(plan):
    models = {"only": model(plan)}
    before = {name: p.clone() for name, p in models["only"].named_parameters()}
    state = torch.get_rng_state()
    relative_step_times(models, {"only": {}}, BATCHES, Rounds(1, 1))
    assert torch.equal(state, torch.get_rng_state())
    for name, parameter in models["only"].named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.grad is None
        assert parameter.requires_grad
    assert step_of(models["only"]) == "joint"
