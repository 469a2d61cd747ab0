"""Gates that have been trained: with random parameters, so that they matter everywhere."""

import torch
from torch import nn

import headwise as hw


def train_at_random(model: nn.Module, seed: int = 1) -> nn.Module:
    """Gives all gates over a model's heads random parameters and running statistics."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in hw.gate_parameters(model):
            parameter.normal_(0.0, 1.0, generator=draw)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0.0, 0.5, generator=draw)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 2.0, generator=draw)
    return model
