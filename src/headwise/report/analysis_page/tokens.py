"""The section on which tokens, and classes of positions, go to which units."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from headwise.analysis.decisions.record import RunAnalysis
from headwise.analysis.decisions.tokens import LEADING, Leader, TokensRecord
from headwise.heads.words import Words
from headwise.report.analysis_page.section import Section, kinds
from headwise.report.formatting import heading, signed
from headwise.report.rendering import rendered
from headwise.report.svg import Look

IDENTITY = "tokens"
_COLOUR = re.compile(r"#[0-9a-f]{6}")


def tokens_section(runs: Sequence[RunAnalysis], looks: Mapping[str, Look]) -> Section | None:
    """Returns the section; None if no run has anything at its positions that can be told apart."""
    tables = _tables(runs)
    if not tables:
        return None
    # The papers show the first layer; so does the page, for each run, and folds the rest.
    first: dict[str, dict[str, Any]] = {}
    for name, table in tables:
        first.setdefault(name, table)
    shown = list(first.values())
    folded = [table for _, table in tables if not any(table is each for each in shown)]
    body = rendered(
        "analysis_page/tokens.html.jinja",
        shown=shown,
        folded=folded,
        leading=LEADING,
        heading=heading,
    )
    return Section(IDENTITY, "Which tokens go to which units", body)


def _tables(runs: Sequence[RunAnalysis]) -> list[tuple[str, dict[str, Any]]]:
    """Name of a run and a table, by run, then by module, then by label."""
    found = []
    for kind in kinds(runs, lambda run: run.tokens):
        for number, run in enumerate(runs):
            for site in kind.sites:
                for record in site.of_runs.get(number, []):
                    place = f"{site.title}, layer {record.where.layer}"
                    title = place if record.where.site else record.where.path
                    title = f"{run.name}: {title}" if len(runs) > 1 else title
                    found.append((number, run.name, _table(title, kind.words, record)))
    found.sort(key=lambda each: each[0])
    return [(name, table) for _, name, table in found]


def _table(title: str, words: Words, record: TokensRecord) -> dict[str, Any]:
    """What goes to the units of one module."""
    return {
        "title": title,
        "words": words,
        "record": record,
        # How many tokens would stand out of each unit by chance.
        "expected": f"{0.025 * record.kinds:.2g}",
        "units": [
            {
                "number": number,
                "share": f"{100 * unit.share:.1f}%",
                "standing_out": unit.standing_out,
                "lines": [_line(leader) for leader in unit.leading],
            }
            for number, unit in enumerate(record.units)
        ],
    }


def _line(leader: Leader) -> dict[str, Any]:
    """A token of a unit, as the table has it; names of colours are shown as such."""
    return {
        "name": leader.name,
        "colour": leader.name if _COLOUR.fullmatch(leader.name) else None,
        "pmi": signed(leader.pmi, 2),
        "interval": f"{signed(leader.low, 2)} to {signed(leader.high, 2)}",
        "count": f"{leader.with_unit:.4g} of {leader.occurrences}",
        "stands_out": leader.low > 0,
    }
