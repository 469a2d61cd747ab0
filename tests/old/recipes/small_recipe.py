"""What the tests of recipes share: a small one, and what is said about wrong ones."""

import pytest

from headwise.recipes import RecipeError, load_recipe

DEMO = "interface-strings"
SMALL = """
description: small
model: {embed_dim: 16, num_heads: 4, dropout: 0.3}
training: {max_steps: 5, mae: {period: 2}}
systems:
  standard: {}
  mae:
    description: gated
    model: {attention: mae, dropout: 0.1}
    training: {max_steps: 7, mae: {unit: steps}}
"""


def message(name, *changes):
    """What is said about a recipe that cannot be used."""
    with pytest.raises(RecipeError) as caught:
        load_recipe(name, changes)
    return str(caught.value)
