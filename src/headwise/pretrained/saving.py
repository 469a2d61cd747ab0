"""Saves what stands over the heads of a pretrained model, without the model, and loads it."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn
from transformers import PreTrainedModel

from headwise import __version__
from headwise.files import write_bytes, write_text
from headwise.heads.multi_head import MultiHeadAttention
from headwise.models.hub import CARD, fetch, is_name_on_hub, send, write_card
from headwise.models.plan import system_name
from headwise.pretrained.attaching import (
    attach,
    check_has_no_gates,
    class_over_heads,
    detach,
    gates_of,
    note_change,
    required_gates,
)
from headwise.pretrained.layouts import AttentionModule, HeadLayout, attention_modules

TENSORS = "head_gates.safetensors"
DESCRIPTION = "head_gates.json"

Model = TypeVar("Model", bound=nn.Module)


def save_gates(
    model: nn.Module,
    folder: str | Path,
    *,
    push_to_hub: str | None = None,
    private: bool | None = None,
) -> None:
    """Saves the system over the heads of a pretrained model; the model itself is not saved.

    The folder, which may hold other files, gets `head_gates.safetensors`, `head_gates.json` and a
    card, `README.md`, unless it has one. It may be that of `model.save_pretrained`, which saves the
    system's parameters too and warns that `from_pretrained` leaves them out: `load_gates` brings
    them back.

    Args:
        model: a model that `gate_heads` has been called with.
        folder: where to write; it is created if there is none.
        push_to_hub: a repository of the hub, `user/name`, to which these files are uploaded too; it
            is created if there is none, and keeps its card if it has one.
        private: whether a new repository is private.

    Raises:
        OSError: the hub cannot be reached, or does not let the user write there; the folder is
            written all the same.
        ValueError: the model has no system over its heads, or several that differ, or one with
            options that JSON has no way to write.
    """
    gates = required_gates(model)
    first = next(iter(gates.values()))
    tensors, sites = {}, {}
    names = base_names(model, gates)
    for path, each in gates.items():
        if not isinstance(each.system, MultiHeadAttention):
            raise ValueError(
                f"the system over the heads at {path!r} is a {type(each.system).__name__}, in "
                f"which another tool holds it, expected the system itself: save by that tool, "
                f"or have it put its changes in place first, as merge_and_unload() of peft does"
            )
        if (type(each.system), each.options) != (type(first.system), first.options):
            raise ValueError(
                f"the gates over the heads at {path!r} are of another system or have other options "
                f"than those at {next(iter(gates))!r}, expected the same over all heads, since one "
                f"folder describes one system: save each part by itself, as by "
                f"headwise.save_gates(model.encoder, folder)"
            )
        path = names[path]
        where = {"site": each.site, "layer": each.layer, "layers": each.around.layers}
        sites[path] = {**where, **_sizes(each.system)}
        for name, tensor in each.system.state_dict().items():
            tensors[f"{path}.{name}"] = tensor.detach().cpu().contiguous()
    description = {
        "headwise_version": __version__,
        "model": type(model).__name__,
        "system": system_name(type(first.system)),
        "options": first.options,
        "attentions": sites,
    }
    try:
        text = json.dumps(description, indent=2)
    except TypeError as error:
        raise ValueError(
            f"options of the system are {first.options}, of which JSON cannot write all ({error}); "
            f"expected numbers, texts, lists and the like"
        ) from None
    write_bytes(Path(folder) / TENSORS, save(tensors))
    write_text(Path(folder) / DESCRIPTION, text + "\n")
    _write_card(Path(folder), model, description, push_to_hub)
    if push_to_hub is not None:
        send(Path(folder), push_to_hub, [TENSORS, DESCRIPTION, CARD], private)


def _write_card(
    folder: Path, model: nn.Module, description: Mapping[str, Any], repo_id: str | None
) -> None:
    """The card names the pretrained model if that is on the hub, and no folder of this machine."""
    inner: Any = next((m for m in model.modules() if isinstance(m, PreTrainedModel)), model)
    name, system = type(inner).__name__, description["system"]
    base = str(getattr(inner, "name_or_path", ""))
    base = base if is_name_on_hub(base) else ""
    options = ", ".join(f"`{key}={value!r}`" for key, value in description["options"].items())
    made = f'transformers.{name}.from_pretrained("{base}")' if base else f"...  # a {name}"
    write_card(
        folder,
        f"Gates over the heads of {base or f'a {name}'}",
        f"The system `{system}`{f' with {options}' if options else ''} over the heads, in "
        f"{len(description['attentions'])} of the model's attention modules. headwise loads it "
        f"over the model that it was saved from: `pip install headwise`.",
        f"import headwise, transformers\n\nmodel = {made}\n"
        f'headwise.load_gates(model, "{repo_id or "FOLDER"}")',
        tags=["headwise", "head-gates", system],
        **({"base_model": base, "base_model_relation": "adapter"} if base else {}),
    )


def load_gates(
    model: Model,
    folder: str | Path,
    *,
    layouts: Mapping[str, HeadLayout] | None = None,
    revision: str | None = None,
) -> Model:
    """Puts a saved system over the heads of a pretrained model, in place of `gate_heads`.

    The model may be of another class than the one that was saved, such as one with another head, if
    its attentions are the same.

    Args:
        model: a model without such gates.
        folder: where `save_gates` has written, or `user/name` of a repository on the hub.
        layouts: as in `gate_heads`.
        revision: a tag or a commit of the repository; by default its newest state.

    Returns:
        The model.

    Raises:
        OSError: there is no such folder, and the hub cannot be reached or has no such repository.
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
    if isinstance(folder, str) and "/" in folder and is_name_on_hub(folder):
        folder = fetch(folder, [DESCRIPTION, TENSORS], revision)
    description, tensors = _read(Path(folder))
    every = attention_modules(model, layouts)
    check_has_no_gates(model)
    try:
        kind: Any = class_over_heads(description["system"])
    except ValueError as error:
        raise type(error)(f"{Path(folder) / DESCRIPTION}: {error}") from error
    chosen = _find(model, every, description["attentions"])
    try:
        attach(model, every, chosen, kind, description["options"])
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{Path(folder) / DESCRIPTION} has options that {kind.__name__} does not take: {error}"
        ) from error
    gates = gates_of(model)
    names = base_names(model, gates)
    try:
        for path, each in gates.items():
            prefix = f"{names[path]}."
            own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
            each.system.load_state_dict(own)
    except RuntimeError as error:
        detach(model)
        raise ValueError(f"{Path(folder) / TENSORS} is not what was saved: {error}") from error
    note_change(model)
    return model


