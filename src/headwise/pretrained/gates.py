"""Systems over the heads of a transformers model: put on, taken off, folded, saved and loaded."""

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
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
from headwise.heads.system import System
from headwise.models.inspect import forget_compiled, run_as_written
from headwise.models.parameters import parameters_of_systems
from headwise.models.plan import SYSTEMS, options_of, system_class, system_name
from headwise.ops.checks import did_you_mean
from headwise.pretrained.hooks import NAME, HeadGates, Stack, add_losses, forget_losses
from headwise.pretrained.places import HeadLayout, Place, places

Model = TypeVar("Model", bound=nn.Module)
TENSORS = "head_gates.safetensors"
# A buffer of each system that says, in JSON, what it is: so that any state dict says it. Loaders
# that do not know gates report its name among the weights that they pass over.
_SAYS = "load_with_headwise_load_gates"
# Options of systems that say how they attend, which is what they do not do over given heads.
_OF_ATTENTION = ("bias", "dropout", "kdim", "vdim", "num_key_value_heads", "qk_norm", "norm_eps")
_HANDLES = "_headwise_handles"  # of hooks on the models whose output has a loss
_OVER_HEADS = [
    name
    for name, kind in SYSTEMS.items()
    if issubclass(kind, MultiHeadAttention) and kind is not MultiHeadAttention
    and kind.attend is MultiHeadAttention.attend
]  # fmt: skip


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
    changed in place: none of its own parameters changes. The system stands between what the heads
    of an attention have read and the output projection, as a child `head_gates` of the attention,
    and sees the hidden states that the attention is called with: where that is causal, nothing
    later. Padding is left out, by the `attention_mask` and `decoder_attention_mask` of the model.

    MAE's gates average over positions. They refuse a cache that is filled, and so `generate()`,
    texts packed into rows, and masks that hide more than padding. Pass `use_cache=False`, give them
    `gate_window=1`, or use `headwise.from_transformers(model).with_attention("mae")`.

    In training, the `loss` that the model returns for labels has the losses of the system already;
    without labels, `headwise.auxiliary_loss(model)` is their sum.

    The system's parameters are float32 if the model's have fewer bits. To train them alone, freeze
    the model first: `headwise.gate_heads(model.requires_grad_(False))`.

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
    kind = _class_over_heads(system)
    every = places(model, layouts)
    _check_has_none(model)
    made = [(each, _made(kind, each, every, options)) for each in _chosen(every, layers, sites)]
    attach(model, made)
    _follow_saving(model)
    return model


