"""A section of the page of an analysis."""

from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True)
class Section:
    """What one question came to, for all runs of an analysis.

    Attributes:
        identity: its anchor in the page, and the prefix of all ids in it.
        title: its heading.
        body: figures, tables and what they mean, as HTML.
    """

    identity: str
    title: str
    body: Markup
