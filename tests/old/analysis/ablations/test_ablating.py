"""What ablations cost, of models in which it is known, and how the results are kept and tested."""

import copy
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import tiny
import tiny_tasks
import torch
from torch import nn

import headwise as hw
from headwise.analysis.ablations.ablating import analyse_ablations, weights_digest
from headwise.analysis.ablations.declared import declared_ablations
from headwise.analysis.ablations.quality import Quality
from headwise.analysis.ablations.results import AblationAnalysis
from headwise.analysis.statistics.estimates import holm
from headwise.models.evaluating import validation_loss
from headwise.models.sites import attention_sites
from headwise.recipes import load_recipe
from headwise.recipes.catalogue import task_class

DIM, HEADS, ITEMS = 16, 4, 60


def model_of(system=hw.MultiHeadAttention, layers=1, **options):
    torch.manual_seed(0)
    made = nn.ModuleDict({f"layer{i}": system(DIM, HEADS, **options) for i in range(layers)})
    return made.double().eval()


def outputs(model):
    """Of the layers, each of which reads the same 60 sequences."""
    x = torch.randn(ITEMS, 3, DIM, generator=torch.Generator().manual_seed(1)).double()
    return torch.stack([layer(x).output for layer in model.values()])  # (layers, items, time, dim)


def nearness(model):
    """Quality: how near the outputs of each item are to those without ablation; 0 is equal."""
    with torch.no_grad():
        own = outputs(model)
    return lambda: -(outputs(model) - own).square().mean((0, 2, 3)).numpy()


@torch.no_grad()
def let_heads_count(layer, *weights):
    """Scales what each head adds to the output."""
    layer.out_proj.bias.zero_()
    by_head = layer.out_proj.weight.view(DIM, HEADS, -1)
    by_head.mul_(torch.tensor(weights, dtype=by_head.dtype).view(1, -1, 1))


def by_head(analysis):
    return {result.number: result for result in analysis.results}


# What is known


def test_heads_rank_by_what_they_are_worth_and_one_that_does_nothing_costs_nothing():
    model = model_of()
    let_heads_count(model["layer0"], 0.1, 2.0, 0.0, 0.5)
    found = analyse_ablations(model, Quality.of_numbers(nearness(model)))
    assert [result.number for result in found.results] == [1, 3, 0, 2]
    assert found.results[0].where.path == "layer0" and found.results[0].score.significant
    nothing = by_head(found)[2].score
    assert (nothing.cost, nothing.difference, nothing.low, nothing.high) == (0.0, 0.0, 0.0, 0.0)
    assert nothing.p_value == 1.0 and not nothing.significant and nothing.detectable is None
    assert found.value == 0.0 and found.items == ITEMS and found.loss is None


@pytest.mark.parametrize("given", [torch.tensor([1.0, 3.0]).bfloat16(), torch.ones(2) * 2])
def test_quality_may_be_any_tensor(given):
    measured = given.requires_grad_()
    outcome = Quality.of_numbers(lambda: measured).evaluate()
    assert outcome.scores[0].value == 2.0


def test_a_head_on_which_everything_depends():
    model = model_of(layers=2)
    let_heads_count(model["layer1"], 0.0, 0.0, 0.0, 1.0)
    signs = outputs(model)[1].detach() > 0

    def right():
        return ((outputs(model)[1] > 0) == signs).all(-1).all(-1).double().numpy()

    found = analyse_ablations(model, Quality.of_numbers(right))
    first, *others = found.results
    assert (first.where.path, first.number, found.value) == ("layer1", 3, 1.0)
    assert first.score.value == 0.0 and first.score.cost == 1.0
    # Every item has changed alike: the sign test.
    assert first.score.p_value == 2 * 0.5**ITEMS and (first.score.low, first.score.high) == (-1, -1)
    assert {other.score.cost for other in others} == {0.0} and len(others) == 7


# Statistics


