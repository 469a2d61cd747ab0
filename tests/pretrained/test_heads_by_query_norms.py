"""MoH on pretrained models as in its paper: heads are selected by the norms of their queries."""

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

import headwise as hw

HEADS, HEAD_DIM, WORDS = 4, 4, 40
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": HEADS}
OPTIONS = {"router": "query-norm", "neutral": False}


def llama():
    more = {"num_key_value_heads": 2, "intermediate_size": 32, "pad_token_id": 0}
    return LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, **SIZES, **more))


def gpt2():
    ends = {"bos_token_id": 1, "eos_token_id": 1}
    config = GPT2Config(vocab_size=WORDS, n_embd=16, n_layer=2, n_head=HEADS, **ends)
    return GPT2LMHeadModel(config)


def bert():
    return BertForMaskedLM(BertConfig(vocab_size=WORDS, intermediate_size=32, **SIZES))


# A model, and its first attention's module that gives the queries.
MODELS = {
    "llama": (llama, "model.layers.0.self_attn.q_proj"),
    "gpt2": (gpt2, "transformer.h.0.attn.c_attn"),
    "bert": (bert, "bert.encoder.layer.0.attention.self.query"),
}


@pytest.fixture(params=MODELS)
def kind(request):
    return request.param


def tokens(batch=2, time=6):
    return torch.randint(2, WORDS, (batch, time))


def test_the_heads_of_the_longest_queries_are_selected(kind):
    build, path = MODELS[kind]
    model, given = build().eval(), tokens()
    before = model(given).logits
    seen = []
    model.get_submodule(path).register_forward_hook(lambda m, args, out: seen.append(out))
    hw.gate_heads(model, "moh", **OPTIONS)
    assert not hw.gate_parameters(model)
    with hw.record(model) as decisions:
        after = model(given).logits
    assert not torch.allclose(after, before)
    routing = next(iter(decisions.values()))[0]
    queries = seen[0][..., : HEADS * HEAD_DIM].unflatten(-1, (HEADS, HEAD_DIM))
    longest = 2 + queries.norm(dim=-1)[..., 2:].argmax(-1, keepdim=True)  # 2 of 4 are shared
    expected = torch.tensor([1.0, 1.0, 0.0, 0.0]).expand(2, 6, 4).scatter(-1, longest, 1.0)
    torch.testing.assert_close(routing.weights, expected, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_it_generates_the_same_with_a_cache_and_without(kind):
    model = MODELS[kind][0]().eval()
    hw.gate_heads(model, "moh", **OPTIONS)
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    prompts = tokens()
    cached, anew = (
        model.generate(prompts, attention_mask=mask, use_cache=use_cache, num_beams=2, **options)
        for use_cache in (True, False)
    )
    assert torch.equal(cached, anew)
