"""What every system must stand: extreme numbers, few bits, compilers, checkpoints, transforms."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from support.forms import ATTENTIONS, NINE, build, inputs, padding, turns
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

import headwise as hw

BATCH, TIME = 3, 5

PADDING = padding(5, 3, 0, time=TIME)  # the last sequence is hidden throughout
each_system = pytest.mark.parametrize("name", NINE)


def output_tensors(out):
    """The tensors of an output that hold numbers of its graph."""
    routing = out.routing
    tensors = [out.output] if routing is None else [out.output, routing.weights, routing.loss]
    return [each for each in tensors if each is not None]


def gradients(module, total):
    learning = {name: p for name, p in module.named_parameters() if p.requires_grad}
    slopes = torch.autograd.grad(total, [*learning.values()], allow_unused=True)
    return dict(zip(learning, slopes, strict=True))


def weighed(output):
    """A sum in which all numbers count, and none as much as another."""
    weights = torch.linspace(-1, 2, output.numel(), dtype=output.dtype).view_as(output)
    return (output * weights).sum()


EXTREME = {
    "huge": lambda x: 1e6 * x,
    "zero": torch.zeros_like,
    "all alike": lambda x: x[:1, :1].expand_as(x).clone(),
}


@pytest.mark.parametrize("kind", EXTREME)
@each_system
def test_extreme_inputs_give_finite_numbers(name, kind):
    """In training with padding, and with all that a sequence could attend to hidden."""
    module = build(name, dtype=torch.float32, train=True)
    x = EXTREME[kind](inputs(BATCH, TIME, dtype=torch.float32)).requires_grad_()
    for masks in ({"key_padding_mask": PADDING}, {"attn_mask": torch.ones(TIME, TIME).bool()}):
        out = module(x, **masks)
        sum(weighed(each.float()) for each in output_tensors(out)).backward()
        assert all(each.isfinite().all() for each in output_tensors(out))
    for label, slope in [("x", x.grad), *((n, p.grad) for n, p in module.named_parameters())]:
        assert slope is None or slope.isfinite().all(), label


@each_system
def test_in_half_precision_all_masks_hide_the_same(name):
    """True, -inf, -1e4, and of float32 also what is less than float16 can hold."""
    dtype = torch.float16
    module = build(name, dtype=dtype)
    x, hidden = inputs(BATCH, TIME, dtype=dtype), padding(5, 3, 2, time=TIME)
    later = torch.ones(TIME, TIME, dtype=torch.bool).triu(1)
    expected = module(x, key_padding_mask=hidden, attn_mask=later, need_weights=True)
    assert all(each.isfinite().all() for each in output_tensors(expected))
    minimum = torch.finfo(torch.float32).min
    for value in (float("-inf"), -1e4, -1e9, minimum):
        wide = torch.float32 if value in (-1e9, minimum) else dtype
        masks = [torch.zeros(m.shape, dtype=wide).masked_fill(m, value) for m in (hidden, later)]
        found = module(x, key_padding_mask=masks[0], attn_mask=masks[1], need_weights=True)
        torch.testing.assert_close(found.output[~hidden], expected.output[~hidden])
        torch.testing.assert_close(found.weights, expected.weights)
    changed = x.masked_fill(hidden.unsqueeze(-1), 7.0)
    found = module(changed, key_padding_mask=hidden, attn_mask=later)
    torch.testing.assert_close(found.output[~hidden], expected.output[~hidden])


@each_system
def test_under_autocast_decisions_and_losses_stay_in_float32(name):
    module, x = build(name, dtype=torch.float32, train=True), inputs(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = module(x, is_causal=True)
    assert name not in ATTENTIONS or out.output.dtype == torch.bfloat16  # a layer's norm widens
    assert {each.dtype for each in output_tensors(out)[1:]} <= {torch.float32}
    sum(each.float().sum() for each in output_tensors(out)).backward()
    assert {p.grad.dtype for p in module.parameters() if p.grad is not None} == {torch.float32}


@pytest.mark.parametrize("causal", [False, True])
@each_system
def test_no_value_is_read_on_the_host(name, causal):
    """Tensors without values, at which a look is an error, in training and in decoding by steps."""
    module = build(name, dtype=torch.float32, train=True).to("meta")
    x = inputs(BATCH, TIME, dtype=torch.float32).to("meta").requires_grad_()
    hidden = torch.zeros(BATCH, TIME, dtype=torch.bool, device="meta")
    for masks in ({}, {"key_padding_mask": hidden}):
        module(x, is_causal=causal, **masks).output.square().sum().backward()
    cache = hw.AttentionCache()
    with torch.no_grad():
        for t in range(TIME if causal else 0):
            masks = {"key_padding_mask": hidden[:, : t + 1], "is_causal": True}
            module.eval()(x[:, t : t + 1], **masks, cache=cache)
    assert x.grad is not None


@each_system
def test_compiles_to_one_graph(name):
    module = build(name, train=True)
    twin, x = copy.deepcopy(module), inputs(BATCH, TIME)
    torch.compiler.reset()
    compiled = torch.compile(twin, fullgraph=True, backend="eager")
    masks = {"is_causal": True, "key_padding_mask": PADDING}
    expected, got = module(x, **masks), compiled(x, **masks)
    torch.testing.assert_close(output_tensors(got), output_tensors(expected))
    slopes = [gradients(m, weighed(out.output)) for m, out in ((module, expected), (twin, got))]
    torch.testing.assert_close(*slopes)
    torch.testing.assert_close(dict(module.named_buffers()), dict(twin.named_buffers()))


class OutputOf(torch.nn.Module):
    def __init__(self, system):
        super().__init__()
        self.system = system

    def forward(self, x, mask=None):
        return self.system(x, is_causal=True, attn_mask=mask).output


@pytest.mark.parametrize("masked", [False, True])
@each_system
def test_an_exported_program_takes_batches_of_any_size(name, masked):
    module = OutputOf(build(name))
    batch, time = (torch.export.Dim(size) for size in ("batch", "time"))
    shapes = ({0: batch, 1: time}, {0: batch, 2: time, 3: time})[: 1 + masked]

    def call(batch, time):
        mask = torch.randn(batch, 1, time, time, dtype=torch.float64)
        return (inputs(batch, time), mask)[: 1 + masked]

    program = torch.export.export(module, call(3, 4), dynamic_shapes=shapes)
    assert not any("headwise" in str(node.target) for node in program.graph.nodes)
    for sizes in ((3, 4), (5, 7), (5, 5)):
        given = call(*sizes)
        torch.testing.assert_close(program.module()(*given), module(*given))


def test_positions_outlive_an_export_and_a_pass_in_inference_mode():
    module, x = build("standard", head_dim=4), inputs(BATCH, TIME)
    positions, expected = turns(TIME, module), module(x, rotary=turns(TIME, module)).output

    class Turned(torch.nn.Module):
        def forward(self, x):
            return module(x, rotary=positions).output

    torch.export.export(Turned(), (x,), strict=False)
    with torch.inference_mode():
        torch.testing.assert_close(Turned()(x), expected)
    output = Turned()(x)
    torch.testing.assert_close(output, expected)
    output.sum().backward()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*quant")
@pytest.mark.parametrize("name", ATTENTIONS)
def test_quantised_maps_compute_nearly_the_same(name):
    module, x = build(name, dtype=torch.float32, drawn=False), inputs(dtype=torch.float32)
    quantised = torch.ao.quantization.quantize_dynamic(module, {torch.nn.Linear})
    torch.testing.assert_close(quantised(x).output, module(x).output, rtol=0, atol=0.1)


@pytest.mark.parametrize("causal", [False, True])
@each_system
def test_gradient_checkpointing_changes_no_gradient(name, causal):
    """Nor statistics, which a backward pass that repeats the forward pass must not move again."""
    module = build(name, train=True, **({"gate_dropout": 0.3} if name == "mae" else {}))
    twin, x = copy.deepcopy(module), inputs(BATCH, TIME).requires_grad_()
    torch.manual_seed(2)

    def read(module, x):
        return module(x, is_causal=causal).output

    for _ in range(2):  # by the second, statistics have moved
        (weighed(read(module, x)) + weighed(read(module, 2 * x))).backward()
    expected, x.grad = x.grad, None
    torch.manual_seed(2)
    for _ in range(2):
        reads = [checkpoint(read, twin, k * x, use_reentrant=False) for k in (1, 2)]
        sum(map(weighed, reads)).backward()
    torch.testing.assert_close(x.grad, expected)
    for parameter, expected_parameter in zip(twin.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected_parameter.grad)
    torch.testing.assert_close(dict(twin.named_buffers()), dict(module.named_buffers()))


def test_passes_of_a_step_read_the_statistics_from_before_it():
    """MAE's gates of single queries, until each pass has its gradients or is given up."""
    layer, x = build("mae", train=True, gate_dropout=0.0), inputs(BATCH, TIME)

    def read(k):
        return layer(k * x, is_causal=True).output

    def alone(k):
        twin = copy.deepcopy(layer)  # whose step begins
        return twin(k * x, is_causal=True).output

    first, expected = read(1), alone(3)
    second, third = read(2), read(3)
    assert not torch.equal(third, expected)  # statistics have moved, but for this step
    first.sum().backward()
    torch.testing.assert_close(read(3), third)  # the second pass is still to come
    second.sum().backward()
    del second, third
    expected = alone(3)
    torch.testing.assert_close(read(3), expected)


