"""Removes heads from a pretrained model, which becomes smaller and faster."""

from collections.abc import Iterable, Mapping
from inspect import signature, unwrap
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from headwise.heads.system import System
from headwise.messages import check_choice, checked_index
from headwise.pretrained.layouts import HEAD_COUNTS, AttentionModule, find_attentions

Model = TypeVar("Model", bound=nn.Module)
Pretrained = TypeVar("Pretrained", bound=PreTrainedModel)

HEADS_LEFT = "headwise_heads_left"  # the key of a config: paths of attentions to their heads
# Paths of the maps of an attention to its queries, keys and values, which are ordered by heads.
_QKV_MAPS = [[f"{part}_proj" for part in "qkv"], [f"{part}_lin" for part in "qkv"]]
_QKV_MAPS += [[f"{inner}{part}" for part in ("query", "key", "value")] for inner in ("", "self.")]
# The order in a joint map to all three cannot be seen; it is known for these classes.
_BY_KEY_HEAD = "query_key_value"  # for each head of keys: its queries, its key, its value
_FUSED_MAPS = {"GPT2Attention": ["c_attn"], "ModernBertAttention": ["Wqkv"]}
_FUSED_MAPS |= {"GPTNeoXAttention": [_BY_KEY_HEAD]}
# Further attributes of an attention: its number of heads of keys, its width.
_KEY_HEAD_COUNTS = ("num_key_value_heads", "num_kv_heads")
_WIDTHS = ("all_head_size", "split_size", "embed_dim")


