"""How alike the heads of each attention are: in what they say, and in what they look at.

What they say is compared by linear centred kernel alignment (CKA), from running sums.

Kornblith et al. 2019, *Similarity of Neural Network Representations Revisited*,
https://arxiv.org/abs/1905.00414. Of two heads whose outputs at n positions are the rows of X and Y,

    CKA(X, Y) = HSIC(X, Y) / √(HSIC(X, X) HSIC(Y, Y))

It is 1 if one is the other up to a rotation, a shift and a scale. The plain estimate, with
HSIC = |Xᵀ Y|² of centred X and Y, is far above 0 also for heads that have nothing in common, unless
there are many more positions than dimensions. So HSIC is estimated without bias (Song et al. 2012,
*Feature Selection via Dependence Maximization*), from the kernels K = X Xᵀ and L = Y Yᵀ without
their diagonals:

    HSIC = (tr K L + 1ᵀK1 · 1ᵀL1 / ((n − 1)(n − 2)) − 2 · 1ᵀK L1 / (n − 2)) / (n (n − 3))

Of independent heads the result is then 0 on average, with a standard deviation of about √2 / n for
independent positions, whatever the number of dimensions; it can be below 0.

The kernels are never made. With x_a and y_a the outputs at position a, s = Σ x_a and r = Σ y_a,

    tr K L = |Xᵀ Y|² − Σ |x_a|² |y_a|²                    1ᵀK1 = |s|² − Σ |x_a|²
    1ᵀK L1 = sᵀ Xᵀ Y r − sᵀ Σ x_a |y_a|² − rᵀ Σ y_a |x_a|² + Σ |x_a|² |y_a|²

which needs only sums over positions.
"""

import math
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from headwise.analysis.decisions.layers import Matrix
from headwise.analysis.decisions.observing import Where
from headwise.heads.attention import Attention
from headwise.heads.heads_read import HeadsRead
from headwise.models.decisions import heads_read
from headwise.models.sites import AttentionSite, heads_sites
from headwise.ops.precision import without_autocast
from headwise.pretrained.reading import attention_noted
from headwise.tasks.outcome import Record

# Attention weights of so many sequences are computed at once that they are no more numbers.
_CHUNK = 2**22
# Variance over second moment below which a head counts as saying the same at all positions.
_CONSTANT = 1e-10


class HeadsLikeness(Record):
    """How alike the heads of one attention are.

    Matrices are heads × heads and symmetric. None stands where a pair has no likeness: where one of
    them says the same at all positions, or there are too few positions.
    """

    where: Where
    unit: str  # what its heads are called: head, or expert where each is one that may be chosen
    positions: int  # number of positions whose outputs were compared
    # Linear CKA of the outputs of each pair, without bias: 1 if one is the other up to a
    # rotation, a shift and a scale, 0 on average if they are independent.
    outputs: Matrix
    queries: int  # number of positions that could attend to several others
    # Share of the attention that each pair gives to the same keys, the mean over queries of Σ
    # min(a, b): 1 if they attend alike, 0 if to different keys; of a head with itself the sum of
    # its row, which may be less than 1 where there are sinks or attention is signed.
    attention: Matrix
    mean_outputs: float | None  # mean of `outputs` over pairs of heads
    mean_attention: float | None  # mean of `attention` over pairs of heads
    most_alike_outputs: tuple[int, int] | None  # the pair of heads whose outputs are most alike
    most_alike_attention: tuple[int, int] | None  # and whose attention is most alike


class SystemLikeness(Record):
    """How alike the heads of one system are: means over its attentions of their means."""

    system: str  # the system's name in plans
    modules: int  # number of its attentions
    outputs: float | None  # mean linear CKA of the outputs of two heads
    attention: float | None  # mean overlap of the attention of two heads


class ModelLikeness(Record):
    """How alike the heads of a model are."""

    systems: list[SystemLikeness]
    modules: list[HeadsLikeness]


