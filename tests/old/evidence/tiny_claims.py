"""Claims of the tests' own, and a folder with data so small that a run of them takes a second."""

from pathlib import Path

import numerals
import pytest
import yaml

from evidence import claims
from evidence.experiments import Places

PAPER = """
paper: The tests' own paper
link: https://example.org
system: The tests' system
headline: S1
claims:
  S1:
    says: Gates make it better.
    where: table 1
    printed: "2 against 1"
    holds_if: The score is significantly higher.
    quantity: {kind: score}
    tests: [{of: mae, holds: better, than: standard, margin: 5.0}]
    experiment: counting
  L1:
    says: The loss rises without an expert, and without equal gates.
    where: table 2
    printed: none
    holds_if: It does.
    quantity: {kind: loss}
    tests:
      - of: {system: mae, without: ["mae=without-expert,expert=0", "mae=without-expert,expert=1"]}
        holds: better
        than: {system: mae, without: [mae=random]}
        margin: 0.001
      - {of: mae, holds: not worse, than: {system: mae, ablated: mae=uniform}, margin: 0.5}
    experiment: counting
  E1:
    says: The gates are undecided.
    where: figure 1
    printed: none
    holds_if: The entropy is high.
    quantity: {kind: entropy}
    tests: [{of: mae, at_least: 1.0}]
    experiment: counting
  N1:
    says: It is there in fewer steps.
    where: section 1
    printed: none
    holds_if: It is.
    otherwise: the schedule ends at zero
  T1:
    says: A step takes as long.
    where: section 2
    printed: none
    holds_if: It does.
    quantity: {kind: time of a step}
    tests: [{of: mae, at_most: 1000.0}]
    experiment: counting
  C1:
    says: It is better where it is above chance.
    where: table 4
    printed: none
    holds_if: The score is higher.
    otherwise: neither is above chance
    entry: [{of: mae, at_least: 99.0}]
    quantity: {kind: score}
    tests: [{of: mae, holds: better, than: standard, margin: 0.1}]
    experiment: counting
  F1:
    says: The parameters are as printed.
    where: table 3
    printed: all
    holds_if: They agree.
    quantity: {kind: figures, name: Zhang et al. 2022, what: MACs}
"""
SCALES = """
laptop:
  counting: {recipe: counting, data: numerals}
  chosen:
    recipe: counting
    tune:
      - {key: training.learning_rate, values: [1.0e-4, 1.0e-2], factor: 10}
      - {key: model.dropout, values: [0.1, 0.2, 0.3]}
gpu:
paper:
"""
QUESTIONS = """
laptop:
  length:
    asks: Does more training help?
    claims: [S1]
    experiment: counting
    systems: [standard, mae]
    over: training.max_steps
    at: [3, 6]
    quantity: loss
    margin: 100.0
  rate:
    asks: Is it the learning rate?
    experiment: chosen
    systems: [standard, mae]
    over: training.learning_rate
    at: [1.0e-3, 1.0e-2]
    quantity: score
    margin: 1.0
  gates:
    asks: Is it the number of heads that are dropped?
    experiment: counting
    systems: [standard, mae]
    over: systems.mae.model.attention.dropped_heads
    at: [1, 2]
    own: 1
    changes: [systems.mae.model.attention.system=mae]
    learning_rate: chosen at every point
    quantity: loss
    margin: 1.0
"""


def write_catalogue(folder: Path) -> None:
    """Writes the paper, the scales and a recipe as the package has them."""
    (folder / "papers").mkdir(parents=True)
    (folder / "recipes").mkdir()
    (folder / "papers" / "1-tests.yaml").write_text(PAPER, encoding="utf-8")
    (folder / "questions.yaml").write_text(QUESTIONS, encoding="utf-8")
    (folder / "scales.yaml").write_text(SCALES, encoding="utf-8")
    recipe = yaml.safe_load(numerals.RECIPE.format(folder="{data}"))
    text = yaml.safe_dump(recipe, sort_keys=False)
    (folder / "recipes" / "counting.yaml").write_text(text, encoding="utf-8")


def places_in(folder: Path) -> Places:
    """Returns folders with the data of the tests, and none with results."""
    (folder / "data").mkdir()
    numerals.write_recipe(folder / "data")
    return Places(folder / "data", folder / "runs", folder / "results")


def use(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claims, "CATALOGUE", folder)
