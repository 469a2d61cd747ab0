"""Entropy of decisions whose entropy is known, and of random ones against plain loops."""

import math

import numpy as np
import pytest
import torch
from decided import Leading, Weighing, batch, place, random_padding, random_weights, standing

from headwise.analysis.decisions.entropy import STEP, Entropy, EntropyRecord, Histogram
from headwise.analysis.decisions.observing import Observed
from headwise.heads.system import Routing


def found(*batches: list[Observed]) -> EntropyRecord:
    entropy = Entropy()
    for observed in batches:
        entropy.add(observed)
    record = entropy.result()
    assert record is not None
    return record


def test_chosen_units_alone_count_as_uniform() -> None:
    weights = torch.tensor([[[0.5, 0.5, 0, 0], [0, 0.5, 0, 0.5]]])
    routing = Routing(weights, indices=torch.tensor([[[0, 1], [3, 1]]]))
    (module,) = found(batch({place(): routing})).modules
    assert module.spread.mean.value == pytest.approx(math.log(2)) == module.spread.uniform


def test_random_weights_against_plain_loops() -> None:
    weights, padding = random_weights(6, 20, 5), random_padding(6, 20)
    tokens = torch.randint(30, (6, 20), generator=torch.Generator().manual_seed(2))
    routing = Routing(weights, padding=padding)
    (module,) = found(batch({place(): routing}, standing(tokens))).modules
    rows = [
        (sequence, time, int(tokens[sequence, time]), -sum(w * math.log(w) for w in row))
        for sequence, of_sequence in enumerate(weights.double().tolist())
        for time, row in enumerate(of_sequence)
        if not padding[sequence, time]
    ]
    entropies = sorted(entropy for *_, entropy in rows)
    mean = sum(entropies) / len(rows)
    spread = module.spread
    assert (spread.rows, spread.mean.value) == (len(rows), pytest.approx(mean))
    deviation = math.sqrt(sum((entropy - mean) ** 2 for entropy in entropies) / len(rows))
    assert spread.deviation == pytest.approx(deviation, rel=1e-5)
    for percent, value in spread.percentiles.items():
        exact = entropies[round(percent / 100 * (len(rows) - 1))]
        assert value == pytest.approx(exact, abs=1 / 2048)
    residuals = [sum(e - mean for s, _, _, e in rows if s == sequence) for sequence in range(6)]
    error = math.sqrt(6 / 5 * sum(residual**2 for residual in residuals)) / len(rows)
    assert spread.mean.error == pytest.approx(error, rel=1e-4)
    # By position.
    classes = [(0, 0), (1, 1), (2, 2), (3, 3), (4, 7), (8, 15), (16, 31)]
    assert [(at.first, at.last) for at in module.by_position] == classes
    for at in module.by_position:
        of_class = [e for _, time, _, e in rows if at.first <= time <= at.last]
        assert at.rows == len(of_class)
        assert at.mean.value == pytest.approx(sum(of_class) / len(of_class))
    # By frequency.
    words = [token for _, _, token, _ in rows]
    for at_frequency in module.by_frequency:
        of_class = [
            e for *_, t, e in rows if at_frequency.fewest <= words.count(t) <= at_frequency.most
        ]
        kinds = {t for t in words if at_frequency.fewest <= words.count(t) <= at_frequency.most}
        assert (at_frequency.rows, at_frequency.tokens) == (len(of_class), len(kinds))
        assert at_frequency.mean == pytest.approx(sum(of_class) / len(of_class))
    assert sum(at.rows for at in module.by_frequency) == len(rows)
    assert [at.most + 1 for at in module.by_frequency] == [
        2 * at.fewest for at in module.by_frequency
    ]


def test_a_decision_of_a_sequence_is_one_row_without_a_position() -> None:
    tokens = standing(torch.tensor([[0, 1, 2], [0, 0, 0]]))
    weights = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    (module,) = found(batch({place(): Routing(weights)}, tokens)).modules
    assert (module.decides, module.spread.rows) == ("sequence", 2)
    assert module.spread.mean.value == pytest.approx(math.log(2) / 2)
    assert module.spread.mean.error == pytest.approx(math.log(2) / 2)
    assert module.by_position == module.by_frequency == []
    # Nor where nobody says what stands at the positions.
    (module,) = found(batch({place(): Routing(weights)})).modules
    assert (module.decides, module.by_position) == ("sequence", [])


