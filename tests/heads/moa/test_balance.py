import pytest
import torch

from headwise.heads.moa.balance import router_losses
from headwise.heads.moa.naive import naive_router_losses

BATCH, TIME, EXPERTS = 3, 4, 5


def losses_of(logits, padding=None, top_k=2, **how):
    return router_losses(logits, logits.topk(top_k).indices, padding, **how)


@pytest.mark.parametrize("per_sequence", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("top_k", [1, 2, EXPERTS])
def test_equals_equations_13_to_16_forward_and_backward(top_k, padded, per_sequence):
    logits = torch.randn(BATCH, TIME, EXPERTS, dtype=torch.float64, requires_grad=True)
    padding = torch.rand(BATCH, TIME) < 0.4 if padded else None
    if padding is not None:
        padding[1] = True  # a sequence of padding alone counts in no mean
    indices = logits.topk(top_k).indices
    fast = router_losses(logits, indices, padding, per_sequence=per_sequence)
    naive = naive_router_losses(logits, indices, padding, per_sequence=per_sequence)
    torch.testing.assert_close(fast[:2], naive)
    for i in range(2):
        got, expected = (
            torch.autograd.grad(x[i], logits, retain_graph=True) for x in (fast, naive)
        )
        torch.testing.assert_close(got, expected)


def test_balance_is_the_number_of_experts_where_one_gets_all():
    logits = torch.zeros(BATCH, TIME, EXPERTS)
    logits[..., 3] = 50.0
    balance, z, _ = losses_of(logits, top_k=1)
    torch.testing.assert_close(balance, torch.tensor(float(EXPERTS)))
    torch.testing.assert_close(z, torch.tensor(2500.0))


def test_a_batch_may_balance_what_its_sequences_do_not():
    """Each sequence has an expert of its own: even over the batch, most uneven within."""
    logits = 50 * torch.eye(EXPERTS).unsqueeze(1).expand(EXPERTS, TIME, EXPERTS)
    over_batch, *_ = losses_of(logits, top_k=1)
    within, *_ = losses_of(logits, top_k=1, per_sequence=True)
    torch.testing.assert_close(over_batch, torch.tensor(1.0))
    torch.testing.assert_close(within, torch.tensor(float(EXPERTS)))


@pytest.mark.parametrize("per_sequence", [False, True])
def test_without_real_tokens_both_are_zero(per_sequence):
    logits = torch.randn(BATCH, TIME, EXPERTS, requires_grad=True)
    padding = torch.ones(BATCH, TIME, dtype=torch.bool)
    losses = losses_of(logits, padding, per_sequence=per_sequence)
    assert losses[0] == losses[1] == 0
    assert naive_router_losses(logits, logits.topk(2).indices, padding) == losses[:2]
    sum(losses[:2]).backward()
    assert not logits.grad.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_sums_in_float32(dtype):
    """In bf16 a count would stop at 256."""
    logits = torch.randn(2, 1000, EXPERTS).to(dtype)
    losses = losses_of(logits)
    assert all(loss.dtype == torch.float32 for loss in losses)
    expected = router_losses(logits.double(), logits.topk(2).indices)
    for loss, exact in zip(losses, expected, strict=True):
        torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=1e-5)
