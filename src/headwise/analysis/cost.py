"""What a model costs: parameters, and multiply-accumulates of one forward pass."""

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel


def count_parameters(model: nn.Module) -> int:
    """Weights of a model, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def count_macs(model: PreTrainedModel, source_length: int, target_length: int) -> int:
    """Multiply-accumulates of one forward pass over one pair of sequences.

    Counted by PyTorch's flop counter, matrix products of attention and the output softmax's
    included. No weight is read: the pass runs on the meta device.
    """
    with torch.device("meta"):
        # Built from the configuration, since a deep copy would first double the memory.
        copy = type(model)(model.config).eval()
        source = torch.ones(1, source_length, dtype=torch.long)
        target = torch.ones(1, target_length, dtype=torch.long)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        copy(input_ids=source, decoder_input_ids=target)
    return counter.get_total_flops() // 2
