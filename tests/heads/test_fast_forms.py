"""Large calls go other ways than small ones, and these ways compute the same.

The equations are compared with loops at small sizes. Here a call of many queries, which is computed
in chunks, by sorted tokens and by products made once for all, is compared with small calls.
"""

import weakref

import pytest
import torch
from support.forms import build, inputs, padding
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

import headwise as hw

DIM, KEYS = 16, 3
# (system, options, queries): enough of them for several chunks, and an odd number.
LARGE = {
    "agreement": ("agreement", {}, 3001),
    "agreement, simple": ("agreement", {"routing": "simple"}, 3001),
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

    (whole,), slopes = gradients(query)
    parts, expected = gradients(*query.split(157, 1))
    torch.testing.assert_close(whole, torch.cat(parts, 1))
    for got, wanted in zip(slopes, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("size", [1, 29])
@pytest.mark.parametrize("name", LARGE)
def test_without_gradients_the_output_is_the_same(name, size):
    """As in decoding, where a few rows of a few sequences go a way of their own."""
    module, query, memory = built(name)
    query = query[:, : 3 * size].reshape(3, size, DIM)
    given = {"key": memory.expand(3, -1, -1), "key_padding_mask": padding(3, 1, 2, time=KEYS)}
    expected = module(query, **given)
    with torch.no_grad():
        found = module(query, **given)
    torch.testing.assert_close(found.output, expected.output.detach())
    torch.testing.assert_close(found.routing.weights, expected.routing.weights.detach())


class Peak(TorchDispatchMode):
    """The most bytes that tensors made within it took at a time."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0
        self.known = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if storage is None or storage.data_ptr() in self.known:
                continue
            key, size = storage.data_ptr(), storage.nbytes()
            self.known.add(key)
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self.freed, key, size)
        return out

    def freed(self, key, size):
        self.known.discard(key)
        self.now -= size


def test_routing_takes_memory_for_a_chunk_and_not_for_all():
    """Besides votes, which a pass keeps, the iterations of few tokens are alive at a time."""
    module = build("agreement", DIM, iterations=5)
    memory = inputs(1, KEYS, DIM)

    def votes_alive(queries):
        with Peak() as peak:
            module(inputs(1, queries, DIM), memory).output.sum().backward()
        return peak.most / (8 * queries * 4 * DIM)  # float64, 4 heads

    small, large = votes_alive(500), votes_alive(7000)
    assert large < 0.7 * small, (small, large)
