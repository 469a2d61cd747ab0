"""Each measure of decisions equals a loop of a few lines over them, whatever system decides."""

import itertools
import math
from collections import defaultdict
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from support import architectures
from support.tiny_models import PLANS, inputs, model
from torch import nn

import headwise as hw
from headwise.analysis.decisions import DecisionTable, collect
from headwise.analysis.metrics import (
    decision_monitor,
    entropy,
    epsilon_squared,
    layer_similarity,
    pmi,
    unit_load,
)
from headwise.tasks.task import Positions

SIDES = ["left", "right"]


class Own(hw.MultiHeadAttention):
    """A system of a user's own: each head's share of a sum over the entries of the input."""

    def combine(self, heads, inputs, choice):
        output, _ = super().combine(heads, inputs, choice)
        return output, hw.Routing(inputs.query.unflatten(-1, (self.num_heads, -1)).sum(-1).abs())


SYSTEMS = {**PLANS, "own": f"{Own.__module__}:Own"}
del SYSTEMS["standard"]
# Of a model that reads all of a sequence, experts of MAE are weighed once for the whole of it.
SUBJECTS = [(kind, name) for kind in ("causal", "classifier") for name in SYSTEMS]


def batches(kind, count=3, rows=4, time=9):
    """Batches whose rows have different lengths; padding stands on the right, then on the left."""
    made = []
    for seed in range(count):
        mask = torch.ones(rows, time, dtype=torch.long)
        for row in range(1, rows):
            mask[row, time - 2 * row :] = 0
        mask = mask.flip(1) if seed % 2 else mask
        made.append({**inputs(kind, rows, time, seed=seed), "attention_mask": mask})
    return made


def describe(batch):
    """A class of each position and of each sequence, and a quantity."""
    ids = batch["input_ids"]
    classes = {"side": (ids % 2, SIDES), "first": (ids[:, 0] % 3 - 1, ["one", "two"])}
    names = {number: f"token {number}" for number in range(99)}
    described = Positions(tuple(ids.shape), ids, names, "word", classes, {"level": ids.sin()})
    return {"any": described}


class Row(NamedTuple):
    """A decision of a sequence, made for some places and the tokens there."""

    sequence: int | None
    first: int | None  # the class of the sequence
    at: list[tuple[int, int]]
    weights: list[float]
    chosen: list[int] | None


def decisions(made: nn.Module, data: Any) -> dict[str, list[Row]]:
    """The rows of each system, by loops over what `hw.record` has."""
    found, before = defaultdict(list), 0
    for batch in data:
        ids, masks = batch["input_ids"].tolist(), batch["attention_mask"].tolist()
        with hw.record(made) as recorded, torch.no_grad():
            made(**batch)
        for path, (routing,) in recorded.items():
            w = routing.weights / routing.weights.sum(-1, keepdim=True)
            for n, (tokens, mask) in enumerate(zip(ids, masks, strict=True)):
                real = [t for t, is_real in enumerate(mask) if is_real]
                at = [(place, tokens[t]) for place, t in enumerate(real)]
                of = (before + n, tokens[0] % 3 - 1)
                if w.dim() == 3:
                    for place, t in enumerate(real):
                        k = None if routing.indices is None else routing.indices[n, t].tolist()
                        found[path].append(Row(*of, [at[place]], w[n, t].tolist(), k))
                elif w.dim() == 2:
                    found[path].append(Row(*of, at, w[n].tolist(), None))
                elif not found[path]:
                    found[path].append(Row(None, None, [], w.tolist(), None))
        before += len(ids)
    return found


@pytest.fixture(scope="module", params=SUBJECTS, ids=" ".join)
def asked(request):
    """Of each system what it decided, and the same as rows."""
    kind, name = request.param
    made = model(kind, SYSTEMS[name])
    data = batches(kind)
    found, rows = collect(made, data, describe), decisions(made, data)
    assert [d.path for d in found] == [*rows]
    return [(d, rows[d.path]) for d in found]


def near(expected):
    return pytest.approx(expected, rel=1e-4, abs=1e-6, nan_ok=True)


