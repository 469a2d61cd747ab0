"""Each measure of decisions equals a loop of a few lines over them, whatever system decides."""

import itertools
import math
from collections import defaultdict
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


class Custom(hw.MultiHeadAttention):
    """A system of a user's own: each head's share of a sum over the entries of the input."""

    def combine(self, heads, inputs, choice):
        output, _ = super().combine(heads, inputs, choice)
        return output, hw.Routing(inputs.query.unflatten(-1, (self.num_heads, -1)).sum(-1).abs())


SYSTEMS = {**PLANS, "custom": f"{Custom.__module__}:Custom"}
del SYSTEMS["standard"]
# Of a model that reads all of a sequence, experts of MAE are weighed once for the whole of it.
SUBJECTS = [(kind, name) for kind in ("causal", "classifier") for name in SYSTEMS]


def batches(kind, count=3, rows=4, time=9):
    """Batches whose rows have different lengths; padding stands on the right, then on the left."""
    batches = []
    for seed in range(count):
        mask = torch.ones(rows, time, dtype=torch.long)
        for row in range(1, rows):
            mask[row, time - 2 * row :] = 0
        mask = mask.flip(1) if seed % 2 else mask
        batches.append({**inputs(kind, rows, time, seed=seed), "attention_mask": mask})
    return batches


def describe(batch):
    """A class of each position and of each sequence, and a quantity."""
    ids = batch["input_ids"]
    classes = {"side": (ids % 2, SIDES), "first": (ids[:, 0] % 3 - 1, ["one", "two"])}
    names = {number: f"token {number}" for number in range(99)}
    return {"any": Positions(tuple(ids.shape), ids, names, "word", classes, {"level": ids.sin()})}


class Row(NamedTuple):
    """A decision of a sequence, made for some places and the tokens there."""

    sequence: int | None
    first: int | None  # the class of the sequence
    tokens: list[tuple[int, int]]  # with their places
    weights: list[float]
    chosen: list[int] | None


def decisions(network: nn.Module, data: Any) -> dict[str, list[Row]]:
    """The rows of each system, by loops over what `hw.record` has."""
    rows, before = defaultdict(list), 0
    for batch in data:
        ids, masks = batch["input_ids"].tolist(), batch["attention_mask"].tolist()
        with hw.record(network) as recorded, torch.no_grad():
            network(**batch)
        for path, (routing,) in recorded.items():
            w = routing.weights / routing.weights.sum(-1, keepdim=True)
            for n, (tokens, mask) in enumerate(zip(ids, masks, strict=True)):
                real = [t for t, is_real in enumerate(mask) if is_real]
                placed = [(place, tokens[t]) for place, t in enumerate(real)]
                sequence = (before + n, tokens[0] % 3 - 1)
                if w.dim() == 3:
                    for place, t in enumerate(real):
                        k = None if routing.indices is None else routing.indices[n, t].tolist()
                        rows[path].append(Row(*sequence, [placed[place]], w[n, t].tolist(), k))
                elif w.dim() == 2:
                    rows[path].append(Row(*sequence, placed, w[n].tolist(), None))
                elif not rows[path]:
                    rows[path].append(Row(None, None, [], w.tolist(), None))
        before += len(ids)
    return rows


@pytest.fixture(scope="module", params=SUBJECTS, ids=" ".join)
def decided(request):
    """Of each system what it decided, and the same as rows."""
    kind, name = request.param
    network, data = model(kind, SYSTEMS[name]), batches(kind)
    tables, rows = collect(network, data, describe), decisions(network, data)
    assert [d.path for d in tables] == [*rows]
    return [(d, rows[d.path]) for d in tables]


def near(expected):
    return pytest.approx(expected, rel=1e-4, abs=1e-6, nan_ok=True)


def test_what_a_row_is(decided):
    for d, rows in decided:
        assert d.weights == near(np.array([row.weights for row in rows]))
        assert (d.chosen is None) == (rows[0].chosen is None)
        assert d.chosen is None or d.chosen.tolist() == [row.chosen for row in rows]
        assert d.sequences == 12 and d.place.startswith(d.site)
        if d.scope == "everything":
            assert len(d.rows) == 1
            continue
        tokens = [token for row in rows for _, token in row.tokens]
        numbers = [number for number, row in enumerate(rows) for _ in row.tokens]
        assert d.positions.index.tolist() == numbers
        assert d.positions["token"].tolist() == [f"token {token}" for token in tokens]
        assert d.positions["side"].tolist() == [SIDES[token % 2] for token in tokens]
        assert d.positions["level"].tolist() == near([math.sin(token) for token in tokens])
        assert d.rows["sequence"].tolist() == [row.sequence for row in rows]
        per_position = ["position", "token", "side"] if d.scope == "position" else []
        assert d.labels == [*per_position, "first"]
        if per_position:
            assert d.rows["position"].tolist() == [place for row in rows for place, _ in row.tokens]


def assignment(d):
    """What goes to each unit, a row at a time: 1 to the chosen ones, or to those that lead."""
    if d.chosen is not None:
        return np.array([[float(u in row) for u in range(len(d.weights.T))] for row in d.chosen])
    leads = np.array([[float(w == max(row)) for w in row] for row in d.weights.tolist()])
    return leads / leads.sum(1, keepdims=True)


