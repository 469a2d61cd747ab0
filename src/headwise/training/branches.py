"""What the Weighted Transformer needs while training: κ and α on the simplex, and frozen in time.

Ahmed et al. 2017, *Weighted Transformer Network for Machine Translation*,
https://arxiv.org/abs/1711.02132, sections 3 and 4.1.

After each optimizer step κ and α are projected back onto the simplex. They have a learning rate of
their own, (d/N)^-0.5 · min(s^-0.5, s · 400^-1.5) at step s in a model of N layers, and do not
change in the last steps, while the rest goes on learning.
"""

import torch
from torch import nn

from headwise.heads.weighted import BranchedAttention
from headwise.ops.simplex import project_to_simplex
from headwise.training.settings import BranchSettings


def branched_attentions(model: nn.Module) -> dict[str, BranchedAttention]:
    """The branched attentions of a model by their path in it; empty without any."""
    named = model.named_modules()
    return {path: module for path, module in named if isinstance(module, BranchedAttention)}


def branch_parameters(model: nn.Module) -> list[nn.Parameter]:
    """κ and α of all branched attentions.

    >>> [p.tolist() for p in branch_parameters(BranchedAttention(8, 1, 16))]
    [[1.0], [1.0]]
    """
    layers = branched_attentions(model).values()
    return [parameter for layer in layers for parameter in (layer.kappa, layer.alpha)]


@torch.no_grad()
def project_branches(model: nn.Module) -> None:
    """Move each κ and α that learns to the nearest point of the simplex."""
    for parameter in branch_parameters(model):
        if parameter.requires_grad:
            parameter.copy_(project_to_simplex(parameter))


def branch_weights(model: nn.Module) -> dict[str, dict[str, list[float]]]:
    """κ and α as they are now, by the path of each branched attention: a point of its course.

    >>> branch_weights(nn.ModuleList([BranchedAttention(8, 1, 16)]))
    {'0': {'kappa': [1.0], 'alpha': [1.0]}}
    """
    return {
        path: {"kappa": layer.kappa.tolist(), "alpha": layer.alpha.tolist()}
        for path, layer in branched_attentions(model).items()
    }


def peak_learning_rate(settings: BranchSettings, embed_dim: int, num_layers: int) -> float:
    """The learning rate of κ and α at the end of their warm-up.

    >>> round(peak_learning_rate(BranchSettings(), embed_dim=512, num_layers=6), 5)
    0.00541
    """
    if settings.learning_rate is not None:
        return settings.learning_rate
    return float((embed_dim / num_layers) ** -0.5 * settings.warmup_steps**-0.5)


def frozen_steps(settings: BranchSettings, total: int) -> int:
    """In how many steps at the end of a run of `total` κ and α stay as they are.

    Raises:
        ValueError: in more than there are.

    >>> frozen_steps(BranchSettings(), 60_000)
    10000
    """
    if settings.freeze_last is None:
        return total // 6
    if settings.freeze_last > total:
        raise ValueError(
            f"branches.freeze_last is {settings.freeze_last}, but the run has {total} steps: give "
            f"at most that, or leave it out for a sixth of the run"
        )
    return settings.freeze_last