def test_a_decision_for_everything_has_no_interval() -> None:
    where = place(Weighing)
    routing = Routing(torch.tensor([0.5, 0.25, 0.25]))
    record = found(batch({where: routing}), batch({where: routing}))
    spread = record.modules[0].spread
    assert record.modules[0].decides == "everything"
    assert (spread.mean.value, spread.mean.error) == (pytest.approx(1.5 * math.log(2)), None)
    assert record.models[0].spread.mean.error is None


def test_layers_and_the_model_are_means_of_their_modules() -> None:
    """Systems of one kind only are taken together, and each counts alike, whatever its rows."""
    self_0 = place(site="decoder_self")
    cross_0 = place(site="decoder_cross")
    self_1 = place(Weighing, 1, "decoder_self")
    encoder = place()
    even, certain = torch.full((2, 3, 2), 0.5), torch.tensor([1.0, 0.0]).expand(2, 3, 2)
    record = found(
        batch(
            {
                encoder: Routing(torch.tensor([[0.5, 0.5], [1.0, 0.0]])),
                self_0: Routing(even),
                cross_0: Routing(certain),
                self_1: Routing(even),
            }
        )
    )
    means = [
        (group.system.split(":")[1], group.stack, group.layer, group.spread.mean.value)
        for group in [*record.layers, *record.models]
    ]
    half = pytest.approx(math.log(2) / 2)
    assert means == [
        ("Leading", "encoder", 0, half),
        ("Leading", "decoder", 0, half),
        ("Weighing", "decoder", 1, pytest.approx(math.log(2))),
        ("Leading", "", None, half),
        ("Weighing", "", None, pytest.approx(math.log(2))),
    ]
    assert record.models[0].spread.rows == 2 + 6 + 6
    # Half of the model's rows and one more are certain.
    assert record.models[0].spread.percentiles == {10: 0, 50: 0, 90: pytest.approx(math.log(2))}
    # What the encoder does in the two sequences is all that differs between them.
    assert record.models[0].spread.mean.error == pytest.approx(math.log(2) / 2 / 3)


def test_a_system_that_is_called_twice_decides_twice() -> None:
    where = place(Leading)
    once = batch({where: Routing(torch.full((2, 3, 2), 0.5))})
    again = batch({where: Routing(torch.tensor([1.0, 0.0]).expand(2, 3, 2))})
    (module,) = found([*once, *again]).modules
    assert (module.spread.rows, module.spread.mean.value) == (12, pytest.approx(math.log(2) / 2))
    assert module.spread.mean.error == pytest.approx(0, abs=1e-8)


@pytest.mark.parametrize("weight", [math.nan, -1.0])
def test_weights_of_a_run_that_diverged_or_of_no_distribution(weight: float) -> None:
    record = found(batch({place(): Routing(torch.tensor([2.0, weight]).expand(2, 3, 2))}))
    assert math.isnan(record.models[0].spread.mean.value)
    assert EntropyRecord.model_validate_json(record.model_dump_json()).models[0].spread.rows == 6


def filled(values: np.ndarray) -> Histogram:
    found = Histogram()
    found.add(torch.tensor(values))
    return found


def test_percentiles_are_those_of_the_numbers_but_for_the_width_of_a_bin() -> None:
    values = np.random.default_rng(0).beta(0.5, 2.0, 5001) * math.log(8)
    halves = Histogram.of([filled(values[:2000]), filled(values[2000:])])
    ordered = np.sort(values)
    for percent, found in halves.percentiles.items():
        assert found == pytest.approx(ordered[round(percent / 100 * 5000)], abs=STEP)
    assert halves.percentiles == pytest.approx(filled(values).percentiles)
    assert halves.count == 5001
    assert halves.deviation == pytest.approx(values.std())
