"""Which tokens go to which units: of decisions made up, and of random ones against plain loops."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from decided import Choosing, batch, place, random_padding, random_weights, standing
from scipy.stats import binomtest

from headwise.analysis.decisions.observing import Observed
from headwise.analysis.decisions.tokens import LEAST, Leader, Tokens, TokensRecord
from headwise.heads.system import Routing
from headwise.tasks.positions import Positions

NAMES = dict(enumerate(["the", "cat", "sat", "on", "mat"]))


def positions(tokens: torch.Tensor, classes: Mapping[str, torch.Tensor] | None = None) -> Positions:
    return replace(standing(tokens, classes), names=NAMES)


def found(*batches: list[Observed]) -> list[TokensRecord]:
    tokens = Tokens()
    for observed in batches:
        tokens.add(observed)
    return tokens.result()


def to_unit(units: torch.Tensor, number: int) -> Routing:
    """Each position goes to the unit of its number."""
    return Routing(torch.eye(number)[units])


def names(leaders: list[Leader]) -> list[str]:
    return [leader.name for leader in leaders]


def test_a_unit_that_takes_the_token_the_alone() -> None:
    """A fifth of the tokens are `the`; they go to unit 0, all others to unit 1."""
    tokens = torch.arange(100).view(4, 25) % 5
    (record,) = found(batch({place(): to_unit((tokens != 0).long(), 2)}, positions(tokens)))
    first, second = record.units
    assert (record.label, record.by, record.kinds, record.left_out) == ("token", "leads", 5, 0)
    assert (first.share, second.share) == (pytest.approx(0.2), pytest.approx(0.8))
    (the,) = first.leading
    assert (the.name, the.occurrences, the.decisions, the.with_unit) == ("the", 20, 20, 20)
    assert the.pmi == pytest.approx(math.log(1 / 0.2))
    low = binomtest(20, 20).proportion_ci(method="wilson").low
    assert (the.low, the.high) == (pytest.approx(math.log(low / 0.2)), pytest.approx(the.pmi))
    assert (first.standing_out, second.standing_out) == (1, 4)
    assert sorted(names(second.leading)) == ["cat", "mat", "on", "sat"]
    assert all(other.pmi == pytest.approx(math.log(1 / 0.8)) for other in second.leading)


def test_a_token_seen_once_never_leads() -> None:
    """It has the highest PMI there is; what is seen less often than the least is left out."""
    tokens = torch.zeros(3, 40, dtype=torch.int64)
    tokens[0, 0], tokens[1, :5], tokens[2, :20] = 1, 2, 3
    units = torch.ones_like(tokens)
    units[0, 0], units[1, :4], units[2, :16] = 0, 0, 0
    (record,) = found(batch({place(): to_unit(units, 2)}, positions(tokens)))
    assert (record.least, record.kinds, record.left_out) == (LEAST, 3, 1)
    # Both go to the unit in four of five cases, but one of them has been seen more often.
    leading = record.units[0].leading
    assert names(leading) == ["on", "sat"]
    assert leading[0].pmi == pytest.approx(leading[1].pmi)
    assert leading[0].low > leading[1].low
    assert record.units[0].share == pytest.approx(21 / 120)  # with the rare one


def test_equal_tokens_lead_by_number_however_the_data_are_ordered() -> None:
    tokens = torch.arange(20).flip(0).repeat(LEAST, 1)
    where, parts = place(), tokens.split(1, dim=1)
    (record,) = found(*(batch({where: to_unit(0 * part, 2)}, positions(part)) for part in parts))
    assert names(record.units[0].leading) == [*NAMES.values(), "5", "6", "7", "8", "9"]


def test_random_choices_against_plain_loops() -> None:
    weights, padding = random_weights(8, 30, 6), random_padding(8, 30)
    indices = weights.topk(2).indices
    tokens = torch.randint(25, (8, 30), generator=torch.Generator().manual_seed(1))
    routing = Routing(weights, indices, padding=padding)
    (record,) = found(batch({place(Choosing): routing}, positions(tokens)))
    seen = [
        (token, set(chosen))
        for line, choices, hidden in zip(tokens, indices, padding, strict=True)
        for token, chosen, left_out in zip(
            line.tolist(), choices.tolist(), hidden.tolist(), strict=True
        )
        if not left_out
    ]
    occurrences = [sum(token == t for t, _ in seen) for token in range(25)]
    often = [token for token in range(25) if occurrences[token] >= LEAST]
    assert record.by == "chosen"
    assert record.kinds == len(often)
    assert record.left_out == sum(0 < count < LEAST for count in occurrences)
    for number, unit in enumerate(record.units):
        share = sum(number in chosen for _, chosen in seen) / len(seen)
        assert unit.share == pytest.approx(share / 2)
        expected = []
        for token in often:
            taken = sum(token == t and number in chosen for t, chosen in seen)
            if taken:
                ends = binomtest(taken, occurrences[token]).proportion_ci(method="wilson")
                pmi = math.log(taken / occurrences[token] / share)
                name = NAMES.get(token, str(token))
                expected.append((math.log(ends.low / share), pmi, name, taken))
        expected.sort(key=lambda line: -line[0])
        assert unit.standing_out == sum(low > 0 for low, *_ in expected)
        assert len(unit.leading) == min(10, len(expected))
        for leader, (low, pmi, _, _) in zip(unit.leading, expected, strict=False):
            assert (leader.low, leader.pmi) == (pytest.approx(low), pytest.approx(pmi))
        # Tokens with equal intervals may stand in any order.
        lines = {(name, taken) for _, _, name, taken in expected}
        assert {(each.name, each.with_unit) for each in unit.leading} <= lines


def test_a_sequence_decides_for_each_of_its_tokens_but_only_once() -> None:
    """Twelve sequences; every second has ten times `cat` and goes to unit 0."""
    tokens = torch.zeros(12, 20, dtype=torch.int64)
    tokens[::2, :10] = 1
    units = torch.arange(12) % 2
    (record,) = found(batch({place(): to_unit(units, 2)}, positions(tokens)))
    (cat, the) = record.units[0].leading
    assert (cat.name, cat.occurrences, cat.decisions, cat.with_unit) == ("cat", 60, 6, 60)
    assert cat.pmi == pytest.approx(math.log(1 / 0.5))
    low = binomtest(6, 6).proportion_ci(method="wilson").low
    assert cat.low == pytest.approx(math.log(low / 0.5))
    assert (the.name, the.occurrences, the.decisions, the.with_unit) == ("the", 180, 12, 60)
    assert the.pmi == pytest.approx(math.log(60 / 180 / 0.5))


def test_labels_of_positions_and_of_sequences() -> None:
    """Side a goes to unit 0. The language is b throughout, or not known."""
    side = torch.tensor([[0, 0, 1, 1, -1]]).expand(8, 5)
    language = torch.tensor([1] * 6 + [-1] * 2)
    described = positions(
        torch.zeros(8, 5, dtype=torch.int64), {"side": side, "language": language}
    )
    units = side.clamp(min=0)
    tokens, of_side, of_language = found(batch({place(): to_unit(units, 2)}, described))
    assert [record.label for record in (tokens, of_side, of_language)] == [
        "token",
        "side",
        "language",
    ]
    a, b = (unit.leading for unit in of_side.units)
    assert (names(a), names(b)) == (["c0"], ["c1"])
    assert (a[0].occurrences, a[0].decisions, a[0].with_unit) == (16, 16, 16)
    assert a[0].pmi == pytest.approx(math.log(2))
    (leader,) = of_language.units[0].leading
    # Of six sequences of five positions, of which three go to unit 0.
    assert (leader.name, leader.occurrences, leader.decisions) == ("c1", 30, 6)
    assert (leader.with_unit, leader.pmi) == (18, pytest.approx(0))
