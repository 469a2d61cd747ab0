"""Parameters and multiply-accumulates, against formulas."""

import pytest
import torch

from headwise.analysis.cost import count_macs, count_parameters
from headwise.heads.mae import MixtureOfAttentiveExperts
from headwise.models.config import Seq2SeqConfig
from headwise.models.seq2seq import Seq2SeqLM

D, FFN, V, HEADS = 16, 32, 50, 4
T = 10  # tokens on either side


def model(attention="standard", **options):
    sizes = {"vocab_size": V, "embed_dim": D, "num_heads": HEADS, "ffn_dim": FFN}
    layers = {"encoder_layers": 1, "decoder_layers": 1}
    return Seq2SeqLM(Seq2SeqConfig(attention=attention, **sizes, **layers, **options))


def test_parameters_are_those_of_the_formula():
    attention = 4 * (D * D + D)
    ffn = 2 * D * FFN + FFN + D
    norms = 5 * 2 * D
    assert count_parameters(model()) == 3 * attention + 2 * ffn + norms + V * D


@pytest.mark.parametrize(("share", "embeddings"), [("all", 1), ("target", 2), ("none", 3)])
def test_shared_embeddings_count_once(share, embeddings):
    without = count_parameters(model(share_embeddings="all")) - V * D
    assert count_parameters(model(share_embeddings=share)) == without + embeddings * V * D


def test_macs_are_those_of_the_formula():
    projections = 3 * 4 * D * D * T
    products = 3 * 2 * T * T * D  # queries with keys, weights with values
    assert count_macs(model(), T, T) == (projections + products + 2 * (2 * D * FFN) * T + D * V * T)


def test_source_and_target_may_differ_in_length():
    source, target = 7, 3
    linear = (4 * D * D + 2 * D * FFN) * source + (6 * D * D + 2 * D * FFN + D * V) * target
    linear += 2 * D * D * source  # keys and values of the cross-attention
    products = 2 * D * (source * source + target * target + target * source)
    assert count_macs(model(), source, target) == linear + products


def test_a_gate_costs_its_two_layers_and_the_scales():
    hidden, experts = 256, HEADS
    one = D * hidden + hidden * experts + experts * HEADS
    extra = count_macs(model("mae"), T, T) - count_macs(model(), T, T)
    assert extra == one * (1 + T + T)  # one per source sequence, one per target position


@pytest.mark.parametrize("size", [(2, 4, 8), (4, 4, 8)])
def test_moa_costs_its_chosen_experts(size):
    top_k, experts, head = size
    plan = {"encoder_self": {"system": "moa", "size": "{}K{}E{}D".format(*size)}}
    attention = D * experts * T  # router
    attention += 2 * top_k * D * head * T  # query and output experts
    attention += 2 * D * head * T  # the one key and the one value head
    attention += 2 * top_k * head * T * T
    replaced = 4 * D * D * T + 2 * D * T * T
    assert count_macs(model(plan), T, T) - count_macs(model(), T, T) == attention - replaced


def test_the_base_transformer_on_the_meta_device():
    with torch.device("meta"):
        base = Seq2SeqLM(Seq2SeqConfig())
    d, ffn, vocabulary, layers, tokens = 512, 2048, 32_000, 6, 10
    linear = layers * tokens * (12 * d * d + 2 * 2 * d * ffn) + d * vocabulary * tokens
    assert linear == 604_241_920  # the 604M that the MoA paper gives
    products = 3 * layers * 2 * tokens * tokens * d
    assert count_macs(base, tokens, tokens) == linear + products


def test_counting_leaves_the_model_and_the_generator_alone():
    network = model("mae").train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    state = torch.get_rng_state()
    count_macs(network, T, T)
    assert torch.equal(state, torch.get_rng_state())
    assert network.training
    assert all(torch.equal(t, before[name]) for name, t in network.state_dict().items())


def test_counting_parameters_counts_gates():
    layer = MixtureOfAttentiveExperts(D, HEADS)
    gate = 2 * D + (D * 256 + 256) + (256 * HEADS + HEADS)
    assert count_parameters(layer) == 4 * (D * D + D) + gate
