"""Which parameters of a model are gates, output projections, decayed, or trained at all.

Peng et al. 2020, *A Mixture of h − 1 Heads is Better than h Heads*,
https://arxiv.org/abs/2005.06537, section 5.2, fine-tunes the gates (FTG), the gates and the output
projections (FTG+), or everything (FTALL). Each system names its own parameters of these kinds.
"""

from collections.abc import Callable

from torch import nn

from headwise.heads.system import System

_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._BatchNorm)


def gate_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters by which systems decide how heads are combined: gates, routers and the like
    (φ of the paper above); an empty list if no system decides.

    >>> import headwise as hw
    >>> sum(p.numel() for p in gate_parameters(hw.GatedAttention(8, 2)))
    16
    """
    return _system_parameters(model, lambda system: system.routing_parameters)


def output_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of all output projections of attentions with a system, each once.

    They are W of equation 4 of the paper above. A system that has another map in their place names
    it in its `output_parameters`. The projections of a transformers model count where
    `headwise.gate_heads` has put a system over the heads.

    >>> import headwise as hw
    >>> from transformers import GPT2Config, GPT2Model
    >>> model = hw.gate_heads(GPT2Model(GPT2Config(n_embd=32, n_layer=1, n_head=4)))
    >>> [tuple(parameter.shape) for parameter in hw.output_parameters(model)]
    [(32, 32), (32,)]
    """
    parameters = _system_parameters(model, lambda system: system.output_parameters)
    for path, module in model.named_modules():
        # A system over the heads of another module says where that module has its projection.
        projection = getattr(module, "output_projection", None)
        if isinstance(projection, str):
            attention = model.get_submodule(path.rpartition(".")[0])
            parameters += attention.get_submodule(projection).parameters()
    return list(dict.fromkeys(parameters))


def non_gate_parameters(model: nn.Module) -> list[nn.Parameter]:
    """All parameters that belong to no gate (θ of the paper); tied parameters once."""
    gates = {id(parameter) for parameter in gate_parameters(model)}
    return [parameter for parameter in model.parameters() if id(parameter) not in gates]


def decayed_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that weight decay acts on: matrices and embeddings, no norms, biases or
    scalars, and none that a system names in `System.no_decay`.

    >>> layer = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    >>> [tuple(parameter.shape) for parameter in decayed_parameters(layer)]
    [(3, 2)]
    """
    spared = {id(p) for p in _system_parameters(model, lambda system: system.no_decay)}
    norms = (module for module in model.modules() if isinstance(module, _NORMS))
    spared |= {id(parameter) for norm in norms for parameter in norm.parameters()}
    return [
        parameter
        for name, parameter in model.named_parameters()
        if parameter.dim() > 1 and not name.endswith("bias") and id(parameter) not in spared
    ]


def freeze_all_but(model: nn.Module, trainable: str) -> None:
    """Freezes all parameters but `gates`, `gates+output`, `nothing`, or `all`, which freezes none.

    Raises:
        ValueError: the model has no gates, or no output projections that a system names.

    >>> import headwise as hw
    >>> attention = hw.GatedAttention(8, 2)
    >>> freeze_all_but(attention, "gates+output")
    >>> [name for name, p in attention.named_parameters() if p.requires_grad]
    ['out_proj.weight', 'out_proj.bias', 'gate_proj.weight']
    """
    if trainable == "all":
        return
    groups = [] if trainable == "nothing" else [gate_parameters(model)]
    if trainable == "gates+output":
        groups.append(output_parameters(model))
    if not all(groups):
        raise ValueError(
            f"training.trainable is {trainable!r}, but no system of the model has parameters that "
            f"decide how its heads are combined, or none names its output projections "
            f"(System.output_parameters): choose another system in model.attention, or train all"
        )
    learning = {id(parameter) for group in groups for parameter in group}
    for parameter in model.parameters():
        if id(parameter) not in learning:
            parameter.requires_grad_(False)


def _system_parameters(
    model: nn.Module, prefixes: Callable[[System], tuple[str, ...]]
) -> list[nn.Parameter]:
    """The parameters of systems whose names begin with one of the system's prefixes, each once."""
    parameters = [
        parameter
        for system in model.modules()
        if isinstance(system, System)
        for name, parameter in system.named_parameters()
        if name.startswith(prefixes(system))
    ]
    return list(dict.fromkeys(parameters))
