"""What a wheel holds. `make test-wheel` builds one and uses it; here mistakes are found sooner."""

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

PROJECT = Path(__file__).parents[1]
PACKAGE = PROJECT / "src" / "headwise"


def files():
    return {path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"}


def test_every_file_is_of_a_kind_that_the_wheel_takes():
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["headwise"]
    taken = {pattern: set(PACKAGE.glob(pattern)) for pattern in patterns}
    assert all(taken.values()), "a pattern in package-data that takes nothing"
    assert {path for path in files() if path.suffix != ".py"} <= set().union(*taken.values())


def test_every_folder_with_code_is_a_package():
    folders = {path.parent for path in files() if path.suffix == ".py"}
    assert not [folder for folder in folders if not (folder / "__init__.py").is_file()]
