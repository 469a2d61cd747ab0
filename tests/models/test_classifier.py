"""The sequence classifier: what it computes, what padding may not change, saving and loading."""

import pytest
import torch
import torch.nn.functional as F

from headwise.models.classifier import SequenceClassifier, SequenceClassifierConfig
from headwise.models.plan import SYSTEMS

VOCABULARY, PAD = 23, 0
PLANS = {
    **{name: name for name in SYSTEMS if name not in ("moa", "tim")},
    "moa": {"system": "moa", "size": "2K5E4D"},
    "tim": {"system": "tim", "layers": "all"},
    "simple": {"system": "agreement", "routing": "simple", "num_capsules": 8},
}


def config(plan="standard", **options):
    sizes = {"vocab_size": VOCABULARY, "embed_dim": 16, "num_heads": 4, "ffn_dim": 24, "layers": 2}
    return SequenceClassifierConfig(**{**sizes, "attention": plan, "dropout": 0.0, **options})


def model(plan="standard", seed=0, **options):
    torch.manual_seed(seed)
    made = SequenceClassifier(config(plan, **options))
    for name, parameter in made.named_parameters():
        if ".gate." in name or "router" in name:  # what starts at zero has to count
            parameter.data.add_(torch.randn_like(parameter) * 0.7)
    return made.eval()


def tokens(*shape):
    return torch.randint(3, VOCABULARY, shape)


def padded(lengths, time, side="right"):
    ids = tokens(len(lengths), time)
    positions = torch.arange(time) if side == "right" else torch.arange(time).flip(0)
    mask = positions < torch.tensor(lengths).unsqueeze(1)
    return ids.masked_fill(~mask, PAD), mask.long()


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("pooling", ["mean", "first"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(plan, pooling, side):
    made = model(PLANS[plan], pooling=pooling, num_labels=3).double()
    ids, mask = padded([5, 3, 1], 7, side)
    batched = made(input_ids=ids, attention_mask=mask).logits
    for row, (length, alone) in enumerate(zip([5, 3, 1], ids, strict=True)):
        alone = alone[:length] if side == "right" else alone[-length:]
        single = made(input_ids=alone.unsqueeze(0)).logits
        torch.testing.assert_close(batched[row : row + 1], single)
    # Whatever stands at padding leaves no trace.
    other = torch.where(mask == 1, ids, 7)
    torch.testing.assert_close(made(input_ids=other, attention_mask=mask).logits, batched)


def test_the_mean_pools_tokens_and_the_first_takes_one():
    for pooling, pool in (("mean", lambda x: x.mean(0)), ("first", lambda x: x[0])):
        for activation, function in (
            ("tanh", torch.tanh),
            ("relu", F.relu),
            ("sigmoid", F.sigmoid),
        ):
            made = model(pooling=pooling, activation=activation, hidden_dim=5).double()
            ids, mask = padded([4, 2], 4)
            encoded = made.encoder(ids, attention_mask=mask).last_hidden_state
            expected = [
                made.classifier(function(made.hidden(pool(encoded[row, :length]))))
                for row, length in enumerate([4, 2])
            ]
            logits = made(input_ids=ids, attention_mask=mask).logits
            torch.testing.assert_close(logits, torch.stack(expected))


@pytest.mark.parametrize("problem", ["classification", "regression"])
def test_the_loss_is_the_mean_over_labels(problem):
    made = model(problem=problem, **({"num_labels": 3} if problem == "classification" else {}))
    ids = tokens(3, 4)
    labels = torch.tensor([2, -100, 1])
    if problem == "regression":
        labels = torch.tensor([0.5, -100.0, 3.25], dtype=torch.float64)
    out = made(input_ids=ids, labels=labels)
    rows = [0, 2]
    if problem == "regression":
        expected = F.mse_loss(out.logits[rows, 0].double(), labels[rows])
    else:
        expected = F.cross_entropy(out.logits[rows], labels[rows])
    torch.testing.assert_close(out.token_loss.double(), expected.double(), rtol=1e-5, atol=1e-6)
    summed = made(input_ids=ids, labels=labels, num_items_in_batch=1).token_loss
    torch.testing.assert_close(summed, 2 * out.token_loss)
    nothing = made(input_ids=ids, labels=torch.full_like(labels, -100)).token_loss
    assert nothing == 0


def test_the_head_is_counted():
    made = model(hidden_dim=5, num_labels=3)
    assert made.head_macs({"encoder": 10}) == 16 * 5 + 5 * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"problem": "ranking"}, "problem is 'ranking', expected 'classification' or 'regression'"),
        ({"pooling": "last"}, "pooling is 'last', expected 'mean' or 'first'"),
        ({"activation": "gelu"}, "activation is 'gelu', expected 'tanh' or 'relu' or 'sigmoid'"),
        ({"hidden_dim": 0}, "hidden_dim is 0, expected a positive number"),
        ({"problem": "regression", "num_labels": 3}, "num_labels is 3, expected 1 if"),
        ({"problem": "regression", "classes": ["a", "b"]}, "num_labels is 2, expected 1 if"),
    ],
)
def test_wrong_options_are_errors_that_name_them(options, message):
    with pytest.raises(ValueError, match=message):
        config(**options)
