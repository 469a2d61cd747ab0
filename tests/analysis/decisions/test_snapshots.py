"""Snapshots of decisions that are known in advance."""

import math
from types import SimpleNamespace

import pytest
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
from headwise.models.causal_lm import CausalLM, CausalLMConfig
from headwise.models.classifier import SequenceClassifier, SequenceClassifierConfig
from headwise.models.decisions import record as record_decisions
from headwise.models.masked_lm import MaskedLM, MaskedLMConfig
from headwise.models.seq2seq import Seq2SeqLM, Seq2SeqLMConfig
from headwise.models.sites import attention_sites
from headwise.models.speech import SpeechEnhancer, SpeechEnhancerConfig
from headwise.runs.one_run import decision_courses
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


MOA = {"system": "moa", "size": "2K5E4D"}
AGREEMENT = {"system": "agreement"}
PLANS = {
    "mae": "mae",
    "uniform": {"encoder_self": {"system": "mae", "gate": "uniform"}},
    "moa": {"encoder_self": MOA, "decoder_self": MOA, "decoder_cross": MOA},
}


def model(attention, layers=1):
    torch.manual_seed(1)
    config = Seq2SeqLMConfig(
        vocab_size=20,
        embed_dim=8,
        num_heads=4,
        ffn_dim=8,
        encoder_layers=layers,
        decoder_layers=layers,
        attention=attention,
    )
    network = Seq2SeqLM(config)
    for parameter in network.parameters():  # routers start at zero, where nothing is to be seen
        torch.nn.init.normal_(parameter, std=0.7)
    return network


def batch(*sequences):
    """A batch of sequences that are their own translations."""
    longest = max(map(len, sequences))
    padded = [[*s, *[0] * (longest - len(s))] for s in sequences]
    labels = torch.tensor(padded)
    return {
        "input_ids": torch.tensor(padded),
        "attention_mask": (labels != 0).long(),
        "labels": labels.masked_fill(labels == 0, -100),
    }


SEQUENCES = [[5, 6, 7, 8, 2], [9, 2], [10, 11, 12, 2], [4, 4, 2]]
BATCHES = [batch(*SEQUENCES[:2]), batch(*SEQUENCES[2:])]


def decisions(network, site):
    """Gates or choices of each sequence run by itself, where nothing is padding."""
    routings = []
    module = next(s.module for s in attention_sites(network) if s.site == site and s.layer == 0)
    hook = module.register_forward_hook(lambda _, __, out: routings.append(out.routing))
    network.eval()
    with torch.no_grad():
        for sequence in SEQUENCES:
            network(**batch(sequence))
    hook.remove()
    weights = torch.cat([r.weights.flatten(0, -2) for r in routings])
    indices = [r.indices.flatten(0, -2) for r in routings if r.indices is not None]
    return weights, torch.cat(indices) if indices else None


def by_site(records):
    return {record.site: record for record in records if record.layer == 0}


def entropy(rows):
    return sum(-sum(g * math.log(g) for g in row if g > 0) for row in rows) / len(rows)


@pytest.mark.parametrize("site", ["encoder_self", "decoder_self", "decoder_cross"])
def test_gates_of_sequences_and_tokens_without_padding(site):
    network = model("mae")
    record = by_site(record_attention(network, BATCHES))[site]
    gates = decisions(network, site)[0].tolist()
    # One distribution for each of 4 sequences, or for each of their 14 tokens.
    assert len(gates) == (4 if site == "encoder_self" else 14)
    winners = [row.index(max(row)) for row in gates]
    assert (record.system, record.experts, record.layer) == ("mae", 4, 0)
    assert record.entropy == pytest.approx(entropy(gates), rel=1e-5)
    assert record.load == pytest.approx([winners.count(e) / len(gates) for e in range(4)])
    assert record.uniform == pytest.approx(math.log(4))
    assert 0 < record.entropy < record.uniform


@pytest.mark.parametrize("site", ["encoder_self", "decoder_self", "decoder_cross"])
def test_choices_of_tokens_without_padding(site):
    network = model(PLANS["moa"])
    record = by_site(record_attention(network, BATCHES))[site]
    weights, indices = decisions(network, site)
    chosen = indices.flatten().tolist()
    assert len(chosen) == 2 * 14
    assert (record.system, record.experts) == ("moa", 5)
    assert record.load == pytest.approx([chosen.count(e) / 28 for e in range(5)])
    assert sum(record.load) == pytest.approx(1)
    assert record.entropy == pytest.approx(entropy(weights.tolist()), rel=1e-5)
    assert record.uniform == pytest.approx(math.log(2))


def _tokens(sequences):
    joined = batch(*sequences)
    return {"input_ids": joined["input_ids"], "attention_mask": joined["attention_mask"]}


def _blocks(sequences):
    """Labels are the tokens themselves, the first of them not predicted."""
    joined = batch(*sequences)
    joined["labels"][:, 0] = -100
    return joined


def _labelled(sequences):
    return _tokens(sequences) | {"labels": torch.tensor([s[0] % 2 for s in sequences])}


def _frames(sequences):
    """A spectrum for each token."""
    joined = _tokens(sequences)
    spectra = torch.rand(20, 129, generator=torch.Generator().manual_seed(0))
    clean = spectra.log()[joined["input_ids"]]
    padding = joined["attention_mask"] == 0
    return {
        "inputs": spectra[joined["input_ids"]],
        "attention_mask": joined["attention_mask"],
        "labels": clean.masked_fill(padding.unsqueeze(-1), -100),
    }


