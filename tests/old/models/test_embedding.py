"""Adaptive embeddings and softmax against the equations."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from headwise.models.embedding import AdaptiveEmbedding, AdaptiveSoftmax

SIZES = [
    # vocabulary, width, cutoffs, factor
    (11, 8, [4], 2),
    (23, 16, [5, 12], 4),
    (14, 8, [1, 2, 9], 2),
    (9, 4, [8], 1),
]


def parts(size, dropout=0.0):
    torch.manual_seed(3)
    vocabulary, width, cutoffs, factor = size
    embedding = AdaptiveEmbedding(vocabulary, width, cutoffs, factor).double()
    return embedding, AdaptiveSoftmax(width, len(cutoffs) + 1, dropout).double()


def tensors(size, tokens=7):
    hidden = torch.randn(tokens, size[1], dtype=torch.float64, requires_grad=True)
    return hidden, torch.randint(size[0], (tokens,))


def naive_log_probs(hidden, embedding, softmax):
    """Computes `AdaptiveSoftmax.log_probs` by the equations, word by word.

    The logit of a word of the narrower bands is the product of h with its input embedding.
    """
    edges = embedding.edges
    rows = []
    for h in hidden:
        head = [h @ e for e in embedding.weights(0)[0]] + [h @ c for c in softmax.clusters.weight]
        p_head = torch.stack(head).softmax(0)
        p = [p_head[w] for w in range(edges[1])]
        for band, (first, last) in enumerate(pairwise(edges[1:])):
            logits = [h @ embedding(torch.tensor(w)) for w in range(first, last)]
            p += list(p_head[edges[1] + band] * torch.stack(logits).softmax(0))
        rows.append(torch.stack(p).log())
    return torch.stack(rows)


def gradients(loss, hidden, *modules):
    weights = [p for module in modules for p in module.parameters()]
    found = torch.autograd.grad(loss, [hidden, *weights], allow_unused=True, retain_graph=True)
    return [
        torch.zeros_like(w) if g is None else g
        for w, g in zip([hidden, *weights], found, strict=True)
    ]


@pytest.mark.parametrize("size", SIZES)
def test_all_probabilities_are_those_of_the_equations(size):
    embedding, softmax = parts(size)
    hidden, labels = tensors(size)
    ours, expected = (
        softmax.log_probs(hidden, embedding),
        naive_log_probs(hidden, embedding, softmax),
    )
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(ours.exp().sum(-1), torch.ones(7, dtype=torch.float64))
    rows = torch.arange(7)
    for a, b in zip(
        gradients(ours[rows, labels].sum(), hidden, embedding, softmax),
        gradients(expected[rows, labels].sum(), hidden, embedding, softmax),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("which", ["any", "first band", "last band"])
@pytest.mark.parametrize("size", SIZES)
def test_losses_are_those_of_the_whole_vocabulary(size, which):
    embedding, softmax = parts(size)
    hidden, labels = tensors(size)
    if which == "first band":
        labels = labels % size[2][0]
    elif which == "last band":
        labels = torch.full_like(labels, size[0] - 1)
    losses = softmax.losses(hidden, labels, embedding)
    expected = -naive_log_probs(hidden, embedding, softmax)[torch.arange(7), labels]
    torch.testing.assert_close(losses, expected)
    for a, b in zip(
        gradients(losses.sum(), hidden, embedding, softmax),
        gradients(expected.sum(), hidden, embedding, softmax),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_dropout_is_of_the_input_and_inside_each_narrower_band():
    embedding, softmax = parts((23, 16, [5, 12], 2), dropout=0.5)
    hidden, _ = tensors((23, 16))
    torch.manual_seed(0)
    found = softmax.log_probs(hidden, embedding)
    # By hand, with the same draws.
    torch.manual_seed(0)
    h = F.dropout(hidden, 0.5)
    words = embedding.bands[0].weight
    head = torch.cat([h @ words.T, h @ softmax.clusters.weight.T], -1).log_softmax(-1)
    expected = [head[:, :5]]
    for band in (1, 2):
        narrow = F.dropout(h @ embedding.projections[band].weight, 0.5)
        tail = (narrow @ embedding.bands[band].weight.T).log_softmax(-1)
        expected.append(head[:, 4 + band, None] + tail)
    torch.testing.assert_close(found, torch.cat(expected, -1))
    # The losses of words of one band draw the same.
    labels = torch.randint(5, 12, (7,))
    torch.manual_seed(0)
    losses = softmax.losses(hidden, labels, embedding)
    torch.testing.assert_close(losses, -found[torch.arange(7), labels])


def test_padding_has_no_embedding():
    embedding = AdaptiveEmbedding(20, 8, [5], 2, padding_idx=0)
    assert (embedding(torch.tensor([0])) == 0).all()


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"cutoffs": []}, ["adaptive_cutoffs is []", "vocab_size = 20", "[2]"]),
        ({"cutoffs": [5, 5]}, ["adaptive_cutoffs is [5, 5]", "ascending"]),
        ({"cutoffs": [20]}, ["adaptive_cutoffs is [20]"]),
        ({"cutoffs": [0, 4]}, ["adaptive_cutoffs is [0, 4]"]),
        ({"cutoffs": [5, 9, 12]}, ["adaptive_factor is 4", "embed_dim = 16"]),
        ({"cutoffs": [5], "factor": 0}, ["adaptive_factor is 0"]),
        ({"cutoffs": [5], "padding_idx": 5}, ["padding_idx is 5", "0 to 4"]),
    ],
)
def test_bands_that_cannot_be_are_errors(options, parts):
    with pytest.raises(ValueError) as error:
        AdaptiveEmbedding(20, 16, **options)
    assert all(part in str(error.value) for part in parts)
