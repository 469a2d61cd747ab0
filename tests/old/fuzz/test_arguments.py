"""Whatever a constructor or a call is given, there is a finite output or a short `ValueError`.

A constructor may also be given sizes that no memory holds, which PyTorch tells.
"""

import inspect
import re
import typing
from typing import Any, Literal, get_args, get_origin

import pytest
import torch
from fuzzing import examples, random, seeds
from hypothesis import given
from hypothesis import strategies as st
from modules import MODULES, build
from systems import DIM

import headwise as hw

SYSTEMS = (
    *(hw.MultiHeadAttention, hw.MixtureOfAttentiveExperts, hw.MixtureOfAttentionHeads),
    *(hw.GatedAttention, hw.MixtureOfHeads, hw.AgreementAttention, hw.BranchedAttention),
    hw.IndependentMechanismsLayer,
)
LONGEST_MESSAGE = 1_000
# Of what is large, only what no machine could hold: the rest is tried, and takes its time.
WHOLE = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 50, 0, -1, -(2**63), 10**15])
REAL = st.sampled_from([0.0, 0.1, 0.5, 1.0, -0.1, 1.5, 1e9, 1e300, float("inf"), float("nan")])


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of the right type, most of them wrong."""
    if get_origin(annotation) is Literal:
        return st.sampled_from([*get_args(annotation), "nothing", ""])
    members = get_args(annotation)
    if members:
        return st.one_of([values(member) for member in members])
    known = {int: WHOLE, float: REAL, bool: st.booleans(), type(None): st.none()}
    return known.get(annotation, st.sampled_from(["mae", "relu", "gelu", "post", "", "nothing"]))


SENSIBLE = {"embed_dim": 12, "num_heads": 4, "num_experts": 4, "top_k": 2, "head_dim": 3}
SENSIBLE |= {"num_branches": 4, "ffn_dim": 16, "num_mechanisms": 2, "shared_heads": 2}


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.__name__)
@given(data=st.data(), seed=seeds)
@examples(suite=15, long=60)
def test_constructors(system, data, seed):
    torch.manual_seed(seed)
    hints = typing.get_type_hints(system.__init__)
    options = {}
    for name, parameter in list(inspect.signature(system.__init__).parameters.items())[1:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            for option, kind in typing.get_type_hints(get_args(hints[name])[0]).items():
                if data.draw(st.integers(0, 3)) == 3:
                    options[option] = data.draw(values(kind), label=option)
            continue
        is_needed = parameter.default is parameter.empty
        if is_needed and data.draw(st.integers(0, 3)) < 3:
            options[name] = SENSIBLE[name]
        elif is_needed or data.draw(st.integers(0, 3)) == 3:
            options[name] = data.draw(values(hints[name]), label=name)
    try:
        made = system(**options)
        x = torch.randn(2, 3, options["embed_dim"])
        given = [x]
        if isinstance(made, hw.IndependentMechanismsLayer) and made.cross_attention is not None:
            given.append(torch.randn(2, 4, made.kdim))
        elif isinstance(made, hw.MultiHeadAttention):
            given += [torch.randn(2, 4, made.kdim), torch.randn(2, 4, made.vdim)]
        out = made(*given).output
    except ValueError as error:
        assert 10 < len(str(error)) <= LONGEST_MESSAGE
    except RuntimeError as error:  # PyTorch's, of sizes that no memory holds
        assert re.search("allocate memory|overflow", str(error)), error
    else:
        assert out.shape == x.shape and out.isfinite().all()


tensors = st.sampled_from(
    [
        *(lambda: random(2, 3, DIM), lambda: random(2, 3, DIM), lambda: random(2, 5, DIM)),
        *(lambda: random(3, DIM), lambda: random(2, 3, DIM + 1), lambda: random(1, 2, 3, DIM)),
        *(lambda: torch.tensor(1.0), lambda: torch.ones(2, 3, DIM, dtype=torch.long)),
        *(lambda: random(0, 3, DIM), lambda: random(2, 0, DIM), lambda: random(1, 3, DIM)),
    ]
)
MASKS = st.sampled_from(
    [
        *(lambda: torch.zeros(2, 3, dtype=torch.bool), lambda: torch.ones(2, 3)),
        *(lambda: torch.ones(2, 3, dtype=torch.long), lambda: torch.zeros(3, 3, dtype=torch.bool)),
        *(lambda: torch.zeros(3, 2, dtype=torch.bool), lambda: torch.zeros(8, 3, 3)),
        *(lambda: torch.zeros(2, 1, 3, 3, dtype=torch.bool), lambda: torch.zeros(3)),
        *(lambda: torch.zeros(2, 4, 3, 3), lambda: torch.zeros(2, 3, dtype=torch.float16)),
    ]
)


@pytest.mark.parametrize("name", MODULES)
@given(data=st.data(), seed=seeds)
@examples(suite=4, long=20)
def test_calls(name, data, seed):
    torch.manual_seed(seed)
    module = build(name)
    x = data.draw(tensors)()
    masks = {
        mask: data.draw(MASKS, label=mask)()
        for mask in ("key_padding_mask", "attn_mask", "query_padding_mask")
        if data.draw(st.integers(0, 2)) == 2
    }
    how = {"is_causal": data.draw(st.booleans()), "need_weights": data.draw(st.booleans())}
    try:
        out = module(x, **masks, **how)
    except ValueError as error:
        assert 10 < len(str(error)) <= LONGEST_MESSAGE
    else:
        assert out.output.shape == x.shape and out.output.isfinite().all()
