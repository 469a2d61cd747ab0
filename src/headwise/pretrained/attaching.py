"""Puts a system over the heads of a pretrained model, and takes it away again."""

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from headwise.heads.attention import MultiHeadAttention
from headwise.models.inspect import forget_compiled
from headwise.models.parameters import parameters_of_systems
from headwise.models.plan import SYSTEMS, options_of, system_class
from headwise.ops.checks import did_you_mean
from headwise.pretrained.checkpoints import (
    HEADS_LEFT,
    follow_saving,
    gates_of,
    required_gates,
    save_as_before,
    saved_by_transformers,
)
from headwise.pretrained.gates import NAME, HeadGates
from headwise.pretrained.layouts import SITES, AttentionModule, HeadLayout, attention_modules
from headwise.pretrained.masks import NO_PAGES, LastMask

Model = TypeVar("Model", bound=nn.Module)

# Options of systems that say how they attend, which is what they do not do over given heads.
_OF_ATTENTION = ("bias", "dropout", "kdim", "vdim", "num_key_value_heads", "qk_norm", "norm_eps")


def gate_heads(
    model: Model,
    system: str | type[MultiHeadAttention] = "mae",
    *,
    layers: Iterable[int] | None = None,
    sites: Iterable[str] | None = None,
    layouts: Mapping[str, HeadLayout] | None = None,
    **options: Any,
) -> Model:
    """Puts a system, such as gates, over the heads of a pretrained model of transformers.

    The model computes what it did before, up to rounding, until the system is trained. It is
    changed in place, and stays what it is in all other respects: none of its parameters changes.
    The system stands between what the heads of an attention have read and the output projection, as
    a child `head_gates` of the attention's module, and sees the hidden states that the attention is
    called with. Where these are causal, gates look at no later position. Padding is left out, as
    far as attention masks tell of it, and so is what else a mask hides.

    While a model generates, gates see the position of each step alone: those that look at earlier
    positions too, such as MAE's, are an error with a filled cache. Pass `use_cache=False`, give
    MAE's gates `gate_window=1`, or use
    `headwise.from_transformers(model).with_attention("mae")`, whose cache has what they need.

    In training, the `loss` that the model returns for labels has the losses of the system already;
    without labels, `headwise.auxiliary_loss(model)` is their sum. In evaluation it is that of the
    task alone.

    The system's parameters are float32 if the model's have fewer bits. To train them alone, freeze
    the model first: `headwise.gate_heads(model.requires_grad_(False))`.

    Args:
        model: a model of transformers, or a module that holds one, with attention of classes in
            `headwise.pretrained.layouts.LAYOUTS` or in `layouts`.
        system: the name of a system, or its class: one that combines the heads of standard
            attention, and can start without changing them.
        layers: the layers whose heads get it, counted from 0 in each stack; all if not given.
        sites: of `encoder_self`, `decoder_self` and `decoder_cross` those that get it; all if not
            given. What is causal is a decoder's.
        layouts: where attention modules of further classes have their heads, by the class's name.
        options: further arguments of the system's constructor; or `neutral=False`, by which it
            starts as its constructor says, so that the model's output may change.

    Returns:
        The model.

    Raises:
        ValueError: the model has such gates already, or no attention that is known; a system that
            cannot stand over heads or cannot start without changing them; layers or sites that
            the model has not.

    Example:
        >>> import headwise as hw
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> config = GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=16)
        >>> model = GPT2LMHeadModel(config).eval()
        >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])
        >>> before = model(tokens).logits
        >>> model = hw.gate_heads(model)
        >>> bool((model(tokens).logits - before).abs().max() < 1e-6)
        True
        >>> model.transformer.h[0].attn.head_gates.system.num_heads
        4
    """
    kind = class_over_heads(system)
    every = attention_modules(model, layouts)
    check_has_no_gates(model)
    attach(model, every, _chosen(every, layers, sites), kind, options)
    note_change(model)
    return model