def remove_gates(model: Model) -> Model:
    """Takes the system of `gate_heads` away: the model is again what it was before.

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
    for path, gates in _required(model).items():
        gates.remove()
        delattr(model.get_submodule(path), NAME)
    for module in model.modules():
        for handle in vars(module).pop(_HANDLES, ()):
            handle.remove()
        if getattr(vars(module).get("save_pretrained"), "func", None) is _saved_with_gates:
            del module.save_pretrained
    forget_compiled()
    return model


@torch.no_grad()
def fold_gates(model: Model) -> Model:
    """Multiplies static gates of `gate_heads` into the output projections, and removes them.

        Σᵢ (aᵢ ⊙ oᵢ) Wᵢ = Σᵢ oᵢ (diag(aᵢ) Wᵢ)

    The model computes the same, up to rounding, at the cost it had without gates, and is again of
    transformers alone. Gates are static where they depend on no input: those of gated attention
    with `gate="static"`, and of systems that define `static_scales`.

    Returns:
        The model.

    Raises:
        ValueError: it has no gates; gates that depend on the input; output projections that are no
            plain linear maps. Nothing has changed.

    Example:
        >>> import headwise as hw
        >>> from transformers import GPT2Config, GPT2Model
        >>> config = GPT2Config(vocab_size=50, n_embd=32, n_layer=1, n_head=4, n_positions=16)
        >>> model = hw.gate_heads(GPT2Model(config).eval(), "gated", gate="static")
        >>> gates = model.h[0].attn.head_gates.system.gate_logits
        >>> _ = gates.data.copy_(torch.tensor([2.0, 1.0, 0.0, -1.0]))  # as if trained
        >>> tokens = torch.tensor([[3, 1, 4]])
        >>> gated = model(tokens).last_hidden_state
        >>> folded = hw.fold_gates(model)(tokens).last_hidden_state
        >>> bool((folded - gated).abs().max() < 1e-5), hasattr(model.h[0].attn, "head_gates")
        (True, False)
    """
    folded: list[tuple[Any, Tensor]] = []
    for path, gates in _required(model).items():
        system: Any = gates.system
        scales = system.static_scales() if isinstance(system, MultiHeadAttention) else None
        if scales is None:
            raise ValueError(
                f"the gates over the heads at {path!r}, a {type(system).__name__}, depend on the "
                f"input, expected static ones, such as those of headwise.gate_heads(model, "
                f"'gated', gate='static')"
            )
        projection: Any = model.get_submodule(path).get_submodule(gates.projection)
        weight = projection.weight
        is_linear = isinstance(projection, nn.Linear | Conv1D) and weight.is_floating_point()
        if not is_linear or weight.is_meta:
            raise ValueError(
                f"the output projection at {path!r} is a {type(projection).__name__}, expected a "
                f"plain linear map with its weights here: merge adapters first"
            )
        scales = scales.expand(system.num_heads, system.head_dim).flatten()
        scales = scales.unsqueeze(-1) if isinstance(projection, Conv1D) else scales
        folded.append((weight, scales))
    for weight, scales in folded:
        weight.mul_(scales.to(weight))
    return remove_gates(model)


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
        found += model.get_submodule(path).get_submodule(gates.projection).parameters()
    return list(dict.fromkeys(found))


def save_gates(model: nn.Module, folder: str | Path) -> None:
    """Saves the system over the heads of a pretrained model; the model itself is not saved.

    The folder, which may hold other files, gets `head_gates.safetensors`, which says the system,
    its options and where it stands.

    Args:
        model: a model that `gate_heads` has been called with.
        folder: where to write; it is created if there is none.

    Raises:
        ValueError: the model has no system over its heads, or a tool such as peft holds it.
    """
    tensors: dict[str, Tensor] = {}
    for path, gates in _required(model).items():
        if not isinstance(gates.system, MultiHeadAttention):
            raise ValueError(
                f"a {type(gates.system).__name__} holds the system over the heads at {path!r}: "
                f"save by the tool that has put it there, as by save_pretrained of peft's model, "
                f"whose folder headwise.load_gates reads too"
            )
        for name, tensor in gates.system.state_dict().items():
            tensors[f"{path}.{NAME}.system.{name}"] = tensor.detach().cpu().contiguous()
    said = {path: bytes(t.tolist()).decode() for path, t in tensors.items() if _SAYS in path}
    with written_whole(Path(folder) / TENSORS) as path:
        save_file(tensors, path, metadata={**said, "format": "pt"})


def load_gates(
    model: Model, folder: str | Path, *, layouts: Mapping[str, HeadLayout] | None = None
) -> Model:
    """Puts a saved system over the heads of a pretrained model, in place of `gate_heads`.

    The model may be of another class than the one that was saved, such as one with another head, if
    its attentions are the same.

    Args:
        model: a model without such gates.
        folder: where `save_gates` has written, or `save_pretrained` of a model with gates, or
            transformers' Trainer, or peft with `modules_to_save=["head_gates.system"]`; or the name
            of a repository on the hub; or one file of theirs.
        layouts: as in `gate_heads`.

    Returns:
        The model.

    Raises:
        ValueError: the model has gates already, or lacks the attentions that were saved, or has
            others of other sizes; no gates are in the folder, or not whole, or of a system that
            cannot stand over heads.

    Example:
        >>> import headwise as hw
        >>> from tempfile import TemporaryDirectory
        >>> from transformers import BertConfig, BertForMaskedLM, BertModel
        >>> config = BertConfig(
        ...     vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        ...     intermediate_size=64,
        ... )
        >>> with TemporaryDirectory() as folder:
        ...     save_gates(hw.gate_heads(BertForMaskedLM(config)), folder)
        ...     model = load_gates(BertModel(config), folder)
        >>> len(hw.gate_parameters(model))
        12
    """
    source = Path(folder)
    if not source.exists():
        names = [TENSORS, "adapter_model.safetensors", "model*.safetensors"]
        source = Path(snapshot_download(str(folder), allow_patterns=names))
    every = places(model, layouts)
    _check_has_none(model)
    made = []
    for says, tensors in _read(source):
        place = _find(model, every, says["path"])
        try:
            kind, options = _class_over_heads(says["system"]), says["options"]
            system = _made(kind, place, every, options)
            for name, value in _described(system, place, every, options).items():
                if name != "path" and says[name] != value:
                    raise ValueError(f"{name} is {value!r} there, saved was {says[name]!r}")
            system.load_state_dict({**tensors, _SAYS: getattr(system, _SAYS)})
        except (ValueError, RuntimeError) as error:
            raise ValueError(
                f"the gates in {folder} do not fit the attention {place.path!r}: {error}"
            ) from error
        made.append((place, system))
    attach(model, made)
    _follow_saving(model)
    return model


@contextmanager
def observed(
    model: nn.Module, layouts: Mapping[str, HeadLayout] | None = None
) -> Iterator[nn.Module]:
    """While this context is open, a plain model of transformers has a system over its heads.

    It is `MultiHeadAttention`, which has no parameters there and changes nothing. Models that hold
    systems already, and models that are not of transformers, stay as they are. Where contexts are
    nested, the outer one puts the systems on and takes them off. Compiled models run as they are
    written meanwhile.

    Raises:
        ValueError: the model is of transformers, and none of its attentions is known.
    """
    modules = list(model.modules())
    of_transformers = any(isinstance(module, PreTrainedModel) for module in modules)
    if any(isinstance(m, System) for m in modules) or not (of_transformers or layouts):
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


def attach(model: nn.Module, made: Sequence[tuple[Place, MultiHeadAttention]]) -> None:
    """Puts systems over the heads of a model's attentions."""
    stacks: dict[str, Stack] = {}
    for place, system in made:
        if place.stack not in stacks:
            stacks[place.stack] = Stack(model.get_submodule(place.stack))
        gates = HeadGates(system, place, stacks[place.stack])
        gates.stack.looks_around |= gates.looks_around
        place.module.add_module(NAME, gates)
    # The outermost models of transformers: what they return has a loss.
    paths = [path for path, module in model.named_modules() if isinstance(module, PreTrainedModel)]
    for path in paths or [""]:
        if not any(path.startswith(f"{other}.") or not other for other in paths if other != path):
            outer: Any = model.get_submodule(path)
            vars(outer)[_HANDLES] = [
                outer.register_forward_pre_hook(forget_losses),
                outer.register_forward_hook(add_losses, with_kwargs=True),
            ]
    forget_compiled()


