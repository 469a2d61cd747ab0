"""What every module must stand: half precision, compilation, copies, checkpoints, printing."""

import copy
import pickle

import pytest
import torch
from systems import DIM, SYSTEMS, padding

import headwise as hw
from headwise.ops import replicas

BATCH, TIME = 2, 5


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", SYSTEMS)
def test_bf16_autocast_is_near_float32(name, causal, train):
    module = SYSTEMS[name].build(dtype=torch.float32, train=train)
    if "moa" in name:  # so clear a choice that rounding does not turn it
        module.router.weight.data.mul_(20)
    if "moh" in name and module.routed_router is not None:
        module.routed_router.weight.data.mul_(20)
    x = torch.randn(BATCH, TIME, DIM)
    masks = {"is_causal": causal, "key_padding_mask": padding(5, 3, time=TIME)}
    expected = copy.deepcopy(module)(x, **masks)  # in training a pass moves the statistics
    with torch.autocast("cpu", torch.bfloat16):
        out = module(x, **masks)
        out.output.float().sum().backward()
        with torch.no_grad():
            assert module(x.bfloat16(), **masks).output.dtype == torch.bfloat16
    # A pre-norm layer adds to the residual stream, which keeps its precision.
    adds = getattr(module, "pre_norm", False)
    assert out.output.dtype == (torch.float32 if adds else torch.bfloat16)
    error = (out.output.float() - expected.output).norm() / expected.output.norm()
    # Rounding is standardised with the costs, where those of few capsules are near one another.
    assert 0 < error < (0.4 if "standardised" in name else 0.1)
    if out.routing is not None:
        assert out.routing.weights.dtype == torch.float32
        torch.testing.assert_close(
            out.routing.weights, expected.routing.weights, rtol=0.05, atol=0.05
        )
        if out.routing.loss is not None:
            assert out.routing.loss.dtype == torch.float32
            torch.testing.assert_close(
                out.routing.loss, expected.routing.loss, rtol=0.05, atol=0.05
            )
    assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", SYSTEMS)
def test_a_process_evaluates_without_the_others(monkeypatch, name, gradients):
    def wait_for_ever(x):
        raise AssertionError("the others do not evaluate")

    monkeypatch.setattr(replicas, "replicas", lambda: 2)
    monkeypatch.setattr(replicas.dist, "all_reduce", wait_for_ever)
    x = torch.randn(BATCH, TIME, DIM)
    with torch.set_grad_enabled(gradients):
        SYSTEMS[name].build(dtype=torch.float32, train=False)(x)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (40, 12)], ids=str)
@pytest.mark.parametrize("name", SYSTEMS)
def test_without_gradients_the_output_is_the_same(name, shape):
    """Few rows then go other ways, which round otherwise; in float64."""
    module = SYSTEMS[name].build(train=False)
    x = torch.randn(*shape, DIM, dtype=torch.float64)
    expected = module(x, is_causal=True)
    with torch.no_grad():
        out = module(x, is_causal=True)
    torch.testing.assert_close(out.output, expected.output.detach())
    if out.routing is not None:
        torch.testing.assert_close(out.routing.weights, expected.routing.weights.detach())


# Whole models of each system are compiled in tests/compatibility/test_pytorch.py.
@pytest.mark.parametrize(
    "name, causal",
    [
        ("mae-7", False),
        ("mae window", True),
        ("gated by a softplus of few entries from a neutral start", True),
        ("gated by elements of shares of the input", False),
        ("moh by query norms", True),
        ("moa dense", True),
        ("agreement-simple", False),
        ("differential", False),
        *((name, True) for name in SYSTEMS if "modern" in name),
    ],
)
def test_compiles_to_one_graph(name, causal):
    torch.compiler.reset()
    module = SYSTEMS[name].build(dtype=torch.float32, train=True)
    compiled = torch.compile(copy.deepcopy(module), fullgraph=True, backend="aot_eager")
    x = torch.randn(BATCH, TIME, DIM, requires_grad=True)
    masks = {"is_causal": causal, "key_padding_mask": padding(5, 3, time=TIME)}
    expected, got = module(x, **masks), compiled(x, **masks)
    torch.testing.assert_close(got.output, expected.output, rtol=1e-4, atol=1e-5)
    grads = [torch.autograd.grad(out.output.square().sum(), x) for out in (got, expected)]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
    buffers = zip(compiled.buffers(), module.buffers(), strict=True)
    for mine, theirs in buffers:  # the running statistics moved alike
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("copied", ["state_dict", "deepcopy", "pickle"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_copies_compute_the_same(name, copied):
    """Running statistics are part of the state."""
    module = SYSTEMS[name].build()
    if copied == "state_dict":
        other = SYSTEMS[name].build()
        other.load_state_dict(module.state_dict())
    elif copied == "deepcopy":
        other = copy.deepcopy(module)
    else:
        other = pickle.loads(pickle.dumps(module))
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    assert torch.equal(other(x).output, module(x).output)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())


def test_checkpoints_hold_the_promised_names():
    def linear(*names):
        return {f"{name}.{kind}" for name in names for kind in ("weight", "bias")}

    standard = linear("q_proj", "k_proj", "v_proj", "out_proj")
    norm = {f"gate.norm.{x}" for x in ("running_mean", "running_var", "num_batches_tracked")}
    promised = {
        "standard": standard,
        "uni-mae": standard,
        "mae-7": standard | linear("gate.norm", "gate.hidden", "gate.output") | norm,
        "moa": {f"{x}.weight" for x in ("router", "k_proj", "v_proj")}
        | {"expert_query", "expert_output"},
    }
    for name, expected in promised.items():
        assert set(SYSTEMS[name].build().state_dict()) == expected


@pytest.mark.parametrize("size", ["8K8E128D", "16K32E256D", "8K32E64D"])
def test_moa_has_the_papers_number_of_parameters(size):
    """Equation 20, and E · d for the router."""
    with torch.device("meta"):
        moa = hw.MixtureOfAttentionHeads.from_size(512, size, dropout=0.1)
    experts, width = moa.num_experts, moa.head_dim
    count = sum(p.numel() for p in moa.parameters())
    assert count == (2 * experts + 2) * width * 512 + experts * 512
    assert f"{moa.top_k}K{experts}E{width}D" == size
    assert moa.dropout == 0.1


@pytest.mark.parametrize("name", SYSTEMS)
def test_dropout_is_of_training_only(name):
    module = SYSTEMS[name].build(dropout=0.5)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    assert torch.equal(module(x).output, module(x).output)
    module.train()
    assert not torch.equal(module(x, is_causal=True).output, module(x, is_causal=True).output)
