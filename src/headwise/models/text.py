"""The models of text: language models, a classifier, and the encoder-decoder transformer.

Importing this module registers them with transformers' Auto classes.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from headwise.models import config as configs
from headwise.models.modeling import (
    DecodingCache,
    DecodingGenerationMixin,
    HeadwiseModel,
    HeadwiseOutput,
    Stack,
    check_labels,
    squared_error,
)
from headwise.ops import IGNORED_LABEL


class CausalLMDecoder(Stack):
    """The decoder of a `CausalLM`, as `AutoModel` loads it."""

    config_class = configs.CausalLMConfig
    base_model_prefix = "decoder"  # of the whole model


class CausalLM(HeadwiseModel, DecodingGenerationMixin):
    """A language model whose attention follows a plan.

    It is the decoder of Vaswani et al. 2017, *Attention Is All You Need*,
    https://arxiv.org/abs/1706.03762, without its attention over an encoder. `generate()` searches
    greedily, by beams, or samples; prompts of different lengths are padded on the left.

    Example:
        >>> import headwise as hw
        >>> sizes = {"vocab_size": 50, "embed_dim": 16, "num_heads": 4, "ffn_dim": 32, "layers": 1}
        >>> model, text = CausalLM(hw.CausalLMConfig(**sizes)), torch.tensor([[5, 6, 7, 2]])
        >>> model(text).logits.shape
        torch.Size([1, 4, 50])
        >>> loss = model(text, labels=text).loss
        >>> continued = model.eval().generate(text[:, :2], max_new_tokens=5)
    """

    config: configs.CausalLMConfig
    config_class = configs.CausalLMConfig
    base_model_prefix = "decoder"
    _tied_weights_keys: ClassVar = {"lm_head.weight": "decoder.embedding.weight"}

    def __init__(self, config: configs.CausalLMConfig) -> None:
        super().__init__(config)
        self.loss_type = "ForCausalLM"  # the first label is never predicted, nor counted by Trainer
        self.decoder = CausalLMDecoder(config)
        self.lm_head: Any = None  # adaptive embeddings hold theirs
        if config.adaptive_cutoffs is None:
            self.lm_head = nn.Linear(config.embed_dim, config.vocab_size, bias=False)
        self.post_init()
        self.set_generation(max_length=config.max_length)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: DecodingCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        logits_to_keep: int = 0,
        **kwargs: Any,
    ) -> HeadwiseOutput:
        """Computes the logits and, with labels, the loss.

        Args:
            labels: `(batch, time)`, the same tokens as `input_ids`, as in transformers: the model
                predicts the label at t + 1 from the tokens up to t. Labels of -100 are not
                predicted, nor is the first label, nor one whose token before it is padding.
            logits_to_keep: of how many last positions logits are computed; 0 for all. With labels
                the loss is of these positions. With labels and adaptive embeddings no logits are
                computed, as the loss does not need them.
            kwargs: see `HeadwiseModel`, also for all that is not named here.
        """
        cache = self.new_cache() if cache is None and use_cache else cache
        states = self.decoder(input_ids, attention_mask, cache, **kwargs)
        hidden, total = states.last_hidden_state[:, -logits_to_keep:], None
        logits: Any = None
        if labels is not None:
            check_labels(labels, states.last_hidden_state.shape[:2])
            if attention_mask is not None:  # a label that is predicted from padding
                real = F.pad(attention_mask[:, -labels.size(1) :][:, :-1], (1, 0))
                labels = labels.masked_fill(real == 0, IGNORED_LABEL)
            labels = labels[:, -logits_to_keep:][:, 1:]
        if self.lm_head is not None:
            logits = self.lm_head(hidden)
            if labels is not None:
                total = self.cross_entropy(logits[:, :-1], labels)
        elif labels is None:
            logits = self.decoder.embedding.log_probs(hidden)
        else:
            total = self.decoder.embedding.loss(hidden[:, :-1], labels)
        return self.make_output(states, logits, total, labels, num_items_in_batch)

    def get_output_embeddings(self) -> nn.Module | None:
        """The map to the vocabulary; None for adaptive embeddings, which have several."""
        return self.lm_head


class MaskedLMEncoder(Stack):
    """The encoder of a `MaskedLM`, as `AutoModel` loads it."""

    config_class = configs.MaskedLMConfig
    base_model_prefix = "encoder"  # of the whole model


class MaskedLM(HeadwiseModel):
    """An encoder that predicts hidden tokens, whose attention follows a plan.

    As in Devlin et al. 2019, *BERT: Pre-training of Deep Bidirectional Transformers for Language
    Understanding*, https://arxiv.org/abs/1810.04805, the encoder is followed by a linear map, GELU,
    a layer norm and the shared weights of the embedding, with a bias for each token. The encoder is
    that of the Transformer; BERT's has `ffn_activation="gelu"` and `positions="learned"`.

    With labels it computes logits at the predicted tokens alone, which saves some 85% of the
    product with the vocabulary, the largest of all.

    Example:
        >>> import headwise as hw
        >>> sizes = {"vocab_size": 50, "embed_dim": 16, "num_heads": 4, "ffn_dim": 32, "layers": 1}
        >>> model = MaskedLM(hw.MaskedLMConfig(**sizes))
        >>> read, hidden = torch.tensor([[1, 9, 4, 2]]), torch.tensor([[-100, -100, 8, -100]])
        >>> model(read).logits.shape, model(read, labels=hidden).logits.shape
        (torch.Size([1, 4, 50]), torch.Size([1, 50]))
    """

    config: configs.MaskedLMConfig
    config_class = configs.MaskedLMConfig
    base_model_prefix = "encoder"
    _tied_weights_keys: ClassVar = {"lm_head.weight": "encoder.embedding.weight"}

    def __init__(self, config: configs.MaskedLMConfig) -> None:
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
        **kwargs: Any,
    ) -> HeadwiseOutput:
        """Computes the logits and, with labels, the loss.

        Args:
            labels: `(batch, time)`, the hidden tokens, and -100 elsewhere.
            kwargs: see `HeadwiseModel`, also for all that is not named here.

        Returns:
            An output with `logits` `(batch, time, vocabulary)`; with labels, those of the predicted
            tokens, `(tokens, vocabulary)`, sequence by sequence and in order.
        """
        states = self.encoder(input_ids, attention_mask, **kwargs)
        hidden, total = states.last_hidden_state, None
        if labels is not None:
            predicted = check_labels(labels, hidden.shape[:2]) != IGNORED_LABEL
            hidden = hidden[predicted]  # (tokens, embed_dim)
        logits = self.lm_head(self.transform_norm(F.gelu(self.transform(hidden))))
        if labels is not None:
            total = self.cross_entropy(logits, labels[predicted])
        return self.make_output(states, logits, total, labels, num_items_in_batch)


class SequenceClassifierEncoder(Stack):
    """The encoder of a `SequenceClassifier`, as `AutoModel` loads it."""

    config_class = configs.SequenceClassifierConfig
    base_model_prefix = "encoder"  # of the whole model


class SequenceClassifier(HeadwiseModel):
    """An encoder whose attention follows a plan, with a classifier on top of it.

    With the mean of the top layer and a perceptron with one hidden layer, it probes sentences as in
    Conneau et al. 2018, *What you can cram into a single $&!#* vector: Probing sentence embeddings
    for linguistic properties*, https://arxiv.org/abs/1805.01070. With the first token, it
    fine-tunes a pretrained encoder as in Devlin et al. 2018, *BERT*,
    https://arxiv.org/abs/1810.04805.

    Example:
        >>> import headwise as hw
        >>> sizes = {"vocab_size": 50, "embed_dim": 16, "num_heads": 4, "ffn_dim": 32, "layers": 1}
        >>> config = hw.SequenceClassifierConfig(**sizes, classes=["past", "now"])
        >>> model = SequenceClassifier(config)
        >>> ids = torch.tensor([[1, 5, 6, 2], [1, 7, 2, 0]])
        >>> model(ids, attention_mask=(ids != 0).long(), labels=torch.tensor([0, 1])).logits.shape
        torch.Size([2, 2])
    """

    config: configs.SequenceClassifierConfig
    config_class = configs.SequenceClassifierConfig
    base_model_prefix = "encoder"

    def __init__(self, config: configs.SequenceClassifierConfig) -> None:
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
        **kwargs: Any,
    ) -> HeadwiseOutput:
        """Computes the logits of each sequence and, with labels, the loss.

        Args:
            labels: `(batch,)`: classes, or numbers for a regression, whose loss is the squared
                error; -100 where the model predicts nothing.
            kwargs: see `HeadwiseModel`, also for all that is not named here.

        Returns:
            An output with `logits` `(batch, classes)`, or `(batch, 1)` for a regression.
        """
        states = self.encoder(input_ids, attention_mask, **kwargs)
        activations: Any = {"tanh": torch.tanh, "relu": F.relu, "sigmoid": torch.sigmoid}
        pooled = self._pool(states.last_hidden_state, attention_mask)
        hidden = activations[self.config.activation](self.hidden(pooled))
        logits = self.classifier(F.dropout(hidden, self.config.dropout, self.training))
        total = None
        if labels is not None:
            check_labels(labels, logits.shape[:1])
            if self.config.problem == "regression":
                total = squared_error(logits.squeeze(-1), labels)
            else:
                total = self.cross_entropy(logits, labels)
        return self.make_output(states, logits, total, labels, num_items_in_batch)

    def _pool(self, encoded: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Returns the vector of each sequence, `(batch, embed_dim)`: the mean or the first token.

        Padding, which may stand on either side, is in neither.
        """
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
        >>> import headwise as hw
        >>> sizes = {"vocab_size": 50, "embed_dim": 16, "num_heads": 4, "ffn_dim": 32}
        >>> model = Seq2SeqLM(hw.Seq2SeqLMConfig(**sizes, encoder_layers=1, decoder_layers=1))
        >>> source = torch.tensor([[5, 6, 7, 2]])
        >>> model(source, labels=torch.tensor([[8, 9, 2]])).logits.shape
        torch.Size([1, 3, 50])
        >>> translated = model.eval().generate(source, num_beams=2, max_new_tokens=5)
    """

    config: configs.Seq2SeqLMConfig
    config_class = configs.Seq2SeqLMConfig

    def __init__(self, config: configs.Seq2SeqLMConfig) -> None:
        super().__init__(config)
        self.encoder = Stack(config, "encoder", config.vocab_size)
        self.decoder = Stack(config, "decoder", config.target_vocab_size)
        vocab_size: Any = config.target_vocab_size
        self.lm_head = nn.Linear(config.embed_dim, vocab_size, bias=config.output_bias)
        tied = {"lm_head.weight": "decoder.embedding.weight"}
        if config.share_embeddings == "all":
            tied = dict.fromkeys((*tied, *tied.values()), "encoder.embedding.weight")
        self._tied_weights_keys = tied
        self.post_init()
        start = config.decoder_start_token_id
        self.set_generation(max_length=config.max_target_length, decoder_start_token_id=start)

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
        **kwargs: Any,
    ) -> HeadwiseOutput:
        """Computes the logits and, with labels, the loss.

        Args:
            input_ids, inputs_embeds, attention_mask: of the source.
            decoder_input_ids: target tokens so far, `(batch, target time)`; by default `labels`,
                shifted to the right by one position, with the start token in front.
            decoder_attention_mask: `(batch, cached + target time)`; by default all up to the last
                label of each row.
            encoder_outputs: the output of the encoder, which is computed if it is not given.
            labels: `(batch, target time)`.
            kwargs: see `HeadwiseModel`, also for all that is not named here.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids, attention_mask, inputs_embeds=inputs_embeds, **kwargs
            )
        cache = self.new_cache() if cache is None and use_cache else cache
        if labels is not None:
            if decoder_input_ids is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
            check_labels(labels, decoder_input_ids.shape)
            if decoder_attention_mask is None:
                past_length = 0 if cache is None else cache.get_seq_length()
                # Up to the last label of each row, also at a -100 before that.
                mask = (labels != IGNORED_LABEL).flip(1).cumsum(1).flip(1) != 0
                decoder_attention_mask = F.pad(mask, (past_length, 0), value=True)
        states = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            cache,
            encoder_hidden_states=encoder_outputs[0],
            encoder_attention_mask=attention_mask,
            **kwargs,
        )
        logits, total = self.lm_head(states.last_hidden_state), None
        auxiliary_loss = getattr(encoder_outputs, "auxiliary_loss", None)
        if auxiliary_loss is not None:
            if states.auxiliary_loss is not None:
                auxiliary_loss = auxiliary_loss.to(logits.device) + states.auxiliary_loss
            states["auxiliary_loss"] = auxiliary_loss
        if labels is not None:
            total = self.cross_entropy(logits, labels)
        return self.make_output(states, logits, total, labels, num_items_in_batch)

    def generate(self, *args: Any, labels: Tensor | None = None, **kwargs: Any) -> Any:
        """As in transformers; `labels`, which its Seq2SeqTrainer gives, change nothing."""
        return super().generate(*args, **kwargs)

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.embedding = value

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Module:
        raise NotImplementedError("a model of two vocabularies does not resize its embeddings")

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The decoder's input: the labels, shifted to the right by one position."""
        return shift_right(labels, self.config.decoder_start_token_id, self.config.pad_token_id)


