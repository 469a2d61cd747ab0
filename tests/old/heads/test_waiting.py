"""On a GPU the host never waits: no attention looks at a value, whatever masks it is given."""

import pytest
import torch
from pretended_gpu import PretendedGPU
from systems import DIM, SYSTEMS, padding

from headwise.heads.cache import AttentionCache, FixedAttentionCache

BATCH, TIME, ROOM = 2, 5, 9


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("causal", [False, True])
def test_forward_and_backward(name, causal):
    module = SYSTEMS[name].build(dtype=torch.float32, train=True).to("meta")
    x = torch.randn(BATCH, TIME, DIM).to("meta").requires_grad_()
    mask = padding(TIME, 3, time=TIME).to("meta")
    with PretendedGPU():
        for masks in ({}, {"key_padding_mask": mask}):
            out = module(x, is_causal=causal, **masks)
            out.output.square().sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("fixed", [False, True])
def test_decoding(name, fixed):
    module = SYSTEMS[name].build(dtype=torch.float32).to("meta")
    x = torch.randn(BATCH, TIME, DIM).to("meta")
    mask = torch.zeros(BATCH, ROOM, dtype=torch.bool).to("meta")
    cache = FixedAttentionCache(ROOM) if fixed else AttentionCache()
    with PretendedGPU(), torch.no_grad():
        module(x[:, :3], key_padding_mask=mask[:, :3], is_causal=True, cache=cache)
        for t in range(3, TIME):
            seen = mask if fixed else mask[:, : t + 1]
            step = module(x[:, t : t + 1], key_padding_mask=seen, is_causal=True, cache=cache)
            assert step.output.shape == (BATCH, 1, DIM)
