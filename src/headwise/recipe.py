"""Recipes: one YAML file per experiment, checked key by key.

A recipe says what data to take, what model to build and how to train it, and names systems to
compare: each is a set of changes to the rest of the recipe.

    data: {corpus: interface-strings, language: fr}
    model: {embed_dim: 128, num_heads: 8}
    training: {max_steps: 600}
    systems:
      standard: {}
      mae-7: {model: {attention: mae}}
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from headwise.models.config import Seq2SeqConfig
from headwise.tasks.corpora import CorpusSettings, InterfaceStringsCorpus
from headwise.tasks.metrics import EvaluationSettings
from headwise.tasks.sources import CorpusError, read_lines
from headwise.tasks.tokenization import TokenizerSettings
from headwise.training.settings import TrainingSettings

Change = tuple[tuple[str, ...], Any]  # a path of keys, and the value to put there


class RecipeError(ValueError):
    """A recipe that cannot be used; the message names the key and how to mend it."""


class ModelSettings(BaseModel):
    """Sizes of the encoder-decoder model; defaults are those of the base Transformer."""

    model_config = ConfigDict(extra="forbid")

    embed_dim: int = Field(512, ge=1, description="width of the model")
    num_heads: int = Field(8, ge=1, description="heads of each attention")
    ffn_dim: int = Field(2048, ge=1, description="width of the feed-forward's hidden layer")
    encoder_layers: int = Field(6, ge=1, description="layers of the encoder")
    decoder_layers: int = Field(6, ge=1, description="layers of the decoder")
    attention: str | dict[str, Any] = Field(
        "standard", description="a system's name, or per site (and layer) a system with options"
    )
    norm: Literal["post", "pre"] = Field(
        "post", description="layer norm behind each residual sum, or before each sub-layer"
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="of embeddings and sub-layers")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="of attention weights")
    ffn_dropout: float = Field(0.0, ge=0, lt=1, description="inside the feed-forward")
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="of the training loss")
    share_embeddings: Literal["all", "target", "none"] | None = Field(
        None, description="default: all with a joint vocabulary, else target and output"
    )

    @model_validator(mode="after")
    def _check_sizes(self) -> "ModelSettings":
        # Sizes and systems that do not fit are found before any data is read.
        Seq2SeqConfig(**self.model_dump(exclude={"share_embeddings"}))
        return self

    def config(
        self, vocab_size: int, target_vocab_size: int, *, joint: bool, **tokens: Any
    ) -> Seq2SeqConfig:
        """The model with vocabularies of these sizes; `tokens` are the ids of special ones."""
        settings = self.model_dump()
        shared = settings.pop("share_embeddings") or ("all" if joint else "target")
        return Seq2SeqConfig(
            vocab_size=vocab_size,
            target_vocab_size=target_vocab_size,
            share_embeddings=shared,
            **tokens,
            **settings,
        )


class SystemSettings(BaseModel):
    """One system of a comparison: what it changes in the recipe."""

    model_config = ConfigDict(extra="forbid")

    description: str = Field("", description="one line for lists and the report")
    model: dict[str, Any] = Field(default_factory=dict, description="changes to model")
    training: dict[str, Any] = Field(default_factory=dict, description="changes to training")


class Recipe(BaseModel):
    """One experiment."""

    model_config = ConfigDict(extra="forbid")

    description: str = Field("", description="one line for the list of recipes")
    task: Literal["translation"] = Field("translation", description="what is learned")
    data: CorpusSettings = Field(
        default_factory=lambda: InterfaceStringsCorpus(), description="the corpus"
    )
    tokenizer: TokenizerSettings = Field(
        default_factory=lambda: TokenizerSettings(), description="the vocabularies"
    )
    model: ModelSettings = Field(
        default_factory=lambda: ModelSettings(), description="sizes and attention"
    )
    training: TrainingSettings = Field(description="steps, rates, checkpoints")
    evaluation: EvaluationSettings = Field(
        default_factory=lambda: EvaluationSettings(), description="search and scores"
    )
    # A name becomes part of a folder's name, and is chosen by commas.
    systems: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.+-]*$")], SystemSettings] = Field(
        default_factory=dict, description="name to changes; the first is the baseline"
    )

    @model_validator(mode="after")
    def _check_vocabularies(self) -> "Recipe":
        if self.model.share_embeddings == "all" and not self.tokenizer.joint:
            raise ValueError(
                "model.share_embeddings is 'all', which needs tokenizer.joint: true; use 'target'"
            )
        return self


class RecipeFile:
    """A recipe as it was written, with the command line's changes, and what it means.

    Args:
        name: how it was asked for.
        raw: the YAML document.
        changes: `--set` paths and values; they win over what systems change.

    Attributes:
        recipe: the checked recipe.
    """

    def __init__(self, name: str, raw: dict[str, Any], changes: Sequence[Change]) -> None:
        self.name = name
        self._raw = _assign(raw, changes)
        self._changes = changes
        self.recipe = _validate(name, self._raw)
        self._systems = {system: self._with_changes_of(system) for system in self.recipe.systems}

    def check_comparable(self) -> None:
        """Raise `RecipeError` if a `--set` has made all systems one."""
        own = [name for name, system in self.recipe.systems.items() if "attention" in system.model]
        changed = any(
            keys[:2] == ("model", "attention")
            or (keys == ("model",) and isinstance(value, Mapping) and "attention" in value)
            for keys, value in self._changes
        )
        if own and changed:
            raise RecipeError(
                f"--set model.attention would give every system the same attention; change one "
                f"system with --set systems.{own[0]}.model.attention=..."
            )

    @property
    def system_names(self) -> list[str]:
        """The systems that the recipe names; the first is the baseline."""
        return list(self.recipe.systems)

    def system(self, name: str) -> Recipe:
        """The recipe with the changes of one of its systems, and without the list of them.

        Raises:
            RecipeError: there is no such system.
        """
        if name not in self._systems:
            raise RecipeError(_unknown("system", name, self.system_names, f"recipe {self.name}"))
        return self._systems[name]

    def _with_changes_of(self, name: str) -> Recipe:
        base = {key: value for key, value in self._raw.items() if key != "systems"}
        chosen = self._raw["systems"][name] or {}
        for part in ("model", "training"):
            base[part] = _merge(base.get(part) or {}, chosen.get(part) or {})
        changes = [change for change in self._changes if change[0][0] != "systems"]
        return _validate(f"{self.name}, system {name}", _assign(base, changes))


def load_recipe(name: str, changes: Sequence[str] = ()) -> RecipeFile:
    """A recipe by the name of one that headwise ships, or by a file's path.

    Args:
        name: `interface-strings`, or `my/recipe.yaml`.
        changes: `key.key=value` each, as `--set` takes them; values are YAML.

    Raises:
        RecipeError: no such recipe, unknown keys, wrong types.

    >>> recipe = load_recipe("interface-strings", ["training.max_steps=100"]).recipe
    >>> recipe.training.max_steps
    100
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise RecipeError(f"there is no recipe file {name}")
        try:
            text = "\n".join(read_lines(path))
        except CorpusError as error:
            raise RecipeError(f"recipe {error}") from error
    else:
        shipped = shipped_recipes()
        if name not in shipped:
            hint = " (a file's name has to end in .yaml)" if path.is_file() else ""
            raise RecipeError(_unknown("recipe", name, list(shipped)) + hint)
        text = shipped[name]
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"recipe {name} is no YAML: {error}") from error
    if not isinstance(raw, dict):
        raise RecipeError(f"recipe {name} holds no keys, expected at least training")
    parsed = [_parse_change(change) for change in changes]
    # Which kind of corpus it is goes first: its other keys depend on it.
    parsed.sort(key=lambda change: change[0] != ("data", "corpus"))
    return RecipeFile(name, raw, parsed)


