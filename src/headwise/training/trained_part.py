"""Which part of a model is trained: fine-tuning of gates, and of gates and output projections.

Peng et al. 2020, *A Mixture of h − 1 Heads is Better than h Heads*,
https://arxiv.org/abs/2005.06537, section 5.2, compares three ways to fine-tune a pretrained model:
FTG trains the gates, FTG+ these and the output projections, FTALL everything.
"""

from typing import Literal

from torch import nn

from headwise.models.parameters import gate_parameters
from headwise.pretrained.attaching import output_parameters

TrainedPart = Literal["all", "gates+output", "gates", "nothing"]


def freeze_all_but(model: nn.Module, part: TrainedPart) -> None:
    """Freezes the parameters of a model that are not to be trained.

    Raises:
        ValueError: the model has no gates, or no output projections, that could be trained.

    >>> import headwise as hw
    >>> attention = hw.GatedAttention(8, 2)
    >>> freeze_all_but(attention, "gates+output")
    >>> [name for name, p in attention.named_parameters() if p.requires_grad]
    ['out_proj.weight', 'out_proj.bias', 'gate_proj.weight']
    """
    if part == "all":
        return
    trained: list[nn.Parameter] = []
    if part != "nothing":
        trained = gate_parameters(model)
        if not trained:
            raise ValueError(
                f"training.train is {part!r}, but no system of the model decides by parameters of "
                f"its own how heads are combined, so that there is nothing to train: set "
                f"model.attention to a system that does, or training.train to all"
            )
    if part == "gates+output":
        outputs = output_parameters(model)
        if not outputs:
            raise ValueError(
                f"training.train is {part!r}, but no system of the model names its output "
                f"projections: set System.output_parameters, or training.train to gates or all"
            )
        trained = [*trained, *outputs]
    kept = {id(parameter) for parameter in trained}
    for parameter in model.parameters():
        if id(parameter) not in kept:
            parameter.requires_grad_(False)


def count_trained(model: nn.Module) -> int:
    """Returns the number of parameters that are not frozen; tied parameters count once."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
