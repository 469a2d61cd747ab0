"""How a mixture of attention heads starts: what its option `output_gain` draws larger."""

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
