"""A causal transformer for speech enhancement, as a Hugging Face model.

Lamb et al. 2021, *Transformers with Competitive Ensembles of Independent Mechanisms*,
https://arxiv.org/abs/2103.00336, appendix A.2: convolutions in place of positions, then a causal
transformer. The model reads the magnitudes of noisy speech, frame by frame, and predicts the log
magnitudes of the clean speech in it, with squared error as the loss.

Readings of the paper. The model is causal "with access to 32 ms of future frames": each of the
first `lookahead` convolutions sees one later frame, two of 16 ms in all, and everything behind
them sees the past alone. The last convolution is as wide as the model (256 in the paper, like its
baseline). The logarithm of a magnitude has no lower bound in silence; so the model reads and
predicts log(magnitude + floor). It predicts this value itself, or (`predicts: gain`) the
difference that is added to that of the noisy speech, which takes far fewer steps to learn. The
paper's "LeakyReLU activations" are also those of the feed-forward blocks: `leaky-relu`.
"""

import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from headwise.models.config import SpeechEnhancerConfig
from headwise.models.modeling import (
    HeadwiseModel,
    HeadwiseOutput,
    Stack,
    check_labels,
    padding_mask,
    squared_error,
)

KERNEL = 3  # how many frames a convolution sees


class FrameConvolution(nn.Module):
    """A convolution over time, followed by a layer norm of each frame and LeakyReLU.

    `lookahead` of the frames that it sees are later than its output; beyond either end are zeros.
    """

    def __init__(self, in_channels: int, out_channels: int, lookahead: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(in_channels, out_channels, KERNEL)
        self.norm = nn.LayerNorm(out_channels)
        self.lookahead = lookahead

    def forward(self, x: Tensor, padding: Tensor | None) -> Tensor:
        """`(batch, time, in_channels)` to `(batch, time, out_channels)`; `True` is padding."""
        if padding is not None:
            # Zero, like the frames beyond the end: no sequence depends on the length of another.
            x = x.masked_fill(padding.unsqueeze(-1), 0.0)
        if not x.size(1):  # no frames: the convolution needs as many as its kernel
            return x.new_zeros(x.size(0), 0, self.norm.normalized_shape[0])
        x = F.pad(x.mT, (KERNEL - 1 - self.lookahead, self.lookahead))
        return F.leaky_relu(self.norm(self.convolution(x).mT))


class SpeechEnhancer(HeadwiseModel):
    """A causal transformer that predicts the clean speech in noisy speech.

    Example:
        >>> config = SpeechEnhancerConfig(sampling_rate=8000, layers=1, front_channels=[32],
        ...                               embed_dim=16, num_heads=4, ffn_dim=32)
        >>> model = SpeechEnhancer(config)
        >>> noisy, clean = torch.rand(2, 1, 50, config.num_bins)
        >>> out = model(inputs=noisy, labels=torch.log(clean + config.floor))
        >>> out.logits.shape  # log magnitudes, (batch, time, bins)
        torch.Size([1, 50, 129])
    """

    config: SpeechEnhancerConfig
    config_class = SpeechEnhancerConfig
    main_input_name = "inputs"

    def __init__(self, config: SpeechEnhancerConfig) -> None:
        super().__init__(config)
        widths = (config.num_bins, *config.front_channels, config.embed_dim)
        self.front = nn.ModuleList(
            FrameConvolution(*channels, lookahead=int(index < config.lookahead))
            for index, channels in enumerate(pairwise(widths))
        )
        self.decoder = Stack(config, "decoder", vocab_size=0)
        self.output = nn.Linear(config.embed_dim, config.num_bins)
        self.post_init()

    def forward(
        self,
        inputs: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> HeadwiseOutput:
        """Predicts the log magnitudes of clean speech, and computes the loss if labels are given.

        Args:
            inputs: magnitudes of noisy speech, `(batch, time, bins)`; padding is behind them.
            labels: log magnitudes of the clean speech, `(batch, time, bins)`.
            attention_mask, num_items_in_batch, kwargs: see `HeadwiseModel`.

        Returns:
            The output; its `logits` are the log magnitudes, `(batch, time, bins)`.

        Raises:
            ValueError: `inputs` is missing or has another number of frequencies.
        """
        config = self.config
        if inputs is None or inputs.dim() != 3 or inputs.size(-1) != config.num_bins:
            shape = None if inputs is None else tuple(inputs.shape)
            raise ValueError(
                f"the shape of inputs is {shape}, expected (batch, time, {config.num_bins}): the "
                f"magnitudes of frames of 32 ms at {config.sampling_rate} Hz"
            )
        padding = padding_mask(attention_mask, inputs)
        noisy = torch.log(inputs + config.floor)
        # Shifted so that silence is zero, like padding and the frames beyond either end.
        x = (noisy - math.log(config.floor)).to(self.output.weight.dtype)
        for convolution in self.front:
            x = convolution(x, padding)
        states = self.decoder(None, attention_mask, inputs_embeds=x, **kwargs)
        logits = self.output(states.last_hidden_state)
        logits = noisy + logits if config.predicts == "gain" else logits
        total = None
        if labels is not None:
            total = squared_error(logits, check_labels(labels, logits.shape))
        return self.make_output(states, logits, total, labels, num_items_in_batch)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, nn.Conv1d):
            nn.init.kaiming_uniform_(module.weight, a=0.01)  # the slope of LeakyReLU
            if module.bias is not None:
                nn.init.zeros_(module.bias)


AutoConfig.register(SpeechEnhancerConfig.model_type, SpeechEnhancerConfig, exist_ok=True)
AutoModel.register(SpeechEnhancerConfig, SpeechEnhancer)
