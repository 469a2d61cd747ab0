"""Lets the systems of an experiment choose tuned values, and keeps what they have chosen."""

from rich.console import Console

from headwise.claims.catalogue.experiments import Places
from headwise.claims.catalogue.needed import Needed
from headwise.claims.evidence.records import StoredTries, tuning_path
from headwise.claims.evidence.tries import hash_before, tries_of
from headwise.files import write_text
from headwise.recipe import RecipeFile
from headwise.runs.grid import Grid, candidates
from headwise.runs.summary import Experiment as Prepared
from headwise.runs.tuning import tune
from headwise.tasks.task import Task


def let_choose(
    file: RecipeFile,
    plain: RecipeFile,
    own: Places,
    task: Task,
    dataset: str | None,
    needed: Needed,
    grid: Grid,
    console: Console,
    jobs: int,
) -> None:
    """Lets every system choose that has not done so, and keeps what it has chosen.

    Args:
        file: the recipe, with the folders of this machine.
        plain: the same, with the names of folders as `read_recipe` leaves them.
        own: the folders of the experiment.
        task: the data that systems choose on.
        dataset: name of these data, if there are several.
        needed: the systems.
        grid: the values that they choose from.
        console: for bars and notes.
        jobs: how many tries to train at a time.
    """
    names = {system for systems in needed.systems.values() for system in systems}
    waiting = [
        name
        for name in file.system_names
        if name in names and tries_of(plain, own.evidence, name, grid) is None
    ]
    if not waiting:
        return
    recipes = {name: file.system(name, dataset) for name in waiting}
    tried = {dataset: {name: candidates(file, name, dataset, grid) for name in waiting}}
    prepared = Prepared(own.runs / (dataset or ""), task, recipes, matched={}, tries={})
    chosen = tune({dataset: prepared}, tried, grid, console, jobs)[dataset].tries
    for name, tries in chosen.items():
        made = StoredTries.from_grid(hash_before(plain, name), grid, tries)
        write_text(tuning_path(own.evidence, name), made.model_dump_json(indent=1) + "\n")