class _HeadsLeft(NamedTuple):
    """The heads of an attention that are left, and what is left of its weights."""

    attention: AttentionModule
    heads: Tensor  # boolean (heads,)
    key_heads: int
    outputs: dict[str, Tensor]  # path of a map to a boolean tensor of its outputs


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
            their own, sinks, or biases of positions (T5); heads whose number is fixed (TrOCR,
            BigBird); a config of a pruned model in a model that has all heads. The model is
            unchanged then.

    Example:
        >>> import headwise as hw
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4))
        >>> hw.prune_heads(model, {"transformer.h.1.attn": [3]}).transformer.h[1].attn.c_proj
        Conv1D(nf=32, nx=24)
    """
    if not isinstance(heads, Mapping):
        raise ValueError(f"heads is a {type(heads).__name__}, expected numbers of heads by path")
    attentions = {each.path: each for each in find_attentions(model)}
    _check_config(model, attentions.values())
    if any(isinstance(module, System) for module in model.modules()):
        raise ValueError(
            "model has gates over its heads, expected none: call headwise.remove_gates(model), or "
            "headwise.fold_gates(model) if they are static"
        )
    for path in heads:
        check_choice("an attention in heads", path, attentions)
    _prune(model, [_without(attentions[path], removed) for path, removed in heads.items()])
    return model


def load_pruned(kind: type[Pretrained], folder: str | Path, **options: Any) -> Pretrained:
    """Loads a model from which `headwise.prune_heads` has removed heads, or one with all heads.

    Args:
        kind: the class of the model, such as `transformers.GPT2LMHeadModel`.
        folder: the folder of its `save_pretrained`, or a name on the hub.
        options: further arguments of `from_pretrained`.

    Raises:
        ValueError: the class is none of a model, such as an Auto class.
    """
    if not issubclass(kind, PreTrainedModel):
        raise ValueError(
            f"kind is {kind.__name__}, expected the class of the model itself, such as "
            f"transformers.GPT2LMHeadModel: config.json in the folder names it as architectures"
        )

    def init(model: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        kind.__init__(model, config, *args, **kwargs)
        left = vars(config).pop(HEADS_LEFT, {})
        attentions = {_base_path(model, a.path): a for a in find_attentions(model)} if left else {}
        removed = {path: {*range(attentions[path].num_heads)} - {*left[path]} for path in left}
        _prune(model, [_without(attentions[path], heads) for path, heads in removed.items()])

    # from_pretrained constructs a model of its class, and then reads weights into it.
    attributes = {"__init__": init, "__module__": kind.__module__}
    pruned_class: Any = type(kind.__name__, (kind,), attributes)
    model: Pretrained = pruned_class.from_pretrained(folder, **options)
    model.__class__ = kind
    return model


def _without(attention: AttentionModule, heads: Iterable[int]) -> _HeadsLeft:
    """What is left of an attention without these heads; raises `ValueError`."""
    path, num_heads, head_dim = attention.path, attention.num_heads, attention.sizes()["head_dim"]
    removed = {checked_index(f"a head of {path!r}", head, 0, num_heads - 1) for head in heads}
    if len(removed) == num_heads:
        raise ValueError(f"heads of {path!r} are all {num_heads}, expected some, and not all")
    maps = _qkv_maps(attention, head_dim)
    widths = [each.weight.size(int(isinstance(each, Conv1D))) for each in maps.values()]
    is_fused = len(maps) == 1
    key_heads = (widths[0] // head_dim - num_heads) // 2 if is_fused else widths[-1] // head_dim
    counts = [num_heads + 2 * key_heads] if is_fused else [num_heads, key_heads, key_heads]
    if key_heads < 1 or any(map(int.__mod__, (num_heads, *widths), (key_heads, *counts))):
        raise ValueError(
            f"the maps {', '.join(maps)} of {path!r} give {widths} numbers, expected those "
            f"of heads of {head_dim}: {num_heads} of queries, and as many of keys as of values"
        )
    queries = torch.tensor([head not in removed for head in range(num_heads)], device="cpu")
    groups = queries.view(key_heads, -1)  # that share a head of keys
    left = groups.sum(1)
    if len({*left.tolist()} - {0}) > 1:
        raise ValueError(
            f"heads of {path!r} leave {left.tolist()} heads in its {key_heads} groups that share "
            f"keys, expected as many in each, or none: head_importance(...).least(n, group="
            f"{num_heads // key_heads}) chooses such heads"
        )
    keys = left > 0
    heads_left = [torch.cat([queries, keys, keys])] if is_fused else [queries, keys, keys]
    if _BY_KEY_HEAD in maps:
        heads_left = [torch.cat([groups, keys[:, None], keys[:, None]], 1).flatten()]
    head_widths = map(int.__floordiv__, widths, counts)
    outputs = dict(zip(maps, map(Tensor.repeat_interleave, heads_left, head_widths), strict=True))
    return _HeadsLeft(attention, queries, int(keys.sum()), outputs)


def _qkv_maps(attention: AttentionModule, head_dim: int) -> dict[str, Any]:
    """The maps to queries, keys and values; raises `ValueError` where heads have other weights."""
    module, modules = attention.module, dict(attention.module.named_modules())
    classes = [base.__name__ for base in type(module).__mro__]
    fused = [_FUSED_MAPS[name] for name in classes if name in _FUSED_MAPS]
    separate = [paths for paths in _QKV_MAPS if {*paths} <= modules.keys()]
    maps = {path: modules[path] for path in [*fused, *separate, []][0]}
    pruned_maps = {**maps, attention.projection_path: attention.projection}
    are_linear = bool(maps) and all(isinstance(m, nn.Linear | Conv1D) for m in pruned_maps.values())
    arguments = {*signature(module.forward).parameters}
    others = ["biases of positions"] if {"alibi", "position_bias"} & arguments else []
    # The heads are put together to the width of the inputs, where that is read (TrOCR), and
    # attention that a forward pass may exchange (BigBird) is built with the heads of the config.
    variables = {*unwrap(type(module).forward).__code__.co_varnames}
    is_fixed = {"embed_dim", "hidden_size"} & variables or hasattr(module, "set_attention_type")
    others += ["a fixed number of heads"] if is_fixed else []
    for name, weight in module.named_parameters():
        path, _, kind = name.rpartition(".")
        is_plain = type(weight) is nn.Parameter and kind in ("weight", "bias") and are_linear
        is_shared = "Norm" in type(modules[path]).__name__ and weight.shape == (head_dim,)
        if not ((path in pruned_maps and is_plain) or path.endswith("LayerNorm") or is_shared):
            others.append(name)
    if others or not are_linear:
        raise ValueError(
            f"heads of {attention.path!r} cannot be removed: {type(module).__name__} has "
            f"{', '.join(others[:4]) or 'other maps'}, expected plain linear maps alone; merge "
            f"adapters, load it unquantised, or use headwise.ablated"
        )
    return maps


def _prune(model: nn.Module, all_left: list[_HeadsLeft]) -> None:
    """Removes all but the heads left from attentions, and writes these into the config."""
    config = _pretrained(model)[1].config
    heads_left = dict(getattr(config, HEADS_LEFT, {}))
    for attention, left, key_heads, outputs in all_left:
        head_dim, num_heads = attention.sizes()["head_dim"], int(left.sum())
        for path, outputs_left in outputs.items():
            _shrink(attention.module.get_submodule(path), outputs_left, 0)
        _shrink(attention.projection, left.repeat_interleave(head_dim), 1)
        sizes = dict.fromkeys(HEAD_COUNTS, num_heads) | dict.fromkeys(_WIDTHS, num_heads * head_dim)
        sizes |= dict.fromkeys(_KEY_HEAD_COUNTS, key_heads)
        sizes["num_key_value_groups"] = num_heads // key_heads
        for module in attention.module.modules():
            vars(module).update({name: sizes[name] for name in sizes.keys() & vars(module)})
        path = _base_path(model, attention.path)
        before = heads_left.get(path, [*range(attention.num_heads)])
        heads_left[path] = [before[head] for head in left.nonzero().flatten().tolist()]
    if all_left:
        config.update({HEADS_LEFT: heads_left})


def _shrink(linear: Any, left: Tensor, side: int) -> None:
    """Removes all but these outputs (`side` 0) or inputs (`side` 1) from a linear map."""
    is_conv = isinstance(linear, Conv1D)  # whose weight is (inputs, outputs)
    names = ("nf", "nx") if is_conv else ("out_features", "in_features")
    setattr(linear, names[side], int(left.sum()))
    for name in ("weight", "bias")[: 2 - side]:
        old = getattr(linear, name)
        if old is not None:
            dim = 1 - side if is_conv and name == "weight" else side
            new = old.detach().index_select(dim, left.nonzero().flatten().to(old.device))
            setattr(linear, name, nn.Parameter(new, old.requires_grad))


def _check_config(model: nn.Module, attentions: Iterable[AttentionModule]) -> None:
    """Raises `ValueError` if the config is that of a pruned model, and this one has all heads."""
    heads_left = getattr(_pretrained(model)[1].config, HEADS_LEFT, {})
    for attention in attentions:
        path, num_heads = attention.path, attention.num_heads
        left = len(heads_left.get(_base_path(model, path), range(num_heads)))
        if left != num_heads:
            raise ValueError(
                f"the config says that {left} heads are left at {path!r}, but the module has "
                f"{num_heads}, expected as many: load a pruned model by headwise.load_pruned, or "
                f"delete the key {HEADS_LEFT} from the config for a new one"
            )


def _base_path(model: nn.Module, path: str) -> str:
    """The path of an attention from the base model, without a wrapper or a head in front."""
    root, pretrained = _pretrained(model)
    return path.removeprefix(f"{root}.").removeprefix(f"{pretrained.base_model_prefix}.")


def _pretrained(model: nn.Module) -> tuple[str, Any]:
    """The path and the model of transformers whose config says which heads are left."""
    for path, module in model.named_modules():
        if isinstance(module, PreTrainedModel):
            return path, module
    raise ValueError(
        f"model is a {type(model).__name__} without a model of transformers in it, expected one, "
        f"whose config says which heads are left"
    )
