"""`hw.analyse`: its findings are those of its tables, and its page is short, whole and safe."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from support import tiny_models
from support.pages import Page, numbers

import headwise as hw
from headwise.analysis.metrics import unit_load
from headwise.report.analysis import write_analyses

ATTACK = "'\"--></title></style></script><script>alert(1)</script><img src=//x.example/y onerror=z>"


def analysed(kind="causal", system="mae", *, higher_is_better=True, **options):
    """An analysis, whose quality is how large the logits of each of 12 sequences are."""
    model = tiny_models.model(kind, system)
    batches = [tiny_models.inputs(kind, rows=4, time=9, seed=seed) for seed in range(3)]

    def quality():
        size = [model(**batch).logits.square().mean((1, 2)) for batch in batches]
        return torch.cat(size) * (1 if higher_is_better else -1) + (0 if higher_is_better else 1e3)

    given = {"tokens": "input_ids", "quality": quality, "higher_is_better": higher_is_better}
    return hw.analyse(model, batches, **{**given, **options})


def visible(html):
    """What of a page is not folded."""
    before = ""
    while html != before:
        before, html = (
            html,
            re.sub(r"<details>(?:(?!<details>).)*?</details>", "", html, flags=re.S),
        )
    return html


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_the_findings_are_those_of_the_tables(higher_is_better):
    found = analysed(higher_is_better=higher_is_better)
    table, findings = found.ablations, " ".join(found.findings)
    units = table[
        [unit in options for unit, options in zip(table.unit, table.options, strict=True)]
    ]
    best = units.loc[units.cost.idxmax()]
    (first,) = [said for said in found.findings if said.startswith("Worth most")]
    assert f"{best.unit} {best.options[best.unit]} ({best.place})" in first
    assert any(number.is_of(best.cost / table.attrs["value"]) for number in numbers(first))
    assert ("is lost" in first) == higher_is_better and ("rises by" in first) != higher_is_better
    needed = ((units.corrected_p < 0.05) & (units.cost > 0)).sum()
    assert f"Of the {len(units)} experts and heads, removed one at a time, {needed} are" in findings
    largest = max((unit_load(d) * d.weights.shape[1]).max() for d in found.decisions)
    assert f"does {largest:.1f} times an even share" in findings


def test_a_finding_says_that_it_may_be_chance():
    """Where the items are too few for a test, nothing is more than chance."""
    model = tiny_models.model("causal", "mae")
    batch = tiny_models.inputs("causal", rows=2)
    found = hw.analyse(model, [batch], quality=lambda: model(**batch).logits.mean((1, 2)) + 9)
    lost = [said for said in found.findings if "is lost" in said]
    assert lost and all("may be chance." in said for said in lost)  # and no interval
    assert any("cannot be said: fewer than 10 test items" in said for said in found.findings)


@pytest.mark.parametrize(
    ("kind", "system"),
    [("seq2seq", "mae"), ("seq2seq", "weighted"), ("causal", "moa"), ("causal", "tim")],
)
def test_the_page_is_short_whole_and_safe(kind, system, tmp_path):
    found = analysed(kind, system, names=lambda number: f"{ATTACK}{number}", name=ATTACK)
    page = Page(found.write(tmp_path))
    assert page.loads() == [] and page.handlers() == []
    assert "<script" not in page.html and "alert(1)" in page.text
    assert "nan" not in page.text.lower().split()
    assert len(re.sub(r"<[^>]*>", " ", visible(page.html)).split()) < 1200
    assert len(page.html) < 700_000


@pytest.mark.parametrize("system", ["mae", "weighted"])
def test_tables_are_saved_beside_the_page(system, tmp_path):
    found = analysed("causal", system)
    found.write(tmp_path)
    files = [pd.read_csv(file) for file in sorted((tmp_path / "tables").iterdir())]
    (ablations,) = [table for table in files if "corrected_p" in table]
    expected = found.ablations
    assert len(ablations) == len(expected)
    np.testing.assert_allclose(ablations["difference"], expected["difference"])


def test_without_a_quality_nothing_is_ablated(tmp_path):
    found = analysed(quality=None, names=lambda number: f"word {number}")
    assert found.ablations is None and found.findings
    assert all(name.startswith("word ") for name in found.decisions[0].positions["token"])
    assert "What each part is worth" not in Page(found.write(tmp_path)).text
    assert analysed(level="none").ablations is None
    of_model = analysed(level="model")
    assert {*of_model.ablations["place"]} == {""} and of_model.write(tmp_path).is_file()


def test_standard_attention_decides_nothing_and_stands_beside_a_model_that_does(tmp_path):
    found = [analysed(system="standard", name="plain"), analysed(name="mixed")]
    assert found[0].decisions == [] and len(found[0].findings) == 2
    assert "decides nothing" in analysed(system="standard", quality=None).findings[0]
    page = Page(write_analyses(found, tmp_path))
    assert "What goes to which unit: mixed" in page.text and ": plain" in page.text
    assert "What goes to which unit: plain" not in page.text
    assert len(page.saved()) == len(list((tmp_path / "tables").iterdir()))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tokens": "ids"}, "'ids', which a batch lacks: it has input_ids"),
        ({"level": "all"}, "level"),
        ({"quality": lambda: torch.ones(3, 3)}, "quality has the shape"),
    ],
)
def test_what_is_wrong_is_said(options, said):
    with pytest.raises(ValueError, match=said):
        analysed(**options)
