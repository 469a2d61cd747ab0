"""What is packed is what is there, and what `make` installs is what pyproject.toml names."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKS = {"demo": ["demo"], "dev": ["dev"], "tools": ["dev", "tools"]}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    # Of a copy: setuptools keeps what it built, and would pack it again.
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    (source / "src").symlink_to(ROOT / "src")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, source]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as packed:
        packed.extractall(folder / "unpacked")
    return folder / "unpacked"


def names(folder: Path) -> set[str]:
    package = folder / "headwise"
    found = (path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(folder).as_posix() for path in found}


def test_the_wheel_has_every_file_of_the_package_and_the_licence(wheel):
    assert names(wheel) == names(ROOT / "src")
    assert list(wheel.glob("*.dist-info/licenses/LICENSE"))


def direct(extras: list[str]) -> dict[str, Requirement]:
    """What pyproject.toml says that headwise needs with some extras, by name."""
    extras, needed = list(extras), list(map(Requirement, SETTINGS["project"]["dependencies"]))
    for each in extras:
        lines = map(Requirement, SETTINGS["project"]["optional-dependencies"][each])
        for line in lines:
            extras += [inner for inner in line.extras if line.name == "headwise"]
            needed += [line] if line.name != "headwise" else []
    return {canonicalize_name(line.name): line for line in needed}


def locked(name: str) -> list[Requirement]:
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    return [Requirement(line) for line in text.splitlines() if line and line[0] != "#"]


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_has_what_pyproject_names_within_its_range(lock, python):
    machine = {"python_version": python, "python_full_version": f"{python}.20", "extra": ""}
    machine |= {"sys_platform": "linux", "platform_machine": "x86_64"}
    lines = [line for line in locked(lock) if not line.marker or line.marker.evaluate(machine)]
    there = {canonicalize_name(line.name): Version(str(line.specifier)[2:]) for line in lines}
    assert len(there) == len(lines), "two versions of a package"
    needed = direct(LOCKS[lock])
    del needed["torch"]
    for name, line in needed.items():
        assert name in there and there[name] in line.specifier, f"{line}: run `make lock`"
    assert "setuptools" in there  # which builds headwise itself
