"""The language model, a decoder without an encoder, as a Hugging Face model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerFast,
)

from headwise.models.base import HeadwiseModel
from headwise.models.cache import DecodingCache, DecodingGenerationMixin
from headwise.models.config import LanguageModelConfig
from headwise.models.embedding import AdaptiveEmbedding, AdaptiveSoftmax, band_sizes
from headwise.models.outputs import OneStackOutput, of_stack, sum_losses, total_cross_entropy
from headwise.models.transformer import Decoder
from headwise.ops.labels import IGNORED_LABEL
from headwise.ops.shapes import check_labels
from headwise.transformers_internals import (
    CACHE,
    SHIFTED_LOSS,
    CacheOutput,
    given_cache,
    shift_smoothed_labels,
)


class CausalLMConfig(LanguageModelConfig):
    """The configuration of a transformer that predicts each token from those before it.

    Args:
        adaptive_cutoffs: the ids at which bands of rarer words begin, which have narrower
            embeddings in input and output; word ids are sorted by frequency, and the first band
            begins at 0. None gives all words the same width. See `headwise.models.embedding`.
        adaptive_factor: the factor by which each band is narrower than the one before.
        adaptive_dropout: dropout inside the adaptive softmax.
        max_length: the greatest length of generated sequences, prompt included, unless generation
            is called with another.
        vocab_size, share_embeddings, label_smoothing, pad_token_id, bos_token_id, eos_token_id: see
            `LanguageModelConfig`.
        layers, embed_dim, num_heads, ffn_dim, attention, norm, dropout, attention_dropout,
            ffn_dropout, ffn_activation, positions, max_positions: see `TransformerConfig`; by
            default there is a learned position more than `max_length`, since a sequence in
            training also has the token before the first that is predicted.

    Raises:
        ValueError: the sizes and the plan do not fit together.
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
            for name, expected in (("share_embeddings", True), ("label_smoothing", 0)):
                value = getattr(self, name)
                if value != expected:
                    raise ValueError(
                        f"{name} is {value}, expected {expected} with adaptive_cutoffs: the "
                        f"adaptive softmax shares all weights, and its losses are not smoothed"
                    )
            band_sizes(vocab_size, self.embed_dim, adaptive_cutoffs, adaptive_factor)  # they fit
            # The adaptive softmax gets the shared weights from the embedding itself.
            self.tie_word_embeddings = False

    def default_positions(self) -> int:
        return self.max_length + 1


@dataclass
class CausalLMOutput(CacheOutput, OneStackOutput):
    """The output of `CausalLM`: that of a model with one stack, and the cache, if `use_cache`.

    With adaptive embeddings `logits` are log-probabilities, and None in training with labels.
    `past_key_values` names the cache too.
    """


class CausalLMDecoder(Decoder):
    """The decoder of a `CausalLM`, as its configuration has it.

    Example:
        >>> import torch
        >>> from transformers import AutoModel
        >>> config = CausalLMConfig(vocab_size=50, embed_dim=16, num_heads=4, ffn_dim=32, layers=1)
        >>> AutoModel.from_config(config)(torch.tensor([[5, 6, 7]])).last_hidden_state.shape
        torch.Size([1, 3, 16])
    """

    config: CausalLMConfig
    config_class = CausalLMConfig
    base_model_prefix = "decoder"  # of the whole model


