"""What a model costs: parameters, and multiply-accumulates of one forward pass.

Nothing here reads a weight, so models that are only counted are built on the meta device, where
they take no memory.

Lengths are those of one input in each stack of a model: `{"encoder": 10, "decoder": 10}` is a pair
of sequences for a model of translation, `{"decoder": 128}` a text for a language model.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from rich import box
from rich.table import Table
from rich.text import Text
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from headwise.analysis.published import NONE
from headwise.analysis.verdict import count
from headwise.heads.system import Macs, System
from headwise.models.base import HeadwiseModel, model_class
from headwise.models.config import TransformerConfig
from headwise.models.sites import attention_sites
from headwise.models.transformer import FeedForward


class Parameters(NamedTuple):
    """The weights of a model by part, shared ones once."""

    embeddings: int = 0  # of source, target and output
    attention: int = 0  # projections of queries, keys and values, and what combines the heads
    routing: int = 0  # what decides how heads are combined: gates, routers, competition
    feed_forward: int = 0
    rest: int = 0  # norms, and what stands outside the layers and is no embedding

    @property
    def total(self) -> int:
        return sum(self)


class Cost(NamedTuple):
    """What one model costs."""

    parameters: Parameters
    linear_macs: int | None  # products with weights alone; None where a system has no formula
    macs: int  # those and the products of attention


def model_cost(config: TransformerConfig, lengths: Mapping[str, int]) -> Cost:
    """The cost of a model that has this configuration; it is built on the meta device.

    >>> from headwise.models.config import Seq2SeqConfig
    >>> cost = model_cost(Seq2SeqConfig(), {"encoder": 10, "decoder": 10})
    >>> cost.parameters.total, cost.linear_macs
    (60522496, 604241920)
    """
    with torch.device("meta"):
        model = model_class(config)(config)
    parameters = parameters_by_part(model)
    try:
        macs = forward_macs(model, lengths)
    except NotImplementedError:
        return Cost(parameters, None, measure_macs(model, lengths))
    return Cost(parameters, macs.linear, sum(macs))


def count_parameters(model: nn.Module) -> int:
    """Weights of a model, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def count_macs(model: HeadwiseModel, lengths: Mapping[str, int]) -> int:
    """Multiply-accumulates of one forward pass over one input, attention included.

    They are those of the formulas of the systems and of the model. What has none is measured.
    """
    try:
        return sum(forward_macs(model, lengths))
    except NotImplementedError:
        return measure_macs(model, lengths)


def parameters_by_part(model: nn.Module) -> Parameters:
    """Count the weights of each part, which their names tell."""
    systems = {
        f"{path}.": module for path, module in model.named_modules() if isinstance(module, System)
    }
    counts = dict.fromkeys(Parameters._fields, 0)
    for name, parameter in model.named_parameters():
        counts[_part(name, systems)] += parameter.numel()
    return Parameters(**counts)


def _part(name: str, systems: Mapping[str, System]) -> str:
    # A system may hold others; modules are listed from the outermost in.
    path = next((path for path in systems if name.startswith(path)), None)
    if path is not None:
        routing = systems[path].routing_parameters
        if name.removeprefix(path).startswith(routing):
            return "routing"
    words = name.split(".")
    if any("norm" in word for word in words):
        return "rest"
    if any(word.startswith("ffn") for word in words):
        return "feed_forward"
    if path is not None:
        return "attention"
    return "embeddings" if {"embedding", "lm_head"} & set(words) else "rest"


def forward_macs(model: nn.Module, lengths: Mapping[str, int]) -> Macs:
    """Multiply-accumulates of one forward pass, from the formulas of the modules.

    Element-wise work (softmax, norms, ReLU, biases, the iterations of routing) is no product of
    matrices and is not counted.

    Args:
        model: a headwise model, or its stacks by themselves, without what stands outside them.
        lengths: of the one input, in each stack.

    Raises:
        NotImplementedError: a system, or what stands outside the layers, has no formula.
        ValueError: lengths of other stacks than the model has.
    """
    places = attention_sites(model)
    stacks = list(dict.fromkeys(place.site.partition("_")[0] for place in places))
    if set(stacks) != set(lengths):
        raise ValueError(
            f"lengths is {dict(lengths)}, expected a length for each stack of the model: "
            f"{', '.join(stacks)}"
        )
    total = Macs(0, 0)
    for place in places:
        stack, _, kind = place.site.partition("_")
        # A whole decoder layer is asked for the length of what its cross-attention reads.
        reads_source = kind == "cross" or place.module.replaces == "layer"
        keys = lengths.get("encoder", lengths[stack]) if reads_source else lengths[stack]
        causal = place.site == "decoder_self"
        total += place.module.macs(lengths[stack], keys, is_causal=causal)
    for path, module in model.named_modules():
        if isinstance(module, FeedForward):
            total += module.macs(lengths[path.partition(".")[0]])
    if isinstance(model, HeadwiseModel):
        total += Macs(model.head_macs(lengths), 0)
    return total


def measure_macs(model: HeadwiseModel, lengths: Mapping[str, int]) -> int:
    """Multiply-accumulates of one forward pass as PyTorch's flop counter finds them.

    It counts the products of matrices that an implementation does. The formulas count those of a
    system's equations; docs/cost.md says where the two differ.
    """
    with torch.device("meta"):
        # Built from the configuration, since a deep copy would first double the memory.
        copy = type(model)(model.config).eval()
        inputs = copy.example_inputs(lengths)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        copy(**inputs)
    return counter.get_total_flops() // 2


def cost_table(
    title: str, configs: Mapping[str, TransformerConfig], lengths: Mapping[str, int]
) -> Table:
    """A row for each system, for a terminal of 80 columns.

    Args:
        title: over the table.
        configs: name to configuration; all have the same vocabulary.
        lengths: of the input that MACs are counted for, in each stack.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.title = Text(title, style="bold")
    table.caption = Text(
        f"{_vocabulary(next(iter(configs.values())))}MACs: {_input(lengths)}; linear: products "
        f"with weights alone."
    )
    table.caption_justify = "left"
    table.add_column("System", min_width=9, max_width=20, overflow="fold")
    for header in (
        "Embed-\ndings",
        "Atten-\ntion",
        "Routing",
        "Feed-\nforward",
        "Rest",
        "Para-\nmeters",
        "MACs\nlinear",
        "MACs\nall",
    ):
        table.add_column(header, justify="right", no_wrap=True)
    for name, config in configs.items():
        cost = model_cost(config, lengths)
        parts = (*cost.parameters, cost.parameters.total, cost.linear_macs, cost.macs)
        figures = (NONE if figure is None else count(figure) for figure in parts)
        table.add_row(Text(name, style="bold"), *figures)
    return table


def _vocabulary(config: TransformerConfig) -> str:
    words = getattr(config, "vocab_size", None)
    others = getattr(config, "target_vocab_size", words)
    if words is None:
        return ""
    if getattr(config, "share_embeddings", None) == "target" or others != words:
        return f"With vocabularies of {words:,} and {others:,}; little data gives fewer. "
    return f"With a vocabulary of {words:,}; little data gives fewer. "


def _input(lengths: Mapping[str, int]) -> str:
    if len(lengths) == 2:
        return f"{lengths['encoder']} source and {lengths['decoder']} target tokens"
    (length,) = lengths.values()
    return f"a sequence of {length}"
