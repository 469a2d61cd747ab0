"""The three products of expert matrices, as operators with gradients.

    gather    rows[r] = x[token of r] W[expert of r]
    scatter   y[n]    = Σ_{r of token n}   rows[r] W[expert of r]
    outer     W[e]    = Σ_{r of expert e}  x[token of r]ᵀ rows[r]

r are assignments of tokens to experts, sorted by expert so that each expert multiplies one dense
block of rows. `order` `(assignments,)` has the numbers r in that order, `token` their tokens, and
expert e owns those from `ends[e - 1]` to `ends[e]`. `rows` are in the order of the tokens; sorted
by expert they are `rows[order]`. The gradient of each product is made of the other two.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

_BLOCK_ROWS = 1024


# They are registered as operators so that torch.compile leaves them whole instead of breaking its
# graph at the loops, whose slices depend on the data.


@torch.library.custom_op("headwise::expert_gather", mutates_args=())
def gather_rows(x: Tensor, weight: Tensor, order: Tensor, token: Tensor, ends: Tensor) -> Tensor:
    """Each token by the matrices of its experts: x `(tokens, a)` to rows `(assignments, b)`."""
    if _can_group(x, weight):
        sorted_rows = F.grouped_mm(x.index_select(0, token), weight, offs=ends)
    else:
        sorted_rows = x.new_empty(len(token), weight.shape[2])
        for block in _blocks(token, ends, x, x.shape[1]):
            gathered = _select(x, block)
            out = sorted_rows[block.rows].split(block.counts)
            for g, w, o in zip(gathered, weight[block.experts], out, strict=True):
                torch.mm(g, w, out=o)
    return torch.empty_like(sorted_rows).index_copy_(0, order, sorted_rows)


@torch.library.custom_op("headwise::expert_scatter", mutates_args=())
def scatter_rows(
    rows: Tensor, weight: Tensor, order: Tensor, token: Tensor, ends: Tensor, tokens: int
) -> Tensor:
    """The sum of each token's rows by their experts: rows `(assignments, b)` to `(tokens, a)`."""
    sorted_rows = rows.index_select(0, order)
    if _can_group(rows, weight):
        products = F.grouped_mm(sorted_rows, weight, offs=ends)
        # Back to the order of the tokens and summed: atomic additions would not be reproducible.
        products = torch.empty_like(products).index_copy_(0, order, products)
        return products.view(tokens, -1, weight.shape[2]).sum(1)
    # In half precision the sum over a token's experts would be rounded after each of them.
    exact = torch.promote_types(rows.dtype, torch.float32)
    y = rows.new_zeros(tokens, weight.shape[2], dtype=exact)
    zero = rows.new_zeros(weight.shape[2])
    for block in _blocks(token, ends, rows, weight.shape[2]):
        block_rows = sorted_rows[block.rows].split(block.counts)
        out = block.buffer.split(block.counts)
        for r, w, o in zip(block_rows, weight[block.experts], out, strict=True):
            # addmm, because MKL's mm of fewer than 256 rows tends to use one thread only.
            torch.addmm(zero, r, w, out=o)
        y.index_add_(0, block.token, block.buffer.to(exact))
    return y.to(rows.dtype)


@torch.library.custom_op("headwise::expert_outer", mutates_args=())
def _outer(
    x: Tensor, rows: Tensor, order: Tensor, token: Tensor, ends: Tensor, rows_first: bool
) -> Tensor:
    # x (tokens, a), rows (assignments, b) -> weight (experts, a, b); (experts, b, a) if rows_first,
    # for a gradient that does not have its parameter's layout would be copied once more.
    sorted_rows = rows.index_select(0, order)
    if _can_group(x, rows):
        gathered = x.index_select(0, token)
        a, b = (sorted_rows, gathered) if rows_first else (gathered, sorted_rows)
        weight = F.grouped_mm(a.t(), b, offs=ends)
        # On some GPUs the kernel leaves the matrix of an expert without tokens unwritten.
        idle = ends.diff(prepend=ends.new_zeros(1)) == 0
        return weight.masked_fill_(idle[:, None, None], 0.0)
    shape = (rows.shape[1], x.shape[1]) if rows_first else (x.shape[1], rows.shape[1])
    weight = x.new_empty(len(ends), *shape)
    for block in _blocks(token, ends, x, x.shape[1]):
        left = _select(x, block)
        right = sorted_rows[block.rows].split(block.counts)
        if rows_first:
            left, right = right, left
        for f, g, o in zip(left, right, weight[block.experts], strict=True):
            torch.mm(f.t(), g, out=o)
    return weight


