"""Counts what a model costs: its parameters, and the multiply-accumulates of a forward pass.

Counting reads no weights, so it builds models on the meta device, where they take no memory.

`lengths` gives the length of one input in each stack of a model: `{"encoder": 10, "decoder": 10}`
for a pair of sequences of a translation model, `{"decoder": 128}` for a text of a language model.
"""

from collections import Counter
from collections.abc import Mapping
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from headwise.heads.system import Macs, System
from headwise.models.base import HeadwiseModel, model_class
from headwise.models.config import TransformerConfig
from headwise.models.layers import FeedForward
from headwise.models.sites import attention_sites


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


class Cost(NamedTuple):
    """The cost of one model."""

    parameters: Parameters
    linear_macs: int | None  # of products with weights alone; None if a system has no formula
    macs: int  # of these and of the products of attention
    shares: Mapping[str, float]  # of parts in the parameters of their systems


def model_cost(config: TransformerConfig, lengths: Mapping[str, int]) -> Cost:
    """Returns the cost of the model of a configuration, which is built on the meta device.

    >>> from headwise.models.seq2seq import Seq2SeqLMConfig
    >>> cost = model_cost(Seq2SeqLMConfig(), {"encoder": 10, "decoder": 10})
    >>> cost.parameters.total, cost.linear_macs
    (60522496, 604241920)
    """
    with torch.device("meta"):
        model = model_class(config)(config)
    parameters, shares = parameters_by_part(model), shares_of_parts(model)
    try:
        macs = forward_macs(model, lengths)
    except NotImplementedError:
        return Cost(parameters, None, measure_macs(model, lengths), shares)
    return Cost(parameters, macs.linear, sum(macs), shares)


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


def shares_of_parts(model: nn.Module) -> dict[str, float]:
    """Returns the share of each of `System.costed_parts` in the parameters of its systems.

    >>> from headwise.heads.tim import TIM
    >>> shares_of_parts(TIM(64, num_heads=4, ffn_dim=128, num_mechanisms=2, exchange_heads=0))
    {'exchange': 0.0}
    """
    parts, wholes = Counter[str](), Counter[str]()
    for system in model.modules():
        for name in system.costed_parts if isinstance(system, System) else ():
            parts[name] += count_parameters(getattr(system, name) or nn.Module())
            wholes[name] += count_parameters(system)
    return {name: parts[name] / wholes[name] for name in parts}


def forward_macs(model: nn.Module, lengths: Mapping[str, int]) -> Macs:
    """Returns the multiply-accumulates of one forward pass, from the formulas of the modules.

    Only products of matrices count, not element-wise operations (softmax, norms, activations,
    biases, the iterations of routing).

    Raises:
        NotImplementedError: a system, or a part of the model outside its layers, has no formula;
            or a system inherits one, which is not what `measure_macs` counts.
        ValueError: the stacks in `lengths` are not those of the model.
    """
    places = attention_sites(model)
    stacks = list(dict.fromkeys(place.stack for place in places))
    if set(stacks) != set(lengths):
        raise ValueError(
            f"lengths is {dict(lengths)}, expected a length for each stack of the model: "
            f"{', '.join(stacks)}"
        )
    total = Macs(0, 0)
    for place in places:
        stack, _, kind = place.site.partition("_")
        # The formula of a whole decoder layer needs the length that its cross-attention reads.
        reads_source = kind == "cross" or place.module.replaces == "layer"
        keys = lengths.get("encoder", lengths[stack]) if reads_source else lengths[stack]
        causal = place.site == "decoder_self"
        total += place.module.macs(lengths[stack], keys, is_causal=causal)
    for path, module in model.named_modules():
        if isinstance(module, FeedForward):
            stack = next(word for word in path.split(".") if word in lengths)
            total += module.macs(lengths[stack])
    if isinstance(model, HeadwiseModel):
        total += Macs(model.head_macs(lengths), 0)
        # The formula of a base class lacks what a subclass adds.
        systems = {type(place.module) for place in places}
        inheriting = sorted(each.__name__ for each in systems if "macs" not in vars(each))
        if inheriting and sum(total) != measure_macs(model, lengths):
            raise NotImplementedError(
                f"{', '.join(inheriting)}: the formula macs of the base class does not count all "
                f"products; define macs in the class too, or measure them with measure_macs"
            )
    return total


def measure_macs(model: HeadwiseModel, lengths: Mapping[str, int]) -> int:
    """Measures the multiply-accumulates of one forward pass with PyTorch's flop counter.

    The counter counts the products of matrices that the implementation computes, the formulas those
    of a system's equations. docs/cost.md says where the two differ.
    """
    try:
        return _measured(model, lengths, "meta")
    except Exception:  # a system of somebody's own may read values, which meta tensors lack
        with torch.random.fork_rng([]):
            return _measured(model, lengths, "cpu")


def _measured(model: HeadwiseModel, lengths: Mapping[str, int], device: str) -> int:
    with torch.device(device):
        # A new model: a deep copy of one with weights would first double the memory.
        copy = type(model)(model.config).eval()
        inputs = copy.example_inputs(lengths)
    # The plain kernel, whose products the counter sees.
    plain, counter = sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False)
    with plain, counter, torch.no_grad():
        copy(**inputs)
    return counter.get_total_flops() // 2