def test_what_a_row_is(asked):
    for d, rows in asked:
        assert d.weights == near(np.array([row.weights for row in rows]))
        assert (d.chosen is None) == (rows[0].chosen is None)
        assert d.chosen is None or d.chosen.tolist() == [row.chosen for row in rows]
        assert d.sequences == 12 and d.place.startswith(d.site)
        if d.scope == "everything":
            assert len(d.rows) == 1
            continue
        at = [(number, place, token) for number, row in enumerate(rows) for place, token in row.at]
        assert d.positions.index.tolist() == [number for number, *_ in at]
        assert d.positions["token"].tolist() == [f"token {token}" for *_, token in at]
        assert d.positions["side"].tolist() == [SIDES[token % 2] for *_, token in at]
        assert d.positions["level"].tolist() == near([math.sin(token) for *_, token in at])
        assert d.rows["sequence"].tolist() == [row.sequence for row in rows]
        of_each = ["position", "token", "side"] if d.scope == "position" else []
        assert d.labels == [*of_each, "first"]
        if of_each:
            assert d.rows["position"].tolist() == [place for _, place, _ in at]


def goes(d):
    """What goes to each unit, a row at a time: 1 to the chosen ones, or to those that lead."""
    if d.chosen is not None:
        return np.array([[float(u in row) for u in range(len(d.weights.T))] for row in d.chosen])
    leads = np.array([[float(w == max(row)) for w in row] for row in d.weights.tolist()])
    return leads / leads.sum(1, keepdims=True)


def test_entropy(asked):
    for d, _ in asked:
        each = np.array([-sum(w * math.log(w) for w in row if w > 0) for row in d.weights.tolist()])
        if d.weights.min() < 0:
            each[:] = math.nan  # of no distribution, as branches may have in a random model
        found = entropy(d)
        even = math.log(len((d.weights if d.chosen is None else d.chosen).T))
        assert found[["mean", "even"]].tolist() == near([each.mean(), even])
        if d.scope == "everything":
            assert found[["low", "high"]].isna().all()
            continue
        # The variance of a ratio of sums over sequences, and Student's t with 12 of them.
        of_sequence = d.rows["sequence"].to_numpy()
        off = [(each - found["mean"])[of_sequence == n].sum() for n in range(12)]
        half = 2.200985 * math.sqrt(12 / 11 * sum(x**2 for x in off)) / len(each)
        ends = [found["mean"] - half, found["mean"] + half]
        limits = np.clip(ends, 0, math.log(len(d.weights.T)))
        assert found[["low", "high"]].tolist() == near(limits.tolist())


def test_unit_load(asked):
    for d, _ in asked:
        by_weight = d.unit in ("head", "branch") and d.chosen is None
        shares = d.weights if by_weight else goes(d) / goes(d).sum(1, keepdims=True)
        assert unit_load(d).tolist() == near(shares.mean(0).tolist())


@pytest.mark.parametrize("label", ["token", "side"])
def test_pmi(asked, label):
    for d, _ in asked:
        if d.scope == "everything":
            continue
        found = pmi(d, label, top=50, least=2).set_index(["unit", "name"])
        taken, at = goes(d)[d.positions.index], d.positions[label].to_numpy()
        for unit, name in itertools.product(range(len(taken.T)), {*at}):
            own, n = taken[at == name, unit], len({*d.positions.index[at == name]})
            assert ((unit, name) in found.index) == (n >= 2 and own.any())
            if (unit, name) in found.index:
                row, p, z = found.loc[unit, name], own.mean(), 1.959964
                overall = taken[:, unit].mean()
                assert row["occurrences"] == len(own)
                assert row["pmi"] == near(math.log(p / overall))
                for end in ("low", "high"):  # Wilson's: where the score test just rejects
                    q = overall * math.exp(row[end])
                    assert (p - q) ** 2 == near(z**2 * q * (1 - q) / n)


def epsilon(pairs):
    """ε² of pairs of a class and weights; None if nothing varies, or each has its own class."""
    groups, mean = defaultdict(list), np.mean([w for _, w in pairs], 0)
    for of, weights in pairs:
        groups[of].append(weights)
    total = sum(((w - mean) ** 2).sum() for _, w in pairs)
    if total < 1e-12 or len(groups) == len(pairs):
        return None
    between = sum(len(of) * ((np.mean(of, 0) - mean) ** 2).sum() for of in groups.values())
    chance = (len(groups) - 1) / (len(pairs) - 1)
    return (between / total - chance) / (1 - chance)


