"""Tables for a terminal of what models cost, and of what papers say that theirs do."""

from collections.abc import Iterator, Mapping, Sequence

from rich import box
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headwise.analysis.cost import model_cost
from headwise.analysis.papers import TOLERANCES, Paper
from headwise.models.config import TransformerConfig
from headwise.report.formatting import NONE, count


def cost_table(
    title: str,
    configs: Mapping[str, TransformerConfig],
    lengths: Mapping[str, int],
    source: str = "",
) -> Table:
    """Returns a table with a row for each system, for a terminal of 80 columns."""
    counted = f"{_input(lengths)} ({source})" if source else _input(lengths)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.title = Text(title, style="bold")
    caption = (
        f"{_vocabulary(next(iter(configs.values())))}MACs: {counted}; linear: without the "
        f"products of attention."
    )
    table.caption_justify = "left"
    table.add_column("System", min_width=9, max_width=20, overflow="fold")
    parts = ("Embed-\ndings", "Atten-\ntion", "Routing", "Feed-\nforward", "Rest", "Para-\nmeters")
    for header in (*parts, "MACs\nlinear", "MACs\nall"):
        table.add_column(header, justify="right", no_wrap=True)
    for name, config in configs.items():
        cost = model_cost(config, lengths)
        figures = (*cost.parameters, cost.parameters.total, cost.linear_macs, cost.macs)
        table.add_row(Text(name, style="bold"), *map(count, figures))
    table.caption = Text(caption)
    return table


def _vocabulary(config: TransformerConfig) -> str:
    words = getattr(config, "vocab_size", None)
    others = getattr(config, "target_vocab_size", words)
    if words is None:
        return ""
    if getattr(config, "share_embeddings", None) == "target" or others != words:
        return f"With vocabularies of {words:,} and {others:,}; little data gives fewer. "
    return f"With a vocabulary of {words:,}; little data gives fewer. "


def _input(lengths: Mapping[str, int]) -> str:
    if len(lengths) == 2:
        return f"{lengths['encoder']} source and {lengths['decoder']} target tokens"
    (length,) = lengths.values()
    return f"a sequence of {length}"


def papers_tables(papers: Sequence[Paper]) -> Iterator[Table]:
    """Yields a table for each paper, for a terminal of 80 columns."""
    for paper in papers:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
        table.title = Text(paper.title, style="bold")
        table.caption = Text(paper.note)
        table.caption_justify = "left"
        table.add_column("Model")
        table.add_column("Of", no_wrap=True)
        for header in ("Paper", "Ours", "Off by", "Words"):
            table.add_column(header, justify="right", no_wrap=True)
        for figure in paper.figures:
            name = Group(figure.model)
            if figure.remark:
                name = Group(figure.model, Padding(Text(figure.remark, style="dim"), (0, 0, 0, 2)))
            style = "red" if figure.agrees is False else ""
            cells = (figure.what, figure.printed, figure.shown, figure.difference, figure.words)
            table.add_row(name, *(Text(cell, style=style) for cell in cells))
        yield table


def papers_summary(papers: Sequence[Paper]) -> str:
    """Says with how many of the papers' figures ours agree.

    >>> from headwise.analysis.papers import Figure
    >>> papers_summary([Paper("", "", (Figure("", "params", "65M", 65.2e6),))])
    '1 of 1 figures agree (MACs to 0.5%, parameters to 1.5%, or as far as they are printed)'
    """
    figures = [figure for paper in papers for figure in paper.figures]
    verdicts = [figure.agrees for figure in figures]
    text = (
        f"{verdicts.count(True)} of {len(figures)} figures agree (MACs to "
        f"{TOLERANCES['MACs']:.1%}, parameters to {TOLERANCES['params']:.1%}, or as far as they "
        f"are printed)"
    )
    if False in verdicts:
        text += f"; {verdicts.count(False)} do not (≠)"
    if None in verdicts:
        text += f"; {verdicts.count(None)} cannot be counted here ({NONE})"
    return text
