"""`hw.analyse`: its findings are those of its tables, and its page is short, whole and safe."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from support import tiny_models
from support.pages import Page, numbers

import headwise as hw
from headwise.analysis.decisions import DecisionTable
from headwise.analysis.metrics import unit_load
from headwise.report.analysis import Analysis, write_analyses

ATTACK = "'\"--></title></style></script><script>alert(1)</script><img src=//x.example/y onerror=z>"


def analyse(kind="causal", system="mae", *, higher_is_better=True, **options):
    """An analysis, whose quality is how large the logits of each of 12 sequences are."""
    model = tiny_models.model(kind, system)
    batches = [tiny_models.inputs(kind, rows=4, time=9, seed=seed) for seed in range(3)]

    def quality():
        sizes = torch.cat([model(**batch).logits.square().mean((1, 2)) for batch in batches])
        return sizes if higher_is_better else 1e3 - sizes

    defaults = {"tokens": "input_ids", "quality": quality, "higher_is_better": higher_is_better}
    return hw.analyse(model, batches, **{**defaults, **options})


def visible(html):
    """What of a page is not folded."""
    innermost = re.compile(r"<details>(?:(?!<details>).)*?</details>", re.S)
    while innermost.search(html):
        html = innermost.sub("", html)
    return html


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_the_findings_are_those_of_the_tables(higher_is_better):
    analysis = analyse(higher_is_better=higher_is_better)
    table, findings = analysis.ablations, " ".join(analysis.findings)
    is_unit = [unit in options for unit, options in zip(table.unit, table.options, strict=True)]
    units = table[is_unit]
    costliest = units.loc[units.cost.idxmax()]
    (first,) = [text for text in analysis.findings if text.startswith("Worth most")]
    assert f"{costliest.unit} {costliest.options[costliest.unit]} ({costliest.place})" in first
    assert any(number.is_of(costliest.cost / table.attrs["value"]) for number in numbers(first))
    assert ("is lost" in first) == higher_is_better and ("rises by" in first) != higher_is_better
    needed = ((units.corrected_p < 0.05) & (units.cost > 0)).sum()
    assert f"Of the {len(units)} experts and heads, removed one at a time, {needed} are" in findings
    largest = max((unit_load(d) * d.weights.shape[1]).max() for d in analysis.decisions)
    assert f"does {largest:.1f} times an even share" in findings


@pytest.mark.parametrize("items", [2, 12])
def test_a_finding_says_that_it_may_be_chance(items):
    """Where the items are too few for a test, nothing is more than chance."""
    model = tiny_models.model("causal", "mae")
    batch = tiny_models.inputs("causal", rows=items)
    analysis = hw.analyse(model, [batch], quality=lambda: model(**batch).logits.mean((1, 2)) + 9)
    losses = [text for text in analysis.findings if "is lost" in text]
    if items == 12:  # a share of the score has an interval in percent
        assert all("may be chance [" in text and text.count("%") == 3 for text in losses)
        return
    assert losses and all("may be chance." in text for text in losses)  # and no interval
    assert any("cannot be said: fewer than 10 test items" in text for text in analysis.findings)


@pytest.mark.parametrize(
    ("kind", "system"),
    [("seq2seq", "mae"), ("seq2seq", "weighted"), ("causal", "moa"), ("causal", "tim")],
)
def test_the_page_is_short_whole_and_safe(kind, system, tmp_path):
    analysis = analyse(kind, system, names=lambda number: f"{ATTACK}{number}", name=ATTACK)
    page = Page(analysis.write(tmp_path))
    assert page.loads() == [] and page.handlers() == []
    assert "<script" not in page.html and "alert(1)" in page.text
    assert "nan" not in page.text.lower().split()
    assert len(re.sub(r"<[^>]*>", " ", visible(page.html)).split()) < 1200
    assert len(page.html) < 700_000


def test_a_table_has_all_digits(tmp_path):
    analysis = analyse("causal", "mae")
    analysis.write(tmp_path)
    tables = [pd.read_csv(file) for file in (tmp_path / "tables").iterdir()]
    (shown,) = [table for table in tables if "95% interval from" in table and "share" in table]
    np.testing.assert_allclose(shown["difference"], analysis.ablations["difference"].head(8))


def test_without_a_quality_nothing_is_ablated(tmp_path):
    unmeasured = analyse(quality=None, names=lambda number: f"word {number}")
    assert unmeasured.ablations is None and unmeasured.findings
    assert all(name.startswith("word ") for name in unmeasured.decisions[0].positions["token"])
    assert "What each part is worth" not in Page(unmeasured.write(tmp_path)).text
    assert analyse(level="none").ablations is None
    whole = analyse(level="model")
    assert {*whole.ablations["place"]} == {""} and whole.write(tmp_path).is_file()


def test_standard_attention_decides_nothing_and_stands_beside_a_model_that_does(tmp_path):
    plain, mixed = analyse(system="standard", name="plain"), analyse(name="mixed")
    assert plain.decisions == [] and len(plain.findings) == 2
    assert "decides nothing" in analyse(system="standard", quality=None).findings[0]
    page = Page(write_analyses([plain, mixed], tmp_path))
    assert "What goes to which unit: mixed" in page.text and ": plain" in page.text
    assert "What goes to which unit: plain" not in page.text
    assert len(page.saved()) == len(list((tmp_path / "tables").iterdir()))


@pytest.mark.parametrize("is_preferred", [True, False])
def test_only_tokens_that_a_unit_prefers_stand_beside_it(is_preferred, tmp_path):
    """Expert 0 is always chosen, and one of the two others by turns: the tokens do not matter."""
    tokens = [f"token {n // 10}" for n in range(200)]
    chosen = np.array([[0, 1 + n % 2] for n in range(200)])
    chosen[:10, 1] = 1 if is_preferred else chosen[:10, 1]
    weights = np.zeros((200, 3))
    np.put_along_axis(weights, chosen, 0.5, axis=1)
    rows = pd.DataFrame({"sequence": np.arange(200), "position": 0, "token": tokens})
    table = DecisionTable("path", "moa", "", 0, "expert", weights, chosen, rows, 200)
    page = Page(Analysis([table]).write(tmp_path))
    assert {*re.findall(r"token \d+", page.text)} == ({"token 0"} if is_preferred else set())
    assert ("no token that occurs at least five times" in page.text) != is_preferred


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": "ids"}, "'ids', which a batch lacks: it has input_ids"),
        ({"level": "all"}, "level"),
        ({"quality": lambda: torch.ones(3, 3)}, "quality has the shape"),
    ],
)
def test_what_is_wrong_is_said(options, message):
    with pytest.raises(ValueError, match=message):
        analyse(**options)
