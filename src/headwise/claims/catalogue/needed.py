"""Which runs claims need, of which experiments; runs that several claims need are named once."""

from collections.abc import Mapping
from typing import NamedTuple

from headwise.claims.catalogue.declared import AtScale, Claim, Scale, all_claims
from headwise.claims.catalogue.experiments import experiments


class Needed(NamedTuple):
    """What claims need of one experiment.

    Attributes:
        systems: name of a data set, or None for the only one, to the systems on it.
        ablations: system to the ablations under which its loss is computed.
        scored: system to the ablations under which it is scored too.
        times: the systems whose times are measured, besides the baseline.
        models: whether the models of the runs have to be there, since others start from them.
    """

    systems: dict[str | None, list[str]]
    ablations: dict[str, tuple[str, ...]]
    scored: dict[str, tuple[str, ...]]
    times: list[str]
    models: bool = False


def needed_runs(claims: Mapping[str, Claim], scale: Scale) -> dict[str, Needed]:
    """Returns what claims need at a scale, by experiment.

    All ablations that any claim makes on a system are named, whichever claims are asked for: a run
    is kept once, and its model may be gone when the next claim asks.

    Args:
        claims: the claims to be tested.
        scale: claims that have no experiment at this scale need nothing.
    """
    found: dict[str, Needed] = {}
    for claim in claims.values():
        where = claim.experiment_at(scale)
        if where is None or where.experiment not in experiments(scale):
            continue
        needed = found.setdefault(where.experiment, Needed({}, {}, {}, []))
        for subject in claim.subjects():
            here = where.named(subject)
            if claim.quantity.is_of_times:
                _add(needed.times, (here.system,))
            else:
                _add(needed.systems.setdefault(here.dataset, []), (here.system,))
    for claim in {**all_claims(), **claims}.values():
        where = claim.experiment_at(scale)
        if where is not None and where.experiment in found:
            _add_ablations(found[where.experiment], claim, where)
    return found


def models_to_start_from(scale: Scale, experiment: str, systems: tuple[str, ...]) -> Needed:
    """Returns runs whose models others start from, with all that claims want of these runs."""
    return needed_of_systems(scale, experiment, {None: list(systems)})._replace(models=True)


def needed_of_systems(
    scale: Scale, experiment: str, systems: dict[str | None, list[str]]
) -> Needed:
    """Returns runs of an experiment, with all that claims want of these runs."""
    needed = Needed(systems, {}, {}, [])
    for claim in all_claims().values():
        where = claim.experiment_at(scale)
        if where is not None and where.experiment == experiment:
            _add_ablations(needed, claim, where)
    return needed


def _add(names: list[str], more: tuple[str, ...]) -> None:
    names += [name for name in more if name not in names]


def _add_ablations(needed: Needed, claim: Claim, where: AtScale) -> None:
    for subject in claim.subjects():
        name = where.named(subject).system
        scored = (subject.ablated,) if subject.ablated else ()
        for into, more in (
            (needed.ablations, (*subject.without, *scored)),
            (needed.scored, scored),
        ):
            if more:
                into[name] = tuple(dict.fromkeys([*into.get(name, ()), *more]))
