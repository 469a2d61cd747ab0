"""Routing equals its naive twins, forward and backward, and no votes make it NaN."""

import functools

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from headwise.heads.agreement import routing
from headwise.heads.agreement.em import EM
from headwise.heads.agreement.simple import Simple
from headwise.heads.agreement.votes import first_shares, mean_over_heads, weighted_sum

# leading shape, heads, embed_dim, capsules, iterations
SIZES = {
    "the paper's": ((7,), 4, 12, None, 3),
    "two leading dimensions": ((2, 3), 3, 8, None, 3),
    "no leading dimension": ((), 4, 6, None, 3),
    "no tokens": ((0,), 4, 6, None, 3),
    "one token": ((1,), 2, 4, 4, 2),
    "one head": ((5,), 1, 6, 6, 3),
    "one capsule": ((5,), 3, 6, 1, 3),
    "wide capsules": ((5,), 4, 12, 3, 3),
    "capsules of two": ((5,), 3, 12, 6, 4),
    "one iteration": ((5,), 3, 8, 8, 1),
    "many iterations": ((5,), 4, 8, None, 7),
}
ALGORITHMS = {  # of as many capsules as votes are wide, unless a test says otherwise
    "em": EM(0),
    "em at 30": EM(0, inverse_temperature=30.0),
    "em without activations": EM(0, activation="none"),
    "em of standardised costs": EM(0, activation="standardised"),
    "simple": Simple(0),
    "simple unsquashed": Simple(0, squash=False),
    "simple over heads": Simple(0, normalize="heads"),
}
METHODS = ("em", "em at 30", "simple", "simple unsquashed")  # the paper's
each_algorithm = pytest.mark.parametrize("method", ALGORITHMS)
each_method = pytest.mark.parametrize("method", METHODS)


# Of one head all costs are equal: what would be standardised are rounding errors.
REAL = [
    (size, method)
    for size, (_, heads, *_) in SIZES.items()
    for method in ALGORITHMS
    if heads > 1 or method != "em of standardised costs"
]


def leaf(*shape: int, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, dtype=dtype) * scale).requires_grad_()


