"""`with_attention`: other systems in a trained standard model, with its output unchanged."""

import copy

import pytest
import tiny
import torch
from test_every_model import CONFIGS, batch, build, without_labels
from tiny import PAD, padded, tokens

from headwise.models.base import model_class
from headwise.models.sites import attention_sites

STEPS = 8
PLANS = {
    "mae": "mae",
    "mae window": {"system": "mae", "gate_window": 2},
    "mae-6": {"system": "mae", "dropped_heads": 2},
    "uni-mae": {"system": "mae", "gate": "uniform"},
    "one layer": {"system": "mae", "layers": [1]},
    "gated": "gated",
    "gated by shares": {"system": "gated", "preset": "quantizable-transformers"},
    "moh": {"system": "moh", "shared_heads": 1, "top_k": 3},
}
SITES = {
    "mae": "mae",
    "gated": {"system": "gated", "gate": "elementwise"},
    "windows": dict.fromkeys(("decoder_self", "decoder_cross"), PLANS["mae window"]),
    "cross": {"decoder_cross": "mae"},
    "mixed": {
        "encoder_self": [{"system": "mae", "layers": [0], "dropped_heads": 3}],
        "decoder_self": {"system": "mae", "layers": [1]},
        "decoder_cross": {"system": "standard"},
    },
}


def equal(actual, expected):
    tolerance = 1e-6 * max(1.0, expected.abs().max().item())
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


def generated(made, given, **options):
    return made.generate(
        **given,
        max_new_tokens=STEPS,
        no_repeat_ngram_size=1,
        suppress_tokens=[PAD],
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )


def generates_the_same(one, other, given, **options):
    results = [generated(made, given, **options) for made in (one, other)]
    assert torch.equal(*(result.sequences for result in results))
    for a, b in zip(*(result.scores for result in results), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kind", CONFIGS)
def test_every_model_says_the_same(kind, plan, tmp_path):
    """With padding; saved and loaded too; and it is the model that its configuration says."""
    standard, given = build(kind, "standard"), without_labels(batch(kind))
    before = {name: value.clone() for name, value in standard.state_dict().items()}
    made = standard.with_attention(PLANS[plan])
    assert type(made) is type(standard)
    assert made.config.attention == PLANS[plan]
    assert standard.config.attention == "standard"
    expected = standard(**given).logits
    equal(made(**given).logits, expected)
    made.save_pretrained(tmp_path)
    loaded = type(made).from_pretrained(tmp_path)
    assert loaded.config.systems() == made.config.systems()
    equal(loaded(**given).logits, expected)
    fresh = model_class(made.config)(made.config)
    assert [(n, p.shape) for n, p in fresh.named_parameters()] == [
        (n, p.shape) for n, p in made.named_parameters()
    ]
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(value, before[name]) for name, value in standard.state_dict().items())


def test_fewer_heads_than_the_model_has_if_asked_for(tmp_path):
    """The paper's way from a pretrained model: by query norms, without parameters."""
    standard, given = build("causal", "standard"), without_labels(batch("causal"))
    plan = {"system": "moh", "shared_heads": 2, "top_k": 1, "router": "query-norm"}
    with pytest.raises(ValueError, match=r"decoder_self, layer 0: moh: .* top_k is 1, expected 2"):
        standard.with_attention(plan)
    made = standard.with_attention(plan, neutral=False)
    assert made.state_dict().keys() == standard.state_dict().keys()
    assert all(torch.equal(v, made.state_dict()[n]) for n, v in standard.state_dict().items())
    logits = made(**given).logits
    assert not torch.allclose(logits, standard(**given).logits)
    made.save_pretrained(tmp_path)
    equal(type(made).from_pretrained(tmp_path)(**given).logits, logits)
    equal(standard.with_attention({**plan, "top_k": 2})(**given).logits, standard(**given).logits)
    with pytest.raises(ValueError, match="layer 0: agreement: AgreementAttention cannot start"):
        standard.with_attention("agreement", neutral=False)


@pytest.mark.parametrize("plan", SITES)
def test_an_encoder_decoder_says_and_generates_the_same(plan):
    standard = tiny.model(share_embeddings="none")
    made = standard.with_attention(SITES[plan])
    source, mask = padded([6, 3, 5], 6)
    given = {"input_ids": source, "attention_mask": mask}
    target = {"decoder_input_ids": tokens(3, 7)}
    equal(made(**given, **target).logits, standard(**given, **target).logits)
    for options in ({}, {"num_beams": 4}, {"use_cache": False}):
        generates_the_same(standard, made, given, **options)


def test_what_is_not_changed_is_copied():
    """Frozen weights, the mode of training, the type of numbers, shared embeddings, generation."""
    standard = tiny.model(dropout=0.1, attention_dropout=0.2).to(torch.bfloat16).train()
    standard.generation_config.max_length = 17
    for name, parameter in standard.named_parameters():
        parameter.requires_grad_("norm" in name)
    made = standard.with_attention("mae")
    assert all(module.training for module in made.modules())
    assert {parameter.dtype for parameter in made.parameters()} == {torch.bfloat16}
    learning = {name for name, p in made.named_parameters() if p.requires_grad}
    assert learning == {n for n, _ in made.named_parameters() if "norm" in n or ".gate." in n}
    assert made.lm_head.weight is made.encoder.embedding.weight
    assert made.generation_config.max_length == 17
    assert {site.module.dropout for site in attention_sites(made)} == {0.2}


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("moa", "encoder_self, layer 0: moa: .*share one key and one value head"),
        ({"decoder_cross": "moa"}, "decoder_cross, layer 0: moa: .*share one key"),
        ({"decoder_self": {"system": "agreement", "layers": [1]}}, "decoder_self, layer 1: agree"),
        ({"decoder_cross": "weighted"}, "decoder_cross, layer 0: weighted: .*feed-forward"),
        ({"system": "tim", "layers": [1]}, "encoder_self, layer 1: tim: .*a whole layer"),
        ({"system": "mae", "num_heads": 2}, "encoder_self, layer 0: mae: num_heads is 2, expec"),
        ({"encoder_self": {"system": "mae", "dropped_heads": 4}}, "layer 0: mae: dropped_heads is"),
        ("mea", "the system 'mea', expected one of standard, "),
        ({"encoder": "mae"}, "names the site 'encoder', expected one of encoder_self"),
    ],
)
def test_a_plan_that_does_not_fit_is_an_error(plan, message):
    standard = tiny.model()
    state = copy.deepcopy(standard.config.to_dict())
    with pytest.raises(ValueError, match=message):
        standard.with_attention(plan)
    assert standard.config.to_dict() == state
