"""The three products of expert matrices, as operators with gradients.

    gather    rows[r] = x[token of r] W[expert of r]
    scatter   y[n]    = Σ_{r of token n}   rows[r] W[expert of r]
    outer     W[e]    = Σ_{r of expert e}  x[token of r]ᵀ rows[r]

r are assignments of tokens to experts, sorted by expert so that each expert multiplies one dense
block of rows. `order` `(assignments,)` has the numbers r in that order, `token` their tokens, and
expert e owns those from `ends[e - 1]` to `ends[e]`. `rows` are in the order of the tokens; sorted
by expert they are `rows[order]`. The gradient of each product is made of the other two.

On the CPU a loop multiplies block by block. On any other device the host would have to wait to know
`ends`: there one kernel does all experts where PyTorch has it, and otherwise tiles of equally many
rows, whose number does not depend on `ends`.
"""

import functools
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from headwise.ops.precision import without_autocast

_BLOCK_ROWS = 1024


def _in_one_dtype(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The operator without autocast, which would compute parts of it in another dtype."""

    @functools.wraps(product)
    def computed(x: Tensor, *others: Any) -> Tensor:
        with without_autocast(x):
            return product(x, *others)

    return computed


# They are registered as operators so that torch.compile leaves them whole instead of breaking its
# graph at the loops, whose slices depend on the data.


@torch.library.custom_op("headwise::expert_gather", mutates_args=())
@_in_one_dtype
def gather_rows(x: Tensor, weight: Tensor, order: Tensor, token: Tensor, ends: Tensor) -> Tensor:
    """Each token by the matrices of its experts: x `(tokens, a)` to rows `(assignments, b)`."""
    if not _is_looped(x):
        sorted_rows = _multiply(x.index_select(0, token), weight, ends)
    else:
        sorted_rows = x.new_empty(len(token), weight.shape[2])
        for block in _blocks(token, ends, x, x.shape[1]):
            gathered = _select(x, block)
            out = sorted_rows[block.rows].split(block.counts)
            for g, w, o in zip(gathered, weight[block.experts], out, strict=True):
                torch.mm(g, w, out=o)
    return torch.empty_like(sorted_rows).index_copy_(0, order, sorted_rows)


@torch.library.custom_op("headwise::expert_scatter", mutates_args=())
@_in_one_dtype
def scatter_rows(
    rows: Tensor, weight: Tensor, order: Tensor, token: Tensor, ends: Tensor, tokens: int
) -> Tensor:
    """The sum of each token's rows by their experts: rows `(assignments, b)` to `(tokens, a)`."""
    sorted_rows = rows.index_select(0, order)
    if not _is_looped(rows):
        products = _multiply(sorted_rows, weight, ends)
        # Back to the order of the tokens and summed: atomic additions would not be reproducible.
        products = torch.empty_like(products).index_copy_(0, order, products)
        top_k = len(order) // max(tokens, 1)
        return products.view(tokens, top_k, weight.shape[2]).sum(1)
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
@_in_one_dtype
def _outer(
    x: Tensor, rows: Tensor, order: Tensor, token: Tensor, ends: Tensor, rows_first: bool
) -> Tensor:
    # x (tokens, a), rows (assignments, b) -> weight (experts, a, b); (experts, b, a) if rows_first,
    # for a gradient that does not have its parameter's layout would be copied once more.
    sorted_rows = rows.index_select(0, order)
    if not _is_looped(x):
        gathered = x.index_select(0, token)
        a, b = (sorted_rows, gathered) if rows_first else (gathered, sorted_rows)
        return _sum_products(a, b, ends)
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


def _is_looped(x: Tensor) -> bool:
    """Whether the host can read `ends` at no cost."""
    return x.device.type == "cpu"


def _multiply(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Each row by the matrix of its expert, where the rows are sorted by expert."""
    if _can_group(rows, weight, ends):
        return _grouped_mm(rows, weight, offs=ends)
    tiles = _Tiles.of(ends, rows)
    if weight.stride(1) == 1:  # a view with its last dimensions exchanged, as backward passes it
        chosen = weight.transpose(1, 2).index_select(0, tiles.expert).transpose(1, 2)
    else:
        chosen = weight.index_select(0, tiles.expert)
    products = torch.bmm(tiles.fill(rows), chosen).flatten(0, 1)
    return products if tiles.size == 1 else products.index_select(0, tiles.place)


def _sum_products(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """The sum of aᵀb over the rows of each expert, where the rows are sorted by expert."""
    if _can_group(a, b, ends):
        sums = _grouped_mm(a.t(), b, offs=ends)
        # On some GPUs the kernel leaves the matrix of an expert without tokens unwritten.
        idle = ends.diff(prepend=ends.new_zeros(1)) == 0
        return sums.masked_fill_(idle[:, None, None], 0.0)
    tiles = _Tiles.of(ends, a)
    products = torch.bmm(tiles.fill(a).transpose(1, 2), tiles.fill(b))
    # A product sums them in the same order each time, which atomic additions would not.
    experts = torch.arange(len(ends), device=ends.device)
    of_expert = (experts.unsqueeze(1) == tiles.expert).to(products.dtype)
    return (of_expert @ products.flatten(1)).unflatten(1, products.shape[1:])


# It has a public name from PyTorch 2.10 on.
_grouped_mm: Any = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)


def _can_group(a: Tensor, b: Tensor, ends: Tensor) -> bool:
    """Whether one CUDA kernel does all experts, and none of them waits for the host.

    It takes bfloat16 with rows aligned to 16 bytes, and fewer than 1024 experts, on GPUs of compute
    capability 9, and 10 with recent releases. For all else `grouped_mm` copies `ends` to the host
    and loops over experts, or raises.
    """
    capabilities = (9, 10) if hasattr(F, "grouped_mm") else (9,)
    return (
        a.is_cuda
        and _grouped_mm is not None
        and torch.version.hip is None
        and a.dtype == b.dtype == torch.bfloat16
        and torch.cuda.get_device_capability(a.device)[0] in capabilities
        and a.shape[0] > 0
        and len(ends) < 1024
        and all(size % 8 == 0 for size in (a.shape[-1], *b.shape[1:], b.storage_offset()))
    )


class _Tiles(NamedTuple):
    """Rows sorted by expert in tiles of equally many, each of one expert; some rows stay empty."""

    expert: Tensor  # (tiles,)
    place: Tensor  # (rows,) where each row stands among those of all tiles
    size: int  # rows of a tile

    @classmethod
    def of(cls, ends: Tensor, rows: Tensor) -> "_Tiles":
        # So many that a quarter of all rows may stay empty, or that each row is a tile.
        size = 1 << max(0, (len(rows) // (4 * len(ends))).bit_length() - 1)
        number = (len(rows) + min(len(ends), len(rows)) * (size - 1)) // size
        index = torch.arange(max(len(rows), number), device=ends.device, dtype=ends.dtype)
        owner = torch.searchsorted(ends, index[: len(rows)], right=True)
        if size == 1:
            return cls(owner, index, size)
        counts = ends.diff(prepend=ends.new_zeros(1))
        tiles = (counts + (size - 1)) // size
        last = tiles.cumsum(0)
        expert = torch.searchsorted(last, index[:number].to(last.dtype), right=True)
        moved = (last - tiles) * size - (ends - counts)  # how far the rows of each expert move
        place = index[: len(rows)] + moved.index_select(0, owner)
        return cls(expert.clamp_(max=len(ends) - 1), place, size)  # empty tiles are the last's

    def fill(self, rows: Tensor) -> Tensor:
        """`(rows, width)` to `(tiles, size, width)`."""
        if self.size == 1:
            return rows.unsqueeze(1)
        room = rows.new_zeros(len(self.expert) * self.size, rows.shape[1])
        return room.index_copy_(0, self.place, rows).unflatten(0, (-1, self.size))


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
