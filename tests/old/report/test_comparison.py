"""The report: complete, safe to open, and whole or absent."""

import math
import re

import pytest
from pages import Page, diverge
from synthetic import KINDS, comparison, of_task, picture, png

from headwise.analysis.results import (
    ComparedPicture,
    compare_pictures,
    compare_samples,
)
from headwise.report.comparison import differences, intervals, learning_curves, render_report
from headwise.report.formatting import heading
from headwise.tasks.outcome import Picture, Sample


@pytest.fixture(scope="module")
def three() -> Page:
    return Page(render_report(comparison()))


def test_main_table_holds_the_numbers(three: Page) -> None:
    assert three.row("mae-7 experts of 7 of 8 heads, a gate per sentence")[1:] == [
        "1.55M", "41.6M", "1.06× 1.02–1.12", "2.050", "7.77", "27.3 [25.6, 29.1]",
        "+0.9 [+0.5, +1.3]", "< 0.001", "49.3 [47.6, 51.1]",
    ]  # fmt: skip
    assert three.row("standard")[-3:] == ["baseline", "–", "48.4 [46.6, 50.3]"]
    assert three.row("moa")[-3] == "+0.5 [−0.8, +1.9]"
    said = "with its 95% interval over test sentences alone"
    captions = three.texts["figcaption"]
    assert f"BLEU {said}" in captions and f"Difference to the baseline {said}" in captions


def test_figures_are_named_and_tables_have_scopes(three: Page) -> None:
    labels = [svg["aria-label"] for svg in three.all("svg") if "aria-hidden" not in svg]
    # Intervals, differences, two of learning, and entropy with three sites for each of two systems.
    assert len(labels) == 4 + 2 * 4
    assert "mae-7 27.3, 25.6 to 29.1" in labels[0]
    assert all(th["scope"] in ("col", "row") for th in three.all("th"))
    assert len(three.all("h1")) == 1


def test_ids_are_unique_and_references_lead_somewhere(three: Page) -> None:
    for _, attributes in three.tags:
        for key, value in attributes.items():
            if key in ("href", "xlink:href"):
                assert value[1:] in three.ids
            for name in re.findall(r"url\((.*?)\)", value or ""):
                assert name[1:] in three.ids


def test_seeds_give_means() -> None:
    made = comparison(seeds=3)
    page = Page(render_report(made))
    row = page.row("mae-7 experts of 7 of 8 heads, a gate per sentence")
    assert row[4:8] == [
        *("2.070 ± 0.020", "7.93 ± 0.16", "27.3 ± 0.1 [25.4, 29.2]"),
        "+0.9 * [+0.5, +1.3] p < 0.001",
    ]
    assert any("Scores and losses are means over seeds" in text for text in page.texts["li"])
    assert (
        "BLEU: mean with its 95% interval over seeds and test sentences together; small marks "
        "are the seeds" in page.texts["figcaption"]
    )
    runs = [row for row in page.rows if row[0].strip() == "moa" and len(row) == 9]
    assert [row[1].strip() for row in runs] == ["0", "1", "2"]


def test_a_single_system_has_no_comparison() -> None:
    page = Page(render_report(comparison(("standard",))))
    text = "".join(page.texts["body"])
    assert "ifference to the baseline" not in text and "significant" not in text
    assert "What the heads do" not in text
    assert len([svg for svg in page.all("svg") if "aria-label" in svg]) == 2


def test_a_diverged_first_seed_leaves_the_others_score_and_no_experts() -> None:
    made = comparison(seeds=2)
    diverge(made, system=1, run=0, step=10)
    page = Page(render_report(made))
    row = page.row("mae-7 experts of 7 of 8 heads, a gate per sentence 1 of 2 seeds diverged")
    # One run is left: its difference is one of runs, and has no p-value.
    assert row[6:8] == ["27.4 [25.6, 29.2]", "+1.0 [+0.6, +1.4]"]
    assert any("Not shown, because the run diverged: mae-7" in text for text in page.texts["p"])
    assert "moa" in page.texts["h3"]
    assert "mae-7" not in page.texts["h3"]


