import pytest
import torch

from headwise.ops.masks import (
    causal_mask,
    check_attention_mask,
    check_padding_mask,
    merge_masks,
    padding_positions,
)

INF = float("inf")


def test_padding_positions_of_every_kind_of_mask():
    expected = torch.tensor([[False, False, True], [False, True, True]])
    assert padding_positions(None) is None
    assert torch.equal(padding_positions(expected), expected)
    for never in (-INF, -1e9, -1e4, -1e3, torch.finfo(torch.float32).min):
        mask = torch.where(expected, never, torch.tensor([0.0, -3.0, 5.0]))
        assert torch.equal(padding_positions(mask), expected)
    for dtype in (torch.float16, torch.bfloat16):
        mask = torch.zeros(2, 3, dtype=dtype).masked_fill(expected, torch.finfo(dtype).min)
        assert torch.equal(padding_positions(mask), expected)
    assert torch.equal(padding_positions((expected * -1e4).bfloat16()), expected)


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_causal_mask_by_loops(offset):
    mask = causal_mask(3, 5, offset)
    for t in range(3):
        for s in range(5):
            assert mask[t, s] == (s > offset + t)


def blocked(mask):
    return mask if mask.dtype == torch.bool else mask == -INF


@pytest.mark.parametrize("key_float", [None, False, True])
@pytest.mark.parametrize("attn_float", [None, False, True])
@pytest.mark.parametrize("dims", [2, 3, 4])
@pytest.mark.parametrize("is_causal", [False, True])
def test_merging_by_loops(key_float, attn_float, dims, is_causal):
    batch, heads, queries, keys, offset = 2, 3, 2, 5, 2
    shape = {2: (queries, keys), 3: (batch * heads, queries, keys), 4: (batch, 1, queries, keys)}
    key_mask = attn_mask = None
    if key_float is not None:
        key_mask = torch.rand(batch, keys) < 0.3
        key_mask = torch.randn(batch, keys).masked_fill(key_mask, -INF) if key_float else key_mask
    if attn_float is not None:
        attn_mask = torch.rand(shape[dims]) < 0.3
        bias = torch.randn(shape[dims])
        attn_mask = bias.masked_fill(attn_mask, -INF) if attn_float else attn_mask
    merged = merge_masks(
        key_mask, attn_mask, is_causal, heads=heads, queries=queries, keys=keys, offset=offset
    )
    if merged is None:
        assert key_mask is None and attn_mask is None and not is_causal
        return
    assert merged.dtype == (torch.float32 if key_float or attn_float else torch.bool)
    merged = merged.expand(batch, heads, queries, keys)
    for b in range(batch):
        for h in range(heads):
            for t in range(queries):
                for s in range(keys):
                    cells = [] if key_mask is None else [key_mask[b, s]]
                    if attn_mask is not None:
                        place = {2: (t, s), 3: (b * heads + h, t, s), 4: (b, 0, t, s)}[dims]
                        cells.append(attn_mask[place])
                    never = is_causal and s > offset + t
                    never = never or any(bool(cell) for cell in cells if cell.dtype == torch.bool)
                    total = sum(float(cell) for cell in cells if cell.dtype != torch.bool)
                    if merged.dtype == torch.bool:
                        assert merged[b, h, t, s] == never
                    else:
                        assert merged[b, h, t, s] == pytest.approx(-INF if never else total)


def test_checks_accept_what_is_documented():
    check_padding_mask("mask", None, 2, 3)
    check_padding_mask("mask", torch.zeros(2, 3), 2, 3)
    check_attention_mask(None, 2, 4, 3, 5)
    for shape in ((3, 5), (8, 3, 5), (2, 1, 3, 5), (2, 4, 3, 5)):
        for dtype in (torch.bool, torch.float32, torch.bfloat16):
            check_attention_mask(torch.zeros(shape, dtype=dtype), 2, 4, 3, 5)


@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 5), (2, 2, 3, 5), (1, 1, 3, 5), (3,), (1, 5)])
def test_checks_give_expected_and_given_shapes(shape):
    with pytest.raises(ValueError) as error:
        check_attention_mask(torch.zeros(shape), 2, 4, 3, 5)
    text = str(error.value)
    assert str(shape) in text
    assert all(f in text for f in ("(3, 5)", "(8, 3, 5)", "(2, 1 or 4, 3, 5)"))


def test_checks_name_the_padding_mask_and_hint_at_swapped_dimensions():
    with pytest.raises(ValueError, match=r"seen has shape \(3, 2\).*\(2, 3\).*\(time, batch\)"):
        check_padding_mask("seen", torch.zeros(3, 2), 2, 3)
    with pytest.raises(ValueError, match=r"seen has shape \(4, 2\).*\(2, 3\)$"):
        check_padding_mask("seen", torch.zeros(4, 2), 2, 3)
    with pytest.raises(ValueError, match=r"seen has dtype torch\.int32"):
        check_padding_mask("seen", torch.zeros(2, 3, dtype=torch.int32), 2, 3)
