"""Sums by token, against a dictionary."""

from collections import defaultdict

import torch

from headwise.analysis.decisions.token_sums import TokenSums


def test_sums_of_tokens_as_in_a_dictionary() -> None:
    generator = torch.Generator().manual_seed(0)
    sums = TokenSums(2)
    expected: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for largest in (3, 50, 2, 400, 400):
        tokens = torch.randint(largest, (60,), generator=generator)
        values = torch.randint(9, (60, 2), generator=generator).double()
        sums.add(tokens, values)
        for token, row in zip(tokens.tolist(), values.tolist(), strict=True):
            expected[token] = [have + more for have, more in zip(expected[token], row, strict=True)]
    found = dict(zip(sums.tokens.tolist(), sums.sums.tolist(), strict=True))
    assert found == expected


def test_no_tokens_add_nothing() -> None:
    sums = TokenSums(1)
    sums.add(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 1, dtype=torch.float64))
    assert len(sums.tokens) == len(sums.sums) == 0