def test_entropy(decided):
    for d, _ in decided:
        rows = np.array([-sum(w * math.log(w) for w in row if w > 0) for row in d.weights.tolist()])
        if d.weights.min() < 0:
            rows[:] = math.nan  # of no distribution, as branches may have in a random model
        measured = entropy(d)
        even = math.log(len((d.weights if d.chosen is None else d.chosen).T))
        assert measured[["mean", "even"]].tolist() == near([rows.mean(), even])
        if d.scope == "everything":
            assert measured[["low", "high"]].isna().all()
            continue
        # The variance of a ratio of sums over sequences, and Student's t with 12 of them.
        mean, sequences = measured["mean"], d.rows["sequence"].to_numpy()
        deviations = [(rows - mean)[sequences == n].sum() for n in range(12)]
        half = 2.200985 * math.sqrt(12 / 11 * sum(x**2 for x in deviations)) / len(rows)
        limits = np.clip([mean - half, mean + half], 0, even)
        assert measured[["low", "high"]].tolist() == near(limits.tolist())


def test_an_entropy_is_at_most_that_of_the_chosen_units_and_none_of_negative_weights():
    rows = pd.DataFrame({"sequence": [0, 0, 1, 1], "position": [0, 1, 0, 1]})
    chosen, weights = np.array([[0, 1]] * 4), np.array([[0.5, 0.5, 0.0]] * 3 + [[0.4, 0.6, 0.0]])
    d = DecisionTable("path", "moa", "", 0, "expert", weights, chosen, rows, 2)
    assert entropy(d)["high"] == entropy(d)["even"] == math.log(2)
    weights[0] = [1.2, -0.2, 0.0]
    assert entropy(d)[["mean", "low", "high"]].isna().all()


def test_unit_load(decided):
    for d, _ in decided:
        by_weight = d.unit in ("head", "branch") and d.chosen is None
        shares = d.weights if by_weight else assignment(d) / assignment(d).sum(1, keepdims=True)
        assert unit_load(d).tolist() == near(shares.mean(0).tolist())


@pytest.mark.parametrize("label", ["token", "side"])
def test_pmi(decided, label):
    for d, _ in decided:
        if d.scope == "everything":
            continue
        table = pmi(d, label, top=50, min_count=2).set_index(["unit", "name"])
        assigned, names = assignment(d)[d.positions.index], d.positions[label].to_numpy()
        for unit, name in itertools.product(range(len(assigned.T)), {*names}):
            shares, n = assigned[names == name, unit], len({*d.positions.index[names == name]})
            assert ((unit, name) in table.index) == (n >= 2 and shares.any())
            if (unit, name) in table.index:
                row, p, z = table.loc[unit, name], shares.mean(), 1.959964
                overall = assigned[:, unit].mean()
                assert row["occurrences"] == len(shares)
                assert row["pmi"] == near(math.log(p / overall))
                for end in ("low", "high"):  # Wilson's: where the score test just rejects
                    q = overall * math.exp(row[end])
                    assert (p - q) ** 2 == near(z**2 * q * (1 - q) / n)


def epsilon(pairs):
    """ε² of pairs of a class and weights; None if nothing varies, or each has its own class."""
    groups, mean = defaultdict(list), np.mean([w for _, w in pairs], 0)
    for name, weights in pairs:
        groups[name].append(weights)
    total = sum(((w - mean) ** 2).sum() for _, w in pairs)
    if total < 1e-12 or len(groups) == len(pairs):
        return None
    between = sum(len(ws) * ((np.mean(ws, 0) - mean) ** 2).sum() for ws in groups.values())
    chance = (len(groups) - 1) / (len(pairs) - 1)
    return (between / total - chance) / (1 - chance)


def test_epsilon_squared(decided):
    for d, _ in decided:
        for label in d.labels:
            rows = zip(d.rows["sequence"], d.rows[label], d.weights.astype(float), strict=True)
            if label == "first":  # a class of sequences: a sequence counts once
                groups = defaultdict(list)
                for number, name, weights in rows:
                    if isinstance(name, str):
                        groups[number, name].append(weights)
                pairs = [(name, np.mean(ws, 0)) for (_, name), ws in groups.items()]
            elif label == "position":  # 0, 1, 2 to 3, 4 to 7, ...
                pairs = [(place.bit_length(), weights) for _, place, weights in rows]
            else:
                pairs = [(name, weights) for _, name, weights in rows]
            measured, expected = epsilon_squared(d, label), epsilon(pairs)
            assert math.isnan(measured) if expected is None else measured == near(expected)


def test_layer_similarity(decided):
    tables = [d for d, _ in decided if d.scope == "position"]
    columns = [d.weights.astype(float) for d in tables] + [d.rows[["level"]] for d in tables[:1]]
    similarity = layer_similarity(tables, ["level"]) if tables else None
    for i, x in enumerate(map(np.asarray, columns)):
        for j, y in enumerate(map(np.asarray, columns)):
            if tables[0].weights.shape[1] == 2:
                expected = np.corrcoef(x[:, 0], y[:, 0])[0, 1]
            else:  # by products of rows, not of columns
                xx, yy = ((z - z.mean(0)) @ (z - z.mean(0)).T for z in (x, y))
                expected = (xx * yy).sum() / np.linalg.norm(xx) / np.linalg.norm(yy)
            assert similarity.iloc[i, j] == near(expected)


