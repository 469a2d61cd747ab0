"""Systems over the heads of a transformers model: put on, taken off, folded, saved and loaded."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub import hf_hub_download
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from headwise.files import written_whole
from headwise.heads.attention import MultiHeadAttention
from headwise.models.inspect import forget_compiled, run_as_written, systems
from headwise.models.parameters import parameters_of_systems
from headwise.models.plan import SYSTEMS, options_of, system_class, system_name
from headwise.ops.checks import one_of
from headwise.pretrained.hooks import NAME, HeadGates, Stack, hook_losses, unhook
from headwise.pretrained.places import HeadLayout, Place, places

Model = TypeVar("Model", bound=nn.Module)
TENSORS = "head_gates.safetensors"  # whose metadata say what the gates are, in JSON


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

    The model computes what it did before, up to rounding, until the system is trained. The system
    stands between what the heads of an attention have read and the output projection, as a child
    `head_gates` of the attention, and sees the hidden states that the attention is called with:
    where that is causal, nothing later. Padding is left out, by the `attention_mask` and
    `decoder_attention_mask` of the model, `(batch, time)`.

    MAE's gates average over positions. They refuse a cache that is filled, and so `generate()`,
    texts packed into rows, and masks that hide more than padding: pass `use_cache=False`, give them
    `gate_window=1`, or use `headwise.from_transformers(model).with_attention("mae")`.

    In training, the `loss` that the model returns for labels has the losses of the system already;
    without labels, `headwise.auxiliary_loss(model)` is their sum. The system's parameters are
    float32 if the model's have fewer bits. To train them alone, freeze the model first:
    `headwise.gate_heads(model.requires_grad_(False))`.

    Args:
        model: a model of transformers, or a module that holds one, also one of peft.
        system: the name of a system, or its class: one that combines the heads of standard
            attention, and can start without changing them.
        layers: the layers whose heads get it, counted from 0 in each stack; all if not given.
        sites: of `encoder_self`, `decoder_self` (what is causal) and `decoder_cross` those that get
            it; all if not given.
        layouts: where attentions have their heads that are not found, by the class's name.
        options: further arguments of the system's constructor; or `neutral=False`, by which it
            starts as its constructor says, so that the model's output may change.

    Example:
        >>> import headwise as hw
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4)).eval()
        >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])
        >>> before = model(tokens).logits
        >>> model = hw.gate_heads(model)
        >>> bool((model(tokens).logits - before).abs().max() < 1e-6)
        True
    """
    kind, every = _class_over_heads(system), places(model, layouts)
    _check_has_none(model)
    chosen = _chosen(every, layers, sites)
    attach(model, [(each, _made(kind, each, options), options) for each in chosen])
    return model


def remove_gates(model: Model) -> Model:
    """Takes the system of `gate_heads` away: the model is again what it was before."""
    for path, gates in _required(model).items():
        gates.stack.looks_around -= gates.looks_around
        delattr(model.get_submodule(path), NAME)
    for module in model.modules():
        unhook(module)
    forget_compiled()
    return model


@torch.no_grad()
def fold_gates(model: Model) -> Model:
    """Multiplies static gates of `gate_heads` into the output projections, and removes them.

        Σᵢ (aᵢ ⊙ oᵢ) Wᵢ = Σᵢ oᵢ (diag(aᵢ) Wᵢ)

    The model computes the same, up to rounding, and is again of transformers alone. Gates are
    static where they depend on no input: those of gated attention with `gate="static"`, and of
    systems that define `static_scales`; others are an error (`ValueError`).

    Example:
        >>> import headwise as hw
        >>> from transformers import GPT2Config, GPT2Model
        >>> model = GPT2Model(GPT2Config(n_embd=32, n_layer=2, n_head=4))
        >>> model = hw.fold_gates(hw.gate_heads(model, "gated", gate="static"))
        >>> hasattr(model.h[0].attn, "head_gates")
        False
    """
    folded: list[tuple[Tensor, Tensor]] = []
    for path, gates in _required(model).items():
        system: Any = gates.system
        scales = system.static_scales() if isinstance(system, MultiHeadAttention) else None
        if scales is None:
            raise ValueError(
                f"the gates over the heads at {path!r} depend on the input, expected static ones, "
                f"as of headwise.gate_heads(model, 'gated', gate='static')"
            )
        projection: Any = model.get_submodule(path).get_submodule(gates.projection)
        weight: Any = getattr(projection, "weight", None)
        if not isinstance(projection, nn.Linear | Conv1D) or type(weight) is not nn.Parameter:
            raise ValueError(
                f"the output projection at {path!r} is a {type(projection).__name__}, expected a "
                f"plain linear map with its weights: merge adapters into it first"
            )
        scales = scales.expand(system.num_heads, system.head_dim).flatten()
        folded.append((weight, scales[:, None] if isinstance(projection, Conv1D) else scales))
    for weight, scales in folded:
        weight.mul_(scales.to(weight))
    return remove_gates(model)


