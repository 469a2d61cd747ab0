"""A plan says which system of heads stands at which site and layer of a model.

    attention: mae                                    # every site, every layer
    attention: {system: moa, size: 8K32E64D}          # the same, with options
    attention: {agreement: low}                       # the first two layers, as in its paper

    attention:
      encoder_self:  {system: moa, size: 8K32E64D, layers: [0, 1]}
      decoder_cross: {system: mae, dropped_heads: 2}

Sites and layers that are not named are standard. A site may also hold a list of such entries,
for different systems in different layers. `layers` is a list of layers, counted from 0, or one of
`all`, `low` (the first two) and `middle` (all but the first two and the last).

Two systems take the place of more than an attention, and stand only where that is whole:

- `weighted` that of an attention and the feed-forward behind it. In an encoder layer that is its
  self-attention, in a decoder layer the attention over the encoder's output.
- `tim` that of a layer. It is named at the layer's self-attention, and nothing else can stand in
  such a layer.

Named for a whole model, each stands wherever it can. A system of your own is named by the module
and class in which it is: `attention: my_heads:ScaledHeads`. Import the module before, or see
`headwise.models.trust`.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError
from typing_extensions import Unpack

from headwise.heads.agreement import AgreementAttention
from headwise.heads.differential import DifferentialAttention
from headwise.heads.gated import GatedAttention
from headwise.heads.mae import MixtureOfAttentiveExperts
from headwise.heads.moa import MixtureOfAttentionHeads
from headwise.heads.moh import MixtureOfHeads
from headwise.heads.multi_head import MultiHeadAttention
from headwise.heads.rule import Rule
from headwise.heads.system import LayerWord, Place, System
from headwise.heads.tim import IndependentMechanismsLayer
from headwise.heads.weighted import BranchedAttention
from headwise.messages import one_of, shown
from headwise.models.sites import stack_of
from headwise.models.trust import NotTrustedError, is_trusting, registered
from headwise.ops.rotary import check_rope_parameters

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
# What stands over the heads of a pretrained model if nothing is named.
OVER_HEADS = "mae"

# What a plan's entry may not set, since the model sets it.
SET_BY_MODEL = {
    *("embed_dim", "kdim", "vdim", "norm", "causal_queries", "cross_attention"),
    *("dropout", "attention_dropout", "residual_dropout", "ffn_dropout"),
    *("ffn_activation", "norm_kind", "norm_eps"),
}
_LAYER_WORDS = get_args(LayerWord)

Plan = str | Mapping[str, Any]
Spec = dict[str, Any]


def layer_specs(plan: Plan, depths: Mapping[str, int]) -> dict[str, list[Spec]]:
    """What stands where: per site one `{"system": ..., **options}` per layer.

    Args:
        plan: see above.
        depths: the sites of the model and how many layers each has, those of one layer in their
            order: `{"encoder_self": 6, "decoder_self": 6, "decoder_cross": 6}`.

    Raises:
        ValueError: the plan names what there is not, or what cannot stand there.

    >>> layer_specs({"encoder_self": {"system": "mae", "layers": [1]}}, {"encoder_self": 2})
    {'encoder_self': [{'system': 'standard'}, {'system': 'mae'}]}
    """
    entries = _by_site(plan, depths)
    _check_sites(entries, depths)
    specs = {site: _fill(site, entries.get(site, []), depths[site]) for site in depths}
    _check_placed(entries, specs, anywhere=not _names_sites(plan))
    _check_beside(specs)
    return specs


def build_system(spec: Spec, place: Place) -> System:
    """The module for one of `layer_specs`, at its place."""
    options = {key: value for key, value in spec.items() if key != "system"}
    system = system_class(spec["system"])
    if (settled := place.projections()) and not _takes_any(system.__init__):
        for name in settled.keys() - options_of(system).keys():
            raise ValueError(
                f"model.{name} is {settled[name]!r}, which {spec['system']} does not go with: its "
                f"constructor takes no {name}; leave it out, or choose another system"
            )
    built = system.from_plan(place, **options)
    if place.rope_parameters is not None:
        _check_turns(spec["system"], built, place.rope_parameters)
    return built


def _check_turns(name: str, system: System, rope_parameters: Mapping[str, Any]) -> None:
    named = "rotary" in inspect.signature(system.forward).parameters
    if not named and not _takes_any(system.forward):
        raise ValueError(
            f"model.positions is 'rotary', which {name} does not go with: its forward takes no "
            f"rotary; choose other positions, or another system"
        )
    size = system.key_size()
    if size is not None:  # its heads need not be as wide as those of standard attention
        check_rope_parameters(rope_parameters, size[1])


def _takes_any(function: Callable[..., Any]) -> bool:
    """Whether it has `**kwargs`, and may hand on what it does not name."""
    parameters = inspect.signature(function).parameters.values()
    return any(each.kind is each.VAR_KEYWORD for each in parameters)


def system_class(name: Any) -> type[System]:
    """The class of a system, by its short name or as `module:Class`.

    Raises:
        NotTrustedError: its module is not imported, and importing it is not allowed.
        ValueError: there is none of that name.
    """
    if name is None:
        raise ValueError(
            "an entry has no `system`, expected its name: {system: mae, layers: low}, or the name "
            "alone"
        )
    if not isinstance(name, str):
        raise ValueError(_unknown("it names the system", name, [*SYSTEMS, "module:Class"]))
    if name in SYSTEMS:
        return SYSTEMS[name]
    known = registered(name)
    if known is not None:
        return known
    module_name, colon, class_name = name.partition(":")
    if not colon:
        raise ValueError(_unknown("it names the system", name, [*SYSTEMS, "module:Class"]))
    if not all((*module_name.split("."), class_name)):
        raise ValueError(
            f"the system {shown(name)} cannot be loaded: expected module:Class, with both names"
        )
    if module_name not in sys.modules and not is_trusting():
        raise NotTrustedError(
            f"the system {shown(name)} is of a module that is not imported, and importing it would "
            f"run its code; if you trust it, say --trust to a command, or import "
            f"{shown(module_name)} first in a program"
        )
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    # A user's module may fail with anything, and may mean to end the program.
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"the system {name!r} cannot be loaded: it fails with {type(error).__name__}: "
            f"{error}; mend the module, or name another as module:Class, in the current folder or "
            f"installed"
        ) from error
    if not (isinstance(found, type) and issubclass(found, System)):
        raise ValueError(f"the system {name!r} is {found!r}, expected a subclass of System")
    return found


def system_name(system: type[System]) -> str:
    """What plans and recipes call a system: its short name, or `module:Class`."""
    for name, known in SYSTEMS.items():
        if known is system:
            return name
    return f"{system.__module__}:{system.__qualname__}"


def rules_by_name() -> dict[str, type[Rule]]:
    """The rules of training of the systems that headwise has, by the systems' names."""
    return {name: system.rule for name, system in SYSTEMS.items() if system.rule is not None}


