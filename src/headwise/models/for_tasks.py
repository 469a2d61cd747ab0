"""The models of text: language models, a classifier, and the encoder-decoder transformer.

The Auto classes of transformers know them, and `SpeechEnhancer`, after `import headwise.models`.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from headwise.models.config import (
    CausalLMConfig,
    MaskedLMConfig,
    Seq2SeqLMConfig,
    SequenceClassifierConfig,
    TransformerConfig,
)
from headwise.models.modeling import (
    DecodingCache,
    DecodingGenerationMixin,
    HeadwiseModel,
    Stack,
    cross_entropy,
    squared_error,
)
from headwise.ops.labels import IGNORED_LABEL


class CausalLMDecoder(Stack):
    """The decoder of a `CausalLM`, as `AutoModel` loads it."""

    config_class = CausalLMConfig
    base_model_prefix = "decoder"  # of the whole model


class CausalLM(HeadwiseModel, DecodingGenerationMixin):
    """A language model whose attention follows a plan.

    It is the decoder of Vaswani et al. 2017, *Attention Is All You Need*,
    https://arxiv.org/abs/1706.03762, without its attention over an encoder. `generate()` searches
    greedily, by beams, or samples; prompts of different lengths are padded on the left.

    Example:
        >>> config = CausalLMConfig(vocab_size=50, embed_dim=16, num_heads=4, ffn_dim=32, layers=1)
        >>> model, text = CausalLM(config), torch.tensor([[5, 6, 7, 2]])
        >>> model(text).logits.shape
        torch.Size([1, 4, 50])
        >>> loss = model(text, labels=text).loss
        >>> continued = model.eval().generate(text[:, :2], max_new_tokens=5)
    """

    config: CausalLMConfig
    config_class = CausalLMConfig
    base_model_prefix = "decoder"
    _tied_weights_keys: ClassVar = {"lm_head.weight": "decoder.embedding.weight"}

    def __init__(self, config: CausalLMConfig) -> None:
        super().__init__(config)
        self.loss_type = "ForCausalLM"  # the first label is never predicted, nor counted by Trainer
        self.decoder = CausalLMDecoder(config)
        self.lm_head: Any = None  # adaptive embeddings hold theirs
        if config.adaptive_cutoffs is None:
            self.lm_head = nn.Linear(config.embed_dim, config.vocab_size, bias=False)
        self.post_init()
        self.generation_config = _generation(config, config.max_length)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: DecodingCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        logits_to_keep: int = 0,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        all_logits: bool | None = None,
        **others: Any,
    ) -> Any:
        """Computes the logits and, with labels, the loss.

        Args:
            input_ids: tokens, `(batch, time)`; or give `inputs_embeds`.
            attention_mask: `(batch, cached + time)`; padding may be on either side.
            cache: the cache of earlier calls in a decoding.
            labels: `(batch, time)`, the same tokens as `input_ids`, as in transformers: the model
                predicts the label at t + 1 from the tokens up to t. Labels of -100 are not
                predicted, nor is the first label, nor one whose token before it is padding.
            use_cache: whether to return a cache; without a given one, a new one.
            logits_to_keep: of how many last positions logits are computed; 0 for all.
            all_logits: whether logits are computed with labels too where the loss does not need
                them, with adaptive embeddings; by default in evaluation alone.
            num_items_in_batch, inputs_embeds, position_ids, others: see `HeadwiseModel`.
        """
        cache = self.new_cache() if cache is None and use_cache else cache
        given = {"attention_mask": attention_mask, "inputs_embeds": inputs_embeds, "cache": cache}
        given |= {"position_ids": position_ids, "losses": (found := [])}
        states = self.decoder(input_ids, **given, **{**others, "return_dict": True})
        hidden, logits, total = states.last_hidden_state, None, None
        if labels is not None:
            if logits_to_keep:
                raise ValueError(
                    f"logits_to_keep is {logits_to_keep} and labels are given, expected one of "
                    f"them: the loss needs the logits of all positions"
                )
            labels = _checked(labels, hidden.shape[:2])[:, 1:]
            if attention_mask is not None:
                from_padding = attention_mask[:, -hidden.size(1) :][:, :-1] == 0
                labels = labels.masked_fill(from_padding, IGNORED_LABEL)
        if labels is None or self.lm_head is not None:
            logits = self._logits(hidden[:, -logits_to_keep:])
        elif not self.training if all_logits is None else all_logits:
            logits = self._logits(hidden)
        if labels is not None and self.lm_head is None:
            total = self.decoder.embedding.loss(hidden[:, :-1], labels)
        elif labels is not None:
            smoothing = self.config.label_smoothing if self.training else 0.0
            total = cross_entropy(logits[:, :-1], labels, smoothing)
        states |= self.losses(found, total, labels, num_items_in_batch)
        return self.returned(others, **{**states, "logits": logits})

    def get_output_embeddings(self) -> nn.Module | None:
        """The map to the vocabulary; None for adaptive embeddings, which have several."""
        return self.lm_head

    def _logits(self, hidden: Tensor) -> Tensor:
        return (
            self.decoder.embedding.log_probs(hidden)
            if self.lm_head is None
            else self.lm_head(hidden)
        )


class MaskedLMEncoder(Stack):
    """The encoder of a `MaskedLM`, as `AutoModel` loads it."""

    config_class = MaskedLMConfig
    base_model_prefix = "encoder"  # of the whole model


class MaskedLM(HeadwiseModel):
    """An encoder that predicts hidden tokens, whose attention follows a plan.

    As in Devlin et al. 2019, *BERT: Pre-training of Deep Bidirectional Transformers for Language
    Understanding*, https://arxiv.org/abs/1810.04805, the encoder is followed by a linear map, GELU,
    a layer norm and the shared weights of the embedding, with a bias for each token. The encoder is
    that of the Transformer; BERT's has `ffn_activation="gelu"` and `positions="learned"`.

    In training it computes logits at the predicted tokens alone, which saves some 85% of the
    product with the vocabulary, the largest of all.

    Example:
        >>> config = MaskedLMConfig(vocab_size=50, embed_dim=16, num_heads=4, ffn_dim=32, layers=1)
        >>> model = MaskedLM(config)
        >>> read, hidden = torch.tensor([[1, 9, 4, 2]]), torch.tensor([[-100, -100, 8, -100]])
        >>> model.eval()(read, labels=hidden).logits.shape
        torch.Size([1, 4, 50])
        >>> model.train()(read, labels=hidden).logits.shape
        torch.Size([1, 50])
    """

    config: MaskedLMConfig
    config_class = MaskedLMConfig
    base_model_prefix = "encoder"
    _tied_weights_keys: ClassVar = {"lm_head.weight": "encoder.embedding.weight"}

    def __init__(self, config: MaskedLMConfig) -> None:
        super().__init__(config)
        self.encoder = MaskedLMEncoder(config)
        self.transform = nn.Linear(config.embed_dim, config.embed_dim)
        self.transform_norm = nn.LayerNorm(config.embed_dim, config.norm_eps)
        self.lm_head: Any = nn.Linear(config.embed_dim, config.vocab_size)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        all_logits: bool | None = None,
        **others: Any,
    ) -> Any:
        """Computes the logits and, with labels, the loss.

        Args:
            input_ids: tokens, `(batch, time)`, some of them hidden; or give `inputs_embeds`.
            attention_mask: `(batch, time)`.
            labels: `(batch, time)`, the hidden tokens, -100 where the model predicts nothing.
            all_logits: whether the logits of all positions are computed with labels too, in place
                of those of the predicted tokens; by default in evaluation alone.
            num_items_in_batch, inputs_embeds, position_ids, others: see `HeadwiseModel`.

        Returns:
            An output with `logits` `(batch, time, vocabulary)`, or those of the predicted tokens,
            `(tokens, vocabulary)`, sequence by sequence and in order.
        """
        given = {
            "inputs_embeds": inputs_embeds,
            "position_ids": position_ids,
            "losses": (found := []),
        }
        states = self.encoder(input_ids, attention_mask, **given, **{**others, "return_dict": True})
        hidden, total = states.last_hidden_state, None
        if labels is None:
            logits = self._logits(hidden)
        else:
            chosen = _checked(labels, hidden.shape[:2]) != IGNORED_LABEL
            if not self.training if all_logits is None else all_logits:
                logits = self._logits(hidden)
                predicted = logits[chosen]  # (tokens, vocabulary)
            else:
                logits = predicted = self._logits(hidden[chosen])
            smoothing = self.config.label_smoothing if self.training else 0.0
            total = cross_entropy(predicted, labels[chosen], smoothing)
        states |= self.losses(found, total, labels, num_items_in_batch)
        return self.returned(others, **{**states, "logits": logits})

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(self.transform_norm(F.gelu(self.transform(hidden))))


class SequenceClassifierEncoder(Stack):
    """The encoder of a `SequenceClassifier`, as `AutoModel` loads it."""

    config_class = SequenceClassifierConfig
    base_model_prefix = "encoder"  # of the whole model


class SequenceClassifier(HeadwiseModel):
    """An encoder whose attention follows a plan, with a classifier on top of it.

    With the mean of the top layer and a perceptron with one hidden layer, it probes sentences as in
    Conneau et al. 2018, *What you can cram into a single $&!#* vector: Probing sentence embeddings
    for linguistic properties*, https://arxiv.org/abs/1805.01070. With the first token, it
    fine-tunes a pretrained encoder as in Devlin et al. 2018, *BERT*,
    https://arxiv.org/abs/1810.04805.

    Example:
        >>> sizes = {"vocab_size": 50, "embed_dim": 16, "num_heads": 4, "ffn_dim": 32, "layers": 1}
        >>> config = SequenceClassifierConfig(**sizes, classes=["PAST", "PRES"])
        >>> ids = torch.tensor([[1, 5, 6, 2], [1, 7, 2, 0]])
        >>> mask, labels = (ids != 0).long(), torch.tensor([0, 1])
        >>> SequenceClassifier(config)(ids, attention_mask=mask, labels=labels).logits.shape
        torch.Size([2, 2])
    """

    config: SequenceClassifierConfig
    config_class = SequenceClassifierConfig
    base_model_prefix = "encoder"

    def __init__(self, config: SequenceClassifierConfig) -> None:
        super().__init__(config)
        self.encoder = SequenceClassifierEncoder(config)
        self.hidden = nn.Linear(config.embed_dim, config.hidden_dim or config.embed_dim)
        self.classifier = nn.Linear(self.hidden.out_features, config.num_labels or 1)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        **others: Any,
    ) -> Any:
        """Computes the logits of each sequence and, with labels, the loss.

        Args:
            input_ids: tokens, `(batch, time)`; or give `inputs_embeds`.
            attention_mask: `(batch, time)`.
            labels: `(batch,)`: classes, or numbers for a regression, whose loss is the squared
                error; -100 where the model predicts nothing.
            num_items_in_batch, inputs_embeds, position_ids, others: see `HeadwiseModel`.

        Returns:
            An output with `logits` `(batch, classes)`, or `(batch, 1)` for a regression.
        """
        given = {
            "inputs_embeds": inputs_embeds,
            "position_ids": position_ids,
            "losses": (found := []),
        }
        states = self.encoder(input_ids, attention_mask, **given, **{**others, "return_dict": True})
        activation = {"tanh": torch.tanh, "relu": F.relu, "sigmoid": torch.sigmoid}
        pooled = self._pooled(states.last_hidden_state, attention_mask)
        hidden = activation[self.config.activation](self.hidden(pooled))
        logits = self.classifier(F.dropout(hidden, self.config.dropout, self.training))
        total = None
        if labels is not None:
            _checked(labels, logits.shape[:1])
            of_numbers = self.config.problem == "regression"
            predicted = logits.squeeze(-1) if of_numbers else logits
            total = (squared_error if of_numbers else cross_entropy)(predicted, labels)
        states |= self.losses(found, total, labels, num_items_in_batch)
        return self.returned(others, **{**states, "logits": logits})

    def _pooled(self, encoded: Tensor, attention_mask: Tensor | None) -> Tensor:
        """One vector for each sequence, `(batch, embed_dim)`; padding may be on either side."""
        real = torch.ones_like(encoded[..., 0]) if attention_mask is None else attention_mask
        if self.config.pooling == "first" and encoded.size(1):
            first = (real != 0).int().argmax(1)  # (batch,)
            return encoded[torch.arange(len(encoded), device=encoded.device), first]
        tokens = (real != 0).unsqueeze(-1)
        # Multiplying by 0 instead would keep a NaN at padding.
        return encoded.masked_fill(~tokens, 0.0).sum(1) / tokens.sum(1).clamp(min=1)


class Seq2SeqLM(HeadwiseModel, DecodingGenerationMixin):
    """An encoder-decoder transformer whose attention follows a plan.

    It is the model of Vaswani et al. 2017, *Attention Is All You Need*,
    https://arxiv.org/abs/1706.03762. `AutoModel` loads it too.

    Example:
        >>> sizes = {"vocab_size": 50, "embed_dim": 16, "num_heads": 4, "ffn_dim": 32}
        >>> model = Seq2SeqLM(Seq2SeqLMConfig(**sizes, encoder_layers=1, decoder_layers=1))
        >>> source = torch.tensor([[5, 6, 7, 2]])
        >>> model(source, labels=torch.tensor([[8, 9, 2]])).logits.shape
        torch.Size([1, 3, 50])
        >>> translated = model.eval().generate(source, num_beams=2, max_new_tokens=5)
    """

    config: Seq2SeqLMConfig
    config_class = Seq2SeqLMConfig

    def __init__(self, config: Seq2SeqLMConfig) -> None:
        super().__init__(config)
        self.encoder = Stack(config, "encoder", config.vocab_size)
        self.decoder = Stack(config, "decoder", config.target_vocab_size)
        words = config.target_vocab_size or 0
        self.lm_head = nn.Linear(config.embed_dim, words, bias=config.output_bias)
        stack = "encoder" if config.share_embeddings == "all" else "decoder"
        self._tied_weights_keys = {"lm_head.weight": f"{stack}.embedding.weight"}
        if stack == "encoder":
            self._tied_weights_keys["decoder.embedding.weight"] = "encoder.embedding.weight"
        self.post_init()
        self.generation_config = _generation(
            config, config.max_target_length, decoder_start_token_id=config.decoder_start_token_id
        )

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        cache: DecodingCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        **others: Any,
    ) -> Any:
        """Computes the logits and, with labels, the loss.

        Args:
            input_ids: source tokens, `(batch, source time)`; or give `inputs_embeds`.
            attention_mask: `(batch, source time)`.
            decoder_input_ids: target tokens so far, `(batch, target time)`; by default `labels`,
                shifted to the right by one position, with the start token in front.
            decoder_attention_mask: `(batch, cached + target time)`; by default all up to the last
                label of each row.
            encoder_outputs: the output of the encoder, which is computed if it is not given.
            cache: the cache of earlier calls in a decoding.
            labels: `(batch, target time)`, -100 where the model predicts nothing.
            use_cache: whether to return a cache; without a given one, a new one.
            decoder_inputs_embeds: what `decoder.embedding` gives for the target tokens.
            num_items_in_batch, inputs_embeds, position_ids, decoder_position_ids, others: see
                `HeadwiseModel`; what is to be returned is that of both stacks.
        """
        asked = {**others, "return_dict": True, "losses": (found := [])}
        if encoder_outputs is None:
            given = {"inputs_embeds": inputs_embeds, "position_ids": position_ids}
            encoder_outputs = self.encoder(input_ids, attention_mask, **given, **asked)
        if decoder_input_ids is None and decoder_inputs_embeds is None and labels is not None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        cache = self.new_cache() if cache is None and use_cache else cache
        if decoder_attention_mask is None and labels is not None:
            seen = 0 if cache is None else cache.get_seq_length()
            decoder_attention_mask = F.pad(_up_to_last_label(labels), (seen, 0), value=1)
        states = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            decoder_inputs_embeds,
            decoder_position_ids,
            cache,
            encoder_outputs[0],
            attention_mask,
            **asked,
        )
        logits = self.lm_head(states.last_hidden_state)
        total = None
        if labels is not None:
            _checked(labels, logits.shape[:2])
            smoothing = self.config.label_smoothing if self.training else 0.0
            total = cross_entropy(logits, labels, smoothing)
        of_stacks = {
            "encoder_last_hidden_state": encoder_outputs[0],
            "encoder_hidden_states": encoder_outputs.get("hidden_states"),
            "encoder_attentions": encoder_outputs.get("attentions"),
            "decoder_hidden_states": states.hidden_states,
            "decoder_attentions": states.attentions,
            "cross_attentions": states.cross_attentions,
        }
        losses = self.losses(found, total, labels, num_items_in_batch)
        of_stacks |= {"last_hidden_state": states.last_hidden_state, "cache": cache}
        return self.returned(others, logits=logits, **of_stacks, **losses)

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.embedding = value

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Module:
        """As in transformers, for a joint vocabulary."""
        if self.config.share_embeddings != "all":
            raise ValueError(
                f"share_embeddings is {self.config.share_embeddings!r}, expected 'all': only a "
                f"vocabulary that source and target share can be resized"
            )
        embeddings: nn.Module = super().resize_token_embeddings(*args, **kwargs)
        self.config.target_vocab_size = self.config.vocab_size
        return embeddings

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The decoder's input: the labels, shifted to the right by one position."""
        return shift_right(labels, self.config.decoder_start_token_id, self.config.pad_token_id)


