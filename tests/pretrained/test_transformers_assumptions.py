"""What headwise takes from transformers that its documentation does not promise.

One test for each assumption whose break would not be clear from a test of what headwise does, with
transformers alone: where a new version breaks one, its test says which. What breaks with it stands
in `headwise.pretrained`.
"""

import inspect
import re

import pytest
import torch
from support.architectures import EIGHT, Pretrained, attentions, build, width_of
from transformers.cache_utils import DynamicCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions as Outputs

IDS = torch.tensor([[5, 6, 7, 8]])
CACHE = "cache" if "cache" in Outputs.__dataclass_fields__ else "past_key_values"


def test_one_name_of_the_cache():
    """In arguments of models and of their attentions, in outputs and in what is generated."""
    gpt2, cache = build("gpt2"), DynamicCache()
    assert gpt2(IDS, use_cache=True, **{CACHE: cache})[CACHE] is cache
    how = {"max_new_tokens": 2, "return_dict_in_generate": True, CACHE: DynamicCache()}
    assert gpt2.generate(IDS, **how)[CACHE].get_seq_length() == 5
    for module in (gpt2, build("llama").model.layers[0].self_attn):
        assert CACHE in inspect.signature(module.forward).parameters


def test_checkpointing_is_switched_on_by_one_method_and_reaches_every_layer():
    gpt2 = build("gpt2")
    assert all(isinstance(layer, GradientCheckpointingLayer) for layer in gpt2.transformer.h)
    calls = []

    def function(run, *args, **kwargs):
        calls.append(run)
        return torch.utils.checkpoint.checkpoint(run, *args, use_reentrant=False, **kwargs)

    switch = gpt2.train()._set_gradient_checkpointing  # noqa: SLF001
    switch(True, gradient_checkpointing_func=function)
    gpt2(IDS, labels=IDS).loss.backward()
    assert len(calls) == 2 and gpt2.transformer.h[0].attn.c_proj.weight.grad is not None


@pytest.mark.parametrize("name", EIGHT)
@torch.no_grad()
def test_attentions_get_hidden_states_first_and_call_their_projection_once(name):
    """With all heads joined, one behind another, in a layer that a number in its path counts."""
    model, calls = build(name), []
    for path, projection in attentions(model).items():
        assert re.search(r"\.\d\.", path)
        attention = model.get_submodule(path)
        first = next(iter(inspect.signature(attention.forward).parameters))
        assert first == "hidden_states"
        projection.register_forward_pre_hook(lambda each, args: calls.append((each, args)))
    this = Pretrained(name, model)
    this(this.draw(3, 5, 0))
    assert [each for each, _ in calls] == list(attentions(model).values())
    for each, (heads, *others) in calls:
        assert heads.shape == (3, 5, width_of(each)) and not others
