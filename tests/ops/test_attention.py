import pytest
import torch

from headwise.ops.attention import attention_weights, dot_product_attention
from headwise.ops.naive import naive_attention

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 3, 4, 5, 3


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


@pytest.mark.parametrize("key_heads", [HEADS, 1])
@pytest.mark.parametrize("kind", [None, "float", "padding", "boolean", "infinite"])
def test_equals_the_equation_forward_and_backward(kind, key_heads):
    q = torch.randn(BATCH, HEADS, QUERIES, WIDTH, dtype=torch.float64, requires_grad=True)
    k, v = (
        torch.randn(BATCH, key_heads, KEYS, WIDTH, dtype=torch.float64, requires_grad=True)
        for _ in range(2)
    )
    mask = mask_of(kind)
    fast, naive = dot_product_attention(q, k, v, mask), naive_attention(q, k, v, mask)
    torch.testing.assert_close(fast, naive)
    grads = [torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (fast, naive)]
    torch.testing.assert_close(*grads)
    weights = attention_weights(q, k, mask)
    torch.testing.assert_close(weights @ v, naive)
    sums = weights.sum(-1)
    assert ((sums - 1).abs() < 1e-9).sum() == sums.numel() - (kind in ("boolean", "infinite"))
    assert torch.autograd.grad(weights.square().sum(), q)[0].isfinite().all()


def test_plain_causal_equals_a_causal_mask():
    q, k, v = torch.randn(3, BATCH, HEADS, KEYS, WIDTH, dtype=torch.float64)
    future = torch.ones(KEYS, KEYS, dtype=torch.bool).triu(1)
    plain = dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(plain, dot_product_attention(q, k, v, future))
    torch.testing.assert_close(plain, naive_attention(q, k, v, future))


def test_a_float32_mask_serves_bf16_queries():
    q, k, v = torch.randn(3, BATCH, HEADS, KEYS, WIDTH).bfloat16()
    mask = torch.randn(KEYS, KEYS)
    out = dot_product_attention(q, k, v, mask)
    assert out.dtype == torch.bfloat16
    expected = dot_product_attention(q.float(), k.float(), v.float(), mask)
    torch.testing.assert_close(out.float(), expected, rtol=0.05, atol=0.05)


def test_dropout_keeps_the_mean():
    q, k = torch.randn(2, 1, 1, 6, WIDTH)
    v = torch.randn(1, 1, 6, WIDTH)
    exact = dot_product_attention(q, k, v)
    many = [dot_product_attention(q, k, v, dropout=0.4) for _ in range(500)]
    assert not torch.equal(many[0], many[1])
    torch.testing.assert_close(torch.stack(many).mean(0), exact, rtol=0, atol=0.25)