def rule_name(system: type[System]) -> str:
    """The name under which a recipe has the settings of a system's rule of training.

    It is the name of the system that declares the rule: a subclass shares its settings.
    """
    for name, rule in rules_by_name().items():
        if rule is system.rule:
            return name
    declaring = next(base for base in system.__mro__ if "rule" in vars(base))
    return system_name(declaring)


def _names_sites(plan: Plan) -> bool:
    return isinstance(plan, Mapping) and "system" not in plan


def _by_site(plan: Plan, depths: Mapping[str, int]) -> dict[str, list[Spec]]:
    """The checked entries of each site."""
    if isinstance(plan, Mapping) and len(plan) == 1:
        ((name, layers),) = plan.items()
        if name in SYSTEMS and layers == SYSTEMS[name].first_site_layers:
            plan = {next(iter(depths)): {"system": name, "layers": layers}}
    if isinstance(plan, Mapping) and _names_sites(plan):
        for site in plan:
            if site in SYSTEMS:
                raise ValueError(
                    f"attention has the system {site!r} in the place of a site; write {{system: "
                    f"{site}, layers: ...}}, or name a site: {', '.join(depths)}"
                )
            if site not in depths:
                raise ValueError(_unknown("attention names the site", site, list(depths)))
        return {site: _entries(f"attention.{site}", entries) for site, entries in plan.items()}
    if not isinstance(plan, (str, Mapping)):
        raise ValueError(
            f"attention is {shown(plan)}, expected the name of a system ({', '.join(SYSTEMS)}), a "
            f"mapping with the key system, or one from sites ({', '.join(depths)}) to systems"
        )
    entry = _entry("attention", plan)
    replaced = system_class(entry["system"]).replaces
    wherever = {
        "attention": list(depths),
        "feed-forward": [site for site in depths if site == _of_layer(site, depths)[-1]],
        "layer": [site for site in depths if site == _of_layer(site, depths)[0]],
    }
    return {site: [entry] for site in wherever[replaced]}


