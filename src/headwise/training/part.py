"""Which part of a model is trained: fine-tuning of gates, and of gates and output projections."""

from torch import nn

from headwise.models.parameters import gate_parameters, output_parameters
from headwise.training.settings import TrainedPart

_FINDS = {"gates": (gate_parameters,), "gates+output": (gate_parameters, output_parameters)}


def freeze_all_but(model: nn.Module, part: TrainedPart) -> None:
    """Freezes the parameters of a model that are not to be trained.

    Peng et al. 2020, *A Mixture of h − 1 Heads is Better than h Heads*,
    https://arxiv.org/abs/2005.06537, section 5.2, trains the gates (FTG), these and the output
    projections (FTG+), or everything (FTALL).

    Raises:
        ValueError: the model has no gates.

    >>> import headwise as hw
    >>> attention = hw.GatedAttention(8, 2)
    >>> freeze_all_but(attention, "gates+output")
    >>> [name for name, p in attention.named_parameters() if p.requires_grad]
    ['out_proj.weight', 'out_proj.bias', 'gate_proj.weight']
    """
    if part == "all":
        return
    found = [find(model) for find in _FINDS.get(part, ())]
    if not all(found):
        raise ValueError(
            f"training.train is {part!r}, but no system of the model has parameters that decide "
            f"how its heads are combined, or none names its output projections "
            f"(System.output_parameters): choose another system in model.attention, or train all"
        )
    kept = {id(parameter) for parameters in found for parameter in parameters}
    for parameter in model.parameters():
        if id(parameter) not in kept:
            parameter.requires_grad_(False)


def count_trained(model: nn.Module) -> int:
    """Returns the number of parameters that are not frozen; tied parameters count once."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
