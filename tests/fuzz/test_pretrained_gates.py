"""Gates over the heads of a pretrained model change nothing before they are trained.

The models are those of `tests/pretrained/many_configurations.py`, of random sizes.
"""

from architectures import ARCHITECTURES
from fuzzing import examples, seeds
from hypothesis import given
from hypothesis import strategies as st
from many_configurations import differences


@given(st.sampled_from(list(ARCHITECTURES)), seeds)
@examples(suite=6, long=25)
def test_a_model_computes_and_writes_what_it_did(name, seed):
    found = differences(name, seed)
    assert max(found.forward, found.generating) <= 1e-6
    assert found.same_texts
