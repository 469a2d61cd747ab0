"""Models compute attention by functions of transformers' `ALL_ATTENTION_FUNCTIONS`.

Kernels need a GPU. What stands for them here is called as they are: one function takes the masks
of `"sdpa"`, the other one computes padded sequences by their lengths, as flash attention does.
"""

import pytest
import tiny
import torch
import torch.nn.functional as F
from tiny import PLANS
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

import headwise as hw
from headwise.heads.cache import AttentionCache
from headwise.transformers_internals import RegisteredAttention

MASKS, LENGTHS, FLASH = "own-by-masks", "own-by-lengths", "own-flash"


def by_masks(module, query, key, value, attention_mask, scaling, dropout, is_causal):
    assert attention_mask is None or attention_mask.dim() == 4
    key, value = (x.repeat_interleave(module.num_key_value_groups, 1) for x in (key, value))
    how = {"scale": scaling, "dropout_p": dropout, "is_causal": is_causal}
    read = F.scaled_dot_product_attention(query, key, value, attention_mask, **how)
    return read.transpose(1, 2), None


def by_lengths(module, query, key, value, attention_mask, **how):
    """As transformers' flash attention: a mask is that of queries and keys alike."""
    starts = [how.pop(f"cu_seq_lens_{of}", None) for of in "qk"]
    longest = [how.pop(f"max_length_{of}", None) for of in "qk"]
    out = query.new_zeros(query.size(0), query.size(2), query.size(1), value.size(3))
    if starts[0] is not None:
        assert attention_mask is None and len(query) == len(key) == 1
        ends = [of.tolist()[1:] for of in starts]
        firsts = [of.tolist()[:-1] for of in starts]
        for q0, q1, k0, k1 in zip(firsts[0], ends[0], firsts[1], ends[1], strict=True):
            assert q1 - q0 <= longest[0] and k1 - k0 <= longest[1]
            each = (query[:, :, q0:q1], key[:, :, k0:k1], value[:, :, k0:k1])
            out[:, q0:q1] = by_masks(module, *each, None, **how)[0]
        return out, None
    if attention_mask is None:
        return by_masks(module, query, key, value, None, **how)
    assert attention_mask.shape == (key.size(0), key.size(2)) == (query.size(0), query.size(2))
    for row, real in enumerate(attention_mask):
        each = (x[row : row + 1, :, real] for x in (query, key, value))
        out[row, real] = by_masks(module, *each, None, **how)[0][0]
    return out, None


@pytest.fixture(autouse=True)
def registered():
    AttentionInterface.register(MASKS, by_masks)
    for name in (LENGTHS, FLASH):
        AttentionInterface.register(name, by_lengths)
        AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS["flash_attention_2"])


def both(plan, name, **options):
    """A model, and the same with attention by a function."""
    models = [tiny.model(PLANS[plan], **options) for _ in range(2)]
    models[1].set_attn_implementation(name)
    return models


@pytest.mark.parametrize("name", [MASKS, LENGTHS])
@pytest.mark.parametrize("plan", PLANS)
def test_loss_and_gradients(plan, name):
    ids, mask = tiny.padded([6, 4], 6)
    labels = tiny.padded([7, 5], 7)[0]
    found = []
    for model in both(plan, name):
        of_labels = labels.masked_fill(labels == tiny.PAD, -100)
        loss = model(input_ids=ids, attention_mask=mask, labels=of_labels).loss
        loss.backward()
        found.append((loss, [p.grad for p in model.parameters()]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [MASKS, LENGTHS])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("plan", PLANS)
def test_padding_of_an_encoder(plan, left, name):
    ids, mask = tiny.padded([6, 4, 1], 6)
    if left:
        ids, mask = ids.flip(1), mask.flip(1)
    expected, got = (model.encoder(ids, mask).last_hidden_state for model in both(plan, name))
    torch.testing.assert_close(got[mask == 1], expected[mask == 1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [MASKS, LENGTHS])
@pytest.mark.parametrize("plan", ["standard", "moa", "mae", "tim", "differential", "moh"])
def test_generating(plan, name):
    options = {"system": plan, **({"size": "2K5E4D"} if plan == "moa" else {})}
    options |= {"layers": "all"} if plan == "tim" else {}
    sizes = {"vocab_size": tiny.VOCABULARY, "embed_dim": 16, "num_heads": 4, "ffn_dim": 24}
    config = hw.CausalLMConfig(**sizes, layers=2, attention={"decoder_self": options})
    torch.manual_seed(0)
    model = hw.CausalLM(config).eval()
    tiny.strengthen(model)
    ids, mask = (x.flip(1) for x in tiny.padded([6, 3], 6))
    how = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False}
    expected = model.generate(ids, **how)
    weights = model(input_ids=ids, attention_mask=mask, output_attentions=True).attentions
    model.set_attn_implementation(name)
    assert torch.equal(model.generate(ids, **how), expected)
    again = model(input_ids=ids, attention_mask=mask, output_attentions=True).attentions
    for one, other in zip(again, weights, strict=True):
        real = mask.bool()[:, None, :, None].expand_as(one)
        torch.testing.assert_close(one[real], other[real], rtol=1e-4, atol=1e-5)
    static = {"cache_implementation": "static", "disable_compile": True}
    assert torch.equal(model.generate(ids, **how, **static), expected)
    how.pop("attention_mask")
    assert torch.equal(model.generate(ids, **how, **static), model.generate(ids, **how))


def test_what_flash_attention_does_not_take_is_refused():
    model = tiny.model("standard")
    model.set_attn_implementation(LENGTHS)
    attention, x = model.encoder.layers[0].self_attention, torch.randn(2, 6, 16)
    assert attention(x).output.shape == x.shape
    for attn_mask in (torch.zeros(6, 6, dtype=torch.bool), torch.zeros(6, 6)):
        with pytest.raises(ValueError, match="no masks but of padding and of what is causal"):
            attention(x, attn_mask=attn_mask)
    cache = AttentionCache()
    attention(x[:, :2], is_causal=True, cache=cache)
    with pytest.raises(ValueError, match="one token in a call with a cache that is not empty"):
        attention(x[:, 2:], is_causal=True, cache=cache)
    with pytest.raises(ValueError, match=r"'another', expected one of 'sdpa', .* 'own-by-lengths'"):
        model.set_attn_implementation("another")
    attention.implementation = RegisteredAttention(FLASH, model.config)
    with pytest.raises(ValueError, match=r"'own-flash' and the model computes in torch.float32"):
        attention(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert attention(x).output.dtype == torch.bfloat16
