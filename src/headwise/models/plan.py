"""A plan says which attention stands at which site and layer of a model.

    attention: mae                                    # every site, every layer
    attention: {system: moa, size: 8K32E64D}          # likewise, with options

    attention:
      encoder_self:  {system: moa, size: 8K32E64D, layers: [0, 1]}
      decoder_cross: {system: mae, dropped_heads: 2}

Sites and layers that are not named are standard. A site may also hold a list of such entries,
for different systems in different layers.
"""

import inspect
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import TypeAdapter, ValidationError

from headwise.heads.attention import MultiHeadAttention
from headwise.heads.mae import MixtureOfAttentiveExperts
from headwise.heads.moa import MixtureOfAttentionHeads, moa_size

SYSTEMS: dict[str, type[MultiHeadAttention]] = {
    "standard": MultiHeadAttention,
    "mae": MixtureOfAttentiveExperts,
    "moa": MixtureOfAttentionHeads,
}

# What a plan's entry may not set, since the model sets it.
_SET_BY_MODEL = {"self", "embed_dim", "kdim", "vdim", "dropout", "causal_queries"}

Plan = str | Mapping[str, Any]
Spec = dict[str, Any]


def layer_specs(plan: Plan, site: str, num_layers: int) -> list[Spec]:
    """What stands at `site`: one `{"system": ..., **options}` per layer.

    Args:
        plan: the name of a system, or a mapping from sites to entries, see above.
        site: `encoder_self`, `decoder_self` or `decoder_cross`.
        num_layers: how many layers the stack has.

    Raises:
        ValueError: a layer that the stack does not have, or that two entries name.

    >>> layer_specs({"encoder_self": {"system": "mae", "layers": [1]}}, "encoder_self", 2)
    [{'system': 'standard'}, {'system': 'mae'}]
    """
    entries = _entries(plan, site)
    specs: list[Spec | None] = [None] * num_layers
    for entry in entries:
        layers = entry.get("layers", range(num_layers))
        for layer in layers:
            if not 0 <= layer < num_layers:
                raise ValueError(
                    f"attention.{site}.layers names layer {layer}, expected 0 to {num_layers - 1}: "
                    f"the stack has {num_layers} layers"
                )
            if specs[layer] is not None:
                raise ValueError(f"attention.{site} names layer {layer} twice")
            specs[layer] = {key: value for key, value in entry.items() if key != "layers"}
    return [{"system": "standard"} if spec is None else spec for spec in specs]


def check_plan(plan: Plan, sites: Sequence[str]) -> None:
    """Raise `ValueError` where a plan names a site, a system or an option that there is not."""
    if _names_sites(plan):
        for site in plan:
            if site not in sites:
                raise ValueError(_unknown("attention", "site", site, sites))
    elif not isinstance(plan, (str, Mapping)):
        raise ValueError(
            f"attention is {plan!r}, expected the name of a system ({', '.join(SYSTEMS)}), a "
            f"mapping with the key system, or one from sites ({', '.join(sites)}) to systems"
        )
    for site in sites:
        for entry in _entries(plan, site):
            where = f"attention.{site}" if _names_sites(plan) else "attention"
            _check_entry(where, entry)


def build_attention(
    spec: Spec, *, site: str, embed_dim: int, num_heads: int, dropout: float
) -> MultiHeadAttention:
    """The attention module of one layer.

    Args:
        spec: one of `layer_specs`.
        site: where it stands. A decoder's queries are a causal sequence also in its
            cross-attention, and MAE's gates have to know.
        embed_dim, num_heads, dropout: the model's; a spec may have its own `num_heads`.
    """
    options = dict(spec)
    system = options.pop("system")
    if system == "moa":
        size = options.pop("size", None)
        if size is not None:
            options.update(moa_size(size))
        # As wide as the standard heads, with four times as many to choose from: row (C) of the
        # paper's table 3.
        options.setdefault("top_k", num_heads)
        options.setdefault("num_experts", 4 * options["top_k"])
        options.setdefault("head_dim", max(1, embed_dim // num_heads))
        return MixtureOfAttentionHeads(embed_dim, dropout=dropout, **options)
    options.setdefault("num_heads", num_heads)
    if system == "mae":
        options["causal_queries"] = site == "decoder_cross"
    return SYSTEMS[system](embed_dim, dropout=dropout, **options)


def _names_sites(plan: Plan) -> bool:
    return isinstance(plan, Mapping) and "system" not in plan


def _entries(plan: Plan, site: str) -> list[Spec]:
    entry = plan.get(site, []) if isinstance(plan, Mapping) and _names_sites(plan) else plan
    entries = entry if isinstance(entry, (list, tuple)) else [entry]
    for each in entries:
        if not isinstance(each, (str, Mapping)):
            raise ValueError(
                f"attention.{site} is {entry!r}, expected the name of a system, a mapping with the "
                f"key system, or a list of these"
            )
    return [{"system": each} if isinstance(each, str) else dict(each) for each in entries]


def _check_entry(where: str, entry: Spec) -> None:
    system = entry.get("system")
    if system not in SYSTEMS:
        raise ValueError(_unknown(where, "system", system, list(SYSTEMS)))
    known = set(inspect.signature(SYSTEMS[system].__init__).parameters) - _SET_BY_MODEL
    known |= {"system", "layers"} | ({"size"} if system == "moa" else set())
    for option in entry:
        if option not in known:
            raise ValueError(_unknown(where, f"option of {system}", option, sorted(known)))
    layers = entry.get("layers", [])
    if not isinstance(layers, (list, tuple)) or not all(type(layer) is int for layer in layers):
        raise ValueError(f"{where}.layers is {layers!r}, expected a list of layers, such as [0, 1]")
    if system == "moa" and "size" in entry:
        moa_size(entry["size"])
    _check_types(where, entry)


def _check_types(where: str, entry: Spec) -> None:
    """Raise `ValueError` unless options are of the types that their system's constructor names."""
    parameters = inspect.signature(SYSTEMS[entry["system"]].__init__).parameters
    for option, value in entry.items():
        if option in parameters:
            try:
                TypeAdapter(parameters[option].annotation).validate_python(value, strict=True)
            except ValidationError as error:
                message = error.errors()[0]["msg"]
                raise ValueError(
                    f"{where}.{option} is {value!r}: {message[0].lower()}{message[1:]}"
                ) from None


def _unknown(where: str, what: str, name: Any, known: Sequence[str]) -> str:
    near = get_close_matches(str(name), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{where} names the {what} {name!r}, expected one of {', '.join(known)}{hint}"