def test_a_comparison_where_all_diverged_still_reports() -> None:
    made = comparison()
    for system in range(3):
        diverge(made, system, run=0, step=10)
    page = Page(render_report(made))
    assert page.row("moa")[4:] == ["diverged", "–", "–", "–", "–"]  # no difference has a p-value
    assert "moa (diverged)" in [text.strip() for text in page.texts["li"]]
    assert "nan" not in "".join(page.texts["section"]).lower()


def test_runs_that_all_diverged_before_a_step_that_their_seeds_share() -> None:
    made = comparison(("standard",), seeds=2)
    for step, run in enumerate(made.systems[0].runs):
        run.validation_loss, run.history = math.nan, [{"step": step, "loss": 5.0}]
    assert learning_curves(made) is not None


def test_losses_that_explode_do_not_flatten_the_others() -> None:
    made = comparison(("standard",))
    for record in made.systems[0].runs[0].history:
        if record["step"] > 100:
            record.update(dict.fromkeys({"loss", "eval_loss"} & set(record), 1000000000.0))
    page = Page(render_report(made))
    assert "Validation loss, second half" not in page.texts["figcaption"]
    ticks = [float(text) for text in page.texts["text"] if re.fullmatch(r"[\d.]+", text)]
    assert max(ticks) <= 700  # the steps; losses end where they began


@pytest.mark.parametrize("kind", list(KINDS))
def test_other_tasks_in_their_own_words(kind: str) -> None:
    made = of_task(kind, ("standard", "tim"))
    page = Page(render_report(made))
    text = "".join(page.texts["body"])
    scores = made.systems[0].runs[0].scores
    said = f"{heading(scores[0].name)} with its 95% interval over test {made.item_name} alone"
    assert said in page.texts["figcaption"]
    assert f"Loss, {made.loss_name}" in page.texts["text"]
    is_text = kind == "language-modelling"
    assert ("erplexity" in text) == is_text
    assert not any(word in text for word in ("BLEU", "chrF", "translat", "sentence"))
    # A single stack needs no name.
    assert "Layers: share of each mechanism" in page.texts["figcaption"]
    assert "Encoder" not in text
    assert "Decoder" not in text
    assert len(page.row("standard", "0", "600")) == 6 + is_text + len(scores)


def test_figures_measured_during_training() -> None:
    made = comparison(("standard", "moa"), seeds=2)
    assert "Measured during training" not in Page(render_report(made)).texts["h3"]
    for system in made.systems:
        for run in system.runs:
            for record in run.history:
                if "eval_loss" in record:
                    record["specialisation"] = record["step"] / 1000
                    record["half_share"] = math.nan
    page = Page(render_report(made))
    assert "Measured during training" in page.texts["h3"]
    labels = [svg.get("aria-label") or "" for svg in page.all("svg")]
    assert (
        "Specialisation of each system over the steps of training. Last: standard 0.6; moa 0.6."
        in labels
    )
    assert not any("Half share" in label for label in labels)  # never a number


def test_samples_say_where_a_system_found_what_was_expected() -> None:
    made = comparison(("standard", "moa"))
    made.samples = made.samples[:1]
    made.samples[0].given = {"Sentence": "fine", "Label": "good"}
    made.samples[0].made = {"standard": "fine", "moa": "good"}
    page = Page(render_report(made))
    assert page.texts["dt"][:4] == ["Sentence", "Label", "standard", "moa"]
    assert page.texts["dd"][2:4] == ["fine", "good ✓ as the label"]


