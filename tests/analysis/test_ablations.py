"""What each ablation costs: each row is an evaluation under it, and the model is as before."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import ttest_1samp
from support.architectures import build, labelled, refused
from support.architectures import tokens as words
from support.data_files import row as item
from support.road import in_each_part, road
from support.tiny_models import inputs, labels, model, tokens
from torch import nn

import headwise as hw
from headwise.analysis.ablations import (
    ablate,
    item_quality,
    loss_quality,
    parse_ablations,
    task_quality,
)
from headwise.analysis.statistics import holm

ITEMS = 12


def certainty(network, batch):
    """Of each item the mean of the largest probability at each position."""

    def measure():
        logits = network(batch).logits.double()
        return logits.softmax(-1).amax(-1).flatten(1).mean(1)

    return measure


def value(measure):
    with torch.no_grad():
        return float(measure().mean())


def under(network, system, row):
    """The model under the ablation of a row, by `headwise.ablated`; a mean over random draws."""
    values = []
    for seed in range(5) if row.ablation == "random" else [None]:
        options = row.options if seed is None else {"seed": seed}
        where = row.path or {system: {"name": row.ablation, **options}}
        name, options = (row.ablation, options) if row.path else (None, {})
        with hw.ablated(network, where, name, **options):
            values.append(value(certainty(network, tokens(ITEMS, 6))))
    assert len({round(each, 12) for each in values}) == len(values)  # random draws differ
    return np.mean(values)


ROWS = {  # of two layers: what changes all at once, and the units of each
    "standard": (0, {"head": 4}),
    "mae": (6, {"expert": 4, "head": 4}),
    "moa": (4, {"expert": 5}),
    "tim": (4, {"mechanism": 2}),
    "agreement": (1, {"head": 4}),
}


@pytest.mark.parametrize("plan", ROWS)
def test_each_row_is_the_model_under_that_ablation(plan):
    network = model("causal", plan)
    tracked = []
    measure = certainty(network, tokens(ITEMS, 6))
    table = ablate(network, item_quality(measure), track=lambda x: tracked.extend(x) or x)
    whole = value(measure)
    assert len(tracked) == len(table) and table.attrs["items"] == ITEMS
    assert table.attrs["value"] == pytest.approx(whole) and not table.attrs["lower_is_better"]
    for row in table.itertuples():
        assert row.value == pytest.approx(under(network, plan, row), rel=1e-9)
        assert row.difference == pytest.approx(row.value - whole, abs=1e-12)
        assert row.cost == -row.difference and row.share == pytest.approx(row.cost / whole)
        assert not row.reason
    assert list(table["cost"]) == sorted(table["cost"], reverse=True)
    number, units = ROWS[plan]
    removals = table[table["place"] != ""]
    assert len(table) - len(removals) == number
    for place in ("decoder_self.0", "decoder_self.1"):
        in_layer = removals[removals["place"] == place]
        for unit, count in units.items():
            removed = in_layer.loc[in_layer["unit"] == unit, "options"]
            assert sorted(each[unit] for each in removed) == list(range(count))
    at_once = ablate(network, item_quality(measure), "model")
    assert len(at_once) == number and not any(at_once.get("place", ()))
    assert ablate(network, item_quality(measure), "none").empty


def layer(*weights):
    """An attention whose heads count as much as given."""
    torch.manual_seed(0)
    network = nn.ModuleDict({"layer": hw.MultiHeadAttention(16, 4)}).double()
    with torch.no_grad():
        network["layer"].out_proj.bias.zero_()
        by_head = network["layer"].out_proj.weight.view(16, 4, -1)
        by_head.mul_(torch.tensor(weights, dtype=by_head.dtype).view(1, -1, 1))
    x = torch.randn(60, 3, 16).double()
    return network, lambda: network["layer"](x).output


def test_a_head_that_does_nothing_costs_nothing_and_one_on_which_all_depends_costs_all():
    network, outputs = layer(0.1, 2.0, 0.0, 0.5)
    with torch.no_grad():
        whole = outputs()
    measure = lambda: (outputs() - whole).square().mean((1, 2))  # noqa: E731
    table = ablate(network, item_quality(measure, higher_is_better=False))
    assert [row.options["head"] for row in table.itertuples()] == [1, 3, 0, 2]
    last = table.iloc[-1]
    numbers = last[["difference", "low", "high", "cost", "p", "corrected_p"]]
    assert list(numbers) == [0, 0, 0, 0, 1, 1] and math.isnan(last["share"])  # the whole is 0

    network, outputs = layer(0.0, 0.0, 0.0, 1.0)
    with torch.no_grad():
        signs = outputs() > 0
    table = ablate(network, item_quality(lambda: ((outputs() > 0) == signs).all(-1).all(-1)))
    first, *others = table.itertuples()
    assert (first.options, first.value, first.cost, first.share) == ({"head": 3}, 0.0, 1.0, 1.0)
    assert first.p == 2 * 0.5**60 and {row.cost for row in others} == {0.0}  # the sign test


def test_differences_are_paired_over_the_items_and_tests_corrected_over_the_table():
    network, outputs = layer(1.0, 1.0, 1.0, 1.0)
    scale = torch.logspace(-1, 1, 60).double()  # items differ far more than ablations change them
    rows = []

    def measure():
        rows.append((scale + 0.1 * outputs().tanh().mean((1, 2))).numpy())
        return rows[-1]

    table = ablate(network, item_quality(measure, higher_is_better=False))
    for row in table.itertuples():
        test = ttest_1samp(rows[1 + row.options["head"]] - rows[0], 0)
        interval = tuple(test.confidence_interval(0.95))
        assert (row.low, row.high) == pytest.approx(interval, rel=0.2, abs=2e-4)
        assert row.p == pytest.approx(test.pvalue, abs=0.1)
        assert row.cost == row.difference
    assert list(table["corrected_p"]) == holm(list(table["p"]))
    few = ablate(network, item_quality(lambda: measure()[:5]))
    assert few["p"].isna().all() and few["reason"].str.contains("10").all() and few["cost"].any()
    calls = iter(range(9))
    broken = item_quality(lambda: measure() * (math.nan if next(calls) == 2 else 1.0))
    table = ablate(network, broken)
    assert math.isnan(table["cost"].iloc[-1]) and table["p"].iloc[:-1].notna().all()


@pytest.mark.parametrize("name", ["headwise", "gpt2"])
def test_the_model_and_its_gradients_are_as_before(name):
    network = model("causal", "mae") if name == "headwise" else build("gpt2")
    batch = words(ITEMS, 5) % 20
    network.train()(batch).logits.square().sum().backward()
    network.get_submodule(next(path for path, _ in network.named_modules() if path)).eval()

    def state():
        tensors = {**dict(network.named_parameters()), **network.state_dict()}
        tensors |= {f"{key}.grad": p.grad for key, p in network.named_parameters()}
        values = {key: x if x is None else x.tolist() for key, x in tensors.items()}
        modes = {path: module.training for path, module in network.named_modules()}
        return values, modes, torch.get_rng_state().tolist()

    before, calls = state(), iter(range(3))

    def broken():
        torch.rand(1)
        assert not network.training and not torch.is_grad_enabled()
        next(calls)
        return certainty(network, batch)()

    with pytest.raises(StopIteration):
        ablate(network, item_quality(broken))
    assert state() == before
    network.train()(batch)  # nothing is ablated any more, which training would refuse


def test_what_an_evaluation_draws_is_the_same_under_all_ablations():
    network, outputs = layer(0.0, 1.0, 1.0, 1.0)
    quality = item_quality(lambda: outputs().mean((1, 2)) + torch.randn(60).double())
    idle = next(row for row in ablate(network, quality).itertuples() if row.options["head"] == 0)
    assert idle.difference == 0.0


SIZES = {"embed_dim": 8, "num_heads": 2, "ffn_dim": 8}
TASKS = {
    "images": {"layers": 1},
    "speech-enhancement": {"layers": 1, "front_channels": [8]},
    "translation": {"encoder_layers": 1, "decoder_layers": 1},
}


@pytest.mark.parametrize("task", TASKS)
def test_the_score_of_a_task_is_that_of_its_evaluation(task):
    source = "built-in" if task == "speech-enhancement" else "files"
    rows = None if source == "built-in" else in_each_part([item(task, key) for key in range(12)])
    prepared = road(task, source, rows, model={**SIZES, **TASKS[task]})
    network, evaluation = prepared.network(), prepared.recipe.evaluation
    table = ablate(network, task_quality(network, prepared.task, "validation", evaluation))
    first = prepared.task.evaluate(network, "validation", evaluation).scores[0]
    assert table.attrs["score"] == first.name and len(table) >= 2
    assert table.attrs["value"] == pytest.approx(first.value, nan_ok=True)
    assert table.attrs["items"] == len(first.rows)
    assert table.attrs["lower_is_better"] is first.lower_is_better
    if task != "translation":  # whose score moves in steps
        assert any(table["difference"])


@pytest.mark.parametrize("name", ["causal", "masked", "seq2seq", "classifier", "speech", "gpt2"])
def test_a_loss_is_the_mean_over_the_labels_of_all_items(name):
    if name == "gpt2":
        network = build(name)
        batches = [labelled(name, network)]
        batches[0].pop("use_cache", None)
    else:
        network = model(name)
        shapes = [(5, 6), (5, 7)]
        batches = [inputs(name, *shape) | {"labels": labels(name, *shape)} for shape in shapes]
    expected = []
    for batch in batches:
        for i in range(len(batch["labels"])):
            item = {key: x[i : i + 1] for key, x in batch.items()}
            shifted = item["labels"][:, 1:] if name in ("causal", "gpt2") else item["labels"]
            count = int((shifted != -100).sum())
            with torch.no_grad():
                expected.append([float(network(**item).loss) * count if count else 0.0, count])
    score = loss_quality(network, batches)()
    assert np.array(score.rows) == pytest.approx(np.array(expected), rel=1e-5)
    totals, counts = np.sum(expected, 0)
    assert (score.name, score.lower_is_better) == ("nats per token", True)
    assert score.value == pytest.approx(totals / counts, rel=1e-5)


def test_what_is_wrong_is_told():
    network, outputs = layer(1.0, 1.0, 1.0, 1.0)
    refused({"level", "unit", "units"}, ablate, network, item_quality(outputs), "unit")
    refused({"(60, 3, 16)", "(items,)"}, ablate, network, item_quality(outputs))
    refused({"(0,)"}, ablate, network, item_quality(list))
    for text in ("mae", "mae=", "=uniform", "mae=top-k,2", "mae=uniform,"):
        refused({repr(text), "SYSTEM=NAME,OPTION=VALUE"}, parse_ablations, [text])
    refused({"mae", "already"}, parse_ablations, ["mae=uniform", "mae=random"])
    refused({"unifrom", "'uniform'"}, parse_ablations, ["mae=unifrom"])
    ablations = parse_ablations(["mae=top-k, top_k = 2", "moa=without-expert,expert=[0, 1]"])
    assert ablations["mae"] == {"name": "top-k", "top_k": 2}
    assert ablations["moa"] == {"name": "without-expert", "expert": [0, 1]}
    refused({"Linear", "attention"}, ablate, nn.Linear(2, 2), item_quality(lambda: [1.0]))
