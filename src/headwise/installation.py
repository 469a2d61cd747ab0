"""Finds what an installation lacks, or has in a version that headwise does not work with."""

from importlib.metadata import PackageNotFoundError, requires, version

__all__ = ["check_installation", "what_is_wrong"]


def what_is_wrong(extra: str = "") -> str | None:
    """Compares the packages that are installed with those that headwise names as its own.

    Nothing of them is imported. A version that is not final counts as the final one, since vendors
    build PyTorch from such versions.

    Args:
        extra: headwise's extra that is needed, such as `train`.

    Returns:
        What is wrong and the command that mends it, in one line, or None.
    """
    from packaging.requirements import Requirement  # imported here: it may be what is missing
    from packaging.version import Version

    try:
        lines = requires("headwise") or []
    except PackageNotFoundError:
        return None  # it runs from its sources, and says nothing of what it needs
    wrong = []
    for line in lines:
        needed = Requirement(line)
        if needed.marker is not None and not needed.marker.evaluate({"extra": extra}):
            continue
        try:
            there = version(needed.name)
        except PackageNotFoundError:
            wrong.append(f"{needed.name}, which is not installed")
            continue
        if Version(Version(there).base_version) not in needed.specifier:
            wrong.append(f"{needed.name}{needed.specifier}, and {there} is installed")
    if not wrong:
        return None
    name = f"headwise[{extra}]" if extra else "headwise"
    return f"{'; '.join(wrong)}: pip install '{name}'"


def check_installation() -> None:
    """Raises an `ImportError` if the models cannot work with what is installed."""
    wrong = what_is_wrong()
    if wrong is not None:
        raise ImportError(f"the models need {wrong}")
