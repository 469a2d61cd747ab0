"""Evaluating a model with other decisions than its own; `headwise.heads.ablation` says which."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from headwise.heads.ablation import Ablation, check_ablation
from headwise.heads.system import System
from headwise.messages import cut, did_you_mean
from headwise.models.inspect import find_systems
from headwise.models.plan import system_class, system_name
from headwise.pretrained.gates import with_identity_gates
from headwise.pretrained.layouts import HeadLayout

# From the name of a system to the name of an ablation, or to a mapping with that `name` and its
# option.
Ablations = Mapping[str, str | Mapping[str, Any]]


@contextmanager
def ablated(
    model: nn.Module,
    where: str | Ablations,
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
        name: the ablation of the system at a path, one of its `supported_ablations`, which
            `headwise.heads.ablation` describes. Without a name, the only option says which units
            are left out: `expert=3` is the ablation `without-expert`, `head=[0, 1]` leaves out two
            heads.
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
    with ExitStack() as stack:
        stack.enter_context(with_identity_gates(model, layouts))
        by_path = find_systems(model)
        for system, ablation in _resolve_ablations(by_path, where, name, options):
            if not system.site:  # its layer is unknown, and each layer draws for itself
                ablation.random_key += str([*by_path.values()].index(system))
            stack.callback(_remove, system, ablation)
            stack.enter_context(system.register_forward_pre_hook(_refuse_training))
            system.ablations = (*system.ablations, ablation)
        yield


def check_ablations(ablations: Ablations) -> None:
    """Raises `ValueError` unless the systems, their ablations and the options exist."""
    for kind, ablation in ablations.items():
        options, supported = _name_and_options(ablation), system_class(kind).supported_ablations
        check_ablation(kind, supported, options.pop("name", ""), options)


def _name_and_options(ablation: str | Mapping[str, Any]) -> dict[str, Any]:
    return {"name": ablation} if isinstance(ablation, str) else dict(ablation)


def _resolve_ablations(
    by_path: dict[str, System], where: str | Ablations, name: str | None, options: dict[str, Any]
) -> list[tuple[System, Ablation]]:
    """The systems that `where` names, each with its ablation."""
    if not isinstance(where, Mapping):
        if name is None and len(options) == 1:
            name = f"without-{next(iter(options))}"
        system = _system_at(by_path, where)
        return [(system, Ablation(system, name or "", **options))]
    check_ablations(where)
    resolved = []
    for kind, ablation in where.items():
        of_kind = [system for system in by_path.values() if type(system) is system_class(kind)]
        if not of_kind:
            names = dict.fromkeys(system_name(type(system)) for system in by_path.values())
            raise ValueError(f"ablated names {kind!r}, but the model has {', '.join(names)}")
        resolved += [(s, Ablation(s, **_name_and_options(ablation))) for s in of_kind]
    return resolved


def _system_at(by_path: dict[str, System], path: str) -> System:
    """The system at a path, or the only one in the module there; raises `ValueError`."""
    inside = [p for p in by_path if f"{p}.".startswith(f"{path}.")] if path else [*by_path]
    if len(inside) == 1:
        return by_path[inside[0]]
    raise ValueError(
        f"at {path!r} the model has {len(inside)} systems, expected one of "
        f"{cut(', '.join(inside or by_path))}{'' if inside else did_you_mean(path, by_path)}"
    )


def _remove(system: System, ablation: Ablation) -> None:
    # Contexts that are open at once may end in any order.
    system.ablations = tuple(other for other in system.ablations if other is not ablation)


def _refuse_training(system: Any, _: Any) -> None:
    # A copy has this hook too, but no ablation.
    if system.training and system.ablations:
        raise ValueError(
            f"a {type(system).__name__} is ablated and in training mode, in which an ablation "
            f"changes nothing: call eval() of the model before its forward pass"
        )