def _find(
    model: nn.Module, every: list[AttentionModule], saved: Mapping[str, Mapping[str, Any]]
) -> list[AttentionModule]:
    """The attention modules of a model that were saved."""
    names = base_names(model, [place.path for place in every])
    there = {names[place.path]: place for place in every}
    differences = []
    for path, described in saved.items():
        if path not in there:
            differences.append(f"{path!r} is missing")
            continue
        place = there[path]
        layers = 1 + max(each.layer for each in every if each.stack == place.stack)
        now: dict[str, Any] = {"site": place.site, **place.sizes(), "layers": layers}
        differences += [
            f"{path!r} has {name} {value!r}, saved was {described[name]!r}"
            for name, value in now.items()
            if value != described.get(name, value)
        ]
    if differences:
        more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise ValueError(
            f"model is a {type(model).__name__} whose attentions are not those that were saved: "
            f"{'; '.join(differences[:3])}{more}. Load the gates over the model that they were "
            f"saved from"
        )
    return [there[path] for path in saved]


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    for name in (DESCRIPTION, TENSORS):
        if not (folder / name).is_file():
            raise ValueError(
                f"{folder} has no {name}, expected a folder that headwise.save_gates has written, "
                f"or user/name of a repository on the hub"
            )
    try:
        description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        held = description if isinstance(description, dict) else {}
        missing = [key for key in ("system", "options", "attentions") if key not in held]
        if missing:
            raise ValueError(f"{DESCRIPTION} lacks {', '.join(missing)}")
        options, saved = description["options"], description["attentions"]
        maps_sizes = isinstance(saved, dict) and all(isinstance(at, dict) for at in saved.values())
        if not (maps_sizes and isinstance(options, dict)):
            raise ValueError(f"options or attentions of {DESCRIPTION} are not what was saved")
        return description, load_file(folder / TENSORS)
    except (ValueError, SafetensorError) as error:
        raise ValueError(f"{folder} has gates that cannot be read: {error}") from error


def base_names(model: nn.Module, paths: Iterable[str]) -> dict[str, str]:
    """The paths of attention modules, as a base model without heads and wrappers has them."""
    root = ""
    for path, module in model.named_modules():
        if isinstance(module, PreTrainedModel):
            inner = f"{path}.{module.base_model_prefix}" if path else module.base_model_prefix
            root = inner if inner in dict(model.named_modules()) else path
            break
    return {path: path.removeprefix(f"{root}.") for path in paths}


def _sizes(system: Any) -> dict[str, int]:
    return {name: getattr(system, name) for name in ("embed_dim", "num_heads", "head_dim")}
