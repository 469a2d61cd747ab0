"""A system at a place of a small model, and the inputs that checks give it."""

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headwise.heads.cache import AttentionCache
from headwise.heads.system import AttentionOutput, Place, System
from headwise.ops.rotary import Rotary

EMBED_DIM, NUM_HEADS, FFN_DIM = 16, 4, 32
BATCH, TIME, KEYS = 3, 7, 5
SITES = {
    "attention": ("encoder_self", "decoder_self", "decoder_cross"),
    "feed-forward": ("encoder_self", "decoder_cross"),
    "layer": ("encoder_self", "decoder_self"),
}


class Subject(NamedTuple):
    """A system at a place, built and called as a model does it."""

    system: type[System]
    place: Place
    options: dict[str, Any]
    ablation_options: Mapping[str, Mapping[str, Any]] = {}
    first_position: int | None = None  # of rotary positions, where a model has them

    @property
    def decodes(self) -> bool:
        """Whether its queries are a causal sequence that grows step by step."""
        return self.place.site != "encoder_self"

    def build(
        self, *, train: bool = False, dtype: torch.dtype = torch.float64, randomize: bool = True
    ) -> System:
        module = self.system.from_plan(self.place, **self.options)
        return (draw_parameters(module) if randomize else module).to(dtype).train(train)

    def call(
        self,
        module: System,
        x: Tensor,
        memory: Tensor,
        padding: Tensor | None = None,
        memory_padding: Tensor | None = None,
        cache: AttentionCache | None = None,
        cross_cache: AttentionCache | None = None,
    ) -> AttentionOutput:
        """One pass; `memory` is the encoder's output, which only some sites look at."""
        turns: dict[str, Any] = {}
        if self.first_position is not None:
            seen = self.first_position + (0 if cache is None else cache.get_seq_length())
            turns = {"rotary": Rotary(seen + torch.arange(x.size(1)), {"rope_theta": 10.0})}
        if self.place.site == "encoder_self":
            return module(x, key_padding_mask=padding, **turns)
        if self.place.site == "decoder_cross":
            return module(
                x,
                memory,
                key_padding_mask=memory_padding,
                query_padding_mask=padding,
                cache=cross_cache,
            )
        masks = {"key_padding_mask": padding, "query_padding_mask": padding}
        if self.system.replaces == "attention":
            return module(x, **masks, is_causal=True, cache=cache, **turns)
        return module(
            x,
            memory,
            **masks,
            memory_key_padding_mask=memory_padding,
            is_causal=True,
            cache=cache,
            cross_cache=cross_cache,
            **turns,
        )

    def repeatable(self, module: System, *args: Any, seed: int = 1) -> AttentionOutput:
        """A pass that draws what the last one drew, and leaves no trace in the module."""
        torch.manual_seed(seed)
        copied = copy.deepcopy(module)
        copied.ablation = module.ablation
        return self.call(copied, *args)

    def expect(self, holds: bool | Tensor, problem: str, mend: str) -> None:
        if not holds:
            name = f"{self.system.__name__} at {self.place.site}"
            name += "" if self.first_position is None else " with rotary positions"
            raise AssertionError(f"{name}: {problem}; {mend}")


@torch.no_grad()
def draw_parameters(module: System) -> System:
    for parameter in module.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.5)
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm1d) and norm.running_var is not None:
            nn.init.normal_(norm.running_mean)  # type: ignore[arg-type]
            nn.init.uniform_(norm.running_var, 0.5, 1.5)
    return module


def random_input(batch: int, time: int) -> Tensor:
    return torch.randn(batch, time, EMBED_DIM, dtype=torch.float64)


def padding_mask(*lengths: int, time: int, left: bool = False) -> Tensor:
    """Boolean `(batch, time)`, `True` at padding."""
    rows = torch.arange(time).expand(len(lengths), time) >= torch.tensor(lengths).unsqueeze(1)
    return rows.flip(1) if left else rows


def filled(x: Tensor, padding: Tensor, value: float = 100.0) -> Tensor:
    return x.masked_fill(padding.unsqueeze(-1), value)


def close(x: Tensor | None, y: Tensor | None) -> bool:
    return x is not None and y is not None and torch.allclose(x, y, rtol=1e-7, atol=1e-9)


def backward(out: AttentionOutput) -> None:
    loss = out.output.square().mean()
    if out.routing is not None and out.routing.loss is not None:
        loss = loss + out.routing.loss
    loss.backward()