def test_epsilon_squared(asked):
    for d, _ in asked:
        for label in d.labels:
            rows = zip(d.rows["sequence"], d.rows[label], d.weights.astype(float), strict=True)
            if label == "first":  # a class of sequences: a sequence counts once
                of = defaultdict(list)
                for number, name, weights in rows:
                    of[number, name].append(weights)
                pairs = [
                    (name, np.mean(w, 0)) for (_, name), w in of.items() if isinstance(name, str)
                ]
            elif label == "position":  # 0, 1, 2 to 3, 4 to 7, ...
                pairs = [(place.bit_length(), weights) for _, place, weights in rows]
            else:
                pairs = [(name, weights) for _, name, weights in rows]
            found, expected = epsilon_squared(d, label), epsilon(pairs)
            assert math.isnan(found) if expected is None else found == near(expected)


def test_layer_similarity(asked):
    some = [d for d, _ in asked if d.scope == "position"]
    columns = [d.weights.astype(float) for d in some] + [d.rows[["level"]] for d in some[:1]]
    found = layer_similarity(some, ["level"]) if some else None
    for i, x in enumerate(map(np.asarray, columns)):
        for j, y in enumerate(map(np.asarray, columns)):
            if some[0].weights.shape[1] == 2:
                expected = np.corrcoef(x[:, 0], y[:, 0])[0, 1]
            else:  # by products of rows, not of columns
                xx, yy = ((z - z.mean(0)) @ (z - z.mean(0)).T for z in (x, y))
                expected = (xx * yy).sum() / np.linalg.norm(xx) / np.linalg.norm(yy)
            assert found.iloc[i, j] == near(expected)


# --- laws of all measures ----------------------------------------------------------------------


def answers(found):
    """What the questions say of decisions, in numbers."""
    return {
        (d.path, question): values
        for d in found
        for question, values in {
            "entropy": entropy(d).tolist(),
            "load": unit_load(d).tolist(),
            "pmi": pmi(d, least=1).drop(columns="name").to_numpy() if "token" in d.positions else 0,
            "explained": [epsilon_squared(d, label) for label in d.labels],
        }.items()
    }


def assert_same(one, other):
    assert one.keys() == other.keys()
    for key, values in one.items():
        np.testing.assert_allclose(values, other[key], rtol=1e-4, atol=1e-5, err_msg=str(key))


@pytest.mark.parametrize(("kind", "name"), SUBJECTS)
def test_padding_and_the_size_of_batches_change_nothing(kind, name):
    made, data = model(kind, SYSTEMS[name]), batches(kind, count=2)
    alone = [
        {"input_ids": batch["input_ids"][row : row + 1, batch["attention_mask"][row].bool()]}
        for batch in data
        for row in range(4)
    ]
    together = [{key: torch.cat([batch[key] for batch in data]) for key in data[0]}]
    assert_same(answers(collect(made, data, describe)), answers(collect(made, together, describe)))
    assert_same(answers(collect(made, data, tokens)), answers(collect(made, alone, tokens)))


def tokens(batch):
    return {"any": Positions(batch["input_ids"].shape, batch["input_ids"])}


@pytest.mark.parametrize(("limit", "read"), [(1, 4), (40, 8)])
def test_a_sample_has_the_same_whole_batches_of_all_systems(limit, read):
    made, data = model("seq2seq", SYSTEMS["moa"]), batches("seq2seq")
    whole = collect(made, data)
    for all_of_it, d in zip(whole, collect(made, data, limit=limit), strict=True):
        number = (all_of_it.rows["sequence"] < read).sum()
        assert d.sequences == d.rows["sequence"].nunique() == read
        pd.testing.assert_frame_equal(d.rows, all_of_it.rows[:number])
        assert np.array_equal(d.weights, all_of_it.weights[:number])


@pytest.mark.parametrize("system", ["mae", "moh"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "bart"])
def test_gated_models_of_transformers_without_padding(name, system):
    made = architectures.gate(name, system)
    batch = architectures.labelled(name, made)
    batch = {key: batch[key] for key in ("input_ids", "attention_mask", "labels") if key in batch}
    if name in architectures.PAIRS:  # of which the decoder is told nothing but by the labels
        batch["attention_mask"] = (~architectures.padding(*batch["input_ids"].shape)).long()
    alone = []
    for row, mask in enumerate(batch["attention_mask"].bool()):
        labels = batch["labels"][row : row + 1]
        labels = labels[labels != -100][None] if name in architectures.PAIRS else labels[:, mask]
        alone.append({"input_ids": batch["input_ids"][row : row + 1, mask], "labels": labels})
    together, apart = collect(made, [batch]), collect(made, alone)
    assert [d.path for d in together] == [d.path for d in apart] and together
    for d, other in zip(together, apart, strict=True):
        assert d.site and d.weights == pytest.approx(other.weights, abs=1e-4)
        assert d.rows["sequence"].tolist() == other.rows["sequence"].tolist()


