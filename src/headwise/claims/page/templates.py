"""The templates of the page of claims, each part of which is a file of its own."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

_ENVIRONMENT = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def template(name: str) -> Template:
    """Returns the template of this name, which `.md.jinja` follows in the name of its file."""
    return _ENVIRONMENT.get_template(f"{name}.md.jinja")
