"""Analyses keep sums alone: what they hold does not grow with the data."""

import gc

import pytest
import tiny
import torch
from tiny import MOA, PLANS, padded, tokens

from headwise.analysis.behaviour.questions import ask
from headwise.tasks.positions import Positions


@pytest.mark.parametrize("plan", [PLANS["all mixed"], {"encoder_self": MOA}], ids=["mixed", "moa"])
def test_no_tensor_of_a_batch_is_kept(plan):
    made = tiny.model(plan)
    ids, mask = padded([5, 3], 5)
    batch = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": tokens(2, 4)}
    held = {}

    def batches():
        for number in range(21):
            if number in (0, 2, 20):
                gc.collect()
                tensors = (x for x in gc.get_objects() if issubclass(type(x), torch.Tensor))
                held[number] = sum(x.numel() for x in tensors)
            yield batch

    def positions(given):
        decoder = given["decoder_input_ids"]
        return {
            "encoder": Positions(shape=(2, 5), tokens=given["input_ids"]),
            "decoder": Positions(shape=(2, 4), tokens=decoder),
        }

    answers = ask(made, batches(), positions)
    assert answers["sequences"] == 42 and answers["likeness"] is not None
    assert held[0] < held[2] == held[20]