def shipped_recipes() -> dict[str, str]:
    """The recipes that come with headwise: name to YAML text, sorted by name."""
    folder = resources.files("headwise") / "recipes"
    texts = {
        file.name.removesuffix(".yaml"): file.read_text(encoding="utf-8")
        for file in folder.iterdir()
        if file.name.endswith(".yaml")
    }
    return dict(sorted(texts.items()))


def to_yaml(recipe: BaseModel) -> str:
    """A checked recipe with all its values, defaults too, as YAML."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def differences(old: str, new: str) -> list[str]:
    """Which values differ between two recipes in YAML, one line each.

    >>> differences("training: {seed: 1, max_steps: 5}", "training: {seed: 2, max_steps: 5}")
    ['training.seed: 1 before, 2 now']
    """
    before, now = _flatten(yaml.safe_load(old)), _flatten(yaml.safe_load(new))
    return [
        f"{key}: {before.get(key, 'not set')} before, {now.get(key, 'not set')} now"
        for key in [*before, *(key for key in now if key not in before)]
        if before.get(key, "not set") != now.get(key, "not set")
    ]


def with_defaults(text: str) -> str:
    """A recipe in YAML with all keys that there are by now, as `to_yaml` writes it.

    A run that was started before a key came into being had what is its default.
    """
    try:
        return to_yaml(Recipe.model_validate(yaml.safe_load(text)))
    except ValidationError:
        return text


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    return flat


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`changes` over `base`, mappings key by key; a plan of attention is replaced as a whole."""
    merged = dict(base)
    for key, value in changes.items():
        inner = merged.get(key)
        if isinstance(inner, Mapping) and isinstance(value, Mapping) and key != "attention":
            merged[key] = _merge(inner, value)
        else:
            _put(merged, key, value)
    return merged


