"""By which weights the heads of a model of transformers read: what its eager attention returns."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig

from headwise.pretrained.checkpoints import gates_of
from headwise.pretrained.gates import NAME

Note = Callable[[str, Tensor], None]


@contextmanager
def attention_noted(model: nn.Module, note: Note) -> Iterator[None]:
    """While this context is open, attentions with a system over their heads note their weights.

    `note` is called after each call of an attention, with the path of the system over its heads,
    as in `headwise.models.inspect.systems`, and the weights of transformers' `output_attentions`,
    `(batch, heads, queries, keys)`. Models of transformers compute attention eagerly meanwhile,
    since faster functions make no weights. Where there is no such attention, nothing is noted.
    """
    with ExitStack() as stack:
        for path in gates_of(model):
            attention = model.get_submodule(path)
            of_system = f"{path}.{NAME}.system".lstrip(".")
            hook = attention.register_forward_hook(partial(_note, note, of_system))
            stack.callback(hook.remove)
        if gates_of(model):
            _attend_eagerly(stack, model)
        yield


def _attend_eagerly(stack: ExitStack, model: nn.Module) -> None:
    """Has models of transformers compute attention with its weights, until the stack is closed."""
    for module in model.modules():  # a configuration may be that of several
        config: Any = getattr(module, "config", None)
        if isinstance(config, PreTrainedConfig):
            before = config._attn_implementation
            stack.callback(setattr, config, "_attn_implementation_internal", before)
            config._attn_implementation_internal = "eager"


def _note(note: Note, path: str, module: nn.Module, args: object, output: Any) -> None:
    weights = output[-1] if isinstance(output, tuple) else None
    if isinstance(weights, Tensor) and weights.dim() == 4:
        note(path, weights.detach())
