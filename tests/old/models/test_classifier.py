"""The sequence classifier: what it pools, its losses, and options that do not fit."""

import pytest
import torch
import torch.nn.functional as F
from test_every_model import PLANS, build
from tiny import PAD, tokens


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("pooling", ["mean", "first"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(plan, pooling, side):
    made, lengths = build("classifier", plan, pooling=pooling).double(), torch.tensor([5, 3, 1])
    positions = torch.arange(7) if side == "right" else torch.arange(7).flip(0)
    mask = positions < lengths.unsqueeze(1)
    ids = tokens(3, 7).masked_fill(~mask, PAD)
    batched = made(input_ids=ids, attention_mask=mask).logits
    for row, each in enumerate(ids):
        single = made(input_ids=each[mask[row]].unsqueeze(0)).logits
        torch.testing.assert_close(batched[row : row + 1], single)
    # Whatever stands at padding leaves no trace.
    other = torch.where(mask, ids, 7)
    torch.testing.assert_close(made(input_ids=other, attention_mask=mask).logits, batched)


@pytest.mark.parametrize("activation", ["tanh", "relu", "sigmoid"])
@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_the_mean_pools_tokens_and_the_first_takes_one(pooling, activation):
    options = {"pooling": pooling, "activation": activation, "hidden_dim": 5}
    made, ids = build("classifier", "standard", **options).double(), tokens(2, 4)
    encoded = made.encoder(ids).last_hidden_state
    pooled = encoded.mean(1) if pooling == "mean" else encoded[:, 0]
    expected = made.classifier(getattr(torch, activation)(made.hidden(pooled)))
    torch.testing.assert_close(made(input_ids=ids).logits, expected)
    assert made.head_macs({"encoder": 10}) == 16 * 5 + 5 * 2


def test_the_loss_is_the_mean_over_labels():
    made, ids = build("classifier", "standard"), tokens(3, 4)
    out = made(input_ids=ids, labels=torch.tensor([1, -100, 0]))
    expected = F.cross_entropy(out.logits[[0, 2]], torch.tensor([1, 0]))
    torch.testing.assert_close(out.token_loss, expected)
    out = build("regression", "standard")(input_ids=ids, labels=torch.tensor([0.5, -100.0, 3.25]))
    expected = F.mse_loss(out.logits[[0, 2], 0], torch.tensor([0.5, 3.25]))
    torch.testing.assert_close(out.token_loss, expected)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("classifier", {"problem": "ranking"}, "problem is 'ranking', expected 'classification'"),
        ("classifier", {"pooling": "last"}, "pooling is 'last', expected 'mean' or 'first'"),
        ("classifier", {"activation": "gelu"}, "activation is 'gelu', expected 'tanh' or 'relu'"),
        ("classifier", {"hidden_dim": 0}, "hidden_dim is 0, expected a positive number"),
        (
            "classifier",
            {"num_labels": 3},
            r"classes are \[.*\] and num_labels is 3, expected the n",
        ),
        ("regression", {"classes": ["a", "a"]}, r"classes are \['a', 'a'\] and num_labels is 2"),
        ("regression", {"num_labels": 3}, "num_labels is 3, expected 1 if"),
        ("regression", {"classes": ["a", "b"]}, "num_labels is 2, expected 1 if"),
    ],
)
def test_wrong_options_are_errors_that_name_them(kind, options, message):
    with pytest.raises(ValueError, match=message):
        build(kind, "standard", **options)