def _put(mapping: dict[str, Any], key: str, value: Any) -> None:
    """Set a key; a budget in steps takes the place of one in epochs, and the other way round."""
    mapping[key] = value
    for one, other in (("max_steps", "epochs"), ("epochs", "max_steps")):
        if key == one and value is not None:
            mapping.pop(other, None)


def _assign(raw: Mapping[str, Any], changes: Sequence[Change]) -> dict[str, Any]:
    """A copy of `raw` with the value at each path replaced."""
    changed = dict(raw)
    for (key, *rest), value in changes:
        inner = changed.get(key)
        if not rest:
            _put(changed, key, value)
            continue
        inner = inner if isinstance(inner, Mapping) else {}
        # The keys of one kind of corpus are not those of another.
        if key == "data" and rest == ["corpus"] and inner.get("corpus") != value:
            inner = {}
        changed[key] = _assign(inner, [(tuple(rest), value)])
    return changed


def _parse_change(change: str) -> Change:
    path, equals, value = change.partition("=")
    keys = tuple(key.strip() for key in path.split("."))
    if not equals or not all(keys):
        raise RecipeError(f"--set {change!r}: expected key.key=value, as training.max_steps=100")
    try:
        return keys, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise RecipeError(f"--set {change!r}: {value!r} is no YAML value") from error


def _validate(name: str, raw: Mapping[str, Any]) -> Recipe:
    try:
        return Recipe.model_validate(raw)
    except ValidationError as error:
        problems = "\n".join(f"  {_explain(problem)}" for problem in error.errors())
        raise RecipeError(f"recipe {name}:\n{problems}") from error


def _explain(problem: Any) -> str:
    """One problem that pydantic found, with the key, what came and what was expected."""
    # A member of a union shows up in the path by its tag, which is no key of the recipe.
    tags = {"interface-strings", "files", "hub", "str", "dict[str,any]"}
    keys = [str(key) for key in problem["loc"] if str(key) not in tags]
    where = ".".join(keys)
    if problem["type"] == "extra_forbidden":
        known = _known_keys(problem["loc"])
        return _unknown("key", where, known, compare=keys[-1])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"{where} is missing"
    if problem["type"].startswith("union_tag"):
        return f"{where}.corpus: expected one of interface-strings, files, hub"
    if problem["type"] == "value_error":
        return f"{where}: {message}" if where else message
    return f"{where} is {problem['input']!r}: {message[0].lower()}{message[1:]}"


def _known_keys(location: Sequence[int | str]) -> list[str]:
    """The keys that there are beside an unknown one."""
    model: Any = Recipe
    for key in location[:-1]:
        members = [m for m in _models(model) if _tag(m) == key]
        if members:
            model = members[0]
            continue
        fields = [m.model_fields[key] for m in _models(model) if key in m.model_fields]
        if fields:
            model = fields[0].annotation
    return sorted({name for member in _models(model) for name in member.model_fields})


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _tag(model: type[BaseModel]) -> Any:
    field = model.model_fields.get("corpus")
    return None if field is None else field.default


def _unknown(
    what: str, name: str, known: Sequence[str], where: str = "", compare: str | None = None
) -> str:
    near = get_close_matches(compare or name, known, n=1)
    hint = f", did you mean {near[0]!r}?" if near else ""
    place = f" in {where}" if where else ""
    return f"there is no {what} {name!r}{place}{hint}\n  known: {', '.join(known)}"
