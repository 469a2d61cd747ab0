"""Which parameters of a model are its gates, and which of them weight decay acts on.

Each system says by `System.routing_parameters` which its gates are: what fine-tuning may be limited
to (FTG of Peng et al. 2020, https://arxiv.org/abs/2005.06537, section 5.2). The output projections,
which FTG+ trains too, are those of `headwise.pretrained.attaching.output_parameters`.
"""

from collections.abc import Callable

from torch import nn

from headwise.heads.system import System

_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._BatchNorm)


def gate_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters by which systems decide how heads are combined; empty if none decides.

    They are gates, routers and the like (φ of the paper above): what
    `System.routing_parameters` names.

    >>> import headwise as hw
    >>> sum(p.numel() for p in gate_parameters(hw.GatedAttention(8, 2)))
    16
    """
    return parameters_of_systems(model, lambda system: system.routing_parameters)


def non_gate_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Returns all parameters that belong to no gate (θ of the paper); tied parameters once."""
    gates = {id(parameter) for parameter in gate_parameters(model)}
    return [parameter for parameter in model.parameters() if id(parameter) not in gates]


def decayed_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Those that weight decay acts on: matrices and embeddings, no norms, biases or scalars.

    A system names further parameters of its own that take none, in `System.no_decay`.

    >>> layer = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    >>> [tuple(parameter.shape) for parameter in decayed_parameters(layer)]
    [(3, 2)]
    """
    spared: set[int] = set()
    for module in model.modules():
        if isinstance(module, _NORMS):
            spared |= {id(parameter) for parameter in module.parameters()}
        elif isinstance(module, System) and module.no_decay:
            spared |= {
                id(parameter)
                for name, parameter in module.named_parameters()
                if name.startswith(module.no_decay)
            }
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
