"""What a model costs: its parameters, and the multiply-accumulates (MACs) of one forward pass.

Models are built on the meta device, where they take no memory and compute nothing.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from headwise.models.config import TransformerConfig
from headwise.models.inspect import find_systems
from headwise.models.modeling import HeadwiseModel
from headwise.models.speech import SpeechEnhancer
from headwise.models.text import CausalLM, MaskedLM, Seq2SeqLM, SequenceClassifier

_MODELS = (CausalLM, MaskedLM, Seq2SeqLM, SequenceClassifier, SpeechEnhancer)


class Parameters(NamedTuple):
    """The number of parameters of each part of a model; shared parameters count once."""

    embeddings: int = 0  # source, target and output embeddings, and learned positions
    attention: int = 0  # maps of queries, keys and values, and of what the heads read
    routing: int = 0  # what decides how heads are combined, such as a router
    feed_forward: int = 0
    rest: int = 0  # norms, and what is outside the layers

    @property
    def total(self) -> int:
        """The number of all parameters."""
        return sum(self)


class Cost(NamedTuple):
    """The parameters of a model, and the multiply-accumulates of one forward pass."""

    parameters: Parameters
    # MACs of all products but those of queries with keys and of attention weights with values, as
    # table 1 of the MoA paper counts them.
    linear_macs: int
    macs: int  # of all products


def count_parameters(model: nn.Module) -> int:
    """Returns the number of parameters of a model; shared parameters count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def model_cost(config: TransformerConfig, lengths: Mapping[str, int]) -> Cost:
    """Counts the parameters of the model of a configuration, and the MACs of one forward pass.

    MACs are those of products of matrices, as PyTorch's counter finds them for one input. Softmax,
    norms, activations and biases do not count, nor do the iterations of routing by agreement. MoH
    computes all heads, so that all count; of MoA's experts those that a token has chosen count, as
    in its paper.

    Args:
        config: of any of headwise's models.
        lengths: of one input in each stack of the model: `{"encoder": 10, "decoder": 10}` is a
            source and a target of ten tokens, `{"decoder": 128}` a text of a language model.

    Raises:
        ValueError: `lengths` has not the stacks of the model.

    Example:
        >>> import headwise as hw
        >>> cost = model_cost(hw.Seq2SeqLMConfig(), {"encoder": 10, "decoder": 10})
        >>> cost.parameters.total, cost.linear_macs
        (60522496, 604241920)
    """
    stacks = list(dict.fromkeys(site.partition("_")[0] for site in config.depths()))
    if set(stacks) != set(lengths):
        raise ValueError(
            f"lengths is {dict(lengths)}, expected a length for each stack of the model: "
            f"{', '.join(stacks)}"
        )
    ordered = [lengths[stack] for stack in stacks]
    kind = next(kind for kind in _MODELS if isinstance(config, kind.config_class))
    try:
        return _count_cost(kind, config, ordered, "meta")
    except Exception:  # a system of a user may read values, which the meta device lacks
        with torch.random.fork_rng([]):
            return _count_cost(kind, config, ordered, "cpu")


def _count_cost(
    kind: type[HeadwiseModel], config: TransformerConfig, lengths: list[int], device: str
) -> Cost:
    with torch.device(device):
        model = kind(config).eval()
        if isinstance(model, SpeechEnhancer):
            inputs = [torch.ones(1, *lengths, model.config.num_bins)]
        else:
            inputs = [torch.ones(1, length, dtype=torch.long) for length in lengths]
    names = (model.main_input_name, "decoder_input_ids")
    flops, attention = FlopCounterMode(display=False), _AttentionMacs()
    with torch.no_grad(), flops, attention:
        model(**dict(zip(names, inputs, strict=False)))
    linear = flops.get_total_flops() // 2
    return Cost(_count_by_part(model), linear, linear + attention.macs)


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


def _count_by_part(model: nn.Module) -> Parameters:
    parts: dict[Tensor, str] = {}
    for system in find_systems(model).values():
        for name, parameter in system.named_parameters():
            is_routing = name.startswith(system.routing_parameters)
            parts[parameter] = "routing" if is_routing else "attention"
    counts = dict.fromkeys(Parameters._fields, 0)
    for name, parameter in model.named_parameters():
        part = parts.get(parameter, "rest")
        if part != "routing" and "norm" in name:
            part = "rest"
        elif part != "routing" and ".ffn_" in name:
            part = "feed_forward"
        elif part == "rest" and {"embedding", "positions", "lm_head"} & set(name.split(".")):
            part = "embeddings"
        counts[part] += parameter.numel()
    return Parameters(**counts)
