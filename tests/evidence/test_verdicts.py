"""The verdict on each claim of the papers follows from the kept runs by its rule, untrained."""

import json
import math
import re
from pathlib import Path

import pytest
import torch
import yaml
from scipy import stats
from typer.testing import CliRunner

from evidence import claims
from evidence.__main__ import app
from evidence.experiments import Conditions, Places, recipe_hash

ROOT = Path(__file__).parents[2]
TINY = ["model.embed_dim=16", "model.ffn_dim=16", "training.max_steps=2", "evaluation.beam_size=1"]
SCRIPT, IMAGE = "<script>alert('&')</script>", '<img src="x" onerror="alert(1)">'
HOLDS, FAILS, OPEN = "holds here", "does not hold here", "cannot be told"
BEST, MADE = [2.50, 2.51, 2.52, 2.51], [2.60, 2.61, 2.62, 2.61]
NEAR, WIDE = [2.601, 2.611, 2.621, 2.611], [2.55, 2.65, 2.60, 2.62]
FAR, LOST = 3.0, math.nan  # more than a twentieth above the best seed: collapsed; diverged


def against(holds: str, margin: float = 0.02) -> dict:
    return {"of": "weighted", "holds": holds, "than": "standard", "margin": margin}


# Tests of a claim, the test losses of the seeds of its two systems, and what is to be said.
CASES = {
    "B1": ([against("better")], BEST, MADE, HOLDS),
    "B2": ([against("better")], MADE, BEST, FAILS),
    "B3": ([against("better")], NEAR, MADE, FAILS),  # no room for as much as the margin
    "B4": ([against("better")], WIDE, MADE, OPEN),
    "B5": ([against("better")], BEST, [], "not run"),
    "B6": ([against("better")], BEST[:1], MADE[:1], OPEN),
    "N1": ([against("not better")], BEST, MADE, FAILS),
    "N2": ([against("not better")], NEAR, MADE, HOLDS),
    "W1": ([against("not worse")], NEAR, MADE, HOLDS),
    "W2": ([against("not worse")], MADE, BEST, FAILS),
    # The advantage is -0.001; its interval ends at 0.0131, and at 0.0161 where two tests may fail.
    "K1": ([against("better", 0.015), against("not worse", 1.0)], NEAR, MADE, OPEN),
    "K2": ([against("better", 0.017), against("not worse", 1.0)], NEAR, MADE, FAILS),
    "R1": ([{"of": "weighted", "at_most": 2.6}], BEST, [], HOLDS),
    "R3": ([{"of": "weighted", "at_least": 2.505}], BEST, [], OPEN),
    # Collapsed runs leave open what they change, but for a failure that they make worse.
    "C1": ([against("better")], MADE, [*BEST, FAR], OPEN),
    "C2": ([against("better")], [*MADE, FAR], BEST, FAILS),
    "C3": ([against("not better")], [*BEST, FAR], MADE, OPEN),
    "D1": ([against("better")], [*BEST, LOST], MADE, OPEN),  # nothing holds of what diverges
    "D2": ([against("better")], [LOST] * 4, MADE, OPEN),  # and lost runs do not miss
    "E1": ([against("better")], BEST, MADE, "not testable here"),  # fails the condition of entry
    "T1": ([{"of": "weighted", "at_most": 1.20}], [], [], HOLDS),
    "T2": ([{"of": "weighted", "at_most": 1.04}], [], [], FAILS),
}


def command(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "1000"})
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory):
    """Claims of the tests' own, each with an experiment."""
    said = dict.fromkeys(("says", "where", "printed", "holds_if"), "-") | {"short": SCRIPT}
    found = {}
    for name, (tests, *_) in CASES.items():
        kind = "time of a step" if name.startswith("T") else "loss"
        found[name] = {**said, "quantity": {"kind": kind}, "tests": tests, "experiment": name}
    found["E1"] |= {"entry": [{"of": "weighted", "at_most": 1.0}], "otherwise": "too small"}
    paper = {"paper": SCRIPT, "link": "https://example.org", "system": "It", "claims": found}
    experiments = {name: {"recipe": "interface-strings", "changes": TINY} for name in found}
    folder = tmp_path_factory.mktemp("catalogue")
    (folder / "papers").mkdir()
    (folder / "questions.yaml").touch()
    (folder / "papers" / "1-made.yaml").write_text(yaml.safe_dump(paper))
    scales = {"laptop": experiments, "gpu": {}, "paper": {}}
    (folder / "scales.yaml").write_text(yaml.safe_dump(scales))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "CATALOGUE", folder)
        yield


