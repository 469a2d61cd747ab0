"""The expert products equal their naive twins, forward and backward, whoever the experts are."""

import pytest
import torch
import torch.nn.functional as F
from pretended_gpu import PretendedGPU
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from headwise.heads.moa.experts import (
    ExpertAssignment,
    assign_experts,
    expert_combine,
    expert_project,
)
from headwise.ops import expert_products as products

EMBED, HEAD, DTYPE = 6, 4, torch.float64

# name: (number of experts, the choice of each token)
CHOICES: dict[str, tuple[int, Tensor]] = {
    "one token, one expert": (1, torch.tensor([[0]])),
    "one token of many experts": (7, torch.tensor([[5, 2]])),
    "top 1": (3, torch.tensor([[0], [2], [1], [2], [0]])),
    "every expert": (3, torch.tensor([[2, 0, 1], [0, 1, 2], [1, 0, 2]])),
    "all tokens at the first": (4, torch.zeros(9, 1, dtype=torch.long)),
    "all tokens at the last": (4, torch.full((9, 1), 3)),
    "idle at both ends": (6, torch.tensor([[1, 4], [4, 1], [1, 4]])),
    "one token at an expert": (4, torch.tensor([[0, 1], [1, 0], [0, 3]])),
    "an expert twice": (3, torch.tensor([[1, 1], [0, 1], [2, 2]])),
    "no tokens": (3, torch.zeros(0, 2, dtype=torch.long)),
    "32-bit indices": (3, torch.tensor([[1, 2], [0, 1]], dtype=torch.int32)),
    "many": (11, torch.rand(60, 11, generator=torch.Generator().manual_seed(0)).topk(5).indices),
}
each_choice = pytest.mark.parametrize("choice", CHOICES)


def leaf(*shape: int, dtype: torch.dtype | None = None) -> Tensor:
    return torch.randn(*shape, dtype=dtype or DTYPE, requires_grad=True)


def naive_expert_project(x: Tensor, weight: Tensor, indices: Tensor) -> Tensor:
    y = x.new_zeros(*indices.shape, weight.shape[2])
    for n, experts in enumerate(indices.tolist()):
        for j, e in enumerate(experts):
            y[n, j] = x[n] @ weight[e]
    return y


def naive_expert_combine(heads: Tensor, weight: Tensor, indices: Tensor, scale: Tensor) -> Tensor:
    y = heads.new_zeros(len(indices), weight.shape[2])
    for n, experts in enumerate(indices.tolist()):
        for j, e in enumerate(experts):
            y[n] += scale[n, j] * (heads[n, j] @ weight[e])
    return y


def project_inputs(choice: str) -> tuple[Tensor, Tensor, Tensor, ExpertAssignment]:
    torch.manual_seed(1)
    num_experts, indices = CHOICES[choice]
    x, weight = leaf(len(indices), EMBED), leaf(num_experts, EMBED, HEAD)
    return x, weight, indices, assign_experts(indices, num_experts)


def combine_inputs(choice: str) -> tuple[Tensor, Tensor, Tensor, Tensor, ExpertAssignment]:
    torch.manual_seed(2)
    num_experts, indices = CHOICES[choice]
    heads, weight = leaf(*indices.shape, HEAD), leaf(num_experts, HEAD, EMBED)
    return heads, weight, leaf(*indices.shape), indices, assign_experts(indices, num_experts)


def assert_same(fast: Tensor, naive: Tensor, inputs: tuple[Tensor, ...], **tolerance: float):
    """Outputs and the gradients of a random projection of them are the same."""
    torch.testing.assert_close(fast, naive, **tolerance)
    direction = torch.randn_like(naive)
    got, wanted = (
        # Without tokens the naive loop never touches the weights: their gradient is zero.
        torch.autograd.grad(y, inputs, direction, allow_unused=True, materialize_grads=True)
        for y in (fast, naive)
    )
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, **tolerance)


def assert_both_same(choice: str, **tolerance: float) -> None:
    x, weight, indices, assignment = project_inputs(choice)
    fast, naive = expert_project(x, weight, assignment), naive_expert_project(x, weight, indices)
    assert fast.shape == naive.shape
    if not x.numel():
        assert torch.autograd.grad(fast.sum(), weight)[0].count_nonzero() == 0
        return
    assert_same(fast, naive, (x, weight), **tolerance)
    heads, weight, scale, indices, assignment = combine_inputs(choice)
    fast = expert_combine(heads, weight, assignment, scale)
    naive = naive_expert_combine(heads, weight, indices, scale)
    assert_same(fast, naive, (heads, weight, scale), **tolerance)


