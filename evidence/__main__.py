"""The papers' claims, tested on finished runs: `python -m evidence`.

claims.yaml                what the papers claim, and the experiments that test it
recipes/                   the recipes of these experiments
results/FOLDER/NAME.jsonl  a line for each finished run of an experiment, as it was recorded
verdicts.py                how a verdict follows from these lines
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer import Option

from evidence.verdicts import (
    HERE,
    Claim,
    Kind,
    Lines,
    Quantity,
    Subject,
    Verdict,
    catalogue,
    read_lines,
    verdict,
)
from headwise.cli.app import clear_errors, parse_names
from headwise.files import write_bytes, write_text

MEASUREMENTS = 3  # of times: each differs from the others by more than its own rounds do
MARKS: dict[Kind, str] = {
    "holds here": "✓",
    "does not hold here": "✗",
    "cannot be told": "?",
    "not testable here": "≠",
    "not run": "–",
}
COLOURS = {"holds here": "#23906a", "does not hold here": "#e34a0a", "cannot be told": "#5a6270"}


# --- runs that claims lack ----------------------------------------------------------------------


class Work(NamedTuple):
    """An experiment, and the folders in which it is run."""

    name: str
    recipe: str
    changes: list[str]
    folder: Path  # of runs, which `headwise compare` trains
    results: Path  # the file of its lines

    def lines(self) -> list[dict[str, Any]]:
        return read_lines(self.results.parent).get(self.name, [])

    def append(self, line: Mapping[str, Any]) -> None:
        """Adds a line; the others stay as they are, byte by byte."""
        before = self.results.read_bytes() if self.results.is_file() else b""
        write_bytes(self.results, before + json.dumps(line, ensure_ascii=False).encode() + b"\n")

    def compare(self, folder: Path, *options: str, environment: Mapping[str, str] = {}) -> None:
        """Runs `headwise compare`, which goes on from where it was stopped."""
        command = [sys.executable, "-m", "headwise", "compare", self.recipe]
        command += ["--output", str(folder), *options, *repeated("--set", self.changes)]
        # Control-C reaches it too, and it ends after a checkpoint; `run` would kill it.
        with subprocess.Popen(command, env={**os.environ, **environment}) as process:
            if process.wait():
                raise typer.Exit(process.returncode)


def repeated(option: str, values: Sequence[str]) -> list[str]:
    return [part for value in values for part in (option, value)]


def prepare(name: str, data: Path, runs: Path, results: Path) -> Work:
    """Writes the recipe of an experiment with the folder of the data in the place of {data}."""
    experiment, recipe = catalogue().experiments[name], runs / f"{name}.yaml"
    own = HERE / "recipes" / f"{experiment.recipe}.yaml"
    text = own.read_text(encoding="utf-8") if own.is_file() else ""
    if "{data}" in f"{text} {experiment.set}" and not data.is_dir():
        raise FileNotFoundError(
            f"--data is {str(data)!r}, expected a folder with the data of the experiments: "
            f"evidence/README.md says what is in it"
        )
    changes = [each.replace("{data}", str(data.absolute())) for each in experiment.set]
    if text:
        write_text(recipe, text.replace("{data}", str(data.absolute())))
    named = str(recipe) if text else experiment.recipe
    return Work(name, named, changes, runs / name, results / f"{name}.jsonl")


def train(work: Work, subjects: Sequence[Subject], seeds: Sequence[int], jobs: int) -> str:
    """Trains what is missing, adds a line for each finished run, and returns the data's hash.

    A run that has a line on the same data is not trained again.
    """
    from headwise.recipes.recipe import load_recipe, task_class

    file, digest = load_recipe(work.recipe, work.changes), ""
    tune = repeated("--tune", catalogue().experiments[work.name].tune)
    for dataset, system in dict.fromkeys((each.dataset, each.system) for each in subjects):
        recipe = file.system(system, dataset)
        task = task_class(recipe.task)(recipe)
        digest = task.digest()
        of_system = (system, dataset, digest)
        known = [r for r in work.lines() if (r["system"], r["dataset"], r["data"]) == of_system]
        missing = [seed for seed in seeds if seed not in {run["seed"] for run in known}]
        if not missing:
            continue
        options = ["--systems", system, "--seeds", ",".join(map(str, missing)), *tune]
        options += ["--jobs", str(jobs), *(["--datasets", dataset] if dataset else [])]
        try:
            work.compare(work.folder, *options)
        finally:
            for seed in missing:
                run = work.folder / (dataset or "") / f"{system}-seed{seed}"
                if (run / "result.json").is_file():
                    found = line_of(run, task, work.name)
                    work.append({"dataset": dataset, "data": digest, **found})
    return digest


def line_of(folder: Path, task: Any, experiment: str) -> dict[str, Any]:
    """Makes the line of a finished run: all that claims need of it."""
    from headwise.analysis.decided import collect
    from headwise.analysis.questions import entropy, load
    from headwise.analysis.results import machine, parts_of, versions
    from headwise.runs.evaluate import read_outcome
    from headwise.runs.folder import read_model, read_result

    result, model, scores = read_result(folder), read_model(folder), read_outcome(folder).scores
    assert result is not None
    claims = [c for c in catalogue().claims().values() if c.experiment == experiment]
    subjects = [s for c in claims for s in c.subjects if s.system == result.system]
    ablations = {name for s in subjects for name in (*s.without, s.ablated) if name}
    batches = groups(task)
    rows = {"loss": loss_rows(model, batches)}
    for name in sorted(ablations):
        with under(model, name):
            rows[f"loss with {name}"] = loss_rows(model, batches)
    losses = {key: float(np.divide(*np.sum(of, axis=0))) for key, of in rows.items()}
    rows[scores[0].name] = scores[0].rows
    start = result.history[0] if result.history else {}
    git = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(git, cwd=HERE, capture_output=True, text=True, check=False).stdout
    figures = {"system", "seed", "parameters", "macs", "steps", "validation_loss"}
    return {
        "kind": "run",
        "at": "",
        **result.model_dump(include=figures),
        "minutes": result.seconds / 60,
        "history": [  # figures of single modules stay in the folder of the run
            {key: x for key, x in row.items() if parts_of(key)[1] not in result.units}
            for row in result.history
            if "eval_loss" in row
        ],
        "scores": [score.model_dump(exclude={"rows"}) for score in scores],
        "loss": losses.pop("loss"),
        "ablations": {key.removeprefix("loss with "): loss for key, loss in losses.items()},
        "attention": [
            {
                "site": d.site,
                "layer": d.layer,
                "system": d.system,
                "entropy": float(entropy(d)["mean"]),
                "start_entropy": start.get(f"entropy {d.place}"),
                "load": load(d).tolist(),
            }
            for d in (collect(model, batches) if result.units else [])
        ],
        "commit": commit.strip(),
        "machine": machine(),
        "versions": versions(),
        "rows": {
            key: [[int(x) if float(x).is_integer() else round(x, 5) for x in row] for row in of]
            for key, of in rows.items()
        },
    }


def groups(task: Any) -> list[dict[str, Any]]:
    """Makes batches of up to 16 test items of similar length, at least 50 if there are so many."""
    items = task.parts["test"]
    longest = np.asarray(items.lengths).reshape(len(items), -1).max(axis=1)
    order, size = np.argsort(longest, kind="stable"), max(1, min(16, len(items) // 50))
    chosen = [order[start : start + size].tolist() for start in range(0, len(order), size)]
    return [task.collate(items.__getitems__(some)) for some in chosen]


def loss_rows(model: Any, batches: Sequence[dict[str, Any]]) -> list[list[float]]:
    """Computes the total loss of each batch and its number of labels."""
    from headwise.training.loss import aside_of_training, loss_and_labels

    with aside_of_training(model):
        return [loss_and_labels(model, batch).tolist() for batch in batches]


@contextmanager
def under(model: Any, ablation: str) -> Iterator[None]:
    """Ablates a model meanwhile; `mae=random-expert` draws the only expert of each layer."""
    import torch

    from headwise.analysis.ablations import parse_ablations
    from headwise.models.inspect import ablated, systems

    with ExitStack() as stack:
        if ablation != "mae=random-expert":  # table 5 of the MAE paper
            stack.enter_context(ablated(model, parse_ablations([ablation])))
        else:
            generator = torch.Generator().manual_seed(0)
            for path, system in systems(model).items():
                drawn = int(torch.randint(system.num_units, (), generator=generator))
                stack.enter_context(ablated(model, path, "only-expert", expert=drawn))
        yield


def measure(work: Work, subjects: Sequence[Subject]) -> None:
    """Measures times of steps and tokens on one thread, each time with new models."""
    from headwise.analysis.results import Compared
    from headwise.recipes.recipe import load_recipe

    baseline = load_recipe(work.recipe, work.changes).system_names[0]
    systems = list(dict.fromkeys([baseline, *(subject.system for subject in subjects)]))
    done = [line for line in work.lines() if {*systems} <= line["step"].keys()]
    for count in range(len(done) + 1, MEASUREMENTS + 1):
        folder, options = work.folder / str(count), ["--systems", ",".join(systems)]
        work.compare(folder, *options, "--seeds", "1", environment={"OMP_NUM_THREADS": "1"})
        found = Compared.model_validate_json((folder / "comparison.json").read_bytes()).model_dump()
        times = {"step": found["step_times"], "token": found["decoding_times"]}
        of = {"machine": found["machine"], "versions": found["versions"]}
        work.append({"kind": "times", "number": count, "baseline": baseline, **times, **of})


# --- the page -----------------------------------------------------------------------------------


def results_page(verdicts: Mapping[str, Verdict], elsewhere: Mapping[str, Verdict]) -> str:
    """Writes the part of docs/results.md that is not written by hand."""
    claims, kinds = catalogue().claims(), Counter(each.kind for each in verdicts.values())
    numbers = {kind: kinds[kind] for kind in MARKS}
    text = [
        "Of {} claims {} hold here, {} do not, {} cannot be told, {} are not testable here, and {} "
        "are not run.".format(len(claims), *numbers.values()),
        "![The difference of each test in units of its margin](pictures/claims-laptop.svg)",
        "| | claim | verdict here | measured |\n|---|---|---|---|",
    ]
    for paper in catalogue().papers:
        text[-1] += f"\n| | **{paper.system}** ([paper]({paper.link})) | | |"
        for name, claim in paper.claims.items():
            found = verdicts[name]
            decided = next((f for f in found.findings if f.kind == found.kind), None)
            said = decided.said if decided else ""
            if claim.quantity.kind == "count":
                agree = sum(f.kind == "holds here" for f in found.findings)
                said = f"{agree} of {len(found.findings)} figures agree"
            elif decided and said and len(found.findings) > 1:
                said = f"{decided.test}: {said}"
            told = f"{MARKS[found.kind]} {found}".replace(" here", "").replace("provisional: ", "")
            text[-1] += f"\n| {name} | {claim.short} | {told} | {said} |"
    again = {name: found.kind for name, found in elsewhere.items() if found.kind in COLOURS}
    same = ", ".join(name for name, kind in again.items() if kind == verdicts[name].kind)
    other = ", ".join(name for name, kind in again.items() if kind != verdicts[name].kind)
    text.append(f"With other seeds, on another machine, {same} had the same verdict, {other} not.")
    text.append("Why, as far as we know:")
    text.append("\n".join(f"- **{name}**: {c.cause}" for name, c in claims.items() if c.cause))
    return "\n\n".join(text)


_WIDEST = 15  # margins; what is further away needs no picture


def forest(verdicts: Mapping[str, Verdict]) -> bytes:
    """Draws the difference of each test in units of its margin, as SVG."""
    import io

    import matplotlib

    from headwise.report.page import axes

    every = [(name, f) for name, found in verdicts.items() for f in found.findings]
    rows = [(name, f) for name, f in every if f.standing and abs(f.standing[1]) < _WIDEST]
    figure, (plot,) = axes(height=0.8 + 0.22 * len(rows), width=9)
    for row, (_, finding) in enumerate(rows):
        low, value, high = finding.standing or (0, 0, 0)
        plot.plot([low, high], [row, row], color=COLOURS[finding.kind])
        plot.plot(value, row, "o", color=COLOURS[finding.kind], markersize=4)
    plot.set_yticks(range(len(rows)), [f"{n} {MARKS[f.kind]} {f.test}" for n, f in rows])
    plot.axvline(0, color="#888", linewidth=0.8)
    plot.axvline(1, color="#888", linewidth=0.8, linestyle=":")
    plot.set(xlim=(-_WIDEST, _WIDEST), ylim=(len(rows) - 0.5, -0.5))
    plot.set_xlabel("advantage in margins, with its 95% interval")
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


# --- the commands -------------------------------------------------------------------------------

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
        console, lines, known = Console(), read_lines(results), catalogue().claims(ids or [])
        for name, claim in known.items() if ids else ():
            say_all(name, claim, lines, console)
        for paper in catalogue().papers if not ids else ():
            console.print(paper.paper, style="underline", highlight=False, markup=False)
            table = Table("id", "claim", "where", "verdict", box=None, pad_edge=False)
            for name, claim in paper.claims.items():
                told = (name, claim.says, claim.where, str(verdict(claim, lines)))
                table.add_row(*map(Text, told))
            console.print(table)
            console.print(f"Not tested: {paper.left_out}\n" if paper.left_out else "", markup=False)


@app.command()
def run(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Claims: W1 M1.")],
    data: Annotated[Path, Option(envvar="HEADWISE_DATA", help="Folder with the data.")] = Path(
        "data"
    ),
    seeds: Annotated[str, Option(help="Train each system with these.")] = "11,12,13,14,15",
    jobs: Annotated[int, Option(min=1, metavar="N", help="Train N runs at a time.")] = 1,
    runs: Annotated[Path, Option(help="Folder in which runs are trained.")] = Path("runs/claims"),
    results: Results = RESULTS,
) -> None:
    """Train what claims lack, and say what the results show; a stopped run goes on."""
    with clear_errors("The same command goes on from here."):
        numbers, claims = [int(n) for n in parse_names("--seeds", seeds)], catalogue().claims(ids)
        data_of: dict[str, str] = {}
        for name in dict.fromkeys(c.experiment for c in claims.values() if c.experiment):
            of = [claim for claim in claims.values() if claim.experiment == name]
            subjects = [subject for claim in of for subject in claim.subjects]
            work = prepare(name, data, runs, results)
            if of[0].quantity.kind == "time":  # as all claims of its experiment are
                measure(work, subjects)
            elif subjects:
                data_of[name] = train(work, subjects, numbers, jobs)
        for name, claim in claims.items():
            say_all(name, claim, read_lines(results), Console(), data_of.get(claim.experiment, ""))


@app.command()
def page(
    output: Annotated[Path, Option(help="Page with the verdicts.")] = HERE.parent
    / "docs"
    / "results.md",
    results: Results = RESULTS,
) -> None:
    """Write the verdicts into docs/results.md, and the picture beside it."""
    with clear_errors():
        claims, lines = catalogue().claims(), read_lines(results)
        other = read_lines(results.with_name("elsewhere"))
        verdicts = {name: verdict(claim, lines) for name, claim in claims.items()}
        elsewhere = {n: verdict(c, other) for n, c in claims.items() if c.experiment}
        text = output.read_text(encoding="utf-8")
        before, begin, rest = text.partition("<!-- verdicts: python -m evidence page -->\n")
        _, end, after = rest.partition("<!-- end of verdicts -->")
        made = results_page(verdicts, elsewhere)
        write_bytes(output.parent / "pictures" / "claims-laptop.svg", forest(verdicts))
        write_text(output, f"{before}{begin}\n{made}\n\n{end}{after}")


def say_all(name: str, claim: Claim, lines: Lines, console: Console, data: str = "") -> None:
    """Prints all that is known of a claim, and beside a loss what the score says."""
    found = verdict(claim, lines, data)
    said = [f"{claim.says} ({claim.where}; printed: {claim.printed})"]
    if claim.experiment:
        said.append(f"tested on {catalogue().experiments[claim.experiment].data}")
    for each in found.findings:
        said.append(f"{each.test}: {'; '.join(filter(None, [each.kind, each.said, each.beside]))}")
    if claim.quantity.kind == "loss" and not any(s.without or s.ablated for s in claim.subjects):
        of_score = claim.model_copy(update={"quantity": Quantity(kind="score")})
        for each in verdict(of_score, lines, data).findings:  # margins are of the loss alone
            said += [f"its score: {each.said}; {each.beside}"] if each.said else []
    said += filter(None, [claim.untestable, claim.cause, claim.note])
    if claim.paper_recipe:
        said.append(f"At the paper's size: headwise compare {claim.paper_recipe}")
    console.print(f"{name}: {found}", style="bold", highlight=False, markup=False)
    for text in said:
        console.print(f"  {text}", highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    app()
