"""The two losses of MoA's router, where the equations do not say it all, and few tokens."""

import pytest
import torch

from headwise.heads.moa.experts import (
    are_few,
    assign_experts,
    combine_all,
    combine_few,
    expert_combine,
    expert_project,
    project_few,
    router_losses,
)

BATCH, TIME, EXPERTS = 3, 4, 5


def losses_of(logits, padding=None, top_k=2, **how):
    return router_losses(logits, logits.topk(top_k).indices, padding, **how)


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
def test_padding_counts_in_no_mean(per_sequence):
    logits = torch.randn(BATCH, TIME, EXPERTS, requires_grad=True)
    padding = torch.ones(BATCH, TIME, dtype=torch.bool)
    losses = losses_of(logits, padding, per_sequence=per_sequence)
    assert losses[0] == losses[1] == 0
    sum(losses[:2]).backward()
    assert not logits.grad.any()
    padding[:2] = False  # the last sequence is padding alone
    some = losses_of(logits, padding, per_sequence=per_sequence)
    torch.testing.assert_close(some, losses_of(logits[:2], per_sequence=per_sequence))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_sums_in_float32(dtype):
    """In bf16 a count would stop at 256."""
    logits = torch.randn(2, 1000, EXPERTS).to(dtype)
    losses = losses_of(logits)
    assert all(loss.dtype == torch.float32 for loss in losses)
    expected = router_losses(logits.double(), logits.topk(2).indices)
    for loss, exact in zip(losses, expected, strict=True):
        torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("tokens", "experts", "top_k"), [(1, 8, 3), (2, 16, 2), (16, 8, 3), (5, 3, 3), (0, 8, 3)]
)
def test_few_tokens_get_what_sorted_ones_get(tokens, experts, top_k):
    """Forward and backward, in float64; and where all experts are computed."""
    chosen = torch.rand(tokens, experts).topk(top_k, dim=-1).indices
    assignment = assign_experts(chosen, experts)
    sizes = ((tokens, 6), (experts, 6, 4), (experts, 4, 6), (tokens, top_k))
    results = []
    inputs = [torch.randn(size, dtype=torch.float64) for size in sizes]
    for project, combine, by, how in (
        (expert_project, expert_combine, assignment, assignment),
        (project_few, combine_few, chosen, chosen),
        (expert_project, combine_all, assignment, chosen),
    ):
        x, into, out, scale = leaves = [each.clone().requires_grad_() for each in inputs]
        y = combine(project(x, into, by).sin(), out, how, scale)
        results.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])


@pytest.mark.parametrize(("tokens", "few"), [(32, True), (33, False)])
def test_many_tokens_are_sorted(tokens, few):
    indices = torch.zeros(1, tokens, 3, dtype=torch.long)
    assert are_few(indices) == few
    assert not are_few(indices.to("meta"))