def test_p_values_are_corrected_over_the_table_by_holm():
    model = model_of(layers=3)
    near = nearness(model)
    noise = iter(range(1000))

    def noisy():
        draws = np.random.default_rng(next(noise)).normal(size=ITEMS)
        return near() + 0.3 * draws

    found = analyse_ablations(model, Quality.of_numbers(noisy))
    scores = [result.score for result in found.results]
    assert [s.corrected_p_value for s in scores] == holm([s.p_value for s in scores])
    assert len(scores) == 12 and any(s.p_value < s.corrected_p_value for s in scores)
    assert all(s.low < s.difference < s.high and s.detectable > 0 for s in scores)
    # Twelve comparisons without a true difference.
    assert not any(s.significant for s in scores)


def test_few_items_and_numbers_that_are_none_have_no_test():
    model = model_of()
    near = nearness(model)
    few = analyse_ablations(model, Quality.of_numbers(lambda: near()[:5]))
    assert all(r.score.p_value is None and r.score.cost > 0 for r in few.results)
    calls = iter(range(100))
    broken = Quality.of_numbers(lambda: near() * (float("nan") if next(calls) == 2 else 1.0))
    found = analyse_ablations(model, broken)
    assert np.isnan(found.results[-1].score.cost) and found.results[-1].number == 1
    assert all(result.score.p_value is not None for result in found.results[:-1])
    restored = AblationAnalysis.model_validate_json(found.model_dump_json())
    assert restored.results[0] == found.results[0]


def test_random_ablations_are_means_over_draws():
    model = model_of(hw.MixtureOfAttentiveExperts, layers=2, gate_init="xavier")
    near = nearness(model)
    measured = []

    def quality():
        measured.append(near())
        return measured[-1]

    found = analyse_ablations(model, Quality.of_numbers(quality), level="model")
    (random,) = [result for result in found.results if result.ablation == "random"]
    assert random.draws == 5
    measures = [rows.mean() for rows in measured]
    drawn = [measures[i : i + 5] for i in range(len(measures) - 4)]
    (own,) = [of for of in drawn if np.mean(of) == pytest.approx(random.score.value)]
    assert len({round(value, 12) for value in own}) > 1  # not the same draw five times


# Keeping


class Counted:
    """A quality that counts how often it was measured, and stops when told to."""

    def __init__(self, model, stop_at=None):
        self.near, self.calls, self.stop_at = nearness(model), 0, stop_at

    def __call__(self):
        if self.calls == self.stop_at:
            raise KeyboardInterrupt
        self.calls += 1
        return self.near()


def test_an_analysis_that_was_stopped_evaluates_nothing_twice(tmp_path):
    model = model_of()
    whole = analyse_ablations(model, Quality.of_numbers(nearness(model)))
    first = Counted(model, stop_at=3)
    with pytest.raises(KeyboardInterrupt):
        analyse_ablations(model, Quality.of_numbers(first), folder=tmp_path)
    assert all(place.module.ablation is None for place in attention_sites(model))
    second, seen = Counted(model), []
    found = analyse_ablations(
        model,
        Quality.of_numbers(second),
        folder=tmp_path,
        progress=lambda done, total, name: seen.append((done, total)),
    )
    assert first.calls + second.calls == 1 + HEADS
    assert found == whole
    assert seen == [(i, 1 + HEADS) for i in range(2 + HEADS)]
    third = Counted(model, stop_at=0)
    assert analyse_ablations(model, Quality.of_numbers(third), folder=tmp_path) == whole
    # A file that cannot be read counts as none.
    for path in tmp_path.rglob("*.json"):
        path.write_text("{")
    again = Counted(model)
    assert analyse_ablations(model, Quality.of_numbers(again), folder=tmp_path) == whole
    assert again.calls == 1 + HEADS


def test_what_is_kept_of_another_model_or_evaluation_is_not_used(tmp_path):
    model = model_of()

    def calls(**determined_by):
        counted = Counted(model)
        quality = replace(Quality.of_numbers(counted), determined_by=determined_by)
        analyse_ablations(model, quality, folder=tmp_path)
        return counted.calls

    assert [calls(beam=4), calls(beam=4), calls(beam=5)] == [1 + HEADS, 0, 1 + HEADS]
    before = weights_digest(model)
    with torch.no_grad():
        model["layer0"].v_proj.bias[0] += 1e-9
    assert weights_digest(model) != before
    assert calls(beam=4) == 1 + HEADS


