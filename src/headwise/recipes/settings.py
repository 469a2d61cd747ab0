"""The settings that the recipes of all tasks have; each task adds its own."""

import importlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, create_model, field_validator, model_validator

from headwise.models.config import TransformerConfig
from headwise.models.inspect import check_ablations
from headwise.models.plan import rule_name, rules_by_name, system_class
from headwise.ops.layers import Activation, NormKind
from headwise.recipes.errors import RecipeError
from headwise.recipes.pretrained import SEED, with_encoding, with_sizes
from headwise.settings import LARGEST_SEED, FrozenSettings, Settings
from headwise.training.settings import TrainingSettings, settings_with_rules

# A name becomes a part of a folder's name, and the command line separates names by commas.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.+-]*$")]


# Settings of models on which no weights depend: a model that starts from another has its own.
_OF_TRAINING = (
    *("dropout", "attention_dropout", "ffn_dropout", "adaptive_dropout", "label_smoothing"),
    "pretrained",
)


class ModelSettings(Settings):
    """The settings of every model; the defaults are those of the base Transformer.

    Attributes:
        config_class: the configuration of the models.
        starts_from: that of the models whose runs `pretrained` may name; by default the same.
    """

    config_class: ClassVar[type[TransformerConfig]]
    starts_from: ClassVar[type[TransformerConfig] | None] = None

    embed_dim: int = Field(512, ge=1, description="Width of the model.")
    num_heads: int = Field(8, ge=1, description="Number of heads of each attention.")
    ffn_dim: int = Field(2048, ge=1, description="Width of the hidden layer of each feed-forward.")
    attention: str | dict[str, Any] = "standard"
    """Name of the system of heads, or a mapping from sites to systems with their options and
    layers."""
    norm: Literal["post", "pre"] = "post"
    """Where layer norms stand: after each residual sum (`post`) or before each sub-layer
    (`pre`)."""
    dropout: float = Field(0.1, ge=0, lt=1, description="Dropout of embeddings and sub-layers.")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="Dropout of attention weights.")
    ffn_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout of the hidden layer of each feed-forward."""
    ffn_activation: Activation = "relu"
    """Activation of each feed-forward, also of those that are parts of a system: `relu`, `gelu`,
    `gelu-tanh` (as GPT-2), `silu`, `leaky-relu`; or `swiglu` and `geglu`, whose `ffn_dim` units
    have a gate each."""
    norm_kind: NormKind = "layer"
    """`layer` norms, or `rms` norms, which have no mean and no shift."""
    norm_eps: float = Field(1e-5, gt=0, description="ε of the norms.")
    head_dim: int | None = Field(None, ge=1)
    """Width of a head. Default: `embed_dim / num_heads`."""
    num_key_value_heads: int | None = Field(None, ge=1)
    """Heads of keys and values of each attention, each for several heads of queries. Default: one
    for each."""
    qk_norm: bool = False
    """Whether queries and keys of each head have an `rms` norm."""
    bias: Literal[True, False, "qkv"] = True
    """Whether the linear maps of layers have biases; `qkv`: those of queries, keys and values
    alone. A system whose equations have none has none by default."""
    pretrained: Path | None = None
    """Folder of a finished run of the same task (for classification and probing: of masked language
    modelling), from whose weights training starts. Sizes, attention and vocabulary or palette are
    those of that run; where it has standard attention, `attention` may name another system that can
    start with the same output. `{system}` and `{seed}` in the name stand for those of each run:
    RUNS/{system}-seed{seed} gives every system of a comparison its own run of an earlier one."""

    @model_validator(mode="before")
    @classmethod
    def _take_sizes(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or not isinstance(given.get("pretrained"), (str, Path)):
            return given
        sizes = set(cls.model_fields) - set(_OF_TRAINING)
        return with_sizes(given, sizes, cls.starts_from or cls.config_class)

    def model_post_init(self, context: Any) -> None:
        # This finds sizes and systems that do not fit together before any data is read.
        self.config()

    def sizes(self) -> dict[str, Any]:
        """Returns the settings that a configuration takes."""
        return self.model_dump(exclude={"pretrained"})

    def config(self, **encoding: Any) -> Any:
        """Returns the configuration of the model.

        Args:
            encoding: arguments that depend on the data, such as the size of the vocabulary and the
                ids of special tokens; without them, the defaults of the configuration.
        """
        return self.config_class(**self.sizes(), **encoding)


class TokenModelSettings(ModelSettings):
    """The settings of a model that reads tokens, each with its position."""

    positions: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    """What tells the model where a token stands: `sinusoidal` positions, which set no limit to the
    length, `learned` embeddings, or `rotary` positions, which turn queries and keys."""
    rope_parameters: dict[str, Any] | None = None
    """Of rotary positions, as transformers has them: `rope_theta` (default: 10000),
    `partial_rotary_factor`, and `rope_type` with its own: `default`, `linear`, `llama3` or
    `yarn`."""
    scale_embeddings: bool = True
    """Whether embeddings are multiplied by the root of `embed_dim`."""
    embedding_norm: bool = False
    """Whether a norm follows the embeddings, as in BERT."""
    max_positions: int | None = Field(None, ge=1)
    """Number of learned positions: the model can read no longer sequence. Default: what the items
    of language modelling, masked language modelling and images need; 512 for other tasks."""


class LanguageModelSettings(TokenModelSettings):
    """The settings of a model with one stack, which reads and predicts the same vocabulary."""

    layers: int = Field(6, ge=1, description="Number of layers.")
    share_embeddings: bool = True
    """Whether the input and the output embeddings share their weights."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Label smoothing of the training loss."""


