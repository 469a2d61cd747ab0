"""Routing equals its naive twins, forward and backward, and no votes make it NaN."""

import functools
import shutil

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from headwise.heads.agreement import compiling, routing
from headwise.heads.agreement.em import EM
from headwise.heads.agreement.naive import naive_em_routing
from headwise.heads.agreement.simple import Simple
from headwise.heads.agreement.votes import exponential

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


@pytest.mark.parametrize("activation", ["sigmoid", "standardised"])
@pytest.mark.parametrize("capsules", [12, 4, 1])
def test_each_capsule_may_have_betas_of_its_own(capsules, activation):
    inputs = (leaf(6, 4, 12), leaf(capsules), leaf(capsules))
    algorithm = EM(capsules, inverse_temperature=20.0, activation=activation)
    fast, naive = routing.route(algorithm, *inputs), algorithm.plain(*inputs)
    torch.testing.assert_close(fast, naive)
    direction = torch.randn_like(naive.output)
    for one, other in zip(
        *(torch.autograd.grad(routed.output, inputs, direction) for routed in (fast, naive)),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_standardised_costs_are_of_no_scale():
    """With β of zero the activations have 1 as their mean logit's deviation, whatever the votes."""
    votes, zero = torch.randn(8, 50, 128, 1), torch.zeros(())
    for scale in (1e-2, 1.0, 1e2):
        last = EM(128, activation="standardised").steps(scale * votes, zero, zero)[-1]
        assert last.temperature == 3
        torch.testing.assert_close(last.logit.std(-1, correction=0), torch.full((50,), 3.0))


def test_simple_routing_over_heads_is_the_equation():
    votes = torch.tensor([[1.0, 2.0], [3.0, -2.0]], dtype=torch.float64)
    c = (votes.mean(0) * votes).softmax(0)
    routed = routing.route(Simple(2, 2, squash=False, normalize="heads"), votes)
    torch.testing.assert_close(routed.output, (c * votes).sum(0))


@each_method
@pytest.mark.parametrize("capsules", [12, 4])
def test_weights_are_mean_shares(method, capsules):
    votes = torch.randn(6, 5, 12, dtype=torch.float64)
    equal = route(method, votes, *betas(method), num_capsules=capsules, iterations=1).weights
    torch.testing.assert_close(equal, torch.full_like(equal, 1 / 5))
    routed = route(method, votes, *betas(method), num_capsules=capsules)
    torch.testing.assert_close(routed.weights.sum(-1), torch.ones(6, dtype=torch.float64))
    assert routed.weights.std() > 1e-3
    assert not routed.weights.requires_grad


@pytest.mark.parametrize("limit", [0.01, 4.0])
def test_naive_em_is_the_equation(limit):
    """One token, two heads, two capsules, two iterations, with a calculator's steps."""
    votes = torch.tensor([[1.0, 2.0], [3.0, 2.5]], dtype=torch.float64)
    beta_a, beta_u = betas("em at 30")
    entropy = (1 + torch.tensor(2 * torch.pi, dtype=torch.float64).log()) / 2
    mu, sigma = votes.mean(0), (votes[0] - votes[1]).abs() / 2
    activation = torch.sigmoid(limit * 0.05 * (beta_a - beta_u - (sigma.log() + entropy)))
    density = torch.exp(-((votes - mu) ** 2) / (2 * sigma**2)) / (sigma * (2 * torch.pi) ** 0.5)
    c = activation * density / (activation * density).sum(1, keepdim=True)
    mass = c.sum(0)
    mu = (c * votes).sum(0) / mass
    variance = (c * (votes - mu) ** 2).sum(0) / mass
    logit = beta_a - beta_u * mass - (variance.sqrt().log() + entropy) * mass
    expected = torch.sigmoid(limit * (1 - 0.95**2) * logit) * mu
    got = naive_em_routing(votes, beta_a, beta_u, iterations=2, inverse_temperature=limit).output
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    ("limit", "least", "most"), [(0.01, 0, 1e-4), (10, 1e-3, 0.1), (100, 0.1, 1)]
)
def test_only_a_large_inverse_temperature_has_activations_decide(limit, least, most):
    """128 capsules of one dimension, as in the paper: each has 8/128 of the heads' weights."""
    votes = torch.randn(8, 50, 128, 1)
    zero = torch.zeros(())
    last = EM(128, 3, limit).steps(votes, zero, zero)[-1]
    away = float((last.logit.sigmoid() - 0.5).abs().max())
    assert least <= away <= most


