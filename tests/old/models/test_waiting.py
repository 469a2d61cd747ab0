"""On a GPU the host never waits: no model looks at a value in training or in a decoding step."""

import pytest
import tiny
import torch
from pretended_gpu import PretendedGPU
from tiny import PLANS

import headwise as hw
from headwise.models.plan import SYSTEMS

SIZES = {"vocab_size": tiny.VOCABULARY, "embed_dim": 16, "num_heads": 4, "ffn_dim": 24}
ids = torch.randint(3, tiny.VOCABULARY, (2, 6)).to("meta")
mask = torch.ones(2, 6, dtype=torch.long).to("meta")


def on_gpu(model):
    return model.to("meta").train()


def plan_of(system, site):
    return {site: {"system": system, **({"layers": "all"} if system == "tim" else {})}}


def test_a_look_is_noticed():
    with PretendedGPU():
        assert ids.is_cuda and ids.device.type == "cuda"
        for look in (
            lambda: bool(mask.all()),
            lambda: ids.tolist(),
            lambda: ids.sum().item(),
            lambda: mask.float()[mask == 0],
            lambda: mask.nonzero(),
            lambda: ids.cpu(),
            lambda: torch.tensor([1, 2], device=ids.device),
            lambda: torch.ones(2, 6).to(ids.device),
            lambda: ids + torch.ones(2, 6),
        ):
            with pytest.raises((RuntimeError, NotImplementedError, AssertionError)):
                look()


def test_every_system_is_among_the_plans():
    found = {each if isinstance(each, str) else each.get("system") for each in PLANS.values()}
    assert set(SYSTEMS) <= found | {"moa"}


@pytest.mark.parametrize("plan", PLANS)
def test_translation(plan):
    model = on_gpu(tiny.model(PLANS[plan], dropout=0.1))
    with PretendedGPU():
        loss = model(input_ids=ids, labels=ids, attention_mask=mask).loss
        loss.backward()
        model.eval()
        with torch.no_grad():
            encoded = model.encoder(ids, mask)
            for cache in (model.new_cache(), model.new_cache(12)):
                for t in range(3):
                    step = {"decoder_input_ids": ids[:, t : t + 1], "encoder_outputs": encoded}
                    out = model(**step, attention_mask=mask, cache=cache)
                    assert out.logits.shape == (2, 1, tiny.VOCABULARY)
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_language_model(system, positions):
    plan = plan_of(system, "decoder_self")
    options = {"layers": 2, "attention": plan, "positions": positions}
    model = on_gpu(hw.CausalLM(hw.CausalLMConfig(**SIZES, **options)))
    with PretendedGPU():
        model(input_ids=ids, labels=ids, attention_mask=mask).loss.backward()
        model.eval()
        with torch.no_grad():
            for cache in (model.new_cache(), model.new_cache(12)):
                fixed = cache.is_compileable
                model(input_ids=ids, attention_mask=mask, cache=cache)
                for t in range(3):
                    longer = torch.ones(2, 7 + t, dtype=torch.long, device=ids.device)
                    step = {"input_ids": ids[:, :1], "attention_mask": longer, "cache": cache}
                    if not fixed:
                        step["position_ids"] = longer.sum(1, keepdim=True) - 1
                    assert model(**step).logits.shape == (2, 1, tiny.VOCABULARY)


@pytest.mark.parametrize("system", SYSTEMS)
def test_classifier(system):
    plan = plan_of(system, "encoder_self")
    config = hw.SequenceClassifierConfig(**SIZES, layers=2, attention=plan, num_labels=3)
    model = on_gpu(hw.SequenceClassifier(config))
    with PretendedGPU():
        model(input_ids=ids, labels=ids[:, 0] % 3, attention_mask=mask).loss.backward()
