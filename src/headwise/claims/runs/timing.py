"""Measures the times that claims are about: of a training step, and of decoding a token.

Models need no training for it: all systems are given the same batches, and generate the same number
of tokens. Times depend on the machine, which is named with them; other work on it disturbs them.
That is why there are several measurements, each of them with models of its own.

One thread does all the work. Where several share it, they wait for each other at the end of each
operation, and what that takes depends on how they wait (`headwise.threads`) and not on the system
alone: systems of many small operations look slower by half where threads sleep while they wait.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from rich.console import Console

from headwise.analysis.results import machine, versions
from headwise.claims.catalogue.declared import Scale
from headwise.claims.catalogue.experiments import Places, find_experiment, read_recipe
from headwise.claims.catalogue.needed import Needed
from headwise.claims.evidence.fingerprint import computes_alike, fingerprint
from headwise.claims.evidence.records import StoredTimes, read_times, times_paths
from headwise.claims.runs.running import read_task
from headwise.files import write_text
from headwise.runs.preparing import build_model
from headwise.runs.summary import decoding_speeds_of, step_times


def measure_times(
    scale: Scale,
    name: str,
    needed: Needed,
    places: Places,
    console: Console,
    *,
    renew: bool = False,
) -> None:
    """Measures the times of the systems of an experiment, as often as it is not done yet.

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
    known = {path: read_times(path) for path in times_paths(own.evidence)}
    # Other claims may need what is known already, and all are measured in turns with the baseline.
    before = {system for times in known.values() if times for system in times.fingerprints}
    others = [system for system in plain.system_names if system in before]
    systems = list(dict.fromkeys([baseline, *others, *needed.times]))
    today = {system: fingerprint(plain.system(system)) for system in systems}
    missing = [
        path
        for path, times in known.items()
        if times is None or not _serves(times, today, renew=renew)
    ]
    if not missing:
        return
    file = read_recipe(experiment, own)
    console.print(f"{scale} {name}: times", style="bold", highlight=False, markup=False)
    recipes = {system: file.system(system) for system in systems}
    task = read_task(file, own, baseline, None, console)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for path in missing:
        models = {
            system: build_model(recipe, task).to(device) for system, recipe in recipes.items()
        }
        with _one_thread():
            token = decoding_speeds_of(recipes, models, task)
            found = StoredTimes(
                baseline=baseline,
                step=step_times(recipes, models, task),
                token={system: speed.relative_time for system, speed in token.items()},
                fingerprints=today,
                machine=machine(),
                versions=versions(),
            )
        write_text(path, found.model_dump_json(indent=1) + "\n")


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _serves(times: StoredTimes, today: Mapping[str, list[float]], *, renew: bool) -> bool:
    """Returns whether a measurement has all systems and, if asked, is of the code of today."""
    return all(
        system in times.fingerprints
        and not (renew and not computes_alike(times.fingerprints[system], now))
        for system, now in today.items()
    )