class LineTokenizer(PreTrainedTokenizerFast):
    """A tokenizer whose end token is the line end, which is a part of texts."""

    def _decode(self, token_ids: Any, skip_special_tokens: bool = False, **options: Any) -> str:
        if skip_special_tokens:  # line ends are among them and stay
            left_out = set(self.all_special_ids) - {self.eos_token_id}
            ids = [token_ids] if isinstance(token_ids, int) else token_ids
            token_ids = [token for token in ids if token not in left_out]
        return super()._decode(token_ids, skip_special_tokens=False, **options)


def shift_right(labels: Tensor, start: Any, padding: Any) -> Tensor:
    """Labels `(batch, time)` as decoder input: a start token and all labels but the last.

    Labels of -100 become padding.

    >>> shift_right(torch.tensor([[7, 8, 2, -100]]), start=1, padding=0)
    tensor([[1, 7, 8, 2]])
    """
    shifted = torch.full_like(labels, start)
    shifted[:, 1:] = labels[:, :-1]
    return shifted.masked_fill(shifted == IGNORED_LABEL, padding)


def model_class(config: TransformerConfig) -> type[HeadwiseModel]:
    """The class of the models of a configuration."""
    kinds = [*HeadwiseModel.__subclasses__(), *Stack.__subclasses__()]
    return next(kind for kind in kinds if getattr(kind, "config_class", None) is type(config))


