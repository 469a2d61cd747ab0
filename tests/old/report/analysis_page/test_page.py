"""The sections on entropy, load and tokens: of one model, of several, and of odd ones."""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from decided import Choosing, Leading, batch, place, random_weights, standing
from pages import Page

import headwise as hw
from headwise.analysis.decisions.entropy import Entropy
from headwise.analysis.decisions.load import Load
from headwise.analysis.decisions.observing import Observed
from headwise.analysis.decisions.record import AnalysisRecord, RunAnalysis
from headwise.analysis.decisions.tokens import Tokens
from headwise.heads.system import Routing, Words
from headwise.report.analysis_page.page import (
    findings,
    render_analysis,
    sections_of,
    write_analysis,
)
from headwise.report.svg import with_own_ids

TOKENS = torch.arange(8 * 40).view(8, 40) % 7


def analysis(name: str, *batches: list[Observed], words: Words | None = None) -> RunAnalysis:
    entropy, load, tokens = Entropy(), Load(), Tokens()
    for observed in batches:
        for question in (entropy, load, tokens):
            question.add(observed)
    kinds = {f"decided:{kind.__name__}": words or kind.words for kind in (Leading, Choosing)}
    return RunAnalysis(
        name=name,
        words=kinds,
        sequences=8,
        entropy=entropy.result(),
        load=load.result(),
        tokens=tokens.result(),
    )


SHAPES = {"encoder_self": (8,), "decoder_self": (8, 40), "decoder_cross": (8, 40)}


def deciding(seed: int, units: int = 4, sites: Sequence[str] = ("encoder_self",)) -> list[Observed]:
    """Two layers of each site; in the encoder one decision holds for a sequence."""
    decided = {
        place(Leading, layer, site): Routing(
            random_weights(*SHAPES[site], units, seed=seed + layer)
        )
        for site in sites
        for layer in range(2)
    }
    return batch(decided, standing(TOKENS, {"half": (TOKENS > 3).long()}))


def page(*runs: RunAnalysis, of: Sequence[str] = ("entropy", "load", "tokens")) -> tuple[Page, str]:
    """Sections, and their HTML."""
    html = with_own_ids("".join(body for _, _, body in sections_of(runs, of)))
    return Page(html), html


def test_one_model_shows_each_site_and_needs_no_legend() -> None:
    run = analysis("mine", deciding(0, sites=list(SHAPES)))
    found, _ = page(run)
    captions = found.texts["figcaption"]
    assert [text for text in captions if text.endswith("by layer")] == [
        f"{site}: by layer"
        for site in (
            "Encoder self-attention",
            "Decoder self-attention",
            "Decoder cross-attention",
        )
    ]
    # A sequence that decides for itself has no position in it.
    assert [text for text in captions if text.endswith("by position")] == [
        "Decoder self-attention: by position",
        "Decoder cross-attention: by position",
    ]
    assert sum("share of each expert" in text for text in captions) == 3
    assert sum("4 experts, sorted" in text for text in captions) == 3
    assert found.all("ul")[0].get("class") != "legend"  # one run needs none
    assert run.entropy is not None
    spread = run.entropy.models[0].spread
    row = found.row("mine", f"{spread.mean.value:.3f}")
    assert row[3:5] == [f"{math.log(4):.3f}", f"{spread.deviation:.3f}"]
    assert found.row("Decoder cross-attention", "1", "each position")
    assert found.row("Encoder self-attention", "1", "each sequence")
    balance = sum(record.balance for record in run.load) / 6
    assert found.row("mine", f"{sum(r.share.variation for r in run.load) / 6:.3f}")[-1] == (
        f"{balance:.3f}"
    )
    leads = run.load[0].leads
    assert leads.errors is not None
    assert found.row("leads")[1] == f"{100 * leads.shares[0]:.1f} ± {100 * leads.errors[0]:.1f}"
    # Of the first layer the tokens are named; all tables are folded.
    shown = [text for text in found.texts["h3"] if ": by " in text]
    assert shown == ["Encoder self-attention, layer 0: by token"]
    assert sum(": by " in text for text in found.texts["summary"]) == 12


def test_the_numbers_of_tokens_are_those_of_the_record() -> None:
    units = (TOKENS != 0).long()
    run = analysis("mine", batch({place(): Routing(torch.eye(2)[units])}, standing(TOKENS)))
    leader = run.tokens[0].units[0].leading[0]
    found, _ = page(run)
    name, pmi = found.row(f"t0 {leader.occurrences} of {leader.occurrences}")
    assert name.startswith("t0")
    assert pmi == f"+{leader.pmi:.2f} +{leader.low:.2f} to +{leader.high:.2f}"


