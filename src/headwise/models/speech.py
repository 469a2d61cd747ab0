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
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from headwise.models.base import HeadwiseModel
from headwise.models.config import StackConfig
from headwise.models.outputs import OneStackOutput, of_stack, sum_losses, total_squared_error
from headwise.models.transformer import Decoder
from headwise.ops.bounds import check_among
from headwise.ops.shapes import check_labels, check_token_mask

KERNEL = 3  # how many frames a convolution sees
_MOST_CHANNELS = 100_000


class SpeechEnhancerConfig(StackConfig):
    """Configuration of `SpeechEnhancer`; the defaults are those of the paper's baseline.

    Args:
        sampling_rate: sampling rate of the sound in samples per second; it decides how many
            frequencies a frame of 32 ms has.
        layers: number of layers.
        front_channels: channels of the convolutions in front of the layers; one more convolution,
            as wide as the model, follows them.
        lookahead: how many later frames of 16 ms the model sees, at most one for each convolution.
        floor: a number that is added to magnitudes before their logarithm is taken.
        predicts: what the layers predict: `magnitude`, the log magnitudes of the clean speech, or
            `gain`, the difference that is added to the log magnitudes of the noisy speech.
        window: number of frames of an item in training; longer sounds are read in windows of this
            length.
        positions: always `none`: the convolutions take their place.
        embed_dim, num_heads, ffn_dim, attention, norm, dropout, attention_dropout, ffn_dropout,
            ffn_activation: see `TransformerConfig`.

    Raises:
        ValueError: if sizes or plans do not fit together.
    """

    model_type = "headwise-speech-enhancer"
    site = "decoder_self"
    known_positions = ("none",)

    def __init__(
        self,
        sampling_rate: int = 16_000,
        layers: int = 8,
        front_channels: Sequence[int] = (1024, 512, 128),
        lookahead: int = 2,
        floor: float = 0.1,
        predicts: str = "magnitude",
        window: int = 626,
        embed_dim: int = 256,
        num_heads: int = 16,
        ffn_dim: int = 256,
        positions: str = "none",
        **kwargs: Any,
    ) -> None:
        if not 0 <= lookahead <= len(front_channels) + 1:
            raise ValueError(
                f"lookahead is {lookahead}, expected 0 to {len(front_channels) + 1}: each "
                f"convolution sees at most one later frame"
            )
        if not 0 < floor < math.inf:
            raise ValueError(
                f"floor is {floor}, expected a positive number: the magnitude of silence is 0, "
                f"which has no logarithm"
            )
        check_among("predicts", predicts, ("magnitude", "gain"))
        if not all(1 <= channels <= _MOST_CHANNELS for channels in front_channels):
            raise ValueError(
                f"front_channels is {front_channels}, expected numbers from 1 to {_MOST_CHANNELS}"
            )
        if window < 1:
            raise ValueError(f"window is {window}, expected a positive number of frames")
        self.sampling_rate = sampling_rate
        self.front_channels = list(front_channels)
        self.lookahead = lookahead
        self.floor = floor
        self.predicts = predicts
        self.window = window
        super().__init__(
            layers,
            embed_dim=embed_dim,
            num_heads=num_heads,
            ffn_dim=ffn_dim,
            positions=positions,
            **kwargs,
        )

    @property
    def num_bins(self) -> int:
        """The number of frequencies of a frame of 32 ms."""
        return self.sampling_rate * 16 // 1000 + 1

    @property
    def front_widths(self) -> list[int]:
        """The widths of a frame in front of the layers: before and behind each convolution."""
        return [self.num_bins, *self.front_channels, self.embed_dim]


