"""The house: a system stands in its room and nowhere else, and no import goes up a floor."""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import headwise
from headwise.models.plan import SYSTEMS

SOURCE = Path(headwise.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
ROOMS = ("weighted", "agreement", "mae", "tim", "moa", "gated", "moh", "differential")
# They may name systems: the registry, the public names, the papers' figures.
NAMING = {
    Path("models/plan.py"),
    Path("__init__.py"),
    Path("analysis/papers.py"),
}

# From the ground up; a file imports from its own floor and those below.
FLOORS = (
    (
        *("ops", "messages", "files", "checksums", "plain_yaml", "settings", "trusting"),
        "installation",
        "transformers_internals",
    ),
    ("heads",),
    ("models",),
    ("pretrained",),
    ("training",),
    ("recipes",),
    ("data",),
    ("tasks",),
    ("analysis", "testing"),
    ("runs",),
    ("report",),
    ("cli", "__init__", "__main__", "auto_classes", "systems", "threads"),
)


def inside(path: Path) -> Path:
    return path.relative_to(SOURCE)


def room(path: Path) -> str | None:
    name = Path(*inside(path).parts[1:2]).stem
    return name if inside(path).parts[0] == "heads" and name in ROOMS else None


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path, at_once: bool = False) -> list[str]:
    """The modules of headwise that a file imports, other than for a type checker alone.

    At once are those that it imports when it is imported itself.
    """
    tree = parsed(path)
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        or (at_once and isinstance(node, ast.FunctionDef))
        for inner in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom):
            assert node.module and node.level == 0, "an import names its module in full"
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return [name for name in found if name.startswith("headwise.")]


def floor(name: str) -> int:
    top = name.split(".")[1] if name.startswith("headwise.") else name
    return next(number for number, tops in enumerate(FLOORS) if top in tops)


def test_no_import_goes_up_a_floor():
    up = [
        (str(inside(path)), name)
        for path in FILES
        for name in imports(path)
        if _is_module(name) and floor(name) > floor(inside(path).parts[0].removesuffix(".py"))
    ]
    assert up == []


def test_no_files_import_one_another_in_a_circle():
    """So any of them can be imported first; the packages that a file is in come before it."""
    imported = {
        _name(path): {
            module
            for name in imports(path, at_once=True)
            for module in _with_packages(name)
            if _is_module(module) and not f"{_name(path)}.".startswith(f"{module}.")
        }
        for path in FILES
    }
    TopologicalSorter(imported).prepare()  # an error names the circle


def _name(path: Path) -> str:
    return ".".join(("headwise", *inside(path).with_suffix("").parts)).removesuffix(".__init__")


def _with_packages(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(2, len(parts) + 1)]


def test_headwise_does_not_import_what_tests_the_claims():
    importing = re.compile(r"^\s*(from|import) evidence\b", re.MULTILINE)
    assert [path for path in FILES if importing.search(path.read_text(encoding="utf-8"))] == []


@cache
def _is_module(name: str) -> bool:
    path = SOURCE.parent / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_a_room_is_imported_by_those_who_name_systems_alone():
    entered = [
        (str(inside(path)), name)
        for path in FILES
        if inside(path) not in NAMING
        for name in imports(path)
        if (parts := name.split("."))[1] == "heads" and len(parts) > 2 and parts[2] in ROOMS
        if parts[2] != room(path)
    ]
    assert entered == []


# How words begin that stand for a system wherever they are said. α is none: figures have it; nor is
# a gate: three systems have gates over heads.
WORDS = ("mae", "moa", "moh", "weighted", "branch", "kappa", "κ", "capsule")
# Words of the language, or of a paper's title, that in code stand for a system.
IN_CODE = ("agreement", "tim", "mechanism", "competition", "coordinate")
OF_GIT = {"models/hub.py": {"branch"}}  # of a repository


def words_of(text: str) -> set[str]:
    """The words of a text, of identifiers too: `BranchSettings` and `branch_settings` alike.

    What looks like several is there as one word too, since `MoALayer` splits in the wrong place.
    """
    split = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", text)
    return set(re.findall(r"[a-zκ]+", f"{text} {split}".lower()))


def leaks(text: str, names: tuple[str, ...]) -> set[str]:
    """The names that a word of the text begins with. `time` is no TIM, so that is a whole word."""
    words = words_of(text)
    return {
        name
        for name in names
        if name in words or (name != "tim" and any(word.startswith(name) for word in words))
    }


OUTSIDE = [
    path
    for path in [*FILES, *sorted(SOURCE.rglob("*.jinja"))]
    if inside(path).parts[0] != "heads" and inside(path) not in NAMING
]


def test_nobody_else_names_a_system():
    assert leaking(OUTSIDE, lambda path: path.read_text(encoding="utf-8"), WORDS) == OF_GIT


def test_no_code_decides_by_the_name_of_a_system():
    """No identifier and no text other than a docstring has a system's name in it."""
    code = [path for path in OUTSIDE if path.suffix == ".py"]
    assert leaking(code, said_by_code, WORDS + IN_CODE) == OF_GIT


def leaking(paths, text_of, names) -> dict[str, set[str]]:
    """The files whose text has any of the names, with those that it has."""
    found = {str(inside(path)): leaks(text_of(path), names) for path in paths}
    return {path: names for path, names in found.items() if names}


def said_by_code(path: Path) -> str:
    """The identifiers and texts of a file, without its docstrings."""
    tree = parsed(path)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return " ".join(
        getattr(node, field)
        for node in ast.walk(tree)
        for field in ("id", "attr", "name", "arg", "value")
        if isinstance(getattr(node, field, None), str) and id(node) not in docstrings
    )


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_has_what_its_paper_says(name):
    room = SOURCE / "heads" / name
    enters = room.with_suffix(".py")  # a room of one file
    if room.is_dir():
        enters = room / "__init__.py"
        assert {"layer.py", "declared.py"} <= {path.name for path in room.iterdir()}
        assert (room / "rule.py").is_file() == (SYSTEMS[name].rule is not None)
    # The paper's title and link stand where a reader enters.
    assert "arxiv.org" in enters.read_text(encoding="utf-8")
