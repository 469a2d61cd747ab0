"""What docs/claims.md says, against numbers computed by hand."""

import re
from importlib.resources import files
from xml.etree import ElementTree

import pytest
from scipy import stats
from tiny_results import result, system

from evidence.claims import CATALOGUE, SCALES, Claim, Paper, papers
from evidence.experiments import Places
from evidence.page import ClaimsPage, claims_page, edge_mark, out_of_date, totals, write_page
from evidence.pictures import forest_of_tests, overview
from evidence.tables import how_it_ended
from evidence.verdicts import Finding, Kind, Oriented, Verdict
from headwise.analysis.results import Tries, Try
from headwise.report.formatting import p_value, signed

LOSSES = {"standard": [2.0, 2.1, 2.2], "other": [1.0, 1.2, 1.4]}


@pytest.fixture(scope="module")
def experiment():
    return result([system(name, losses) for name, losses in LOSSES.items()])


def test_the_tables_of_an_experiment(experiment):
    row, _ = (each.row for each in experiment.systems)
    assert row[:4] == ["standard", "3", "1.20M", "1"] and row[-1] == "3 on a machine: 2.0"
    # The sample deviation of 2.0, 2.1, 2.2 is 0.1; scores are ten times as large.
    assert row[6:9] == ["21.0 ± 1.0", "20.0, 21.0, 22.0", "2.100 ± 0.100"]
    # Of the last tenth of the steps: each seed's loss + 0.3 and + 0.5. Each seed is validated at
    # its loss + 1, + 0.1 and + 0.2.
    assert row[9:12] == ["2.500", "2.200", "2.300"]
    ((name, score, loss),) = experiment.difference_rows
    assert name == "other"
    welch = stats.ttest_ind(LOSSES["other"], LOSSES["standard"], equal_var=False)
    low, high = (signed(end, 3) for end in welch.confidence_interval())
    assert loss == f"**−0.900 [{low}, {high}], {p_value(welch.pvalue)}**"
    assert score.startswith("**−9.0 [")


def test_a_row_says_what_a_reader_should_doubt(experiment):
    doubtful = experiment.systems[0]._replace(
        is_stale=True, collapsed=experiment.systems[1].runs[:1], is_tuned=True
    )
    assert doubtful.row[:2] == ["standard (stale)", "3, 1 collapsed"]
    assert "given" not in doubtful.row[4]


def test_a_system_whose_baseline_is_missing_has_no_differences():
    alone = result([system("other", [1.0, 1.1])])
    assert (len(alone.systems), alone.difference_rows, alone.ending) == (1, [], "")


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (2.995, "fell by 0.005, which is 0.2% of its whole fall: it was flat"),
        (2.9, "fell by 0.100, which is 4.8% of its whole fall: it was still learning"),
        (3.2, "rose by 0.200, which is 10.0% of its whole fall: it had learned what it could"),
    ],
)
def test_whether_a_system_had_converged(experiment, last, words):
    said = {
        schedule: how_it_ended(validated(experiment, schedule, {100: 5.0, 900: 3.0, 1000: last}))
        for schedule in ("linear", "constant")
    }
    assert all(words in of and "of 1,000" in of for of in said.values())
    of_schedule = "flat as the learning rate reached zero"
    assert [of_schedule in of for of in said.values()] == [last == 2.995, False]


def validated(experiment, schedule, losses):
    """A system with one seed that has these validation losses."""
    one = experiment.systems[0]
    history = [{"step": step, "eval_loss": loss} for step, loss in losses.items()]
    training = one.recipe.training.model_copy(update={"schedule": schedule})
    return one._replace(
        runs=[one.runs[0].model_copy(update={"history": history})],
        recipe=one.recipe.model_copy(update={"training": training}),
    )


def claim(kind="score", tests=None, **others) -> Claim:
    test = {"of": "other", "holds": "better", "than": "standard", "margin": 0.5}
    tests = [] if kind == "figures" else tests or [test]
    said = dict.fromkeys(("says", "where", "printed", "holds_if"), "-")
    return Claim(quantity={"kind": kind}, tests=tests, experiment="translation", **said, **others)


def verdict(kind: Kind, p: float | None = None, **others) -> Verdict:
    standing = None if p is None else Oriented(-1.5, -9.0, 0.25, p, -9.0, 0.25)
    finding = Finding(test="other better than standard", kind=kind, p=p, standing=standing)
    return Verdict(kind=kind, findings=[finding], **others)


CLAIMS = {
    "S1": claim(short="it is better"),
    "S2": claim(),
    "T1": claim("time of a step"),
    "F1": claim("figures"),
    "N1": claim(),
}
OF = {
    "S1": verdict("does not hold here", 0.01, runs=6, seeds=5, stale=["other"]),
    "S2": verdict("cannot be told", 0.4, runs=4, seeds=2),
    "T1": verdict("holds here"),
    "F1": verdict("holds here"),
    "N1": Verdict(kind="not run"),
}
VERDICTS = {(name, "laptop"): of for name, of in OF.items()}
PAPERS = [Paper(name="a", paper="A paper", link="https://example.org", system="It", claims=CLAIMS)]


