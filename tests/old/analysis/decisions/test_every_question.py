"""What holds of every question that is asked of decisions: of parts, of padding, of memory."""

import pickle

import pytest
import torch
from decided import batch, place, random_padding, random_weights, standing

from headwise.analysis.decisions.entropy import Entropy
from headwise.analysis.decisions.explained import Explained
from headwise.analysis.decisions.layers import Layers
from headwise.analysis.decisions.load import Load
from headwise.analysis.decisions.ranges import Ranges
from headwise.analysis.decisions.tokens import Tokens
from headwise.heads.system import Routing

QUESTIONS = (Entropy, Explained, Layers, Load, Ranges, Tokens)
ROWS, TIME, UNITS = 8, 30, 4
PLACES = [place(layer=layer) for layer in range(2)]
ALL = slice(None)


def observed(rows=ALL, time=TIME, *, of_sequences=False, hidden=None, left=False):
    """Rows of a batch of two layers, in which `hidden` stands in all places of padding."""
    weights = random_weights(2, ROWS, time, UNITS)
    tokens = torch.arange(ROWS * time).view(ROWS, time) % 7
    level = torch.rand(ROWS, time, generator=torch.Generator().manual_seed(3))
    padding = random_padding(ROWS, time, seed=4)
    if hidden is not None:
        weights = weights.where(~padding[..., None], torch.eye(UNITS)[hidden % UNITS])
        tokens, level = tokens.masked_fill(padding, hidden), level.masked_fill(padding, hidden)
    if left:  # of what is read
        order = padding.int().argsort(dim=1, descending=True, stable=True)
        tokens, level, padding = (each.gather(1, order) for each in (tokens, level, padding))
        weights = weights.gather(2, order[None, ..., None].expand_as(weights))
    if of_sequences:
        weights = weights[:, :, 0]
    sentences = torch.arange(ROWS) % 2
    described = standing(tokens[rows], {"class": sentences[rows]}, {"loud": level[rows]})
    decided = {at: Routing(weights[layer, rows]) for layer, at in enumerate(PLACES)}
    return batch(decided, described, padding[rows])


def found(question, *batches):
    asked = question()
    for each in batches:
        asked.add(each)
    return asked.result()


def leaves(record):
    """All that a record, or a list of them, says; numbers as far as they can be told apart."""
    if isinstance(record, float):
        return [pytest.approx(record, rel=1e-5, abs=1e-8, nan_ok=True)]
    if isinstance(record, list | tuple):
        return [leaf for inner in record for leaf in leaves(inner)]
    if isinstance(record, dict):
        return [leaf for inner in record.items() for leaf in leaves(inner)]
    return leaves(record.model_dump()) if hasattr(record, "model_dump") else [record]


@pytest.mark.parametrize("of_sequences", [False, True])
@pytest.mark.parametrize("question", QUESTIONS)
def test_halves_of_a_batch_are_the_whole(question, of_sequences):
    halves = (observed(rows, of_sequences=of_sequences) for rows in (slice(3), slice(3, None)))
    whole = leaves(found(question, observed(of_sequences=of_sequences)))
    assert leaves(found(question, *halves)) == whole
    assert whole or (question is Ranges and of_sequences)


@pytest.mark.parametrize("question", QUESTIONS)
def test_padding_counts_nowhere(question):
    where = {"hidden": 1}, {"hidden": 6}, {"left": True}
    one, other, left = (found(question, observed(**padding)) for padding in where)
    assert one and one == other == left


@pytest.mark.parametrize("question", QUESTIONS)
def test_memory_does_not_grow_with_the_number_of_batches(question):
    asked, sizes = question(), []
    for _ in range(20):
        asked.add(observed())
        sizes.append(len(pickle.dumps(asked)))
    assert sizes[-1] <= sizes[0] + 64  # numbers that are written in a byte or two more