def _class_over_heads(system: str | type[MultiHeadAttention]) -> type[MultiHeadAttention]:
    """The class of a system, by its name or as it is, if it can stand over given heads."""
    expected = (
        f"expected one of {', '.join(_OVER_HEADS)}, or a subclass of headwise.MultiHeadAttention "
        f"that leaves attend() as it is"
    )
    if isinstance(system, str) and system not in SYSTEMS and ":" not in system:
        raise ValueError(
            f"there is no system {system!r}, {expected}{did_you_mean(system, _OVER_HEADS)}"
        )
    found = system if isinstance(system, type) else system_class(system)
    if not issubclass(found, MultiHeadAttention) or found.attend is not MultiHeadAttention.attend:
        raise ValueError(
            f"system is {found.__name__}, which does not combine the heads of standard attention; "
            f"{expected}"
        )
    return found


def _check_has_none(model: nn.Module) -> None:
    for path in gates_of(model):
        raise ValueError(
            f"model has gates over its heads already, first at {path!r}; remove them with "
            f"headwise.remove_gates(model), or put static ones into its weights with "
            f"headwise.fold_gates(model)"
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
    """The places in these layers and at these sites; an error for those that there are not."""
    layers = [layers] if isinstance(layers, int) else layers
    asked = {"sites": [sites] if isinstance(sites, str) else sites, "layers": layers}
    chosen = every
    for name, wanted in asked.items():
        there = list(dict.fromkeys(getattr(place, name[:-1]) for place in every))
        wanted = there if wanted is None else list(wanted)
        for each in wanted:
            if each not in there:
                hint = did_you_mean(each, map(str, there)) if name == "sites" else ""
                raise ValueError(
                    f"{name} name {each!r}, expected some of those of the model: "
                    f"{', '.join(map(str, there))}{hint}"
                )
        chosen = [place for place in chosen if getattr(place, name[:-1]) in wanted]
    if not chosen:
        raise ValueError("layers and sites name no attention together, expected at least one")
    return chosen


def _made(
    kind: type[MultiHeadAttention], place: Place, every: list[Place], options: dict[str, Any]
) -> MultiHeadAttention:
    """The system over the heads at a place, where that is and in its mode of training."""
    sizes: dict[str, Any] = place.sizes()
    for name in options.keys() & {*_OF_ATTENTION, *sizes}:
        raise ValueError(
            f"{name} is given, expected it to be left out: it is an option of attention itself, "
            f"which the model computes"
        )
    others = {name: value for name, value in options.items() if name != "neutral"}
    known = [o for o in options_of(kind) if o not in {"preset", *sizes, *_OF_ATTENTION}]
    for name in others.keys() - known:
        raise ValueError(
            f"options name {name!r}, expected some of {', '.join(known)}{did_you_mean(name, known)}"
        )
    system = kind.over_heads(**sizes, **others)
    if options.get("neutral", True):
        system.start_neutral()
    system.site, system.layer = place.site, place.layer
    if kind is not MultiHeadAttention:
        try:
            said = json.dumps(_described(system, place, every, options)).encode()
        except TypeError as error:
            raise ValueError(
                f"options are {options}, expected numbers, texts and the like, which can be saved"
            ) from error
        system.register_buffer(_SAYS, torch.tensor(list(said), dtype=torch.uint8))
    # Quantised weights may be buffers, or no tensors at all; accelerate keeps some elsewhere.
    module = place.module
    weight = next(chain(module.parameters(), module.buffers(), [torch.empty(())]))
    hooks = [getattr(each, "_hf_hook", None) for each in module.modules()]
    devices = [each for hook in hooks if (each := getattr(hook, "execution_device", None))]
    device = torch.device(devices[0]) if weight.is_meta and devices else weight.device
    # As adapters: updates of few digits would be lost in so few bits.
    dtype = weight.dtype if weight.dtype in (torch.float32, torch.float64) else torch.float32
    return system.to(device, dtype).train(module.training)


def _described(
    system: MultiHeadAttention, place: Place, every: list[Place], options: dict[str, Any]
) -> dict[str, Any]:
    """What `load_gates` has to know of a system beside its tensors."""
    layers = 1 + max(each.layer for each in every if each.stack == place.stack)
    where = {"path": place.path, "site": place.site, "layer": place.layer, "layers": layers}
    return {"system": system_name(type(system)), "options": options, **where, **place.sizes()}


def _follow_saving(model: Any) -> None:
    if hasattr(model, "save_pretrained"):
        model.save_pretrained = partial(_saved_with_gates, model)


def _saved_with_gates(model: Any, save_directory: str | Path, *args: Any, **kwargs: Any) -> Any:
    """Stands before the `save_pretrained` of a gated model, which may leave gates out: peft's."""
    done = type(model).save_pretrained(model, save_directory, *args, **kwargs)
    systems = [gates.system for gates in gates_of(model).values()]
    if systems and kwargs.get("is_main_process", True):
        held_by_tool = not all(isinstance(system, MultiHeadAttention) for system in systems)
        if not (held_by_tool or files_with_gates(Path(save_directory))):
            save_gates(model, save_directory)
        warnings.warn(
            f"{save_directory} has the gates over the heads too, which from_pretrained leaves out: "
            f"call headwise.load_gates(model, {str(save_directory)!r}) after it",
            stacklevel=2,
        )
    return done


def files_with_gates(source: Path) -> list[Path]:
    """The files in a folder that hold gates: of one way of saving them."""
    if source.is_file():
        return [source]
    names = (TENSORS, "adapter_model.safetensors", "model*.safetensors")
    ways = []
    for files in (sorted(source.glob(name)) for name in names):
        held = [file for file in files if any(f"{NAME}.system." in key for key in _keys(file))]
        ways += [held] if held else []
    if len(ways) > 1:
        raise ValueError(
            f"{source} has gates in {' and in '.join(files[0].name for files in ways)}, expected "
            f"one of them: give load_gates the file"
        )
    return ways[0] if ways else []


def _keys(file: Path) -> list[str]:
    try:
        with safe_open(file, "pt") as tensors:
            return list(tensors.keys())
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error


def _read(source: Path) -> list[tuple[dict[str, Any], dict[str, Tensor]]]:
    """Of each attention with gates, what `_described` said, and the tensors of the system."""
    found: dict[str, dict[str, Tensor]] = {}
    for file in files_with_gates(source):
        with safe_open(file, "pt") as tensors:
            for key in _keys(file):
                path, inside, name = key.partition(f"{NAME}.system.")
                if inside:
                    found.setdefault(path, {})[name] = tensors.get_tensor(key)
    if not found:
        raise ValueError(
            f"{source} has no gates, expected a folder of headwise.save_gates, or of "
            f"save_pretrained of a model with gates"
        )
    for path, held in found.items():
        if _SAYS not in held:
            raise ValueError(
                f"{source} has gates of {path!r} that do not say their system, expected what this "
                f"version of headwise has saved"
            )
    return [(json.loads(bytes(held.pop(_SAYS).tolist())), held) for held in found.values()]


def _find(model: nn.Module, every: list[Place], saved: str) -> Place:
    """The attention that was saved, whose path may have had more or fewer models around it."""
    alike = [
        place
        for place in every
        if f".{place.path}".endswith(f".{saved}") or f".{saved}".endswith(f".{place.path}")
    ]
    if len(alike) == 1:
        return alike[0]
    raise ValueError(
        f"model is a {type(model).__name__} with {len(alike)} attentions at {saved!r}, expected "
        f"one: load the gates over the model that they were saved from, or the part that was"
    )
