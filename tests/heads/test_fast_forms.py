"""Large calls go other ways than small ones, and these ways compute the same.

The equations are compared with loops at small sizes. Here a call of many queries, which is computed
in chunks, by sorted tokens and by products made once for all, is compared with small calls.
"""

import pytest
import torch
from support.forms import build, inputs, padding

import headwise as hw

DIM, KEYS = 16, 3
# (system, options, queries): enough of them for several chunks, and an odd number.
LARGE = {
    "agreement": ("agreement", {}, 5001),
    "agreement, simple": ("agreement", {"routing": "simple"}, 5001),
    "moa": ("moa", {"num_experts": 7, "top_k": 2}, 1501),
    "moa of many experts": ("moa", {"num_experts": 40, "top_k": 3}, 901),
    "weighted": ("weighted", {"ffn": "shared"}, 1501),
    "weighted of the paper": ("weighted", hw.BranchedAttention.presets["paper"], 1501),
}


def built(name):
    system, options, queries = LARGE[name]
    module = build(system, DIM, **options, **({"ffn_dim": 256} if system == "weighted" else {}))
    if system == "weighted":  # sums of more terms
        module.ffn_up.weight.data.mul_(0.3)
    return module, inputs(1, queries, DIM), inputs(1, KEYS, DIM)


@pytest.mark.parametrize("name", LARGE)
def test_many_queries_are_as_few_at_a_time(name):
    """The output, and the gradients, which are the sums of those of the parts."""
    module, query, memory = built(name)
    leaves = [query.requires_grad_(), memory.requires_grad_(), *module.parameters()]
    direction = torch.randn_like(query)

    def gradients(*parts):
        outputs = [module(part, memory).output for part in parts]
        total = (torch.cat(outputs, 1) * direction).sum()
        return outputs, torch.autograd.grad(total, leaves, allow_unused=True)

    (whole,), whole_gradients = gradients(query)
    parts, part_gradients = gradients(*query.split(157, 1))
    torch.testing.assert_close(whole, torch.cat(parts, 1))
    for gradient, expected_gradient in zip(whole_gradients, part_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("size", [1, 29])
@pytest.mark.parametrize("name", LARGE)
def test_without_gradients_the_output_is_the_same(name, size):
    """As in decoding, where a few rows of a few sequences go a way of their own."""
    module, query, memory = built(name)
    query = query[:, : 3 * size].reshape(3, size, DIM)
    kwargs = {"key": memory.expand(3, -1, -1), "key_padding_mask": padding(3, 1, 2, time=KEYS)}
    expected = module(query, **kwargs)
    with torch.no_grad():
        found = module(query, **kwargs)
    torch.testing.assert_close(found.output, expected.output.detach())
    torch.testing.assert_close(found.routing.weights, expected.routing.weights.detach())


def test_routing_keeps_its_votes_alone_for_the_backward_pass():
    """The iterations of a chunk are computed again there."""
    module, saved_sizes = build("agreement", DIM, iterations=5), []

    def note(tensor):
        saved_sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        module(inputs(1, 3000, DIM), inputs(1, KEYS, DIM))
    assert sum(saved_sizes) < 12 * 3000 * 4 * DIM  # 4 heads
