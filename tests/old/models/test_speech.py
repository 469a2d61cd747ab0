"""The speech enhancement model, whatever system is in it."""

import pytest
import torch
import torch.nn.functional as F
from test_every_model import PLANS, build

from headwise.models.speech import FrameConvolution, SpeechEnhancer, SpeechEnhancerConfig

BINS = 9


def model(plan="standard", **options):
    return build("speech", plan, **options).double()


def sound(*shape):
    return torch.rand(*shape, BINS, dtype=torch.float64) * 3


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("lookahead", [0, 2])
def test_a_frame_later_than_the_lookahead_changes_nothing(plan, lookahead):
    made = model(plan, lookahead=lookahead)
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
    made, inputs, labels = model(), sound(2, 3), sound(2, 3).log()
    labels[1, 2] = labels[0, 0, 1] = -100
    real, logits = labels != -100, made(inputs=inputs).logits
    loss = made(inputs=inputs, labels=labels).token_loss
    torch.testing.assert_close(loss, F.mse_loss(logits[real], labels[real]))


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lookahead": 4}, "lookahead is 4, expected 0 to 2"),
        ({"predicts": "mask"}, "predicts is 'mask', expected"),
        ({"floor": 0.0}, "which has no logarithm"),
        ({"front_channels": [0]}, "front_channels"),
        ({"window": 0}, "window is 0"),
    ],
)
def test_sizes_that_do_not_fit(options, words):
    with pytest.raises(ValueError, match=words):
        SpeechEnhancerConfig(**{"front_channels": [8], **options})


def test_inputs_that_do_not_fit():
    with pytest.raises(ValueError, match=r"expected \(batch, time, 9\)"):
        model()(inputs=torch.rand(1, 4, 16))
    with pytest.raises(TypeError, match="input_ids is not an argument of SpeechEnhancer"):
        model()(inputs=sound(1, 2), input_ids=torch.ones(1, 2))


def test_macs_of_what_stands_outside_the_layers():
    made = model()
    weights = 3 * (9 * 8 + 8 * 16) + 16 * 9
    assert made.head_macs({"decoder": 5}) == 5 * weights
    assert made(**{k: v.double() for k, v in made.example_inputs({"decoder": 5}).items()})
