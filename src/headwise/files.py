"""Outputs that are whole or not there: written under another name, then renamed."""

from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write a text file such that nobody ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".partial-{path.name}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
