"""What every way of routing needs: votes by capsule, their sums, EM's constants."""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

# The least variance of a capsule. With one head, or heads that agree exactly, it would be 0.
VARIANCE_FLOOR = 1e-6
# The least variance of costs that are standardised.
COST_FLOOR = 1e-9
# The limit of λ over the iterations. With that of Hinton et al. 2018, 0.01, activations decide
# nothing.
INVERSE_TEMPERATURE = 100.0
# log σ + this is the entropy of a normal distribution.
ENTROPY = (1 + math.log(2 * math.pi)) / 2


# Over what the weights C of simple routing sum to 1, and what EM routing makes of costs.
Normalize = Literal["capsules", "heads"]
Activation = Literal["sigmoid", "standardised", "none"]


class Routed(NamedTuple):
    """What routing makes of votes.

    Attributes:
        output: the capsules, one after the other, `(..., embed_dim)`, in the dtype of the votes.
        weights: how much each head counts, `(..., heads)`: the mean over capsules of its share
            C_{h→n} / Σ_h C_{h→n} in the last iteration. Sums to 1; has no gradient.
        heard: to how many heads a capsule listens, `(...)`: 1 / Σ_h share², the mean over capsules.
    """

    output: Tensor
    weights: Tensor
    heard: Tensor


def plain_routed(output: Tensor, share: Tensor, dtype: torch.dtype) -> Routed:
    """From capsules `(..., capsules, dims)` and shares in them `(..., heads, capsules)`."""
    share = share.detach()
    return Routed(output.flatten(-2).to(dtype), share.mean(-1), heads_heard(share, over=-2))


def by_capsule(votes: Tensor, num_capsules: int | None) -> Tensor:
    """Divides the last dimension into capsules: `(..., capsules, dims)`, in float32 at least.

    Without a number each capsule has one dimension.
    """
    return votes.to(widened(votes.dtype)).unflatten(-1, (num_capsules or votes.size(-1), -1))


def widened(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def constant(like: Tensor, value: float) -> Tensor:
    """A tensor that is `value` throughout, in the memory of one number."""
    return like.new_full((1,) * like.dim(), value).expand(like.shape)


def first_shares(votes: Tensor, shares: tuple[float, ...] | None) -> Tensor:
    """The shares of the first iteration, `(heads, tokens, capsules)`: equal ones if not given."""
    if shares is None:
        return constant(votes[..., 0], 1 / votes.size(0))
    return votes.new_tensor(shares).view(-1, 1, 1).expand(votes.shape[:3])


def weighted_sum(weights: Tensor, votes: Tensor) -> Tensor:
    """Returns the sum of the votes over heads, weighted by `weights`."""
    return (weights.unsqueeze(-1) * votes).sum(0)


def mean_over_heads(votes: Tensor) -> Tensor:
    """What `weighted_sum` gives for equal shares: to the digit where heads are a power of 2."""
    return votes.sum(0).mul_(1 / votes.size(0))


def heads_heard(share: Tensor, over: int = 0) -> Tensor:
    """1 / Σ_h share², the mean over capsules (the last dimension); heads are in `over`."""
    return share.square().sum(over).reciprocal().mean(-1)


def over_dims(x: Tensor) -> Tensor:
    """Sums over the dimensions of a capsule; if there is only one, as usual, it is dropped."""
    return x.squeeze(-1) if x.size(-1) == 1 else x.sum(-1)


def exponential(log: Tensor) -> Tensor:
    """e to the power of `log`, but no less than twice the smallest normal number.

    A CPU takes fifty times as long for powers that vanish, and routing, once trained, is so sure
    that most weights C do.
    """
    least = 2 * torch.finfo(log.dtype).smallest_normal  # the smallest itself may be rounded below
    return log.clamp(min=math.log(least)).exp()
