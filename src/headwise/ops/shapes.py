"""Checks of the inputs of attentions and models, whose errors say how to mend them."""

from torch import Tensor


def refuse_nested(name: str, x: Tensor) -> None:
    """Raises `ValueError` for a nested (jagged) tensor."""
    if x.is_nested:
        raise ValueError(
            f"{name} is a nested tensor, expected a padded one: pad it, for instance with "
            f"{name}.to_padded_tensor(0), and say where the padding is (key_padding_mask in "
            f"attention, attention_mask in models)"
        )


def check_sequences(name: str, x: Tensor, width: int) -> None:
    """Raises `ValueError` unless a tensor is `(batch, time, width)`.

    Args:
        name: of the argument, for the error.
        x: the tensor.
        width: what its last dimension has to be.
    """
    refuse_nested(name, x)
    if x.dim() != 3 or x.size(-1) != width:
        raise ValueError(
            f"{name} has shape {tuple(x.shape)}, expected (batch, time, {width})"
            + ("; add a batch dimension with unsqueeze(0)" if x.dim() == 2 else "")
        )