def test_gradients_through_the_statistics_of_a_batch_are_finite_differences():
    """Those by which MAE's gates of sequences are normalised in training; see test_equations.py."""
    module = build("mae", train=True, gate_hidden_dim=3)
    parameters = dict(module.named_parameters())
    masks = {"key_padding_mask": padding(5, 3, 0, 2, time=TIME)}

    def compute(x, *values):
        state = dict(zip(parameters, values, strict=True))
        return functional_call(module, state, (x,), masks).output

    arguments = [inputs(4, TIME).requires_grad_(), *parameters.values()]
    assert torch.autograd.gradcheck(compute, arguments, fast_mode=True)


@each_system
@pytest.mark.parametrize(("batch", "time"), [(0, TIME), (BATCH, 0)])
def test_a_batch_of_no_tokens_trains_nothing(name, batch, time):
    """A shard, or a filter, may leave none: the loss is finite, and no statistic moves."""
    module = build(name, train=True)
    statistics = {label: buffer.clone() for label, buffer in module.named_buffers()}
    shapes = [(batch, 1, time, time), (batch * getattr(module, "num_heads", 1), time, time)]
    masks = [{"attn_mask": torch.zeros(shape)} for shape in shapes]
    hidden = {"key_padding_mask": PADDING[:batch, :time]}
    for given in ({}, {"is_causal": True}, hidden, *masks):
        out = module(inputs(batch, time), **given)
        assert out.output.shape == (batch, time, 12)
        (out.output.sum() + hw.auxiliary_loss(module)).backward()
        assert hw.auxiliary_loss(module).isfinite()
    assert not any(p.grad.any() for p in module.parameters() if p.grad is not None)
    torch.testing.assert_close(dict(module.named_buffers()), statistics)


