"""Puts static gates over the heads of a pretrained model into its output projections."""

from typing import Any, TypeVar

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from headwise.heads.attention import MultiHeadAttention
from headwise.pretrained.attaching import remove_gates
from headwise.pretrained.checkpoints import required_gates
from headwise.pretrained.pruning import check_is_linear

Model = TypeVar("Model", bound=nn.Module)


@torch.no_grad()
def fold_gates(model: Model) -> Model:
    """Multiplies static gates of `gate_heads` into the output projections, and removes them.

        Σᵢ (aᵢ ⊙ oᵢ) Wᵢ = Σᵢ oᵢ (diag(aᵢ) Wᵢ)

    The model computes the same, up to rounding, at the cost it had without gates, and
    `save_pretrained` writes it whole. Gates are static where they depend on no input: those of
    gated attention with `gate="static"`, and of systems that define `static_scales`.

    Returns:
        The model.

    Raises:
        ValueError: it has no gates; gates that depend on the input; output projections that are no
            plain linear maps. Nothing has changed.

    Example:
        >>> import headwise as hw
        >>> from transformers import GPT2Config, GPT2Model
        >>> config = GPT2Config(vocab_size=50, n_embd=32, n_layer=1, n_head=4, n_positions=16)
        >>> model = hw.gate_heads(GPT2Model(config).eval(), "gated", gate="static")
        >>> gates = model.h[0].attn.head_gates.system.gate_logits
        >>> _ = gates.data.copy_(torch.tensor([2.0, 1.0, 0.0, -1.0]))  # as if trained
        >>> tokens = torch.tensor([[3, 1, 4]])
        >>> gated = model(tokens).last_hidden_state
        >>> folded = hw.fold_gates(model)(tokens).last_hidden_state
        >>> bool((folded - gated).abs().max() < 1e-5), hasattr(model.h[0].attn, "head_gates")
        (True, False)
    """
    folded: list[tuple[Any, torch.Tensor]] = []
    for path, gates in required_gates(model).items():
        system: Any = gates.system
        scales = system.static_scales() if isinstance(system, MultiHeadAttention) else None
        if scales is None:
            raise ValueError(
                f"the gates over the heads at {path!r}, a {type(system).__name__}, depend on the "
                f"input, expected static ones, such as those of headwise.gate_heads(model, "
                f"'gated', gate='static')"
            )
        projection = model.get_submodule(path).get_submodule(gates.projection)
        check_is_linear(projection, path)
        scales = scales.expand(system.num_heads, system.head_dim).flatten()
        folded.append(
            (projection, scales.unsqueeze(-1) if isinstance(projection, Conv1D) else scales)
        )
    for projection, scales in folded:
        projection.weight.mul_(scales.to(projection.weight))
    return remove_gates(model)