class CausalLM(HeadwiseModel, DecodingGenerationMixin):
    """A language model whose attention follows a plan.

    It is the decoder of Vaswani et al. 2017, *Attention Is All You Need*,
    https://arxiv.org/abs/1706.03762, without its encoder-decoder attention. It has
    `save_pretrained`, `from_pretrained` and `generate()` (greedy search, sampling and beam search
    with a cache; prompts of different lengths are padded on the left). `AutoModelForCausalLM` can
    load it if headwise is imported.

    Example:
        >>> import torch
        >>> config = CausalLMConfig(vocab_size=50, embed_dim=16, num_heads=4, ffn_dim=32,
        ...                         layers=1, attention="standard")
        >>> model = CausalLM(config)
        >>> text = torch.tensor([[5, 6, 7, 2]])
        >>> model(input_ids=text).logits.shape
        torch.Size([1, 4, 50])
        >>> loss = model(input_ids=text, labels=text).loss
        >>> continued = model.eval().generate(text[:, :2], do_sample=True, max_new_tokens=5)
    """

    config: CausalLMConfig
    config_class = CausalLMConfig
    base_model_prefix = "decoder"

    def __init__(self, config: CausalLMConfig) -> None:
        super().__init__(config)
        self.loss_type = SHIFTED_LOSS
        self.decoder = CausalLMDecoder(config, held=True)
        self.lm_head: Any  # an adapter or a quantised map may take its place
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
        cache: DecodingCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        logits_to_keep: int | Tensor = 0,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        all_logits: bool | None = None,
        **others: Any,
    ) -> CausalLMOutput | tuple[Any, ...]:
        """Computes the logits and, with labels, the loss.

        Args:
            input_ids: tokens, `(batch, time)`; or give `inputs_embeds`.
            attention_mask: `(batch, cached + time)`; padding may be on either side.
            cache: the cache of earlier calls in a decoding, which `past_key_values` names too.
            labels: `(batch, time)`, the same tokens as `input_ids`, as in transformers: the model
                predicts the label at t + 1 from the tokens up to t. Labels of -100 are not
                predicted. The first label is never predicted; set it to -100, so that it is not
                counted either.
            use_cache: whether to return a cache; without a given one, a new one.
            logits_to_keep: number of last positions to compute logits for, 0 for all; or the
                positions, a tensor. With labels those of all are needed.
            position_ids: without `attention_mask` they also say where packed texts begin, as
                transformers' `DataCollatorWithFlattening` gives them: where they do not go on by
                one. Each text is then computed by itself.
            all_logits: whether logits are computed with labels too where the loss does not need
                them, in an adaptive softmax; by default in evaluation alone.
            num_items_in_batch, inputs_embeds, others: see `HeadwiseModel`.
        """
        cache = given_cache(cache, others)
        asked = self._asked(others)
        source = inputs_embeds if input_ids is None else input_ids
        if labels is not None and isinstance(source, Tensor) and source.dim() > 1:
            # Before the cache gets this call's tokens; what is wrong with these the decoder says.
            check_labels(labels, tuple(source.shape[:2]), self.config.vocab_size)
        kept: Any = logits_to_keep
        if not isinstance(kept, Tensor):
            kept = slice(-kept, None) if kept else None
        if labels is not None and kept is not None:
            raise ValueError(
                f"logits_to_keep is {logits_to_keep} and labels are given, expected one of them: "
                f"the loss needs the logits of all positions; leave logits_to_keep out"
            )
        decoded = self.decoder(
            input_ids,
            attention_mask,
            cache,
            inputs_embeds,
            position_ids,
            use_cache=use_cache,
            return_dict=True,
            **asked,
        )
        hidden = decoded.last_hidden_state
        logits = total = None
        if labels is None:
            logits = self._logits(hidden if kept is None else hidden[:, kept])
        elif self.config.adaptive_cutoffs is not None:
            labels = labels[:, 1:]
            total = self._losses(hidden[:, :-1], labels).sum()
            if not self.training if all_logits is None else all_logits:
                logits = self._logits(hidden)
        else:
            logits, labels = self._logits(hidden), labels[:, 1:]
            smoothing = self.config.label_smoothing if self.training else 0.0
            total = total_cross_entropy(logits[:, :-1], labels, smoothing)
        losses = sum_losses(total, labels, num_items_in_batch, asked["losses"])
        states = {**of_stack(decoded), CACHE: decoded.get(CACHE)}
        return self._returned(CausalLMOutput(logits=logits, **states, **losses), others)

    def get_output_embeddings(self) -> nn.Module | None:
        """Returns the map to the vocabulary; None for an adaptive softmax, which has several."""
        return self.lm_head if self.config.adaptive_cutoffs is None else None

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Module:
        """As in transformers; an adaptive vocabulary cannot be resized."""
        if self.config.adaptive_cutoffs is not None:
            raise ValueError(
                f"adaptive_cutoffs is {self.config.adaptive_cutoffs}, expected None: bands of "
                f"words cannot be resized"
            )
        return super().resize_token_embeddings(*args, **kwargs)

    def head_macs(self, lengths: Mapping[str, int]) -> int:
        if self.config.adaptive_cutoffs is None:
            return lengths["decoder"] * self.lm_head.weight.numel()
        # Every weight counts once: the map of the first band at the input, where most words belong
        # to this band, and all others at the output.
        parts = (self.decoder.embedding, self.lm_head)
        return lengths["decoder"] * sum(p.numel() for part in parts for p in part.parameters())

    def _logits(self, hidden: Tensor) -> Tensor:
        if self.config.adaptive_cutoffs is None:
            logits: Tensor = self.lm_head(hidden)
            return logits
        return self.lm_head.log_probs(hidden, self._adaptive_embedding())

    def _losses(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """The adaptive softmax's losses of the labels that are not -100, `(labels,)`."""
        predicted = labels != IGNORED_LABEL
        return self.lm_head.losses(hidden[predicted], labels[predicted], self._adaptive_embedding())

    def _adaptive_embedding(self) -> AdaptiveEmbedding:
        return cast(AdaptiveEmbedding, self.decoder.embedding)


class LineTokenizer(PreTrainedTokenizerFast):
    """A tokenizer whose end token is the line end, which is a part of texts.

    `AutoTokenizer` finds it in the folder of a language model if headwise is imported.
    """

    def _decode(self, token_ids: Any, skip_special_tokens: bool = False, **options: Any) -> str:
        if skip_special_tokens:  # line ends are among them and stay
            left_out = set(self.all_special_ids) - {self.eos_token_id}
            ids = [token_ids] if isinstance(token_ids, int) else token_ids
            token_ids = [token for token in ids if token not in left_out]
        return super()._decode(token_ids, skip_special_tokens=False, **options)


AutoConfig.register(CausalLMConfig.model_type, CausalLMConfig)
AutoModel.register(CausalLMConfig, CausalLMDecoder)
AutoModelForCausalLM.register(CausalLMConfig, CausalLM)
shift_smoothed_labels(CausalLMConfig.model_type, CausalLM)
AutoTokenizer.register(CausalLMConfig, LineTokenizer)
