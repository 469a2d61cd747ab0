"""The papers' claims, tested on finished runs: `python -m evidence`.

claims.yaml                what the papers claim, and the experiments that test it
recipes/                   a recipe for each experiment
results/FOLDER/NAME.jsonl  a line for each finished run of an experiment, as it was recorded
runs.py                    how these runs are made
verdicts.py                how a verdict follows from these lines
"""

import io
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import matplotlib
import typer
from typer import Option

from evidence.verdicts import HERE, Claim, Kind, Lines, Verdict, judge, read_catalogue, read_lines
from headwise.cli.app import clear_errors, parse_names
from headwise.files import write_bytes, write_text
from headwise.report.page import subplots

PAGE = HERE.parent / "docs" / "results.md"
BEGIN, END = "<!-- verdicts: python -m evidence page -->\n\n", "\n\n<!-- end of verdicts -->"
MARKS: dict[Kind, str] = {
    "holds": "✓",
    "does not hold": "✗",
    "cannot be told": "?",
    "not testable": "≠",
    "not run": "–",
}
COLOURS = {"holds": "#23906a", "does not hold": "#e34a0a", "cannot be told": "#5a6270"}
WIDEST = 15  # margins of a picture; what is further away needs none

app = typer.Typer(
    help="The papers' claims: what is known of them, and how to test them.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
RESULTS = HERE / "results" / "laptop"
Results = Annotated[Path, Option(help="Folder with a line for each finished run.")]


@app.command("list")
def listing(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...")] = None,
    results: Results = RESULTS,
) -> None:
    """List the claims with their verdicts, or say all that is known of some: list W1 M1."""
    with clear_errors():
        catalogue, lines = read_catalogue(), read_lines(results)
        for name, claim in catalogue.claims(ids).items() if ids else ():
            print_claim(name, claim, lines)
        for paper in catalogue.papers if not ids else ():
            typer.secho(paper.paper, underline=True)
            for name, claim in paper.claims.items():
                typer.echo(f"{name:4} {judge(claim, lines)!s:24} {claim.says}")
            typer.echo(f"Not tested: {paper.left_out}\n" if paper.left_out else "")


@app.command()
def run(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Claims: W1 M1.")],
    seeds: Annotated[str, Option(help="Train each system with these.")] = "11,12,13,14,15",
    jobs: Annotated[int, Option(min=1, metavar="N", help="Train N runs at a time.")] = 1,
    tune: Annotated[
        bool, Option(help="Tune each system first; or take the recipe's values, chosen once.")
    ] = True,
    results: Results = RESULTS,
) -> None:
    """Train what claims lack, and say what the results show; a stopped run resumes.

    The data are in the folder `data`, see evidence/README.md.
    """
    from evidence.runs import measure, train

    with clear_errors("The same command resumes from here."):
        claims, lines = read_catalogue().claims(ids), read_lines(results)
        numbers = [int(number) for number in parse_names("--seeds", seeds)]
        for name in dict.fromkeys(c.experiment for c in claims.values() if c.experiment):
            tested = [claim for claim in claims.values() if claim.experiment == name]
            if tested[0].quantity.kind == "time":  # as all claims of its experiment are
                measure(name, results)
                lines[name] = read_lines(results)[name]
            else:
                digests = train(name, tested, numbers, jobs, tune, results)
                recorded = read_lines(results)[name]
                lines[name] = [line for line in recorded if line["data"] in digests]
        for name, claim in claims.items():
            print_claim(name, claim, lines)


@app.command()
def page() -> None:
    """Write the verdicts into docs/results.md, and the picture beside it."""
    with clear_errors():
        lines = read_lines(RESULTS)
        verdicts = {n: judge(claim, lines) for n, claim in read_catalogue().claims().items()}
        before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        _, end, after = rest.partition(END)
        write_bytes(PAGE.parent / "pictures" / "claims-laptop.svg", forest(verdicts))
        write_text(PAGE, f"{before}{begin}{results_page(verdicts)}{end}{after}")


def print_claim(name: str, claim: Claim, lines: Lines) -> None:
    """Prints all that is known of a claim."""
    verdict = judge(claim, lines)
    typer.secho(f"{name}: {verdict}", bold=True)
    typer.echo(f"  {claim.says} ({claim.where}; printed: {claim.printed})")
    for finding in verdict.findings:
        texts = filter(None, [finding.kind, finding.measured, finding.details])
        typer.echo(f"  {finding.test}: {'; '.join(texts)}")
    for text in filter(None, [claim.untestable, claim.cause, claim.note]):
        typer.echo(f"  {text}")
    if claim.paper_recipe:
        typer.echo(f"  At the paper's size: headwise compare {claim.paper_recipe}")


def results_page(verdicts: Mapping[str, Verdict]) -> str:
    """Writes the part of docs/results.md that is not written by hand."""
    catalogue, kinds = read_catalogue(), Counter(verdict.kind for verdict in verdicts.values())
    claims = catalogue.claims()
    rows = ["| | claim | verdict here | measured |", "|---|---|---|---|"]
    not_run: list[str] = []
    for paper in catalogue.papers:
        tested = {n: claim for n, claim in paper.claims.items() if verdicts[n].kind != "not run"}
        left = [f"**{n}** {claim.short}" for n, claim in paper.claims.items() if n not in tested]
        if left:
            not_run.append(f"- {paper.system}: {'; '.join(left)}")
        if tested:
            rows.append(f"| | **{paper.system}** ([paper]({paper.link})) | | |")
        for name, claim in tested.items():
            verdict = verdicts[name]
            decisive = [f for f in verdict.findings if f.kind == verdict.kind]
            text = decisive[0].measured if decisive else ""
            if claim.quantity.kind == "count":
                agreeing = sum(f.kind == "holds" for f in verdict.findings)
                text = f"{agreeing} of {len(verdict.findings)} figures agree"
            elif text and len(verdict.findings) > 1:
                text = f"{decisive[0].test}: {text}"
            rows.append(f"| {name} | {claim.short} | {MARKS[verdict.kind]} {verdict} | {text} |")
    causes = [f"- **{name}**: {claim.cause}" for name, claim in claims.items() if claim.cause]
    return "\n\n".join(
        [
            "Of {} claims {} hold here, {} do not, {} cannot be told, {} are not testable here, "
            "and {} are not run.".format(len(claims), *(kinds[kind] for kind in MARKS)),
            "![The difference of each test in units of its margin](pictures/claims-laptop.svg)",
            "\n".join(rows),
            *(["Not run:", "\n".join(not_run)] if not_run else []),
            "Why, as far as we know:",
            "\n".join(causes),
        ]
    )


def forest(verdicts: Mapping[str, Verdict]) -> bytes:
    """Draws the difference of each test in units of its margin, as SVG."""
    findings = [(name, f) for name, verdict in verdicts.items() for f in verdict.findings]
    rows = [(name, f) for name, f in findings if f.advantage and abs(f.advantage[1]) < WIDEST]
    figure, (plot,) = subplots(height=0.8 + 0.22 * len(rows), width=9)
    for row, (_, finding) in enumerate(rows):
        low, value, high = finding.advantage or (0, 0, 0)
        plot.plot([low, high], [row, row], color=COLOURS[finding.kind])
        plot.plot(value, row, "o", color=COLOURS[finding.kind], markersize=4)
    plot.set_yticks(range(len(rows)), [f"{n} {MARKS[f.kind]} {f.test}" for n, f in rows])
    plot.axvline(0, color="#888", linewidth=0.8)
    plot.axvline(1, color="#888", linewidth=0.8, linestyle=":")
    plot.set(xlim=(-WIDEST, WIDEST), ylim=(len(rows) - 0.5, -0.5))
    plot.set_xlabel("advantage in margins, with its 95% interval")
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


if __name__ == "__main__":
    app()