def output_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of all output projections of attentions with a system, each once.

    Peng et al. 2020, https://arxiv.org/abs/2005.06537, section 5.2, fine-tune them with the gates
    (FTG+; they are W of equation 4). Of a system that has another map in their place, they are what
    its `output_parameters` names.

    >>> import headwise as hw
    >>> from transformers import GPT2Config, GPT2Model
    >>> model = hw.gate_heads(GPT2Model(GPT2Config(n_embd=32, n_layer=1, n_head=4)))
    >>> [tuple(parameter.shape) for parameter in hw.output_parameters(model)]
    [(32, 32), (32,)]
    """
    found = parameters_of_systems(model, lambda system: system.output_parameters)
    for path, gates in gates_of(model).items():
        found += model.get_submodule(path).get_submodule(gates.projection).parameters()
    return list(dict.fromkeys(found))


def save_gates(model: nn.Module, folder: str | Path) -> None:
    """Saves the system over the heads of a pretrained model; the model itself is not saved.

    The folder, which may hold other files, gets `head_gates.safetensors`, which says the system,
    its options and where it stands.
    """
    tensors: dict[str, Tensor] = {}
    said = []
    for path, gates in _required(model).items():
        if not isinstance(gates.system, MultiHeadAttention):
            raise ValueError(
                f"a {type(gates.system).__name__} holds the system over the heads at {path!r}: "
                f"save and load by save_pretrained and from_pretrained of peft's model"
            )
        name, site = system_name(type(gates.system)), gates.system.site
        said.append({"path": path, "site": site, "system": name, "options": gates.options})
        for name, tensor in gates.system.state_dict().items():
            tensors[f"{path}.{NAME}.system.{name}"] = tensor.detach().cpu().contiguous()
    with written_whole(Path(folder) / TENSORS) as partly:
        save_file(tensors, partly, metadata={"gates": json.dumps(said)})


def load_gates(
    model: Model, folder: str | Path, *, layouts: Mapping[str, HeadLayout] | None = None
) -> Model:
    """Puts a saved system over the heads of a pretrained model, in place of `gate_heads`.

    The model may be of another class than the one that was saved, if its attentions are the same.

    Args:
        folder: where `save_gates` has written, or a name on the hub.
        layouts: as in `gate_heads`.

    Example:
        >>> import headwise as hw
        >>> from tempfile import TemporaryDirectory
        >>> from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model
        >>> config = GPT2Config(n_embd=32, n_layer=2, n_head=4)
        >>> with TemporaryDirectory() as folder:
        ...     hw.save_gates(hw.gate_heads(GPT2LMHeadModel(config)), folder)
        ...     model = hw.load_gates(GPT2Model(config), folder)
        >>> len(hw.gate_parameters(model))
        12
    """
    file = Path(folder) / TENSORS
    if not Path(folder).exists():
        file = Path(hf_hub_download(str(folder), TENSORS))
    every = places(model, layouts)
    _check_has_none(model)
    try:
        with safe_open(file, "pt") as held:
            saved = json.loads(held.metadata()["gates"])
            tensors = {name: held.get_tensor(name) for name in held.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, TypeError, KeyError) as error:
        raise ValueError(f"{file} cannot be read, which save_gates writes: {error}") from error
    made = []
    for said in saved:
        # The model may have had more around it, or less.
        at = [p for p in every if f".{p.path}".endswith(f".{said['path']}")
              or f".{said['path']}".endswith(f".{p.path}")]  # fmt: skip
        prefix = f"{said['path']}.{NAME}.system."
        own = {n.removeprefix(prefix): x for n, x in tensors.items() if n.startswith(prefix)}
        try:
            if [place.site for place in at] != [said["site"]]:
                raise ValueError(
                    f"expected one attention of that path and site {said['site']}, "
                    f"{type(model).__name__} has {[f'{p.path} ({p.site})' for p in at]}"
                )
            system = _made(_class_over_heads(said["system"]), at[0], said["options"])
            system.load_state_dict(own)
        except (ValueError, RuntimeError) as error:
            raise ValueError(
                f"{folder} has gates over {said['path']!r} that the model cannot take: {error}"
            ) from error
        made.append((at[0], system, said["options"]))
    attach(model, made)
    return model


@contextmanager
def observed(
    model: nn.Module, layouts: Mapping[str, HeadLayout] | None = None
) -> Iterator[nn.Module]:
    """While this context is open, a plain model of transformers has a system over its heads.

    It is `MultiHeadAttention`, which has no parameters there and changes nothing. Models that hold
    systems already, and models that are not of transformers, stay as they are. Compiled models run
    as they are written meanwhile.
    """
    of_transformers = any(isinstance(module, PreTrainedModel) for module in model.modules())
    if systems(model) or not (of_transformers or layouts):
        yield model
        return
    every = places(model, layouts)
    attach(model, [(each, _made(MultiHeadAttention, each, {}), {}) for each in every])
    try:
        with run_as_written():
            yield model
    finally:
        remove_gates(model)


def gates_of(model: nn.Module) -> dict[str, HeadGates]:
    """What stands over the heads of a model, by the paths of its attention modules."""
    return {
        path.removesuffix(NAME).rstrip("."): module
        for path, module in model.named_modules()
        if isinstance(module, HeadGates)
    }


def attach(
    model: nn.Module, made: Sequence[tuple[Place, MultiHeadAttention, dict[str, Any]]]
) -> None:
    """Puts systems, made with these options, over the heads at places of a model."""
    stacks: dict[str, Stack] = {}
    for place, system, options in made:
        if place.stack not in stacks:
            stacks[place.stack] = Stack(model.get_submodule(place.stack))
        place.module.add_module(NAME, HeadGates(system, options, place, stacks[place.stack]))
    for module in outermost(model):
        hook_losses(module)
    forget_compiled()


def outermost(module: nn.Module) -> list[PreTrainedModel]:
    """The models of transformers that are in no other: their output has the loss."""
    if isinstance(module, PreTrainedModel):
        return [module]
    return [found for child in module.children() for found in outermost(child)]


def _class_over_heads(system: str | type[MultiHeadAttention]) -> type[MultiHeadAttention]:
    """The class of a system, by its name or as it is, if it can stand over given heads."""
    able = tuple(name for name, kind in SYSTEMS.items() if _stands_over_heads(kind))[1:]
    if isinstance(system, str) and ":" not in system:
        one_of(system=(system, able))
    found: Any = system if isinstance(system, type) else system_class(system)
    if not _stands_over_heads(found):
        raise ValueError(
            f"system is {found.__name__}, which changes how heads read, expected one of "
            f"{', '.join(able)}, or a subclass of headwise.MultiHeadAttention that has its attend()"
        )
    return found


def _stands_over_heads(kind: type) -> bool:
    return issubclass(kind, MultiHeadAttention) and kind.attend is MultiHeadAttention.attend


def _check_has_none(model: nn.Module) -> None:
    for path in gates_of(model):
        raise ValueError(
            f"model has gates over its heads already, first at {path!r}: take them away by "
            f"headwise.remove_gates(model), or put static ones into its weights by fold_gates"
        )


def _required(model: nn.Module) -> dict[str, HeadGates]:
    if gates := gates_of(model):
        return gates
    raise ValueError(
        f"model is a {type(model).__name__} without gates over its heads, expected one that "
        f"headwise.gate_heads has been called with"
    )


def _chosen(
    every: list[Place], layers: Iterable[int] | None, sites: Iterable[str] | None
) -> list[Place]:
    """The places in these layers and at these sites."""
    chosen = every
    for name, asked in (("site", sites), ("layer", layers)):
        there = tuple(dict.fromkeys(getattr(place, name) for place in every))
        wanted = there if asked is None else tuple(asked)
        for each in wanted:
            one_of(**{f"{name}s": (each, there)})
        chosen = [place for place in chosen if getattr(place, name) in wanted]
    if not chosen:
        raise ValueError("layers and sites name no attention together, expected at least one")
    return chosen


def _made(
    kind: type[MultiHeadAttention], place: Place, options: dict[str, Any]
) -> MultiHeadAttention:
    """The system over the heads at a place, where that is and in its mode of training."""
    known = [name for name in options_of(kind) if name not in options_of(MultiHeadAttention)]
    for name in options:  # those of attention itself would change nothing: the model computes it
        one_of(option=(name, (*known, "neutral")))
    others = {name: value for name, value in options.items() if name != "neutral"}
    system = kind.as_head_gate(**place.sizes(), **others)
    if options.get("neutral", True):
        system.init_neutral()
    system.site, system.layer = place.site, place.layer
    # Quantised weights may be buffers, or no tensors at all.
    weight = next(iter([*place.module.parameters(), *place.module.buffers(), torch.empty(())]))
    # As adapters: updates of few digits would be lost in so few bits.
    dtype = weight.dtype if weight.dtype in (torch.float32, torch.float64) else torch.float32
    return system.to(weight.device, dtype).train(place.module.training)
