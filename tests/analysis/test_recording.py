"""What is recorded of a model's decisions, against counting by hand."""

import math

import pytest
import torch

from headwise.analysis.recording import record_attention
from headwise.heads.system import AttentionOutput, Routing
from headwise.models.config import Seq2SeqConfig
from headwise.models.seq2seq import Seq2SeqLM
from headwise.models.sites import attention_sites

MOA = {"system": "moa", "size": "2K5E4D"}
PLANS = {
    "mae": "mae",
    "uniform": {"encoder_self": {"system": "mae", "gate": "uniform"}},
    "moa": {"encoder_self": MOA, "decoder_self": MOA, "decoder_cross": MOA},
}


def model(attention, layers=1):
    torch.manual_seed(1)
    config = Seq2SeqConfig(
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
    assert (record.kind, record.experts, record.layer) == ("gates", 4, 0)
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
    assert (record.kind, record.experts) == ("choices", 5)
    assert record.load == pytest.approx([chosen.count(e) / 28 for e in range(5)])
    assert sum(record.load) == pytest.approx(1)
    assert record.entropy == pytest.approx(entropy(weights.tolist()), rel=1e-5)
    assert record.uniform == pytest.approx(math.log(2))


def test_equal_gates_share_the_load():
    (record,) = record_attention(model(PLANS["uniform"]), BATCHES)
    assert record.load == pytest.approx([0.25] * 4)
    assert record.entropy == pytest.approx(math.log(4))


def test_a_given_decision_is_counted_as_it_is():
    network = model({"encoder_self": "mae"})
    module = attention_sites(network)[0].module
    given = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.9, 0.1]])

    def decide(_, __, out):
        return AttentionOutput(out.output, out.weights, Routing(given, None, None))

    module.register_forward_hook(decide)
    (record,) = record_attention(network, [BATCHES[0]])
    second = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
    assert record.entropy == pytest.approx((math.log(2) + second) / 2)
    assert record.load == pytest.approx([0.25, 0.25, 0.5, 0.0])


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


def test_standard_attention_decides_nothing():
    assert record_attention(model("standard"), BATCHES) == []
    records = record_attention(model({"decoder_self": MOA}), BATCHES)
    assert [record.site for record in records] == ["decoder_self"]


def test_without_batches_there_is_no_record():
    assert record_attention(model("mae"), []) == []


def test_the_model_is_left_as_it_was():
    network = model("mae").train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    record_attention(network, BATCHES)
    after = network.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert not any(module._forward_hooks for module in network.modules())


def test_hooks_are_removed_after_an_error():
    network = model("mae")
    with pytest.raises(IndexError):
        record_attention(network, [batch([5, 99, 2])])  # no such token
    assert not any(module._forward_hooks for module in network.modules())
