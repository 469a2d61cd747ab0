"""Removes heads from a pretrained model, which becomes smaller and faster."""

from collections.abc import Iterable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from headwise.heads.system import System
from headwise.messages import check_choice, checked_index
from headwise.pretrained.layouts import AttentionModule, find_attentions

Model = TypeVar("Model", bound=nn.Module)
Pretrained = TypeVar("Pretrained", bound=PreTrainedModel)

HEADS_LEFT = "headwise_heads_left"  # the key of a config: paths of attentions to their heads
# Paths of the maps of an attention to its queries, keys and values, which are ordered by heads.
_MAPS = [[f"{part}_proj" for part in "qkv"], [f"{part}_lin" for part in "qkv"]]
_MAPS += [[f"{inner}{part}" for part in ("query", "key", "value")] for inner in ("", "self.")]
# The order in a joint map to all three cannot be seen; it is known for these classes.
_BY_KEY = "query_key_value"  # for each head of keys: its queries, its key, its value
_FUSED = {"GPT2Attention": ["c_attn"], "ModernBertAttention": ["Wqkv"]}
_FUSED |= {"GPTNeoXAttention": [_BY_KEY]}
# Attributes of an attention: its number of heads, its number of heads of keys, its width.
_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "num_attn_heads", "n_head")
_KEY_COUNTS = ("num_key_value_heads", "num_kv_heads")
_WIDTHS = ("all_head_size", "split_size", "embed_dim")


class _Cut(NamedTuple):
    """The part of an attention that is left."""

    attention: AttentionModule
    heads: Tensor  # boolean (heads,)
    keys: int  # number of heads of keys
    rows: dict[str, Tensor]  # path of a map to a boolean tensor of its outputs


def prune_heads(model: Model, heads: Mapping[str, Iterable[int]]) -> Model:
    """Removes heads from a plain transformers model for good; the model is changed and returned.

    Its output is that of the model while these heads are `hw.ablated`, up to rounding. Make
    optimizers afterwards, since its weights are new parameters. `save_pretrained` saves it, with
    the heads that are left in the config, and `headwise.load_pruned` loads it; `from_pretrained`
    raises an error of sizes.

    Args:
        model: a model of transformers, or a module that holds one.
        heads: the numbers of the heads to remove, by the path of their attention module, such as
            `head_importance(model, data).least(3)`. Where heads share keys, give whole groups, or
            equally many heads of each group: `least(3, group=4)` for groups of 4.

    Raises:
        ValueError: no model of transformers; no such head; no head would be left, or groups of
            unequal sizes; heads that have other weights than plain linear maps, such as norms of
            their own, sinks, or biases of positions (T5). The model is unchanged then.

    Example:
        >>> import headwise as hw
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4))
        >>> hw.prune_heads(model, {"transformer.h.1.attn": [3]}).transformer.h[1].attn.c_proj
        Conv1D(nf=32, nx=24)
    """
    every = {each.path: each for each in find_attentions(model)}
    _owner(model)
    if any(isinstance(module, System) for module in model.modules()):
        raise ValueError(
            "model has gates over its heads, expected none: call headwise.remove_gates(model), or "
            "headwise.fold_gates(model) if they are static"
        )
    for path in heads:
        check_choice(**{"an attention in heads": (path, tuple(every))})
    _prune(model, [_cut(every[path], removed) for path, removed in heads.items()])
    return model


