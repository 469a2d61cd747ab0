"""The configurations of models: sizes and plans of attention, as in Hugging Face transformers."""

import functools
import inspect
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch
import transformers
from packaging.version import Version
from transformers import GenerationConfig, PreTrainedConfig

from headwise.heads.attention import Bias
from headwise.heads.system import Place, System
from headwise.messages import did_you_mean
from headwise.models.hub import FINDER, FINDER_TEXT
from headwise.models.plan import Spec, build_system, layer_specs, system_class
from headwise.models.sites import stack_of
from headwise.models.trust import trusting
from headwise.ops.activations import ACTIVATIONS, Activation
from headwise.ops.bounds import MOST_HEADS, MOST_LAYERS, check_among, check_number
from headwise.ops.norms import NormKind
from headwise.ops.rotary import DEFAULT_BASE, check_rope_parameters
from headwise.transformers_internals import config_fields

# Larger than of every model that has been trained: a mistyped size is an error at once.
_MOST: dict[str, int] = {
    **dict.fromkeys(("embed_dim", "hidden_dim"), 1_000_000),
    **dict.fromkeys(("ffn_dim", "max_positions", "sampling_rate"), 10_000_000),
    **dict.fromkeys(("vocab_size", "target_vocab_size"), 1_000_000_000),
    "num_heads": MOST_HEADS,
}


