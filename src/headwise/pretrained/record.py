"""Recording the decisions of a model's systems, and its attention weights."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from headwise.heads.cache import AttentionCache
from headwise.heads.system import AttentionOutput, Routing, is_repeated
from headwise.models.inspect import find_systems, run_as_written
from headwise.pretrained.gates import find_gates, outermost_models, with_identity_gates
from headwise.pretrained.layouts import HeadLayout


class Decisions(dict[str, list[Routing]]):
    """Decisions of the systems of a model: a list with a `Routing` for each pass, by path.

    Attributes:
        begins: the position of the first token of each pass, by path: not 0 where a cache of
            headwise holds earlier tokens.
    """

    def __init__(self) -> None:
        super().__init__()
        self.begins: dict[str, list[int]] = {}

    def add(self, path: str, routing: Routing, begin: int) -> None:
        """Keeps a decision, detached."""
        loss = None if routing.loss is None else routing.loss.detach()
        detached = routing._replace(weights=routing.weights.detach(), loss=loss)
        self.setdefault(path, []).append(detached)
        self.begins.setdefault(path, []).append(begin)

    def frame(self) -> Any:
        """The decisions as a DataFrame of pandas, with a row for each unit in each decision.

        Its columns:

        - `path`: of the system's module in the model;
        - `pass`: the number of the forward pass, from 0;
        - `sequence`, `position`: where the decision was made, from 0; missing where one decision
          holds for a sequence, or for everything. With a cache of headwise positions go on from
          those of the passes before. Padding has positions, but no rows;
        - `unit`: the number of the expert, the head, or another unit of the system;
        - `weight`: the weight of the unit;
        - `chosen`: whether the unit has been chosen; true where a system weighs all units.

        Example:
            >>> import torch
            >>> import headwise as hw
            >>> layer = hw.MixtureOfAttentionHeads(16, num_experts=4, top_k=2, head_dim=8)
            >>> with hw.record(torch.nn.ModuleDict({"first": layer})) as decisions:
            ...     y = layer(torch.randn(1, 3, 16)).output
            >>> len(decisions.frame())  # three positions, four experts
            12
        """
        import pandas as pd  # takes long

        tables = [pd.DataFrame(columns=["path", "pass"])]
        numbered = ((path, *each) for path, passes in self.items() for each in enumerate(passes))
        for path, number, routing in numbered:
            weights = routing.weights.float().cpu()  # (batch, time, units) or less, see Routing
            chosen = torch.ones_like(weights, dtype=torch.bool)
            if routing.indices is not None:
                chosen = torch.zeros_like(chosen).scatter(-1, routing.indices.cpu(), True)
            axes = (*("sequence", "position")[: weights.dim() - 1], "unit")
            rows = pd.MultiIndex.from_product(map(range, weights.shape), names=axes)
            columns = {"weight": weights.flatten().numpy(), "chosen": chosen.flatten().numpy()}
            table = pd.DataFrame({"path": path, "pass": number, **columns}, index=rows)
            if routing.padding is not None and weights.dim() == 3:
                real = ~routing.padding.cpu().flatten()
                table = table[real.repeat_interleave(weights.size(-1)).numpy()]
            table = table.reset_index()
            if "position" in table:
                table["position"] += self.begins[path][number]
            tables.append(table)
        names = ("path", "pass", "sequence", "position", "unit", "weight", "chosen")
        integers = {"sequence": "Int64", "position": "Int64"}  # also where some are missing
        joined = pd.concat(tables[1:] or tables, ignore_index=True)
        return joined.reindex(columns=names).astype(integers)


@contextmanager
def record(
    model: nn.Module, *, layouts: Mapping[str, HeadLayout] | None = None
) -> Iterator[Decisions]:
    """While this context is open, the decisions of a model's systems are recorded in each pass.

    All of them stay in memory; for long data use `headwise.analyse`, which keeps a sample.

    Args:
        model: a headwise model, a model of transformers, or any module that holds systems of
            headwise or of your own. Compiled models run uncompiled meanwhile.
        layouts: as in `headwise.gate_heads`.

    Yields:
        The decisions of the passes so far, detached, by the path of the system that made them; a
        system over the heads of transformers has the path of the attention. Systems that decide
        nothing, such as standard attention, are left out. `frame()` makes a table of them.

    Raises:
        ValueError: the model holds no system, and is no model of transformers.

    Example:
        >>> import torch
        >>> import headwise as hw
        >>> layer = nn.ModuleDict({"first": hw.GatedAttention(16, 4)})
        >>> with hw.record(layer) as decisions:
        ...     y = layer["first"](torch.randn(2, 5, 16))
        >>> decisions["first"][0].weights.shape
        torch.Size([2, 5, 4])
    """
    decisions = Decisions()
    # The keys of a cross-attention's cache are of the source: its queries are counted here.
    queries: WeakKeyDictionary[AttentionCache, int] = WeakKeyDictionary()

    def append(path: str, _: Any, args: Any, kwargs: dict[str, Any], out: AttentionOutput) -> None:
        if out.routing is None or is_repeated():
            return
        cache, begin = kwargs.get("cache"), 0
        if cache is not None:
            begin = queries.get(cache, 0)
            queries[cache] = begin + out.output.size(1)
        decisions.add(path, out.routing, begin)

    with ExitStack() as stack:
        stack.enter_context(with_identity_gates(model, layouts))
        stack.enter_context(run_as_written())
        for path, system in find_systems(model).items():
            stack.enter_context(
                system.register_forward_hook(partial(append, path), with_kwargs=True)
            )
        yield decisions


@contextmanager
def capture_attention_weights(
    model: nn.Module, function: Callable[[str, Tensor], None]
) -> Iterator[None]:
    """While this context is open, a function gets the weights of attentions with gated heads.

    It is called with the path of an attention and its weights, `(batch, heads, queries, keys)`.
    Models compute attention eagerly meanwhile, since faster implementations return no weights.
    """

    def pass_on(path: str, attention: nn.Module, args: object, output: Any) -> None:
        weights = output[-1] if isinstance(output, tuple) else None
        if isinstance(weights, Tensor) and weights.dim() == 4:
            function(path, weights.detach())

    with ExitStack() as stack:
        gates = find_gates(model)
        for path in gates:
            hook = model.get_submodule(path).register_forward_hook(partial(pass_on, path))
            stack.callback(hook.remove)
        for outer in outermost_models(model) if gates else ():
            stack.callback(outer.set_attn_implementation, outer.config._attn_implementation)
            outer.set_attn_implementation("eager")
        yield
