"""Which parameters of a model are its gates, and which of them weight decay acts on.

Each system says which its gates are: what fine-tuning may be limited to (FTG of Peng et al. 2020,
https://arxiv.org/abs/2005.06537, section 5.2), or to these and the output projections (FTG+).
"""

from collections.abc import Callable

from torch import nn

from headwise.heads.system import System

_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._BatchNorm)


def gate_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters by which systems decide how heads are combined: gates, routers and the like
    (φ of the paper above); empty if none decides.

    >>> import headwise as hw
    >>> sum(p.numel() for p in gate_parameters(hw.GatedAttention(8, 2)))
    16
    """
    return parameters_of_systems(model, lambda system: system.routing_parameters)


def output_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters by which systems map what their heads have read to the model's width."""
    return parameters_of_systems(model, lambda system: system.output_parameters)


def non_gate_parameters(model: nn.Module) -> list[nn.Parameter]:
    """All parameters that belong to no gate (θ of the paper); tied parameters once."""
    gates = {id(parameter) for parameter in gate_parameters(model)}
    return [parameter for parameter in model.parameters() if id(parameter) not in gates]


def decayed_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Those that weight decay acts on: matrices and embeddings, no norms, biases or scalars, and
    none that a system names in `System.no_decay`.

    >>> layer = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    >>> [tuple(parameter.shape) for parameter in decayed_parameters(layer)]
    [(3, 2)]
    """
    spared = {id(p) for p in parameters_of_systems(model, lambda system: system.no_decay)}
    norms = (module for module in model.modules() if isinstance(module, _NORMS))
    spared |= {id(parameter) for norm in norms for parameter in norm.parameters()}
    return [
        parameter
        for name, parameter in model.named_parameters()
        if parameter.dim() > 1 and not name.endswith("bias") and id(parameter) not in spared
    ]


def parameters_of_systems(
    model: nn.Module, names: Callable[[System], tuple[str, ...]]
) -> list[nn.Parameter]:
    """Some parameters of the systems of a model, each once; `names` says how their names begin."""
    found = [
        parameter
        for system in model.modules()
        if isinstance(system, System)
        for name, parameter in system.named_parameters()
        if name.startswith(names(system))
    ]
    return list(dict.fromkeys(found))
