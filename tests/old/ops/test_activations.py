import math

import pytest
import torch

from headwise.ops.activations import ACTIVATIONS, GATED, hidden_width

FORMULAS = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu-tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "leaky-relu": lambda x: x if x > 0 else 0.01 * x,
}
GATES = {"swiglu": "silu", "geglu": "gelu"}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_each_is_its_formula(name):
    x = torch.randn(4, hidden_width(name, 3), dtype=torch.float64)
    formula = FORMULAS[GATES.get(name, name)]
    for row, got in zip(x.tolist(), ACTIVATIONS[name](x), strict=True):
        units = row if name not in GATED else row[:3]
        factors = [1.0] * 3 if name not in GATED else row[3:]
        expected = [formula(unit) * factor for unit, factor in zip(units, factors, strict=True)]
        torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64))
