"""A system over heads that another module has computed, such as those of a pretrained model."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from typing_extensions import Self

from headwise.heads.attention import Attention, Inputs, Projected
from headwise.heads.standard_weights import FromStandardWeights


class OverHeads(FromStandardWeights, Attention):
    """An attention that can do without projections, over heads that have read already.

    Attributes:
        heads_are_given: whether another module's heads have read already, see `over_heads`.
        needs_queries: whether it decides by the queries of the heads.
    """

    heads_are_given: bool = False
    needs_queries: bool = False

    @classmethod
    def over_heads(
        cls,
        embed_dim: int,
        num_heads: int,
        head_dim: int,
        *,
        neutral: bool = True,
        **options: Any,
    ) -> Self:
        """Returns the system over heads that another module computes, without projections.

        It is called with what these heads have read as `value`, `(batch, queries, num_heads *
        head_dim)`, and gives back in the same shape what the other module's output projection is to
        take instead. A system that `needs_queries` is also called with the queries of the heads as
        `key`, in that shape too.

        Args:
            embed_dim: width of the query: of the input of the layer that the heads are in.
            num_heads, head_dim: sizes of the heads.
            neutral: whether it has to give back what it is given until it is trained. If not, it
                starts as its constructor says.
            options: further arguments of the constructor.

        Raises:
            ValueError: a subclass that cannot start so.

        >>> import headwise as hw, torch
        >>> nothing = hw.MultiHeadAttention.over_heads(embed_dim=16, num_heads=2, head_dim=3)
        >>> x, read = torch.randn(2, 5, 16), torch.randn(2, 5, 6)
        >>> bool((nothing(x, value=read).output == read).all()), len(list(nothing.parameters()))
        (True, 0)
        """
        defaults = cls.defaults_over_heads(num_heads, options, neutral=neutral)
        made = cls(embed_dim, num_heads, head_dim=head_dim, **{**defaults, **options})
        if neutral:
            made.start_neutral()
        made.heads_are_given = True
        made.vdim = num_heads * head_dim
        made.kdim = made.vdim if made.needs_queries else made.kdim
        for name in ("q_proj", "k_proj", "v_proj"):
            made.register_module(name, None)
        made.register_module("out_proj", nn.Identity())
        return made

    @classmethod
    def defaults_over_heads(
        cls, num_heads: int, options: Mapping[str, Any], *, neutral: bool
    ) -> dict[str, Any]:
        """Returns the options that `over_heads` adds to those that it is given, which win."""
        return {}

    def project(self, inputs: Inputs) -> Projected:
        if not self.heads_are_given:
            return super().project(inputs)
        read = self._by_head(inputs.value)
        return Projected(self._by_head(inputs.key) if self.needs_queries else read, read, read)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        return v if self.heads_are_given else super().attend(q, k, v, mask, is_causal)