def _entries(where: str, entries: Any) -> list[Spec]:
    return [_entry(where, e) for e in (entries if isinstance(entries, list) else [entries])]


def _entry(where: str, entry: Any) -> Spec:
    """One entry as a mapping, its system, options and layers checked."""
    if not isinstance(entry, (str, Mapping)):
        raise ValueError(
            f"{where} is {shown(entry)}, expected the name of a system, a mapping with the key "
            f"system, or a list of these"
        )
    entry = {"system": entry} if isinstance(entry, str) else dict(entry)
    try:
        system = system_class(entry.get("system"))
    except ValueError as error:
        raise type(error)(f"{where}: {error}") from error  # one of trust stays one
    options = options_of(system)
    known = sorted({"layers", *options} - SET_BY_MODEL)
    for option, value in entry.items():
        if option == "layers":
            _check_layers(where, value)
        elif option in known:
            check_type(f"{where}.{option}", value, options[option])
        elif option in SET_BY_MODEL:
            raise ValueError(
                f"{where} names the option of {entry['system']} {option!r}, which the model sets "
                f"for all of its systems; the others are {', '.join(known)}"
            )
        elif option != "system":
            what = f"{where} names the option of {entry['system']}"
            raise ValueError(_unknown(what, option, known))
    preset = entry.pop("preset", None)
    return entry if preset is None else {**system.presets[preset], **entry}


def options_of(system: type[System]) -> dict[str, Any]:
    """What a system's constructor and `from_plan` take, with the types, where they say."""
    options: dict[str, Any] = {}
    for function in (system.__init__, system.from_plan):
        try:
            hints = get_type_hints(function)
        except Exception:  # a name that only a type checker sees
            hints = {}
        for name, parameter in inspect.signature(function).parameters.items():
            variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if not variadic and name not in ("self", "place"):
                options[name] = hints.get(name, Any)
            elif get_origin(hints.get(name)) is Unpack:
                options |= get_type_hints(*get_args(hints[name]))
    if system.presets:
        options["preset"] = Literal[tuple(system.presets)]
    return options


def _check_layers(where: str, layers: Any) -> None:
    if isinstance(layers, str) and layers in _LAYER_WORDS:
        return
    is_list = isinstance(layers, (list, tuple)) and len(layers) > 0
    if not is_list or not all(type(layer) is int for layer in layers):
        raise ValueError(
            f"{where}.layers is {shown(layers)}, expected a list of layers, such as [0, 1], or one "
            f"of {', '.join(_LAYER_WORDS)}"
        )


