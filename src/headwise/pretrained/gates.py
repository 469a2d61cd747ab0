"""Systems over the heads of a transformers model: added, removed, folded, saved and loaded."""

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
from headwise.messages import check_choice
from headwise.models.inspect import find_systems, forget_compiled, run_as_written
from headwise.models.plan import SYSTEMS, plan_options, system_class, system_name
from headwise.pretrained.head_gates import (
    CHILD,
    ForwardContext,
    HeadGates,
    Users,
    hook_losses,
    unhook,
)
from headwise.pretrained.layouts import AttentionModule, HeadLayout, find_attentions

Model = TypeVar("Model", bound=nn.Module)
TENSORS = "head_gates.safetensors"  # its metadata describe the gates in JSON


def gate_heads(
    model: Model,
    system: str | type[MultiHeadAttention] = "mae",
    *,
    layers: int | Iterable[int] | None = None,
    sites: str | Iterable[str] | None = None,
    layouts: Mapping[str, HeadLayout] | None = None,
    **options: Any,
) -> Model:
    """Puts a system, such as gates, over the heads of a pretrained model of transformers.

    Until the system is trained, the output of the model is unchanged, up to rounding. The system
    stands between the heads of an attention and its output projection, as a child `head_gates` of
    the attention. It reads the hidden states that the attention is called with; in a causal
    attention, none of later positions. It ignores padding, which the `attention_mask` and
    `decoder_attention_mask` of the model mark, `(batch, time)`.

    MAE's gates average over positions. They refuse a filled cache, and so `generate()`, texts
    packed into rows, and masks that hide more than padding: pass `use_cache=False`, give them
    `gate_window=1`, or use `headwise.from_transformers(model).with_attention("mae")`.

    In training, the `loss` that the model returns for labels includes the losses of the system;
    without labels, `headwise.auxiliary_loss(model)` is their sum. The system's parameters are
    float32 if the model's have fewer bits. To train the system alone, freeze the model first:
    `headwise.gate_heads(model.requires_grad_(False))`.

    Args:
        model: a model of transformers, or a module that holds one, also one of peft.
        system: the name of a system, or its class: one that combines the heads of standard
            attention, and can start without changing them.
        layers: the layers that get the system, or one, counted from 0 in each stack; by default
            all.
        sites: the sites that get the system, or one, of `encoder_self`, `decoder_self` (every
            causal self-attention) and `decoder_cross`; by default all.
        layouts: for attentions whose heads are not found, by the name of their class.
        options: further arguments of the system's constructor; or `neutral=False`, with which the
            system starts as its constructor says, so that the model's output may change.

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
    kind = _class_over_heads(system)
    attentions = find_attentions(model, layouts)
    _check_ungated(model)
    chosen = _select(attentions, layers, sites)
    _attach(model, [(each, _build_system(kind, each, options), options) for each in chosen])
    forget_compiled()
    return model


def remove_gates(model: Model) -> Model:
    """Removes the system of `gate_heads`: the model is again as it was before."""
    _detach(model, _require_gates(model))
    forget_compiled()
    return model


@torch.no_grad()
def fold_gates(model: Model) -> Model:
    """Multiplies static gates of `gate_heads` into the output projections, and removes them.

        Σᵢ (aᵢ ⊙ oᵢ) Wᵢ = Σᵢ oᵢ (diag(aᵢ) Wᵢ)

    The output of the model is unchanged, up to rounding, and it needs headwise no longer. Gates are
    static where they depend on no input: those of gated attention with `gate="static"`, and of
    systems that define `static_scales`; other gates are an error (`ValueError`).

    Example:
        >>> import headwise as hw
        >>> from transformers import GPT2Config, GPT2Model
        >>> model = GPT2Model(GPT2Config(n_embd=32, n_layer=2, n_head=4))
        >>> model = hw.fold_gates(hw.gate_heads(model, "gated", gate="static"))
        >>> hasattr(model.h[0].attn, "head_gates")
        False
    """
    scaled: list[tuple[Tensor, Tensor]] = []
    for path, gates in _require_gates(model).items():
        system: Any = gates.system
        scales = system.static_scales() if isinstance(system, MultiHeadAttention) else None
        if scales is None:
            raise ValueError(
                f"the gates over the heads at {path!r} depend on the input, expected static ones, "
                f"as of headwise.gate_heads(model, 'gated', gate='static')"
            )
        projection: Any = model.get_submodule(path).get_submodule(gates.output_projection)
        weight: Any = getattr(projection, "weight", None)
        if not isinstance(projection, nn.Linear | Conv1D) or type(weight) is not nn.Parameter:
            raise ValueError(
                f"the output projection at {path!r} is a {type(projection).__name__}, expected a "
                f"plain linear map with its weights: merge adapters into it first"
            )
        scales = scales.expand(system.num_heads, system.head_dim).flatten()
        scaled.append((weight, scales[:, None] if isinstance(projection, Conv1D) else scales))
    for weight, scales in scaled:
        weight.mul_(scales.to(weight))
    return remove_gates(model)


def save_gates(model: nn.Module, folder: str | Path) -> None:
    """Saves the system over the heads of a pretrained model; the model itself is not saved.

    The folder, which may hold other files, gets `head_gates.safetensors`, with the weights, the
    name and options of the system, and the paths of its attentions.
    """
    tensors: dict[str, Tensor] = {}
    metadata = []
    for path, gates in _require_gates(model).items():
        if not isinstance(gates.system, MultiHeadAttention):
            raise ValueError(
                f"a {type(gates.system).__name__} holds the system over the heads at {path!r}: "
                f"save and load by save_pretrained and from_pretrained of peft's model"
            )
        name, site = system_name(type(gates.system)), gates.system.site
        metadata.append({"path": path, "site": site, "system": name, "options": gates.options})
        for name, tensor in gates.system.state_dict().items():
            tensors[f"{path}.{CHILD}.system.{name}"] = tensor.detach().cpu().contiguous()
    with written_whole(Path(folder) / TENSORS) as partial:
        save_file(tensors, partial, metadata={"gates": json.dumps(metadata)})


def load_gates(
    model: Model, folder: str | Path, *, layouts: Mapping[str, HeadLayout] | None = None
) -> Model:
    """Puts a saved system over the heads of a pretrained model, instead of `gate_heads`.

    The model may be of another class than the one that was saved, if its attentions are the same.

    Args:
        folder: the folder of `save_gates`, or a name on the hub.
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
        try:
            file = Path(hf_hub_download(str(folder), TENSORS))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"folder is {str(folder)!r}, expected a folder, or a name on the hub ({error})"
            ) from error
    attentions = find_attentions(model, layouts)
    _check_ungated(model)
    try:
        with safe_open(file, "pt") as content:
            metadata = json.loads(content.metadata()["gates"])
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, TypeError, KeyError) as error:
        raise ValueError(
            f"{file} cannot be read, expected a file of save_gates ({error}): of a checkpoint of "
            f"save_pretrained, load the model with gate_heads over it, then save_gates"
        ) from error
    loaded = []
    for entry in metadata:
        # A wrapper, or a head, may have lengthened or shortened the paths.
        matches = [a for a in attentions if f".{a.path}".endswith(f".{entry['path']}")
                   or f".{entry['path']}".endswith(f".{a.path}")]  # fmt: skip
        prefix = f"{entry['path']}.{CHILD}.system."
        state = {n.removeprefix(prefix): x for n, x in tensors.items() if n.startswith(prefix)}
        try:
            if [attention.site for attention in matches] != [entry["site"]]:
                raise ValueError(
                    f"expected one attention of that path and site {entry['site']}, "
                    f"{type(model).__name__} has {[f'{a.path} ({a.site})' for a in matches]}"
                )
            system = _build_system(_class_over_heads(entry["system"]), matches[0], entry["options"])
            system.load_state_dict(state)
        except (ValueError, RuntimeError) as error:
            raise ValueError(
                f"{folder} has gates over {entry['path']!r} that the model cannot take: {error}"
            ) from error
        loaded.append((matches[0], system, entry["options"]))
    _attach(model, loaded)
    forget_compiled()
    return model


