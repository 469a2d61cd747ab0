"""Which parameters of a model are its output projections, those under `gate_heads` too."""

from torch import nn

from headwise.models.parameters import parameters_of_systems
from headwise.pretrained.attaching import gates_of


def output_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of all output projections of attentions with a system, each once.

    Peng et al. 2020, https://arxiv.org/abs/2005.06537, section 5.2, fine-tune them with the gates
    (FTG+; they are W of equation 4). Where a system has another map from its heads to the width of
    the model in their place, these are the parameters of that map: what `System.output_parameters`
    names.

    >>> import headwise as hw
    >>> from transformers import GPT2Config, GPT2Model
    >>> config = GPT2Config(vocab_size=50, n_embd=32, n_layer=1, n_head=4, n_positions=16)
    >>> model = hw.gate_heads(GPT2Model(config).requires_grad_(False))
    >>> for parameter in hw.output_parameters(model):
    ...     _ = parameter.requires_grad_(True)
    >>> [name for name, p in model.named_parameters() if p.requires_grad and "c_proj" in name]
    ['h.0.attn.c_proj.weight', 'h.0.attn.c_proj.bias']
    """
    found = parameters_of_systems(model, lambda system: system.output_parameters)
    for path, gates in gates_of(model).items():
        projection = model.get_submodule(path).get_submodule(gates.projection)
        found += projection.parameters()
    return list(dict.fromkeys(found))
