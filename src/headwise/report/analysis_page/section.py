"""What the sections of the page of an analysis share: their form, legends, and systems in order."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from markupsafe import Markup

from headwise.analysis.decisions.observing import Where
from headwise.analysis.decisions.record import RunAnalysis
from headwise.heads.words import Words
from headwise.report.place_names import site_name
from headwise.report.svg import Look, swatch


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


def legend(
    runs: Sequence[RunAnalysis], looks: Mapping[str, Look], identity: str
) -> list[tuple[str, Markup]]:
    """Names of the runs with a piece of their lines; empty of a single run, which needs none."""
    if len(runs) == 1:
        return []
    return [
        (run.name, swatch(looks[run.name], f"{identity}-swatch-{number}"))
        for number, run in enumerate(runs)
    ]


class Placed(Protocol):
    """A record of one system."""

    @property
    def where(self) -> Where: ...


Record = TypeVar("Record", bound=Placed)


@dataclass(frozen=True)
class Site(Generic[Record]):
    """The records of one site.

    Attributes:
        title: what the site is called.
        of_runs: number of a run to its records, in the order of the layers.
    """

    title: str
    of_runs: dict[int, list[Record]]


@dataclass(frozen=True)
class Kind(Generic[Record]):
    """The records of one kind of system.

    Attributes:
        name: the system's name in plans.
        words: for its decisions.
        sites: where such systems stand in any of the runs.
    """

    name: str
    words: Words
    sites: list[Site[Record]]

    def of_run(self, number: int) -> list[Record]:
        """The records of all sites of a run."""
        return [record for site in self.sites for record in site.of_runs.get(number, [])]

    def modules(self) -> Iterator[tuple[int, str, Record]]:
        """Yields of each system the number of its run, what its site is called, and its record.

        In a model that is none of headwise's, the path takes the place of the site.
        """
        for site in self.sites:
            for number, records in site.of_runs.items():
                for record in records:
                    yield number, site.title if record.where.site else record.where.path, record


def kinds(
    runs: Sequence[RunAnalysis], records: Callable[[RunAnalysis], Sequence[Record]]
) -> list[Kind[Record]]:
    """Returns the records of all runs by the kind of system, then by site."""
    # A single stack needs no name.
    alone = len({record.where.stack for run in runs for record in records(run)}) == 1
    words: dict[str, Words] = {}
    found: dict[str, dict[str, dict[int, list[Record]]]] = {}
    for number, run in enumerate(runs):
        for record in records(run):
            system = record.where.system
            words.setdefault(system, run.words.get(system, Words()))
            sites = found.setdefault(system, {})
            of_runs = sites.setdefault(site_name(record.where, alone=alone), {})
            of_runs.setdefault(number, []).append(record)
    return [
        Kind(system, words[system], [Site(title, of_runs) for title, of_runs in sites.items()])
        for system, sites in found.items()
    ]