@each_choice
@pytest.mark.parametrize("block_rows", [1, 7])
def test_fast_is_naive_across_blocks(choice, block_rows, monkeypatch):
    monkeypatch.setattr(products, "_BLOCK_ROWS", block_rows)
    assert_both_same(choice)


@pytest.mark.parametrize("choice", ["idle at both ends", "an expert twice", "top 1"])
def test_gradients_and_their_gradients(choice):
    x, weight, _, assignment = project_inputs(choice)

    def project(x, weight):
        return expert_project(x, weight, assignment)

    assert torch.autograd.gradcheck(project, (x, weight))
    assert torch.autograd.gradgradcheck(project, (x, weight))

    heads, weight, scale, _, assignment = combine_inputs(choice)

    def combine(heads, weight, scale):
        return expert_combine(heads, weight, assignment, scale)

    assert torch.autograd.gradcheck(combine, (heads, weight, scale))
    assert torch.autograd.gradgradcheck(combine, (heads, weight, scale))


def test_gathered_tokens_are_not_kept_for_backward():
    x, weight, indices, assignment = project_inputs("many")
    heads, w_out, scale, _, _ = combine_inputs("many")
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved.append(t.numel()) or t, lambda t: t
    ):
        expert_project(x, weight, assignment)
        expert_combine(heads, w_out, assignment, scale)
    assert saved and max(saved) < indices.numel() * EMBED


def forward_both(x, w_in, w_out, scale, indices, num_experts):
    assignment = assign_experts(indices, num_experts)
    heads = expert_project(x, w_in, assignment).tanh()
    return expert_combine(heads, w_out, assignment, scale)


