"""PyTorch: function transforms, sharding, export, compilation, and what its users do to modules."""

import copy
import io
import json
import pickle

import processes
import pytest
import torch
from compatible import PLANS, compatible, tiny_model
from exporting import ONE_LAYER, dynamic_shapes, examples
from processes import model_without_dropout
from tiny import tokens
from torch.func import functional_call, grad, jvp, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torchrun import on_copies

from headwise.models.sites import attention_sites

TOOL = "PyTorch"
# PyTorch has no rule of its kernel for this, and says that a loop over the examples is slower.
pytestmark = [
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
    pytest.mark.filterwarnings("ignore:torch.searchsorted"),
]


def state(model):
    return dict(model.named_parameters()), dict(model.named_buffers())


def loss_of(model):
    """The loss as a function of parameters, buffers and tokens."""
    return lambda params, buffers, ids: (
        functional_call(model, (params, buffers), (ids,), {"labels": ids}).loss
    )


def gradients(model, ids):
    """By the usual backward pass."""
    model.zero_grad()
    model(ids, labels=ids).loss.backward()
    return {name: p.grad for name, p in model.named_parameters()}


def assert_same_gradients(got, expected):
    for name, value in expected.items():
        if value is not None:
            torch.testing.assert_close(got[name], value, rtol=1e-4, atol=1e-5)


@compatible(
    TOOL,
    "`torch.func`: `functional_call`, and `vmap` of `grad`, which gives gradients of each example",
)
def test_gradients_of_each_example(system):
    model, ids = tiny_model("causal", system), tokens(3, 5)
    loss = loss_of(model)
    each = vmap(grad(lambda p, b, row: loss(p, b, row[None])), (None, None, 0))
    got = each(*state(model), ids)
    for row in range(3):
        one = {name: value[row] for name, value in got.items()}
        assert_same_gradients(one, gradients(model, ids[row : row + 1]))


@compatible(
    TOOL, "`torch.func`: `vmap` over the models of an ensemble in training, whose statistics move"
)
def test_ensembles_in_training(system):
    models = [model_without_dropout(system, seed=seed).double() for seed in range(2)]
    ids = tokens(4, 5)  # in float64, since two ways to sum round otherwise on each processor
    params, buffers = stack_module_state(models)

    def loss_and_buffers(p, b, ids):
        given = {**p, **b}
        loss = functional_call(models[0], given, (ids,), {"labels": ids}).loss
        return loss, {name: given[name] for name in b}  # functional_call has put the new ones there

    step = vmap(grad(loss_and_buffers, has_aux=True), (0, 0, None))
    slopes, moved = step(params, buffers, ids)
    for i, model in enumerate(models):
        expected = gradients(model, ids)
        assert_same_gradients({name: value[i] for name, value in slopes.items()}, expected)
        for name, buffer in model.named_buffers():
            torch.testing.assert_close(moved[name][i], buffer)


@compatible(TOOL, "`torch.func.jvp`, with PyTorch's attention as plain operations")
def test_forward_mode(system):
    model, ids = tiny_model("causal", system), tokens(2, 5)
    params, buffers = state(model)
    loss = loss_of(model)
    direction = {name: torch.randn_like(p) for name, p in params.items()}
    with sdpa_kernel(SDPBackend.MATH):
        _, slope = jvp(lambda p: loss(p, buffers, ids), (params,), (direction,))
    slopes = grad(loss)(params, buffers, ids)
    expected = sum((slopes[name] * direction[name]).sum() for name in slopes)
    # PyTorch's forward mode makes float64 of some float32 numbers without dimensions.
    torch.testing.assert_close(slope, expected, rtol=1e-3, atol=1e-3, check_dtype=False)


@compatible(TOOL, "gradients of gradients, with PyTorch's attention as plain operations")
def test_second_derivatives(system):
    model, x = tiny_model("causal", system).double(), torch.randn(2, 3, 16, dtype=torch.float64)
    module = attention_sites(model)[0].module
    if system == "moa":  # the paper's wᵢ stops a gradient that finite differences see
        module.normalize_weights = False

    def output(x):
        return module(x, is_causal=True).output

    with sdpa_kernel(SDPBackend.MATH):
        assert torch.autograd.gradgradcheck(output, x.requires_grad_(), fast_mode=True)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """How far apart weights are after steps of two processes, by system; see `processes`."""
    found = tmp_path_factory.mktemp("processes") / "apart.json"
    on_copies(2, processes.__file__, found)
    return json.loads(found.read_text(encoding="utf-8"))


