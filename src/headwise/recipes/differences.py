"""How two recipes differ, key by key."""

from typing import Any

from headwise.plain_yaml import read_yaml


def differences(old: str, new: str) -> list[str]:
    """Returns a line for each value that differs between two recipes in YAML.

    >>> differences("training: {seed: 1, max_steps: 5}", "training: {seed: 2, max_steps: 5}")
    ['training.seed: 1 before, 2 now']
    """
    before, now = flatten(read_yaml(old)), flatten(read_yaml(new))
    return [
        f"{key}: {before.get(key, 'not set')} before, {now.get(key, 'not set')} now"
        for key in [*before, *(key for key in now if key not in before)]
        if before.get(key, "not set") != now.get(key, "not set")
    ]


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Returns the values of a recipe by their keys with dots.

    >>> flatten({"model": {"norm": "pre", "embed_dim": 8}})
    {'model.norm': 'pre', 'model.embed_dim': 8}
    """
    if not isinstance(value, dict):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    return flat
