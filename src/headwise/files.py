"""Outputs that are whole or not there: written under another name, then renamed."""

from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write a text file such that nobody ever sees half of it."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file such that nobody ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".partial-{path.name}")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
