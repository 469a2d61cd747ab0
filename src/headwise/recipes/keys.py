"""Lists the keys of recipes by task, as the JSON schema of the settings describes them."""

from collections.abc import Collection, Iterator
from functools import cache
from typing import Any, NamedTuple

from headwise.heads.ablation import HEADS, option_of
from headwise.messages import one_of, shown
from headwise.models.plan import SYSTEMS
from headwise.recipes.catalogue import TASKS, task_class
from headwise.recipes.schema import Node, node_of
from headwise.recipes.settings import EvaluationSettings, ModelSettings, Recipe

_MEANINGS = {
    "uniform": "All units that count have equal weights.",
    "random": "All decisions of a layer are one that is drawn.",
    "largest": "The unit of largest weight alone is in force.",
    "without-largest": "The unit of largest weight is left out.",
    "top-k": "The units of largest weight alone are in force.",
}


class Key(NamedTuple):
    """One key of a recipe."""

    name: str  # the whole path: training.max_steps
    default: str
    meaning: str


class Section(NamedTuple):
    """Keys of one mapping in a recipe."""

    title: str
    keys: list[Key]


def shared_sections() -> list[Section]:
    """Returns the keys that the recipes of all tasks have."""
    return [
        Section("recipe", _shared_keys("")),
        *_nested("", node_of(Recipe)),
        Section("model", _shared_keys("model")),
        Section("evaluation", _shared_keys("evaluation")),
        Section("evaluation.ablation", list(_ablations())),
    ]


def task_sections(task: str) -> list[Section]:
    """Returns the keys that only the recipes of one task have, or that differ in them."""
    recipe = node_of(task_class(task).recipe_class)
    shared = {key.name for key in _shared_keys("")}
    return [Section("recipe", _own("", recipe)), *_nested("", recipe, skip=shared)]


def sections_with(part: str) -> list[Section]:
    """Returns the keys of all recipes whose name has a part, or those of the task that has it.

    Raises:
        ValueError: neither a key nor a task has it.
    """
    found: dict[tuple[str, tuple[Key, ...]], list[str]] = {}  # the tasks that have the same
    for task in ("", *TASKS):
        for title, keys in task_sections(task) if task else shared_sections():
            if having := tuple(key for key in keys if part in key.name):
                found.setdefault((title, having), []).append(task)
    if found:
        return [
            Section(f"{', '.join(tasks)}: {title}" if all(tasks) else title, list(keys))
            for (title, keys), tasks in found.items()
        ]
    tasks = [task for task in TASKS if part in task]
    if len(tasks) != 1:
        raise ValueError(
            f"there is no task {shown(part)} and no key with it in its name, {one_of(part, TASKS)}"
        )
    return task_sections(tasks[0])


def keys_page() -> str:
    """Returns all keys as a page in Markdown: docs/keys.md."""
    lines = [
        "# The keys of a recipe",
        "",
        "Made by `headwise keys --markdown`. `headwise keys TASK` prints those of one task.",
        "",
        "## All tasks",
        *_markdown(shared_sections()),
    ]
    for task in TASKS:
        lines += ["", f"## {task}", *_markdown(task_sections(task))]
    return "\n".join(lines) + "\n"


def _markdown(sections: list[Section]) -> Iterator[str]:
    for section in sections:
        yield from ("", f"### {section.title}")
        if section.keys:
            yield from ("", "| key | default | meaning |", "|---|---|---|")
        for key in section.keys:
            yield f"| `{key.name}` | {key.default} | {key.meaning} |"


def _ablations() -> Iterator[Key]:
    """Yields every ablation of headwise's systems, its options in the place of a default."""
    for name, system in SYSTEMS.items():
        for edit in system.edits:
            yield Key(
                f"evaluation.ablation.{name}={edit}", option_of(edit) or "–", meaning_of(edit)
            )


def meaning_of(name: str) -> str:
    """What an ablation does.

    >>> meaning_of("only-head")
    'One head alone is left.'
    """
    if name in _MEANINGS:
        return _MEANINGS[name]
    unit = option_of(name)
    if name.startswith("only-"):
        return f"One {unit} alone is left."
    if name in HEADS:
        return "One head adds nothing."
    return f"One {unit} is left out; the others have its weight."


@cache
def _shared_keys(prefix: str) -> list[Key]:
    """The keys of a mapping that all tasks share; a task's own class adds keys to these."""
    shared = {"": Recipe, "model": ModelSettings, "evaluation": EvaluationSettings}
    keys = _keys(prefix, node_of(shared[prefix])) if prefix in shared else []
    # What each task defines itself.
    return [key for key in keys if key.name not in ("data", "model", "evaluation", "task")]


def _own(prefix: str, kind: Node) -> list[Key]:
    return [key for key in _keys(prefix, kind) if key not in _shared_keys(prefix)]


def _keys(prefix: str, kind: Node) -> list[Key]:
    required = kind.schema.get("required", ())
    return [
        Key(
            f"{prefix}.{name}" if prefix else name,
            "required" if name in required else _default(field.schema.get("default")),
            _meaning(field),
        )
        for name, field in kind.keys().items()
    ]


def _nested(
    prefix: str, settings: Node, skip: Collection[str] = (), told: dict[str, str] | None = None
) -> list[Section]:
    """Returns a section for each kind of settings among the keys, and for those inside it.

    `told` has the title of the section of each kind that was listed already.
    """
    told = {} if told is None else told
    sections = []
    for name, field in settings.keys().items():
        if name in skip:
            continue
        path = f"{prefix}.{name}" if prefix else name
        if (values := field.named_value()) is not None:
            field, path = values, f"{path}.NAME"
        members = field.kinds()
        again = {told[each.name] for each in members if each.name in told}
        sections += _said_again(path, sorted(again))
        new = [each for each in members if each.name not in told]
        common = _common(path, new)
        if common:
            sections.append(Section(path, common))
        for member in new:
            own = [key for key in _own(path, member) if key not in common]
            told[member.name] = path
            if len(members) > 1 and (tag := member.tag()) is not None:
                told[member.name] = f"{path}, {tag}"
                own.sort(key=lambda key: key.name != f"{path}.{tag.field}")
            if own:
                sections.append(Section(told[member.name], own))
            sections += _nested(path, member, told=told)
    return sections


def _said_again(path: str, titles: list[str]) -> list[Section]:
    """Returns a section without keys that refers to others; none if it would refer to itself.

    >>> _said_again("data.left", ["data, corpus: files", "data, corpus: hub"])[0].title
    'data.left: as data, corpus: files, hub'
    """
    if all(title.partition(",")[0] == path for title in titles):
        return []
    first, *others = titles
    values = [title.rpartition(": ")[2] for title in others]
    return [Section(f"{path}: as {', '.join([first, *values])}", [])]


def _common(path: str, kinds: list[Node]) -> list[Key]:
    """The keys that several kinds have with the same description and default."""
    if len(kinds) < 2:
        return []
    first, *others = [_keys(path, kind) for kind in kinds]
    return [key for key in first if all(key in other for other in others)]


def _meaning(field: Node) -> str:
    # pydantic leaves out a description that is that of the value's class.
    described = [field, *field.kinds()]
    text = next((text for each in described if (text := each.schema.get("description"))), "")
    return " ".join(text.split())  # a docstring has lines


def _default(value: Any) -> str:
    """A default as YAML writes it; a dash if it is empty or has keys of its own."""
    if value is None or isinstance(value, dict) or value in ([], ""):
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(str(each) for each in value)}]"
    return str(value)
