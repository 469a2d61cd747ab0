"""`record`, `ablated` and attention weights, for plain models of transformers too."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from headwise.models import inspect
from headwise.pretrained.gates import gates_of, observed, outermost
from headwise.pretrained.places import HeadLayout


@contextmanager
def record(
    model: nn.Module, *, layouts: Mapping[str, HeadLayout] | None = None
) -> Iterator[inspect.Decisions]:
    """While this context is open, each forward pass of a model notes what its systems decide.

    All of it stays in memory; for long data use `headwise.analyse`, which keeps a sample.

    Args:
        model: a headwise model, a model of transformers, or any module that holds systems of
            headwise or of your own. Compiled models run as they are written meanwhile.
        layouts: as in `headwise.gate_heads`.

    Yields:
        The decisions of the passes so far, detached, by the path of the system that made them; a
        system over the heads of transformers has that of the attention. Systems that decide
        nothing, such as standard attention, are left out. `frame()` makes a table of it, in
        which the positions of each pass count from 0, with a cache too.

    Example:
        >>> import torch
        >>> import headwise as hw
        >>> layer = nn.ModuleDict({"first": hw.GatedAttention(16, 4)})
        >>> with hw.record(layer) as decisions:
        ...     y = layer["first"](torch.randn(2, 5, 16))
        >>> decisions["first"][0].weights.shape
        torch.Size([2, 5, 4])
    """
    with observed(model, layouts), inspect.record(model) as decided:
        yield decided


@contextmanager
def ablated(
    model: nn.Module,
    where: str | Mapping[str, Any],
    name: str | None = None,
    *,
    layouts: Mapping[str, HeadLayout] | None = None,
    **options: Any,
) -> Iterator[None]:
    """While this context is open, the systems of a model compute otherwise in evaluation.

    A forward pass in training mode, in which ablations change nothing, is an error (`ValueError`)
    meanwhile. Contexts that are open at once add up.

    Args:
        model: a headwise model, a plain model of transformers, or any module that holds systems.
        where: the path of a system in the model, or of a module that holds a single one, such as an
            attention of transformers. Or a mapping for all systems of a kind: the name of a system,
            as plans have it, to the name of an ablation, or to a mapping with the key `name` and
            the ablation's option. The attentions of a plain model are of the kind `standard`.
        name: the ablation of the system at a path, one of its `edits`; `headwise.heads.ablation`
            says what each does. Without it, the one option says which units are left out:
            `expert=3` is the ablation `without-expert`, `head=[0, 1]` leaves out two heads.
        layouts: as in `headwise.gate_heads`.
        options: of the ablation of the system at a path.

    Example:
        >>> import torch
        >>> import headwise as hw
        >>> from transformers import GPT2Config, GPT2Model
        >>> model = GPT2Model(GPT2Config(n_embd=32, n_layer=1, n_head=4)).eval()
        >>> tokens = torch.tensor([[3, 1, 4]])
        >>> before = model(tokens).last_hidden_state
        >>> with hw.ablated(model, "h.0.attn", head=3):
        ...     torch.equal(model(tokens).last_hidden_state, before)
        False
    """
    with observed(model, layouts), inspect.ablated(model, where, name, **options):
        yield


@contextmanager
def attention_noted(model: nn.Module, note: Callable[[str, Tensor], None]) -> Iterator[None]:
    """While this context is open, a function is given the weights of attentions with gated heads.

    `note` is called with the path of an attention and its weights, `(batch, heads, queries, keys)`.
    Models compute attention eagerly meanwhile, since faster functions make no weights.
    """

    def look(path: str, attention: nn.Module, args: object, output: Any) -> None:
        weights = output[-1] if isinstance(output, tuple) else None
        if isinstance(weights, Tensor) and weights.dim() == 4:
            note(path, weights.detach())

    with ExitStack() as stack:
        for path in gates_of(model):
            hook = model.get_submodule(path).register_forward_hook(partial(look, path))
            stack.callback(hook.remove)
        for each in outermost(model) if gates_of(model) else ():
            stack.callback(each.set_attn_implementation, each.config._attn_implementation)
            each.set_attn_implementation("eager")
        yield