def betas(method: str, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Far from 0, for their gradients to matter."""
    values = {
        "em": (20.0, -30.0),
        "em at 30": (0.3, -0.2),
        "em of standardised costs": (0.3, -0.2),
    }.get(method, ())
    return tuple(torch.tensor(x, dtype=dtype, requires_grad=True) for x in values)


def route(method: str, votes: Tensor, *scalars: Tensor, naive: bool = False, **sizes):
    sizes["num_capsules"] = sizes.get("num_capsules") or votes.size(-1)
    algorithm = ALGORITHMS[method]._replace(**sizes)
    if isinstance(algorithm, EM):
        scalars = scalars or 2 * (votes.new_zeros(()),)
    way = algorithm.plain if naive else functools.partial(routing.route, algorithm)
    return way(votes, *scalars)


def both(method: str, inputs: tuple[Tensor, ...], **sizes):
    """Outputs, weights and gradients of a random direction, of the fast and the naive twin."""
    fast = route(method, *inputs, **sizes)
    naive = route(method, *inputs, naive=True, **sizes)
    direction = torch.randn_like(naive.output)
    for routed in (fast, naive):
        yield *routed, *torch.autograd.grad(routed.output, inputs, direction)


@pytest.mark.parametrize("chunk", [1, 70, 2**19])
@pytest.mark.parametrize(("size", "method"), REAL)
def test_fast_is_naive(size, method, chunk, monkeypatch):
    monkeypatch.setattr(routing, "_CHUNK", chunk)
    monkeypatch.setattr(routing, "_SMALL_CHUNK", chunk)
    leading, heads, dim, capsules, iterations = SIZES[size]
    inputs = (leaf(*leading, heads, dim), *betas(method))
    fast, naive = both(method, inputs, num_capsules=capsules, iterations=iterations)
    for one, other in zip(fast, naive, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("size", "method"), REAL)
def test_gradients_equal_finite_differences(size, method):
    leading, heads, dim, capsules, iterations = SIZES[size]
    if not all(leading):
        pytest.skip("nothing to differentiate")

    def output(*inputs):
        return route(method, *inputs, num_capsules=capsules, iterations=iterations).output

    assert torch.autograd.gradcheck(output, (leaf(*leading, heads, dim), *betas(method)))


@pytest.mark.parametrize("method", ["em at 30", "em of standardised costs"])
@pytest.mark.parametrize("capsules", [12, 4, 1])
def test_each_capsule_may_have_betas_of_its_own(capsules, method):
    inputs = (leaf(6, 4, 12), leaf(capsules), leaf(capsules))
    for one, other in zip(*both(method, inputs, num_capsules=capsules), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


HARD_VOTES = {
    "zeros": lambda shape: torch.zeros(shape),
    "ones": lambda shape: torch.ones(shape),
    "identical": lambda shape: torch.randn(shape[-1]).expand(shape) * 1.0,
    "identical and huge": lambda shape: torch.randn(shape[-1]).expand(shape) * 1e4,
    "huge": lambda shape: torch.randn(shape) * 1e4,
    "tiny": lambda shape: torch.randn(shape) * 1e-20,
    "one huge head": lambda shape: torch.randn(shape) * torch.logspace(4, -4, shape[-2])[:, None],
    "one huge capsule": lambda shape: torch.randn(shape) * torch.logspace(4, -4, shape[-1]),
    "some zeros": lambda shape: torch.randn(shape) * (torch.rand(shape) < 0.3),
    "integers": lambda shape: torch.randint(-1, 2, shape) * 100.0,
}


@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        *((method, torch.float32) for method in ALGORITHMS),
        *((method, dtype) for method in METHODS for dtype in (torch.bfloat16, torch.float64)),
    ],
)
@pytest.mark.parametrize("heads, dim, capsules", [(8, 32, 32), (1, 8, 8), (8, 256, 4), (8, 64, 1)])
@pytest.mark.parametrize("kind", HARD_VOTES)
def test_no_votes_make_it_nan(kind, method, heads, dim, capsules, dtype):
    votes = HARD_VOTES[kind]((20, heads, dim)).to(dtype).requires_grad_()
    inputs = (votes, *betas(method))
    routed = route(method, *inputs, num_capsules=capsules)
    grads = torch.autograd.grad(routed.output, inputs, torch.randn_like(votes[:, 0]))
    for x in (*routed, *grads):
        assert x.isfinite().all()
    torch.testing.assert_close(routed.weights.sum(-1).double(), torch.ones(20).double())


@each_method
def test_half_precision_computes_in_float32(method):
    half = torch.randn(9, 4, 12).bfloat16().requires_grad_()
    wide = half.detach().float().requires_grad_()
    scalars = betas(method, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        got = route(method, half, *scalars)
    expected = route(method, wide, *scalars)
    assert got.output.dtype == torch.bfloat16
    assert got.weights.dtype == torch.float32
    torch.testing.assert_close(got.output, expected.output.bfloat16(), rtol=0, atol=0)
    torch.testing.assert_close(got.weights, expected.weights, rtol=0, atol=0)
    got.output.sum().backward()
    expected.output.sum().backward()
    assert half.grad.dtype == torch.bfloat16
    torch.testing.assert_close(half.grad, wide.grad.bfloat16(), rtol=0, atol=0)


@each_method
def test_strided_votes(method):
    """Heads first in memory, as products of all heads at once leave them; any order gives the
    same, and gradients come in the order of the votes.
    """
    by_head = leaf(4, 6, 12)
    votes = by_head.transpose(0, 1)
    inputs = (votes, *betas(method))
    strided, expected = route(method, *inputs), route(method, votes.contiguous(), *inputs[1:])
    for one, other in zip(strided, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-15)
    (grad,) = torch.autograd.grad(strided.output.square().sum(), votes)
    (wanted,) = torch.autograd.grad(expected.output.square().sum(), votes)
    torch.testing.assert_close(grad, wanted)
    assert grad.stride() == votes.stride()


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_what_is_frozen_gets_no_gradient(frozen):
    inputs = (leaf(5, 4, 6), *betas("em"))
    inputs[frozen].requires_grad_(False)
    route("em", *inputs).output.square().sum().backward()
    assert [x.grad is None for x in inputs] == [i == frozen for i in range(3)]


@each_method
def test_only_the_votes_are_kept_for_the_backward_pass(method):
    votes = leaf(50, 4, 12)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        route(method, votes, *betas(method))
    assert sum(x.numel() for x in kept) <= votes.numel() + 2
    assert any(x.data_ptr() == votes.data_ptr() for x in kept)


@each_method
def test_an_outer_compile_keeps_one_graph(method):
    torch.compiler.reset()
    inputs = (leaf(7, 4, 12), *betas(method))
    whole = functools.partial(route, method, num_capsules=4)
    found = []
    for function in (whole, torch.compile(whole, fullgraph=True, backend="aot_eager")):
        routed = function(*inputs)
        found.append([*routed, *torch.autograd.grad(routed.output.sin().sum(), inputs)])
    torch.testing.assert_close(*found)


def compiled_chunks(monkeypatch, chunk: int, backend) -> None:
    """Compile from the first element on, by `backend`, in chunks of so many elements."""
    torch.compiler.reset()
    routing._compiled_methods.cache_clear()
    monkeypatch.delenv("HEADWISE_COMPILE", raising=False)
    monkeypatch.setattr(routing, "_LARGE", 1)
    monkeypatch.setattr(routing, "_BACKEND", backend)
    monkeypatch.setattr(routing, "_has_compiler", lambda device: True)
    monkeypatch.setattr(routing, "_COMPILED_CHUNK", chunk)


@pytest.mark.parametrize("capsules", [None, 3])
def test_a_capsule_whose_weights_all_vanish_is_still_a_mean(capsules):
    """Votes far apart, in float32: no head's density reaches some of the capsules."""
    votes = leaf(64, 8, 12, dtype=torch.float32, scale=10.0)
    found, expected = both("em", (votes, *betas("em", torch.float32)), num_capsules=capsules)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@each_method
@pytest.mark.parametrize("capsules", [12, 4])
def test_compiled_chunks_and_the_rest_are_naive(method, capsules, monkeypatch):
    compiled_chunks(monkeypatch, 3 * 4 * 12, "aot_eager")
    inputs = (leaf(8, 4, 12), *betas(method))  # two chunks of three tokens, and two tokens
    for one, other in zip(*both(method, inputs, num_capsules=capsules), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@each_method
def test_another_number_of_tokens_is_not_compiled_again(method, monkeypatch):
    counter = CompileCounter()
    compiled_chunks(monkeypatch, 3 * 4 * 12, counter)
    for tokens in (3, 7, 20):
        for votes in (leaf(tokens, 4, 12), leaf(4, tokens, 12).transpose(0, 1)):
            route(method, votes, *betas(method)).output.sum().backward()
            single = votes.detach().float().requires_grad_()
            route(method, single, *betas(method, torch.float32)).output.square().sum().backward()
    assert counter.frame_count == 2 * 2  # of each dtype, forward and backward


def test_more_sizes_are_compiled_than_pytorch_compiles_of_a_function(monkeypatch):
    counter = CompileCounter()
    compiled_chunks(monkeypatch, 3 * 4 * 12, counter)
    for dims in range(2, 14):
        votes = torch.randn(3 * 4 * 12, 2, dims)
        routing.route(Simple(dims), votes)
    assert counter.frame_count == 12


@each_method
def test_where_compiling_fails_nothing_changes(method, monkeypatch, recwarn):
    calls = []

    def broken(graph, example):
        calls.append(graph)
        raise RuntimeError("no such compiler")

    compiled_chunks(monkeypatch, 3 * 4 * 12, broken)
    inputs = (leaf(8, 4, 12), *betas(method))
    for _ in range(2):
        for one, other in zip(*both(method, inputs), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    assert len(calls) == 2  # forward and backward, each tried once
    assert len(recwarn.list) == 2
    assert all("without torch.compile" in str(warning.message) for warning in recwarn.list)


@pytest.mark.parametrize(
    "wish, large, compiler, expected",
    [
        (None, True, True, True),
        (None, False, True, False),
        (None, True, False, False),
        ("1", False, True, True),
        ("1", True, False, False),
        ("0", True, True, False),
    ],
)
def test_what_is_compiled(wish, large, compiler, expected, monkeypatch):
    monkeypatch.setattr(routing, "_has_compiler", lambda device: compiler)
    monkeypatch.setattr(routing, "_LARGE", 10)
    monkeypatch.delenv("HEADWISE_COMPILE", raising=False)
    if wish is not None:
        monkeypatch.setenv("HEADWISE_COMPILE", wish)
    assert routing.is_worth_compiling(torch.zeros(10 if large else 9)) == expected


def test_equal_shares_are_a_mean_to_the_digit():
    """A power of two scales without rounding, so that training stays as it was."""
    votes = torch.randn(8, 5, 6, 3)
    assert torch.equal(mean_over_heads(votes), weighted_sum(first_shares(votes, None), votes))
