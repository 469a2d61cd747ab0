"""G and F steps of whole models, for tests."""

from headwise.heads.mae import MixtureOfAttentiveExperts, rule
from headwise.models.parameters import gate_parameters


def layers(model):
    """The model's attentions with experts."""
    return [m for m in model.modules() if isinstance(m, MixtureOfAttentiveExperts)]


def gate_step(model):
    """While this context is open, all experts of the model are mixed and only its gates learn."""
    return rule.gate_step(model, layers(model), gate_parameters(model))


def expert_step(model):
    """While this context is open, the model draws experts."""
    return rule.computing(layers(model), "expert")
