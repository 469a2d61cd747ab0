"""By which weights the heads of plain models read: those of transformers' `output_attentions`."""

import random
from collections import defaultdict

import pytest
import torch
from architectures import inputs
from test_observing import EVERY, plain, traces

import headwise as hw
from headwise.analysis.decisions.likeness import Likeness
from headwise.pretrained.layouts import attention_modules
from headwise.pretrained.observing import observed
from headwise.pretrained.reading import attention_noted
from headwise.transformers_internals import attending_eagerly, attn_implementation

_SITES = {
    "encoder_self": ("encoder_attentions", "attentions"),
    "decoder_self": ("decoder_attentions", "attentions"),
    "decoder_cross": ("cross_attentions",),
}


def noted(model, given):
    """The weights by the site of the attention, layer after layer, and the model's output."""
    found = defaultdict(list)

    def note(place, weights):
        found[place.site].append(weights)

    with observed(model), attention_noted(model, note):
        output = model(**given)
    return found, output


@pytest.mark.parametrize("name", EVERY)
@torch.no_grad()
def test_weights_are_those_of_the_eager_model(name):
    model = plain(name)
    before, kind = traces(model), attn_implementation(model.config)
    given = inputs(model, random.Random(0))
    logits = model(**given).logits
    found, output = noted(model, given)
    assert attn_implementation(model.config) == kind
    assert traces(model) == before and torch.equal(model(**given).logits, logits)
    torch.testing.assert_close(output.logits, logits, rtol=0, atol=2e-4)
    with attending_eagerly(model):
        eager = model(**given, output_attentions=True)
    # ALBERT's layers are one module, which is called several times.
    assert sum(map(len, found.values())) == len(attention_modules(model)) or name == "albert"
    for site, weights in found.items():
        field = next(each for each in _SITES[site] if each in eager)
        expected = [each for each in eager[field] if each is not None]
        assert len(weights) == len(expected) > 0
        assert all(map(torch.equal, weights, expected))
        sums = torch.stack([each.sum(-1) for each in weights])
        if name != "gpt-oss":  # whose sinks take a share
            torch.testing.assert_close(sums, torch.ones_like(sums))


@torch.no_grad()
def test_how_alike_heads_attend_is_counted_of_them():
    model = plain("marian")
    given = inputs(model, random.Random(1))
    found, _ = noted(model, given)
    real = {
        "encoder": given["attention_mask"].bool(),
        "decoder": given["decoder_attention_mask"].bool(),
    }
    with observed(model), Likeness(model) as likeness:
        model(**given)
    found = {site: list(weights) for site, weights in found.items()}
    for made in likeness.result().modules:
        weights = found[made.where.site].pop(0).transpose(1, 2)  # (batch, queries, heads, keys)
        several = (weights > 0).any(2).sum(-1) > 1
        rows = weights[several & real[made.where.stack]]
        naive = sum(torch.minimum(row[:, None], row).sum().item() for row in rows)
        overlap = torch.tensor(made.attention, dtype=torch.float64)
        assert made.queries == len(rows)
        assert naive / len(rows) == pytest.approx(overlap.sum().item(), rel=1e-5)
    assert not any(found.values())


def test_models_of_headwise_note_nothing():
    config = hw.CausalLMConfig(vocab_size=9, embed_dim=8, num_heads=2, ffn_dim=8, layers=1)
    found, _ = noted(hw.CausalLM(config), {"input_ids": torch.tensor([[3, 4]])})
    assert not found
