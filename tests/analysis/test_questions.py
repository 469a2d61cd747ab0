"""Each question to the decisions of a model equals a loop of a few lines, whatever the system."""

import math
from collections import defaultdict

import pytest
import torch
from support.analysed import analysed
from support.tiny_models import PLANS, inputs, model

import headwise as hw

SYSTEMS = [name for name in PLANS if name != "standard"]
MODELS = {
    **{name: lambda kind, name=name, **options: model(kind, name, **options) for name in SYSTEMS},
    "own": lambda kind, **options: model(kind, "support.analysed:Shared", **options),
}


def padded(count=3, rows=4, time=9):
    """Batches of tokens, the ends of whose rows are padding."""
    batches = []
    for seed in range(count):
        given = inputs("causal", rows, time, seed=seed)
        mask = torch.ones(rows, time, dtype=torch.long)
        for row in range(rows):
            mask[row, time - row :] = 0
        batches.append({**given, "attention_mask": mask})
    return batches


def decisions(made, batches):
    """Of each part the rows `(token, position, weights, chosen)` of real tokens."""
    found = defaultdict(list)
    for batch in batches:
        with hw.record(made) as recorded, torch.no_grad():
            made(**batch)
        for path, calls in recorded.items():
            for routing in calls:
                for row, real in enumerate(batch["attention_mask"]):
                    for t in range(int(real.sum())):
                        found[path].append(_row(batch, routing, row, t))
    return found


def _row(batch, routing, row, t):
    weights = routing.weights
    if weights.dim() == 3:
        weights = weights[row, t] if weights.size(1) > 1 else weights[row, 0]
    elif weights.dim() == 2:
        weights = weights[row]
    chosen = None if routing.indices is None else routing.indices[row, t].tolist()
    return int(batch["input_ids"][row, t]), t, (weights / weights.sum()).tolist(), chosen


@pytest.fixture(scope="module", params=MODELS)
def asked(request):
    """A causal model, its rows by plain loops, and what the analysis says."""
    made = MODELS[request.param]("causal")
    batches = padded()
    return decisions(made, batches), analysed(made, batches)


def by_position(rows, answers):
    """The parts that decide at each position, as the answers tell."""
    return {path: of for path, of in rows.items() if path in answers["ranges"]}


def mean(values):
    values = list(values)
    return math.fsum(values) / len(values)


def test_entropy_equals_a_plain_loop(asked):
    rows, answers = asked
    assert set(answers["entropy"]) == set(rows) and rows
    for path, of in by_position(rows, answers).items():
        found, _ = answers["entropy"][path]
        expected = mean(-sum(w * math.log(w) for w in weights if w > 0) for *_, weights, _ in of)
        assert found == pytest.approx(expected, abs=1e-5)


def test_load_equals_a_plain_loop(asked):
    rows, answers = asked
    for path, of in by_position(rows, answers).items():
        found, units = answers["load"][path], len(of[0][2])
        leads, chosen = [0.0] * units, [0.0] * units
        for _, _, weights, indices in of:
            best = [unit for unit in range(units) if weights[unit] == max(weights)]
            for unit in best:
                leads[unit] += 1 / len(best) / len(of)
            for unit in indices or ():
                chosen[unit] += 1 / len(indices) / len(of)
        weight = [mean(weights[unit] for *_, weights, _ in of) for unit in range(units)]
        assert found["rows"] == len(of)
        assert found["leads"] == pytest.approx(leads)
        assert found["weight"] == pytest.approx(weight)
        works = leads
        if of[0][3] is not None:
            assert found["chosen"] == pytest.approx(chosen)
            works = chosen
        expected = units * sum(f * p for f, p in zip(works, weight, strict=True))
        assert found["balance"] == pytest.approx(expected)


def test_tokens_of_a_unit_by_pointwise_mutual_information(asked):
    rows, answers = asked
    for path, of in by_position(rows, answers).items():
        goes = [
            dict.fromkeys(indices, 1.0)
            if indices is not None
            else {weights.index(max(weights)): 1.0}
            for *_, weights, indices in of
        ]
        total = sum(sum(units.values()) for units in goes)
        for unit, leading in enumerate(answers["tokens"][path]):
            p_unit = sum(units.get(unit, 0.0) for units in goes) / total
            for name, pmi in leading.items():
                of_token = [
                    units for (token, *_), units in zip(of, goes, strict=True) if str(token) == name
                ]
                at = sum(units.get(unit, 0.0) for units in of_token)
                p_given = at / sum(sum(units.values()) for units in of_token)
                assert pmi == (pytest.approx(math.log(p_given / p_unit)) if at else -math.inf)


def test_weights_that_a_token_gets(asked):
    rows, answers = asked
    for path, of in by_position(rows, answers).items():
        for token, units in answers["ranges"][path].items():
            weights = [weights for found, _, weights, _ in of if found == token]
            for unit, (least, average, greatest) in units.items():
                of_unit = [row[unit] for row in weights]
                expected = (min(of_unit), mean(of_unit), max(of_unit))
                assert (least, average, greatest) == pytest.approx(expected)


def test_the_share_of_decisions_that_tokens_explain(asked):
    rows, answers = asked
    for path, of in by_position(rows, answers).items():
        weights = torch.tensor([weights for *_, weights, _ in of], dtype=torch.float64)
        tokens = torch.tensor([token for token, *_ in of])
        between = sum(
            (tokens == token).sum()
            * (weights[tokens == token].mean(0) - weights.mean(0)).square().sum()
            for token in tokens.unique()
        )
        expected = between / (weights - weights.mean(0)).square().sum()
        assert answers["explained"][path, "token"] == pytest.approx(expected.item(), rel=1e-6)


def test_likeness_of_layers_equals_a_plain_loop(asked):
    rows, answers = asked
    for paths, likeness in answers["layers"].items():
        for i, one in enumerate(paths):
            for j, other in enumerate(paths):
                if one in answers["ranges"] and other in answers["ranges"]:
                    x, y = (
                        torch.tensor([w for *_, w, _ in rows[path]], dtype=torch.float64)
                        for path in (one, other)
                    )
                    assert likeness[i][j] == pytest.approx(_rv(x, y), abs=1e-6)


def _rv(x, y):
    """The RV coefficient, less what rows in random order have."""
    x, y = x - x.mean(0), y - y.mean(0)
    xx, yy, xy = x.T @ x, y.T @ y, x.T @ y
    rv = (xy * xy).sum() / ((xx * xx).sum() * (yy * yy).sum()).sqrt()
    beta = [s.trace() ** 2 / (s @ s).trace() for s in (xx, yy)]
    chance = (beta[0] * beta[1]).sqrt() / (len(x) - 1)
    return ((rv - chance) / (1 - chance)).item()


@pytest.mark.parametrize("name", ["mae", "moa", "agreement", "own"])
def test_padding_and_the_size_of_batches_change_nothing(name):
    made = MODELS[name]("causal")
    batches = padded(count=2)
    alone = [
        {
            key: x[row : row + 1, : int(batch["attention_mask"][row].sum())]
            for key, x in batch.items()
        }
        for batch in batches
        for row in range(4)
    ]
    together, apart = analysed(made, batches), analysed(made, alone)
    for question in ("entropy", "load", "explained"):
        for key, found in together[question].items():
            _assert_close(found, apart[question][key])


def _assert_close(found, expected):
    if isinstance(found, dict):
        assert found.keys() == expected.keys()
        for key, value in found.items():
            _assert_close(value, expected[key])
    else:
        assert found == pytest.approx(expected, abs=1e-6)