def _generation(config: Any, max_length: int, **others: Any) -> GenerationConfig:
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    tokens = {name: getattr(config, name) for name in names}
    return GenerationConfig(max_length=max_length, **tokens, **others)


def _up_to_last_label(labels: Tensor) -> Tensor:
    """1 at the positions of each row up to its last label, also at a -100 before that."""
    return ((labels != IGNORED_LABEL).flip(1).cumsum(1).flip(1) != 0).long()


def _checked(labels: Tensor, shape: Any) -> Tensor:
    """The labels; raises `ValueError` unless they have a shape."""
    if labels.shape != shape:
        raise ValueError(
            f"labels has shape {tuple(labels.shape)}, expected {tuple(shape)}: a label for each "
            f"item that is predicted, {IGNORED_LABEL} where none is"
        )
    return labels


for config_class, body, auto, kind in (
    (CausalLMConfig, CausalLMDecoder, AutoModelForCausalLM, CausalLM),
    (MaskedLMConfig, MaskedLMEncoder, AutoModelForMaskedLM, MaskedLM),
    (
        SequenceClassifierConfig,
        SequenceClassifierEncoder,
        AutoModelForSequenceClassification,
        SequenceClassifier,
    ),
    (Seq2SeqLMConfig, Seq2SeqLM, AutoModelForSeq2SeqLM, Seq2SeqLM),
):
    AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    AutoModel.register(config_class, body)
    auto.register(config_class, kind)
AutoTokenizer.register(CausalLMConfig, LineTokenizer)
# Trainer shifts the labels that it smoothes for the classes that this table names.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[CausalLMConfig.model_type] = CausalLM.__name__
