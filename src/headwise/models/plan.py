"""A plan says which system of heads is at which site and layer of a model.

    attention: mae                                    # every site, the layers of its paper
    attention: {system: moa, size: 8K32E64D}          # the same, with options

    attention:
      encoder_self:  {system: moa, size: 8K32E64D, layers: [0, 1]}
      decoder_cross: {system: mae, dropped_heads: 2}

Sites and layers that are not named are standard. A site may also hold a list of such entries, for
different systems in different layers. `layers` is a list of layers, counted from 0, or one of
`all`, `low` (the first two) and `middle` (all but the first two and the last). `preset` is one of
the system's presets; options beside it win.

Two systems take the place of more than an attention. `weighted` takes that of an attention and of
the feed-forward behind it, and is named at the last attention of a layer; `tim` takes that of a
whole layer, and is named at its self-attention. Named for a whole model, each stands wherever it
can. A system of your own is named by its module and class, `my_heads:ScaledHeads`; import the
module before.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from typing import Any

from headwise.heads.agreement import AgreementAttention
from headwise.heads.attention import MultiHeadAttention
from headwise.heads.differential import DifferentialAttention
from headwise.heads.gated import GatedAttention
from headwise.heads.mae import MixtureOfAttentiveExperts
from headwise.heads.moa import MixtureOfAttentionHeads
from headwise.heads.moh import MixtureOfHeads
from headwise.heads.rules import Rule
from headwise.heads.system import System
from headwise.heads.tim import IndependentMechanismsLayer
from headwise.heads.weighted import BranchedAttention
from headwise.messages import check_choice, did_you_mean

SYSTEMS: dict[str, type[System]] = {
    "standard": MultiHeadAttention,
    "weighted": BranchedAttention,
    "agreement": AgreementAttention,
    "mae": MixtureOfAttentiveExperts,
    "tim": IndependentMechanismsLayer,
    "moa": MixtureOfAttentionHeads,
    "gated": GatedAttention,
    "moh": MixtureOfHeads,
    "differential": DifferentialAttention,
}

Plan = str | Mapping[str, Any]
LayerSpec = dict[str, Any]  # {"system": name, **options}


def system_class(name: Any) -> type[System]:
    """The class of a system, by its short name, or as `module:Class` of an imported module.

    Raises:
        ValueError: there is none of that name.

    >>> system_class("mae").__name__
    'MixtureOfAttentiveExperts'
    """
    if isinstance(name, str) and name in SYSTEMS:
        return SYSTEMS[name]
    module, _, attribute = str(name).partition(":")
    kind = getattr(sys.modules.get(module), attribute, None) if attribute else None
    if isinstance(kind, type) and issubclass(kind, System):
        return kind
    if attribute and module not in sys.modules:
        raise ValueError(
            f"the system {name!r} is of the module {module}, which is not imported: import it "
            f"before, or give a command --import {module}"
        )
    raise ValueError(
        f"there is no system {name!r}, expected one of {', '.join(SYSTEMS)}, or module:Class of "
        f"a subclass of headwise.systems.System{did_you_mean(name, SYSTEMS)}"
    )


def system_name(kind: type[System]) -> str:
    """What plans and recipes call a system: its short name, or `module:Class`."""
    for name, known in SYSTEMS.items():
        if known is kind:
            return name
    return f"{kind.__module__}:{kind.__qualname__}"


def rules_by_name() -> dict[str, type[Rule]]:
    """The rules of training of headwise's systems, by the systems' names."""
    return {name: kind.rule for name, kind in SYSTEMS.items() if kind.rule is not None}


def rule_name(kind: type[System]) -> str:
    """The name under which a recipe has the settings of a system's rule of training: that of the
    system which declares the rule, so that subclasses share its settings.
    """
    names = (name for name, rule in rules_by_name().items() if rule is kind.rule)
    declares = next(base for base in kind.__mro__ if "rule" in vars(base))
    return next(names, system_name(declares))


def layer_specs(plan: Plan, depths: Mapping[str, int]) -> dict[str, list[LayerSpec]]:
    """What stands where: per site one `{"system": ..., **options}` for each layer.

    Args:
        plan: see above.
        depths: the sites of a model and how many layers each has, those of one layer in their
            order: `{"encoder_self": 6, "decoder_self": 6, "decoder_cross": 6}`.

    Raises:
        ValueError: the plan names an unknown system, site or layer, or one that does not fit there.

    >>> layer_specs({"encoder_self": {"system": "mae", "layers": [1]}}, {"encoder_self": 2})
    {'encoder_self': [{'system': 'standard'}, {'system': 'mae'}]}
    """
    plan = {"system": plan} if isinstance(plan, str) else plan
    is_whole = "system" in plan
    if is_whole:
        kind = system_class(plan["system"])
        plan = {site: plan for site in depths if _naming_site(kind, site, depths) == site}
    specs: dict[str, dict[int, LayerSpec]] = {site: {} for site in depths}
    for site, entries in plan.items():
        check_choice("a site in attention", site, depths)
        for entry in entries if isinstance(entries, list) else [entries]:
            layers, spec = _read_entry(site, entry, depths)
            for layer in layers:
                if layer in specs[site]:
                    raise ValueError(f"attention.{site} names layer {layer} twice")
                specs[site][layer] = spec
    empty = [site for site in plan if not specs[site]]
    if empty and (not is_whole or empty == list(plan)):
        site = empty[0]
        raise ValueError(
            f"attention.{site}: {plan[site]!r} is in none of {depths[site]} layers (its paper "
            f"keeps the first two and the last standard): name layers, as in layers: [0]"
        )
    for layer, spec in specs.get("decoder_self", {}).items():
        cross = specs.get("decoder_cross", {}).get(layer, {}).get("system", "standard")
        if system_class(spec["system"]).replaces == "layer" and cross != "standard":
            raise ValueError(
                f"attention.decoder_cross names {cross} in layer {layer}, all of which "
                f"{spec['system']} takes the place of"
            )
    standard = {"system": "standard"}
    return {
        site: [dict(specs[site].get(layer, standard)) for layer in range(depth)]
        for site, depth in depths.items()
    }


def build_system(spec: LayerSpec, config: Any, site: str, layer: int) -> System:
    """The module for one of `layer_specs`, which then knows its site and layer.

    Raises:
        ValueError: the system does not take the options, or they do not fit the model.
    """
    name, kind = spec["system"], system_class(spec["system"])
    options = {option: value for option, value in spec.items() if option != "system"}
    try:
        system = kind.from_config(config, site, **options)
    except ValueError as error:
        raise ValueError(f"attention.{site}: {name}: {error}") from error
    except TypeError as error:  # such as an option that the constructor does not have
        known = plan_options(kind)
        hints = [did_you_mean(option, known) for option in options if option not in known]
        raise ValueError(
            f"attention.{site}: {name}: {error}{''.join(hints)} (options: {', '.join(known)})"
        ) from error
    system.place(site, layer)
    return system


def plan_options(kind: type[System]) -> list[str]:
    """The options of a system that a plan can give: arguments of its constructor, by name.

    >>> "dropped_heads" in plan_options(SYSTEMS["mae"])
    True
    """
    options = {"preset": None} if kind.presets else {}
    bases = [base for base in kind.__mro__ if "__init__" in vars(base)]
    for base in (base for base in bases if base is not System and issubclass(base, System)):
        for option in signature(base.__init__).parameters.values():
            # What a base needs, and the class itself does not take, it gives to the base.
            is_given = base is not bases[0] and option.default is option.empty
            if not is_given and option.kind is not option.VAR_KEYWORD:
                options[option.name] = None
    return [name for name in options if name not in ("self", "embed_dim", "dense")]


def _read_entry(site: str, entry: Any, depths: Mapping[str, int]) -> tuple[list[int], LayerSpec]:
    """The layers that an entry is for, and its system with the options."""
    spec = {"system": entry} if isinstance(entry, str) else entry
    if not isinstance(spec, Mapping) or "system" not in spec:
        raise ValueError(
            f"attention.{site} is {entry!r}, expected the name of a system, a mapping with the "
            f"key system, or a list of these"
        )
    spec = dict(spec)
    name, kind, depth = spec["system"], system_class(spec["system"]), depths[site]
    if (place := _naming_site(kind, site, depths)) != site:
        raise ValueError(
            f"attention.{site} names {name}, which takes the place of a {kind.replaces} too: name "
            f"it at {place}"
        )
    layers = spec.pop("layers", kind.layers)
    named = {"all": range(depth), "low": range(min(2, depth)), "middle": range(2, depth - 1)}
    numbers = [layers] if isinstance(layers, int) else layers
    if isinstance(layers, str):
        numbers = list(named.get(layers, [-1]))
    is_list = isinstance(numbers, Sequence)
    if not is_list or not all(type(n) is int and 0 <= n < depth for n in numbers):
        raise ValueError(
            f"attention.{site}.layers is {layers!r}, expected a list of some of 0 to {depth - 1}, "
            f"or one of {', '.join(named)}"
        )
    preset = spec.pop("preset", None)
    if preset is not None:
        check_choice(f"preset of {name}", preset, kind.presets)
        spec = {**kind.presets[preset], **spec}
    return numbers, spec


def _naming_site(kind: type[System], site: str, sites: Iterable[str]) -> str:
    """The site at which a plan has to name a system, for layers that have the given site."""
    layer_sites = [other for other in sites if other.split("_")[0] == site.split("_")[0]]
    places = {"attention": site, "feed-forward": layer_sites[-1], "layer": layer_sites[0]}
    return places[kind.replaces]
