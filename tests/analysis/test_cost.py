"""`headwise cost`: parameters are those of the model, products those that PyTorch counts."""

import pytest
import torch
from support.tiny_models import PLANS, config, inputs, model
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import headwise as hw
from headwise.analysis.cost import model_cost

STACKS = {"causal": ["decoder"], "masked": ["encoder"], "seq2seq": ["encoder", "decoder"]}
STACKS |= {"classifier": ["encoder"], "speech": ["decoder"]}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kind", STACKS)
def test_parameters_and_products_are_those_that_pytorch_counts(kind, plan):
    """To two percent: the counter takes no note of the few products of a vector with a vector."""
    network = model(kind, plan)
    cost = model_cost(network.config, dict.fromkeys(STACKS[kind], 7))
    assert cost.parameters.total == network.num_parameters()
    assert (cost.parameters.routing > 0) == (plan != "standard")
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        network(**inputs(kind, 1, 7))
    assert cost.macs == pytest.approx(counter.get_total_flops() / 2, rel=0.02)


def test_products_of_the_standard_model_by_hand():
    m, n, sizes = 7, 5, config("seq2seq")
    d, ffn, vocabulary, layers = 16, 24, sizes.vocab_size, 2
    linear = layers * m * (4 * d * d + 2 * d * ffn)  # the encoder
    linear += layers * (n * (4 * d * d + 2 * d * d + 2 * d * ffn) + m * 2 * d * d)
    linear += n * d * vocabulary
    attended = layers * 2 * d * (m * m + n * n + n * m)
    cost = model_cost(sizes, {"encoder": m, "decoder": n})
    assert (cost.linear_macs, cost.macs) == (linear, linear + attended)


class ValueReader(hw.MultiHeadAttention):
    """A system that reads values, which nothing has where a model takes no memory."""

    def combine(self, heads, inputs, choice):
        return super().combine(heads * float(heads.detach().sum() > 0), inputs, choice)


def test_a_system_that_reads_values_is_counted_too():
    state = torch.get_rng_state()
    reader, standard = config("causal", f"{__name__}:ValueReader"), config("causal")
    assert model_cost(reader, {"decoder": 9}) == model_cost(standard, {"decoder": 9})
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ValueError, match=r"encoder.*expected .*decoder"):
        model_cost(reader, {"encoder": 9})
