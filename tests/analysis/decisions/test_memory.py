"""What questions keep of the batches does not grow with their number."""

import pickle
from typing import Any

import pytest
import torch
from decided import Choosing, batch, place, random_weights, standing

from headwise.analysis.decisions.entropy import Entropy
from headwise.analysis.decisions.load import Load
from headwise.analysis.decisions.tokens import Tokens
from headwise.heads.system import Routing


@pytest.mark.parametrize("kind", [Entropy, Load, Tokens])
def test_memory_does_not_grow_with_the_number_of_batches(kind: Any) -> None:
    weights = random_weights(4, 30, 8)
    routing = Routing(weights, weights.topk(2).indices)
    tokens = torch.arange(120).view(4, 30) % 50
    observed = batch({place(Choosing): routing}, standing(tokens, {"half": tokens // 25}))
    question, sizes = kind(), []
    for _ in range(40):
        question.add(observed)
        sizes.append(len(pickle.dumps(question)))
    assert sizes[-1] <= sizes[0] + 16  # numbers that are written in a byte or two more