def test_pictures_of_systems_side_by_side() -> None:
    names = ("standard", "moa")
    made = comparison(names)
    same = ComparedPicture(title="Given", pngs=dict.fromkeys(names, png()))
    made.pictures = [picture("Map <1>", names), same]
    page = Page(render_report(made))
    assert "Pictures" in page.texts["h2"]
    images = page.all("img")
    assert [image["alt"] for image in images] == [
        "Map <1>: standard",
        "Map <1>: moa",
        "Given: all systems",
    ]
    sources = [*made.pictures[0].pngs.values(), png()]
    assert [image["src"] for image in images] == [f"data:image/png;base64,{s}" for s in sources]
    assert all(image["loading"] == "lazy" for image in images)
    # Of 40 pixels: enlarged, but not blurred.
    assert [(i["width"], i["height"], i.get("class")) for i in images[1:]] == [
        ("300", "150", None),
        ("200", "100", "pixels"),
    ]
    policy = next(m for m in page.all("meta") if "http-equiv" in m)
    assert "img-src data:" in (policy["content"] or "")


def test_a_caption_of_each_system_or_of_all() -> None:
    names = ("standard", "moa", "tim")
    made = comparison(names)
    made.pictures = [picture("Map", names)]
    assert made.pictures[0].captions["moa"] in Page(render_report(made)).texts["p"]
    made.pictures[0].captions["moa"] = "PESQ 1.9 → 2.1."
    page = Page(render_report(made))
    assert not any("Left the image" in text for text in page.texts["p"])
    assert "moaPESQ 1.9 → 2.1." in page.texts["figcaption"]
    assert "timLeft the image, right who wins each pixel." in page.texts["figcaption"]


def test_samples_and_pictures_are_put_side_by_side() -> None:
    def sample(text: str, made: str) -> Sample:
        return Sample(given={"Source": text}, made=made)

    samples = compare_samples(
        {"a": [sample("1", "x"), sample("2", "y")], "b": [sample("1", "x"), sample("2", "z")]}
    )
    assert [(s.given["Source"], s.made) for s in samples] == [
        ("2", {"a": "y", "b": "z"}),
        ("1", {"a": "x", "b": "x"}),
    ]
    one, two = (Picture(title=title, caption="c", png=png()) for title in ("one", "two"))
    pictures = compare_pictures({"a": [one], "b": [two, one]})
    assert [(p.title, p.captions, list(p.pngs)) for p in pictures] == [
        ("one", {"a": "c", "b": "c"}, ["a", "b"]),
        ("two", {"b": "c"}, ["b"]),
    ]
    twice = compare_pictures({"a": [one, one], "b": [one]})
    assert [list(p.pngs) for p in twice] == [["a", "b"], ["a"]]


def test_differences_are_drawn_with_zero() -> None:
    made = comparison(seeds=3)
    svg = differences(made)
    assert svg is not None
    assert (
        "Differences to the baseline with their 95% intervals: mae-7 +0.9, +0.5 to +1.3; moa +0.5,"
    ) in svg
    # Zero is among the numbers of the axis, and within what is drawn, even if no interval holds it.
    for system in made.systems[1:]:
        assert system.difference is not None
        system.difference.low, system.difference.value, system.difference.high = 4.0, 5.0, 6.0
    svg = differences(made) or ""
    assert "0" in Page(svg).texts["text"]
    assert differences(comparison(("standard",))) is None


def test_the_figure_of_scores_has_a_mark_for_each_seed_beside_the_mean() -> None:
    def marks(seeds: int) -> int:
        svg = intervals(comparison(seeds=seeds))
        assert svg is not None
        return len(Page(svg).all("use"))

    # A mark for each seed of three systems, besides the means, the ends and the ticks.
    assert marks(5) - marks(3) == 3 * 2


def test_colours_of_figures_follow_the_page(three: Page) -> None:
    defined = set(re.findall(r"(--[\w-]+):", three.texts["style"][0]))
    used = {
        name
        for _, attributes in three.tags
        for name in re.findall(r"var\((--[\w-]+)\)", attributes.get("style") or "")
    }
    assert {"--series-0", "--series-1", "--series-2", "--heat", "--muted", "--line"} <= used
    assert used <= defined
    fixed = [
        attributes["style"]
        for tag, attributes in three.tags
        if re.search(r"#[0-9a-f]{3,6}", attributes.get("style") or "") and "url(" not in tag
    ]
    assert [style for style in fixed if "url(#" not in style] == []