@contextmanager
def with_identity_gates(
    model: nn.Module, layouts: Mapping[str, HeadLayout] | None = None
) -> Iterator[None]:
    """While this context is open, a plain model of transformers has systems over its heads.

    They are `MultiHeadAttention`, without parameters, and change nothing. A model that holds
    systems already stays as it is. Compiled models run uncompiled meanwhile.

    Raises:
        ValueError: the model holds no system, and no attention whose heads are known.
    """
    users = next((gates.users for gates in find_gates(model).values() if gates.users), None)
    if users is None and find_systems(model):
        yield
        return
    users = users or Users(model)
    users.count += 1
    try:
        if users.count == 1:
            _attach_identity_gates(users, layouts)
        with run_as_written():
            yield
    finally:
        users.count -= 1
        if not users.count:  # contexts that are open at once may end in any order
            _detach(users.model, find_gates(users.model))


def _attach_identity_gates(users: Users, layouts: Mapping[str, HeadLayout] | None) -> None:
    attentions = find_attentions(users.model, layouts)
    with torch.device("meta"):  # no projection is allocated, and no random number drawn
        systems_over = [_build_system(MultiHeadAttention, each, {}) for each in attentions]
    _attach(users.model, [(*pair, {}) for pair in zip(attentions, systems_over, strict=True)])
    for gates in find_gates(users.model).values():
        gates.users = users


