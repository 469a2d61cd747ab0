"""Which arguments a model's configuration takes, beside its own: those of all of transformers.

`PreTrainedConfig` makes an attribute of any argument that it does not know, so that a misspelled
one would pass in silence.
"""

import functools
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import transformers
from packaging.version import Version
from transformers import GenerationConfig, PreTrainedConfig

from headwise.messages import did_you_mean
from headwise.transformers_internals import config_fields

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
    return {name: value for name, value in saved.items() if _is_known(config, name) or not newer}


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
