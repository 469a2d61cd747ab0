"""The figures of scores and of differences, each with a mark for every seed or with zero."""

from pages import Page
from synthetic import comparison

from headwise.report.comparison_figures import differences, intervals


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
