"""A cache is that of one module and of one source; one of a fixed size says what others say."""

import copy
import io

import pytest
import torch
from systems import DIM, SYSTEMS, padding
from test_decoding import BATCH, KEYS, TIME, in_chunks

from headwise import AttentionCache
from headwise.heads.cache import FixedAttentionCache

NAMES = ("standard", "mae-7", "moa", "agreement-em", "branched", "gated", "moh")
KINDS = {
    "growing": AttentionCache,
    "fixed": lambda **static: FixedAttentionCache(TIME, **static),
}


@pytest.fixture(autouse=True)
def without_gradients():
    """A tensor with a history of gradients cannot be copied."""
    with torch.no_grad():
        yield


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def drawn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def decode(module, x, cache):
    return module(x, is_causal=True, cache=cache).output


@pytest.mark.parametrize("name", NAMES)
def test_one_cache_for_two_layers_is_an_error(name, kind):
    first = SYSTEMS[name].build()
    second, cache, x = copy.deepcopy(first), kind(), drawn(BATCH, TIME, DIM)
    decode(first, x[:, :2], cache)
    with pytest.raises(ValueError, match=f"another module, a {type(first).__name__}, expected one"):
        decode(second, x[:, 2:3], cache)
    # It is as it was, and goes on with its own module; emptied, it is anybody's.
    rest = decode(first, x[:, 2:], cache)
    torch.testing.assert_close(rest, decode(first, x, None)[:, 2:])
    cache.reset()
    decode(second, x, cache)


@pytest.mark.parametrize("name", NAMES)
def test_copies_go_on_from_where_they_are(name, kind):
    """Of module and cache at once, of the cache alone, and through a file."""
    module, cache, x = SYSTEMS[name].build(), kind(), drawn(BATCH, TIME, DIM)
    expected = decode(module, x, None)[:, 3:]
    decode(module, x[:, :3], cache)
    file = io.BytesIO()
    torch.save(cache, file)
    file.seek(0)
    other, with_other = copy.deepcopy((module, cache))
    for of, kept in (
        (other, with_other),
        (module, copy.deepcopy(cache)),
        (copy.deepcopy(module), copy.deepcopy(cache)),
        (module, torch.load(file, weights_only=False)),
        (module, cache),
    ):
        torch.testing.assert_close(decode(of, x[:, 3:], kept), expected)
    with pytest.raises(ValueError, match=f"another module, a {type(module).__name__}, "):
        decode(copy.deepcopy(module), x[:, :1], kept)


def test_a_second_source_is_an_error(kind):
    module, cache = SYSTEMS["mae causal queries"].build(), kind(static=True)
    x, key = drawn(BATCH, TIME, DIM), drawn(BATCH, KEYS, DIM)
    expected = module(x, key).output
    first = module(x[:, :2], key, cache=cache).output
    other = drawn(BATCH, KEYS + 1, DIM)
    with pytest.raises(ValueError, match="holds the keys of another source"):
        module(x[:, 2:3], other, cache=cache)
    rest = module(x[:, 2:], key, cache=cache).output
    torch.testing.assert_close(torch.cat([first, rest], 1), expected)
    cache.reset()
    torch.testing.assert_close(module(x, other, cache=cache).output, module(x, other).output)


def test_another_size_of_batch_is_an_error(kind):
    module, cache, x = SYSTEMS["standard"].build(), kind(), drawn(BATCH, TIME, DIM)
    decode(module, x[:, :2], cache)
    with pytest.raises(ValueError, match="cache holds 3 sequences, expected 2"):
        decode(module, x[:2, 2:], cache)
    static = kind(static=True)
    module(x, x[:, :2].clone(), cache=static)
    with pytest.raises(ValueError, match="cache holds 3 sequences, expected 1"):
        module(x[:1], x[:1, :2].clone(), cache=static)


def test_a_static_cache_in_self_attention_is_an_error(kind):
    module, x = SYSTEMS["standard"].build(), drawn(BATCH, TIME, DIM)
    for given in ({}, {"key": x}):
        with pytest.raises(ValueError, match=r"cache is static, .* in self-attention"):
            module(x, **given, is_causal=True, cache=kind(static=True))


def test_a_compiled_step_is_one_graph_for_all_layers(kind):
    """What a cache knows of its module is no part of the graph."""
    x = drawn(BATCH, 4, DIM)
    layers, graphs = [SYSTEMS["standard"].build() for _ in range(2)], []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(decode, backend=backend, fullgraph=True, dynamic=True)
    for module in layers:
        cache = kind()
        decode(module, x[:, :3], cache)
        step = compiled(module, x[:, 3:], cache)
        torch.testing.assert_close(step, decode(module, x, None)[:, 3:])
    assert len(graphs) == 1


ROOM = TIME + 4


def tensors(cache):
    named = {"keys": cache.keys, "values": cache.values, "length": cache.length, **cache.memory}
    return {name: tensor.data_ptr() for name, tensor in named.items() if tensor is not None}


@pytest.mark.parametrize("name", SYSTEMS)
def test_padding_and_places_of_tensors(name):
    module, cache = SYSTEMS[name].build(), FixedAttentionCache(ROOM)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    mask = padding(7, 5, 6, time=TIME, left=True)
    at_once = module(x, key_padding_mask=mask, is_causal=True).output
    in_chunks(module, x[:, :3], [3], cache, mask=mask)
    places = tensors(cache)
    of_room = torch.cat([mask, torch.zeros(BATCH, ROOM - TIME, dtype=torch.bool)], dim=1)
    for t in range(3, TIME):
        step = module(x[:, t : t + 1], key_padding_mask=of_room, is_causal=True, cache=cache)
        real = ~mask[:, t]
        torch.testing.assert_close(step.output[real, 0], at_once[real, t])
        assert tensors(cache) == places


@pytest.mark.parametrize("window", [None, 2])
def test_cross_attention(window):
    module = SYSTEMS["mae causal queries"].build(gate_window=window)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    key = torch.randn(BATCH, KEYS, DIM, dtype=torch.float64)
    cache = FixedAttentionCache(ROOM, static=True)
    first = in_chunks(module, x[:, :2], [2], cache, key=key)
    places = tensors(cache)
    rest = in_chunks(module, x[:, 2:], [1, 4], cache, key=key)
    torch.testing.assert_close(torch.cat([first, rest], 1), module(x, key).output)
    assert tensors(cache) == places


def test_reset_and_its_limits():
    module, cache = SYSTEMS["mae-7"].build(), FixedAttentionCache(TIME)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    first = in_chunks(module, x, [TIME], cache)
    with pytest.raises(ValueError, match="room for 7 positions, expected 8"):
        module(x[:, :1], is_causal=True, cache=cache)
    cache.reset()
    assert cache.get_seq_length() == 0 and not cache.is_filled
    torch.testing.assert_close(in_chunks(module, x, [3, 4], cache), first)
    cache.crop(0)
    with pytest.raises(ValueError, match="keeps no past to go back to"):
        cache.crop(-1)
    with pytest.raises(ValueError, match="max_length is 0, expected a positive number"):
        FixedAttentionCache(0)
