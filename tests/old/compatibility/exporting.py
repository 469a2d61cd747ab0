"""Inputs of several sizes, and which of these sizes an exported model leaves open."""

from typing import Any

import torch
from tiny import tokens
from torch import Tensor
from torch.export import Dim

# Exporting takes seconds for each layer.
ONE_LAYER = {"causal": {"layers": 1}, "seq2seq": {"encoder_layers": 1, "decoder_layers": 1}}


def examples(kind: str) -> list[dict[str, Tensor]]:
    """Inputs of several sizes, those to export with first; some are padded."""
    return [_inputs(kind, *sizes) for sizes in ((3, 6, 4), (2, 9, 5), (5, 4, 8), (2, 2, 2))]


def dynamic_shapes(kind: str) -> dict[str, Any]:
    """Batch and time of any size."""
    batch, time, target = Dim("batch", min=2), Dim("time", min=2), Dim("target", min=2)
    source = {"input_ids": {0: batch, 1: time}, "attention_mask": {0: batch, 1: time}}
    return source if kind == "causal" else {**source, "decoder_input_ids": {0: batch, 1: target}}


def _inputs(kind: str, batch: int, time: int, target: int) -> dict[str, Tensor]:
    mask = torch.ones(batch, time, dtype=torch.long)
    mask[1, : time // 2] = 0  # on the left, as prompts are padded
    given = {"input_ids": tokens(batch, time), "attention_mask": mask}
    return given if kind == "causal" else {**given, "decoder_input_ids": tokens(batch, target)}