# Declarations


def test_levels_take_more_and_more():
    model = model_of(hw.MixtureOfAttentiveExperts, layers=2)
    levels = {
        level: [str(ablation) for ablation in declared_ablations(model, level)]
        for level in ("none", "model", "units", "all")
    }
    assert analyse_ablations(model, Quality.of_numbers(nearness(model)), level="none") is None
    assert levels["none"] == []
    assert len(levels["model"]) == 5  # and not `mixture`, which changes nothing
    assert len(levels["units"]) == 5 + 2 * (4 + 4)
    assert len(levels["all"]) == 5 + 2 * 2 * (4 + 4)
    assert "mae=without-expert, expert=3 at layer1" in levels["units"]
    with pytest.raises(ValueError, match="level is 'unit', expected one of none, model, units"):
        declared_ablations(model, "unit")


def test_values_fit_all_systems_of_a_kind():
    torch.manual_seed(0)
    model = nn.ModuleList(hw.MixtureOfAttentionHeads(8, 6, k, 4) for k in (4, 3))
    tried = [a.options for a in declared_ablations(model, "model") if a.name == "fewer-experts"]
    assert tried == [{"top_k": 1}, {"top_k": 2}]
    units = [a for a in declared_ablations(model) if a.unit == "expert"]
    assert len(units) == 2 * 6


def test_what_a_system_refuses_is_left_out():
    layer = hw.IndependentMechanismsLayer(12, 6, 24, 3, competition=False)
    names = {ablation.name for ablation in declared_ablations(nn.ModuleList([layer]), "all")}
    assert names == {"without-mechanism", "only-mechanism"}
    assert declared_ablations(nn.Linear(2, 2)) == []
    assert analyse_ablations(nn.Linear(2, 2), Quality.of_numbers(lambda: [1.0])) is None


@pytest.mark.parametrize("plan", tiny.PLANS)
def test_every_declared_ablation_runs_and_is_undone(plan):
    model = tiny.model(tiny.PLANS[plan])
    inputs = {"input_ids": tiny.tokens(2, 5), "decoder_input_ids": tiny.tokens(2, 4)}
    with torch.no_grad():
        before = model(**inputs).logits
        declared = declared_ablations(model, "all")
        assert len({str(ablation) for ablation in declared}) == len(declared) > 4
        for ablation in declared:
            with ablation.in_force(model, 1):
                assert model(**inputs).logits.isfinite().all(), str(ablation)
            assert torch.equal(model(**inputs).logits, before)
        # Batch norm remembers a pass in training, so that each has a copy of its own.
        trained = []
        for ablation in (None, declared[0], declared[-1]):
            with nullcontext() if ablation is None else ablation.in_force(model):
                torch.manual_seed(0)
                trained.append(copy.deepcopy(model).train()(**inputs).logits)
        assert torch.equal(trained[0], trained[1]) and torch.equal(trained[0], trained[2])


# Tasks


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("translation", "moa"),
        ("language-modelling", "weighted"),
        ("masked-language-modelling", "agreement"),
        ("classification", "mae"),
        ("images", "standard"),
        ("speech-enhancement", "tim"),
    ],
)
def test_the_scores_of_a_task(tmp_path, name, plan):
    recipe = load_recipe(str(tiny_tasks.write_recipe(name, tmp_path))).system(plan)
    task = task_class(name).prepare(recipe)
    torch.manual_seed(0)
    model = task.build_model(recipe.model)
    tiny.strengthen(model)
    quality = Quality.of_task(model, task, "validation", recipe.evaluation)
    level = "units" if plan == "standard" else "model"
    found = analyse_ablations(model, quality, level=level)
    with torch.no_grad():
        outcome = task.evaluate(model.eval(), task.validation, recipe.evaluation, lambda n: None)
    assert (found.score, found.value) == (outcome.scores[0].name, outcome.scores[0].value)
    batches = [task.collate([task.validation[i]]) for i in range(len(task.validation))]
    assert found.loss == pytest.approx(validation_loss(model, batches), rel=1e-4)
    assert found.results and all(result.loss is not None for result in found.results)
    assert any(result.loss.difference for result in found.results)
