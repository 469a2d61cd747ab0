"""A plan says which system of heads stands at which site and layer of a model.

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
from collections.abc import Iterable, Mapping
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
from headwise.ops.checks import did_you_mean

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
Spec = dict[str, Any]  # {"system": name, **options}


def system_class(name: Any) -> type[System]:
    """The class of a system, by its short name, or as `module:Class` of an imported module.

    Raises:
        ValueError: there is none of that name.

    >>> system_class("mae").__name__
    'MixtureOfAttentiveExperts'
    """
    if isinstance(name, str) and name in SYSTEMS:
        return SYSTEMS[name]
    module, _, kind = str(name).partition(":")
    found = getattr(sys.modules.get(module), kind, None) if kind else None
    if isinstance(found, type) and issubclass(found, System):
        return found
    if kind and module not in sys.modules:
        raise ValueError(
            f"the system {name!r} is of the module {module}, which is not imported: import it "
            f"before, or give a command --import {module}"
        )
    raise ValueError(
        f"there is no system {name!r}, expected one of {', '.join(SYSTEMS)}, or module:Class of "
        f"a subclass of headwise.systems.System{did_you_mean(name, SYSTEMS)}"
    )


def system_name(system: type[System]) -> str:
    """What plans and recipes call a system: its short name, or `module:Class`."""
    for name, known in SYSTEMS.items():
        if known is system:
            return name
    return f"{system.__module__}:{system.__qualname__}"


def rules_by_name() -> dict[str, type[Rule]]:
    """The rules of training of headwise's systems, by the systems' names."""
    return {name: system.rule for name, system in SYSTEMS.items() if system.rule is not None}


def rule_name(system: type[System]) -> str:
    """The name under which a recipe has the settings of a system's rule of training.

    It is that of the system which declares the rule, so that subclasses share its settings.
    """
    for name, rule in rules_by_name().items():
        if rule is system.rule:
            return name
    return system_name(next(base for base in system.__mro__ if "rule" in vars(base)))


def layer_specs(plan: Plan, depths: Mapping[str, int]) -> dict[str, list[Spec]]:
    """What stands where: per site one `{"system": ..., **options}` for each layer.

    Args:
        plan: see above.
        depths: the sites of a model and how many layers each has, those of one layer in their
            order: `{"encoder_self": 6, "decoder_self": 6, "decoder_cross": 6}`.

    Raises:
        ValueError: the plan names what there is not, or what cannot stand there.

    >>> layer_specs({"encoder_self": {"system": "mae", "layers": [1]}}, {"encoder_self": 2})
    {'encoder_self': [{'system': 'standard'}, {'system': 'mae'}]}
    """
    sites = ", ".join(depths)
    if not isinstance(plan, (str, Mapping)):
        raise ValueError(
            f"attention is {plan!r}, expected the name of a system ({', '.join(SYSTEMS)}), a "
            f"mapping with the key system, or one from sites ({sites}) to systems"
        )
    is_whole = isinstance(plan, str) or "system" in plan
    if isinstance(plan, str) or "system" in plan:
        entry = {"system": plan} if isinstance(plan, str) else dict(plan)
        kind = system_class(entry["system"])
        plan = {site: entry for site in depths if _where(kind, site, depths) == site}
    specs: dict[str, dict[int, Spec]] = {site: {} for site in depths}
    for site, listed in plan.items():
        if site not in depths:
            beside = f"; write {{system: {site}, layers: ...}}" if site in SYSTEMS else ""
            raise ValueError(
                f"attention names the site {site!r}, expected some of {sites}"
                f"{beside or did_you_mean(site, depths)}"
            )
        for given in listed if isinstance(listed, list) else [listed]:
            layers, spec = _entry(site, given, depths)
            if not layers and not is_whole:
                raise ValueError(_none_left(f"attention.{site}", spec, depths[site]))
            for layer in layers:
                if layer in specs[site]:
                    raise ValueError(f"attention.{site} names layer {layer} twice")
                specs[site][layer] = dict(spec)
    if is_whole and not any(specs.values()) and any(depths.values()):
        raise ValueError(_none_left("attention", entry, max(depths.values())))
    _check_beside(specs)
    standard = {"system": "standard"}
    return {
        site: [dict(specs[site].get(layer, standard)) for layer in range(depth)]
        for site, depth in depths.items()
    }


def build_system(spec: Spec, config: Any, site: str, layer: int) -> System:
    """The module for one of `layer_specs`, which then knows its site and layer.

    Raises:
        ValueError: the system does not take the options, or they do not fit the model.
    """
    name = spec["system"]
    options = {option: value for option, value in spec.items() if option != "system"}
    kind = system_class(name)
    try:
        system = kind.from_config(config, site, **options)
    except TypeError as error:  # such as an option that the constructor does not have
        known = options_of(kind)
        hints = [did_you_mean(option, known) for option in options if option not in known]
        raise ValueError(
            f"attention.{site}: {name}: {error}{''.join(hints)} (its options are "
            f"{', '.join(known)})"
        ) from error
    except ValueError as error:
        raise ValueError(f"attention.{site}: {name}: {error}") from error
    system.site, system.layer = site, layer
    return system


def options_of(system: type[System]) -> list[str]:
    """The options of a system that a plan can give: arguments of its constructor, by name.

    >>> "dropped_heads" in options_of(SYSTEMS["mae"])
    True
    """
    found: dict[str, None] = {"preset": None} if system.presets else {}
    for base in system.__mro__:
        if issubclass(base, System) and "__init__" in vars(base):
            of_base = signature(base.__init__).parameters.values()
            named = (p.name for p in of_base if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL))
            found |= dict.fromkeys(named)
    return [name for name in found if name not in ("self", "embed_dim", "dense")]


def _entry(site: str, given: Any, depths: Mapping[str, int]) -> tuple[list[int], Spec]:
    """The layers that an entry is for, and its system with the options."""
    if not isinstance(given, (str, Mapping)) or "system" not in (spec := _named(given)):
        raise ValueError(
            f"attention.{site} is {given!r}, expected the name of a system, a mapping with the "
            f"key system, or a list of these"
        )
    name, kind = spec["system"], system_class(spec["system"])
    if (place := _where(kind, site, depths)) != site:
        behind = "the feed-forward behind it" if kind.replaces == "feed-forward" else "all of it"
        raise ValueError(
            f"attention.{site} names {name}, which takes the place of an attention and of "
            f"{behind}: name it at {place}"
        )
    layers, depth = spec.pop("layers", kind.layers), depths[site]
    words = {"all": range(depth), "low": range(min(2, depth)), "middle": range(2, depth - 1)}
    if isinstance(layers, str):
        layers = words.get(layers)
    if layers is None or not all(type(layer) is int and 0 <= layer < depth for layer in layers):
        raise ValueError(
            f"attention.{site}.layers is {given['layers']!r}, expected some of 0 to {depth - 1}, "
            f"such as [0], or one of {', '.join(words)}"
        )
    preset = spec.pop("preset", None)
    if preset is not None:
        if preset not in kind.presets:
            raise ValueError(
                f"attention.{site}: preset of {name} is {preset!r}, expected one of "
                f"{', '.join(kind.presets) or 'none'}{did_you_mean(preset, kind.presets)}"
            )
        spec = {"system": name, **kind.presets[preset], **spec}
    return list(layers), spec


def _named(given: Plan) -> Spec:
    return {"system": given} if isinstance(given, str) else dict(given)


def _where(system: type[System], site: str, sites: Iterable[str]) -> str:
    """The site at which a system is named that is to stand in the layers of this one."""
    of_layer = [other for other in sites if other.split("_")[0] == site.split("_")[0]]
    places = {"attention": site, "feed-forward": of_layer[-1], "layer": of_layer[0]}
    return places[system.replaces]


def _none_left(where: str, spec: Spec, depth: int) -> str:
    return (
        f"{where}: {spec['system']} stands in no layer of {depth}, expected at least one: its "
        f"paper, and layers: middle, keep the first two and the last standard; name layers, as in "
        f"layers: [0], or make the stack deeper"
    )


def _check_beside(specs: Mapping[str, Mapping[int, Spec]]) -> None:
    """Raises `ValueError` where something is named in a layer that another is the whole of."""
    for site, of_site in specs.items():
        for layer, spec in of_site.items():
            if system_class(spec["system"]).replaces != "layer":
                continue
            for other, named in specs.items():
                beside = named.get(layer, {}).get("system", "standard")
                is_same_stack = other.split("_")[0] == site.split("_")[0]
                if is_same_stack and other != site and beside != "standard":
                    raise ValueError(
                        f"attention.{other} names {beside} in layer {layer}, all of which "
                        f"{spec['system']} takes the place of: choose one of them, or other layers"
                    )