# --- what is collected -------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "read"), [(1, 4), (40, 8)])
def test_a_sample_has_the_same_whole_batches_of_all_systems(limit, read):
    network, data = model("seq2seq", SYSTEMS["moa"]), batches("seq2seq")
    tables = collect(network, data)
    for whole, d in zip(tables, collect(network, data, limit=limit), strict=True):
        number = (whole.rows["sequence"] < read).sum()
        assert d.sequences == d.rows["sequence"].nunique() == read
        pd.testing.assert_frame_equal(d.rows, whole.rows[:number])
        assert np.array_equal(d.weights, whole.weights[:number])


@pytest.mark.parametrize("system", ["mae", "moh"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "bart"])
def test_gated_models_of_transformers_without_padding(name, system):
    network = architectures.gate(name, system)
    batch = architectures.labelled(name, network)
    batch = {key: batch[key] for key in ("input_ids", "attention_mask", "labels") if key in batch}
    if name in architectures.PAIRS:  # of which the decoder is told nothing but by the labels
        batch["attention_mask"] = (~architectures.padding(*batch["input_ids"].shape)).long()
    alone = []
    for row, mask in enumerate(batch["attention_mask"].bool()):
        labels = batch["labels"][row : row + 1]
        labels = labels[labels != -100][None] if name in architectures.PAIRS else labels[:, mask]
        alone.append({"input_ids": batch["input_ids"][row : row + 1, mask], "labels": labels})
    together, apart = collect(network, [batch]), collect(network, alone)
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

    def forward(self, scale, x):
        return self.second(self.first(scale * x).output).output


def test_a_module_of_ones_own_in_training():
    network = Plain()
    first, second = collect(network, [{"scale": 0.5, "x": torch.randn(3, 5, 16)}])
    assert network.training and network.second.training
    assert (first.place, second.place) == ("first", "second")
    assert (first.scope, [*first.rows], first.system) == ("sequence", ["sequence"], "mae")
    assert (second.scope, len(second.rows), second.labels) == ("position", 15, ["position"])


def test_what_cannot_be_read_is_told():
    with pytest.raises(ValueError, match="Linear without an"):
        collect(nn.Linear(2, 2), [])


def test_a_model_that_diverged_has_no_answers():
    weights = np.full((6, 2), np.nan)
    places = {"sequence": [0, 0, 1, 1, 2, 2], "position": 0, "token": list("aabbcc")}
    d = DecisionTable("path", "mae", "", 0, "expert", weights, None, pd.DataFrame(places), 3)
    assert entropy(d)[["mean", "low", "high"]].isna().all() and unit_load(d).isna().all()
    assert pmi(d, min_count=1).empty and math.isnan(epsilon_squared(d, "token"))
    assert layer_similarity([d, d]).isna().all(axis=None)


# --- what a run keeps ---------------------------------------------------------------------------


class Few:
    """A task whose items are sequences of tokens, of these lengths."""

    def __init__(self, lengths):
        self.lengths, self.read = lengths, []

    def stored_items(self, part):
        assert part == "validation"
        return self

    def __getitems__(self, indices):
        self.read.append(indices)
        return [torch.arange(index, index + self.lengths[index]) % 20 + 3 for index in indices]

    def collate(self, items):
        mask = [torch.ones(len(item), dtype=torch.long) for item in items]
        columns = {"input_ids": items, "attention_mask": mask}
        return {key: nn.utils.rnn.pad_sequence(x, batch_first=True) for key, x in columns.items()}

    describe = staticmethod(describe)


@pytest.mark.parametrize("name", ["standard", "mae", "moa", "weighted"])
def test_a_monitor_measures_a_few_sequences_of_the_validation_part(name):
    task, network = Few([5, 3, 8, 8, 2] * 20), model("causal", PLANS[name])
    monitor = decision_monitor(task, 64)
    figures = monitor(network)
    assert figures == monitor(network)  # and the data are read once
    assert len({i for indices in task.read for i in indices}) == sum(map(len, task.read)) == 32
    assert all(max(task.lengths[i] for i in each) * len(each) <= 64 for each in task.read)
    data = [task.collate(task.__getitems__(indices)) for indices in list(task.read)]
    expected = {}
    for d in collect(network, data, describe):
        mean, *_, even = entropy(d)
        expected |= {f"entropy {d.place}": mean, f"even entropy {d.place}": even}
        expected |= {f"share {d.place}/{unit}": share for unit, share in unit_load(d).items()}
        expected |= {f"explained {d.place}/{x}": epsilon_squared(d, x) for x in d.labels}
    expected = {key: value for key, value in expected.items() if math.isfinite(value)}
    assert bool(expected) == (name != "standard")
    assert figures == pytest.approx(expected, abs=1e-5)