def _can_group(a: Tensor, b: Tensor) -> bool:
    """Whether one CUDA kernel can do all experts: bfloat16, rows aligned to 16 bytes."""
    return (
        a.is_cuda
        and hasattr(F, "grouped_mm")
        and a.dtype == b.dtype == torch.bfloat16
        and torch.cuda.get_device_capability(a.device) >= (8, 0)
        and a.shape[0] > 0
        and all(size % 8 == 0 for size in (a.shape[-1], *b.shape[1:]))
    )


class _Block(NamedTuple):
    """Consecutive experts, the assignments sorted to them, and the buffer for their rows."""

    experts: slice
    rows: slice  # their assignments, among those sorted by expert
    counts: list[int]  # how many of these each expert has
    token: Tensor  # (rows,)
    buffer: Tensor  # (rows, width)


def _blocks(token: Tensor, ends: Tensor, like: Tensor, width: int) -> Iterator[_Block]:
    """Cut the experts into consecutive blocks of about _BLOCK_ROWS assignments.

    A block's rows are few enough to stay in cache, and enough that moving them is one large
    operation rather than one per expert. The blocks share a buffer: fresh memory would cost page
    faults.
    """
    bounds = [0, *ends.tolist()]
    counts = [end - start for start, end in pairwise(bounds)]
    memory = like.new_empty(min(len(token), _BLOCK_ROWS + max(counts)), width)
    first = 0
    for last in range(1, len(bounds)):
        rows = slice(bounds[first], bounds[last])
        size = rows.stop - rows.start
        if size >= _BLOCK_ROWS or last == len(counts):
            yield _Block(slice(first, last), rows, counts[first:last], token[rows], memory[:size])
            first = last


def _select(x: Tensor, block: _Block) -> tuple[Tensor, ...]:
    """The rows of x that a block's experts see, expert by expert, in the block's buffer."""
    return torch.index_select(x, 0, block.token, out=block.buffer).split(block.counts)


@gather_rows.register_fake
def _(x: Tensor, weight: Tensor, order: Tensor, token: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(token.shape[0], weight.shape[2])


@scatter_rows.register_fake
def _(
    rows: Tensor, weight: Tensor, order: Tensor, token: Tensor, ends: Tensor, tokens: int
) -> Tensor:
    return rows.new_empty(tokens, weight.shape[2])


@_outer.register_fake
def _(
    x: Tensor, rows: Tensor, order: Tensor, token: Tensor, ends: Tensor, rows_first: bool
) -> Tensor:
    a, b = (rows, x) if rows_first else (x, rows)
    return x.new_empty(ends.shape[0], a.shape[1], b.shape[1])


def _save_for_backward(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.rows_first = inputs[-1] is True  # of _outer


def _gather_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, *plan = ctx.saved_tensors
    need_x, need_weight = ctx.needs_input_grad[:2]
    back = weight.transpose(1, 2)
    grad_x = scatter_rows(grad, back, *plan, x.shape[0]) if need_x else None
    grad_weight = _outer(x, grad, *plan, False) if need_weight else None
    return grad_x, grad_weight, None, None, None


def _scatter_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    rows, weight, *plan = ctx.saved_tensors
    need_rows, need_weight = ctx.needs_input_grad[:2]
    grad_rows = gather_rows(grad, weight.transpose(1, 2), *plan) if need_rows else None
    grad_weight = _outer(grad, rows, *plan, True) if need_weight else None
    return grad_rows, grad_weight, None, None, None, None


def _outer_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, rows, *plan = ctx.saved_tensors
    need_x, need_rows = ctx.needs_input_grad[:2]
    to_x = grad if ctx.rows_first else grad.transpose(1, 2)  # (experts, b, a)
    grad_x = scatter_rows(rows, to_x, *plan, x.shape[0]) if need_x else None
    grad_rows = gather_rows(x, to_x.transpose(1, 2), *plan) if need_rows else None
    return grad_x, grad_rows, None, None, None, None


_BACKWARDS = {
    gather_rows: _gather_backward,
    scatter_rows: _scatter_backward,
    _outer: _outer_backward,
}
for _operator, _backward in _BACKWARDS.items():
    _operator.register_autograd(_backward, setup_context=_save_for_backward)


@register_flop_formula([torch.ops.headwise.expert_gather, torch.ops.headwise.expert_scatter])
def _product_flops(a: tuple, weight: tuple, order: tuple, *_: Any, **__: Any) -> int:
    return 2 * order[0] * weight[1] * weight[2]


@register_flop_formula(torch.ops.headwise.expert_outer)
def _outer_flops(x: tuple, rows: tuple, order: tuple, *_: Any, **__: Any) -> int:
    return 2 * order[0] * x[1] * rows[1]
