"""The SHA-256 of files beside them, by which a byte that has changed on the disk is found.

A folder has them in its file `SHA256SUMS`, whose lines `sha256sum -c SHA256SUMS` reads.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from headwise.files import write_text

SUMS = "SHA256SUMS"


def write_sums(folder: Path, names: Iterable[str] | None = None) -> None:
    """Writes the SHA-256 of files of a folder beside them.

    Args:
        folder: with the files.
        names: of the files; by default all that are in the folder, not in folders inside.
    """
    if names is None:
        names = [path.name for path in folder.iterdir() if path.is_file() and path.name != SUMS]
    lines = [f"{sha256_of(folder / name)}  {name}\n" for name in sorted(names)]
    write_text(folder / SUMS, "".join(lines))


def write_summed(path: Path, text: str) -> None:
    """Writes a text file, whole or not at all, and its SHA-256 into the sums of its folder."""
    write_text(path, text)
    sums = {**_read_sums(path.parent), path.name: sha256_of(path)}
    lines = [f"{digest}  {name}\n" for name, digest in sorted(sums.items())]
    write_text(path.parent / SUMS, "".join(lines))


def is_changed(path: Path) -> bool:
    """Whether a file has a sum that is not its own; it may have none."""
    sums = _read_sums(path.parent)
    return path.name in sums and path.is_file() and sha256_of(path) != sums[path.name]


def find_damage(folder: Path, needed: Iterable[str] = ()) -> str:
    """Finds out whether the files of a folder are those that were written.

    Args:
        folder: with the files. One without sums, as an older headwise has written it, passes.
        needed: names of files of which there have to be sums.

    Returns:
        What is wrong, such as `"optimizer.pt is not as it was written"`; empty if nothing is.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as name:
    ...     _ = (Path(name) / "weights").write_bytes(bytes(8))
    ...     write_sums(Path(name))
    ...     before = find_damage(Path(name))
    ...     _ = (Path(name) / "weights").write_bytes(bytes(7) + b"1")
    ...     before, find_damage(Path(name))
    ('', 'weights is not as it was written')
    """
    if not (folder / SUMS).exists():
        return ""
    try:
        sums = _read_sums(folder)
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


def _read_sums(folder: Path) -> dict[str, str]:
    """Name to SHA-256; of damaged lines whatever stands in them."""
    if not (folder / SUMS).is_file():
        return {}
    lines = (folder / SUMS).read_text(encoding="utf-8", errors="replace").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file, as `sha256sum` prints it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()