@pytest.mark.slow
@compatible(TOOL, "`fully_shard`, trained by the systems' rules on two processes")
def test_fully_shard(system, two_processes):
    assert two_processes[system]["fully_shard"] < 1e-10


@pytest.mark.slow
@compatible(TOOL, "`DistributedDataParallel`, likewise")
def test_data_parallel(system, two_processes):
    assert two_processes[system]["DDP"] < 1e-10


@pytest.mark.slow
@compatible(
    TOOL,
    "`torch.export` with batch and time of any size (PyTorch 2.13; 2.8 exports `standard` and "
    "`tim` alone)",
    needs=("torch>=2.13",),
)
def test_export(system):
    """Strictly; `test_onnx` exports in the other way."""
    model = tiny_model("causal", system, **ONE_LAYER["causal"])
    first, *others = examples("causal")
    shapes = dynamic_shapes("causal")
    program = torch.export.export(model, (), first, dynamic_shapes=shapes, strict=True)
    names = {str(node.target) for node in program.graph.nodes}
    assert not any("headwise" in name for name in names)  # it runs where headwise is not
    for inputs in others:
        torch.testing.assert_close(program.module()(**inputs).logits, model(**inputs).logits)


@pytest.mark.slow
@compatible(
    TOOL,
    "`torch.compile(dynamic=True, fullgraph=True)`, one graph for all sizes (PyTorch 2.13; of 2.8 "
    "`standard` and `tim` alone)",
    needs=("torch>=2.13",),
)
def test_compile(system):
    torch.compiler.reset()
    model = model_without_dropout(system, layers=1)
    other = copy.deepcopy(model)  # running statistics move with each pass
    compiled = torch.compile(other, backend="aot_eager", dynamic=True, fullgraph=True)

    def check(ids):
        expected = gradients(model, ids)
        other.zero_grad()
        compiled(ids, labels=ids).loss.backward()
        assert_same_gradients({name: p.grad for name, p in other.named_parameters()}, expected)

    check(tokens(3, 6))
    with torch.compiler.set_stance("fail_on_recompile"):
        check(tokens(5, 9))
        check(tokens(4, 3))
    for moved, expected in zip(other.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(moved, expected)


NESTED = "is a nested tensor, expected a padded one: pad it"


@compatible(TOOL, "nested (jagged) tensors", refused=dict.fromkeys(PLANS, NESTED))
def test_nested_tensors(system):
    rows = [torch.randn(length, 16) for length in (3, 5)]
    nested = torch.nested.nested_tensor(rows, layout=torch.jagged)
    attention_sites(tiny_model("causal", system))[0].module(nested)


def test_nested_tokens_are_refused():
    nested = torch.nested.nested_tensor([tokens(3), tokens(5)], layout=torch.jagged)
    with pytest.raises(ValueError, match=f"input_ids {NESTED}"):
        tiny_model("causal", "standard")(nested)


@compatible(TOOL, "`copy.deepcopy`, `pickle`, `torch.save`, `torch.load(weights_only=True)`")
def test_copies(system):
    model, ids = tiny_model("causal", system), tokens(2, 5)
    expected = model(ids).logits
    assert torch.equal(copy.deepcopy(model)(ids).logits, expected)
    assert torch.equal(pickle.loads(pickle.dumps(model))(ids).logits, expected)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = tiny_model("causal", system, seed=1)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(ids).logits, expected)


@compatible(TOOL, "made on the meta device, then `to_empty` and `reset_parameters`")
def test_meta_device(system):
    with torch.device("meta"):
        meta = copy.deepcopy(attention_sites(tiny_model("causal", system))[0].module)
    module = meta.to("meta").to_empty(device="cpu")
    module.reset_parameters()
    output = module(torch.randn(2, 5, 16), is_causal=True).output
    assert output.isfinite().all()


@compatible(TOOL, "`torch.set_default_dtype(torch.float64)`")
def test_default_dtype(system):
    torch.set_default_dtype(torch.float64)
    try:
        model, ids = tiny_model("causal", system).train(), tokens(2, 5)
        out = model(ids, labels=ids)
        out.loss.backward()
    finally:
        torch.set_default_dtype(torch.float32)
    assert out.logits.dtype == torch.float64
    assert {p.dtype for p in model.parameters()} == {torch.float64}
