"""Saves what stands over the heads of a pretrained model, without the model, and loads it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from headwise.pretrained.attaching import (
    attach,
    check_has_no_gates,
    class_over_heads,
    detach,
    note_change,
)
from headwise.pretrained.checkpoints import (
    DESCRIPTION,
    TENSORS,
    base_names,
    gates_of,
    write_gates,
)
from headwise.pretrained.layouts import AttentionModule, HeadLayout, attention_modules

Model = TypeVar("Model", bound=nn.Module)


def save_gates(model: nn.Module, folder: str | Path) -> None:
    """Saves the system over the heads of a pretrained model; the model itself is not saved.

    The folder, which may hold other files, gets `head_gates.safetensors` and `head_gates.json`.
    `save_pretrained` of a model with gates, and so transformers' Trainer, writes these two beside
    the model.

    Args:
        model: a model that `gate_heads` has been called with.
        folder: where to write; it is created if there is none.

    Raises:
        ValueError: the model has no system over its heads, or several that differ, or one with
            options that JSON has no way to write.
    """
    write_gates(model, Path(folder))


def load_gates(
    model: Model,
    folder: str | Path,
    *,
    layouts: Mapping[str, HeadLayout] | None = None,
) -> Model:
    """Puts a saved system over the heads of a pretrained model, in place of `gate_heads`.

    The model may be of another class than the one that was saved, such as one with another head, if
    its attentions are the same.

    Args:
        model: a model without such gates.
        folder: where `save_gates` has written, or `save_pretrained` of a model with gates.
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
                f"{folder} has no {name}, expected a folder that headwise.save_gates has written"
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