def records(name: str, system: str, losses: list[float]) -> list[dict]:
    """Runs as a former edition recorded them, whose last validation loss is the test loss."""
    recipe = Conditions("laptop", name, Places(Path(), Path(), Path())).recipe(system, None)
    said = {"kind": "run", "at": "", "dataset": None, "system": system, "data": "d"}
    said |= {"recipe": recipe_hash(recipe), "fingerprint": [0.5], "machine": IMAGE}
    said |= {"parameters": 9, "macs": 1, "steps": 2, "minutes": 1.0, "threads": [1], "scores": []}
    said |= {"ablations": {}, "ablated_scores": {}, "attention": [], "versions": {}, "rows": {}}
    return [
        {**said, "seed": seed, "loss": loss, "validation_loss": loss, "history": []}
        for seed, loss in enumerate(losses, 11)
    ]


def write(results: Path, name: str, lines: list[dict]) -> Path:
    path = results / "laptop" / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def pages(catalogue, tmp_path_factory):
    """The folder of the pages that the command writes of the made-up results."""
    folder = tmp_path_factory.mktemp("made")
    spread = {"value": 1.1, "low": 1.05, "high": 1.15, "rounds": 9}
    times = {"kind": "times", "baseline": "standard", "token": {}, "machine": IMAGE}
    times |= {"step": {"standard": spread, "weighted": spread}, "fingerprints": {}, "versions": {}}
    for name, (_, ours, theirs, _) in CASES.items():
        measured = [times | {"number": number} for number in (1, 2, 3) if name.startswith("T")]
        runs = records(name, "weighted", ours) + records(name, "standard", theirs)
        write(folder, name, runs + measured)
    command("page", "--output", folder / "claims.md", "--results", folder)
    return folder


def cells(pages: Path, name: str) -> list[str]:
    """The row of a claim in the table of its paper: its name, verdict and figure."""
    text = (pages / "claims" / "made.md").read_text()
    return text.split(f"\n| [{name}]")[1].splitlines()[0].split(" | ")


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_on_a_claim_is_that_of_its_rule(pages, name):
    assert cells(pages, name)[1][2:].split(" (")[0] == CASES[name][-1]


def test_the_interval_of_a_difference_is_that_of_welch(pages):
    shown = re.findall(r"[−+]\d\.\d{3}", cells(pages, "B1")[2])
    ends = stats.ttest_ind(BEST, MADE, equal_var=False).confidence_interval()
    found = [float(number.replace("−", "-")) for number in shown]
    assert found == pytest.approx([-0.1, *ends], abs=5.1e-4)


def test_names_from_elsewhere_are_text_on_pages_and_pictures(pages):
    texts = [path.read_text() for of in ("md", "svg") for path in pages.rglob(f"*.{of}")]
    assert len(texts) > 3 and not re.search("<script|<img", "".join(texts))


def test_the_kept_results_give_the_verdicts_of_the_page_of_results(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "CATALOGUE", ROOT / "evidence" / "catalogue")
    monkeypatch.setattr(torch.Tensor, "backward", None)  # nothing is trained
    shown = (ROOT / "docs" / "results.md").read_text("utf-8")
    before, verdicts, after = re.split(r"(?<=page -->\n)|(?=<!-- end of verdicts)", shown)
    assert len(set(re.findall(r"\b[A-Z]\d+[A-Z]? \w", verdicts))) > 50
    (tmp_path / "results.md").write_text(before + after, "utf-8")
    command("page", "--output", tmp_path / "claims.md", "--results", ROOT / "evidence" / "results")
    assert (tmp_path / "results.md").read_text("utf-8") == shown


@pytest.mark.parametrize("damage", ["{", "[]", "null", '{"kind": "run"}', '{"kind": "other"}'])
def test_a_record_of_a_wrong_shape_is_named_by_its_file_and_line(catalogue, tmp_path, damage):
    path = write(tmp_path, "B1", records("B1", "weighted", BEST[:1]))
    path.write_text(path.read_text() + damage)
    told = command("list", "--results", tmp_path, code=2)
    assert str(path) in told and re.search(r"\b2\b", told.replace(str(path), ""))


@pytest.mark.nightly
def test_a_claim_is_run_once_and_leaves_other_records_as_they_are(catalogue, tmp_path, monkeypatch):
    line = json.dumps(records("B1", "weighted", [LOST])[0] | {"at": "another/1"})
    path = write(tmp_path, "B1", [json.loads(line)])
    told = ["run", "B1", "--seeds", 1, "--data", tmp_path, "--results", tmp_path]
    command(*told, "--runs", tmp_path / "runs")
    kept = path.read_text().splitlines()
    assert line in kept and len(kept) == 3
    monkeypatch.setattr(torch.Tensor, "backward", None)
    assert "B1" in command(*told, "--runs", tmp_path / "none")