SIZES = {"embed_dim": 8, "num_heads": 4, "ffn_dim": 8, "layers": 1}
OTHERS = {
    "causal-lm": (lambda **plan: CausalLM(CausalLMConfig(20, **SIZES, **plan)), _blocks),
    "adaptive": (
        lambda **plan: CausalLM(CausalLMConfig(20, adaptive_cutoffs=[8], **SIZES, **plan)),
        _blocks,
    ),
    "masked-lm": (
        lambda **plan: MaskedLM(MaskedLMConfig(20, **SIZES, **plan)),
        lambda sequences: batch(*sequences),
    ),
    "classifier": (
        lambda **plan: SequenceClassifier(SequenceClassifierConfig(20, **SIZES, **plan)),
        _labelled,
    ),
    "speech": (
        lambda **plan: SpeechEnhancer(
            SpeechEnhancerConfig(8000, front_channels=[8], **SIZES, **plan)
        ),
        _frames,
    ),
}
SYSTEMS = {
    "mae": "mae",
    "moa": MOA,
    "agreement": AGREEMENT,
    "tim": {"system": "tim", "num_mechanisms": 2, "layers": [0]},
}


@pytest.mark.parametrize("system", list(SYSTEMS))
@pytest.mark.parametrize("kind", list(OTHERS))
def test_models_of_other_tasks_with_and_without_padding(kind, system):
    """Together with padding they are recorded as each alone."""
    make, collate = OTHERS[kind]
    torch.manual_seed(0)
    network = make(attention=SYSTEMS[system])
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    (together,) = record_attention(network, [collate(SEQUENCES[:2]), collate(SEQUENCES[2:])])
    (alone,) = record_attention(network, [collate([sequence]) for sequence in SEQUENCES])
    assert together.site == (
        "encoder_self" if kind in ("masked-lm", "classifier") else "decoder_self"
    )
    assert together.load == pytest.approx(alone.load)
    assert together.entropy == pytest.approx(alone.entropy, rel=1e-4)
    assert together.entropy_percentiles == pytest.approx(alone.entropy_percentiles, rel=1e-4)


def test_weights_that_sum_to_less_than_1_are_scaled():
    """Those of MoA without normalisation: how a token weighs what it has chosen."""
    moa = {**MOA, "normalize_weights": False}
    network = model({"encoder_self": moa})
    (record,) = record_attention(network, BATCHES)
    weights = [
        [w / sum(row) for w in row] for row in decisions(network, "encoder_self")[0].tolist()
    ]
    assert record.entropy == pytest.approx(entropy(weights), rel=1e-5)


def test_a_record_for_each_layer_in_the_order_of_the_model():
    records = record_attention(model("mae", layers=2), BATCHES)
    assert [(record.site, record.layer) for record in records] == [
        ("encoder_self", 0),
        ("encoder_self", 1),
        ("decoder_self", 0),
        ("decoder_cross", 0),
        ("decoder_self", 1),
        ("decoder_cross", 1),
    ]


def test_standard_attention_decides_nothing_of_recording():
    assert record_attention(model("standard"), BATCHES) == []
    records = record_attention(model({"decoder_self": MOA}), BATCHES)
    assert [record.site for record in records] == ["decoder_self"]


def test_the_model_is_left_as_it_was():
    network = model("mae").train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    record_attention(network, BATCHES)
    after = network.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    # A system has one hook of its own, which notes its loss.
    assert all(len(m._forward_hooks) == isinstance(m, System) for m in network.modules())


@pytest.mark.filterwarnings("ignore:.*saturated")
@pytest.mark.parametrize("routing", ["em", "simple"])
def test_how_many_heads_a_capsule_listens_to(routing):
    """1 / Σ_h share² of each capsule, while the mean share over the capsules may be even."""
    network = model({"encoder_self": {"system": "agreement", "routing": routing}})
    (record,) = record_attention(network, BATCHES)
    (place,) = (p for p in attention_sites(network) if p.site == "encoder_self")
    found = []
    for each in BATCHES:
        with record_decisions(network) as decided, torch.no_grad():
            network(**each)
        (made,) = decided[place]
        found.append(made.heard[each["attention_mask"].bool()])
    assert record.heard == pytest.approx(float(torch.cat(found).mean()), rel=1e-6)
    assert 1 <= record.heard <= 4


def test_routing_that_is_saturated_is_told():
    plan = {"encoder_self": {"system": "agreement", "routing": "simple", "squash": False}}
    network = model(plan)
    with torch.no_grad():
        network.encoder.layers[0].self_attention.vote_weight.mul_(1e4)
    told = r"encoder\.layers\.0\.self_attention: a capsule listens to 1\.1 of 4 heads.* saturated"
    with pytest.warns(UserWarning, match=told):
        (record,) = record_attention(network, BATCHES)
    assert 1 <= record.heard < 1.2


def test_an_entropy_stands_beside_its_start():
    network = model("mae")
    courses = [
        DecisionCourse(
            **Where.of(place).model_dump(),
            uniform=math.log(4),
            steps=[first, 10],
            entropy=[1.25, 1.0],
            lowest_entropy=[1.0, 0.5],
            shares=2 * [[0.25] * 4],
            weights=2 * [[0.25] * 4],
        )
        for place, first in zip(attention_sites(network), (0, 0, 5), strict=True)
    ]
    records = record_attention(network, BATCHES, courses)
    assert [record.start_entropy for record in records] == [1.25, 1.25, None]