def remove_gates(model: Model) -> Model:
    """Takes the system of `gate_heads` away: the model is again what it was before.

    Returns:
        The model.

    Raises:
        ValueError: the model has none.

    Example:
        >>> import headwise as hw
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(
        ...     vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        ...     intermediate_size=64,
        ... )
        >>> names = list(BertModel(config).state_dict())
        >>> gated = hw.gate_heads(BertModel(config))
        >>> list(gated.state_dict()) == names, list(hw.remove_gates(gated).state_dict()) == names
        (False, True)
    """
    detach(model)
    for each in saved_by_transformers(model):
        if not hasattr(each.config, HEADS_LEFT):
            save_as_before(each)
    forget_compiled()
    return model


def output_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of all output projections of attentions with a system, each once.

    Peng et al. 2020, https://arxiv.org/abs/2005.06537, section 5.2, fine-tune them with the gates
    (FTG+; they are W of equation 4). Where a system has another map from its heads to the width of
    the model in their place, these are the parameters of that map: what `System.output_parameters`
    names.

    >>> import headwise as hw
    >>> from transformers import GPT2Config, GPT2Model
    >>> config = GPT2Config(vocab_size=50, n_embd=32, n_layer=1, n_head=4, n_positions=16)
    >>> model = hw.gate_heads(GPT2Model(config).requires_grad_(False))
    >>> for parameter in hw.output_parameters(model):
    ...     _ = parameter.requires_grad_(True)
    >>> [name for name, p in model.named_parameters() if p.requires_grad and "c_proj" in name]
    ['h.0.attn.c_proj.weight', 'h.0.attn.c_proj.bias']
    """
    found = parameters_of_systems(model, lambda system: system.output_parameters)
    for path, gates in gates_of(model).items():
        projection = model.get_submodule(path).get_submodule(gates.projection)
        found += projection.parameters()
    return list(dict.fromkeys(found))


def attach(
    model: nn.Module,
    every: list[AttentionModule],
    chosen: list[AttentionModule],
    kind: type[MultiHeadAttention],
    options: dict[str, Any],
) -> None:
    """Puts a system over the heads of the chosen ones of a model's attention modules."""
    made = [_make(kind, place, options) for place in chosen]  # all, before the model changes
    last = LastMask()
    for place, system in zip(chosen, made, strict=True):
        others = [each for each in every if each.stack == place.stack]
        beside = [e for e in others if e.layer == place.layer and e.site != "decoder_cross"]
        around = beside[0] if beside else None, 1 + max(each.layer for each in others)
        gates = HeadGates(system, options, model, place, *around, last)
        place.module.add_module(NAME, gates)
    refuse_pages(model)


def detach(model: nn.Module) -> None:
    """Takes away what `attach` has put over the heads of a model."""
    for path, each in required_gates(model).items():
        each.remove()
        delattr(model.get_submodule(path), NAME)
    for inner in saved_by_transformers(model):
        if not hasattr(inner.config, HEADS_LEFT):
            vars(inner).pop("init_continuous_batching", None)


def note_change(model: nn.Module) -> None:
    """After `attach`, if it is to last: for who saves the model, and for who has compiled it."""
    follow_saving(model)
    forget_compiled()


def refuse_pages(model: nn.Module) -> None:
    """Has a changed model refuse continuous batching where that cannot be, before it begins.

    An error within it would not be raised: transformers logs it and returns the bare prompts.
    """
    for each in saved_by_transformers(model):
        each.init_continuous_batching = partial(_in_pages, each)


def class_over_heads(system: str | type[MultiHeadAttention]) -> type[MultiHeadAttention]:
    """The class of a system, by its name or as it is, if it can stand over given heads."""
    found = system if isinstance(system, type) else system_class(system)
    if not issubclass(found, MultiHeadAttention):
        able = [name for name, known in SYSTEMS.items() if issubclass(known, MultiHeadAttention)]
        raise ValueError(
            f"system is {found.__name__}, which does not combine the heads of standard attention; "
            f"expected one of {', '.join(able)}, or a subclass of headwise.MultiHeadAttention"
        )
    return found


