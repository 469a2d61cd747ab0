"""Systems over the heads of a transformers model: put on, taken off, folded, saved and loaded."""

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub import snapshot_download
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
TENSORS = "head_gates.safetensors"
# Where gates may be saved: by `save_gates`, by peft, and by transformers.
_FILES = (TENSORS, "adapter_model.safetensors", "model*.safetensors")
# A buffer of each system that says in JSON what it is, so that every state dict does. Loaders that
# know no gates name it among the weights that they leave out.
_SAYS = "load_with_headwise_load_gates"


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
    made = [(each, _made(kind, each, every, options)) for each in _chosen(every, layers, sites)]
    attach(model, made, saves=True)
    return model


def remove_gates(model: Model) -> Model:
    """Takes the system of `gate_heads` away: the model is again what it was before."""
    for path, gates in _required(model).items():
        gates.stack.looks_around -= gates.looks_around
        delattr(model.get_submodule(path), NAME)
    for module in model.modules():
        unhook(module)
        if getattr(vars(module).get("save_pretrained"), "func", None) is _save_with_gates:
            del module.save_pretrained
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
        is_linear = isinstance(projection, nn.Linear | Conv1D) and type(weight) is nn.Parameter
        if not is_linear or weight.is_meta:
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
    for path, gates in _required(model).items():
        if not isinstance(gates.system, MultiHeadAttention):
            raise ValueError(
                f"a {type(gates.system).__name__} holds the system over the heads at {path!r}: "
                f"save by save_pretrained of peft's model, which headwise.load_gates reads too"
            )
        for name, tensor in gates.system.state_dict().items():
            tensors[f"{path}.{NAME}.system.{name}"] = tensor.detach().cpu().contiguous()
    with written_whole(Path(folder) / TENSORS) as partly:
        save_file(tensors, partly)


