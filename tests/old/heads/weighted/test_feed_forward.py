"""Branches through a feed-forward: fast forms against naive twins, forward and backward."""

import pytest
import reference
import torch

from headwise.heads.weighted import feed_forward
from headwise.ops.linear_maps import LinearMap

# batch, branches, time, head_dim, embed_dim, ffn_dim
SIZES = {
    "few tokens, not folded": (1, 4, 2, 3, 12, 16),
    "many tokens, folded": (3, 4, 20, 3, 12, 16),
    "one token": (1, 2, 1, 4, 8, 6),
    "one branch": (2, 1, 5, 6, 6, 10),
    "heads wider than the model": (2, 3, 9, 7, 5, 6),
    "no token": (0, 2, 3, 4, 8, 6),
}


def arguments(batch, count, time, head_dim, embed_dim, ffn_dim, dtype=torch.float64):
    """heads, W, κ, α, W₁, b₁, W₂, b₂; κ and α of either sign."""
    shapes = [(batch, count, time, head_dim), (count, head_dim, embed_dim), (count,), (count,)]
    shapes += [(ffn_dim, embed_dim), (ffn_dim,), (embed_dim, ffn_dim), (embed_dim,)]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def branched_feed_forward(heads, output, kappa, alpha, w1, b1, w2, b2, **how):
    up, down = LinearMap(w1, b1), LinearMap(w2, b2)
    return feed_forward.branched_feed_forward(heads, output, kappa, alpha, up, down, **how)


def naive_branched_feed_forward(
    heads, output, kappa, alpha, w1, b1, w2, b2, split=False, activation="relu"
):
    """Σᵢ αᵢ FFN(κᵢ oᵢWᵢ), one branch after the other."""
    count, total = heads.size(1), torch.zeros(())
    for i in range(count):
        units = len(b1) // count if split else len(b1)
        mine = slice(i * units, (i + 1) * units) if split else slice(0, units)
        z = kappa[i] * heads[:, i] @ output[i]  # (batch, time, embed_dim)
        hidden = reference.activation(activation, z @ w1[mine].t() + b1[mine])
        total = total + alpha[i] * (hidden @ w2[:, mine].t() + b2)
    return total


def assert_same(fast, naive, leaves, tolerance=1e-9):
    torch.testing.assert_close(fast, naive, rtol=tolerance, atol=tolerance)
    direction = torch.randn_like(naive)
    got, expected = (torch.autograd.grad((y * direction).sum(), leaves) for y in (fast, naive))
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


@pytest.fixture(params=[1, 100, 2**24], ids=lambda units: f"{units} units at once")
def chunks(request, monkeypatch):
    monkeypatch.setattr(feed_forward, "_HIDDEN_UNITS", request.param)


@pytest.mark.parametrize("activation", ["relu", "gelu", "leaky-relu"])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("name", SIZES)
def test_all_forms_equal_the_equation(name, split, activation, chunks):
    args, how = arguments(*SIZES[name]), {"split": split, "activation": activation}
    assert_same(
        branched_feed_forward(*args, **how), naive_branched_feed_forward(*args, **how), args
    )


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("folds", [False, True])
def test_folding_changes_nothing(monkeypatch, folds, split):
    monkeypatch.setattr(feed_forward, "_folded_macs", lambda *_: 0 if folds else 2)
    monkeypatch.setattr(feed_forward, "_unfolded_macs", lambda *_: 1)
    args = arguments(2, 4, 6, 3, 12, 16)
    fast = branched_feed_forward(*args, split=split)
    assert_same(fast, naive_branched_feed_forward(*args, split=split), args)


def test_at_a_tie_the_relu_passes_nothing():
    """As PyTorch's: the gradient at 0 is 0. With κ and b₁ zero every hidden unit is a tie."""
    args = arguments(2, 3, 30, 4, 8, 6)
    with torch.no_grad():
        args[2].zero_()
        args[5].zero_()
    assert_same(branched_feed_forward(*args), naive_branched_feed_forward(*args), args)
    kappa, up_bias = torch.autograd.grad(branched_feed_forward(*args).sum(), [args[2], args[5]])
    assert not kappa.any() and not up_bias.any()


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("time", [2, 40])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_compiler_gets_the_same_as_plain_operations(time, split, activation):
    torch.compiler.reset()
    args, how = arguments(2, 4, time, 3, 12, 16), {"split": split, "activation": activation}
    compiled = torch.compile(branched_feed_forward, fullgraph=True, backend="aot_eager")
    assert_same(compiled(*args, **how), branched_feed_forward(*args, **how), args)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_torch_func_gives_the_same_gradients(activation):
    args, how = arguments(2, 4, 60, 3, 12, 16), {"split": False, "activation": activation}

    def loss(*args):
        return branched_feed_forward(*args, **how).square().sum()

    got = torch.func.grad(loss, tuple(range(len(args))))(*args)
    torch.testing.assert_close(got, torch.autograd.grad(loss(*args), args))


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("time", [2, 60])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_autocast_computes_in_bf16_and_gives_gradients_as_parameters_are(time, split, activation):
    args = arguments(2, 4, time, 8, 32, 64, dtype=torch.float32)
    how = {"split": split, "activation": activation}
    expected = naive_branched_feed_forward(*args, **how)
    with torch.autocast("cpu", torch.bfloat16):
        fast = branched_feed_forward(*args, **how)
        # The backward pass runs within autocast too, where a training loop does so.
        got = torch.autograd.grad(fast.float().square().sum(), args)
    assert fast.dtype == torch.bfloat16
    assert (fast - expected).norm() < 0.03 * expected.norm()
    theirs = torch.autograd.grad(expected.square().sum(), args)
    for mine, exact in zip(got, theirs, strict=True):
        assert mine.dtype == torch.float32
        assert (mine - exact).norm() < 0.05 * exact.norm()


def test_dropout_drops_units_of_the_sum_for_all_branches_at_once():
    """With W₂ = 1, b₂ = 0 the output is the hidden layer: a unit is whole (doubled), or zero."""
    args = arguments(2, 3, 40, 4, 8, 8)
    args[6], args[7] = torch.eye(8, dtype=torch.float64), torch.zeros(8, dtype=torch.float64)
    whole, dropped = branched_feed_forward(*args), branched_feed_forward(*args, dropout=0.5)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2 * whole[kept])
    assert 0.4 < kept.double().mean() / (whole != 0).double().mean() < 0.6


def test_hidden_layers_of_the_branches_are_not_kept(monkeypatch):
    """Between the passes nothing of (tokens, branches, ffn_dim) is alive, and in them a part."""
    monkeypatch.setattr(feed_forward, "_HIDDEN_UNITS", 1000)
    sizes = []
    args = arguments(4, 4, 16, 3, 12, 64)
    real = torch.baddbmm

    def noted(*operands, **options):
        out = real(*operands, **options)
        sizes.append(out.numel())
        return out

    monkeypatch.setattr(torch, "baddbmm", noted)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: (kept.append(x.numel()), x)[1], lambda x: x
    ):
        out = branched_feed_forward(*args)
    out.sum().backward()
    assert max(sizes) <= 1000 and len(sizes) > 2
    assert max(kept) <= 4 * 16 * 64  # tokens times ffn_dim: what one feed-forward keeps