def load_pruned(kind: type[Pretrained], folder: str | Path, **options: Any) -> Pretrained:
    """Loads a model from which `headwise.prune_heads` has removed heads, or one with all heads.

    Args:
        kind: the class of the model, such as `transformers.GPT2LMHeadModel`.
        folder: the folder of its `save_pretrained`, or a name on the hub.
        options: further arguments of `from_pretrained`.
    """

    def start(model: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        kind.__init__(model, config, *args, **kwargs)
        left = vars(config).pop(HEADS_LEFT, {})
        every = {_base_path(model, p.path): p for p in find_attentions(model)} if left else {}
        gone = {path: {*range(every[path].num_heads)} - {*left[path]} for path in left}
        _prune(model, [_cut(every[path], removed) for path, removed in gone.items()])

    # from_pretrained constructs a model of its class, and then reads weights into it.
    smaller: Any = type(kind.__name__, (kind,), {"__init__": start, "__module__": kind.__module__})
    model: Pretrained = smaller.from_pretrained(folder, **options)
    model.__class__ = kind
    return model


def _cut(place: AttentionModule, heads: Iterable[int]) -> _Cut:
    """An attention without these heads; raises `ValueError`."""
    count, dim = place.num_heads, place.sizes()["head_dim"]
    name = f"a head of {place.path!r}"
    removed = {checked_index(name, head, 0, count - 1) for head in heads}
    if len(removed) == count:
        raise ValueError(f"heads of {place.path!r} are all {count}, expected some, and not all")
    maps = _maps_of(place, dim)
    outputs = [each.weight.size(int(isinstance(each, Conv1D))) for each in maps.values()]
    is_fused = len(maps) == 1
    keys = (outputs[0] // dim - count) // 2 if is_fused else outputs[-1] // dim
    numbers = [count + 2 * keys] if is_fused else [count, keys, keys]
    if keys < 1 or any(map(int.__mod__, (count, *outputs), (keys, *numbers))):
        raise ValueError(
            f"the maps {', '.join(maps)} of {place.path!r} give {outputs} numbers, expected those "
            f"of heads of {dim}: {count} of queries, and as many of keys as of values"
        )
    q = torch.tensor([head not in removed for head in range(count)], device="cpu")
    groups = q.view(keys, -1)  # that share a head of keys
    left = groups.sum(1)
    if len({*left.tolist()} - {0}) > 1:
        raise ValueError(
            f"heads of {place.path!r} leave {left.tolist()} heads in its {keys} groups that share "
            f"keys, expected as many in each, or none: head_importance(...).least(n, group="
            f"{count // keys}) chooses such heads"
        )
    k = left > 0
    parts = [torch.cat([q, k, k])] if is_fused else [q, k, k]
    if _BY_KEY in maps:
        parts = [torch.cat([groups, k[:, None], k[:, None]], 1).flatten()]
    widths = map(int.__floordiv__, outputs, numbers)
    rows = dict(zip(maps, map(Tensor.repeat_interleave, parts, widths), strict=True))
    return _Cut(place, q, int(k.sum()), rows)


def _maps_of(place: AttentionModule, dim: int) -> dict[str, Any]:
    """The maps to queries, keys and values; raises `ValueError` where heads have other weights."""
    module, there = place.module, dict(place.module.named_modules())
    known = [_FUSED[kind.__name__] for kind in type(module).__mro__ if kind.__name__ in _FUSED]
    by_name = [each for each in _MAPS if {*each} <= there.keys()]
    maps = {path: there[path] for path in [*known, *by_name, []][0]}
    cut = {**maps, place.projection_path: place.projection}
    linear = bool(maps) and all(isinstance(each, nn.Linear | Conv1D) for each in cut.values())
    takes = signature(module.forward).parameters
    others = ["biases of positions"] if {"alibi", "position_bias"} & {*takes} else []
    for name, weight in module.named_parameters():
        path, _, kind = name.rpartition(".")
        plain = type(weight) is nn.Parameter and kind in ("weight", "bias") and linear
        of_all = "Norm" in type(there[path]).__name__ and weight.shape == (dim,)
        if not ((path in cut and plain) or path.endswith("LayerNorm") or of_all):
            others.append(name)
    if others or not linear:
        raise ValueError(
            f"heads of {place.path!r} cannot be removed: {type(module).__name__} has "
            f"{', '.join(others[:4]) or 'other maps'}, expected plain linear maps alone; merge "
            f"adapters, load it unquantised, or use headwise.ablated"
        )
    return maps


def _prune(model: nn.Module, cuts: list[_Cut]) -> None:
    """Removes all but the cuts from attentions, and writes the heads left into the config."""
    _, owner = _owner(model)
    kept = dict(getattr(owner.config, HEADS_LEFT, {}))
    for place, left, keys, rows in cuts:
        dim, heads = place.sizes()["head_dim"], int(left.sum())
        for path, outputs in rows.items():
            _keep(place.module.get_submodule(path), outputs, 0)
        _keep(place.projection, left.repeat_interleave(dim), 1)
        sizes = dict.fromkeys(_COUNTS, heads) | dict.fromkeys(_WIDTHS, heads * dim)
        sizes |= dict.fromkeys(_KEY_COUNTS, keys) | {"num_key_value_groups": heads // keys}
        for module in place.module.modules():
            vars(module).update({name: sizes[name] for name in sizes.keys() & vars(module)})
        path = _base_path(model, place.path)
        before = kept.get(path, [*range(place.num_heads)])
        kept[path] = [before[head] for head in left.nonzero().flatten().tolist()]
    if cuts:
        owner.config.update({HEADS_LEFT: kept})


def _keep(linear: Any, left: Tensor, end: int) -> None:
    """Removes all but these outputs (`end` 0) or inputs (`end` 1) from a linear map."""
    of_conv = isinstance(linear, Conv1D)  # whose weight is (inputs, outputs)
    names = ("nf", "nx") if of_conv else ("out_features", "in_features")
    setattr(linear, names[end], int(left.sum()))
    for name in ("weight", "bias")[: 2 - end]:
        old = getattr(linear, name)
        if old is not None:
            dim = 1 - end if of_conv and name == "weight" else end
            new = old.detach().index_select(dim, left.nonzero().flatten().to(old.device))
            setattr(linear, name, nn.Parameter(new, old.requires_grad))


def _base_path(model: nn.Module, path: str) -> str:
    """The path of an attention from the base model, without a wrapper or a head in front."""
    root, owner = _owner(model)
    return path.removeprefix(f"{root}.").removeprefix(f"{owner.base_model_prefix}.")


def _owner(model: nn.Module) -> tuple[str, Any]:
    """The path and the model of transformers whose config says which heads are left."""
    for path, module in model.named_modules():
        if isinstance(module, PreTrainedModel):
            return path, module
    raise ValueError(
        f"model is a {type(model).__name__} without a model of transformers in it, expected one, "
        f"whose config says which heads are left"
    )
