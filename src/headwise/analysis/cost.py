"""What a model costs: parameters, and multiply-accumulates of one forward pass.

Nothing here reads a weight, so models that are only counted are built on the meta device, where
they take no memory.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from rich import box
from rich.table import Table
from rich.text import Text
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from headwise.analysis.published import NONE
from headwise.analysis.verdict import count
from headwise.heads.system import Macs, System
from headwise.models.config import Seq2SeqConfig
from headwise.models.seq2seq import Seq2SeqLM
from headwise.models.sites import attention_sites
from headwise.models.transformer import FeedForward

if TYPE_CHECKING:
    from headwise.recipe import Recipe


class Parameters(NamedTuple):
    """The weights of a model by part, shared ones once."""

    embeddings: int = 0  # of source, target and output
    attention: int = 0  # projections of queries, keys and values, and what combines the heads
    routing: int = 0  # what decides how heads are combined: gates, routers, competition
    feed_forward: int = 0
    rest: int = 0  # norms

    @property
    def total(self) -> int:
        return sum(self)


class Cost(NamedTuple):
    """What one model costs."""

    parameters: Parameters
    linear_macs: int | None  # products with weights alone; None where a system has no formula
    macs: int  # those and the products of attention


def model_cost(config: Seq2SeqConfig, source_length: int, target_length: int) -> Cost:
    """The cost of a model that has this configuration; it is built on the meta device.

    >>> cost = model_cost(Seq2SeqConfig(), 10, 10)
    >>> cost.parameters.total, cost.linear_macs
    (60522496, 604241920)
    """
    with torch.device("meta"):
        model = Seq2SeqLM(config)
    parameters = parameters_by_part(model)
    try:
        macs = forward_macs(model, source_length, target_length)
    except NotImplementedError:
        return Cost(parameters, None, measure_macs(model, source_length, target_length))
    return Cost(parameters, macs.linear, sum(macs))


def count_parameters(model: nn.Module) -> int:
    """Weights of a model, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def count_macs(model: PreTrainedModel, source_length: int, target_length: int) -> int:
    """Multiply-accumulates of one forward pass over one pair of sequences, attention included.

    They are those of the systems' formulas. A system without one is measured.
    """
    try:
        return sum(forward_macs(model, source_length, target_length))
    except NotImplementedError:
        return measure_macs(model, source_length, target_length)


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


def forward_macs(model: nn.Module, source_length: int, target_length: int) -> Macs:
    """Multiply-accumulates of one forward pass, from the formulas of the modules.

    Element-wise work (softmax, norms, ReLU, biases, the iterations of routing) is no product of
    matrices and is not counted.

    Args:
        model: an encoder, a decoder and the output's `lm_head`, or what there is of them.
        source_length, target_length: tokens of the one pair of sequences.
    """
    lengths = {"encoder": source_length, "decoder": target_length}
    total = Macs(0, 0)
    for place in attention_sites(model):
        stack, _, kind = place.site.partition("_")
        # A whole decoder layer is asked for the length of what its cross-attention reads.
        reads_source = kind == "cross" or place.module.replaces == "layer"
        keys = source_length if reads_source else lengths[stack]
        causal = place.site == "decoder_self"
        total += place.module.macs(lengths[stack], keys, is_causal=causal)
    for path, module in model.named_modules():
        if isinstance(module, FeedForward):
            total += module.macs(lengths[path.partition(".")[0]])
        elif path == "lm_head" and isinstance(module, nn.Linear):
            total += Macs(target_length * module.weight.numel(), 0)
    return total


def measure_macs(model: PreTrainedModel, source_length: int, target_length: int) -> int:
    """Multiply-accumulates of one forward pass as PyTorch's flop counter finds them.

    It counts the products of matrices that an implementation does. The formulas count those of a
    system's equations; docs/cost.md says where the two differ.
    """
    with torch.device("meta"):
        # Built from the configuration, since a deep copy would first double the memory.
        copy = type(model)(model.config).eval()
        source = torch.ones(1, source_length, dtype=torch.long)
        target = torch.ones(1, target_length, dtype=torch.long)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        copy(input_ids=source, decoder_input_ids=target)
    return counter.get_total_flops() // 2


def recipe_config(recipe: "Recipe") -> Seq2SeqConfig:
    """The configuration of a recipe's model if the tokenizers come out as large as they may.

    A small corpus gives fewer subwords than the recipe asks for, and the model is smaller by as
    many embeddings.
    """
    tokenizer = recipe.tokenizer
    return recipe.model.config(
        tokenizer.source_vocab_size or tokenizer.vocab_size,
        tokenizer.target_vocab_size or tokenizer.vocab_size,
        joint=tokenizer.joint,
    )


def cost_table(
    title: str, configs: Mapping[str, Seq2SeqConfig], source_length: int, target_length: int
) -> Table:
    """A row for each system, for a terminal of 80 columns.

    Args:
        title: over the table.
        configs: name to configuration; all have the same vocabulary.
        source_length, target_length: tokens that MACs are counted for.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.title = Text(title, style="bold")
    first = next(iter(configs.values()))
    joint = first.share_embeddings == "all"
    words = (
        f"{first.vocab_size:,} subwords"
        if joint
        else f"{first.vocab_size:,} source and {first.target_vocab_size:,} target subwords"
    )
    table.caption = Text(
        f"With {words}; a small corpus gives fewer. MACs: {source_length} source and "
        f"{target_length} target tokens; linear: products with weights alone."
    )
    table.caption_justify = "left"
    table.add_column("System", min_width=9, max_width=20, overflow="fold")
    for header in (
        "Embed-\ndings",
        "Atten-\ntion",
        "Routing",
        "Feed-\nforward",
        "Norms",
        "Para-\nmeters",
        "MACs\nlinear",
        "MACs\nall",
    ):
        table.add_column(header, justify="right", no_wrap=True)
    for name, config in configs.items():
        cost = model_cost(config, source_length, target_length)
        parts = (*cost.parameters, cost.parameters.total, cost.linear_macs, cost.macs)
        figures = (NONE if figure is None else count(figure) for figure in parts)
        table.add_row(Text(name, style="bold"), *figures)
    return table
