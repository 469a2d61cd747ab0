"""Finding the systems of a model, recording what they decide, and evaluating it without parts.

    systems(model)                      every system, by its path
    attentions(model)                   every attention, also those that are parts of a system
    with record(model) as decisions:    what systems decide in each forward pass
    with observe(model, function):      what the heads of each attention read
    with ablated(model, path, head=0):  a model that computes otherwise in evaluation

They work for any module that holds systems, and `headwise.record` and `headwise.ablated` for plain
models of transformers too.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from headwise.heads.ablation import Ablation, check_edit
from headwise.heads.attention import Attention, AttentionCall
from headwise.heads.system import AttentionOutput, Routing, System, is_repeated
from headwise.messages import cut
from headwise.models.plan import system_class, system_name
from headwise.ops.checks import did_you_mean

# What `headwise.gate_heads`, and tools that wrap what it puts on, add to an attention's path.
_OVER_HEADS = re.compile(r"(^|\.)head_gates\..*")
# The name of a system to the name of an ablation, or to a mapping with that `name` and its option.
Ablations = Mapping[str, str | Mapping[str, Any]]


def systems(model: nn.Module) -> dict[str, System]:
    """All systems of a model by their paths, in the order in which they stand.

    Each knows its `site` and `layer`, if a model of headwise holds it. Parts of a system, such as
    the attentions of TIM, are not listed. A system over the heads of an attention of transformers
    has the path of that attention.

    >>> import headwise as hw
    >>> layers = nn.ModuleDict({"first": hw.MultiHeadAttention(8, 2), "norm": nn.LayerNorm(8)})
    >>> list(systems(layers))
    ['first']
    """
    found: dict[str, System] = {}
    parts: set[nn.Module] = set()
    for path, module in model.named_modules():
        if isinstance(module, System) and module not in parts:
            found[_OVER_HEADS.sub("", path)] = module
            parts |= set(module.modules())
    return found


def attentions(model: nn.Module) -> dict[str, Attention]:
    """All attentions of a model by their paths, also those that are parts of a system."""
    every = model.named_modules()
    return {
        _OVER_HEADS.sub("", path): module for path, module in every if isinstance(module, Attention)
    }


def place(path: str, system: System) -> str:
    """How records and pages call a system: `encoder_self.2`, or its path where no model told it."""
    return f"{system.site}.{system.layer}" if system.site else path


class Decisions(dict[str, list[Routing]]):
    """What the systems of a model decided: path of the system to a `Routing` for each pass."""

    def frame(self) -> Any:
        """The decisions as a DataFrame of pandas, with a row for each unit in each decision.

        Its columns:

        - `path`: of the system's module in the model;
        - `pass`: the number of the forward pass, from 0;
        - `sequence`, `position`: whose decision it is, each pass from 0; missing where one decision
          holds for a sequence, or for everything. Padding takes a position and has no rows;
        - `unit`: the number of the expert, the head, or whatever the system's units are;
        - `weight`: its weight, as the system decided it;
        - `chosen`: whether it has been chosen; true where a system chooses none, since all count.

        Example:
            >>> import headwise as hw
            >>> layer = hw.MixtureOfAttentionHeads(16, num_experts=4, top_k=2, head_dim=8)
            >>> with record(nn.ModuleDict({"first": layer})) as decisions:
            ...     y = layer(torch.randn(1, 3, 16)).output
            >>> len(decisions.frame())  # three positions, four experts
            12
        """
        import pandas as pd  # takes long

        tables = [pd.DataFrame(columns=["path", "pass"])]
        every = ((path, *each) for path, passes in self.items() for each in enumerate(passes))
        for path, number, routing in every:
            weights = routing.weights.float().cpu()  # (batch, time, units) or less, see Routing
            chosen = torch.ones_like(weights, dtype=torch.bool)
            if routing.indices is not None:
                chosen = torch.zeros_like(chosen).scatter(-1, routing.indices.cpu(), True)
            whose = ("sequence", "position")[: weights.dim() - 1]
            rows = pd.MultiIndex.from_product(map(range, weights.shape), names=(*whose, "unit"))
            columns = {"weight": weights.flatten().numpy(), "chosen": chosen.flatten().numpy()}
            table = pd.DataFrame({"path": path, "pass": number, **columns}, index=rows)
            if routing.padding is not None and weights.dim() == 3:
                real = ~routing.padding.cpu().flatten()
                table = table[real.repeat_interleave(weights.size(-1)).numpy()]
            tables.append(table.reset_index())
        names = ("path", "pass", "sequence", "position", "unit", "weight", "chosen")
        whole = {"sequence": "Int64", "position": "Int64"}  # also where some are missing
        found = pd.concat(tables[1:] or tables, ignore_index=True)
        return found.reindex(columns=names).astype(whole)


@contextmanager
def record(model: nn.Module) -> Iterator[Decisions]:
    """`headwise.record` of a model that holds systems.

    Raises:
        ValueError: the model holds no system.
    """
    places = systems(model)
    if not places:
        raise ValueError(
            f"model is a {type(model).__name__} without any system of heads, expected at least one "
            f"module that derives from headwise.systems.System"
        )
    decided = Decisions()

    def note(path: str, _: Any, args: Any, out: AttentionOutput) -> None:
        routing = out.routing
        if routing is None or is_repeated():
            return
        loss = None if routing.loss is None else routing.loss.detach()
        noted = routing._replace(weights=routing.weights.detach(), loss=loss)
        decided.setdefault(path, []).append(noted)

    with ExitStack() as stack, run_as_written():
        for path, system in places.items():
            stack.enter_context(system.register_forward_hook(partial(note, path)))
        yield decided


@contextmanager
def observe(model: nn.Module, function: Callable[[str, AttentionCall], None]) -> Iterator[None]:
    """While this context is open, a function sees what the heads of each attention read.

    Compiled models run as they are written meanwhile. Whoever keeps what is read detaches it.

    Args:
        model: any module that holds attentions of headwise or of your own.
        function: is called with the path of an attention and a `AttentionCall`, at each of its calls.

    Raises:
        ValueError: the model holds no such attention.

    Example:
        >>> import headwise as hw
        >>> layer = hw.MultiHeadAttention(16, num_heads=2)
        >>> def note(path, read):
        ...     print(path, tuple(read.heads.shape), tuple(read.weights().shape))
        >>> with observe(nn.ModuleDict({"first": layer}), note):
        ...     y = layer(torch.randn(3, 5, 16)).output
        first (3, 2, 5, 8) (3, 2, 5, 5)
    """
    places = attentions(model)
    if not places:
        raise ValueError(
            f"model is a {type(model).__name__} without any attention of headwise, expected at "
            f"least one module that derives from headwise.systems.Attention"
        )
    with ExitStack() as stack, run_as_written():
        for path, attention in places.items():
            stack.callback(setattr, attention, "observers", attention.observers)
            attention.observers = (*attention.observers, partial(function, path))
        yield


@contextmanager
def ablated(
    model: nn.Module, where: str | Ablations, name: str | None = None, **options: Any
) -> Iterator[None]:
    """`headwise.ablated` of a model that holds systems; the arguments and errors are its.

    Example:
        >>> import headwise as hw
        >>> model = nn.ModuleDict({"first": hw.MixtureOfAttentiveExperts(16, 4)}).eval()
        >>> with ablated(model, "first", "uniform"), ablated(model, "first", head=[0, 1]):
        ...     without_heads = model["first"](torch.randn(2, 5, 16)).output
    """
    found: list[tuple[System, Ablation]] = []
    if isinstance(where, Mapping):
        check_ablations(where)
        for kind, asked in where.items():
            chosen = {"name": asked} if isinstance(asked, str) else dict(asked)
            alike = [s for s in systems(model).values() if type(s) is system_class(kind)]
            if not alike:
                there = dict.fromkeys(system_name(type(s)) for s in systems(model).values())
                raise ValueError(f"ablated names {kind!r}, but the model has {', '.join(there)}")
            found += [(system, Ablation(system, **chosen)) for system in alike]
    else:
        system = system_at(model, where)
        if name is None and len(options) == 1:
            name = f"without-{next(iter(options))}"
        found.append((system, Ablation(system, name or "", **options)))
    places = list(systems(model).values())
    with ExitStack() as stack:
        for system, ablation in found:
            if not system.site:  # nobody has told it its layer, and others draw otherwise
                ablation.draw += str(places.index(system))
            stack.callback(setattr, system, "ablations", system.ablations)
            stack.enter_context(system.register_forward_pre_hook(_refuse_training))
            system.ablations = (*system.ablations, ablation)
        yield


def check_ablations(ablations: Ablations) -> None:
    """Raises `ValueError` unless these are systems, their ablations and options that there are."""
    for kind, asked in ablations.items():
        options = {"name": asked} if isinstance(asked, str) else dict(asked)
        check_edit(kind, system_class(kind).edits, options.pop("name", ""), options)


def system_at(model: nn.Module, path: str) -> System:
    """The system at a path of a model, or the only one in the module there.

    Raises:
        ValueError: there is none, or there are several.
    """
    places = systems(model)
    within = [each for each in places if f"{each}.".startswith(f"{path}.")] if path else [*places]
    if len(within) == 1:
        return places[within[0]]
    raise ValueError(
        f"at {path!r} the model has {len(within)} systems, expected one of "
        f"{cut(', '.join(within or places))}{'' if within else did_you_mean(path, places)}"
    )


def _refuse_training(system: Any, _: Any) -> None:
    # A copy has this hook too, but no ablation.
    if system.training and system.ablations:
        raise ValueError(
            f"a {type(system).__name__} is ablated and in training mode, in which an ablation "
            f"changes nothing: call eval() of the model before its forward pass"
        )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A model is in evaluation mode meanwhile; afterwards each module is as it was before."""
    # Each module by itself: parts of a model in training may be in evaluation.
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def run_as_written() -> AbstractContextManager[Any]:
    """While this context is open, compiled models run uncompiled, so that their hooks are called.

    Compiled code passes over hooks.
    """
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and its import takes long
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def forget_compiled() -> None:
    """Has compiled models compiled anew, after hooks have been put on or taken off.

    Compiled code is not checked against hooks: it would go on without those that came later.
    """
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
