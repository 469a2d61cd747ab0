"""What each ablation costs: each row is an evaluation under it, and the model is as before."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import ttest_1samp
from support.architectures import attentions, build, gate, labelled, refused, without
from support.architectures import tokens as words
from support.data_files import row as item
from support.road import in_each_part, road
from support.tiny_models import inputs, labels, model, tokens
from torch import nn

import headwise as hw
from headwise.analysis.ablations import ablate, of_loss, of_numbers, of_task, parse_ablations
from headwise.analysis.statistics import holm

ITEMS = 12


def certainty(made, read):
    """Of each item the mean of the largest probability at each position."""

    def measure():
        logits = made(read).logits.double()
        return logits.softmax(-1).amax(-1).flatten(1).mean(1)

    return measure


def value(measure):
    with torch.no_grad():
        return float(measure().mean())


def under(made, system, row):
    """The model under the ablation of a row, by `headwise.ablated`; a mean over random draws."""
    found = []
    for seed in range(5) if row.ablation == "random" else [None]:
        options = row.options if seed is None else {"seed": seed}
        where = row.path or {system: {"name": row.ablation, **options}}
        given = (row.ablation, options) if row.path else (None, {})
        with hw.ablated(made, where, given[0], **given[1]):
            found.append(value(certainty(made, tokens(ITEMS, 6))))
    assert len({round(each, 12) for each in found}) == len(found)
    return np.mean(found)


ROWS = {  # of two layers: what changes all at once, and the units of each
    "standard": (0, {"head": 4}),
    "mae": (6, {"expert": 4, "head": 4}),
    "moa": (4, {"expert": 5}),
    "tim": (4, {"mechanism": 2}),
    "agreement": (1, {"head": 4}),
}


@pytest.mark.parametrize("plan", ROWS)
def test_each_row_is_the_model_under_that_ablation(plan):
    made = model("causal", plan)
    shown = []
    measure = certainty(made, tokens(ITEMS, 6))
    found = ablate(made, of_numbers(measure), track=lambda each: shown.extend(each) or each)
    whole = value(measure)
    assert len(shown) == len(found) and found.attrs["items"] == ITEMS
    assert found.attrs["value"] == pytest.approx(whole) and not found.attrs["lower_is_better"]
    for row in found.itertuples():
        assert row.value == pytest.approx(under(made, plan, row), rel=1e-9)
        assert row.difference == pytest.approx(row.value - whole, abs=1e-12)
        assert row.cost == -row.difference and row.share == pytest.approx(row.cost / whole)
        assert not row.reason
    assert list(found["cost"]) == sorted(found["cost"], reverse=True)
    number, units = ROWS[plan]
    of_one = found[found["place"] != ""]
    assert len(found) - len(of_one) == number
    for place in ("decoder_self.0", "decoder_self.1"):
        own = of_one[of_one["place"] == place]
        for unit, count in units.items():
            removed = own.loc[own["unit"] == unit, "options"]
            assert sorted(each[unit] for each in removed) == list(range(count))
    at_once = ablate(made, of_numbers(measure), "model")
    assert len(at_once) == number and not any(at_once.get("place", ()))
    assert ablate(made, of_numbers(measure), "none").empty


@pytest.mark.parametrize("made", ["gpt2", "bert", "gated"])
def test_heads_of_transformers_are_removed_with_and_without_gates(made):
    made = gate("gpt2", "gated") if made == "gated" else build(made)
    measure = certainty(made, words(ITEMS, 5))
    found = ablate(made, of_numbers(measure))
    heads = found[found["ablation"] == "without-head"]
    assert {(row.path, row.options["head"]) for row in heads.itertuples()} == {
        (path, head) for path in attentions(made) for head in range(4)
    }
    for row in heads.itertuples():
        with without(made, {row.path: [row.options["head"]]}):
            assert row.value == pytest.approx(value(measure), rel=1e-6)


def layer(*weights):
    """An attention whose heads count as much as given."""
    torch.manual_seed(0)
    made = nn.ModuleDict({"layer": hw.MultiHeadAttention(16, 4)}).double()
    with torch.no_grad():
        made["layer"].out_proj.bias.zero_()
        by_head = made["layer"].out_proj.weight.view(16, 4, -1)
        by_head.mul_(torch.tensor(weights, dtype=by_head.dtype).view(1, -1, 1))
    x = torch.randn(60, 3, 16).double()
    return made, lambda: made["layer"](x).output


def test_a_head_that_does_nothing_costs_nothing_and_one_on_which_all_depends_costs_all():
    made, outputs = layer(0.1, 2.0, 0.0, 0.5)
    with torch.no_grad():
        own = outputs()
    distance = of_numbers(lambda: (outputs() - own).square().mean((1, 2)), higher_is_better=False)
    found = ablate(made, distance)
    assert [row.options["head"] for row in found.itertuples()] == [1, 3, 0, 2]
    last = found.iloc[-1]
    numbers = last[["difference", "low", "high", "cost", "p", "corrected_p"]]
    assert list(numbers) == [0, 0, 0, 0, 1, 1] and math.isnan(last["share"])  # the whole is 0

    made, outputs = layer(0.0, 0.0, 0.0, 1.0)
    with torch.no_grad():
        signs = outputs() > 0
    found = ablate(made, of_numbers(lambda: ((outputs() > 0) == signs).all(-1).all(-1)))
    first, *others = found.itertuples()
    assert (first.options, first.value, first.cost, first.share) == ({"head": 3}, 0.0, 1.0, 1.0)
    assert first.p == 2 * 0.5**60 and {row.cost for row in others} == {0.0}  # the sign test


def test_differences_are_paired_over_the_items_and_tests_corrected_over_the_table():
    made, outputs = layer(1.0, 1.0, 1.0, 1.0)
    scale = torch.logspace(-1, 1, 60).double()  # items differ far more than ablations change them
    rows = []

    def measure():
        rows.append((scale + 0.1 * outputs().tanh().mean((1, 2))).numpy())
        return rows[-1]

    found = ablate(made, of_numbers(measure, higher_is_better=False))
    for row in found.itertuples():
        test = ttest_1samp(rows[1 + row.options["head"]] - rows[0], 0)
        interval = tuple(test.confidence_interval(0.95))
        assert (row.low, row.high) == pytest.approx(interval, rel=0.2, abs=2e-4)
        assert row.p == pytest.approx(test.pvalue, abs=0.1)
        assert row.cost == row.difference
    assert list(found["corrected_p"]) == holm(list(found["p"]))
    few = ablate(made, of_numbers(lambda: measure()[:5]))
    assert few["p"].isna().all() and few["reason"].str.contains("10").all() and few["cost"].any()
    calls = iter(range(9))
    broken = of_numbers(lambda: measure() * (math.nan if next(calls) == 2 else 1.0))
    found = ablate(made, broken)
    assert math.isnan(found["cost"].iloc[-1]) and found["p"].iloc[:-1].notna().all()


@pytest.mark.parametrize("name", ["ours", "gpt2"])
def test_the_model_and_its_gradients_are_as_before(name):
    made = model("causal", "mae") if name == "ours" else build("gpt2")
    read = words(ITEMS, 5) % 20
    made.train()(read).logits.square().sum().backward()
    made.get_submodule(next(path for path, _ in made.named_modules() if path)).eval()

    def now():
        tensors = {**dict(made.named_parameters()), **made.state_dict()}
        tensors |= {f"{key}.grad": p.grad for key, p in made.named_parameters()}
        kept = {key: x if x is None else x.tolist() for key, x in tensors.items()}
        modes = {path: module.training for path, module in made.named_modules()}
        return kept, modes, torch.get_rng_state().tolist()

    before, calls = now(), iter(range(3))

    def broken():
        torch.rand(1)
        assert not made.training and not torch.is_grad_enabled()
        next(calls)
        return certainty(made, read)()

    with pytest.raises(StopIteration):
        ablate(made, of_numbers(broken))
    assert now() == before
    made.train()(read)  # nothing is ablated any more, which training would refuse


def test_what_an_evaluation_draws_is_the_same_under_all_ablations():
    made, outputs = layer(0.0, 1.0, 1.0, 1.0)
    found = ablate(made, of_numbers(lambda: outputs().mean((1, 2)) + torch.randn(60).double()))
    nothing = next(row for row in found.itertuples() if row.options["head"] == 0)
    assert nothing.difference == 0.0


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
    own = road(task, source, rows, model={**SIZES, **TASKS[task]})
    made = own.model().eval()
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    found = ablate(made, of_task(made, own.task, "validation", own.recipe.evaluation))
    first = own.task.evaluate(made, "validation", own.recipe.evaluation).scores[0]
    assert found.attrs["score"] == first.name and len(found) >= 2
    assert found.attrs["value"] == pytest.approx(first.value, nan_ok=True)
    assert found.attrs["items"] == len(first.rows)
    assert found.attrs["lower_is_better"] is first.lower_is_better
    if task != "translation":  # whose score moves in steps
        assert any(found["difference"])


@pytest.mark.parametrize("name", ["causal", "masked", "seq2seq", "classifier", "speech", "gpt2"])
def test_a_loss_is_the_mean_over_the_labels_of_all_items(name):
    if name == "gpt2":
        made = build(name)
        batches = [labelled(name, made)]
        batches[0].pop("use_cache", None)
    else:
        made = model(name)
        shapes = [(5, 6), (5, 7)]
        batches = [inputs(name, *shape) | {"labels": labels(name, *shape)} for shape in shapes]
    expected = []
    for batch in batches:
        for i in range(len(batch["labels"])):
            item = {key: x[i : i + 1] for key, x in batch.items()}
            shifted = item["labels"][:, 1:] if name in ("causal", "gpt2") else item["labels"]
            count = int((shifted != -100).sum())
            with torch.no_grad():
                expected.append([float(made(**item).loss) * count if count else 0.0, count])
    found = of_loss(made, batches, "nats")()
    assert np.array(found.rows) == pytest.approx(np.array(expected), rel=1e-5)
    totals, counts = np.sum(expected, 0)
    assert (found.name, found.lower_is_better) == ("nats", True)
    assert found.value == pytest.approx(totals / counts, rel=1e-5)


def test_what_is_wrong_is_told():
    made, outputs = layer(1.0, 1.0, 1.0, 1.0)
    refused({"level", "unit", "units"}, ablate, made, of_numbers(outputs), "unit")
    refused({"(60, 3, 16)", "(items,)"}, ablate, made, of_numbers(outputs))
    refused({"(0,)"}, ablate, made, of_numbers(list))
    for text in ("mae", "mae=", "=uniform", "mae=top-k,2", "mae=uniform,"):
        refused({repr(text), "SYSTEM=NAME,OPTION=VALUE"}, parse_ablations, [text])
    refused({"mae", "already"}, parse_ablations, ["mae=uniform", "mae=random"])
    refused({"unifrom", "'uniform'"}, parse_ablations, ["mae=unifrom"])
    found = parse_ablations(["mae=top-k, top_k = 2", "moa=without-expert,expert=[0, 1]"])
    assert found["mae"] == {"name": "top-k", "top_k": 2}
    assert found["moa"] == {"name": "without-expert", "expert": [0, 1]}
    refused({"Linear", "attention"}, ablate, nn.Linear(2, 2), of_numbers(lambda: [1.0]))