def check_has_no_gates(model: nn.Module) -> None:
    """Raises `ValueError` if there are gates over a model's heads."""
    already = gates_of(model)
    if already:
        raise ValueError(
            f"model has gates over its heads already, first at {next(iter(already))!r}; remove "
            f"them with headwise.remove_gates(model), or put static ones into its weights with "
            f"headwise.fold_gates(model)"
        )


def _chosen(
    every: list[AttentionModule], layers: Iterable[int] | None, sites: Iterable[str] | None
) -> list[AttentionModule]:
    chosen = every
    if sites is not None:
        sites = [sites] if isinstance(sites, str) else list(sites)
        there = [site for site in SITES if any(place.site == site for place in every)]
        for site in sites:
            if site not in there:
                raise ValueError(
                    f"sites name {site!r}, expected some of those of the model: "
                    f"{', '.join(there)}{did_you_mean(site, there)}"
                )
        chosen = [place for place in chosen if place.site in sites]
    if layers is not None and chosen:
        layers = [layers] if isinstance(layers, int) else list(layers)
        depth = 1 + max(place.layer for place in chosen)
        for layer in layers:
            if layer not in range(depth):
                raise ValueError(
                    f"layers name {layer!r}, expected numbers from 0 to {depth - 1}: the model has "
                    f"{depth} layers"
                )
        chosen = [place for place in chosen if place.layer in layers]
    if not chosen:
        raise ValueError("layers and sites name no attention together, expected at least one")
    return chosen


def _make(
    kind: type[MultiHeadAttention], place: AttentionModule, options: dict[str, Any]
) -> MultiHeadAttention:
    """The system for an attention module, where that is and in its mode of training."""
    sizes: dict[str, Any] = place.sizes()
    for name in options.keys() & _OF_ATTENTION:
        raise ValueError(
            f"{name} is given, expected it to be left out: it is an option of attention itself, "
            f"which the model computes"
        )
    for name in sizes.keys() & options:
        raise ValueError(
            f"{name} is given, expected it to be left out: it is {sizes[name]}, that of the model"
        )
    others = {name: value for name, value in options.items() if name != "neutral"}
    try:
        system = kind.over_heads(**sizes, **others)
    except TypeError:
        known = [o for o in options_of(kind) if o not in {"preset", *sizes, *_OF_ATTENTION}]
        for name in others.keys() - known:
            raise ValueError(
                f"options name {name!r}, expected some of {', '.join(known)}"
                f"{did_you_mean(name, known)}"
            ) from None
        raise
    if options.get("neutral", True):
        system.start_neutral()
    system.site, system.layer = place.site, place.layer
    # Quantised weights may be buffers, or no tensors at all.
    tensors = chain(place.module.parameters(), place.module.buffers(), [torch.empty(())])
    weight = next(tensors)
    device = _device(place.module, weight)
    # As adapters: updates of few digits would be lost in so few bits.
    dtype = weight.dtype if weight.dtype in (torch.float32, torch.float64) else torch.float32
    return system.to(device, dtype).train(place.module.training)


def _device(attention: nn.Module, weight: Tensor) -> torch.device:
    """Where an attention module computes; accelerate keeps weights that it offloads elsewhere."""
    hooks = [getattr(module, "_hf_hook", None) for module in attention.modules()]
    devices = [device for hook in hooks if (device := getattr(hook, "execution_device", None))]
    return torch.device(devices[0]) if weight.is_meta and devices else weight.device


def _in_pages(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands before a changed model's own `init_continuous_batching`."""
    sizes = model.config.get_text_config()
    heads = getattr(sizes, "num_attention_heads", 0)
    keys = getattr(sizes, "num_key_value_heads", None) or heads
    left = getattr(model.config, HEADS_LEFT, {}).values()
    fewer = any(len({head * keys // heads for head in each}) < keys for each in left)
    if fewer or gates_of(model):
        raise NotImplementedError(f"{type(model).__name__} {NO_PAGES}")
    return type(model).init_continuous_batching(model, *args, **kwargs)
