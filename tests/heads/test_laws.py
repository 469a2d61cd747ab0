"""What models ask of every system, as laws over the named forms of all nine, at every site."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.forms import FORMS, NINE, build, inputs, turns
from support.strategies import SIDES, cache_actions, fewer, masks, paddings

import headwise as hw
from headwise.testing import SITES, check_system, laws

ROWS, TIME = 3, 6
each_form = pytest.mark.parametrize("form", FORMS)


def sites(form: str) -> tuple[str, ...]:
    return SITES[FORMS[form].kind.replaces]


def causal_sites(form: str) -> list[str]:
    return [site for site in sites(form) if site != "encoder_self"]


QUICK = ("standard", "mae", "moa")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.quick] * (name in QUICK)) for name in NINE]
)
def test_every_system_passes_check_system(name: str) -> None:
    check_system(NINE[name][0])


@pytest.mark.quick
@each_form
@fewer
@given(data=st.data())
def test_padding(form: str, data: Any) -> None:
    tested = FORMS[form]
    # Within, padding moves what is real against rotary positions and windows.
    moves = tested.rotary or "gate_window" in tested.options
    sides = ("right", "left") if moves else SIDES
    memory = data.draw(paddings(ROWS, 5))
    memory[memory.all(1), 2] = False  # a real key in each row
    laws.padding_changes_nothing(
        tested.subject(data.draw(st.sampled_from(sites(form)))),
        data.draw(paddings(ROWS, TIME, sides)),
        memory_padding=memory,
    )


@pytest.mark.quick
@each_form
@fewer
@given(data=st.data())
def test_what_a_mask_hides(form: str, data: Any) -> None:
    """In self-attention; in a decoder beside what is the future."""
    subject = FORMS[form].subject(sites(form)[data.draw(st.integers(0, len(sites(form)) - 2))])
    heads = 1 if FORMS[form].system == "moa" else subject.module.num_heads
    mask = data.draw(masks(2, heads, TIME, TIME)).get("attn_mask")
    if "gate_window" in FORMS[form].options:
        mask = None  # which a window does not take
    mask = mask.unflatten(0, (2, -1)) if mask is not None and mask.dim() == 3 else mask
    if mask is not None and mask.is_floating_point() and mask.isfinite().all():
        mask.diagonal(dim1=-2, dim2=-1).zero_()  # all alike hidden is nothing hidden
    laws.hidden_changes_nothing(subject, mask, time=TIME)


@pytest.mark.quick
@each_form
def test_the_future(form: str) -> None:
    for site in causal_sites(form):
        laws.hidden_changes_nothing(FORMS[form].subject(site))


@pytest.mark.quick
@each_form
@fewer
@given(data=st.data())
def test_decoding_in_steps(form: str, data: Any) -> None:
    subject = FORMS[form].subject(data.draw(st.sampled_from(causal_sites(form))))
    prompt = data.draw(st.none() | paddings(ROWS, 3, ("left",)))
    actions = data.draw(cache_actions(ROWS))
    if prompt is not None:
        actions[0] = ("read", 3)  # all of the padding
    laws.steps_equal_one_pass(subject, actions, padding=prompt)


@pytest.mark.parametrize("assign", [True, False])
@each_form
def test_what_is_built_without_memory_is_what_it_loads(form: str, assign: bool) -> None:
    def reload(module: Any) -> Any:
        with torch.device("meta"):
            built = FORMS[form].build(drawn=False)
        built = built if assign else built.to_empty(device="cpu")
        for buffer in () if assign else built.buffers():
            buffer.fill_(7)  # as memory may be
        built.load_state_dict(copy.deepcopy(module.state_dict()), assign=assign)
        return built

    laws.copies_are_their_own(FORMS[form].subject(), reload)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("name", NINE)
def test_a_copy_of_a_cache_reads_on_by_itself(name: str, how: Any) -> None:
    layer, x, cache = build(name), inputs(ROWS, TIME), hw.AttentionCache()
    layer(x[:, :3], is_causal=True, cache=cache)
    layer(-x[:, 3:], is_causal=True, cache=how(cache))
    rest = layer(x[:, 3:], is_causal=True, cache=how(cache)).output
    torch.testing.assert_close(rest, layer(x, is_causal=True).output[:, 3:])


@pytest.mark.parametrize("name", NINE)
def test_options_mean_the_same_in_all_systems(name: str) -> None:
    for bias in (1, np.False_):  # as Python takes them
        expected = build(name, bias=bool(bias)).state_dict().keys()
        assert build(name, bias=bias).state_dict().keys() == expected
    for bias in ("none", *["qkv"] * (name == "tim")):
        with pytest.raises(ValueError, match=f"bias is '{bias}'"):
            build(name, bias=bias)
    with pytest.raises(ValueError, match=r"dropout is -0\.1"):
        build(name, dropout=-0.1)


def other_batch(layer: Any, x: Any) -> None:
    cache = hw.AttentionCache()
    layer(x, cache=cache)
    layer(x[:2], cache=cache)


MISUSED = {  # what would compute something else, by what the message says
    "cache is static": lambda layer, x: layer(x, cache=hw.AttentionCache(static=True)),
    "cache holds 3 sequences": other_batch,
    "query is a nested tensor": lambda layer, x: layer(torch.nested.as_nested_tensor([*x]), x),
    "rotary is given": lambda layer, x: layer(x, x.clone(), rotary=turns(TIME, layer)),
}


@pytest.mark.parametrize("message", MISUSED)
def test_a_call_that_would_compute_something_else_is_refused(message: str) -> None:
    layer = build("standard", head_dim=4)
    with pytest.raises(ValueError, match=message):
        MISUSED[message](layer, inputs(ROWS, TIME))


@each_form
def test_half_precision(form: str) -> None:
    for site in sites(form):
        laws.half_precision_is_near(FORMS[form].subject(site))
