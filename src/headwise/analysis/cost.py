"""Counts what a model costs: its parameters, and the multiply-accumulates of a forward pass.

Counting reads no weights, so it builds models on the meta device, where they take no memory.

`lengths` gives the length of one input in each stack of a model: `{"encoder": 10, "decoder": 10}`
for a pair of sequences of a translation model, `{"decoder": 128}` for a text of a language model.
"""

import math
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from headwise.heads.system import System
from headwise.models.config import TransformerConfig
from headwise.models.for_tasks import CausalLM, MaskedLM, Seq2SeqLM, SequenceClassifier
from headwise.models.modeling import HeadwiseModel
from headwise.models.speech import SpeechEnhancer


class Parameters(NamedTuple):
    """The number of parameters of each part of a model; shared parameters count once."""

    embeddings: int = 0  # source, target and output embeddings, and learned positions
    attention: int = 0  # projections of queries, keys and values, and the combination of heads
    routing: int = 0  # decides how heads are combined, such as a router
    feed_forward: int = 0
    rest: int = 0  # norms, and everything outside the layers except embeddings

    @property
    def total(self) -> int:
        return sum(self)


class Macs(NamedTuple):
    """Multiply-accumulates of one forward pass."""

    linear: int  # of all products but those of attention
    attention: int  # of queries with keys, and of attention weights with values


class Cost(NamedTuple):
    """The cost of one model."""

    parameters: Parameters
    linear_macs: int  # of all products but those of attention
    macs: int


def model_cost(config: TransformerConfig, lengths: Mapping[str, int]) -> Cost:
    """Returns the cost of the model of a configuration, which is built on the meta device.

    >>> from headwise.models.config import Seq2SeqLMConfig
    >>> cost = model_cost(Seq2SeqLMConfig(), {"encoder": 10, "decoder": 10})
    >>> cost.parameters.total, cost.linear_macs
    (60522496, 604241920)
    """
    with torch.device("meta"):
        model = model_class(config)(config)
    macs = forward_macs(model, lengths)
    return Cost(parameters_by_part(model), macs.linear, sum(macs))


def model_class(config: TransformerConfig) -> type[HeadwiseModel]:
    """The class of the models of a configuration.

    >>> from headwise.models.config import MaskedLMConfig
    >>> model_class(MaskedLMConfig()).__name__
    'MaskedLM'
    """
    kinds = (CausalLM, MaskedLM, Seq2SeqLM, SequenceClassifier, SpeechEnhancer)
    return next(kind for kind in kinds if isinstance(config, kind.config_class))


def count_parameters(model: nn.Module) -> int:
    """Returns the number of parameters of a model; shared parameters count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def parameters_by_part(model: nn.Module) -> Parameters:
    """Counts the parameters of each part of a model, which it tells by their names."""
    systems = {
        f"{path}.": module for path, module in model.named_modules() if isinstance(module, System)
    }
    counts = dict.fromkeys(Parameters._fields, 0)
    for name, parameter in model.named_parameters():
        counts[_part(name, systems)] += parameter.numel()
    return Parameters(**counts)


def _part(name: str, systems: Mapping[str, System]) -> str:
    words = name.split(".")
    # A system may contain others, which count as parts of the outermost.
    ends = accumulate(f"{word}." for word in words)
    path = next((path for path in ends if path in systems), None)
    if path is not None:
        routing = systems[path].routing_parameters
        if name.removeprefix(path).startswith(routing):
            return "routing"
    if any("norm" in word for word in words):
        return "rest"
    if any(word.startswith("ffn") for word in words):
        return "feed_forward"
    if path is not None:
        return "attention"
    return "embeddings" if {"embedding", "positions", "lm_head"} & set(words) else "rest"


def forward_macs(model: HeadwiseModel, lengths: Mapping[str, int]) -> Macs:
    """Measures the multiply-accumulates of one forward pass with PyTorch's flop counter.

    Only products of matrices count, not element-wise operations (softmax, norms, activations,
    biases, the iterations of routing). It counts what the implementation computes; docs/cost.md
    says where that differs from the equations of a paper.

    Raises:
        ValueError: the stacks in `lengths` are not those of the model.
    """
    stacks = dict.fromkeys(site.partition("_")[0] for site in model.config.depths())
    if set(stacks) != set(lengths):
        raise ValueError(
            f"lengths is {dict(lengths)}, expected a length for each stack of the model: "
            f"{', '.join(stacks)}"
        )
    try:
        return _measured(model, lengths, "meta")
    except Exception:  # a system of somebody's own may read values, which meta tensors lack
        with torch.random.fork_rng([]):
            return _measured(model, lengths, "cpu")


def _measured(model: HeadwiseModel, lengths: Mapping[str, int], device: str) -> Macs:
    with torch.device(device):
        # A new model: a deep copy of one with weights would first double the memory.
        copy = type(model)(model.config).eval()
        inputs = _inputs(copy, lengths)
    others, attention = FlopCounterMode(display=False), _AttentionMacs()
    with torch.no_grad(), others, attention:
        copy(**inputs)
    return Macs(others.get_total_flops() // 2, attention.macs)


def _inputs(model: HeadwiseModel, lengths: Mapping[str, int]) -> dict[str, Tensor]:
    """Arguments of a forward pass over one sequence."""
    bins = getattr(model.config, "num_bins", None)
    if bins is not None:  # frames of a sound
        return {model.main_input_name: torch.ones(1, *lengths.values(), bins)}
    names = ("input_ids", "decoder_input_ids")
    return {
        name: torch.ones(1, length, dtype=torch.long)
        for name, length in zip(names, lengths.values(), strict=False)
    }


class _AttentionMacs(TorchFunctionMode):
    """Counts the products of PyTorch's attention, and computes none of them."""

    macs = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        q, k, v = args[:3]
        self.macs += math.prod(q.shape[:-1]) * k.size(-2) * (q.size(-1) + v.size(-1))
        return q.new_zeros(*q.shape[:-1], v.size(-1))