def test_the_totals_count_each_claim_and_run_once(experiment):
    first, *others = experiment.systems
    lost = first.runs[0].model_copy(update={"seed": 4})
    counted = experiment._replace(systems=[first._replace(collapsed=[lost]), *others])
    found = totals(CLAIMS, VERDICTS, [[counted]])
    assert found == {
        "kinds": {
            "holds here": 2,
            "does not hold here": 1,
            "cannot be told": 1,
            "not testable here": 0,
            "not run": 1,
        },
        "provisional": 1,
        "stale": 1,
        "runs": 7,
        "collapsed": 1,
        "machines": {"a machine": 7},
        "sizes": "1.20M",
        "by_counting": ["F1"],
        "by_times": ["T1"],
        "tested": 2,
        "significant": 1,
        "by_chance": pytest.approx(0.1),
    }


def test_pictures_say_all_that_they_show():
    labels = {}
    for made in (overview, forest_of_tests):
        svg = made(PAPERS, VERDICTS, "laptop")
        labels[made] = ElementTree.fromstring(svg).get("aria-label")
    assert "S1 it is better: does not hold here (stale); S2" in labels[overview]
    assert "S1, other better than standard: −1.5, −9.0 to +0.2" in labels[forest_of_tests]


def test_pictures_and_pages_of_before_go_and_others_stay(tmp_path):
    former = ClaimsPage("", {"claims-laptop.svg": "<svg/>"}, {"former.md": "", "mae.md": ""})
    write_page(tmp_path / "claims.md", former)
    (tmp_path / "pictures" / "transfer.svg").touch()
    now = ClaimsPage("", {"why-laptop-length.svg": "<svg/>"}, {"mae.md": ""})
    write_page(tmp_path / "claims.md", now)
    assert [path.name for path in (tmp_path / "claims").iterdir()] == ["mae.md"]
    left = sorted(path.name for path in (tmp_path / "pictures").iterdir())
    assert left == ["transfer.svg", "why-laptop-length.svg"]


def test_the_table_of_verdicts_stands_in_the_page_of_results(tmp_path):
    results, page = tmp_path / "results.md", ClaimsPage("the page", {}, opening="| W1 |\n")
    results.write_text("<!-- verdicts: python -m evidence page -->\n| old |\n<!-- end -->\n.")
    assert out_of_date(tmp_path / "claims.md", page) == ["results.md"]
    write_page(tmp_path / "claims.md", page)
    assert "-->\n| W1 |\n<!-- end -->\n." in results.read_text()
    assert out_of_date(tmp_path / "claims.md", page) == []


@pytest.mark.parametrize(
    ("losses", "chosen", "mark"),
    [
        ((0.6, 0.5, 0.7), 1, ""),
        ((0.6, 0.5, 0.7), 0, r"\*"),
        ((0.7, 0.6, 0.5), 2, r"\*"),
        ((0.5, 0.6, float("nan")), 0, r"\*"),
    ],
)
def test_whether_the_best_may_lie_outside(losses, chosen, mark):
    tries = [
        Try(values={"training.learning_rate": rate}, validation_loss=loss, steps=4, seconds=1.0)
        for rate, loss in zip((1e-3, 3e-3, 1e-2), losses, strict=True)
    ]
    assert edge_mark(Tries(seed=1, tries=tries, chosen=chosen)) == mark


def test_what_does_not_hold_says_why_or_that_nobody_knows(tmp_path):
    moa = next(paper for paper in papers() if paper.name == "moa")
    kinds: dict[str, Kind] = {"A1": "does not hold here", "A9": "does not hold here"}
    verdicts = {
        (name, scale): Verdict(kinds.get(name, "not run"))
        for name in moa.claims
        for scale in SCALES
    }
    text = claims_page([moa], verdicts, Places(tmp_path, tmp_path, tmp_path)).below["moa.md"]
    sections = {part.split()[0]: part for part in text.split("\n## ")[1:]}
    assert f"Cause: {moa.claims['A1'].cause.strip()}" in sections["A1"]
    assert not moa.claims["A9"].cause and "Cause: we do not know" in sections["A9"]
    assert "Cause" not in "".join(of for name, of in sections.items() if name not in kinds)


def test_the_table_of_data_has_all_files_that_experiments_read():
    texts = [file.read_text("utf-8") for file in (CATALOGUE / "recipes").iterdir()]
    texts += [(CATALOGUE / "scales.yaml").read_text("utf-8")]
    texts += [
        file.read_text("utf-8")
        for file in (files("headwise") / "recipes").iterdir()
        if file.is_file()
    ]
    read = {name for text in texts for name in re.findall(r"\{data\}/([\w./-]+)", text)}
    rows = (CATALOGUE.parents[1] / "docs" / "practice.md").read_text("utf-8")
    assert len(read) > 10
    # Of German the table says that its files are named as the English ones are.
    assert [
        name for name in read if f"`{name.replace('.de.', '.en.').rstrip('/')}" not in rows
    ] == []
