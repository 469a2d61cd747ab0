"""Keeps the SHA-256 of files beside them, to notice when a byte has changed on the disk.

The file `SHA256SUMS` of a folder has them, in the lines that `sha256sum -c SHA256SUMS` reads.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from headwise.files import write_text

SUMS = "SHA256SUMS"


def write_sums(folder: Path, names: Iterable[str] | None = None) -> None:
    """Writes the SHA-256 of files into `SHA256SUMS` of their folder."""
    if names is None:
        names = [path.name for path in folder.iterdir() if path.is_file() and path.name != SUMS]
    _write(folder, {name: sha256_of(folder / name) for name in names})


def write_summed(path: Path, text: str) -> None:
    """Writes a text file, whole or not at all, and its SHA-256 into the sums of its folder."""
    sums = _read(path.parent)
    if sums.pop(path.name, None):  # a kill before the end leaves no sum, and not that of before
        _write(path.parent, sums)
    write_text(path, text)
    _write(path.parent, sums | {path.name: sha256_of(path)})


def is_changed(path: Path) -> bool:
    """Whether a file is not as `write_summed` wrote it; False if its folder has no sum of it."""
    sums = _read(path.parent)
    return path.name in sums and path.is_file() and sha256_of(path) != sums[path.name]


def find_damage(folder: Path, needed: Iterable[str] = ()) -> str:
    """Compares the files of a folder with their SHA-256.

    Returns:
        What is wrong, such as `"optimizer.pt is not as it was written"`; empty if nothing is.
    """
    if not (folder / SUMS).exists():
        return ""
    try:
        sums = _read(folder)
        if "" in sums:
            return f"{SUMS} has a line without a name"
        for name in sorted({*sums, *needed}):
            if not (folder / name).is_file():
                return f"{name} is missing"
            if name not in sums:
                return f"{SUMS} has no line for {name}"
            if sha256_of(folder / name) != sums[name]:
                return f"{name} is not as it was written"
    except OSError as error:
        return f"its files cannot be read: {error}"
    return ""


def how_to_accept_changes(folder: Path) -> str:
    """Returns the end of an error message on damage, for users who changed a file on purpose."""
    return f"if you have changed a file yourself, delete its line in {folder / SUMS}"


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file, as `sha256sum` prints it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _read(folder: Path) -> dict[str, str]:
    """Name to SHA-256. A damaged line gives names and sums that no file has."""
    if not (folder / SUMS).is_file():
        return {}
    lines = (folder / SUMS).read_text(encoding="utf-8", errors="replace").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _write(folder: Path, sums: Mapping[str, str]) -> None:
    lines = [f"{digest}  {name}\n" for name, digest in sorted(sums.items())]
    write_text(folder / SUMS, "".join(lines))
