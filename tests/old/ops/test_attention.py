import itertools
import math

import pytest
import torch

from headwise.ops.attention import attention_weights, dot_product_attention

KINDS = [None, "float", "padding", "boolean", "infinite"]
NO_KERNEL = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 4, 4, 5, 3


def mask_of(kind):
    if kind is None:
        return None
    if kind == "float":
        return torch.randn(QUERIES, KEYS, dtype=torch.float64)
    if kind == "padding":
        return torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]).bool()[:, None, None, :]
    mask = torch.rand(BATCH, HEADS, QUERIES, KEYS) < 0.4
    mask[0, 1, 2] = True  # one query attends to nothing
    if kind == "boolean":
        return mask
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(mask, float("-inf"))


def naive_attention(q, k, v, mask=None):
    """The equation, one query after the other."""
    batch, heads, queries, _ = q.shape
    out = torch.zeros(*q.shape[:-1], v.size(-1), dtype=q.dtype)
    if mask is not None:
        mask = mask.expand(batch, heads, queries, k.size(2))
    for b, h, t in itertools.product(range(batch), range(heads), range(queries)):
        shared = h // (heads // k.size(1))
        keys, values = k[b, shared], v[b, shared]
        bias = torch.zeros(len(keys)) if mask is None else mask[b, h, t]
        hidden = bias if bias.dtype == torch.bool else bias == -math.inf
        seen = [s for s in range(len(keys)) if not hidden[s]]
        scores = [q[b, h, t] @ keys[s] / math.sqrt(q.size(-1)) + bias[s] for s in seen]
        total = sum(torch.exp(score) for score in scores)
        for s, score in zip(seen, scores, strict=True):
            out[b, h, t] = out[b, h, t] + torch.exp(score) / total * values[s]
    return out


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("key_heads", [HEADS, 2, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_equation_forward_and_backward(kind, key_heads, implementation):
    q = torch.randn(BATCH, HEADS, QUERIES, WIDTH, dtype=torch.float64, requires_grad=True)
    k, v = (
        torch.randn(BATCH, key_heads, KEYS, WIDTH, dtype=torch.float64, requires_grad=True)
        for _ in range(2)
    )
    mask = mask_of(kind)
    fast = dot_product_attention(q, k, v, mask, implementation=implementation)
    naive = naive_attention(q, k, v, mask)
    torch.testing.assert_close(fast, naive)
    grads = [torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (fast, naive)]
    torch.testing.assert_close(*grads)
    weights = attention_weights(q, k, mask)
    each = HEADS // key_heads
    torch.testing.assert_close(weights @ v.repeat_interleave(each, 1), naive)
    sums = weights.sum(-1)
    assert ((sums - 1).abs() < 1e-9).sum() == sums.numel() - (kind in ("boolean", "infinite"))
    assert torch.autograd.grad(weights.square().sum(), q)[0].isfinite().all()


@NO_KERNEL
@pytest.mark.parametrize("key_heads", [HEADS, 2, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_flex_attention_equals_the_equation(kind, key_heads):
    q = torch.randn(BATCH, HEADS, QUERIES, WIDTH)
    k, v = torch.randn(2, BATCH, key_heads, KEYS, WIDTH)
    mask = mask_of(kind)
    mask = mask.float() if kind in ("float", "infinite") else mask
    flex = dot_product_attention(q, k, v, mask, implementation="flex_attention")
    torch.testing.assert_close(flex, naive_attention(q, k, v, mask))


def test_what_flex_attention_does_not_have_is_an_error():
    q = torch.randn(BATCH, HEADS, KEYS, WIDTH)
    with pytest.raises(ValueError, match=r"no dropout of attention weights, but it is 0\.1"):
        dot_product_attention(q, q, q, dropout=0.1, implementation="flex_attention")
    with pytest.raises(ValueError, match="no backward pass on the CPU"):
        dot_product_attention(q.requires_grad_(), q, q, implementation="flex_attention")


@NO_KERNEL
@pytest.mark.parametrize("key_heads", [HEADS, 2, 1])
@pytest.mark.parametrize("implementation", ["sdpa", "eager", "flex_attention"])
def test_plain_causal_equals_a_causal_mask(implementation, key_heads):
    q, k, v = torch.randn(3, BATCH, HEADS, KEYS, WIDTH, dtype=torch.float64)
    k, v = k[:, :key_heads], v[:, :key_heads]
    future = torch.ones(KEYS, KEYS, dtype=torch.bool).triu(1)
    plain = dot_product_attention(q, k, v, is_causal=True, implementation=implementation)
    torch.testing.assert_close(plain, dot_product_attention(q, k, v, future))
    torch.testing.assert_close(plain, naive_attention(q, k, v, future))


@NO_KERNEL
@pytest.mark.parametrize("implementation", ["sdpa", "eager", "flex_attention"])
def test_a_float32_mask_serves_bf16_queries(implementation):
    q, k, v = torch.randn(3, BATCH, HEADS, KEYS, WIDTH).bfloat16()
    mask = torch.randn(KEYS, KEYS)
    out = dot_product_attention(q, k, v, mask, implementation=implementation)
    assert out.dtype == torch.bfloat16
    expected = dot_product_attention(q.float(), k.float(), v.float(), mask)
    torch.testing.assert_close(out.float(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_dropout_keeps_the_mean(implementation):
    q, k = torch.randn(2, 1, 1, 6, WIDTH)
    v = torch.randn(1, 1, 6, WIDTH)
    exact = dot_product_attention(q, k, v)
    many = [
        dot_product_attention(q, k, v, dropout=0.4, implementation=implementation)
        for _ in range(500)
    ]
    assert not torch.equal(many[0], many[1])
    torch.testing.assert_close(torch.stack(many).mean(0), exact, rtol=0, atol=0.25)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("key_heads", [HEADS, 2, 1])
def test_a_trace_serves_other_sizes(key_heads):
    first, other = (
        [torch.randn(batch, heads, time, WIDTH) for heads in (HEADS, key_heads, key_heads)]
        for batch, time in ((2, 4), (3, 6))
    )
    traced = torch.jit.trace(dot_product_attention, first)
    torch.testing.assert_close(traced(*other), dot_product_attention(*other))


def test_long_queries_and_keys_are_finite_in_float16():
    q, k = torch.full((2, 1, 1, 3, 64), 40.0, dtype=torch.float16)  # q · k is 102,400
    q[..., 0, :] /= 2
    torch.testing.assert_close(
        attention_weights(q, k), attention_weights(q.double(), k.double()).half()
    )
