"""What models ask of every system, as laws over the named forms of all nine, at every site."""

from typing import Any

import pytest
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


def other_batch(layer: Any, x: Any) -> None:
    cache = hw.AttentionCache()
    layer(x, cache=cache)
    layer(x[:2], cache=cache)


MISUSED = {  # what would compute something else, by what the message says
    "cache is static": lambda layer, x: layer(x, cache=hw.AttentionCache(static=True)),
    "cache holds 3 sequences": other_batch,
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