def test_naive_simple_is_the_equation():
    votes = torch.tensor([[1.0, 2.0], [3.0, -2.0]], dtype=torch.float64)
    c = (votes.mean(0) * votes).softmax(1)
    expected = (c * votes).sum(0) / c.sum(0)
    routed = routing.route(Simple(2, 2, squash=False), votes)
    torch.testing.assert_close(routed.output, expected)
    squashed = routing.route(Simple(1, 1), votes).output
    torch.testing.assert_close(squashed, torch.tensor([4.0, 0.0], dtype=torch.float64) / 5)


@each_algorithm
def test_one_iteration_is_the_mean_of_the_votes(method):
    votes = torch.randn(6, 5, 12, dtype=torch.float64)
    output = route(method, votes, *betas(method), iterations=1).output
    mean = votes.mean(-2)
    if method in ("simple unsquashed", "em without activations"):
        torch.testing.assert_close(output, mean)
    else:  # in the direction of the mean, but shorter
        assert ((output / mean > 0) & (output / mean < 1)).all()


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
@pytest.mark.parametrize("capsules", [48, 6])
def test_float32_is_near_float64(method, capsules):
    votes = torch.randn(30, 8, 48)
    exact = route(method, votes.double(), *betas(method), num_capsules=capsules)
    got = route(method, votes, *betas(method, torch.float32), num_capsules=capsules)
    torch.testing.assert_close(got.output.double(), exact.output, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(got.weights.double(), exact.weights, rtol=1e-3, atol=1e-4)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_powers_that_vanish_stay_normal(dtype):
    log = (torch.randn(3, 40, dtype=dtype) * 300).log_softmax(-1)
    power = exponential(log)
    least = torch.finfo(dtype).smallest_normal
    assert log.exp().min() < least <= power.min()
    torch.testing.assert_close(power, log.exp(), rtol=0, atol=4 * least)


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

    def function(votes, *scalars):
        return route(method, votes, *scalars, num_capsules=4)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    inputs = (leaf(7, 4, 12), *betas(method))
    got, expected = compiled(*inputs), function(*inputs)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other)
    direction = torch.randn_like(expected.output)
    for one, other in zip(
        torch.autograd.grad(got.output, inputs, direction),
        torch.autograd.grad(expected.output, inputs, direction),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def compiled_chunks(monkeypatch, chunk: int, backend) -> None:
    """Compile from the first element on, by `backend`, in chunks of so many elements."""
    torch.compiler.reset()
    routing._compiled_methods.cache_clear()
    monkeypatch.delenv("HEADWISE_COMPILE", raising=False)
    monkeypatch.setattr(compiling, "_LARGE", 1)
    monkeypatch.setattr(compiling, "_BACKEND", backend)
    monkeypatch.setattr(compiling, "_has_compiler", lambda device: True)
    monkeypatch.setattr(routing, "_CHUNK", chunk)


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
    monkeypatch.setattr(compiling, "_has_compiler", lambda device: compiler)
    monkeypatch.setattr(compiling, "_LARGE", 10)
    monkeypatch.delenv("HEADWISE_COMPILE", raising=False)
    if wish is not None:
        monkeypatch.setenv("HEADWISE_COMPILE", wish)
    assert compiling.is_worth_compiling(torch.zeros(10 if large else 9)) == expected


def test_a_wish_that_means_nothing(monkeypatch):
    monkeypatch.setenv("HEADWISE_COMPILE", "yes")
    with pytest.raises(ValueError, match="HEADWISE_COMPILE is 'yes', expected 0"):
        compiling.is_worth_compiling(torch.zeros(1))


@pytest.mark.slow
@each_method
def test_compiles_with_inductor(method, monkeypatch):
    """To C++; needs a compiler."""
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs g++")
    compiled_chunks(monkeypatch, 3 * 4 * 32, "inductor")
    inputs = (leaf(8, 4, 32), *betas(method))
    for one, other in zip(*both(method, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    assert all(
        method._fast is not method.function
        for method in routing._compiled_methods(ALGORITHMS[method]._replace(num_capsules=32))
    )


def test_algorithms_of_equal_settings_are_compiled_apart():
    simple, em = Simple(4, 3, True, "none"), EM(4, 3, 1.0, "none")
    assert simple == em  # as tuples
    assert routing._compiled_methods(simple) is not routing._compiled_methods(em)
    assert routing._compiled_methods(em) is routing._compiled_methods(EM(4, 3, 1.0, "none"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("capsules", [12, 4])
@each_method
def test_cuda(method, capsules):
    votes, scalars = torch.randn(70, 4, 12), betas(method, torch.float32)
    results = []
    for device in ("cpu", "cuda"):
        inputs = [x.detach().to(device).requires_grad_() for x in (votes, *scalars)]
        routed = route(method, *inputs, num_capsules=capsules)
        grads = torch.autograd.grad(routed.output.square().sum(), inputs)
        results.append([x.cpu() for x in (*routed, *grads)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
