"""What the sections of the page of an analysis share: legends, and systems in order."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from markupsafe import Markup

from headwise.analysis.decisions.observing import Where
from headwise.analysis.decisions.record import RunAnalysis
from headwise.analysis.words import Words
from headwise.report.formatting import site_name
from headwise.report.svg import Look, legend

Looks = Mapping[str, Look]  # of runs, by name
Figures = list[tuple[str, Markup]]  # title and figure


def legend_of(runs: Sequence[RunAnalysis], looks: Looks) -> list[tuple[str, Markup]]:
    """The legend of the runs; empty of a single run, which needs none."""
    return legend([run.name for run in runs], looks) if len(runs) > 1 else []


class Placed(Protocol):
    """A record of one system."""

    @property
    def where(self) -> Where: ...


Record = TypeVar("Record", bound=Placed)


@dataclass(frozen=True)
class Kind(Generic[Record]):
    """The records of one kind of system."""

    name: str  # the system's name in plans
    words: Words  # for its decisions
    # What a site is called to the number of a run to its records, by layer.
    sites: dict[str, dict[int, list[Record]]]

    def modules(self) -> Iterator[tuple[int, str, Record]]:
        """Yields of each system the number of its run, what its site is called, and its record.

        In a model that is none of headwise's, the path takes the place of the site.
        """
        for site, of_runs in self.sites.items():
            for number, records in of_runs.items():
                for record in records:
                    yield number, site if record.where.site else record.where.path, record


def kinds(
    runs: Sequence[RunAnalysis], records: Callable[[RunAnalysis], Sequence[Record]]
) -> list[Kind[Record]]:
    """Returns the records of all runs by the kind of system, then by site."""
    # A single stack needs no name.
    alone = len({record.where.stack for run in runs for record in records(run)}) == 1
    found: dict[str, Kind[Record]] = {}
    for number, run in enumerate(runs):
        for record in records(run):
            system = record.where.system
            kind = found.setdefault(system, Kind(system, run.words.get(system, Words()), {}))
            of_runs = kind.sites.setdefault(site_name(record.where, alone=alone), {})
            of_runs.setdefault(number, []).append(record)
    return list(found.values())
