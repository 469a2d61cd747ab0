"""The configurations of models: sizes and plans of attention, as in Hugging Face transformers."""

import copy
from dataclasses import field, fields
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, RopeParameters

from headwise.heads.attention import Attention
from headwise.messages import check_choice, did_you_mean
from headwise.models.plan import LayerSpec, build_system, layer_specs
from headwise.ops.layers import Activation, NormKind
from headwise.ops.rotary import rotary_rates

# What transformers takes beside the fields of a configuration.
_TRANSFORMERS_ARGUMENTS = {
    *("num_labels", "torch_dtype", "name_or_path", "output_attentions", "attn_implementation"),
    *("experts_implementation", "per_layer_config", "model_type", "tokenizer_class", "auto_map"),
    *("use_cache", "quantization_config", "tie_word_embeddings"),
}


@strict
class TransformerConfig(PreTrainedConfig):
    """What the configurations of all models have.

    Attributes:
        embed_dim: width of the model (d).
        num_heads: number of heads of each attention (h).
        ffn_dim: width of the feed-forward's hidden layer.
        ffn_activation: activation inside the feed-forward, see `headwise.ops.layers`.
        attention: plan of attention, see `headwise.models.plan`.
        norm: norms after each residual sum (`post`, as published) or before each sub-layer (`pre`).
        norm_kind: `layer` norms, or `rms`, by the root mean square.
        norm_eps: ε of the norms.
        dropout: probability of dropout of embeddings and of each sub-layer's output.
        attention_dropout: probability of dropout of attention weights.
        ffn_dropout: probability of dropout of the feed-forward's hidden layer.
        positions: what tells where a token stands: `sinusoidal`, `learned`, or `rotary` positions,
            which turn the queries and keys of self-attention.
        max_positions: number of learned positions, the longest sequence that the model reads; None
            for other positions.
        rope_parameters: of rotary positions, as in transformers: `rope_theta` (10,000),
            `partial_rotary_factor` (1), and `rope_type` (`default`, `linear`, `llama3`, `yarn`)
            with what each reads.
        head_dim: width of a head; embed_dim / num_heads if None.
        num_key_value_heads: number of heads of keys and values, each for several heads of queries;
            num_heads if None.
        qk_norm: whether queries and keys of each head have an `rms` norm.
        bias: whether the linear maps of layers have one; `"qkv"`: those of queries, keys and values
            alone. A system whose equations have none has none, whatever this says.
        scale_embeddings: whether embeddings are multiplied by √embed_dim, as published.
        embedding_norm: whether a norm follows the embeddings, as in BERT.
        pad_token_id, bos_token_id, eos_token_id: ids of special tokens; None if there are none.
            `eos_token_id` may be a list.

    Raises:
        TypeError: an argument that neither headwise nor transformers knows.
        ValueError: sizes or a plan that do not fit together.
    """

    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "embed_dim",
        "intermediate_size": "ffn_dim",
        "max_position_embeddings": "max_positions",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "layers",
    }
    # Of the outputs, what is no prediction to transformers' Trainer.
    keys_to_ignore_at_inference: ClassVar[list[str]] = [
        *("token_loss", "auxiliary_loss", "cache", "last_hidden_state")
    ]
    sites: ClassVar[tuple[str, ...]] = ()  # those of a model, in the order of computation

    embed_dim: int = 512
    num_heads: int = 8
    ffn_dim: int = 2048
    attention: str | dict[str, Any] = "standard"
    norm: Literal["post", "pre"] = "post"
    norm_kind: NormKind = "layer"
    norm_eps: float = 1e-5
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    ffn_dropout: float | int = 0.0
    ffn_activation: Activation = "relu"
    positions: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    max_positions: int | None = None
    rope_parameters: dict[str, Any] | None = None
    head_dim: int | None = None
    num_key_value_heads: int | None = None
    qk_norm: bool = False
    bias: Literal[True, False, "qkv"] = True
    scale_embeddings: bool = True
    embedding_norm: bool = False
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2

    def __post_init__(self, **kwargs: Any) -> None:
        for name in kwargs.keys() & self.attribute_map.keys():
            setattr(self, name, kwargs.pop(name))
        known = {each.name for each in fields(self)} | _TRANSFORMERS_ARGUMENTS
        for name in kwargs.keys() - known:
            # A file may have been written by a newer transformers; it says by which.
            if self.transformers_version is None:
                hint = did_you_mean(name, known)
                raise TypeError(f"{name} is not an argument of {type(self).__name__}{hint}")
        for kind, name in (("learned", "max_positions"), ("rotary", "rope_parameters")):
            if self.positions != kind and getattr(self, name) is not None:
                raise ValueError(
                    f"{name} is {getattr(self, name)} and positions is {self.positions!r}: leave "
                    f"{name} out, or set positions to {kind!r}"
                )
        rope_parameters = copy.deepcopy(self.rope_parameters) or {}
        self.rope_parameters = {}  # transformers fills in what it would need
        super().__post_init__(**kwargs)
        rope_parameters = {"rope_theta": 10_000.0, "rope_type": "default", **rope_parameters}
        self.rope_parameters = rope_parameters if self.positions == "rotary" else None
        if self.positions == "learned" and self.max_positions is None:
            self.max_positions = self.default_positions()
        self.check_systems()

    def to_dict(self) -> dict[str, Any]:
        """As in transformers, but with its name for `num_heads`.

        Its Trainer reads the file of any configuration as its own base class when it resumes a
        run, and that multiplies `head_dim`, which may be None, by a `num_heads`.
        """
        values = super().to_dict()
        values["num_attention_heads"] = values.pop("num_heads")
        return values

    def depths(self) -> dict[str, int]:
        """The sites of the model with their numbers of layers, in the order of computation:
        `{"encoder_self": 6, "decoder_self": 6, "decoder_cross": 6}`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no depths()")

    def default_positions(self) -> int:
        """How many learned positions the model has if `max_positions` is not given."""
        return 512  # as BERT

    def layer_specs(self) -> dict[str, list[LayerSpec]]:
        """The system of each layer at each site, as the plan says."""
        return layer_specs(self.attention, self.depths())

    def attention_options(self) -> dict[str, Any]:
        """What the model settles for the attention of every system, as constructors take it."""
        options: dict[str, Any] = {
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "num_key_value_heads": self.num_key_value_heads,
            "dropout": self.attention_dropout,
            "bias": self.bias,
            "qk_norm": self.qk_norm,
            "norm_eps": self.norm_eps if self.qk_norm else None,
        }
        return {name: value for name, value in options.items() if value is not None}

    def layer_options(self) -> dict[str, Any]:
        """`attention_options()`, and those of a system that has the feed-forward too."""
        return self.attention_options() | {
            "ffn_dim": self.ffn_dim,
            "norm": self.norm,
            "residual_dropout": self.dropout,
            "ffn_dropout": self.ffn_dropout,
            "ffn_activation": self.ffn_activation,
            "norm_kind": self.norm_kind,
            "norm_eps": self.norm_eps,
        }

    def rotary_rates(self, head_dim: int) -> tuple[Tensor, float]:
        """The rates at which heads of a width are turned, and what their turns are multiplied by;
        see `headwise.ops.rotary.Rotary`.

        Raises:
            ValueError: `rope_parameters` do not fit heads of this width, or lack something.
        """
        parameters = dict(self.rope_parameters or {})
        for name in parameters:
            check_choice("rope_parameters", name, RopeParameters.__annotations__)
        kind = parameters["rope_type"]
        check_choice("rope_type", kind, ("default", "linear", "llama3", "yarn"))
        width = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
        if not 0 < width <= head_dim or width % 2:
            raise ValueError(
                f"rope_parameters turn {width} channels of heads of width {head_dim}, expected an "
                f"even number: choose another partial_rotary_factor or head_dim"
            )
        if kind == "default":
            return rotary_rates(width, parameters["rope_theta"]), 1.0
        # The functions of transformers read these attributes of a configuration.
        config = SimpleNamespace(rope_parameters=parameters, standardize_rope_params=lambda: None)
        config.head_dim = config.hidden_size = head_dim
        config.num_attention_heads = 1
        config.max_position_embeddings = parameters.get("original_max_position_embeddings")
        try:
            with torch.device("cpu"):  # also while a model is made without weights
                return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"rope_parameters is {parameters}, which lacks what its rope_type reads ({error})"
            ) from error

    def check_systems(self) -> None:
        """Builds each system of the plan once, without weights, to see that it fits."""
        for site, specs in self.layer_specs().items():
            for spec in {repr(spec): spec for spec in specs}.values():
                with torch.device("meta"):
                    system = build_system(spec, self, site, 0)
                heads = [part for part in system.modules() if isinstance(part, Attention)]
                if self.positions == "rotary" and site != "decoder_cross" and heads:
                    self.rotary_rates(heads[0].head_dim)

    # transformers asks these of models whose heads divide their width, and that it knows.
    def validate_architecture(self) -> None:
        pass

    def validate_rope(self) -> None:
        pass

    def validate_output_attentions(self) -> None:
        pass


@strict
class StackConfig(TransformerConfig):
    """The configuration of a model with one stack of layers.

    Attributes:
        layers: number of layers.
    """

    layers: int = 6

    def depths(self) -> dict[str, int]:
        return dict.fromkeys(self.sites, self.layers)


@strict
class LanguageModelConfig(StackConfig):
    """The configuration of a stack that reads tokens and predicts tokens of the same vocabulary.

    Attributes:
        vocab_size: number of tokens, special tokens included.
        share_embeddings: whether the input and the output embeddings share their weights.
        label_smoothing: probability that the training loss spreads over the vocabulary.
        max_length: length of the longest sequence in training; of learned positions there are as
            many by default.
    """

    vocab_size: int = 32_000
    share_embeddings: bool = True
    label_smoothing: float | int = 0.0
    max_length: int = 512

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**_tied(kwargs, self.ties_weights()))

    def ties_weights(self) -> bool:
        """Whether two modules share a weight, which transformers calls tied."""
        return self.share_embeddings

    def default_positions(self) -> int:
        return self.max_length


@strict
class CausalLMConfig(LanguageModelConfig):
    """The configuration of a transformer that predicts each token from those before it.

    Attributes:
        max_length: the greatest length of generated sequences too, unless generation is called
            with another. Of learned positions there is one more by default, since a sequence in
            training also has the token before the first that is predicted.
        adaptive_cutoffs: the ids at which bands of rarer words begin, which have narrower
            embeddings; ids are sorted by frequency. See `headwise.models.adaptive`.
        adaptive_factor: the factor by which each band is narrower than the one before.
        adaptive_dropout: dropout inside the adaptive softmax.
    """

    model_type = "headwise-causal-lm"
    sites = ("decoder_self",)

    adaptive_cutoffs: list[int] | None = None
    adaptive_factor: int = 4
    adaptive_dropout: float | int = 0.0

    def __post_init__(self, **kwargs: Any) -> None:
        self.adaptive_cutoffs = self.adaptive_cutoffs or None  # no cutoffs: an ordinary embedding
        super().__post_init__(**kwargs)
        if self.adaptive_cutoffs and (not self.share_embeddings or self.label_smoothing):
            raise ValueError(
                "the adaptive softmax (adaptive_cutoffs) shares all weights and smoothes no "
                "losses: leave share_embeddings and label_smoothing out"
            )

    def ties_weights(self) -> bool:
        # The adaptive embedding is one module, which is both.
        return self.share_embeddings and self.adaptive_cutoffs is None

    def default_positions(self) -> int:
        return self.max_length + 1


@strict
class MaskedLMConfig(LanguageModelConfig):
    """The configuration of an encoder that predicts hidden tokens.

    Attributes:
        mask_token_id: id of the token that takes the place of a hidden one; None if not known.
    """

    model_type = "headwise-masked-lm"
    sites = ("encoder_self",)

    mask_token_id: int | None = 4


@strict
class SequenceClassifierConfig(StackConfig):
    """The configuration of an encoder, pooled to one vector per sequence, and a perceptron.

    The argument `classes` names the classes, in the order of the outputs; `num_labels` gives their
    number alone.

    Attributes:
        vocab_size: number of tokens.
        problem: `classification`, or `regression` to one number.
        pooling: the vector of a sequence: the `mean` of the top layer over its tokens, or the
            `first` token's vector.
        hidden_dim: width of the perceptron's hidden layer; embed_dim if None. `dropout` is also
            that of this layer.
        activation: activation of the perceptron's hidden layer.
    """

    model_type = "headwise-sequence-classifier"
    sites = ("encoder_self",)

    vocab_size: int = 32_000
    problem: Literal["classification", "regression"] = "classification"
    pooling: Literal["mean", "first"] = "mean"
    hidden_dim: int | None = None
    activation: Literal["tanh", "relu", "sigmoid"] = "tanh"

    def __post_init__(self, classes: Any = None, **kwargs: Any) -> None:
        if classes is not None:
            self.id2label = dict(enumerate(classes))
            self.label2id = {name: index for index, name in enumerate(classes)}
        if self.problem == "regression":
            kwargs.setdefault("num_labels", 1)
            self.problem_type = "regression"  # or a pipeline would make it a probability
        super().__post_init__(**kwargs)
        outputs = len(self.label2id or ())  # of names that differ
        if outputs != self.num_labels or (self.problem == "regression" and outputs != 1):
            raise ValueError(
                f"classes are {list(self.id2label.values())}, expected each name once, and none if "
                f"problem is 'regression'"
            )


@strict
class Seq2SeqLMConfig(TransformerConfig):
    """The configuration of an encoder-decoder transformer, by default the base Transformer.

    Attributes:
        vocab_size: number of source tokens, or of all tokens if the vocabulary is joint.
        target_vocab_size: number of target tokens; `vocab_size` if None.
        encoder_layers: number of layers of the encoder.
        decoder_layers: number of layers of the decoder.
        share_embeddings: which embeddings share their weights: `all` (source, target and output,
            which needs a joint vocabulary), `target` (target and output) or `none`.
        output_bias: whether the map to the target vocabulary has a bias for each token.
        label_smoothing: probability that the training loss spreads over the vocabulary.
        max_target_length: the greatest length of generated sequences, unless generation is called
            with another.
        decoder_start_token_id: the token with which decoding starts; `bos_token_id` if None.
    """

    model_type = "headwise-seq2seq-lm"
    sites = ("encoder_self", "decoder_self", "decoder_cross")
    attribute_map: ClassVar[dict[str, str]] = TransformerConfig.attribute_map | {
        "num_hidden_layers": "encoder_layers"
    }

    vocab_size: int = 32_000
    target_vocab_size: int | None = None
    encoder_layers: int = 6
    decoder_layers: int = 6
    share_embeddings: Literal["all", "target", "none"] = "all"
    output_bias: bool = False
    label_smoothing: float | int = 0.1
    max_target_length: int = 256
    decoder_start_token_id: int | None = None
    is_encoder_decoder: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        if self.target_vocab_size is None:
            self.target_vocab_size = self.vocab_size
        if self.decoder_start_token_id is None:
            self.decoder_start_token_id = self.bos_token_id
        if self.decoder_start_token_id is None:
            raise ValueError(
                "decoder_start_token_id and bos_token_id are None, expected the id of a token that "
                "the decoder reads before the first: give one of them"
            )
        super().__post_init__(**_tied(kwargs, self.share_embeddings != "none"))
        if self.share_embeddings == "all" and self.target_vocab_size != self.vocab_size:
            raise ValueError(
                f"target_vocab_size is {self.target_vocab_size}, expected vocab_size = "
                f"{self.vocab_size} if share_embeddings is 'all', which needs a joint vocabulary; "
                f"use 'target'"
            )

    def depths(self) -> dict[str, int]:
        decoder = dict.fromkeys(("decoder_self", "decoder_cross"), self.decoder_layers)
        return {"encoder_self": self.encoder_layers, **decoder}


@strict
class SpeechEnhancerConfig(StackConfig):
    """The configuration of `SpeechEnhancer`; the defaults are those of TIM's baseline.

    Attributes:
        sampling_rate: samples per second; it decides how many frequencies a frame of 32 ms has.
        front_channels: channels of the convolutions in front of the layers; one more convolution,
            as wide as the model, follows them.
        lookahead: how many later frames of 16 ms the model sees, at most one per convolution.
        floor: what is added to magnitudes before their logarithm is taken.
        predicts: `magnitude`, the log magnitudes of the clean speech, or `gain`, the difference
            that is added to those of the noisy speech.
        window: number of frames of an item in training; longer sounds are read in such windows.
    """

    model_type = "headwise-speech-enhancer"
    sites = ("decoder_self",)

    positions: Literal["none"] = "none"  # type: ignore[assignment]
    embed_dim: int = 256
    num_heads: int = 16
    ffn_dim: int = 256
    layers: int = 8
    sampling_rate: int = 16_000
    front_channels: list[int] = field(default_factory=lambda: [1024, 512, 128])
    lookahead: int = 2
    floor: float | int = 0.1
    predicts: Literal["magnitude", "gain"] = "magnitude"
    window: int = 626

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        convolutions = len(self.front_channels) + 1
        if not 0 <= self.lookahead <= convolutions or self.floor <= 0:
            raise ValueError(
                f"lookahead is {self.lookahead} and floor is {self.floor}, expected 0 to "
                f"{convolutions}, a frame for each convolution, and a positive number"
            )

    @property
    def num_bins(self) -> int:
        """The number of frequencies of a frame of 32 ms."""
        return self.sampling_rate * 16 // 1000 + 1


def _tied(arguments: dict[str, Any], tied: bool) -> dict[str, Any]:
    """The arguments of a config with `tie_word_embeddings`, which `share_embeddings` decides."""
    given = arguments.get("tie_word_embeddings", tied)
    if given != tied:
        raise ValueError(
            f"tie_word_embeddings is {given}, expected {tied}, as the other keys say: leave it "
            f"out, and say by share_embeddings what is shared"
        )
    return {**arguments, "tie_word_embeddings": tied}