class EvaluationSettings(FrozenSettings):
    """How a finished model is evaluated."""

    ablation: dict[str, str | dict[str, Any]] = Field(default_factory=dict)
    """Changes what trained systems compute in evaluation: the name of a system, then the name of
    one of its ablations, or a mapping with `name` and options. `headwise keys` lists them."""

    @field_validator("ablation")
    @classmethod
    def _check_ablation(cls, ablation: dict[str, Any]) -> dict[str, Any]:
        check_ablations(ablation)
        return ablation


class SystemSettings(Settings):
    """One system of a comparison: its changes to the recipe."""

    description: str = ""
    """A line that describes the system in lists and reports."""
    model: dict[str, Any] = Field(default_factory=dict)
    """Keys of `model` that this system sets otherwise."""
    training: dict[str, Any] = Field(default_factory=dict)
    """Keys of `training` that this system sets otherwise."""


class Recipe(Settings):
    """One experiment. The recipe of a task defines `task`, `data`, `model` and `evaluation`.

    Attributes:
        encoding_keys: the parts that say how data are encoded; a recipe whose model starts from
            another run has that run's.
    """

    encoding_keys: ClassVar[tuple[str, ...]] = ()

    description: str = ""
    """A line that describes the recipe in the list of recipes."""
    task: str = Field(description="Name of the task.")
    data: Any = Field(description="The data to train and evaluate on.")
    model: Any = Field(description="Sizes of the model, and its attention.")
    training: TrainingSettings = Field(description="How the model is trained.")
    evaluation: Any = Field(description="How the trained model is evaluated.")
    systems: dict[Name, SystemSettings] = Field(default_factory=dict)
    """The systems to compare: each name has the system's changes to the recipe. The first is the
    baseline."""
    datasets: dict[Name, dict[str, Any]] = Field(default_factory=dict)
    """The data sets to compare on: each name has its changes to `data`. Every system is trained and
    evaluated on each."""
    seeds: list[Annotated[int, Field(ge=0, le=LARGEST_SEED)]] = Field(default_factory=list)
    """Seeds of a comparison, which trains every system once with each; by default `training.seed`
    alone."""

    @model_validator(mode="before")
    @classmethod
    def _take_encoding(cls, given: Any) -> Any:
        model = given.get("model") if isinstance(given, Mapping) else None
        if not isinstance(model, Mapping) or not isinstance(model.get("pretrained"), (str, Path)):
            return given
        return with_encoding(given, cls.encoding_keys)

    def pretrained_run(self) -> Path | None:
        """Returns the folder of the run that the model starts from; None if it starts afresh."""
        named = self.model.pretrained
        if named is None:
            return None
        return Path(str(named).replace(SEED, str(self.training.seed))).expanduser()

    def own_modules(self) -> list[str]:
        """The modules of classes that the plan names as module:Class."""
        return sorted(set(re.findall(r"([\w.]+):[A-Za-z_]", str(self.model.attention))))

    def __reduce__(self) -> Any:
        # A class that `with_rules` has made has no name from which another process could import it.
        kinds = type(self).__mro__
        kind = next(of for of in kinds if vars(sys.modules[of.__module__]).get(of.__name__) is of)
        return _recipe_of, (kind, self.model_dump(by_alias=True), self.own_modules())

    @field_validator("seeds")
    @classmethod
    def _check_seeds(cls, seeds: list[int]) -> list[int]:
        if twice := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
            raise ValueError(
                f"{twice[0]} is there more than once, expected different numbers: its runs would "
                f"count as several; name it once"
            )
        return seeds


def _recipe_of(kind: type[Recipe], values: Mapping[str, Any], modules: list[str]) -> Recipe:
    for name in modules:  # the process that sends the recipe has imported them
        importlib.import_module(name)
    return with_rules(kind, values).model_validate(values)


def with_rules(kind: type[Recipe], raw: Mapping[str, Any]) -> type[Recipe]:
    """The class of a recipe that also knows the rules of training of a user's own systems in it.

    Args:
        kind: the class of a task's recipes.
        raw: the YAML document. Whatever its `training` has under a name `module:Class` is taken for
            the settings of that system's rule.

    Raises:
        RecipeError: the system cannot be loaded or has no rule with settings, or its rule has
            another name, that of the class which declares it.
    """
    training = raw.get("training")
    foreign = {}
    for name in training if isinstance(training, Mapping) else ():
        if not isinstance(name, str) or ":" not in name:
            continue
        try:
            system = system_class(name)
        except ValueError as error:
            raise RecipeError(f"training.{name}: {error}") from error
        if system.rule is None or not system.rule.settings_class.model_fields:
            raise RecipeError(
                f"training.{name}: the system has no rule of training with settings; leave the key "
                f"out"
            )
        if rule_name(system) != name:
            raise RecipeError(
                f"training.{name}: the settings of its rule are named {rule_name(system)}; give "
                f"them under that name"
            )
        foreign[name] = system.rule
    if not foreign:
        return kind
    settings = settings_with_rules({**rules_by_name(), **foreign})
    field = Field(description=Recipe.model_fields["training"].description)
    fields: dict[str, Any] = {"training": (settings, field)}
    return create_model(kind.__name__, __base__=kind, **fields)
