"""Standard attention is that of PyTorch, whatever the sizes, masks and widths."""

import torch
from fuzzing import examples, masks, random, seeds
from hypothesis import given
from hypothesis import strategies as st
from systems import as_float, randomize
from torch import Tensor, nn

import headwise as hw

sizes = st.integers(1, 5)


def theirs_of(given: dict, batch: int, heads: int, queries: int, keys: int) -> dict[str, Tensor]:
    """The same masks, as `nn.MultiheadAttention` takes them: floats, a matrix for each head."""
    total = torch.zeros(batch, heads, queries, keys, dtype=torch.float64)
    mask = given.get("attn_mask")
    if mask is not None:
        mask = as_float(mask) if mask.dtype == torch.bool else mask
        total += mask.view(batch, heads, queries, keys) if mask.dim() == 3 else mask
    if given["is_causal"]:
        total += as_float(torch.ones(queries, keys, dtype=torch.bool).triu(1))
    found = {"attn_mask": total.flatten(0, 1)}
    padding = given.get("key_padding_mask")
    if padding is not None:
        found["key_padding_mask"] = as_float(padding) if padding.dtype == torch.bool else padding
    return found


@given(st.data(), seeds, st.integers(1, 3), sizes, sizes, st.integers(1, 4), st.integers(1, 4))
@examples(suite=60, long=120)
def test_it_equals_pytorchs(data, seed, batch, queries, keys, heads, head_dim):
    cross = data.draw(st.booleans(), label="cross-attention")
    widths = {"bias": data.draw(st.booleans(), label="bias")}
    if cross:
        widths |= {name: data.draw(st.integers(1, 7), label=name) for name in ("kdim", "vdim")}
    keys = keys if cross else queries
    given = data.draw(masks(batch, heads, queries, keys), label="masks")
    torch.manual_seed(seed)
    dim = heads * head_dim
    theirs = nn.MultiheadAttention(dim, heads, batch_first=True, **widths).double()
    ours = hw.MultiHeadAttention(dim, heads, **widths).double()
    ours.load_state_dict(randomize(theirs).state_dict())
    query = random(batch, queries, dim).requires_grad_()
    key = random(batch, keys, widths["kdim"]).requires_grad_() if cross else query
    value = random(batch, keys, widths["vdim"]).requires_grad_() if cross else query
    expected, weights = theirs(
        query,
        key,
        value,
        average_attn_weights=False,
        **theirs_of(given, batch, heads, queries, keys),
    )
    out = ours(query, key, value, need_weights=True, **given)
    plain = ours(query, key, value, **given).output
    torch.testing.assert_close(plain, out.output)
    # Where nothing may be attended PyTorch gives NaN, and headwise reads zeros.
    attends = ~expected.isnan()
    torch.testing.assert_close(plain[attends], expected[attends])
    torch.testing.assert_close(out.weights, weights.nan_to_num())
    assert plain.isfinite().all()
    direction = torch.randn_like(expected)
    inputs = [x for x in (query, key, value) if x is not query] + [query]
    got = torch.autograd.grad((plain * direction).sum(), [*inputs, *ours.parameters()])
    assert all(gradient.isfinite().all() for gradient in got)
    if attends.all():
        wanted = torch.autograd.grad(
            (expected * direction).sum(), [*inputs, theirs.out_proj.weight]
        )
        torch.testing.assert_close(got[: len(inputs)], wanted[:-1])
        of_output = dict(zip(dict(ours.named_parameters()), got[len(inputs) :], strict=True))
        torch.testing.assert_close(of_output["out_proj.weight"], wanted[-1])