class TransformerConfig(PreTrainedConfig):
    """The base of the configurations of all models.

    A subclass sets its own attributes, including those that its `depths` uses, before it calls
    `super().__init__`. This builds every system of the plan once to check that it fits.

    Args:
        embed_dim: width of the model (d).
        num_heads: heads of each attention (h).
        ffn_dim: width of the feed-forward's hidden layer.
        attention: plan of attention: the name of a system, or systems by site and layer; see
            `headwise.models.plan`.
        norm: layer norm after each residual sum (`post`, as published) or before each
            sub-layer (`pre`).
        dropout: dropout of embeddings and of each sub-layer's output.
        attention_dropout: dropout of attention weights.
        ffn_dropout: dropout inside the feed-forward.
        ffn_activation: activation of the feed-forward, see `headwise.ops.activations`; `swiglu` and
            `geglu` have a third map, which `ffn_dim` units have each.
        positions: what tells the model where a token stands: `sinusoidal`, `learned`, or `rotary`
            positions, which turn queries and keys of self-attention.
        rope_parameters: of rotary positions, as in transformers: `rope_theta`, `rope_type`,
            `partial_rotary_factor` and so on; see `headwise.ops.rotary`.
        norm_kind: `layer` norms, or `rms`, by the root mean square.
        norm_eps: ε of these norms.
        head_dim: width of a head; `embed_dim // num_heads` if not given.
        num_key_value_heads: heads of keys and values of each attention, of which each serves
            several heads of queries; as many as those if not given.
        qk_norm: whether queries and keys of each head are normed, before they are turned.
        bias: whether linear maps of layers have one, `"qkv"`: those of queries, keys and values
            alone. A system whose equations have none has none by default, whatever this says.
        scale_embeddings: whether embeddings are multiplied by √embed_dim, as published.
        embedding_norm: whether a norm follows the embeddings, as in BERT.
        learned_padding: whether the embedding of `pad_token_id` is learned as those of other tokens
            are: for models that pad with a token of their texts, such as the end of text.
        max_positions: number of learned positions, the longest sequence that the model can read;
            None otherwise. Its default follows from the model, see `default_positions`.
        kwargs: arguments of every configuration of transformers, such as `pad_token_id`.

    Raises:
        TypeError: an argument that neither headwise nor transformers knows.
        ValueError: the sizes and the plan do not fit together.
    """

    known_positions: ClassVar[tuple[str, ...]] = ("sinusoidal", "learned", "rotary")
    # Of the models' outputs, what is no prediction to transformers' Trainer.
    keys_to_ignore_at_inference = [  # noqa: RUF012
        *("token_loss", "auxiliary_loss", "cache", "past_key_values", "encoder_last_hidden_state")
    ]
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "embed_dim",
        "intermediate_size": "ffn_dim",
        "max_position_embeddings": "max_positions",
        "num_attention_heads": "num_heads",
    }

    def __init__(
        self,
        embed_dim: int = 512,
        num_heads: int = 8,
        ffn_dim: int = 2048,
        attention: str | dict[str, Any] = "standard",
        norm: str = "post",
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        ffn_dropout: float = 0.0,
        ffn_activation: Activation = "relu",
        positions: str = "sinusoidal",
        max_positions: int | None = None,
        rope_parameters: dict[str, Any] | None = None,
        norm_kind: NormKind = "layer",
        norm_eps: float = 1e-5,
        head_dim: int | None = None,
        num_key_value_heads: int | None = None,
        qk_norm: bool = False,
        bias: Bias = True,
        scale_embeddings: bool = True,
        embedding_norm: bool = False,
        learned_padding: bool = False,
        **kwargs: Any,
    ) -> None:
        head_dim = kwargs.pop("_head_dim", head_dim)
        if num_heads < 1:
            raise ValueError(f"num_heads is {num_heads}, expected a positive number")
        if head_dim is None and embed_dim % num_heads:
            raise ValueError(
                f"embed_dim is {embed_dim}, expected a multiple of num_heads = {num_heads}, or "
                f"head_dim"
            )
        check_among("norm", norm, ("post", "pre"))
        check_among("norm_kind", norm_kind, ("layer", "rms"))
        check_among("bias", bias, (True, False, "qkv"))
        check_among("ffn_activation", ffn_activation, tuple(ACTIVATIONS))
        if ffn_dim < 1:
            raise ValueError(f"ffn_dim is {ffn_dim}, expected a positive number")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.ffn_dim = ffn_dim
        self.attention = attention
        self.norm = norm
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.ffn_dropout = ffn_dropout
        self.ffn_activation = ffn_activation
        self.norm_kind: NormKind = norm_kind
        self.norm_eps = norm_eps
        self.qk_norm = qk_norm
        self.bias = bias
        self.scale_embeddings = scale_embeddings
        self.embedding_norm = embedding_norm
        self.learned_padding = learned_padding
        self.positions = positions
        turns = self._checked_rotary(rope_parameters, head_dim)
        self.max_positions = self._checked_positions(max_positions)
        kwargs = self._without_other_names(kwargs)
        check_arguments(type(self), kwargs)
        # A dictionary of all arguments also says what was given.
        given: int | None = kwargs.pop("_key_heads", num_key_value_heads)
        self._head_dim, self._key_heads, self._turns = head_dim, given, turns
        self._check_sizes()
        super().__init__(**kwargs)
        # Not before: transformers would deny the one and fill in the other.
        self.head_dim, self.rope_parameters = head_dim, turns

    @classmethod
    def from_pretrained(
        cls, *args: Any, trust_remote_code: bool | None = None, **kwargs: Any
    ) -> Any:
        """As in transformers; `trust_remote_code` lets it import the modules that the plan names.

        The Auto classes do not pass it on: import such modules before you use these.
        """
        with trusting() if trust_remote_code else nullcontext():
            return super().from_pretrained(*args, **kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As in transformers; `readable_arguments` says what is left out or refused.

        What is given in the place of saved values is checked with them: transformers would set it
        behind the constructor, which makes others of it.
        """
        given = {name: kwargs.pop(name) for name in own_arguments(cls) & kwargs.keys()}
        read = readable_arguments(cls, config_dict)
        for name, saved in (("head_dim", "_head_dim"), ("num_key_value_heads", "_key_heads")):
            if name in given:
                read.pop(saved, None)
        return super().from_dict({**read, **given}, **kwargs)

    @property
    def output_attentions(self) -> bool:
        """Whether models return attention weights without being asked, by any implementation."""
        return bool(self._output_attentions)

    @output_attentions.setter
    def output_attentions(self, value: bool) -> None:
        # That of transformers refuses all implementations but "eager".
        self._output_attentions = value

    def validate_output_attentions(self) -> None:
        """Any implementation goes with `output_attentions`."""

    def validate(self) -> None:
        """Checks the values as transformers does, but for two of ours whose meaning it restricts.

        Heads may have any width, and rotary positions any length of text.
        """
        ours = {name: self.__dict__.pop(name, None) for name in ("head_dim", "rope_parameters")}
        try:
            super().validate()
        finally:
            self.__dict__.update(ours)

    def to_dict(self) -> dict[str, Any]:
        """Returns all arguments by name, and those that other tools look for by their names too.

        They are not saved. The constructor takes them beside ours if they say the same.
        """
        # transformers makes copies of a configuration that lack some of our arguments.
        others = {name: getattr(self, name, _LACKING) for name in self._other_names()}
        there = {name: value for name, value in others.items() if value is not _LACKING}
        values = super().to_dict() | there
        return {
            name: value for name, value in values.items() if name not in ("_head_dim", "_turns")
        }

    def to_diff_dict(self) -> dict[str, Any]:
        """Returns the values that `save_pretrained` writes: no second names of the same setting."""
        # transformers' Trainer reads a file as one of its own, with what `validate` says.
        others = {*self._other_names(), "_key_heads", "head_dim"}
        if self._key_heads is not None:
            others.discard("num_key_value_heads")
        values = {} if self._head_dim is None else {"_head_dim": self._head_dim}
        values |= {k: v for k, v in super().to_diff_dict().items() if k not in others}
        if self._is_ours():
            values["auto_map"] = {"AutoConfig": f"{FINDER}.{type(self).__name__}"}
        return values

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As in transformers, beside a module by which `trust_remote_code=True` finds headwise."""
        if self._is_ours():
            Path(save_directory).mkdir(parents=True, exist_ok=True)
            text = FINDER_TEXT.format(kind=type(self))
            Path(save_directory, f"{FINDER}.py").write_text(text, encoding="utf-8")
        super().save_pretrained(save_directory, *args, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Does nothing, where transformers would copy our modules into each saved folder."""

    def _is_ours(self) -> bool:
        return type(self).__module__.startswith("headwise.")

    @property
    def num_key_value_heads(self) -> int:
        """How many heads of keys a layer caches: the first layer, if the plan has several kinds."""
        if self._key_heads is not None:
            return self._key_heads
        systems = {site: specs for site, specs in self.systems().items() if specs}
        site = "decoder_self" if "decoder_self" in systems else next(iter(systems))
        size = _built_once(systems[site][0], self.place(site)).key_size()
        return self.num_heads if size is None else size[0]

    def depths(self) -> dict[str, int]:
        """Returns the sites of the model with their numbers of layers, in the order of computation:
        `{"encoder_self": 6, "decoder_self": 6, "decoder_cross": 6}`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no depths()")

    def default_positions(self) -> int:
        """Returns how many learned positions the model has if `max_positions` is not given."""
        return 512  # as BERT

    def systems(self) -> dict[str, list[Spec]]:
        """Returns the system of each layer at each site, as the plan says."""
        return layer_specs(self.attention, self.depths())

    def place(self, site: str) -> Place:
        """Returns the properties of the model that a system at `site` needs."""
        return Place(
            site,
            embed_dim=self.embed_dim,
            num_heads=self.num_heads,
            ffn_dim=self.ffn_dim,
            norm=self.norm,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            ffn_dropout=self.ffn_dropout,
            ffn_activation=self.ffn_activation,
            cross_attention=site == "decoder_self" and "decoder_cross" in self.depths(),
            norm_kind=self.norm_kind,
            norm_eps=self.norm_eps,
            bias=self.bias,
            head_dim=self._head_dim,
            num_key_value_heads=self._key_heads,
            qk_norm=self.qk_norm,
            rope_parameters=None if site == "decoder_cross" else self._turns,
        )

    def _other_names(self) -> set[str]:
        """The names that other tools have for our arguments, and for what follows from them."""
        return {*self.attribute_map, "num_key_value_heads"}

    def _without_other_names(self, given: dict[str, Any]) -> dict[str, Any]:
        """Arguments without those that repeat one of ours by another name, as `to_dict` does."""
        others = self._other_names()
        return {
            name: value
            for name, value in given.items()
            if name not in others or value != getattr(self, name)
        }

    def _checked_rotary(
        self, given: dict[str, Any] | None, head_dim: int | None
    ) -> dict[str, Any] | None:
        if self.positions != "rotary":
            if given is not None:
                raise ValueError(
                    f"rope_parameters is {given} and positions is {self.positions!r}, which has "
                    f"none; leave rope_parameters out, or set positions to 'rotary'"
                )
            return None
        given = {} if given is None else given
        check_rope_parameters(given, head_dim or self.embed_dim // self.num_heads)
        usual = {"rope_theta": DEFAULT_BASE, "rope_type": "default"}
        return {**usual, **given}

    def _checked_positions(self, given: int | None) -> int | None:
        check_among("positions", self.positions, self.known_positions)
        if self.positions != "learned":
            if given is not None:
                raise ValueError(
                    f"max_positions is {given} and positions is {self.positions!r}, which sets no "
                    f"limit; leave max_positions out, or set positions to 'learned'"
                )
            return None
        if given is not None and given < 1:
            raise ValueError(f"max_positions is {given}, expected a positive number")
        return self.default_positions() if given is None else given

    def _check_sizes(self) -> None:
        """Raises `ValueError` if a system does not fit, or a size is too large."""
        depths = self.depths()
        if min(depths.values()) < 0 or not any(depths.values()):
            of_stacks = {stack_of(site): depth for site, depth in depths.items()}
            raise ValueError(f"the numbers of layers are {of_stacks}, expected positive ones")
        for name, most in _MOST.items():
            check_number(name, getattr(self, name, None) or 0, most)
        for site, depth in depths.items():
            check_number(f"the number of layers of {stack_of(site)}", depth, MOST_LAYERS)
        for site, specs in self.systems().items():
            for spec in specs:
                _built_once(spec, self.place(site))


# transformers copies and writes configurations often: no system is built for that.
_built: dict[tuple[type[System], str, str], System] = {}
_MOST_BUILT = 256
_LACKING = object()


def _built_once(spec: Spec, place: Place) -> System:
    """Builds a system on the meta device, unless it has been."""
    key = system_class(spec["system"]), repr(spec), repr(place)
    if key not in _built:
        if len(_built) == _MOST_BUILT:
            _built.clear()
        with torch.device("meta"):
            _built[key] = build_system(spec, place)
    return _built[key]


class StackConfig(TransformerConfig):
    """The configuration of a model with one stack of layers.

    Args:
        layers: number of layers.
        kwargs: see `TransformerConfig`.
    """

    site: ClassVar[str]  # the site of the stack's attention
    attribute_map = TransformerConfig.attribute_map | {"num_hidden_layers": "layers"}

    # transformers makes a dataclass of every subclass that does not define __init__.
    def __init__(self, layers: int = 6, **kwargs: Any) -> None:
        self.layers = layers
        super().__init__(**kwargs)

    def depths(self) -> dict[str, int]:
        return {self.site: self.layers}


class LanguageModelConfig(StackConfig):
    """The configuration of a stack that reads tokens and predicts tokens of the same vocabulary.

    Args:
        vocab_size: number of tokens, special tokens included.
        share_embeddings: whether the input and the output embeddings share their weights.
        label_smoothing: probability that the training loss spreads over the vocabulary.
        max_length: length of the longest sequence in training. Sinusoidal positions set no limit;
            of learned positions there are as many by default.
        pad_token_id, bos_token_id, eos_token_id: ids of special tokens; None if there are none.
        kwargs: see `StackConfig`.
    """

    max_length: int = 512  # a field, or transformers would take it for a setting of generation

    def __init__(
        self,
        vocab_size: int = 32_000,
        *,
        share_embeddings: bool = True,
        label_smoothing: float = 0.0,
        max_length: int = 512,
        pad_token_id: int | None = 0,
        bos_token_id: int | None = 1,
        eos_token_id: int | None = 2,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.share_embeddings = share_embeddings
        self.label_smoothing = label_smoothing
        self.max_length = max_length
        kwargs["tie_word_embeddings"] = share_embeddings
        super().__init__(
            pad_token_id=pad_token_id,
            bos_token_id=bos_token_id,
            eos_token_id=eos_token_id,
            **kwargs,
        )

    def default_positions(self) -> int:
        return self.max_length


# What `PreTrainedConfig` takes beside its fields, or writes into every config.json.
_COMMON = {
    *("num_labels", "torch_dtype", "name_or_path", "output_attentions", "attn_implementation"),
    *("experts_implementation", "per_layer_config", "tie_last_hidden_states", "model_type"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "decoder_start_token_id"),
    *("tie_word_embeddings", "tokenizer_class", "quantization_config", "auto_map", "use_cache"),
    *("custom_pipelines", "use_return_dict", "is_decoder", "add_cross_attention"),
}
# The ones that are part of PyTorch; others transformers downloads from the hub and runs.
_IMPLEMENTATIONS = (None, "eager", "sdpa", "flex_attention", "batched_mm", "grouped_mm")


def check_arguments(config: type[PreTrainedConfig], given: Iterable[str]) -> None:
    """Raises `TypeError` if a configuration is given an argument that nothing reads.

    `PreTrainedConfig` makes an attribute of any argument that it does not know, so that a
    misspelled one would pass in silence.

    >>> check_arguments(PreTrainedConfig, ["num_label"])
    Traceback (most recent call last):
    TypeError: num_label is not an argument of PreTrainedConfig; did you mean 'num_labels'?
    """
    for name in given:
        if _is_known(config, name):
            continue
        if name in config.attribute_map:
            hint = f"; here its name is {config.attribute_map[name]!r}"
        elif name in GenerationConfig().to_dict():
            hint = "; it is a setting of generation: give it to generate()"
        else:
            hint = did_you_mean(name, [*own_arguments(config), *_common()])
        raise TypeError(f"{name} is not an argument of {config.__name__}{hint}")


def readable_arguments(config: type[PreTrainedConfig], saved: Mapping[str, Any]) -> dict[str, Any]:
    """What a configuration reads of a config.json; keys of a newer transformers are left out.

    `auto_map` is too: it says where the class of the configuration is found.

    Raises:
        ValueError: it names an implementation of attention that would be fetched and run.
    """
    for name, value in saved.items():
        if "_implementation" in name and value not in _IMPLEMENTATIONS:
            raise ValueError(
                f"config.json has {name}={value!r}, which may be code of others, expected one of "
                f"{', '.join(filter(None, _IMPLEMENTATIONS))}: take it out, and give it to "
                f"from_pretrained if you trust it"
            )
    newer = Version(saved.get("transformers_version") or "0") > Version(transformers.__version__)
    read = {name: value for name, value in saved.items() if name != "auto_map"}
    return {name: value for name, value in read.items() if _is_known(config, name) or not newer}


def own_arguments(config: type[PreTrainedConfig]) -> frozenset[str]:
    """Returns the names of the arguments of a configuration's constructor and of its bases'."""
    return _arguments_of(config.__mro__)


@functools.cache
def _arguments_of(bases: tuple[type, ...]) -> frozenset[str]:
    return frozenset(
        name
        for base in bases
        if base is not PreTrainedConfig and issubclass(base, PreTrainedConfig)
        for name, parameter in inspect.signature(base).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
    )


def _is_known(config: type[PreTrainedConfig], name: str) -> bool:
    # Names that begin with an underscore are what transformers remembers for itself.
    return name.startswith("_") or name in own_arguments(config) or name in _common()


def _common() -> set[str]:
    return {*_COMMON, *config_fields()}
