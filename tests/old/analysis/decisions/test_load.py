"""How the work is shared: of decisions made up, and of random ones against plain loops."""

import math

import pytest
import torch
from decided import Choosing, Leading, Weighing, batch, place, random_padding, random_weights

from headwise.analysis.decisions.load import Load, LoadRecord
from headwise.analysis.decisions.observing import Observed
from headwise.heads.system import Routing


def found(*batches: list[Observed]) -> LoadRecord:
    load = Load()
    for observed in batches:
        load.add(observed)
    (record,) = load.result()
    return record


def test_a_balanced_load_is_even_by_every_measure() -> None:
    """Four units take turns."""
    weights = torch.eye(4)[torch.arange(8).view(2, 4) % 4]
    record = found(batch({place(): Routing(weights)}))
    for shares in (record.leads, record.weight):
        assert shares.shares == [0.25] * 4
        assert (shares.variation, shares.largest, shares.unused) == (0, 1, 0)
        assert (shares.entropy, shares.effective) == (pytest.approx(1), pytest.approx(4))
        assert shares.errors == [0] * 4  # both sequences have all four
    assert record.chosen is None
    assert record.balance == pytest.approx(1)


def test_a_unit_that_nobody_uses() -> None:
    """Unit 2 has weight everywhere and never leads; unit 3 has none."""
    weights = torch.tensor([[[0.6, 0.1, 0.3, 0.0], [0.2, 0.5, 0.3, 0.0]]])
    record = found(batch({place(): Routing(weights)}))
    assert record.leads.shares == pytest.approx([0.5, 0.5, 0, 0])
    assert record.weight.shares == pytest.approx([0.4, 0.3, 0.3, 0])
    assert (record.leads.unused, record.weight.unused) == (2, 1)
    assert record.leads.effective == pytest.approx(2)
    assert record.leads.entropy == pytest.approx(0.5)
    assert record.balance == pytest.approx(4 * (0.5 * 0.4 + 0.5 * 0.3))


def test_choices_are_counted_whatever_they_weigh() -> None:
    weights = torch.tensor([[[0.9, 0.1, 0.0, 0.0], [0.0, 0.3, 0.7, 0.0]]])
    indices = torch.tensor([[[0, 1], [2, 1]]])
    record = found(batch({place(Choosing): Routing(weights, indices)}))
    assert record.chosen is not None
    assert record.chosen.shares == pytest.approx([0.25, 0.5, 0.25, 0])
    assert record.leads.shares == pytest.approx([0.5, 0, 0.5, 0])
    assert record.weight.shares == pytest.approx([0.45, 0.2, 0.35, 0])
    assert record.balance == pytest.approx(4 * (0.25 * 0.45 + 0.5 * 0.2 + 0.25 * 0.35))
    assert record.share == record.chosen
    assert record.chosen.unused == 1


def test_the_share_of_a_system_is_what_its_words_say() -> None:
    routing = Routing(random_weights(3, 4, 5))
    record = found(batch({place(Leading): routing}))
    assert record.share == record.leads
    record = found(batch({place(Weighing): routing}))
    assert record.share == record.weight
    record = found(batch({place(Choosing): routing}))  # which has not chosen
    assert record.share == record.weight


def test_random_weights_against_plain_loops() -> None:
    weights, padding = random_weights(6, 9, 4), random_padding(6, 9)
    record = found(batch({place(): Routing(weights, padding=padding)}))
    rows = [
        (sequence, row)
        for sequence in range(6)
        for row, left_out in zip(weights[sequence].tolist(), padding[sequence], strict=True)
        if not left_out
    ]
    assert record.rows == len(rows)
    leads = [(sequence, [float(w == max(row)) for w in row]) for sequence, row in rows]
    for shares, taken in ((record.weight, rows), (record.leads, leads)):
        assert shares.errors is not None
        for unit, (share, error) in enumerate(zip(shares.shares, shares.errors, strict=True)):
            mean = sum(row[unit] for _, row in taken) / len(taken)
            assert share == pytest.approx(mean)
            residuals = [sum(row[unit] - mean for s, row in taken if s == i) for i in range(6)]
            variance = 6 / 5 * sum(residual**2 for residual in residuals)
            assert error == pytest.approx(math.sqrt(variance) / len(taken))
        spread = math.sqrt(sum((share - 0.25) ** 2 for share in shares.shares) / 4)
        assert shares.variation == pytest.approx(spread / 0.25)
        entropy = -sum(share * math.log(share) for share in shares.shares)
        assert shares.effective == pytest.approx(math.exp(entropy))
        assert shares.entropy == pytest.approx(entropy / math.log(4))
    balance = 4 * sum(f * p for f, p in zip(record.leads.shares, record.weight.shares, strict=True))
    assert record.balance == pytest.approx(balance)


def test_chance_alone_makes_shares_of_few_sequences_uneven() -> None:
    """Units that lead at random: the variation is what chance alone would make it."""
    draws = torch.Generator().manual_seed(0)
    squares, by_chance = 0.0, 0.0
    for _ in range(200):
        leaders = torch.randint(8, (40,), generator=draws)
        record = found(batch({place(): Routing(torch.eye(8)[leaders])}))
        assert record.leads.variation_by_chance is not None
        squares += record.leads.variation**2
        by_chance += record.leads.variation_by_chance**2
    assert squares == pytest.approx(by_chance, rel=0.1)
    assert squares / 200 == pytest.approx(7 / 40, rel=0.1)


def test_a_decision_for_everything_has_no_chance() -> None:
    where = place(Weighing)
    routing = Routing(torch.tensor([0.5, 0.3, 0.2]))
    record = found(batch({where: routing}), batch({where: routing}))
    assert record.share.shares == pytest.approx([0.5, 0.3, 0.2])
    assert (record.rows, record.share.errors, record.share.variation_by_chance) == (2, None, None)


def test_weights_of_a_run_that_diverged() -> None:
    record = found(batch({place(): Routing(torch.full((2, 3, 2), math.nan))}))
    assert math.isnan(record.balance) and math.isnan(record.weight.entropy)
    assert LoadRecord.model_validate_json(record.model_dump_json()).rows == 6


def test_calls_of_one_batch_decide_for_the_same_sequences() -> None:
    """Twice the same decisions: shares and their errors are those of one call."""
    where, weights = place(), random_weights(6, 5, 4)
    once = batch({where: Routing(weights)})
    one, two = found(once), found([*once, *once])
    assert two.rows == 2 * one.rows
    assert two.weight.shares == pytest.approx(one.weight.shares)
    assert two.weight.errors == pytest.approx(one.weight.errors)
    assert one.leads.errors == pytest.approx(two.leads.errors) and max(one.weight.errors) > 0