def test_the_share_of_a_unit_is_of_choices_where_each_position_makes_several() -> None:
    weights = random_weights(8, 40, 4)
    for indices, of in ((weights.topk(2).indices, "choices"), (None, "occurrences")):
        run = analysis("mine", batch({place(): Routing(weights, indices)}, standing(TOKENS)))
        _, html = page(run)
        assert f"{100 * run.tokens[0].units[0].share:.1f}% of all {of};" in html


def test_several_models_are_compared_with_the_last_of_their_kind() -> None:
    first, last = analysis("first", deciding(0)), analysis("last", deciding(5))
    other = analysis(
        "other", batch({place(Choosing): Routing(random_weights(8, 40, 4))}, standing(TOKENS))
    )
    found, _ = page(first, last, other)
    heads = [text for text in found.texts["th"] if text.startswith("Difference")]
    assert heads == ["Difference to last with its 95% interval"]
    assert first.entropy is not None and last.entropy is not None
    values = [run.entropy.models[0].spread.mean.value for run in (first, last)]
    cell = found.row("first", f"{values[0]:.3f}")[-1]
    assert cell.startswith(f"{values[0] - values[1]:+.3f}".replace("-", "−"))
    assert cell.count("\N{NO-BREAK SPACE}") == 3
    assert found.row("last", f"{values[1]:.3f}")[-1] == "reference"
    legends = [items for items in found.all("ul") if items.get("class") == "legend"]
    assert len(legends) == 2  # of entropy and load; tokens are in tables
    assert "Experts of decided:Leading" in found.texts["h3"]
    assert any(text.startswith("first: Self-attention") for text in found.texts["figcaption"])
    # Units of another number are not comparable.
    found, _ = page(analysis("wide", deciding(0, units=6)), last, of=["entropy"])
    assert [row[-1].strip() for row in found.rows if "wide" in row[0] and len(row) == 10] == ["–"]


def test_the_lowest_entropies_are_a_line_of_their_own_where_the_words_say_so() -> None:
    runs = [analysis("mine", deciding(0), words=Words(shows_lowest=is_so)) for is_so in (0, 1)]
    plain, lowest = (page(run, of=["entropy"])[1].count("<path") for run in runs)
    assert lowest == plain + 1


def test_a_decision_for_everything() -> None:
    routing = Routing(torch.tensor([0.5, 0.25, 0.25]))
    run = analysis("mine", batch({place(): routing}, standing(TOKENS)))
    found, _ = page(run)
    assert found.row("Self-attention", "0", "all positions and sequences")[4] == "–"
    assert sections_of([run], ["tokens"]) == []


def test_a_run_that_diverged_is_drawn_all_the_same() -> None:
    routing = Routing(torch.full((8, 40, 3), math.nan))
    run = analysis("mine", batch({place(): routing}, standing(TOKENS)))
    again = RunAnalysis.model_validate(json.loads(run.model_dump_json()))
    found, _ = page(again, analysis("sound", deciding(0)))
    assert found.row("mine", "nan")


def test_numbers_that_are_not_finite_are_null_in_the_file(tmp_path: Path) -> None:
    routing = Routing(torch.full((8, 40, 3), math.nan))
    write_analysis(tmp_path, [analysis("mine", batch({place(): routing}, standing(TOKENS)))], "")
    text = (tmp_path / "analysis.json").read_text(encoding="utf-8")
    record = json.loads(text, parse_constant=pytest.fail)
    assert record["runs"][0]["entropy"]["models"][0]["spread"]["deviation"] is None


def test_the_page_has_three_findings_on_top_and_its_tables_folded() -> None:
    model = hw.CausalLM(
        hw.CausalLMConfig(
            vocab_size=9, embed_dim=8, num_heads=2, ffn_dim=8, layers=1, attention="mae"
        )
    )
    ids = torch.randint(9, (8, 20))

    def quality() -> torch.Tensor:
        with torch.no_grad():
            return model(input_ids=ids).logits.square().mean((1, 2))

    found = hw.Analysis(model, [{"input_ids": ids}], tokens="input_ids", quality=quality).record
    said = findings(found)
    assert [words.split()[1] for words in said] == ["costliest", "busiest", "entropy"]
    record = AnalysisRecord(title="one", part="p", runs=[found], findings=said)
    html = render_analysis(record)
    page = Page(html)
    assert [text for text in page.texts["li"] if text in said] == said
    assert html.index("The costliest") < html.index("<section")
    # Every table is in a part that is unfolded by a click.
    outside = re.sub(r"<details>.*?</details>", "", html, flags=re.DOTALL)
    assert "<table" not in outside and html.count("<table") > 5
    links = [a["href"] for a in page.all("a")]
    assert links == [f"#{h2['id']}" for h2 in page.all("h2")]