def load_gates(
    model: Model, folder: str | Path, *, layouts: Mapping[str, HeadLayout] | None = None
) -> Model:
    """Puts a saved system over the heads of a pretrained model, in place of `gate_heads`.

    The model may be of another class than the one that was saved, if its attentions are the same.

    Args:
        folder: where `save_gates` has written, or `save_pretrained` of a model with gates (so
            transformers' Trainer), or peft with `modules_to_save=["head_gates.system"]`; or a name
            on the hub; or one file of these.
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
    source = Path(folder)
    if not source.exists():
        source = Path(snapshot_download(str(folder), allow_patterns=list(_FILES)))
    every = places(model, layouts)
    _check_has_none(model)
    made, saved = [], _read(source)
    if not saved:
        raise ValueError(
            f"{folder} has no gates, expected what save_gates, or save_pretrained of a model with "
            f"gates, has written"
        )
    for tensors in saved:
        said = _said(tensors[_SAYS])
        # The model may have had more around it, or less.
        at = [p for p in every if f".{p.path}".endswith(f".{said['path']}")
              or f".{said['path']}".endswith(f".{p.path}")]  # fmt: skip
        try:
            if len(at) != 1:
                raise ValueError(f"{type(model).__name__} has {len(at)} attentions of that path")
            system = _made(_class_over_heads(said["system"]), at[0], every, said["options"])
            system.load_state_dict(tensors)
        except (ValueError, RuntimeError) as error:
            raise ValueError(
                f"{folder} has gates over {said['path']!r} that the model cannot take: {error}"
            ) from error
        made.append((at[0], system))
    attach(model, made, saves=True)
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
    attach(model, [(each, _made(MultiHeadAttention, each, every, {})) for each in every])
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
    model: Any, made: Sequence[tuple[Place, MultiHeadAttention]], *, saves: bool = False
) -> None:
    """Puts systems over the heads at places of a model; `saves` if they are to be saved with it."""
    stacks: dict[str, Stack] = {}
    for place, system in made:
        if place.stack not in stacks:
            stacks[place.stack] = Stack(model.get_submodule(place.stack))
        place.module.add_module(NAME, HeadGates(system, place, stacks[place.stack]))
    for module in _outermost(model):
        hook_losses(module)
    if saves and hasattr(model, "save_pretrained"):
        model.save_pretrained = partial(_save_with_gates, model)
    forget_compiled()


def _outermost(module: nn.Module) -> list[PreTrainedModel]:
    """The models of transformers that are in no other: their output has the loss."""
    if isinstance(module, PreTrainedModel):
        return [module]
    return [found for child in module.children() for found in _outermost(child)]


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
    layers = [layers] if isinstance(layers, int) else layers
    sites = [sites] if isinstance(sites, str) else sites
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
    kind: type[MultiHeadAttention], place: Place, every: list[Place], options: dict[str, Any]
) -> MultiHeadAttention:
    """The system over the heads at a place, where that is and in its mode of training."""
    known = [name for name in options_of(kind) if name not in options_of(MultiHeadAttention)]
    for name in options:  # those of attention itself would change nothing: the model computes it
        one_of(option=(name, (*known, "neutral")))
    sizes = place.sizes()
    others = {name: value for name, value in options.items() if name != "neutral"}
    system = kind.over_heads(**sizes, **others)
    if options.get("neutral", True):
        system.start_neutral()
    system.site, system.layer = place.site, place.layer
    layers = 1 + max(each.layer for each in every if each.stack == place.stack)
    where = {"path": place.path, "site": place.site, "layer": place.layer, "layers": layers}
    said = {"system": system_name(kind), "options": options, **where, **sizes}
    if kind is not MultiHeadAttention:
        text = json.dumps(said).encode()
        system.register_buffer(_SAYS, torch.tensor(list(text), dtype=torch.uint8))
        system.register_load_state_dict_pre_hook(_keep_what_it_says)
    # Quantised weights may be buffers, or no tensors at all.
    weight = next(iter([*place.module.parameters(), *place.module.buffers(), torch.empty(())]))
    hook = getattr(place.projection, "_hf_hook", None)  # of accelerate, which keeps weights away
    device = getattr(hook, "execution_device", None) if weight.is_meta else weight.device
    # As adapters: updates of few digits would be lost in so few bits.
    dtype = weight.dtype if weight.dtype in (torch.float32, torch.float64) else torch.float32
    return system.to(device, dtype).train(place.module.training)


def _keep_what_it_says(system: Any, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Before a state dict is loaded: that must be of the same system, at any path."""
    if prefix + _SAYS in state:
        own, said = getattr(system, _SAYS), _said(state[prefix + _SAYS])
        for name, value in _said(own).items():
            if name != "path" and value != said[name]:
                raise ValueError(f"gates have {name} {value!r}, saved was {said[name]!r}")
        state[prefix + _SAYS] = own


def _said(text: Tensor) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(bytes(text.tolist()))
    return said


def _save_with_gates(model: Any, save_directory: str | Path, *args: Any, **kwargs: Any) -> Any:
    """Stands before the `save_pretrained` of a gated model, which may leave gates out: peft's."""
    gates, is_main = gates_of(model).values(), kwargs.get("is_main_process", True)
    if gates and is_main:
        (Path(save_directory) / TENSORS).unlink(missing_ok=True)  # of gates as they were before
    done = type(model).save_pretrained(model, save_directory, *args, **kwargs)
    if gates and is_main:
        by_tool = any(not isinstance(each.system, MultiHeadAttention) for each in gates)
        if not (by_tool or _read(Path(save_directory))):
            save_gates(model, save_directory)
        warnings.warn(
            f"{save_directory} has the gates over the heads too, which from_pretrained leaves out: "
            f"call headwise.load_gates(model, {str(save_directory)!r}) after it",
            stacklevel=2,
        )
    return done


def _read(source: Path) -> list[dict[str, Tensor]]:
    """The tensors of each system over heads that were saved there."""
    files = [source] if source.is_file() else [f for name in _FILES for f in source.glob(name)]
    found: dict[str, dict[str, Tensor]] = {}
    for file in files:
        try:
            with safe_open(file, "pt") as held:
                for key in held.keys():  # noqa: SIM118
                    path, inside, name = key.partition(f"{NAME}.system.")
                    if inside and name in found.setdefault(path, {}):
                        raise ValueError(f"{source} has {key} twice, in {file.name} too: give one")
                    if inside:
                        found[path][name] = held.get_tensor(key)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{file} cannot be read: {error}") from error
    return list(found.values())
