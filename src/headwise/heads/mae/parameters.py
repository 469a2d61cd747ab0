"""Divides a model's parameters: those of the gates, of the output projections, and all others.

The names are those of MAE's fine-tuning (Peng et al. 2020, section 5.2): FTG updates
`gate_parameters`, FTG+ these and `output_parameters`, FTALL everything.
"""

from torch import nn

from headwise.heads.mae.layer import ExpertGate
from headwise.heads.multi_head import MultiHeadAttention


def gate_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of all gates over experts (φ of the MAE paper); empty without gates.

    >>> from headwise.heads.mae import MixtureOfAttentiveExperts
    >>> sum(p.numel() for p in gate_parameters(MixtureOfAttentiveExperts(8, 2)))
    2834
    """
    gates = [module for module in model.modules() if isinstance(module, ExpertGate)]
    return [parameter for gate in gates for parameter in gate.parameters()]


def output_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of all output projections W (equation 4 of the MAE paper)."""
    attentions = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    dense = [attention.out_proj for attention in attentions]
    return [parameter for projection in dense for parameter in projection.parameters()]


def other_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Returns all parameters that belong to no gate (θ of the MAE paper); tied parameters once."""
    gates = {id(parameter) for parameter in gate_parameters(model)}
    return [parameter for parameter in model.parameters() if id(parameter) not in gates]