class Likeness:
    """While it is open as a context, the passes of a model are counted.

    Heads are compared at the same positions. So where each token chooses its heads, all of them are
    computed at all positions, also where they were not chosen: the likeness is that of what heads
    would say of the same token. Padding counts nowhere. Of attention, queries with a single key are
    left out, since all heads attend to it alike.

    It keeps sums alone: (heads · head_dim)² numbers for each attention.

    Args:
        model: any module that holds attentions of headwise or of your own; in evaluation, since
            dropout makes heads unlike.

    Attributes:
        padding: what is padding in the passes to come, for attentions that are not told: `encoder`,
            `decoder` or the empty stack to `(batch, time)`, `True` at padding.

    Example:
        >>> import headwise as hw
        >>> attention = hw.MultiHeadAttention(16, 2).eval()
        >>> with torch.no_grad():  # the second head is a copy of the first
        ...     for proj in (attention.q_proj, attention.k_proj, attention.v_proj):
        ...         proj.weight[8:] = proj.weight[:8]
        >>> with Likeness(attention) as likeness:
        ...     y = attention(torch.randn(4, 10, 16))
        >>> (made,) = likeness.result().modules
        >>> round(made.mean_outputs, 3), round(made.mean_attention, 3)
        (1.0, 1.0)
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.padding: Mapping[str, Tensor] = {}
        self.counters: dict[AttentionSite, _Counter] = {}
        self._observing: ExitStack | None = None

    def __enter__(self) -> Self:
        self._observing = ExitStack()
        if heads_sites(self.model):  # a system may have no heads, or none that it shows
            self._observing.enter_context(heads_read(self.model, self._note))
            self._observing.enter_context(attention_noted(self.model, self._note_given))
        return self

    def __exit__(self, *error: Any) -> None:
        observing, self._observing = self._observing, None
        assert observing is not None, "a context is entered before it is left"
        observing.__exit__(*error)

    def result(self) -> ModelLikeness | None:
        """Returns how alike the heads are in all passes so far; None if no two were observed."""
        modules = [
            counter.record(place) for place, counter in self.counters.items() if counter.heads > 1
        ]
        if not modules:
            return None
        names = list(dict.fromkeys(module.where.system for module in modules))
        systems = []
        for name in names:
            own = [module for module in modules if module.where.system == name]
            systems.append(
                SystemLikeness(
                    system=name,
                    modules=len(own),
                    outputs=_mean(module.mean_outputs for module in own),
                    attention=_mean(module.mean_attention for module in own),
                )
            )
        return ModelLikeness(systems=systems, modules=modules)

    @torch.no_grad()
    def _note(self, place: AttentionSite, read: HeadsRead) -> None:
        if read.chosen is not None and not _tells_of_every_head(read.attention):
            return
        every = read.every_head()  # as the call computes: under its autocast, if it has one
        with without_autocast(read.q):
            counter = self.counters.setdefault(place, _Counter())
            counter.add(every, self._real(place, read))
        # An expert may have several heads, one for each head of keys.
        if read.chosen is not None and read.routing is not None:
            counter.heads_are_units = read.num_heads == read.routing.weights.size(-1)

    @torch.no_grad()
    def _note_given(self, place: AttentionSite, weights: Tensor) -> None:
        if place in self.counters:  # the outputs of the call are noted before
            with without_autocast(weights):
                self.counters[place].add_given(weights)

    def _real(self, place: AttentionSite, read: HeadsRead) -> Tensor:
        """Which queries are none of padding, `(batch, queries)`."""
        shape = (read.outputs.size(0), read.outputs.size(2))
        padding = read.inputs.query_padding
        if padding is None:
            padding = self.padding.get(place.stack)
        if padding is None or padding.shape != shape:
            return torch.ones(shape, dtype=torch.bool, device=read.outputs.device)
        return ~padding.to(read.outputs.device)


class _Counter:
    """Sums over the calls of one attention."""

    def __init__(self) -> None:
        self.heads = 0
        self.heads_are_units = False
        self.moments = HeadMoments()
        self.queries = 0
        self.overlap: Tensor | None = None  # (heads, heads), summed over queries
        self.real: Tensor | None = None  # of the last call, `(batch, queries)`

    def add(self, read: HeadsRead, real: Tensor) -> None:
        batch, self.heads, queries, _ = read.outputs.shape
        self.moments.add(read.outputs.transpose(1, 2)[real])
        self.real = real
        # Over heads of another module, a system knows neither its queries nor its keys.
        if read.attention.heads_are_given:
            return
        # What a single head may not attend to, it does not share with the others.
        keys = read.attended().sum(-1)  # broadcasts to (batch, heads, queries)
        several = keys.broadcast_to(batch, self.heads, queries).amin(1) > 1
        self._add_attention(read, real & several)

    def _add_attention(self, read: HeadsRead, counted: Tensor) -> None:
        batch, heads, queries, _ = read.q.shape
        wide = torch.promote_types(read.q.dtype, torch.float32)  # bf16 has too few digits
        read = read._replace(q=read.q.to(wide), k=read.k.to(wide))
        size = max(1, _CHUNK // (heads * queries * read.k.size(2)))
        for start in range(0, batch, size):
            chunk = slice(start, start + size)
            self._add_rows(read.weights(chunk).transpose(1, 2)[counted[chunk]])

    def add_given(self, weights: Tensor) -> None:
        """Counts attention that another module has computed, `(batch, heads, queries, keys)`."""
        if self.real is None or self.real.shape != weights[:, 0, :, 0].shape:
            return  # texts that were packed into a row
        several = (weights != 0).any(1).sum(-1) > 1
        self._add_rows(weights.transpose(1, 2)[self.real & several].float())

    def _add_rows(self, weights: Tensor) -> None:
        """Counts what the heads share at some queries, `(rows, heads, keys)`."""
        # Σ min(a, b) = (Σ a + Σ b − Σ |a − b|) / 2, also where rows do not sum to 1, as with sinks.
        sums = weights.sum(-1)
        shared = (sums[:, :, None] + sums[:, None] - torch.cdist(weights, weights, p=1)) / 2
        total = shared.sum(0, dtype=torch.float64)
        self.overlap = total if self.overlap is None else self.overlap + total
        self.queries += len(weights)

    def record(self, place: AttentionSite) -> HeadsLikeness:
        outputs = self.moments.cka() if self.moments.count else _nothing(self.heads)
        attention = _nothing(self.heads)
        if self.overlap is not None and self.queries:
            attention = self.overlap / self.queries
        where = Where.of(place.system).model_copy(
            update={"site": place.site, "path": place.path, "whole_layer": False}
        )
        return HeadsLikeness(
            where=where,
            unit=place.module.words.unit if self.heads_are_units else "head",
            positions=self.moments.count,
            outputs=_known(outputs),
            queries=self.queries,
            attention=_known(attention),
            mean_outputs=_mean(_pairs(outputs)),
            mean_attention=_mean(_pairs(attention)),
            most_alike_outputs=_most_alike(outputs),
            most_alike_attention=_most_alike(attention),
        )


def _tells_of_every_head(module: Attention) -> bool:
    return type(module).queries_of_every_head is not Attention.queries_of_every_head


def _nothing(heads: int) -> Tensor:
    return torch.full((heads, heads), torch.nan, dtype=torch.float64)


def _known(matrix: Tensor) -> Matrix:
    return [[None if math.isnan(value) else value for value in row] for row in matrix.tolist()]


def _pairs(matrix: Tensor) -> list[float]:
    """The entries above the diagonal."""
    return matrix[torch.ones_like(matrix, dtype=torch.bool).triu(1)].tolist()


def _most_alike(matrix: Tensor) -> tuple[int, int] | None:
    above = torch.ones_like(matrix, dtype=torch.bool).triu(1) & ~matrix.isnan()
    if not above.any():
        return None
    first, second = divmod(int(matrix.masked_fill(~above, -torch.inf).argmax()), len(matrix))
    return first, second


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None and not math.isnan(value)]
    return fmean(known) if known else None


class HeadMoments:
    """Sums over positions from which the CKA of all pairs of heads follows.

    Their memory is (heads · head_dim)² numbers, however many positions are added.

    Example:
        >>> outputs = torch.randn(50, 1, 4)  # positions, heads, head_dim
        >>> rotation, _ = torch.linalg.qr(torch.randn(4, 4))
        >>> moments = HeadMoments()
        >>> moments.add(torch.cat([outputs, 3 * outputs @ rotation + 1], dim=1))
        >>> round(float(moments.cka()[0, 1]), 3)
        1.0
    """

    def __init__(self) -> None:
        self.count = 0
        self.shift: Tensor | None = None  # (heads, head_dim)
        self.sums: dict[str, Tensor] = {}

    def add(self, outputs: Tensor) -> None:
        """Counts outputs of heads, `(positions, heads, head_dim)`, no padding among them."""
        if not len(outputs):
            return
        x = outputs.detach().to(torch.promote_types(outputs.dtype, torch.float32))
        if self.shift is None:
            # HSIC is the same with any shift. One near the mean spares digits in the sums.
            self.shift = x.mean(0)
        second_moments = x.square().sum((0, 2))
        x = x - self.shift
        flat = x.flatten(1)  # (positions, heads * head_dim)
        squares = x.square().sum(-1)  # (positions, heads)
        sums = {
            "moments": second_moments,  # of the heads, not shifted
            "x": flat.sum(0),
            "xy": flat.t() @ flat,
            "x_squares": flat.t() @ squares,
            "squares": squares.sum(0),
            "squares_squares": squares.t() @ squares,
        }
        for name, value in sums.items():
            if name not in self.sums:
                self.sums[name] = torch.zeros_like(value, dtype=torch.float64)
            self.sums[name] += value
        self.count += len(x)

    def cka(self) -> Tensor:
        """Returns the CKA of each pair of heads, `(heads, heads)` in float64.

        NaN at pairs with a head that says the same at all positions; everywhere if there are fewer
        than four positions, for which HSIC has no such estimate.
        """
        if self.shift is None:
            return torch.full((0, 0), torch.nan)
        heads = self.shift.size(0)
        if self.count < 4:
            return torch.full((heads, heads), torch.nan, dtype=torch.float64)
        hsic = self._hsic(heads)
        squares = self.sums["squares"] - self._by_head("x", heads).square().sum(1) / self.count
        varies = (squares > _CONSTANT * self.sums["moments"]) & (hsic.diagonal() > 0)
        scale = torch.where(varies, hsic.diagonal(), torch.nan).sqrt()
        return hsic / (scale[:, None] * scale)

    def _hsic(self, heads: int) -> Tensor:
        """The estimate for each pair, `(heads, heads)`."""
        n, both = self.count, self.sums["squares_squares"]
        s, x_squares = self._by_head("x", heads), self._by_head("x_squares", heads)
        xy = self.sums["xy"].unflatten(0, (heads, -1)).unflatten(2, (heads, -1))
        traces = xy.square().sum((1, 3)) - both
        totals = s.square().sum(1) - self.sums["squares"]
        crossed = torch.einsum("hd,hdj->hj", s, x_squares)
        products = torch.einsum("hd,hdje,je->hj", s, xy, s) - crossed - crossed.t() + both
        estimate = traces + torch.outer(totals, totals) / ((n - 1) * (n - 2))
        return (estimate - 2 * products / (n - 2)) / (n * (n - 3))

    def _by_head(self, name: str, heads: int) -> Tensor:
        return self.sums[name].unflatten(0, (heads, -1))
