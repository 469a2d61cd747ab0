"""Removes heads of a pretrained model: its maps become smaller, and its calls faster."""

from collections.abc import Iterable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from headwise.heads.system import System
from headwise.ops.checks import one_of
from headwise.pretrained.places import Place, places

Model = TypeVar("Model", bound=nn.Module)
Pretrained = TypeVar("Pretrained", bound=PreTrainedModel)

HEADS_LEFT = "headwise_heads_left"  # the key of a config: paths of attentions to their heads
# The maps of an attention to its queries, keys and values, each with its heads in their order.
_MAPS = [[f"{part}_proj" for part in "qkv"], [f"{part}_lin" for part in "qkv"]]
_MAPS += [[f"{inner}{part}" for part in ("query", "key", "value")] for inner in ("", "self.")]
# One map to all three does not tell how they lie: it is known of these classes.
_BY_KEY = "query_key_value"  # for each key its queries, itself and its value
_FUSED = {"GPT2Attention": ["c_attn"], "ModernBertAttention": ["Wqkv"]}
_FUSED |= {"GPTNeoXAttention": [_BY_KEY]}
# The attributes of an attention that count its heads and its heads of keys, and their width.
_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "num_attn_heads", "n_head")
_KEY_COUNTS = ("num_key_value_heads", "num_kv_heads")
_WIDTHS = ("all_head_size", "split_size", "embed_dim")

# Of an attention: which of its heads are left, how many heads of keys, and which rows of its maps.
_Cut = tuple[Place, Tensor, int, dict[str, Tensor]]


def prune_heads(model: Model, heads: Mapping[str, Iterable[int]]) -> Model:
    """Removes heads from a plain transformers model for good; the model is changed and returned.

    It is smaller and faster, and computes what it does while these heads are `hw.ablated`, up to
    rounding. Make optimizers afterwards: its weights are new parameters. `save_pretrained` writes
    it as ever, and `headwise.load_pruned` loads it, which `from_pretrained` cannot.

    Args:
        model: a model of transformers, or a module that holds one.
        heads: the numbers of the heads to remove, by the path of their attention module, such as
            `head_importance(model, data).least(3)`. Of heads that share their keys, as many go of
            each group, or whole groups.

    Raises:
        ValueError: no such head; no head left, or groups of unequal sizes; heads that have other
            weights than plain linear maps, such as norms of their own, sinks, or biases of
            positions (T5). Nothing has changed then.

    Example:
        >>> import headwise as hw
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4))
        >>> hw.prune_heads(model, {"transformer.h.1.attn": [3]}).transformer.h[1].attn.c_proj
        Conv1D(nf=32, nx=24)
    """
    every = {place.path: place for place in places(model)}
    if any(isinstance(module, System) for module in model.modules()):
        raise ValueError(
            "model has gates over its heads, expected none: call headwise.remove_gates(model), or "
            "headwise.fold_gates(model) if they are static"
        )
    for path in heads:
        one_of(**{"an attention in heads": (path, tuple(every))})
    _prune(model, [_cut(every[path], set(removed)) for path, removed in heads.items()])
    return model


def load_pruned(kind: type[Pretrained], folder: str | Path, **options: Any) -> Pretrained:
    """Loads a model of which `headwise.prune_heads` has removed heads, or one with all of them.

    Args:
        kind: the class of the model, such as `transformers.GPT2LMHeadModel`.
        folder: where its `save_pretrained` has written, or a name on the hub.
        options: those of `from_pretrained`.
    """

    def start(model: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        kind.__init__(model, config, *args, **kwargs)
        left = vars(config).pop(HEADS_LEFT, {})
        every = {_base_path(model, p.path): p for p in places(model)} if left else {}
        gone = {path: {*range(every[path].num_heads)} - {*left[path]} for path in left}
        _prune(model, [_cut(every[path], removed) for path, removed in gone.items()])

    # from_pretrained makes a model of its class and reads weights into it, piece by piece.
    smaller: Any = type(kind.__name__, (kind,), {"__init__": start, "__module__": kind.__module__})
    model: Pretrained = smaller.from_pretrained(folder, **options)
    model.__class__ = kind
    return model


def _cut(place: Place, removed: set[int]) -> _Cut:
    """What is left of an attention without these heads; raises `ValueError`."""
    count, dim = place.num_heads, place.sizes()["head_dim"]
    if not removed < {*range(count)}:
        raise ValueError(
            f"heads of {place.path!r} are {[*removed]}, expected some of 0 to {count - 1}, and not "
            f"all"
        )
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
            f"keys, expected as many in each, or none"
        )
    k = left > 0
    parts = [torch.cat([q, k, k])] if is_fused else [q, k, k]
    if _BY_KEY in maps:
        parts = [torch.cat([groups, k[:, None], k[:, None]], 1).flatten()]
    widths = map(int.__floordiv__, outputs, numbers)
    rows = dict(zip(maps, map(Tensor.repeat_interleave, parts, widths), strict=True))
    return place, q, int(k.sum()), rows


def _maps_of(place: Place, dim: int) -> dict[str, Any]:
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
    """Keeps what is left of attentions, and has the config of the model say so."""
    owner: Any = next(module for module in model.modules() if isinstance(module, PreTrainedModel))
    said = dict(getattr(owner.config, HEADS_LEFT, {}))
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
        before = said.get(path, [*range(place.num_heads)])
        said[path] = [before[head] for head in left.nonzero().flatten().tolist()]
    if cuts:
        owner.config.update({HEADS_LEFT: said})


def _keep(linear: Any, left: Tensor, end: int) -> None:
    """Of a linear map only these outputs (end 0) or inputs (end 1) are left."""
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
    """The path of an attention as a base model has it, without a head and a wrapper around it."""
    every = model.named_modules()
    root, owner = next((root, each) for root, each in every if isinstance(each, PreTrainedModel))
    return path.removeprefix(f"{root}.").removeprefix(f"{owner.base_model_prefix}.")
