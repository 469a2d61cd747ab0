"""How a mixture of attention heads starts, and how far a first step takes it."""

import pytest
import torch

from headwise import MixtureOfAttentionHeads


@pytest.mark.parametrize("gain", [1.0, 4.0, 0.25])
def test_the_gain_multiplies_what_the_layer_adds_at_the_start(gain):
    def start(**options: float) -> MixtureOfAttentionHeads:
        torch.manual_seed(0)
        return MixtureOfAttentionHeads(32, 4, 2, 8, **options).double()

    plain, scaled = start(), start(output_gain=gain)
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    assert torch.allclose(scaled(x).output, gain * plain(x).output)
    for name, weight in plain.named_parameters():
        factor = gain if name == "expert_output" else 1.0
        assert torch.allclose(scaled.get_parameter(name), factor * weight), name


@pytest.mark.parametrize("experts, top_k", [(4, 2), (3, 3)])
def test_the_scale_leaves_the_start_as_it_is_and_lengthens_the_first_step(experts, top_k):
    def start(**options: float) -> MixtureOfAttentionHeads:
        torch.manual_seed(0)
        quiet = {"balance_coef": 0.0, "z_coef": 0.0}
        return MixtureOfAttentionHeads(32, experts, top_k, 8, **quiet, **options).double()

    plain, scaled = start(), start(output_scale=4.0)
    x, aim = torch.randn(2, 5, 32).double(), torch.randn(2, 5, 32).double()
    before = plain(x).output.detach()
    assert torch.allclose(scaled(x).output, before)
    for layer in (plain, scaled):
        # Adam's first step has the length of its rate in each weight, whatever the gradient's size.
        step = torch.optim.Adam([layer.expert_output], lr=1e-5, eps=1e-30)
        ((layer(x).output - aim) ** 2).mean().backward()
        step.step()
    short, long = plain(x).output - before, scaled(x).output - before
    assert torch.allclose(long, 4 * short, rtol=1e-3, atol=1e-9)
