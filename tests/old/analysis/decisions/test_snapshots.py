"""Snapshots of decisions that are known in advance."""

import math
from types import SimpleNamespace

import pytest
import test_every_model as every
import tiny
import torch
import toy

import headwise as hw
from headwise.analysis.decisions.observing import Where
from headwise.analysis.decisions.snapshots import (
    DecisionCourse,
    Snapshots,
    decides,
    few,
    record_attention,
)
from headwise.heads.system import System
from headwise.models.decisions import record as record_decisions
from headwise.models.sites import attention_sites
from headwise.analysis.history import decision_courses
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
    assert path == "model.encoder.layers.0.self_attention"
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
        "model.encoder.layers.0.self_attention",
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


# Of whole models, with padding and without.

GIVEN = every.batch("seq2seq")
SEQUENCES = [every.alone("seq2seq", GIVEN, *each) for each in enumerate(every.LENGTHS)]


def decisions(network, site):
    """Gates or choices of each sequence run by itself, where nothing is padding."""
    routings = []
    module = next(s.module for s in attention_sites(network) if s.site == site and s.layer == 0)
    hook = module.register_forward_hook(lambda _, __, out: routings.append(out.routing))
    with torch.no_grad():
        for sequence in SEQUENCES:
            network(**sequence)
    hook.remove()
    weights = torch.cat([r.weights.flatten(0, -2) for r in routings])
    indices = [r.indices.flatten(0, -2) for r in routings if r.indices is not None]
    return weights, torch.cat(indices) if indices else None


def entropy(rows):
    return sum(-sum(g * math.log(g) for g in row if g > 0) for row in rows) / len(rows)


@pytest.mark.parametrize("site", ["encoder_self", "decoder_self", "decoder_cross"])
@pytest.mark.parametrize(
    "plan",
    ["mae", tiny.MOA, {**tiny.MOA, "normalize_weights": False}],
    ids=["mae", "moa", "not normalised"],
)
def test_decisions_of_sequences_and_tokens_without_padding(plan, site):
    network = tiny.model({site: plan})
    record, _ = record_attention(network, [GIVEN])
    weights, indices = decisions(network, site)
    # One distribution for each of 3 sequences, or for each of their 12 tokens.
    rows = 3 if (plan, site) == ("mae", "encoder_self") else 12
    if indices is None:
        experts, chosen, candidates = 4, weights.argmax(-1).tolist(), 4
    else:
        experts, chosen, candidates = 5, indices.flatten().tolist(), 2
    assert len(chosen) == rows * (2 if candidates == 2 else 1)
    assert (record.site, record.experts) == (site, experts)
    assert record.load == pytest.approx([chosen.count(e) / len(chosen) for e in range(experts)])
    shares = weights / weights.sum(-1, keepdim=True)  # those of MoA may sum to less than 1
    assert record.entropy == pytest.approx(entropy(shares.tolist()), rel=1e-5)
    assert record.uniform == pytest.approx(math.log(candidates))
    assert 0 < record.entropy < record.uniform


@pytest.mark.parametrize("system", ["mae", "moa", "agreement", "tim"])
@pytest.mark.parametrize("kind", ["causal", "adaptive", "masked", "classifier", "speech"])
def test_models_of_other_tasks_with_and_without_padding(kind, system):
    """Together with padding they are recorded as each alone."""
    network, given = every.build(kind, system), every.batch(kind)
    apart = [every.alone(kind, given, *each) for each in enumerate(every.LENGTHS)]
    records = zip(record_attention(network, [given]), record_attention(network, apart), strict=True)
    for layer, (together, alone) in enumerate(records):
        stack = "encoder" if kind in ("masked", "classifier") else "decoder"
        assert (together.site, together.layer) == (f"{stack}_self", layer)
        assert together.load == pytest.approx(alone.load)
        assert together.entropy == pytest.approx(alone.entropy, rel=1e-4)
        assert together.entropy_percentiles == pytest.approx(alone.entropy_percentiles, rel=1e-4)


def test_the_model_is_left_as_it_was():
    network = tiny.model("mae").train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    record_attention(network, [GIVEN])
    after = network.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    # A system has one hook of its own, which notes its loss.
    assert all(len(m._forward_hooks) == isinstance(m, System) for m in network.modules())


def agreement(**options):
    plan = {"encoder_self": {"system": "agreement", "layers": [0], **options}}
    return tiny.model(plan)


@pytest.mark.filterwarnings("ignore:.*saturated")
@pytest.mark.parametrize("routing", ["em", "simple"])
def test_how_many_heads_a_capsule_listens_to(routing):
    """1 / Σ_h share² of each capsule, while the mean share over the capsules may be even."""
    network = agreement(routing=routing)
    (record,) = record_attention(network, [GIVEN])
    with record_decisions(network) as decided, torch.no_grad():
        network(**GIVEN)
    ((made,),) = decided.values()
    heard = made.heard[GIVEN["attention_mask"].bool()]
    assert record.heard == pytest.approx(float(heard.mean()), rel=1e-6)
    assert 1 <= record.heard <= 4


def test_routing_that_is_saturated_is_told():
    network = agreement(routing="simple", squash=False)
    with torch.no_grad():
        network.encoder.layers[0].self_attention.vote_weight.mul_(1e4)
    told = r"encoder\.layers\.0\.self_attention: a capsule listens to 1\.\d of 4 heads.* saturated"
    with pytest.warns(UserWarning, match=told):
        (record,) = record_attention(network, [GIVEN])
    assert 1 <= record.heard < 1.2


def test_an_entropy_stands_beside_its_start():
    network = tiny.model("mae", encoder_layers=1, decoder_layers=1)
    shares = 2 * [[0.25] * 4]
    courses = [
        DecisionCourse(
            **Where.of(place).model_dump(),
            uniform=math.log(4),
            steps=[first, 10],
            entropy=[1.25, 1.0],
            lowest_entropy=[1.0, 0.5],
            shares=shares,
            weights=shares,
        )
        for place, first in zip(attention_sites(network), (0, 0, 5), strict=True)
    ]
    records = record_attention(network, [GIVEN], courses)
    assert [record.start_entropy for record in records] == [1.25, 1.25, None]
