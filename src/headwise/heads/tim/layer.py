"""Independent mechanisms: a layer in parts that compete for positions and exchange little."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Self

from headwise.heads.attention import key_heads
from headwise.heads.cache import AttentionCache
from headwise.heads.system import AttentionOutput, Macs, Place, Routing, System
from headwise.heads.tim.declared import (
    ABLATIONS,
    PRESETS,
    WORDS,
    Competing,
    check_division,
    check_memory,
    exchange_width,
)
from headwise.heads.tim.mechanisms import (
    MechanismAttention,
    MechanismExchange,
    MechanismNorm,
    add_maps,
    glorot_uniform,
    grouped_feed_forward,
    grouped_linear,
    zeros,
)
from headwise.ops.activations import Activation, hidden_width
from headwise.ops.bounds import checked
from headwise.ops.masks import of_queries, padding_positions
from headwise.ops.norms import NormKind
from headwise.ops.rotary import Rotary
from headwise.ops.shapes import check_sequences


class IndependentMechanismsLayer(System):
    """A transformer layer divided into mechanisms, each with a share of its width and parameters.

    Lamb et al. 2021, *Transformers with Competitive Ensembles of Independent Mechanisms*,
    https://arxiv.org/abs/2103.00336 (TIM). With h of width n_s · d_mech and all maps W grouped
    (mechanism j maps its own d_mech channels by its own W_j), algorithm 1 is

        c = softmax(h W^c), over mechanisms, at each position              competition
        h = norm₁(h + c ⊙ Attention(h W₂^Q, h W₂^K, h W₂^V) W₂^O)          self-attention
        h = norm₂(h + Exchange(h W₃^Q, h W₃^K, h W₃^V) W₃^O)               exchange
        h = norm₃(h + ReLU(h W⁽¹⁾) W⁽²⁾)                                   feed-forward

    Norms are of each mechanism by itself. In self-attention mechanisms are what heads are, each
    with `num_heads / num_mechanisms` of its own. The exchange attends over the mechanisms of one
    position, and is the only way from one mechanism to another. There are no biases unless `bias`
    asks for them. One mechanism without competition and exchange is an ordinary layer.

    What the paper leaves open (docs/readings.md): logits are divided by √head_dim, in the exchange
    too. Pre-norm puts each norm before its sub-layer, and competition is still computed from h. A
    decoder's layer attends over the encoder's output m between self-attention and exchange:

        h = norm(h + Attention(h W^Q, m W^K, m W^V) W^O),  its norm named cross_norm

    where mechanism j reads its own share of m, not scaled by c. Competition starts from the weights
    that an `nn.Linear(d_mech, 1)` would have; other maps are drawn as Glorot's for one mechanism.
    The paper keeps the first two layers of a model and the last standard.

    Args:
        embed_dim: width of the input and of the output, of all mechanisms together.
        num_heads: heads of all mechanisms together; divisible by `num_mechanisms`.
        ffn_dim: hidden width of the feed-forward, of all mechanisms together.
        num_mechanisms: n_s; divides all of these.
        competition: False leaves c out, as in the paper's TIM-NoComp.
        competition_input: with pre-norm, what c is computed from: the `"stream"` or the
            `"normalised"` stream.
        exchange_heads: heads of the exchange; 0 for no exchange.
        exchange_head_dim: width of each; if not given, what makes all of them together an eighth of
            a mechanism's width, as in the paper's BERT, from 4 to 32 (`presets["paper"]`).
        head_dim: width of a head in attention; `embed_dim // num_heads` if not given.
        bias: whether maps have one, but that of the competition.
        cross_attention: whether it is a decoder's layer, which attends over a memory too.
        kdim: width of the memory; `embed_dim` if not given.
        norm: `"post"`, after each residual sum, or `"pre"`, before each sub-layer. Behind the last
            pre-norm layer the model adds a norm.
        dropout: of attention weights, the exchange's too.
        residual_dropout: of each sub-layer's output.
        ffn_dropout: behind the activation of the feed-forward.
        ffn_activation: what stands in the place of the ReLU of the feed-forward; see
            `headwise.ops.activations`. With `"swiglu"` and `"geglu"` W⁽¹⁾ is twice as wide.
        num_key_value_heads: heads of keys and values of all mechanisms together, each for as many
            heads of its mechanism; `num_heads` if not given.
        qk_norm: as in `MultiHeadAttention`, with scales of each mechanism's own.
        norm_kind, norm_eps: `"layer"` norms or `"rms"`, and their ε.

    Shape:
        x `(batch, time, embed_dim)`; memory `(batch, keys, kdim)`; output
        `(batch, time, embed_dim)`. `routing.weights` is c, `(batch, time, num_mechanisms)`;
        without competition `routing` is None. Attention weights are those of self-attention,
        `(batch, num_heads, time, time)`, the heads of the first mechanism first.

    Raises:
        ValueError: sizes that `num_mechanisms` does not divide; a memory missing or unexpected.

    Example:
        >>> layer = IndependentMechanismsLayer(32, num_heads=4, ffn_dim=64, num_mechanisms=2)
        >>> out = layer(torch.randn(2, 5, 32), is_causal=True)
        >>> out.output.shape, out.routing.weights.shape
        (torch.Size([2, 5, 32]), torch.Size([2, 5, 2]))
    """

    replaces = "layer"
    default_layers = "middle"
    routing_parameters = ("competition_weight", "exchange.")
    costed_parts = ("exchange",)
    output_parameters = ("self_attention.out_weight", "cross_attention.out_weight")
    no_decay = (
        *("norm1.", "norm2.", "norm3.", "cross_norm."),
        *("self_attention.q_norm.", "self_attention.k_norm."),
        *("cross_attention.q_norm.", "cross_attention.k_norm."),
    )
    ablations = ABLATIONS
    presets = PRESETS
    unlike_standard = (
        "it takes the place of a whole layer, in which each mechanism reads its own share of the "
        "input alone"
    )
    words = WORDS
    shown = ("embed_dim", "num_heads", "ffn_dim", "num_mechanisms", "pre_norm")

    ffn_up_weight: nn.Parameter  # (mechanisms, in, out)
    ffn_down_weight: nn.Parameter
    ffn_up_bias: nn.Parameter | None  # (mechanisms, out)
    ffn_down_bias: nn.Parameter | None

    @checked
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        ffn_dim: int,
        num_mechanisms: int,
        *,
        competition: bool = True,
        competition_input: Literal["stream", "normalised"] = "stream",
        exchange_heads: int = 2,
        exchange_head_dim: int | None = None,
        head_dim: int | None = None,
        bias: bool = False,
        cross_attention: bool = False,
        kdim: int | None = None,
        norm: Literal["post", "pre"] = "post",
        dropout: float = 0.0,
        residual_dropout: float = 0.0,
        ffn_dropout: float = 0.0,
        ffn_activation: Activation = "relu",
        num_key_value_heads: int | None = None,
        qk_norm: bool = False,
        norm_kind: NormKind = "layer",
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        if kdim is not None and not cross_attention:
            raise ValueError(
                f"kdim is {kdim}, the width of a memory that the layer does not read; leave it "
                f"out, or build the layer with cross_attention=True"
            )
        self.kdim = embed_dim if kdim is None else kdim
        sizes = {"embed_dim": embed_dim, "num_heads": num_heads, "ffn_dim": ffn_dim}
        sizes["num_key_value_heads"] = key_heads(num_heads, num_key_value_heads)
        check_division(num_mechanisms, **sizes, kdim=self.kdim)
        n_s, d_mech, d_ffn = num_mechanisms, embed_dim // num_mechanisms, ffn_dim // num_mechanisms
        exchange_dim = exchange_width(exchange_head_dim, exchange_heads, d_mech)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.ffn_dim = ffn_dim
        self.num_mechanisms = num_mechanisms
        self.pre_norm = norm == "pre"
        self.competition_input = competition_input
        self.residual_dropout = residual_dropout
        self.ffn_dropout = ffn_dropout
        self.ffn_activation = ffn_activation

        self.competition_weight = nn.Parameter(torch.empty(n_s, d_mech, 1)) if competition else None
        how: dict[str, Any] = {"head_dim": head_dim, "dropout": dropout, "bias": bias}
        how |= {"num_key_value_heads": num_key_value_heads}
        how |= {"qk_norm": qk_norm, "norm_eps": norm_eps}
        norms: Any = (n_s, d_mech, norm_kind, norm_eps)
        self.self_attention = MechanismAttention(embed_dim, num_heads, n_s, **how)
        self.norm1 = MechanismNorm(*norms)
        self.cross_attention = self.cross_norm = self.exchange = self.norm2 = None
        if cross_attention:
            how["kdim"] = self.kdim
            self.cross_attention = MechanismAttention(embed_dim, num_heads, n_s, **how)
            self.cross_norm = MechanismNorm(*norms)
        if exchange_heads:
            self.exchange = MechanismExchange(
                n_s, d_mech, exchange_heads, exchange_dim, dropout, bias
            )
            self.norm2 = MechanismNorm(*norms)
        hidden = hidden_width(ffn_activation, d_ffn)
        add_maps(self, n_s, {"ffn_up": (d_mech, hidden), "ffn_down": (d_ffn, d_mech)}, bias)
        self.norm3 = MechanismNorm(*norms)
        self.reset_parameters()

    @classmethod
    def from_plan(cls, place: Place, **options: Any) -> Self:
        given: dict[str, Any] = {
            "num_heads": place.num_heads,
            "ffn_dim": place.ffn_dim,
            "num_mechanisms": 2,
            "cross_attention": place.cross_attention,
            "norm": place.norm,
            "dropout": place.attention_dropout,
            "residual_dropout": place.dropout,
            "ffn_dropout": place.ffn_dropout,
            "ffn_activation": place.ffn_activation,
            "norm_kind": place.norm_kind,
            "norm_eps": place.norm_eps,
            **place.projections(),
        }
        given["bias"] = False  # but for a plan that asks for biases
        return cls(place.embed_dim, **{**given, **options})

    def reset_parameters(self) -> None:
        """Draw all parameters afresh."""
        if self.competition_weight is not None:
            bound = self.competition_weight.size(1) ** -0.5
            nn.init.uniform_(self.competition_weight, -bound, bound)
        for weight in (self.ffn_up_weight, self.ffn_down_weight):
            glorot_uniform(weight)
        zeros(self.ffn_up_bias, self.ffn_down_bias)
        for part in self.children():
            if isinstance(part, (MechanismAttention, MechanismExchange, MechanismNorm)):
                part.reset_parameters()

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        memory_key_padding_mask: Tensor | None = None,
        query_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        average_attn_weights: bool = False,
        cache: AttentionCache | None = None,
        cross_cache: AttentionCache | None = None,
        rotary: Rotary | None = None,
    ) -> AttentionOutput:
        """The whole layer, residual sums and norms included.

        Args:
            x: `(batch, time, embed_dim)`.
            memory: the encoder's output, `(batch, keys, kdim)`; with `cross_attention` only.
            key_padding_mask, attn_mask, is_causal: of self-attention, as in `MultiHeadAttention`;
                its heads are those of the first mechanism, then those of the second, and so on.
            memory_key_padding_mask: `(batch, keys)`; boolean `True` is padding and is not
                attended, a float mask is added.
            query_padding_mask: `(batch, time)`, `True` at padding, which `routing` then marks.
            need_weights, average_attn_weights: as in `MultiHeadAttention`, of self-attention.
            cache: of self-attention, for decoding step by step.
            cross_cache: of cross-attention, a static one.
            rotary: the turns of the positions, for the self-attention of each mechanism.
        """
        check_sequences("x", x, self.embed_dim)
        check_memory(self, x.size(0), memory, memory_key_padding_mask, cross_cache)
        offset = 0 if cache is None else cache.get_seq_length()
        h = self._before(self.norm1, x)
        competition = self._compete(x if self.competition_input == "stream" else h)
        read = self.self_attention(
            h,
            key_padding_mask=key_padding_mask,
            attn_mask=attn_mask,
            is_causal=is_causal,
            need_weights=need_weights,
            average_attn_weights=average_attn_weights,
            query_padding_mask=query_padding_mask,
            cache=cache,
            rotary=rotary,
        )
        update = read.output
        if competition is not None:
            update = self._by_mechanism(update) * competition.to(update.dtype).unsqueeze(-1)
        x = self._after(self.norm1, x, update.flatten(2, -1))
        if query_padding_mask is None and key_padding_mask is not None:
            query_padding_mask = of_queries(key_padding_mask, offset, x.size(1))

        if self.cross_attention is not None and self.cross_norm is not None:
            of_memory = self.cross_attention(
                self._before(self.cross_norm, x),
                memory,
                key_padding_mask=memory_key_padding_mask,
                query_padding_mask=query_padding_mask,
                cache=cross_cache,
            )
            x = self._after(self.cross_norm, x, of_memory.output)

        if self.exchange is not None and self.norm2 is not None:
            x = self._after(self.norm2, x, self.exchange(self._before(self.norm2, x)))

        update = grouped_feed_forward(
            self._before(self.norm3, x),
            self.ffn_up_weight,
            self.ffn_down_weight,
            self.ffn_up_bias,
            self.ffn_down_bias,
            dropout=self.ffn_dropout if self.training else 0.0,
            activation=self.ffn_activation,
        )
        x = self._after(self.norm3, x, update)
        routing = None
        if competition is not None:
            routing = Routing(competition, padding=padding_positions(query_padding_mask))
        return AttentionOutput(x, read.weights, routing)

    def unit_of_head(self) -> list[int]:
        return [head * self.num_mechanisms // self.num_heads for head in range(self.num_heads)]

    def key_size(self) -> tuple[int, int] | None:
        return self.self_attention.key_size()

    def ablation_ranges(self) -> dict[str, range]:
        return {"mechanism": range(self.num_mechanisms)}

    def macs(self, queries: int, keys: int, *, is_causal: bool = False) -> Macs:
        """Counts the multiply-accumulates of one sequence.

        `keys` are those of the memory, or in an encoder's layer the `queries` themselves.
        """
        total = self.self_attention.macs(queries, queries, is_causal=is_causal)
        if self.cross_attention is not None:
            total += self.cross_attention.macs(queries, keys)
        if self.exchange is not None:
            total += self.exchange.macs(queries)
        weights = self.ffn_up_weight.numel() + self.ffn_down_weight.numel()
        if self.competition_weight is not None:
            weights += self.competition_weight.numel()
        return total + Macs(queries * weights, 0)

    def _compete(self, h: Tensor) -> Tensor | None:
        """c, `(batch, time, mechanisms)`."""
        if self.competition_weight is None:
            return None
        logits = grouped_linear(h, self.competition_weight)
        # Float32 at least: weights that are to sum to 1 want more digits than bf16 has.
        competition = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        ablation = self._ablation()
        return competition if ablation is None else ablation.competition(competition)

    def _ablation(self) -> Competing | None:
        return None if self.training else self.ablation

    def _by_mechanism(self, x: Tensor) -> Tensor:
        """`(batch, time, embed_dim)` to `(batch, time, mechanisms, width)`."""
        return x.unflatten(-1, (self.num_mechanisms, -1))

    def _before(self, norm: nn.Module, x: Tensor) -> Tensor:
        return norm(x) if self.pre_norm else x

    def _after(self, norm: nn.Module, x: Tensor, update: Tensor) -> Tensor:
        ablation = self._ablation()
        if ablation is not None:
            update = ablation.updates(self._by_mechanism(update)).flatten(-2)
        total = x + F.dropout(update, self.residual_dropout, self.training)
        return total if self.pre_norm else norm(total)
