"""The language model: a decoder without an encoder, as a Hugging Face model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from headwise.models.adaptive import AdaptiveEmbedding, AdaptiveSoftmax, check_bands
from headwise.models.base import (
    DecodingGenerationMixin,
    HeadwiseModel,
    HeadwiseOutput,
    sum_losses,
    total_cross_entropy,
)
from headwise.models.cache import DecodingCache
from headwise.models.config import LanguageModelConfig
from headwise.models.transformer import AuxiliaryLoss, Decoder, token_embedding
from headwise.ops.labels import IGNORED_LABEL


class CausalLMConfig(LanguageModelConfig):
    """A transformer that predicts each token from those before it.

    Args:
        adaptive_cutoffs: words are numbered by frequency, and rarer ones have narrower embeddings
            in input and output, in bands that begin at 0 and at these; None for the same width
            for all. See `headwise.models.adaptive`.
        adaptive_factor: how many times narrower each band is than the one before.
        adaptive_dropout: dropout inside the adaptive softmax.
        max_length: longest sequence, prompt included, that generation gives unless told
            otherwise.
        vocab_size, share_embeddings, label_smoothing, pad_token_id, bos_token_id, eos_token_id: see
            `LanguageModelConfig`.
        layers, embed_dim, num_heads, ffn_dim, attention, norm, dropout, attention_dropout,
            ffn_dropout: see `TransformerConfig`.

    Raises:
        ValueError: sizes or plans that do not fit together.
    """

    model_type = "headwise-causal-lm"
    site = "decoder_self"

    def __init__(
        self,
        vocab_size: int = 32_000,
        *,
        adaptive_cutoffs: list[int] | None = None,
        adaptive_factor: int = 4,
        adaptive_dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        self.adaptive_cutoffs = adaptive_cutoffs
        self.adaptive_factor = adaptive_factor
        self.adaptive_dropout = adaptive_dropout
        super().__init__(vocab_size, **kwargs)
        if adaptive_cutoffs is not None:
            check_bands(vocab_size, self.embed_dim, adaptive_cutoffs, adaptive_factor)
            for name, expected in (("share_embeddings", True), ("label_smoothing", 0)):
                value = getattr(self, name)
                if value != expected:
                    raise ValueError(
                        f"{name} is {value}, expected {expected} with adaptive_cutoffs: the "
                        f"adaptive softmax shares all weights, and its losses are not smoothed"
                    )
            # What an adaptive softmax shares it asks the embedding for.
            self.tie_word_embeddings = False


@dataclass
class CausalLMOutput(HeadwiseOutput):
    """What `CausalLM` returns.

    Attributes:
        loss: the training loss: cross entropy per predicted token, label-smoothed in training,
            plus `auxiliary_loss`; only if labels were given.
        logits: `(batch, time, vocabulary)`, of the token behind each. Those of adaptive embeddings
            are log-probabilities, and only there if no labels were given.
        token_loss: the cross-entropy part of `loss`.
        auxiliary_loss: what the attentions ask to add (MoA's balance and z losses), or None.
        past_key_values: what decoding remembers, if `use_cache`.
    """

    past_key_values: DecodingCache | None = None


class CausalLM(HeadwiseModel, DecodingGenerationMixin):
    """A language model whose attention follows a plan.

    It is the decoder of Vaswani et al. 2017, *Attention Is All You Need*,
    https://arxiv.org/abs/1706.03762, without its encoder-decoder attention. It has
    `save_pretrained`, `from_pretrained` and `generate()` (greedy, sampling and beam search through
    a cache; prompts of different lengths are padded on the left), and loads through
    `AutoModelForCausalLM` once headwise is imported.

    Example:
        >>> import torch
        >>> config = CausalLMConfig(vocab_size=50, embed_dim=16, num_heads=4, ffn_dim=32,
        ...                         layers=1, attention="mae")
        >>> model = CausalLM(config)
        >>> text = torch.tensor([[5, 6, 7, 2]])
        >>> model(input_ids=text).logits.shape
        torch.Size([1, 4, 50])
        >>> loss = model(input_ids=text, labels=text).loss
        >>> continued = model.eval().generate(text[:, :2], do_sample=True, max_new_tokens=5)
    """

    config: CausalLMConfig
    config_class = CausalLMConfig

    def __init__(self, config: CausalLMConfig) -> None:
        super().__init__(config)
        # transformers' Trainer asks whether the first label counts as one to predict.
        self.loss_type = "ForCausalLM"
        self.decoder = Decoder(config, _embedding(config))
        self.lm_head: nn.Linear | AdaptiveSoftmax
        if config.adaptive_cutoffs is None:
            self.lm_head = nn.Linear(config.embed_dim, config.vocab_size, bias=False)
        else:
            self.lm_head = AdaptiveSoftmax(
                config.embed_dim, len(config.adaptive_cutoffs) + 1, config.adaptive_dropout
            )
        if config.tie_word_embeddings:
            self._tied_weights_keys = {"lm_head.weight": "decoder.embedding.weight"}
        self.post_init()
        self.generation_config = GenerationConfig(
            max_length=config.max_length,
            pad_token_id=config.pad_token_id,
            bos_token_id=config.bos_token_id,
            eos_token_id=config.eos_token_id,
        )

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: DecodingCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        logits_to_keep: int = 0,
        return_dict: bool | None = None,
        **unused: Any,
    ) -> CausalLMOutput | tuple[Any, ...]:
        """Logits, and with labels the loss.

        Args:
            input_ids: tokens `(batch, time)`.
            attention_mask: `(batch, cached + time)`, 1 at tokens and 0 at padding, which may stand
                on either side (attention modules themselves take masks in PyTorch's sense).
            past_key_values: what earlier calls of a decoding remember.
            labels: `(batch, time)`, as everywhere in transformers the same tokens as `input_ids`:
                the label at t + 1 is predicted from the tokens up to t. Where it is -100 nothing
                is to be predicted. The first label is never predicted; make it -100, so that
                everybody counts the same labels.
            use_cache: return `past_key_values`, new if none was given.
            num_items_in_batch: divide the token loss by this in place of the number of labels.
            logits_to_keep: logits of so many last positions alone; 0 for all.
        """
        self._refuse(unused)
        if input_ids is None:
            raise ValueError("input_ids is None, expected tokens (batch, time)")
        losses = AuxiliaryLoss()
        padding = None if attention_mask is None else attention_mask == 0
        if past_key_values is None and use_cache:
            past_key_values = self.new_cache()
        hidden = self.decoder(input_ids, padding, losses, past_key_values)
        logits = total = None
        if labels is None:
            logits = self._logits(hidden[:, -logits_to_keep:])
        elif isinstance(self.lm_head, AdaptiveSoftmax):
            labels = labels[:, 1:]
            total = self._losses(hidden[:, :-1], labels).sum()
        else:
            logits, labels = self._logits(hidden), labels[:, 1:]
            smoothing = self.config.label_smoothing if self.training else 0.0
            total = total_cross_entropy(logits[:, :-1], labels, smoothing)
        output = CausalLMOutput(
            logits=logits,
            past_key_values=past_key_values,
            **sum_losses(total, labels, num_items_in_batch, losses),
        )
        return output if return_dict is not False else output.to_tuple()

    def get_decoder(self, modality: str | None = None) -> nn.Module:
        return self.decoder

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Module:
        """As in transformers; words in bands of their frequencies cannot be added to."""
        if self.config.adaptive_cutoffs is not None:
            raise ValueError(
                f"adaptive_cutoffs is {self.config.adaptive_cutoffs}, expected None: bands of "
                f"words cannot be resized"
            )
        return super().resize_token_embeddings(*args, **kwargs)

    def head_macs(self, lengths: Mapping[str, int]) -> int:
        if isinstance(self.lm_head, nn.Linear):
            return lengths["decoder"] * self.lm_head.weight.numel()
        # Every weight once: the first band's map at the input, where most words are of that band,
        # all others at the output.
        parts = (self.decoder.embedding, self.lm_head)
        return lengths["decoder"] * sum(p.numel() for part in parts for p in part.parameters())

    def _logits(self, hidden: Tensor) -> Tensor:
        if isinstance(self.lm_head, nn.Linear):
            return self.lm_head(hidden)
        return self.lm_head.log_probs(hidden, self._adaptive_embedding())

    def _losses(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """The adaptive softmax's loss of each label that is not -100, `(labels,)`."""
        assert isinstance(self.lm_head, AdaptiveSoftmax)
        predicted = labels != IGNORED_LABEL
        return self.lm_head.losses(hidden[predicted], labels[predicted], self._adaptive_embedding())

    def _adaptive_embedding(self) -> AdaptiveEmbedding:
        assert isinstance(self.decoder.embedding, AdaptiveEmbedding)
        return self.decoder.embedding


def _embedding(config: CausalLMConfig) -> nn.Module:
    if config.adaptive_cutoffs is None:
        return token_embedding(config, config.vocab_size)
    return AdaptiveEmbedding(
        config.vocab_size,
        config.embed_dim,
        config.adaptive_cutoffs,
        config.adaptive_factor,
        config.pad_token_id,
    )


AutoConfig.register(CausalLMConfig.model_type, CausalLMConfig)
AutoModelForCausalLM.register(CausalLMConfig, CausalLM)
