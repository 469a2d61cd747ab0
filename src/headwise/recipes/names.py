"""Whether the names in a recipe are known: told before anything that takes seconds is imported.

The classes of settings and of systems, which say what there is, stand on PyTorch and transformers.
`known.json` has their names: the keys of each task's recipes, and the systems with their options
and ablations. `headwise keys --json` prints it, made from the classes; the tests hold it equal to
them. What is wrong beside names, and whatever a user's own system adds, is found when the recipe is
checked.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from headwise.messages import one_of, shown
from headwise.recipes.catalogue import TASKS, check_task
from headwise.recipes.errors import RecipeError, unknown, unknown_key, wrong_kind

# What a plan of attention, or `evaluation.ablation`, is read as.
_SYSTEM, _NAME = "system", "name"


class Key(NamedTuple):
    """One key of a recipe."""

    name: str  # the whole path: training.max_steps
    default: str
    meaning: str


class Section(NamedTuple):
    """Keys of one mapping in a recipe."""

    title: str
    keys: list[Key]


@cache
def known() -> dict[str, Any]:
    """Returns the content of `known.json`."""
    file = resources.files("headwise") / "recipes" / "known.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def listed_sections(task: str | None = None) -> list[Section]:
    """Returns the keys that only the recipes of one task have; without one, those that all have.

    >>> [section.title for section in listed_sections("images")][:2]
    ['recipe', 'data']
    """
    if task is not None:
        check_task(task)
    return [
        Section(title, [Key(*key) for key in keys])
        for title, keys in known()["sections"][task or ""]
    ]


def sections_with(part: str) -> list[Section]:
    """Returns the keys of all recipes whose name has a part, or those of the task that has it.

    Raises:
        ValueError: neither a key nor a task has it.

    >>> [section.title for section in sections_with("beam_size")]
    ['translation: evaluation']
    """
    found: dict[tuple[str, tuple[Key, ...]], list[str]] = {}  # the tasks that have the same
    for task in known()["sections"]:
        for title, keys in listed_sections(task or None):
            if having := tuple(key for key in keys if part in key.name):
                found.setdefault((title, having), []).append(task)
    if found:
        return [
            Section(f"{', '.join(tasks)}: {title}" if all(tasks) else title, list(keys))
            for (title, keys), tasks in found.items()
        ]
    tasks = [task for task in TASKS if part in task]
    if len(tasks) == 1:
        return listed_sections(tasks[0])
    try:
        check_task(part)
    except ValueError as error:
        raise ValueError(f"{error}; and no key has it in its name") from None
    return listed_sections(part)


def check_names(
    recipe: str, raw: Mapping[str, Any], systems: Sequence[str] = (), datasets: Sequence[str] = ()
) -> None:
    """Raises `RecipeError` if a recipe has a name that does not exist.

    Args:
        recipe: name or path of the recipe, for messages.
        raw: the YAML document, with the changes of the command line.
        systems: names of systems that the recipe must have.
        datasets: names of data sets that the recipe must have.
    """
    task = raw.get("task", "translation")
    try:
        check_task(task)
    except ValueError as error:
        raise RecipeError(f"recipe {recipe}:\n  task: {error}") from None
    if task not in known()["tasks"]:
        return
    keys = known()["tasks"][task]["keys"]
    _refuse(recipe, [*_unknown_keys(keys, raw, ()), *_unknown_in_parts(raw, task)])
    inner = keys["kinds"][0]["keys"]
    of_system, of_dataset = raw.get("systems"), raw.get("datasets")
    for name, changes in of_system.items() if isinstance(of_system, Mapping) else ():
        if isinstance(changes, Mapping):
            parts = {part: changes[part] for part in ("model", "training") if part in changes}
            found = [p for part in parts for p in _unknown_keys(inner[part], parts[part], (part,))]
            _refuse(f"{recipe}, system {name}", [*found, *_unknown_in_parts(parts, task)])
    data = raw.get("data")
    for name, changes in of_dataset.items() if isinstance(of_dataset, Mapping) else ():
        if isinstance(changes, Mapping):
            whole = {**data, **changes} if isinstance(data, Mapping) else changes
            kind = {key: whole[key] for key in ("corpus",) if key in whole}
            found = list(_unknown_keys(inner["data"], {**kind, **changes}, ("data",)))
            _refuse(f"{recipe}, data set {name}", found)
    for what, given, there in (
        ("system", systems, of_system),
        ("data set", datasets, of_dataset),
    ):
        for name in given if there is None or isinstance(there, Mapping) else ():
            if name not in (there or {}):
                raise RecipeError(unknown(what, name, list(there or {}), f"recipe {recipe}"))


def keys_of_finished_runs(raw: Mapping[str, Any]) -> list[str]:
    """Returns which keys of its recipe a finished run reads again, when it is evaluated."""
    found: list[str] = known()["tasks"][raw.get("task", "translation")]["read by finished runs"]
    return found


def check_ablations(ablations: Mapping[str, Any]) -> None:
    """Raises `ValueError` if a system, or an ablation of it, has a name that does not exist."""
    for problem in _unknown_ablations(ablations):
        raise ValueError(problem)


def _refuse(where: str, problems: Sequence[str]) -> None:
    if problems:
        raise RecipeError(f"recipe {where}:\n" + "\n".join(f"  {each}" for each in problems))


def _unknown_keys(node: Any, value: Any, path: tuple[str, ...]) -> Iterator[str]:
    """Yields a message for each key below a place in a recipe that does not exist.

    Args:
        node: what may stand there, as `known.json` describes the keys of a task.
        value: what stands there.
        path: the keys on the way to it.
    """
    if node is None:
        return
    if "each" in node:
        pairs = value.items() if isinstance(value, Mapping) else ()
        for name, inner in enumerate(value) if isinstance(value, list) else pairs:
            yield from _unknown_keys(node["each"], inner, (*path, str(name)))
        return
    if not isinstance(value, Mapping):
        return
    found = node["kinds"]
    if len(found) > 1:
        field, given = node["tag"], value.get(node["tag"])
        if given is None:  # the key may have a default, or be missing: the check says so
            return
        if given not in [kind["is"] for kind in found]:
            yield wrong_kind(".".join([*path, field]), given, [kind["is"] for kind in found])
            return
        found = [kind for kind in found if kind["is"] == given]
    keys = found[0]["keys"]
    for key, inner in value.items():
        if key in keys:
            yield from _unknown_keys(keys[key], inner, (*path, key))
        elif ":" not in key:
            yield unknown_key(".".join([*path, key]), sorted(keys))


def _unknown_in_parts(raw: Mapping[str, Any], task: str) -> Iterator[str]:
    """Yields a message for each unknown name in the plan of attention and among ablations."""
    model, evaluation = raw.get("model"), raw.get("evaluation")
    if isinstance(model, Mapping):
        for problem in _unknown_in_plan(model.get("attention"), known()["tasks"][task]["sites"]):
            yield f"model: {problem}"
    if isinstance(evaluation, Mapping) and isinstance(evaluation.get("ablation"), Mapping):
        for problem in _unknown_ablations(evaluation["ablation"]):
            yield f"evaluation.ablation: {problem}"


def _unknown_in_plan(plan: Any, sites: Sequence[str]) -> Iterator[str]:
    systems = known()["systems"]
    if not isinstance(plan, Mapping) or _SYSTEM in plan:
        yield from _unknown_in_entry("attention", plan)
        return
    for site, entries in plan.items():
        if site not in sites and site not in systems:
            yield f"attention names the site {shown(site)}, {one_of(site, sites)}"
        elif site in sites:
            for entry in entries if isinstance(entries, list) else [entries]:
                yield from _unknown_in_entry(f"attention.{site}", entry)


def _unknown_in_entry(where: str, entry: Any) -> Iterator[str]:
    systems = known()["systems"]
    options = entry if isinstance(entry, Mapping) else {}
    name = options.get(_SYSTEM) if isinstance(entry, Mapping) else entry
    if not isinstance(name, str) or ":" in name:
        return
    if name not in systems:
        yield f"{where}: it names the system {shown(name)}, {one_of(name, systems)}"
        return
    there = systems[name]["options"]
    for option in options:
        if option not in (_SYSTEM, *there, *known()["set by models"]):
            told = one_of(option, there)
            yield f"{where} names the option of {name} {shown(option)}, {told}"


def _unknown_ablations(ablations: Mapping[str, Any]) -> Iterator[str]:
    systems = known()["systems"]
    for system, asked in ablations.items():
        name = asked.get(_NAME) if isinstance(asked, Mapping) else asked
        if ":" in system:
            continue
        if system not in systems:
            yield f"ablation: it names the system {shown(system)}, {one_of(system, systems)}"
        elif isinstance(name, str) and name not in (there := systems[system]["ablations"]):
            yield f"ablation of {system} is {shown(name)}, {one_of(name, there)}"