def both_inputs(choice: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    torch.manual_seed(3)
    num_experts, indices = CHOICES[choice]
    return (
        leaf(len(indices), EMBED, dtype=dtype),
        leaf(num_experts, EMBED, HEAD, dtype=dtype),
        leaf(num_experts, HEAD, EMBED, dtype=dtype),
        leaf(*indices.shape, dtype=dtype),
    )


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_keeps_one_graph(dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(forward_both, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for choice in ("many", "idle at both ends", "top 1"):
        inputs = both_inputs(choice, torch.float64)
        num_experts, indices = CHOICES[choice]
        assert_same(
            compiled(*inputs, indices, num_experts),
            forward_both(*inputs, indices, num_experts),
            inputs,
        )


@pytest.mark.parametrize("choice", ["many", "idle at both ends"])
def test_operators_are_declared_right(choice):
    x, weight, _, (indices, *plan) = project_inputs(choice)
    rows = leaf(indices.numel(), HEAD)
    back = leaf(len(weight), HEAD, EMBED)
    torch.library.opcheck(torch.ops.headwise.expert_gather, (x, weight, *plan))
    torch.library.opcheck(torch.ops.headwise.expert_scatter, (rows, back, *plan, len(x)))
    for rows_first in (False, True):
        torch.library.opcheck(torch.ops.headwise.expert_outer, (x, rows, *plan, rows_first))


@pytest.mark.parametrize("backward_inside", [False, True])
def test_autocast_works_in_bfloat16(backward_inside):
    num_experts, indices = CHOICES["many"]
    inputs = both_inputs("many", torch.float32)
    x, w_in, w_out, scale = inputs
    with torch.autocast("cpu", torch.bfloat16):
        output = forward_both(*inputs, indices, num_experts)
        if backward_inside:
            output.float().square().sum().backward()
    if not backward_inside:
        output.float().square().sum().backward()
    assert output.dtype == torch.bfloat16
    assert all(t.grad.dtype == torch.float32 for t in inputs)

    # The same, cast by hand
    cast = [t.detach().bfloat16().requires_grad_() for t in (x, w_in, w_out)]
    by_hand = forward_both(*cast, scale.detach(), indices, num_experts)
    torch.testing.assert_close(output, by_hand, rtol=0, atol=0)
    by_hand.float().square().sum().backward()
    for one, other in zip(inputs, cast, strict=False):
        torch.testing.assert_close(one.grad, other.grad.float(), rtol=0, atol=0)

    exact = forward_both(*inputs, indices, num_experts)
    assert not torch.equal(output.float(), exact)
    assert (output - exact).norm() < 0.02 * exact.norm()


def test_bfloat16_sums_experts_in_float32(monkeypatch):
    monkeypatch.setattr(products, "_BLOCK_ROWS", 1)
    top_k = 8
    heads = torch.ones(1, top_k, 1, dtype=torch.bfloat16)
    heads[0, 0] = 256
    assignment = assign_experts(torch.arange(top_k)[None], top_k)
    weight = torch.ones(top_k, 1, 1, dtype=torch.bfloat16)
    # bfloat16 has no numbers between 256 and 258: added one by one, the ones would vanish.
    assert expert_combine(heads, weight, assignment, torch.ones(1, top_k)).item() == 264


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="this PyTorch has no grouped_mm")
@pytest.mark.parametrize("choice", [c for c in CHOICES if c != "no tokens"])
def test_grouped_products(choice, monkeypatch):
    # The kernel runs on CUDA in bfloat16; PyTorch's slow version of it runs anywhere.
    monkeypatch.setattr(products, "_is_looped", lambda x: False)
    monkeypatch.setattr(products, "_can_group", lambda a, b, ends: True)
    for name, value in {"EMBED": 16, "HEAD": 8, "DTYPE": torch.float32}.items():
        monkeypatch.setitem(globals(), name, value)
    assert_both_same(choice, rtol=1e-4, atol=1e-4)


@each_choice
def test_products_in_tiles(choice, monkeypatch):
    """What a GPU computes where no kernel does all experts."""
    monkeypatch.setattr(products, "_is_looped", lambda x: False)
    assert_both_same(choice)


@pytest.mark.parametrize("rows", [0, 1, 7, 64, 300])
def test_tiles_have_room_for_all_rows(rows):
    torch.manual_seed(rows)
    for experts in (1, 3, 16):
        for owner in (
            torch.randint(experts, (rows,)).sort().values,
            torch.zeros(rows, dtype=torch.long),
            torch.full((rows,), experts - 1),
        ):
            ends = torch.searchsorted(owner, torch.arange(experts), right=True, out_int32=True)
            tiles = products._Tiles.of(ends, torch.empty(rows, 1))
            x = torch.arange(1.0, rows + 1).unsqueeze(1)
            filled = tiles.fill(x)
            assert filled.shape == (len(tiles.expert), tiles.size, 1)
            torch.testing.assert_close(filled.flatten(0, 1)[tiles.place.long()], x)
            assert torch.equal(tiles.expert.long()[tiles.place.long() // tiles.size], owner)
            assert filled.count_nonzero() == rows


def on_gpu(choice: str, dtype: torch.dtype) -> None:
    """The operators' functions with tensors that pretend to be on a GPU, where no value is seen."""
    x, weight, _, (indices, *plan) = project_inputs(choice)
    rows = leaf(indices.numel(), HEAD)
    x, weight, rows = (t.detach().to("meta", dtype) for t in (x, weight, rows))
    plan = [t.to("meta") for t in plan]
    # The operators have a way of their own for meta tensors.
    operators = (products.gather_rows, products.scatter_rows, products._outer)
    gather, scatter, outer = (operator._init_fn for operator in operators)
    with PretendedGPU():
        assert gather(x, weight, *plan).shape == rows.shape
        assert scatter(rows, weight.mT, *plan, len(x)).shape == x.shape
        assert outer(x, rows, *plan, False).shape == weight.shape
        assert outer(x, rows, *plan, True).shape == weight.mT.shape


@each_choice
def test_no_product_looks_at_values(choice):
    on_gpu(choice, torch.float32)


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="this PyTorch has no grouped_mm")
@pytest.mark.parametrize(
    "capability, dtype, size, hip, groups",
    [
        ((9, 0), torch.bfloat16, 16, None, True),
        ((10, 0), torch.bfloat16, 16, None, True),
        ((8, 0), torch.bfloat16, 16, None, False),  # there it copies to the host
        ((12, 0), torch.bfloat16, 16, None, False),
        ((9, 0), torch.float32, 16, None, False),
        ((9, 0), torch.float16, 16, None, False),
        ((9, 0), torch.bfloat16, 12, None, False),
        ((9, 4), torch.bfloat16, 16, "6.4", False),
    ],
)
def test_one_kernel_where_it_does_not_wait(capability, dtype, size, hip, groups, monkeypatch):
    called = []
    grouped_mm = products._grouped_mm
    monkeypatch.setattr(
        products, "_grouped_mm", lambda *a, **k: called.append(1) or grouped_mm(*a, **k)
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    for name, value in {"EMBED": size, "HEAD": 8}.items():
        monkeypatch.setitem(globals(), name, value)
    on_gpu("many", dtype)
    assert len(called) == (4 if groups else 0)


def test_flops_are_counted():
    num_experts, indices = CHOICES["many"]
    inputs = both_inputs("many", torch.float32)
    with FlopCounterMode(display=False) as counter:
        forward_both(*inputs, indices, num_experts).sum().backward()
    # Two products forward; backward, two for each of them.
    assert counter.get_total_flops() == 6 * 2 * indices.numel() * EMBED * HEAD
