"""Snapshots of decisions that are known in advance."""

import math
from types import SimpleNamespace

import pytest
import torch
import toy

import headwise as hw
from headwise.analysis.decisions.recording import record_attention
from headwise.analysis.decisions.snapshots import Snapshots, decides, few
from headwise.experiment.history import decision_courses
from headwise.tasks.positions import Positions


class EvenAndOdd(hw.MultiHeadAttention):
    """Two units: each even position weighs them 3 to 1, each odd one takes the second alone."""

    def combine(self, heads, inputs, choice):
        output, _ = super().combine(heads, inputs, choice)
        even = torch.arange(heads.size(2)) % 2 == 0
        weights = torch.where(even[:, None], torch.tensor([3.0, 1.0]), torch.tensor([0.0, 1.0]))
        return output, hw.Routing(weights.expand(len(heads), -1, -1))


def task(items=None):
    validation = toy.Reversals(8, seed=1)
    if items is not None:
        validation.items = items
        validation.lengths = [(len(item["input_ids"]), len(item["labels"])) for item in items]
    return SimpleNamespace(validation=validation, collate=toy.join, positions=positions)


def positions(batch):
    """Of the encoder: what its tokens are, and whether their number in the sequence is odd."""
    read = batch["input_ids"]
    odd = torch.arange(read.size(1)).expand(read.shape) % 2
    return {"encoder": Positions.of_tokens(read, {}, "token", {"odd": (odd, ["even", "odd"])})}


def known_model():
    network = toy.model()
    network.encoder.layers[0].self_attention = EvenAndOdd(16, 4)
    return network


def test_what_is_known_is_found_and_padding_is_left_out():
    items = [{"input_ids": [5] * length, "labels": [6, 2]} for length in (1, 2, 5)]
    found = Snapshots(task(items), batch_tokens=60)(known_model())
    (path,) = found  # standard attention is not among them
    assert path == "encoder.layers.0.self_attention"
    even, odd = 1 + 1 + 3, 0 + 1 + 2
    # Positions 2 and 3 are one class, with one row of each kind. With d as the distance of the two
    # kinds, all rows have the sum of squares d² · 5 · 3 / 8, and those of this class d² / 2.
    between, by_chance = 1 - (1 / 2) / (5 * 3 / 8), (4 - 1) / (8 - 1)
    by_position = (between - by_chance) / (1 - by_chance)
    of_even = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert found[path] == {
        "candidates": 2,
        "entropy": pytest.approx(of_even * even / (even + odd), abs=1e-5),
        "lowest_entropy": 0.0,
        "shares": pytest.approx([0.75 * even / 8, 0.25 * even / 8 + odd / 8], abs=1e-5),
        "weights": pytest.approx([0.75 * even / 8, 0.25 * even / 8 + odd / 8], abs=1e-5),
        "explained": {"odd": 1.0, "token": 0.0, "position": pytest.approx(by_position, abs=1e-5)},
    }


def test_a_run_keeps_how_they_moved(tmp_path):
    network, looks = known_model(), Snapshots(task(), batch_tokens=60)
    run = toy.train(tmp_path, network, toy.settings(), snapshot=looks)
    (course,) = decision_courses(network, run.history)
    assert (course.site, course.layer, course.path) == (
        *("encoder_self", 0),
        "encoder.layers.0.self_attention",
    )
    assert course.system.endswith(":EvenAndOdd")
    assert course.steps == [0, 4, 8, 12]
    assert course.uniform == pytest.approx(math.log(2))
    assert len(set(course.entropy)) == 1 and course.shares[0] == course.shares[-1]
    assert course.shares == course.weights
    assert course.lowest_entropy == [0.0] * 4
    assert list(course.explained) == ["odd", "position", "token"]
    assert course.explained["odd"] == [1.0] * 4


@pytest.mark.parametrize("system", ["mae", "moa"])
def test_a_snapshot_of_all_sequences_is_what_is_recorded_of_them(system):
    network = toy.model(toy.PLANS[system])
    found = Snapshots(task(), batch_tokens=1000)(network.eval())
    recorded = record_attention(network, [toy.join(task().validation.items)])
    assert len(found) == len(recorded) == 3
    for figures, record in zip(found.values(), recorded, strict=True):
        assert figures["entropy"] == pytest.approx(record.entropy, abs=1e-5)
        assert figures["shares"] == pytest.approx(record.load, abs=1e-5)
        assert math.log(figures["candidates"]) == pytest.approx(record.uniform)


def test_two_batches_are_one_snapshot():
    network = toy.model(toy.PLANS["moa"]).eval()
    for parameter in network.parameters():  # routers start at zero, where nothing is explained
        torch.nn.init.normal_(parameter, std=0.5)
    whole, halves = (Snapshots(task(), budget)(network) for budget in (1000, 60))
    assert whole.keys() == halves.keys()
    for path, figures in whole.items():
        found = halves[path]
        assert found.pop("explained") == pytest.approx(figures.pop("explained"), abs=2e-5)
        for name, expected in figures.items():
            assert found[name] == pytest.approx(expected, abs=2e-5)


def test_standard_attention_decides_nothing():
    assert not decides(toy.model())
    assert decides(known_model()) and decides(toy.model({"encoder_self": "mae"}))
    assert Snapshots(task(), batch_tokens=60)(toy.model().eval()) == {}


@pytest.mark.parametrize(
    ("lengths", "budget", "expected"),
    [
        ([5] * 100, 1000, [[i * 100 // 32 for i in range(32)]]),
        ([5] * 100, 20, [[0, 12, 25, 37], [50, 62, 75, 87]]),
        ([(2, 5)] * 3, 1000, [[0, 1, 2]]),
        ([4, 9, 4, 4], 18, [[0, 2, 3], [1]]),  # short and long ones apart
        ([9, 3, 9, 3], 9, [[0], [2]]),  # one of the longest is a batch
        ([9] * 5, 9, [[0], [2]]),
        ([7], 9, [[0]]),
    ],
)
def test_few_sequences_are_two_batches_at_most(lengths, budget, expected):
    found = few(SimpleNamespace(lengths=lengths), budget)
    assert [sorted(batch) for batch in found] == expected