def find_gates(model: nn.Module) -> dict[str, HeadGates]:
    """The gates over the heads of a model, by the paths of its attention modules."""
    return {
        path.removesuffix(CHILD).rstrip("."): module
        for path, module in model.named_modules()
        if isinstance(module, HeadGates)
    }


def _attach(
    model: nn.Module, placed: Sequence[tuple[AttentionModule, MultiHeadAttention, dict[str, Any]]]
) -> None:
    """Puts systems, built with these options, over the heads of attentions."""
    contexts: dict[str, ForwardContext] = {}
    for attention, system, options in placed:
        if attention.stack not in contexts:
            contexts[attention.stack] = ForwardContext(model.get_submodule(attention.stack))
        gates = HeadGates(system, options, attention, contexts[attention.stack])
        attention.module.add_module(CHILD, gates)
    for module in outermost_models(model):
        hook_losses(module)


def _detach(model: nn.Module, gates_by_path: Mapping[str, HeadGates]) -> None:
    for path, gates in gates_by_path.items():
        gates.context.averaging_gates -= gates.averages
        delattr(model.get_submodule(path), CHILD)
    for module in model.modules():
        unhook(module)


def outermost_models(module: nn.Module) -> list[PreTrainedModel]:
    """The models of transformers that are in no other one: their output has the loss."""
    if isinstance(module, PreTrainedModel):
        return [module]
    return [model for child in module.children() for model in outermost_models(child)]


def _class_over_heads(system: str | type[MultiHeadAttention]) -> type[MultiHeadAttention]:
    """The class of a system that combines heads; raises `ValueError` for other systems."""
    names = tuple(name for name, kind in SYSTEMS.items() if _combines_heads(kind))[1:]
    if isinstance(system, str) and ":" not in system:
        check_choice("system", system, names)
    kind: Any = system if isinstance(system, type) else system_class(system)
    if not _combines_heads(kind):
        raise ValueError(
            f"system is {kind.__name__}, which changes how heads attend, expected one of "
            f"{', '.join(names)}, or a subclass of headwise.MultiHeadAttention that has its "
            f"attend()"
        )
    return kind


def _combines_heads(kind: type) -> bool:
    return issubclass(kind, MultiHeadAttention) and kind.attend is MultiHeadAttention.attend


def _check_ungated(model: nn.Module) -> None:
    for path in find_gates(model):
        raise ValueError(
            f"model has gates over its heads already, first at {path!r}: call "
            f"headwise.remove_gates(model), or headwise.fold_gates(model) if they are static"
        )


def _require_gates(model: nn.Module) -> dict[str, HeadGates]:
    if gates := find_gates(model):
        return gates
    raise ValueError(
        f"model is a {type(model).__name__} without gates over its heads, expected one that "
        f"headwise.gate_heads has been called with"
    )


def _select(
    attentions: list[AttentionModule],
    layers: int | Iterable[int] | None,
    sites: str | Iterable[str] | None,
) -> list[AttentionModule]:
    """The attentions in these layers and at these sites."""
    selected = attentions
    for name, requested in (("site", sites), ("layer", layers)):
        known = tuple(dict.fromkeys(getattr(each, name) for each in attentions))
        requested = known if requested is None else requested
        values = (requested,) if isinstance(requested, int | str) else tuple(requested)
        for value in values:
            check_choice(f"{name}s", value, known)
        selected = [each for each in selected if getattr(each, name) in values]
    if not selected:
        raise ValueError("layers and sites name no attention together, expected at least one")
    return selected


def _build_system(
    kind: type[MultiHeadAttention], attention: AttentionModule, options: dict[str, Any]
) -> MultiHeadAttention:
    """A system for the heads of an attention, on its device and in its mode of training."""
    known = [name for name in plan_options(kind) if name not in plan_options(MultiHeadAttention)]
    for name in options:  # options of attention itself would change nothing
        check_choice("option", name, (*known, "neutral"))
    arguments = {name: value for name, value in options.items() if name != "neutral"}
    system = kind.as_head_gate(**attention.sizes(), **arguments)
    if options.get("neutral", True):
        system.init_neutral()
    system.place(attention.site, attention.layer)
    module = attention.module
    # Quantised weights may be buffers, or no tensors at all.
    weight = next(iter([*module.parameters(), *module.buffers(), torch.empty(())]))
    # Small updates would be lost in half precision.
    dtype = weight.dtype if weight.dtype in (torch.float32, torch.float64) else torch.float32
    return system.to(weight.device, dtype).train(module.training)