@each_system
def test_in_the_middle_of_a_step_a_copy_is_its_own(name):
    """As averages of weights make them, where the loss of a pass is still to go backward."""
    module = build(name, train=True)
    loss = weighed(module(inputs()).output)
    twins = [copy.deepcopy(module), pickle.loads(pickle.dumps(module))]
    (loss + hw.auxiliary_loss(module)).backward()
    assert any(p.grad is not None and p.grad.any() for p in module.parameters())
    for twin in twins:
        assert all(p.grad is None for p in twin.parameters())
        expected, found = (each.eval()(inputs(time=2) * 0 + 1).output for each in (module, twin))
        torch.testing.assert_close(found, expected)
    assert module.routing_loss is None or module.routing_loss.requires_grad


def alive(references):
    if any(each() is not None for each in references):
        gc.collect()
    return [each() for each in references if each() is not None]


@each_system
def test_no_tensor_survives_its_graph_and_its_module(name):
    """What a pass keeps for its backward pass goes with the output, and weights with the module."""
    module, saved = build(name, train=True), []

    def note(x):
        alone = x.detach()  # itself it would hold the graph that holds it
        saved.append(weakref.ref(alone))
        return alone

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        out = module(inputs().requires_grad_().exp(), is_causal=True)
        loss = weighed(out.output) + hw.auxiliary_loss(module)
    assert len(alive(saved)) == len(saved) > 5
    del out, loss
    module.routing_loss = None  # which would stay until the next pass
    assert alive(saved) == []
    weighed(module(inputs()).output).backward()
    held = [weakref.ref(each) for each in (module, *module.parameters())]
    del module
    assert alive(held) == []