def check_type(where: str, value: Any, annotation: Any) -> None:
    """Raises `ValueError` for what YAML has for an option, if that is of another type."""
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{where} is {value}, expected a finite number")
    try:
        adapter = TypeAdapter(annotation)
    except PydanticSchemaGenerationError:  # a type that no YAML value has
        return
    try:
        adapter.validate_python(value, strict=True)
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise ValueError(f"{where} is {shown(value)}: {message[0].lower()}{message[1:]}") from None


def _fill(site: str, entries: list[Spec], depth: int) -> list[Spec]:
    """One spec for each layer of a site, from the entries that its plan has for some layers."""
    specs: list[Spec | None] = [None] * depth
    for entry in entries:
        layers = entry.get("layers", system_class(entry["system"]).default_layers)
        words = {"all": range(depth), "low": range(min(2, depth)), "middle": range(2, depth - 1)}
        for layer in words[layers] if isinstance(layers, str) else layers:
            if not 0 <= layer < depth:
                raise ValueError(
                    f"attention.{site}.layers names layer {layer}, expected 0 to {depth - 1}: "
                    f"the stack has {depth} layers"
                )
            if specs[layer] is not None:
                raise ValueError(f"attention.{site} names layer {layer} twice")
            specs[layer] = {key: value for key, value in entry.items() if key != "layers"}
    return [{"system": "standard"} if spec is None else spec for spec in specs]


def _check_sites(plan: Mapping[str, list[Spec]], sites: Mapping[str, Any]) -> None:
    """Raise `ValueError` where a system's site lacks what it takes the place of."""
    for site, entries in plan.items():
        of_layer = _of_layer(site, sites)
        first, last = of_layer[0], of_layer[-1]
        for entry in entries:
            name, replaces = entry["system"], system_class(entry["system"]).replaces
            if replaces == "feed-forward" and site != last:
                raise ValueError(
                    f"attention.{site} names {name}, which takes the place of an attention and of "
                    f"the feed-forward behind it; behind {site} stands {last}: name {name} there"
                )
            if replaces == "layer" and site != first:
                raise ValueError(
                    f"attention.{site} names {name}, which takes the place of a whole layer: name "
                    f"it at {first}"
                )


def _check_placed(
    plan: Mapping[str, list[Spec]], specs: Mapping[str, list[Spec]], *, anywhere: bool
) -> None:
    """Raise `ValueError` where a system is named and stands nowhere, for want of layers.

    One that is named for a whole model has to stand `anywhere`, and not at all sites.
    """
    for site, entries in plan.items():
        searched = specs.values() if anywhere else [specs[site]]
        placed = {spec["system"] for of_site in searched for spec in of_site}
        for entry in entries:
            name, where = entry["system"], "attention" if anywhere else f"attention.{site}"
            if name in placed:
                continue
            raise ValueError(
                f"{where}: {name} keeps the first two layers and the last standard, as does "
                f"layers: middle, so that none of {len(specs[site])} layers is left for it; name "
                f"layers, as in {{system: {name}, layers: [0]}}, or make the stack deeper"
            )


def _check_beside(specs: Mapping[str, list[Spec]]) -> None:
    """Raise `ValueError` where something is named in a layer that another takes the place of."""
    for site, of_site in specs.items():
        for layer, spec in enumerate(of_site):
            if system_class(spec["system"]).replaces != "layer":
                continue
            for other in _of_layer(site, specs):
                beside = specs[other][layer]["system"]
                if other != site and beside != "standard":
                    raise ValueError(
                        f"attention.{other} names {beside} in layer {layer}, where "
                        f"{spec['system']} takes the place of the whole layer: choose one of "
                        f"them, or different layers"
                    )


def _of_layer(site: str, sites: Iterable[str]) -> list[str]:
    """The sites of one layer, in their order."""
    return [other for other in sites if stack_of(other) == stack_of(site)]


def _unknown(where: str, name: Any, known: Sequence[str]) -> str:
    return f"{where} {shown(name)}, {one_of(name, known)}"
