"""Measures the times that claims are about: of a training step, and of decoding a token.

Models need no training for it: all systems are given the same batches, and generate the same number
of tokens. Times depend on the machine, which is named with them; other work on it disturbs them.
"""

from rich.console import Console

from headwise.analysis.surroundings import machine, versions
from headwise.claims.catalogue.declared import Scale
from headwise.claims.catalogue.experiments import Places, find_experiment, read_recipe
from headwise.claims.catalogue.needed import Needed
from headwise.claims.evidence.fingerprint import computes_alike, fingerprint
from headwise.claims.evidence.records import TIMES, StoredTimes, read_times
from headwise.claims.runs.running import read_task
from headwise.comparison.summary import decoding_speeds_of, step_times
from headwise.experiment.preparing import build_model
from headwise.files import write_text


def measure_times(
    scale: Scale,
    name: str,
    needed: Needed,
    places: Places,
    console: Console,
    *,
    renew: bool = False,
) -> None:
    """Measures the times of the systems of an experiment, unless they are known.

    Args:
        scale: the scale.
        name: of the experiment; its first system is the baseline.
        needed: which of its systems; those whose times are known are measured with them.
        places: the folders of this machine.
        console: for notes.
        renew: measure again if the code computes something else today.
    """
    own = places.of(scale, name)
    experiment = find_experiment(scale, name)
    plain = read_recipe(experiment, None)
    baseline = plain.system_names[0]
    known = read_times(own.evidence / TIMES)
    # Other claims may need what is known already, and all are measured in turns with the baseline.
    before = [] if known is None else [s for s in plain.system_names if s in known.fingerprints]
    systems = list(dict.fromkeys([baseline, *before, *needed.times]))
    today = {system: fingerprint(plain.system(system)) for system in systems}
    if known is not None and all(
        system in known.fingerprints
        and not (renew and not computes_alike(known.fingerprints[system], today[system]))
        for system in systems
    ):
        return
    file = read_recipe(experiment, own)
    console.print(f"{scale} {name}: times", style="bold", highlight=False, markup=False)
    recipes = {system: file.system(system) for system in systems}
    task = read_task(file, own, baseline, None, console)
    models = {system: build_model(recipe, task) for system, recipe in recipes.items()}
    token = decoding_speeds_of(recipes, models, task)
    found = StoredTimes(
        baseline=baseline,
        step=step_times(recipes, models, task),
        token={system: speed.relative_time for system, speed in token.items()},
        fingerprints=today,
        machine=machine(),
        versions=versions(),
    )
    write_text(own.evidence / TIMES, found.model_dump_json(indent=1) + "\n")
