"""The speech enhancement model, whatever system is in it."""

import pytest
import tiny
import torch
import torch.nn.functional as F

from headwise.models.outputs import total_squared_error
from headwise.models.plan import SYSTEMS
from headwise.models.speech import (
    FrameConvolution,
    SpeechEnhancer,
    SpeechEnhancerConfig,
)

MIDDLE = {"decoder_self": [{"system": "tim", "layers": [1]}, {**tiny.MOA, "layers": [0]}]}
PLANS = {
    **{name: name for name in SYSTEMS if name not in ("moa", "tim")},
    "moa": tiny.MOA,
    "tim": {"system": "tim", "layers": "all"},
    "mae, window": {"system": "mae", "gate_window": 2},
    "mixed": MIDDLE,
}
BINS = 17


def config(plan="standard", **options):
    sizes = {"sampling_rate": 1_000, "embed_dim": 16, "num_heads": 4, "ffn_dim": 24, "layers": 2}
    sizes |= {"front_channels": [12, 10], "dropout": 0.0, "window": 12}
    return SpeechEnhancerConfig(**{**sizes, "attention": plan, **options})


def model(plan="standard", **options):
    """In evaluation, in float64, with attention and gates that depend strongly on their input."""
    torch.manual_seed(0)
    made = SpeechEnhancer(config(plan, **options))
    tiny.strengthen(made)
    return made.double().eval()


def sound(*shape):
    return torch.rand(*shape, BINS, dtype=torch.float64) * 3


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("lookahead", [0, 2, 3])
def test_a_frame_later_than_the_lookahead_changes_nothing(plan, lookahead):
    made = model(PLANS[plan], lookahead=lookahead)
    inputs = sound(2, 11)
    before = made(inputs=inputs).logits
    changed = inputs.clone()
    changed[:, 7:] = sound(2, 4)
    after = made(inputs=changed).logits
    same = 7 - lookahead
    torch.testing.assert_close(after[:, :same], before[:, :same], atol=1e-9, rtol=0)
    assert (after[:, same] - before[:, same]).abs().max() > 1e-6


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_convolution_is_that_of_its_equation(ahead):
    layer = FrameConvolution(3, 4, ahead).double()
    torch.nn.init.normal_(layer.norm.weight)
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    expected = torch.zeros(2, 5, 4, dtype=torch.float64)
    for t in range(5):
        total = layer.convolution.bias.expand(2, 4).clone()
        for k in range(3):
            seen = t - 2 + ahead + k
            if 0 <= seen < 5:
                total += x[:, seen] @ layer.convolution.weight[:, :, k].mT
        expected[:, t] = F.leaky_relu(layer.norm(total), 0.01)
    torch.testing.assert_close(layer(x, None), expected)


def test_the_loss_is_the_mean_squared_error_of_what_is_to_be_predicted():
    predicted = torch.randn(2, 3, 4, dtype=torch.float64)
    labels = torch.randn(2, 3, 4, dtype=torch.float64)
    labels[1, 2] = labels[0, 0, 1] = -100
    total = sum(
        (predicted[i, t, f] - labels[i, t, f]) ** 2
        for i in range(2)
        for t in range(3)
        for f in range(4)
        if labels[i, t, f] != -100
    )
    torch.testing.assert_close(total_squared_error(predicted, labels), total)
    made = model()
    inputs, labels = sound(2, 3), sound(2, 3).log()
    loss = made(inputs=inputs, labels=labels).token_loss
    torch.testing.assert_close(loss, F.mse_loss(made(inputs=inputs).logits, labels))
    scaled = made(inputs=inputs, labels=labels, num_items_in_batch=7).token_loss
    torch.testing.assert_close(scaled, loss * labels.numel() / 7)


def test_the_paper_s_baseline_has_six_million_parameters():
    with torch.device("meta"):
        made = SpeechEnhancer(SpeechEnhancerConfig())
    assert sum(p.numel() for p in made.parameters()) == pytest.approx(6e6, rel=0.03)
    assert [layer.ahead for layer in made.front] == [1, 1, 0, 0]
    assert [layer.convolution.out_channels for layer in made.front] == [1024, 512, 128, 256]


def test_a_gain_is_added_to_what_is_heard():
    made, inputs = model(), sound(2, 5)
    added = made(inputs=inputs).logits
    made.config.predicts = "gain"
    torch.testing.assert_close(
        made(inputs=inputs).logits, torch.log(inputs + made.config.floor) + added
    )


def test_sizes_that_do_not_fit():
    for options, words in (
        ({"lookahead": 4}, "lookahead is 4, expected 0 to 3"),
        ({"predicts": "mask"}, "predicts is 'mask', expected"),
        ({"floor": 0.0}, "which has no logarithm"),
        ({"front_channels": [0]}, "front_channels"),
        ({"window": 0}, "window is 0"),
    ):
        with pytest.raises(ValueError, match=words):
            config(**options)
    with pytest.raises(ValueError, match=r"expected \(batch, time, 17\)"):
        model()(inputs=torch.rand(1, 4, 16))
    with pytest.raises(ValueError, match="shape of inputs is None"):
        model()()
    with pytest.raises(TypeError, match="input_ids is not an argument of SpeechEnhancer"):
        model()(inputs=sound(1, 2), input_ids=torch.ones(1, 2))


def test_macs_of_what_stands_outside_the_layers():
    made = model()
    weights = 3 * (17 * 12 + 12 * 10 + 10 * 16) + 16 * 17
    assert made.head_macs({"decoder": 5}) == 5 * weights
    assert made(**{k: v.double() for k, v in made.example_inputs({"decoder": 5}).items()})
