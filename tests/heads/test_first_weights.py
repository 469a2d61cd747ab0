"""Where systems and models start: no law sees a changed initialisation or a changed default.

What is drawn is compared with numbers of before, recorded by `pytest --update-golden`.
"""

import pytest
import torch
from support import loops
from support.forms import NINE

import headwise as hw

# With what its constructor asks for, and the defaults of all else.
ASKED = {
    "moa": {"num_experts": 6, "top_k": 2, "head_dim": 8},
    "moh": {"num_heads": 4, "shared_heads": 1, "top_k": 2},
    "weighted": {"num_branches": 4, "ffn_dim": 32},
    "tim": {"num_heads": 4, "ffn_dim": 32, "num_mechanisms": 2},
}
CASES = [(name, "") for name in NINE]
CASES += [
    (n, p) for n, (kind, _) in NINE.items() for p in kind.presets if p in ("paper", "authors")
]
FORMS = {  # other starts than those of defaults and presets
    "mae": [{"gate_init": "xavier"}, {"gate": "uniform"}],
    "agreement": [{"routing": "simple"}, {"num_capsules": 4}],
    "weighted": [{"norm": "pre", "weights": "softmax", "start": "random"}],
    "gated": [{"gate": "elementwise"}],
    "standard": [{"kdim": 8, "vdim": 24, "num_key_value_heads": 2, "qk_norm": True}],
}
CASES += [(name, str(options)) for name, found in FORMS.items() for options in found]


def system(name, form):
    kind = NINE[name][0]
    options = {"": {}} | kind.presets | {str(each): each for each in FORMS.get(name, ())}
    return kind(16, **{**ASKED.get(name, {"num_heads": 4}), **options[form]})


@torch.no_grad()
def without_ties(module):
    """Draws routers that start at zero, where it is not said which of equal experts is chosen."""
    for name, weight in module.named_parameters():
        if name.endswith("router.weight") and not weight.any():
            weight.normal_(generator=torch.Generator().manual_seed(3))


def first_weights(module):
    """The norm and the largest number of each parameter."""
    weights = [p.detach().double() for p in module.parameters() if p.numel()]
    return [f(weight).item() for weight in weights for f in (torch.norm, lambda w: w.abs().max())]


@pytest.mark.parametrize(("name", "form"), CASES)
def test_the_first_weights_and_outputs_of_a_system(name, form, golden):
    module = system(name, form).double()
    golden(f"weights {name} {form}", first_weights(module))
    without_ties(module)
    torch.manual_seed(1)
    widths = (16, getattr(module, "kdim", 16), getattr(module, "vdim", 16))
    sequences = [torch.randn(3, 5, width, dtype=torch.float64) for width in widths]
    module.train()
    out = module(*(sequences if set(widths) != {16} else sequences[:1]), is_causal=True)
    loss = None if out.routing is None else out.routing.loss
    numbers = [out.output.norm(), out.output[0, 0, 0], *([] if loss is None else [loss])]
    golden(f"output {name} {form}", [number.item() for number in numbers])


SIZES = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 24, "dropout": 0.1}
WORDS = {"vocab_size": 23, "layers": 2, **SIZES}
PAIRS = {"vocab_size": 23, "encoder_layers": 2, "decoder_layers": 2, **SIZES}
SOUND = {"layers": 2, "sampling_rate": 500, "front_channels": [8], **SIZES}
KINDS = {
    "causal": (hw.CausalLM, WORDS),
    "masked": (hw.MaskedLM, WORDS),
    "classifier": (hw.SequenceClassifier, {**WORDS, "num_labels": 3}),
    "seq2seq": (hw.Seq2SeqLM, PAIRS),
    "speech": (hw.SpeechEnhancer, SOUND),
}
PLANS = {"tim": {"system": "tim", "layers": "all"}, "moa": {"system": "moa", "size": "2K5E4D"}}


def batch(kind):
    """What a model reads, and its labels."""
    if kind == "speech":
        frames = torch.rand(3, 6, 9, dtype=torch.float64)
        return {"inputs": frames, "labels": frames.log()}
    ids = torch.randint(3, 23, (3, 6))
    return {"input_ids": ids, "labels": ids[:, 0] % 3 if kind == "classifier" else ids.flip(1)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NINE)
def test_the_first_losses_of_a_model(name, kind, golden):
    """Trained by the rules for three steps, with what is dropped, drawn and decayed."""
    model_class, sizes = KINDS[kind]
    model = model_class(model_class.config_class(**sizes, attention=PLANS.get(name, name))).double()
    without_ties(model)
    losses = []

    def compute_losses(inputs):
        loss = model(**inputs).loss
        losses.append(loss.item())
        yield loss

    torch.manual_seed(1)
    settings = {"mae": {"period": 2, "unit": "steps"}} if name == "mae" else {}
    batches = [batch(kind) for _ in range(3)]
    loops.train(model.train(), compute_losses, batches, settings=settings, lr=0.01)
    golden(f"losses {name} {kind}", losses)
