"""Padding is read from every kind of mask that transformers hands to an attention."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from headwise.pretrained.masks import query_padding

# Two texts of five positions, of which the last three are the queries.
ATTENDED = torch.tensor([[0, 0, 0, 1, 1], [1, 1, 1, 1, 0]])
EXPECTED = [[True, False, False], [False, False, True]]
CAUSAL = torch.ones(5, 5).tril().bool()[2:]
BOOLEAN = ATTENDED[:, None, None].bool() & CAUSAL
ROOM = torch.zeros(2, 1, 3, 3, dtype=torch.bool)  # of a cache for eight positions

MASKS = {
    "boolean": BOOLEAN,
    "float": torch.zeros(BOOLEAN.shape).masked_fill(~BOOLEAN, torch.finfo(torch.float32).min),
    "half": torch.zeros(BOOLEAN.shape).half().masked_fill(~BOOLEAN, torch.finfo(torch.half).min),
    "of keys alone": ATTENDED,
    "for all queries alike": ATTENDED[:, None, None].bool(),
    "for each head": BOOLEAN.expand(2, 4, 3, 5),
    "with room behind": torch.cat([BOOLEAN, ROOM], dim=3),
}


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("cached", [2, torch.tensor(2)])
def test_masks(kind, cached):
    assert query_padding(MASKS[kind], queries=3, cached=cached).tolist() == EXPECTED


@pytest.mark.parametrize("cached", [9, torch.tensor(9)])
def test_a_cache_that_slides_holds_fewer_keys(cached):
    assert query_padding(BOOLEAN, queries=3, cached=cached).tolist() == EXPECTED


def test_block_masks():
    def attended(batch, head, query, key):
        return (query + 2 >= key) & ATTENDED.bool()[batch, key]

    mask = create_block_mask(attended, 2, None, 3, 5, device="cpu")
    assert query_padding(mask, queries=3, cached=2).tolist() == EXPECTED
