"""Removes heads of a pretrained model: its maps become smaller, and its calls faster."""

import copy
from collections.abc import Iterable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from headwise.pretrained.attaching import check_has_no_gates, refuse_pages
from headwise.pretrained.checkpoints import HEADS_LEFT, base_names, follow_saving
from headwise.pretrained.layouts import AttentionModule, HeadLayout, attention_modules

Model = TypeVar("Model", bound=nn.Module)
Pretrained = TypeVar("Pretrained", bound=PreTrainedModel)

# The key of a config that names the attentions of T5 that have got position biases of their own.
_OWN_BIASES = "headwise_own_biases"

# What the maps of an attention give, one behind another, by how many maps there are.
_PARTS = {1: ("qkv",), 2: ("q", "kv"), 3: ("q", "k", "v")}


def prune_heads(
    model: Model,
    heads: Mapping[str | int, Iterable[int] | int],
    *,
    layouts: Mapping[str, HeadLayout] | None = None,
) -> Model:
    """Removes heads of a plain model of transformers for good, in place.

    Rows of the maps to queries, keys and values go, and columns of the output projection, so that
    the model has fewer parameters and is faster. It computes what it does while these heads are
    `hw.ablated`, up to rounding. Make optimizers afterwards: its weights are new parameters.

    Where several heads read the same keys and values (grouped keys), each group of heads that is
    left must keep equally many; a key goes where its whole group goes.

    The config says how many heads are left, and `save_pretrained` and `from_pretrained` work as
    ever, if it has sizes by which the same model is made. In most models with separate projections,
    such as T5, ViT, Mistral and Qwen3, that is where all attentions keep as many heads; in Llama
    this number must also divide the hidden size. Otherwise a warning tells to load by
    `hw.load_pruned`.

    Args:
        model: a model of transformers, or a module that holds one.
        heads: the numbers of the heads to remove, by the path of their attention module, or by its
            layer, if that has one attention.
        layouts: where attention modules of further classes have their heads, by the class's name.

    Returns:
        The model.

    Raises:
        ValueError: there is no such attention or head; no head would be left, or groups of unequal
            sizes; the model has gates; its maps are not plain linear ones. Nothing has changed.

    Example:
        >>> import headwise as hw
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> config = GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=16)
        >>> model, tokens = GPT2LMHeadModel(config).eval(), torch.tensor([[3, 1, 4, 1, 5]])
        >>> with hw.ablated(model, "transformer.h.1.attn", head=3):
        ...     without = model(tokens).logits
        >>> model = hw.prune_heads(model, {"transformer.h.1.attn": [3]})
        >>> bool((model(tokens).logits - without).abs().max() < 1e-5)
        True
        >>> model.transformer.h[1].attn.c_proj
        Conv1D(nf=32, nx=24)
    """
    if not isinstance(heads, Mapping):
        raise ValueError(
            f"heads is a {type(heads).__name__}, expected a mapping of the paths of attentions, or "
            f"their layers, to the numbers of heads: {{'transformer.h.1.attn': [0, 3]}}"
        )
    every = attention_modules(model, layouts)
    check_has_no_gates(model)
    cuts = [_cut(place, removed) for place, removed in _chosen(every, heads) if removed]
    _prune(every, cuts)
    _note(model, every, cuts)
    return model


