"""Nothing at all as input: no sequences, no positions, no keys. The answer is as empty, and finite.

`nn.MultiheadAttention` takes all of these, and zeros are what it reads where there are no keys.
"""

import pytest
import torch
from systems import DIM, SYSTEMS, randomize
from torch import nn

import headwise as hw
from headwise.heads.cache import FixedAttentionCache

EMPTY = [(0, 3), (2, 0), (0, 0)]


def build(name, **options):
    if name == "tim":
        layer = hw.IndependentMechanismsLayer(DIM, 4, 16, 2, exchange_head_dim=3)
        return randomize(layer.double()).train(options.get("train", False))
    return SYSTEMS[name].build(**options)


def learn(module, out):
    loss = out.output.sum()
    if out.routing is not None and out.routing.loss is not None:
        assert out.routing.loss == 0
        loss = loss + out.routing.loss
    loss.backward()
    assert all(not p.grad.any() for p in module.parameters() if p.grad is not None)  # nor NaN


@pytest.mark.parametrize("shape", EMPTY, ids=str)
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", [*SYSTEMS, "tim"])
def test_no_sequences_and_no_positions(name, train, shape):
    module = build(name, train=train)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    for is_causal in (False, True):
        for padding in (None, torch.zeros(shape, dtype=torch.bool)):
            x = torch.randn(*shape, DIM, dtype=torch.float64, requires_grad=True)
            out = module(x, is_causal=is_causal, key_padding_mask=padding, need_weights=True)
            assert out.output.shape == x.shape
            learn(module, out)
    # Running statistics have learned nothing either.
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("name", SYSTEMS)
def test_no_keys_and_no_queries(name):
    module = SYSTEMS[name].build(train=True)
    some = torch.randn(2, 3, DIM, dtype=torch.float64)
    out = module(some, some[:, :0], need_weights=True)
    assert out.weights.shape[-1] == 0 and torch.isfinite(out.output).all()
    learn(module, module(some[:, :0], some))


def test_what_is_read_where_there_are_no_keys_is_what_torch_reads():
    theirs = nn.MultiheadAttention(DIM, 4, batch_first=True).double()
    nn.init.normal_(theirs.out_proj.bias)
    ours = hw.MultiHeadAttention(DIM, 4).double()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, DIM, dtype=torch.float64)
    expected, _ = theirs(x, x[:, :0], x[:, :0])
    torch.testing.assert_close(ours(x, x[:, :0]).output, expected)


@pytest.mark.parametrize("make", [hw.AttentionCache, lambda: FixedAttentionCache(9)])
@pytest.mark.parametrize("name", SYSTEMS)
def test_a_step_of_no_positions_changes_nothing(name, make):
    module, cache = SYSTEMS[name].build(), make()
    x = torch.randn(2, 5, DIM, dtype=torch.float64)
    whole = module(x, is_causal=True).output
    chunks = [x[:, :0], x[:, :2], x[:, :0], x[:, 2:], x[:, :0]]
    steps = [module(chunk, is_causal=True, cache=cache).output for chunk in chunks]
    torch.testing.assert_close(torch.cat(steps, 1), whole)
    nobody = make()
    for chunk in chunks:
        assert not module(chunk[:0], is_causal=True, cache=nobody).output.numel()