def shift_right(labels: Tensor, start: Any, padding: Any) -> Tensor:
    """Labels `(batch, time)` as decoder input: a start token and all labels but the last.

    Labels of -100 become padding, or start tokens if there is no padding.

    >>> shift_right(torch.tensor([[7, 8, 2, -100]]), start=1, padding=0)
    tensor([[1, 7, 8, 2]])
    """
    shifted = F.pad(labels[:, :-1], (1, 0), value=start)
    return shifted.masked_fill(shifted == IGNORED_LABEL, start if padding is None else padding)


for _body, _auto, _model in (
    (CausalLMDecoder, hf.AutoModelForCausalLM, CausalLM),
    (MaskedLMEncoder, hf.AutoModelForMaskedLM, MaskedLM),
    (SequenceClassifierEncoder, hf.AutoModelForSequenceClassification, SequenceClassifier),
    (Seq2SeqLM, hf.AutoModelForSeq2SeqLM, Seq2SeqLM),
):
    _config: Any = _model.config_class
    hf.AutoConfig.register(_config.model_type, _config, exist_ok=True)
    hf.AutoModel.register(_config, _body)
    _auto.register(_config, _model)
# Trainer shifts the labels that it smoothes for the classes that this table names.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[configs.CausalLMConfig.model_type] = CausalLM.__name__