class Plain(nn.Module):
    """A module of a user's own, which tells its systems neither places nor padding."""

    def __init__(self):
        super().__init__()
        self.first = hw.MixtureOfAttentiveExperts(16, 4)
        self.second = hw.GatedAttention(16, 4)

    def forward(self, x):
        return self.second(self.first(x).output).output


def test_a_module_of_ones_own_in_training():
    made = Plain()
    first, second = collect(made, [{"x": torch.randn(3, 5, 16)}])
    assert made.training and made.second.training
    assert (first.place, second.place) == ("first", "second")
    assert (first.scope, [*first.rows], first.system) == ("sequence", ["sequence"], "mae")
    assert (second.scope, len(second.rows), second.labels) == ("position", 15, ["position"])


def test_what_cannot_be_read_is_told():
    with pytest.raises(ValueError, match="Linear without an"):
        collect(nn.Linear(2, 2), [])


def decided(weights, chosen=None, unit="expert", **columns):
    rows = pd.DataFrame({"sequence": range(len(weights)), "position": 0, **columns})
    return DecisionTable("path", "mae", "", 0, unit, weights, chosen, rows, len(weights))


@pytest.mark.parametrize(("classes", "units"), [(2, 2), (3, 5), (8, 3)])
def test_a_label_that_decides_explains_all_and_one_that_is_drawn_nothing(classes, units):
    random = np.random.default_rng(classes * units)
    label = np.arange(60) % classes
    of_class = random.dirichlet(np.ones(units), classes)
    assert epsilon_squared(decided(of_class[label], label=label.astype(str)), "label") == near(1)
    weights = random.dirichlet(np.ones(units), 60)
    drawn = [
        epsilon_squared(decided(weights, label=random.permutation(label).astype(str)), "label")
        for _ in range(100)
    ]
    assert abs(fmean(drawn)) < 4 * np.std(drawn) / 10


def test_a_model_that_diverged_has_no_answers():
    weights = np.full((6, 2), np.nan)
    d = decided(weights, token=list("aabbcc"), sequence=[0, 0, 1, 1, 2, 2])
    assert entropy(d)[["mean", "low", "high"]].isna().all() and unit_load(d).isna().all()
    assert pmi(d, least=1).empty and math.isnan(epsilon_squared(d, "token"))
    assert layer_similarity([d, d]).isna().all(axis=None)


# --- what a run keeps ---------------------------------------------------------------------------


class Few:
    """A task whose items are sequences of tokens, of these lengths."""

    def __init__(self, lengths):
        self.lengths, self.read = lengths, []

    def stored(self, part):
        assert part == "validation"
        return self

    def __getitems__(self, indices):
        self.read.append(indices)
        return [torch.arange(index, index + self.lengths[index]) % 20 + 3 for index in indices]

    def collate(self, items):
        mask = [torch.ones(len(item), dtype=torch.long) for item in items]
        made = {"input_ids": items, "attention_mask": mask}
        return {key: nn.utils.rnn.pad_sequence(x, batch_first=True) for key, x in made.items()}

    describe = staticmethod(describe)


@pytest.mark.parametrize("name", ["standard", "mae", "moa", "weighted"])
def test_a_monitor_measures_a_few_sequences_of_the_validation_part(name):
    task, made = Few([5, 3, 8, 8, 2] * 20), model("causal", PLANS[name])
    monitor = decision_monitor(task, 64)
    found = monitor(made)
    assert found == monitor(made)  # and the data are read once
    assert len({i for of in task.read for i in of}) == sum(map(len, task.read)) == 32
    assert all(max(task.lengths[i] for i in of) * len(of) <= 64 for of in task.read)
    data = [task.collate(task.__getitems__(of)) for of in list(task.read)]
    expected = {}
    for d in collect(made, data, describe):
        figures = zip(("", "even "), entropy(d)[["mean", "even"]], strict=True)
        expected |= {f"{which}entropy {d.place}": value for which, value in figures}
        expected |= {f"share {d.place}/{unit}": share for unit, share in unit_load(d).items()}
        expected |= {
            f"explained {d.place}/{label}": epsilon_squared(d, label) for label in d.labels
        }
    expected = {key: value for key, value in expected.items() if math.isfinite(value)}
    assert bool(expected) == (name != "standard")
    assert found == pytest.approx(expected, abs=1e-5)
