"""What the report shows of the heads of each system, and of what training recorded of them."""

from pages import Page, diverge
from synthetic import ALL, comparison

from headwise.report.comparison import render_report


def test_every_kind_of_decision_in_its_own_words() -> None:
    made = comparison(ALL, layers=3)
    page = Page(render_report(made))
    assert page.texts["h3"][:5] == ["weighted", "agreement", "mae-7", "tim", "moa"]
    captions = page.texts["figcaption"]
    assert captions.count("Encoder self-attention: share of each branch") == 1
    assert captions.count("Encoder self-attention: share of each head") == 1
    assert captions.count("Encoder self-attention: share of each expert") == 2
    assert captions.count("Decoder layers: share of each mechanism") == 1
    axes = page.texts["text"]
    assert [axes.count(name) for name in ("Branch", "Head", "Expert", "Mechanism")] == [2, 1, 6, 2]
    numbers = page.row("Encoder layers", "0")
    record = made.systems[4].runs[0].attention[0]
    percentiles = [f"{value:.3f}" for value in record.entropy_percentiles.values()]
    assert numbers[2:8] == ["2", f"{record.entropy:.3f}", "–", *percentiles]
    # A branch's weights are one row: percentiles of its entropy would say nothing.
    assert len(page.row("Encoder self-attention", "0")) == 8


def test_weights_of_branches_over_training() -> None:
    made = comparison(("standard", "weighted"), layers=3)
    page = Page(render_report(made))
    assert page.texts["h4"] == ["Encoder self-attention", "Decoder cross-attention"]
    labels = [svg["aria-label"] or "" for svg in page.all("svg") if "aria-label" in svg]
    found = [label for label in labels if "κ ends between" in label]
    assert [label.split(":")[0] for label in found] == [
        f"{site}, layer {layer}" for site in page.texts["h4"] for layer in range(3)
    ]
    last = made.systems[1].runs[0].courses[0].values["kappa"][-1]
    assert f"{max(last):.3f} (branch {last.index(max(last))})" in found[0]
    # Nothing where only the start was recorded, or where the run diverged.
    for course in made.systems[1].runs[0].courses:
        course.steps, course.values = [0], {"kappa": [last], "alpha": [last]}
    assert "h4" not in Page(render_report(made)).texts
    diverge(made, system=1, run=0, step=10)
    assert "h4" not in Page(render_report(made)).texts


def test_a_long_record_of_branches_is_drawn_with_few_points() -> None:
    made = comparison(("weighted",), layers=1)
    course = made.systems[0].runs[0].courses[0]
    short = len(render_report(made))
    course.steps = list(range(5000))
    rows = [[i % 3 / 10, 0.3, 0.7 - i % 3 / 10] for i in range(5000)]
    course.values = {"kappa": rows, "alpha": rows}
    assert len(render_report(made)) < 1.5 * short
