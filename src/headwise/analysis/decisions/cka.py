"""Linear centred kernel alignment (CKA) between heads, from running sums.

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

import torch
from torch import Tensor

# Variance over second moment below which a head counts as saying the same at all positions.
_CONSTANT = 1e-10


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
