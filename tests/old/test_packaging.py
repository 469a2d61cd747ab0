"""What a wheel holds, and what `make` installs. `make test-wheel` builds a wheel and uses it; here
mistakes are found sooner."""

import ast
import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "src" / "headwise"

SETTINGS = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKS = {"demo": "demo", "dev": "dev", "floor": "dev", "speech": "speech"}  # and their extras


def files():
    return {path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"}


def test_every_file_is_of_a_kind_that_the_wheel_takes():
    patterns = SETTINGS["tool"]["setuptools"]["package-data"]["headwise"]
    taken = {pattern: set(PACKAGE.glob(pattern)) for pattern in patterns}
    assert all(taken.values()), "a pattern in package-data that takes nothing"
    assert {path for path in files() if path.suffix != ".py"} <= set().union(*taken.values())


def test_every_folder_with_code_is_a_package():
    folders = {path.parent for path in files() if path.suffix == ".py"}
    assert not [folder for folder in folders if not (folder / "__init__.py").is_file()]


def direct(extra: str) -> dict[str, Requirement]:
    """What pyproject.toml says that headwise needs with an extra, by name."""
    optional = SETTINGS["project"]["optional-dependencies"]
    needed, extras = list(map(Requirement, SETTINGS["project"]["dependencies"])), [extra]
    for each in extras:
        lines = [Requirement(line) for line in optional[each]]
        extras += [inner for line in lines if line.name == "headwise" for inner in line.extras]
        needed += [line for line in lines if line.name != "headwise"]
    return {canonicalize_name(line.name): line for line in needed}


def locked(name: str) -> list[Requirement]:
    """The lines of a lock."""
    text = (PROJECT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    return [Requirement(line) for line in text.splitlines() if line and line[0] != "#"]


def versions(name: str, python: str) -> dict[str, Version]:
    """What a lock installs on Linux with one Python."""
    machine = {"python_version": python, "python_full_version": f"{python}.20", "extra": ""}
    machine |= {"sys_platform": "linux", "platform_machine": "x86_64"}
    lines = [line for line in locked(name) if not line.marker or line.marker.evaluate(machine)]
    found = {canonicalize_name(line.name): Version(str(line.specifier)[2:]) for line in lines}
    assert len(found) == len(lines), "two versions of a package"
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_has_exact_versions_without_torch_and_cuda_and_names_no_host(lock):
    assert all(re.fullmatch(r"==[^*,]+", str(line.specifier)) for line in locked(lock))
    names = [line.name for line in locked(lock)]
    assert not [name for name in names if re.match("torch$|triton|nvidia|cuda", name)]
    text = (PROJECT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
    assert not re.search("://|--|@", text.replace("# ", ""))


@pytest.mark.parametrize(
    ("lock", "python"),
    [(lock, f"3.{minor}") for lock in ("demo", "dev") for minor in (10, 11, 12, 13)]
    + [("floor", "3.11")],
)
def test_a_lock_has_what_pyproject_names_within_its_range(lock, python):
    there = versions(lock, python)
    needed = direct(LOCKS[lock])
    del needed["torch"]
    assert not needed.keys() - there.keys(), "run `make lock`"
    for name, line in needed.items():
        assert there[name] in line.specifier, f"{line}, but {there[name]}: run `make lock`"
    assert "setuptools" in there  # which builds headwise itself


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_the_tests_add_to_what_the_demo_has(python):
    assert versions("demo", python).items() <= versions("dev", python).items()


def test_the_floor_that_is_tried_is_the_one_that_pyproject_names():
    there = versions("floor", "3.11")
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    there["torch"] = Version(re.search(r"^TORCH_FLOOR := torch==(.+)$", makefile, re.MULTILINE)[1])
    for name, line in direct("dev").items():
        floors = [each.version for each in line.specifier if each.operator == ">="]
        for floor in floors:
            assert Version(there[name].base_version) == Version(floor), name


def test_every_package_that_is_imported_is_one_that_pyproject_names():
    extras = ("train", "speech", "cluster")
    named = {name.replace("-", "_") for extra in extras for name in direct(extra)}
    named |= {"PIL", "sklearn", "yaml", "ruamel"}  # pillow, scikit-learn, pyyaml, ruamel.yaml
    named |= {"markupsafe", "huggingface_hub", "pandas"}  # of jinja2, transformers and datasets
    named |= {"lightning", "pytorch_lightning"}  # used where the user has them
    imported = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module.partition(".")[0])
    assert not imported - named - sys.stdlib_module_names - {"headwise"}