def load_pruned(
    kind: type[Pretrained],
    folder: str | Path,
    *,
    layouts: Mapping[str, HeadLayout] | None = None,
    **options: Any,
) -> Pretrained:
    """Loads a model whose heads were removed in a way that its config cannot say.

    Args:
        kind: the class of the model, such as `transformers.GPT2LMHeadModel`.
        folder: where its `save_pretrained` has written, or a name on the hub.
        layouts: as in `prune_heads`.
        options: those of `from_pretrained`.

    Raises:
        ValueError: the folder's config tells of no heads that were removed; another class.

    Example:
        >>> import headwise as hw
        >>> from tempfile import TemporaryDirectory
        >>> from transformers import GPT2Config, GPT2Model
        >>> config = GPT2Config(vocab_size=50, n_embd=32, n_layer=1, n_head=4, n_positions=16)
        >>> model = hw.prune_heads(GPT2Model(config), {"h.0.attn": [0, 2]})
        >>> with TemporaryDirectory() as folder:
        ...     model.save_pretrained(folder)
        ...     load_pruned(GPT2Model, folder).h[0].attn.num_heads
        2
    """

    if options.get("output_loading_info"):
        raise ValueError(
            "output_loading_info is True, expected it to be left out: headwise.load_pruned returns "
            "the model alone"
        )
    if not issubclass(kind, PreTrainedModel):
        raise ValueError(
            f"kind is {kind.__name__}, expected the class of the model itself, such as "
            f"transformers.GPT2LMHeadModel"
        )

    def start(model: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        if config.model_type != type(config).model_type:
            raise ValueError(
                f"kind is {kind.__name__}, a model of the type {type(config).model_type!r}, but "
                f"{folder} has one of the type {config.model_type!r}; expected the class that was "
                f"saved: {', '.join(config.architectures or [])}"
            )
        kind.__init__(model, config, *args, **kwargs)
        left = getattr(config, HEADS_LEFT, None)
        if left is None:
            raise ValueError(
                f"the config in {folder} tells of no heads that were removed, expected one of a "
                f"model of headwise.prune_heads; load it by {kind.__name__}.from_pretrained"
            )
        every = attention_modules(model, layouts)
        names = base_names(model, [place.path for place in every])
        kept = [(place, left[names[place.path]]) for place in every if names[place.path] in left]
        apart = [p.path for p in every if names[p.path] in getattr(config, _OWN_BIASES, ())]
        cuts = [_cut(p, set(range(p.sizes()["num_heads"])) - set(k)) for p, k in kept]
        _prune(every, cuts, apart)

    # from_pretrained makes a model of its class and reads weights into it, piece by piece.
    smaller: Any = type(kind.__name__, (kind,), {"__init__": start, "__module__": kind.__module__})
    model: Pretrained = smaller.from_pretrained(folder, **options)
    model.__class__ = kind
    refuse_pages(model)
    follow_saving(model)
    return model


class _Cut(NamedTuple):
    """What is left of an attention: heads, heads of keys, and rows of its maps."""

    place: AttentionModule
    heads: list[int]
    keys: list[int]
    head_dim: int
    maps: list[tuple[nn.Module, list[int]]]


def _chosen(
    every: list[AttentionModule], heads: Mapping[str | int, Iterable[int] | int]
) -> list[tuple[AttentionModule, set[int]]]:
    chosen: dict[str, tuple[AttentionModule, set[int]]] = {}
    for key, removed in heads.items():
        found = [place for place in every if key in (place.path, place.layer)]
        if len(found) != 1:
            paths = ", ".join(repr(place.path) for place in found or every)
            raise ValueError(
                f"heads name the attention {key!r}, which is {'several' if found else 'none'} of "
                f"the model's, expected the path of one: {paths}"
            )
        chosen.setdefault(found[0].path, (found[0], set()))[1].update(_numbers(removed))
    return list(chosen.values())


def _numbers(removed: Any) -> set[int]:
    """Heads as numbers of Python's own, given as those, or as numbers or arrays of other tools."""
    given = removed.tolist() if hasattr(removed, "tolist") else removed
    several = given if isinstance(given, Iterable) else [given]
    return {each.item() if hasattr(each, "item") else each for each in several}


def _cut(place: AttentionModule, removed: set[int]) -> _Cut:
    if not place.layout.maps:
        raise ValueError(
            f"heads of {place.path!r} cannot be removed: {type(place.module).__name__} has weights "
            f"of heads beside its maps, such as norms or sinks, or keeps its maps otherwise; "
            f"headwise.ablated computes without these heads"
        )
    there = dict(place.module.named_modules())
    maps = [there[path] for path in place.layout.maps if path in there]
    for each in (*maps, place.projection):
        check_is_linear(each, place.path)
    sizes = place.sizes()
    count, dim = sizes["num_heads"], sizes["head_dim"]
    is_mask = any(isinstance(head, bool) for head in removed)  # which would pass for 0 and 1
    if is_mask or not removed < set(range(count)):
        raise ValueError(
            f"heads of {place.path!r} are {sorted(removed)}, expected some of the numbers from 0 "
            f"to {count - 1}, and not all: it has {count} heads"
        )
    parts = _PARTS.get(len(maps), ("",))
    outputs = [each.weight.size(int(isinstance(each, Conv1D))) for each in maps]
    *_, last = 0, *outputs
    keys = {"v": last, "kv": last // 2, "qkv": (last - count * dim) // 2}.get(parts[-1], 0) // dim
    counts = {"q": count, "k": keys, "v": keys}
    in_parts = [sum(counts[part] for part in each) for each in parts]
    if keys < 1 or any(map(int.__mod__, (count, *outputs), (keys, *in_parts))):
        raise ValueError(
            f"maps of the layout of {type(place.module).__name__} are {place.layout.maps}, of "
            f"which those that it has give {outputs} numbers, expected the paths of the maps to "
            f"the queries, keys and values of {count} heads of {dim}"
        )
    left = [head for head in range(count) if head not in removed]
    kept_keys = _kept_keys(place, left, count, keys)
    kept = {"q": left, "k": kept_keys, "v": kept_keys}
    rows = [_rows(out, part, counts, kept) for out, part in zip(outputs, parts, strict=True)]
    return _Cut(place, left, kept_keys, dim, list(zip(maps, rows, strict=True)))


def check_is_linear(each: nn.Module, path: str) -> None:
    """Raises `ValueError` unless the weight of a map in the attention at a path is as it seems."""
    whole = isinstance(each, nn.Linear | Conv1D) and each.weight.is_floating_point()
    whole = whole and {"weight", "bias"} <= each._parameters.keys()  # what is computed is in none
    if not whole or (each.weight.is_meta and hasattr(each, "_hf_hook")):
        raise ValueError(
            f"the attention at {path!r} has a {type(each).__name__} as one of its maps, expected a "
            f"linear map whose weight is here, in floating point, and not computed of others; put "
            f"adapters into the weights first, as merge_and_unload() of peft does, make computed "
            f"weights plain ones, as remove_parametrizations() or prune.remove() of torch.nn.utils "
            f"do, or load the model without quantisation and offloading"
        )


def _kept_keys(place: AttentionModule, left: list[int], count: int, keys: int) -> list[int]:
    group = count // keys
    sizes = [sum(head // group == key for head in left) for key in range(keys)]
    if len({size for size in sizes if size}) > 1:
        raise ValueError(
            f"heads of {place.path!r} leave {sizes} heads in the groups that share keys, expected "
            f"equally many in each group that is left: its {count} heads are {keys} groups of "
            f"{group}, one behind another; remove as many of each group, or whole groups"
        )
    return [key for key, size in enumerate(sizes) if size]


def _rows(outputs: int, part: str, counts: dict[str, int], kept: dict[str, list[int]]) -> list[int]:
    """The rows of a map that give what is left of its parts, such as queries and keys."""
    width = outputs // sum(counts[each] for each in part)
    rows, start = [], 0
    for each in part:
        rows += [start + head * width + row for head in kept[each] for row in range(width)]
        start += counts[each] * width
    return rows


def _prune(every: list[AttentionModule], cuts: list[_Cut], apart: Iterable[str] = ()) -> None:
    _cut_biases(every, {cut.place.path: cut.heads for cut in cuts}, apart)
    for cut in cuts:
        for each, rows in cut.maps:
            _keep(each, rows, inputs=False)
        dim = cut.head_dim
        columns = [head * dim + column for head in cut.heads for column in range(dim)]
        _keep(cut.place.projection, columns, inputs=True)
        _tell(cut)


def _tell(cut: _Cut) -> None:
    """The attention's own numbers become those of the heads that are left."""
    module, layout, heads = cut.place.module, cut.place.layout, len(cut.heads)
    _set(module, layout.num_heads, heads)
    for path in layout.widths:
        _set(module, path, heads * cut.head_dim)
    of_keys = {"num_key_value_heads": len(cut.keys), "num_key_value_groups": heads // len(cut.keys)}
    for name, number in of_keys.items():
        if hasattr(module, name):
            setattr(module, name, number)


def _set(module: nn.Module, path: str, value: Any) -> None:
    parent, _, name = path.rpartition(".")
    owner = attrgetter(parent)(module) if parent else module
    if isinstance(owner, PreTrainedConfig):
        owner = _OwnConfig(owner)
        _set(module, parent, owner)
    setattr(owner, name, value)


class _OwnConfig:
    """The config of a model as one of its attentions sees it, which has sizes of its own."""

    def __init__(self, shared: PreTrainedConfig) -> None:
        self.shared = shared

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copies and pickles ask for methods before there is a state
            raise AttributeError(name)
        return getattr(self.shared, name)


def _keep(linear: Any, index: list[int], *, inputs: bool) -> None:
    """Of a linear map only these inputs or outputs are left."""
    of_conv = isinstance(linear, Conv1D)  # whose weight is (inputs, outputs)
    names = ("nf", "nx") if of_conv else ("out_features", "in_features")
    setattr(linear, names[inputs], len(index))
    linear.weight = _selected(linear.weight, index, int(inputs != of_conv))
    if linear.bias is not None and not inputs:
        linear.bias = _selected(linear.bias, index, 0)


def _selected(parameter: nn.Parameter, index: list[int], dim: int) -> nn.Parameter:
    chosen = torch.tensor(index, device=parameter.device)
    selected = parameter.detach().index_select(dim, chosen)
    return nn.Parameter(selected, requires_grad=parameter.requires_grad)


def _cut_biases(
    every: list[AttentionModule], left: dict[str, list[int]], apart: Iterable[str]
) -> None:
    """T5's position biases have an entry for each head; all layers of a stack add the first's.

    Where layers keep other heads than one another, each gets a bias of its own; so do those with
    paths in `apart`, which kept others once, and may have been trained since.
    """
    of_t5 = [place for place in every if hasattr(place.module, "has_relative_attention_bias")]
    for key in {(place.stack, place.site): None for place in of_t5}:
        places = [place for place in of_t5 if (place.stack, place.site) == key]
        kept = [left.get(p.path) or list(range(p.sizes()["num_heads"])) for p in places]
        differ = any(heads != kept[0] for heads in kept) or places[0].path in apart
        shared = getattr(places[0].module, "relative_attention_bias", None)
        for place, heads in zip(places, kept, strict=True):
            module: Any = place.module
            bias = getattr(module, "relative_attention_bias", shared if differ else None)
            if bias is not None:
                smaller = nn.Embedding(bias.num_embeddings, len(heads), device="meta")
                smaller.weight = _selected(bias.weight, heads, 1)
                module.relative_attention_bias = smaller
                module.has_relative_attention_bias = True
            if differ and _without_bias not in module._forward_pre_hooks.values():
                module.register_forward_pre_hook(_without_bias, with_kwargs=True)


def _without_bias(
    attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Before an attention of T5: it makes a bias of its own, not one of another layer."""
    return args, {**kwargs, "position_bias": None}


def _note(model: nn.Module, every: list[AttentionModule], cuts: list[_Cut]) -> None:
    """Has the config say which heads are left: by its sizes if it can, else by a key of its own."""
    owner = next((each for each in model.modules() if isinstance(each, PreTrainedModel)), None)
    if owner is None or not cuts:
        return
    config: Any = owner.config
    left = dict(getattr(config, HEADS_LEFT, {}))
    names = base_names(model, [cut.place.path for cut in cuts])
    for place, heads, *_ in cuts:
        before = left.get(names[place.path])
        left[names[place.path]] = heads if before is None else [before[head] for head in heads]
    if _config_says(owner, every, cuts[0]):
        vars(config).pop(HEADS_LEFT, None)
        return
    setattr(config, HEADS_LEFT, left)
    apart = [p.path for p in every if _without_bias in p.module._forward_pre_hooks.values()]
    if apart:
        setattr(config, _OWN_BIASES, list(base_names(model, apart).values()))
    refuse_pages(model)
    follow_saving(model)


def _config_says(owner: PreTrainedModel, every: list[AttentionModule], cut: _Cut) -> bool:
    """Gives a config the sizes of all attentions, if by them it makes the same model."""
    if any(place.sizes() != cut.place.sizes() for place in every):
        return False
    config = copy.deepcopy(owner.config)
    _give_sizes(config, cut)
    try:
        with torch.device("meta"):
            twin = type(owner)(type(config).from_dict(config.to_dict()))
    except Exception:  # each class of configs refuses sizes in its own way
        return False
    theirs, ours = ({k: v.shape for k, v in m.state_dict().items()} for m in (twin, owner))
    if theirs != ours:
        return False
    for each in owner.modules():
        if isinstance(each, PreTrainedModel):
            _give_sizes(each.config, cut)
    return True


def _give_sizes(config: Any, cut: _Cut) -> None:
    config.num_attention_heads, config.head_dim = len(cut.heads), cut.head_dim
    if hasattr(config, "num_key_value_heads"):
        config.num_key_value_heads = len(cut.keys)
