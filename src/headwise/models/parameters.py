"""Which parameters of a model weight decay acts on."""

from torch import nn

from headwise.heads.system import System

_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._BatchNorm)


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
