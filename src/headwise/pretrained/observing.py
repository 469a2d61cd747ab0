"""`record` and `ablated` for plain models of transformers too: observers stand over their heads."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from headwise.heads.attention import MultiHeadAttention
from headwise.models import inspect
from headwise.pretrained.attaching import attach, detach
from headwise.pretrained.checkpoints import gates_of
from headwise.pretrained.gates import NAME, HeadGates
from headwise.pretrained.layouts import HeadLayout, attention_modules


@contextmanager
def observed(
    model: nn.Module, layouts: Mapping[str, HeadLayout] | None = None
) -> Iterator[nn.Module]:
    """While this context is open, a plain model of transformers has a system over its heads.

    It is `MultiHeadAttention`, which has no parameters there and changes nothing. Models that hold
    systems already, and models that are not of transformers, stay as they are. Where contexts are
    nested, the outer one puts the systems on and takes them off. Compiled models run as they are
    written meanwhile.

    Raises:
        ValueError: the model is of transformers, and none of its attentions is known.

    Example:
        >>> from transformers import GPT2Config, GPT2Model
        >>> config = GPT2Config(vocab_size=50, n_embd=32, n_layer=1, n_head=4, n_positions=16)
        >>> model = GPT2Model(config).eval()
        >>> with observed(model):
        ...     list(inspect.systems(model))
        ['h.0.attn.head_gates.system']
        >>> inspect.systems(model)
        {}
    """
    of_transformers = any(isinstance(module, PreTrainedModel) for module in model.modules())
    if inspect.systems(model) or not (of_transformers or layouts):
        yield model
        return
    places = attention_modules(model, layouts)
    attach(model, places, places, MultiHeadAttention, {})
    try:
        with inspect.run_as_written():
            yield model
    finally:
        detach(model)


@contextmanager
def record(
    model: nn.Module, *, layouts: Mapping[str, HeadLayout] | None = None
) -> Iterator[inspect.Decisions]:
    """While this context is open, each forward pass of a model notes what its systems decide.

    The decisions of all passes stay in memory as long as the result does: `(batch, time, units)`
    numbers for each system and pass. For long data use `headwise.Analysis`, which keeps only sums.

    Args:
        model: a headwise model, a plain model of transformers, or any module that holds systems of
            headwise or of your own. Compiled models run as they are written meanwhile.
        layouts: where attention modules of further classes of transformers have their heads, by
            the class's name, as in `headwise.gate_heads`.

    Yields:
        A dictionary: for the path of each system, in the order in which they stand, the decisions
        of the passes so far, their tensors detached. Systems that decide nothing, such as standard
        attention, are left out, so that it stays empty for plain models. `frame()` makes a table
        of it.

    Raises:
        ValueError: the model holds no system, nor attention of transformers that is known.

    Example:
        >>> import torch
        >>> import headwise as hw
        >>> class Even(hw.MultiHeadAttention):
        ...     def combine(self, heads, inputs, choice):
        ...         output, _ = super().combine(heads, inputs, choice)
        ...         return output, hw.Routing(torch.ones_like(heads[..., 0]).transpose(1, 2))
        >>> layer = nn.TransformerEncoderLayer(16, 4, batch_first=True)
        >>> layer.self_attn = Even(16, 4)
        >>> with hw.record(layer) as decisions:
        ...     y = layer(torch.randn(2, 5, 16))
        >>> [(path, [tuple(each.weights.shape) for each in routings])
        ...  for path, routings in decisions.items()]
        [('self_attn', [(2, 5, 4)])]
    """
    with observed(model, layouts), inspect.record(model) as decided, ExitStack() as stack:
        for path, gates in gates_of(model).items():
            of_system = f"{path}.{NAME}.system".lstrip(".")
            note = partial(_note_begin, decided, of_system, gates)
            stack.enter_context(gates.system.register_forward_hook(note))
        yield decided


def _note_begin(decided: inspect.Decisions, path: str, gates: HeadGates, *call: Any) -> None:
    """Notes how many positions were there before, which a system over heads is not told."""
    if decided.begins.get(path):
        decided.begins[path][-1] = int(gates.call.begin)


@contextmanager
def ablated(
    model: nn.Module,
    where: str | int | Mapping[str, Any],
    name: str | None = None,
    *,
    layouts: Mapping[str, HeadLayout] | None = None,
    **options: Any,
) -> Iterator[None]:
    """While this context is open, the systems of a model compute otherwise in evaluation.

    A forward pass in training mode, in which ablations change nothing, is an error meanwhile. A
    copy of a system that is made meanwhile has no ablation. Contexts that are open at once add up.
    A plain model of transformers that is compiled runs as it is written meanwhile.

    Args:
        model: a headwise model, a plain model of transformers, or any module that holds systems.
        where: the path of a system in the model, or of a module that holds a single one, such as an
            attention of transformers; or the number of a layer that has one: its ablation is
            `name`. Or a mapping for all systems of a kind: the name of a system, as plans have it,
            to the name of an ablation, or to a mapping with the key `name` and the ablation's
            option. The attentions of a plain model are of the kind `standard`.
        name: the ablation of the system at a path, one of its `edits`; `headwise.heads.ablation`
            says what each does. Without it, the one option says which units are left out:
            `expert=3` is the ablation `without-expert` with that option, `head=[0, 1]` leaves out
            two heads.
        layouts: where attention modules of further classes of transformers have their heads, by
            the class's name, as in `headwise.gate_heads`.
        options: of the ablation of the system at a path.

    Raises:
        ValueError: there is no such path, system, ablation or option, or an option does not fit
            the sizes of the model; or, later, an ablated system computes in training mode.

    Example:
        >>> import torch
        >>> import headwise as hw
        >>> from transformers import GPT2Config, GPT2Model
        >>> config = GPT2Config(vocab_size=50, n_embd=32, n_layer=1, n_head=4, n_positions=16)
        >>> gpt2, tokens = GPT2Model(config).eval(), torch.tensor([[3, 1, 4]])
        >>> before = gpt2(tokens).last_hidden_state
        >>> with hw.ablated(gpt2, "h.0.attn", head=3):
        ...     torch.equal(gpt2(tokens).last_hidden_state, before)
        False
        >>> torch.equal(gpt2(tokens).last_hidden_state, before)
        True
        >>> model = nn.ModuleDict({"first": hw.MixtureOfAttentiveExperts(16, 4)}).eval()
        >>> with hw.ablated(model, "first", expert=3):
        ...     model["first"](torch.randn(2, 5, 16)).routing.weights[:, 3].tolist()
        [0.0, 0.0]
    """
    with observed(model, layouts), inspect.ablated(model, where, name, **options):
        yield