class FrameConvolution(nn.Module):
    """A convolution over time, followed by a layer norm of each frame and LeakyReLU.

    `ahead` of the frames that it sees are later than its output; frames beyond either end are zero.
    """

    def __init__(self, in_channels: int, out_channels: int, ahead: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(in_channels, out_channels, KERNEL)
        self.norm = nn.LayerNorm(out_channels)
        self.ahead = ahead

    def forward(self, x: Tensor, padding: Tensor | None) -> Tensor:
        """Maps `(batch, time, in_channels)` to `(batch, time, out_channels)`; `True` is padding."""
        if padding is not None:
            # Zero, like the frames beyond the end: no sequence depends on the length of another.
            x = x.masked_fill(padding.unsqueeze(-1), 0.0)
        if not x.size(1):  # no frames: the convolution needs as many as its kernel
            return x.new_zeros(x.size(0), 0, self.norm.normalized_shape[0])
        x = F.pad(x.mT, (KERNEL - 1 - self.ahead, self.ahead))
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

    config_class = SpeechEnhancerConfig
    main_input_name = "inputs"
    config: SpeechEnhancerConfig

    def __init__(self, config: SpeechEnhancerConfig) -> None:
        super().__init__(config)
        self.front = nn.ModuleList(
            FrameConvolution(here, there, ahead=int(index < config.lookahead))
            for index, (here, there) in enumerate(pairwise(config.front_widths))
        )
        self.decoder = Decoder(config, held=True)
        self.output = nn.Linear(config.embed_dim, config.num_bins)
        self.post_init()

    def forward(
        self,
        inputs: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **others: Any,
    ) -> OneStackOutput | tuple[Any, ...]:
        """Predicts the log magnitudes of clean speech, and computes the loss if labels are given.

        Args:
            inputs: magnitudes of noisy speech, `(batch, time, bins)`.
            attention_mask: 1 at frames and 0 at padding behind them, `(batch, time)`.
            labels: log magnitudes of the clean speech, `(batch, time, bins)`; -100 at padding
                and wherever else nothing is to be predicted.
            num_items_in_batch, others: see `HeadwiseModel`.

        Returns:
            The output; its `logits` are the log magnitudes, `(batch, time, bins)`.

        Raises:
            ValueError: if `inputs` is missing or has another number of frequencies.
        """
        asked = self._asked(others)
        if inputs is None or inputs.dim() != 3 or inputs.size(-1) != self.config.num_bins:
            shape = None if inputs is None else tuple(inputs.shape)
            raise ValueError(
                f"the shape of inputs is {shape}, expected (batch, time, {self.config.num_bins}): "
                f"the magnitudes of frames of 32 ms at {self.config.sampling_rate} Hz"
            )
        check_token_mask("attention_mask", attention_mask, *inputs.shape[:2])
        if labels is not None:
            check_labels(labels, tuple(inputs.shape), None)
        padding = None if attention_mask is None else attention_mask == 0
        noisy = torch.log(inputs + self.config.floor)
        # Shifted so that silence is zero, like padding and the frames beyond either end.
        x = (noisy - math.log(self.config.floor)).to(self.output.weight.dtype)
        for convolution in self.front:
            x = convolution(x, padding)
        decoded = self.decoder.run(x, padding, asked)
        logits = self.output(decoded.last_hidden_state)
        if self.config.predicts == "gain":
            logits = noisy + logits
        total = None if labels is None else total_squared_error(logits, labels)
        losses = sum_losses(total, labels, num_items_in_batch, asked["losses"])
        return self._returned(OneStackOutput(logits=logits, **of_stack(decoded), **losses), others)

    def head_macs(self, lengths: Mapping[str, int]) -> int:
        weights = self.output.weight.numel()
        for name, parameter in self.front.named_parameters():
            if name.endswith("convolution.weight"):
                weights += parameter.numel()
        return lengths["decoder"] * weights

    def example_inputs(self, lengths: Mapping[str, int]) -> dict[str, Tensor]:
        return {"inputs": torch.ones(1, lengths["decoder"], self.config.num_bins)}

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, nn.Conv1d):
            nn.init.kaiming_uniform_(module.weight, a=0.01)  # the slope of LeakyReLU
            if module.bias is not None:
                nn.init.zeros_(module.bias)


AutoConfig.register(SpeechEnhancerConfig.model_type, SpeechEnhancerConfig)
AutoModel.register(SpeechEnhancerConfig, SpeechEnhancer)
