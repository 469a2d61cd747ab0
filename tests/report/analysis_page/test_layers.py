"""What the page shows of how alike layers decide."""

import torch
from decided import Places, of_two, standing
from pages import shown

from headwise.analysis.decisions.layers import Layers
from headwise.analysis.decisions.record import RunAnalysis
from headwise.report.analysis_page.layers import layers_section
from headwise.report.svg import looks_of


def draws(*shape, seed):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def run_of(name, units=2, sites=("decoder_self",), level="loudness", layers=3):
    counted = Layers()
    observed = []
    for site in sites:
        made = [torch.softmax(4 * draws(3, 15, units, seed=seed), -1) for seed in range(layers)]
        described = standing(torch.zeros(3, 15).long(), levels={level: draws(3, 15, seed=9)})
        observed += Places(site, layers).observed(made, described)
    counted.add(observed)
    return RunAnalysis(name=name, words={}, sequences=3, layers=counted.result())


def test_two_units_have_both_matrices_and_a_curve():
    run = run_of("tiny")
    page = shown(layers_section, run)
    assert page.texts["h3"] == [
        "Correlation of the first unit, and of quantities at the positions",
        "How much the decisions say of a quantity",
    ]
    likeness, plain, level = [svg["aria-label"] for svg in page.all("svg")]
    (found,) = run.layers
    assert f"layer 1 and layer 0 {found.likeness[1][0]:.2f}" in likeness.replace("−", "-")
    assert f"loudness and layer 2 {found.first_unit[3][2]:.2f}" in plain.replace("−", "-")
    assert f"layer 2 {found.levels[0].shares[2]:.2f}." in level.replace("−", "-")
    first, other = [row for row in page.rows if row[0].strip() == "layer 2"]
    assert (len(first), len(other)) == (4, 5)
    assert first[3] == " 1.00"


def test_more_units_have_no_plain_correlation():
    page = shown(layers_section, run_of("tiny", units=3))
    assert page.texts["h3"] == ["How much the decisions say of a quantity"]
    assert len(page.all("svg")) == 2


def test_runs_and_stacks_stand_side_by_side():
    runs = run_of("one", sites=("encoder_self", "decoder_self", "decoder_cross")), run_of("<b>", 3)
    page = shown(layers_section, *runs)
    assert page.texts["figcaption"][:3] == ["one, encoder", "one, decoder", "<b>"]
    assert "b" not in page.texts
    (decoder,) = [s["aria-label"] for s in page.all("svg") if "Likeness of layers, one, decoder" in
                  str(s.get("aria-label"))]  # fmt: skip
    assert "cross 0 and self 0 1.00" in decoder  # they are made alike


def test_a_layer_alone_shows_what_it_says_of_a_quantity():
    page = shown(layers_section, run_of("tiny", units=3, layers=1))
    assert [svg["aria-label"][:34] for svg in page.all("svg")] == [
        "How much the decisions say of loud"
    ]


def test_what_does_not_vary_has_a_dash():
    counted = Layers()
    uniform = of_two(torch.full((2, 5), 0.5))
    counted.add(Places("encoder_self", 2).observed([uniform, of_two(draws(2, 5, seed=1))]))
    page = shown(
        layers_section, RunAnalysis(name="tiny", words={}, sequences=2, layers=counted.result())
    )
    assert page.row("layer 0") == ["layer 0", "–", "–"]
    assert page.row("layer 1") == ["layer 1", "–", "1.00"]


def test_nothing_is_shown_where_no_run_decides_anything():
    run = RunAnalysis(name="tiny", words={}, sequences=1)
    assert layers_section([run], looks_of(["tiny"])) is None
