"""The sections on the likeness of heads and of layers show what the records say."""

import pytest
import torch
from decided import Places, of_two, standing
from pages import Page, section_of, shown

from headwise.analysis.decisions.layers import Layers
from headwise.analysis.decisions.likeness import (
    HeadsLikeness,
    ModelLikeness,
    SystemLikeness,
)
from headwise.analysis.decisions.observing import Where
from headwise.analysis.decisions.record import RunAnalysis

OUTPUTS = [[1.0, 0.25, None], [0.25, 1.0, -0.0625], [None, -0.0625, None]]
ATTENTION = [[1.0, 0.5, 0.75], [0.5, 1.0, 0.125], [0.75, 0.125, 1.0]]


def module(layer, *, site="encoder_self", system="standard", outputs=0.5, **given):
    path = f"encoder.layers.{layer}.self_attention"
    where = Where(path=path, site=site, layer=layer, system=system, whole_layer=False)
    return HeadsLikeness(
        where=where,
        **{
            "unit": "head",
            "positions": 1234,
            "outputs": OUTPUTS,
            "queries": 1200,
            "attention": ATTENTION,
            "mean_outputs": outputs,
            "mean_attention": 0.625,
            "most_alike_outputs": (0, 1),
            "most_alike_attention": (0, 2),
            **given,
        },
    )


def run(name, *modules, systems=("standard",)):
    means = [SystemLikeness(system=s, modules=2, outputs=0.375, attention=None) for s in systems]
    likeness = ModelLikeness(systems=means, modules=list(modules)) if modules else None
    return RunAnalysis(name=name, words={}, sequences=7, likeness=likeness)


def page_of(*runs):
    _, body = section_of("likeness", *runs)
    return body, Page(body)


def test_one_run_shows_its_numbers():
    body, page = page_of(run("one", module(0), module(1, outputs=None)))
    assert page.row("one") == ["one", "2", "0.38", "–"]
    assert page.row("Encoder self-attention, layer 0") == [
        "Encoder self-attention, layer 0", "standard", "3", "1,234", "0.50", "0 and 1 (0.25)",
        "0.62", "0 and 2 (0.75)",
    ]  # fmt: skip
    assert page.row("Encoder self-attention, layer 1")[4] == "–"
    drawn = [label for svg in page.all("svg") if (label := svg.get("aria-label"))]
    assert drawn[0] == "Encoder self-attention: what heads say: one layer 0 0.50."
    assert any("most alike: in what heads say 0 and 1 (0.25)" in label for label in drawn)
    numbers = [text.strip() for text in page.texts["text"]]
    for text in (".25", "−.06", "–", ".50", ".75", ".12"):
        assert text in numbers
    assert "legend" not in body


@pytest.mark.parametrize("heads", [3, 40])
def test_several_runs_stand_side_by_side(heads):
    matrix = [[1.0 if i == j else 0.3 for j in range(heads)] for i in range(heads)]
    sizes = {"outputs": 0.3, "attention": matrix}
    first = module(0, **sizes).model_copy(update={"outputs": matrix})
    second = module(0, site="decoder_cross", system="other", mean_attention=None)
    body, page = page_of(
        run("a <b>", first), run("nothing"), run("b", second, systems=("standard", "other"))
    )
    assert "a &lt;b&gt;" in body and "a <b>" not in body
    assert page.row("b", "other") == ["b", "other", "2", "0.38", "–"]
    assert page.row("Encoder self-attention, layer 0")[2] == str(heads)
    titles = page.texts["figcaption"]
    assert [t for t in titles if "cross" in t and "look at" in t] == []  # nothing to draw
    assert [t for t in titles if "cross" in t and "say" in t]
    assert len(body) < 400_000


# How alike layers decide.


def draws(*shape, seed):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def layers_run(name, units=2, sites=("decoder_self",), level="loudness", layers=3):
    counted = Layers()
    observed = []
    for site in sites:
        made = [torch.softmax(4 * draws(3, 15, units, seed=seed), -1) for seed in range(layers)]
        described = standing(torch.zeros(3, 15).long(), levels={level: draws(3, 15, seed=9)})
        observed += Places(site, layers).observed(made, described)
    counted.add(observed)
    return RunAnalysis(name=name, words={}, sequences=3, layers=counted.result())


def test_two_units_have_both_matrices_and_a_curve():
    run = layers_run("tiny")
    page = shown("layers", run)
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
    assert [len(row) for row in page.rows if row[0] == ""] == [4, 5]  # their headers
    assert first[3] == " 1.00"


def test_runs_and_stacks_stand_side_by_side():
    runs = (
        layers_run("one", sites=("encoder_self", "decoder_self", "decoder_cross")),
        layers_run("<b>", 3),
    )
    page = shown("layers", *runs)
    assert page.texts["figcaption"][:3] == ["one, encoder", "one, decoder", "<b>"]
    assert "b" not in page.texts
    (decoder,) = [s["aria-label"] for s in page.all("svg") if "Likeness of layers, one, decoder" in
                  str(s.get("aria-label"))]  # fmt: skip
    assert "cross 0 and self 0 1.00" in decoder  # they are made alike


def test_what_does_not_vary_has_a_dash():
    counted = Layers()
    uniform = of_two(torch.full((2, 5), 0.5))
    counted.add(Places("encoder_self", 2).observed([uniform, of_two(draws(2, 5, seed=1))]))
    page = shown("layers", RunAnalysis(name="tiny", words={}, sequences=2, layers=counted.result()))
    assert page.row("layer 0") == ["layer 0", "–", "–"]
    assert page.row("layer 1") == ["layer 1", "–", "1.00"]
