"""Independent mechanisms (TIM): a layer in parts that compete for positions and exchange little.

The layer comes first, then its modules. The channels of a mechanism stand side by side in the last
dimension, as those of a head, so that residual sums and dropout need no reshaping.
"""

from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.heads.ablation import ablations_of
from headwise.heads.attention import Attention, AttentionInputs
from headwise.heads.cache import AttentionCache
from headwise.heads.masks import boolean_mask
from headwise.heads.system import AttentionOutput, Routing, System
from headwise.messages import check_choice
from headwise.ops.layers import ACTIVATIONS, Activation, NormKind, at_least_float32, hidden_width
from headwise.ops.rotary import Rotary


class IndependentMechanismsLayer(System):
    """A transformer layer divided into mechanisms, each with a share of its width and parameters.

    Lamb et al. 2021, *Transformers with Competitive Ensembles of Independent Mechanisms*,
    https://arxiv.org/abs/2103.00336 (TIM). With h of width n_s · d_mech and all maps W grouped
    (mechanism j maps its own d_mech channels by its own W_j), algorithm 1 is

        c = softmax(h W^c), over mechanisms, at each position              competition
        h = norm₁(h + c ⊙ Attention(h W₂^Q, h W₂^K, h W₂^V) W₂^O)          self-attention
        h = norm₂(h + Exchange(h W₃^Q, h W₃^K, h W₃^V) W₃^O)               exchange
        h = norm₃(h + ReLU(h W⁽¹⁾) W⁽²⁾)                                   feed-forward

    Norms are of each mechanism by itself. In self-attention each mechanism has
    `num_heads / num_mechanisms` heads of its own. The exchange attends over the mechanisms of one
    position, and is the only way from one mechanism to another. There are no biases unless `bias`
    asks for them. One mechanism without competition and exchange is an ordinary layer.

    The paper leaves some choices open (docs/systems.md). Logits are divided by √head_dim, in the
    exchange too. Pre-norm puts each norm before its sub-layer, and competition is still computed
    from h. A decoder's layer attends over the encoder's output m before the exchange:

        h = norm(h + Attention(h W^Q, m W^K, m W^V) W^O),  its norm named cross_norm

    where mechanism j reads its own share of m, not scaled by c. Competition starts from the weights
    that an `nn.Linear(d_mech, 1)` would have; other maps are drawn as Glorot's for one mechanism.
    The paper keeps the first two layers of a model and the last standard.

    A mechanism that an ablation leaves out adds nothing to its channels, in any sub-layer, and the
    others compete without it. In the exchange they still read its channels.

    Args:
        embed_dim: width of the input and of the output, of all mechanisms together.
        num_heads: heads of all mechanisms together; divisible by `num_mechanisms`.
        ffn_dim: hidden width of the feed-forward, of all mechanisms together.
        num_mechanisms: n_s; divides all of these.
        competition: False leaves c out, as in the paper's TIM-NoComp.
        exchange_heads: heads of the exchange; 0 for no exchange.
        exchange_head_dim: width of each; by default from 4 to 32, such that all of them together
            are an eighth of a mechanism, as in the paper's BERT (`presets["paper"]`: 32).
        head_dim: width of a head in attention; `embed_dim // num_heads` if not given.
        num_key_value_heads: heads of keys and values of all mechanisms together, each for as many
            heads of its mechanism; `num_heads` if not given.
        kdim: width of the memory; `embed_dim` if not given.
        bias: whether maps have one, but that of the competition.
        cross_attention: whether it is a decoder's layer, which attends over a memory too.
        norm: `"post"`, after each residual sum, or `"pre"`, before each sub-layer. Behind the last
            pre-norm layer the model adds a norm.
        dropout: of attention weights, the exchange's too.
        residual_dropout: of each sub-layer's output.
        ffn_dropout: behind the activation of the feed-forward.
        ffn_activation: the activation in the place of the ReLU; see `headwise.ops.layers`. With
            `"swiglu"` and `"geglu"` W⁽¹⁾ is twice as wide.
        qk_norm: as in `MultiHeadAttention`, in self-attention and cross-attention.
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
    layers = "middle"
    routing_parameters = ("competition.", "exchange.")
    output_parameters = ("self_attention.out_proj.", "cross_attention.out_proj.")
    no_decay = ("norm1.", "norm2.", "norm3.", "cross_norm.")
    presets: ClassVar[dict[str, dict[str, Any]]] = {"paper": {"exchange_head_dim": 32}}
    unit = "mechanism"
    supported_ablations = ablations_of("mechanism", heads=False)
    holds_residual = True

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        ffn_dim: int,
        num_mechanisms: int,
        *,
        competition: bool = True,
        exchange_heads: int = 2,
        exchange_head_dim: int | None = None,
        head_dim: int | None = None,
        num_key_value_heads: int | None = None,
        kdim: int | None = None,
        bias: bool = False,
        cross_attention: bool = False,
        norm: Literal["post", "pre"] = "post",
        dropout: float = 0.0,
        residual_dropout: float = 0.0,
        ffn_dropout: float = 0.0,
        ffn_activation: Activation = "relu",
        qk_norm: bool = False,
        norm_kind: NormKind = "layer",
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        check_choice("norm", norm, ("post", "pre"))
        check_choice("norm_kind", norm_kind, ("layer", "rms"))
        check_choice("bias", bias, (True, False))
        check_choice("ffn_activation", ffn_activation, ACTIVATIONS)
        if kdim is not None and not cross_attention:
            raise ValueError(f"kdim is {kdim}, but no memory is read unless cross_attention=True")
        self.kdim = embed_dim if kdim is None else kdim
        sizes = {"embed_dim": embed_dim, "num_heads": num_heads, "ffn_dim": ffn_dim}
        sizes |= {"kdim": self.kdim, "num_key_value_heads": num_key_value_heads or num_heads}
        for name, size in sizes.items():
            if num_mechanisms < 1 or size % num_mechanisms:
                raise ValueError(
                    f"{name} is {size}, expected a multiple of num_mechanisms = {num_mechanisms}, "
                    f"since all mechanisms have equal shares; choose sizes that divide"
                )
        self.embed_dim, self.num_heads, self.ffn_dim = embed_dim, num_heads, ffn_dim
        self.num_mechanisms, self.pre_norm = num_mechanisms, norm == "pre"
        self.residual_dropout, self.ffn_dropout = residual_dropout, ffn_dropout
        self.ffn_activation = ffn_activation
        n_s, d_mech, d_ffn = num_mechanisms, embed_dim // num_mechanisms, ffn_dim // num_mechanisms

        def make_mechanism_norm() -> MechanismNorm:
            return MechanismNorm(n_s, d_mech, norm_kind, norm_eps)

        options: dict[str, Any] = {"head_dim": head_dim, "num_key_value_heads": num_key_value_heads}
        options |= {"dropout": dropout, "bias": bias, "qk_norm": qk_norm, "norm_eps": norm_eps}
        self.self_attention = MechanismAttention(embed_dim, num_heads, n_s, **options)
        self.norm1 = make_mechanism_norm()
        self.competition = self.cross_attention = self.cross_norm = self.exchange = None
        if competition:
            # The gain makes of Glorot's bound that of nn.Linear.
            gain = ((d_mech + 1) / (6 * d_mech)) ** 0.5
            self.competition = GroupedLinear(n_s, d_mech, 1, bias=False, gain=gain)
        else:
            self.supported_ablations = ("without-mechanism", "only-mechanism")  # type: ignore[misc]
        if cross_attention:
            options["kdim"] = self.kdim
            self.cross_attention = MechanismAttention(embed_dim, num_heads, n_s, **options)
            self.cross_attention.site = "decoder_cross"
            self.cross_norm = make_mechanism_norm()
        if exchange_heads:
            if exchange_head_dim is None:
                exchange_head_dim = min(max(4, d_mech // (8 * exchange_heads)), 32)
            self.exchange = MechanismExchange(
                n_s, d_mech, exchange_heads, exchange_head_dim, dropout, bias
            )
            self.norm2 = make_mechanism_norm()
        hidden = hidden_width(ffn_activation, d_ffn)
        self.ffn_up = GroupedLinear(n_s, d_mech, hidden, bias)
        self.ffn_down = GroupedLinear(n_s, d_ffn, d_mech, bias)
        self.norm3 = make_mechanism_norm()

    @classmethod
    def from_config(cls, config: Any, site: str, **options: Any) -> Self:
        defaults = config.layer_options() | {
            "bias": False,  # also in models with biases, but for a plan that asks for them
            "num_mechanisms": 2,
            "cross_attention": site == "decoder_self" and "decoder_cross" in config.depths(),
        }
        return cls(config.embed_dim, **{**defaults, **options})

    @property
    def num_units(self) -> int:
        return self.num_mechanisms

    def place(self, site: str, layer: int) -> None:
        super().place(site, layer)
        self.self_attention.place(site, layer)
        if self.cross_attention is not None:
            self.cross_attention.place("decoder_cross", layer)

    def reset_parameters(self) -> None:
        for module in self.modules():
            if isinstance(module, (GroupedLinear, MechanismNorm, nn.RMSNorm)):
                module.reset_parameters()

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
        """Computes the whole layer, with its residual sums and norms.

        Args:
            x: `(batch, time, embed_dim)`.
            memory: the encoder's output, `(batch, keys, kdim)`; with `cross_attention` only.
            memory_key_padding_mask: `(batch, keys)`; boolean `True` is padding and is not
                attended, a float mask is added.
            cross_cache: of cross-attention, a static one.
            key_padding_mask, attn_mask, is_causal, query_padding_mask, need_weights,
                average_attn_weights, cache, rotary: of self-attention, as in `Attention.forward`.
        """
        reads_memory = self.cross_attention is not None
        if reads_memory != (memory is not None):
            raise ValueError(
                f"memory is {'None' if memory is None else 'given'}, but the layer was built with "
                f"cross_attention={reads_memory}: True takes a memory in each call, False none"
            )
        if query_padding_mask is None and key_padding_mask is not None:
            # With a cache the queries are the last of the keys.
            query_padding_mask = key_padding_mask[:, key_padding_mask.size(1) - x.size(1) :]
        attended = self.self_attention(
            self._sublayer_input(self.norm1, x),
            key_padding_mask=key_padding_mask,
            attn_mask=attn_mask,
            is_causal=is_causal,
            need_weights=need_weights,
            average_attn_weights=average_attn_weights,
            query_padding_mask=query_padding_mask,
            cache=cache,
            rotary=rotary,
        )
        update, competition = attended.output, self._compete(x)
        if competition is not None:
            update = update.unflatten(-1, (self.num_mechanisms, -1))
            update = (update * competition.to(update.dtype).unsqueeze(-1)).flatten(-2)
        x = self._residual_sum(self.norm1, x, update)
        if self.cross_attention is not None:
            update = self.cross_attention(
                self._sublayer_input(self.cross_norm, x),
                memory,
                key_padding_mask=memory_key_padding_mask,
                query_padding_mask=query_padding_mask,
                cache=cross_cache,
            ).output
            x = self._residual_sum(self.cross_norm, x, update)
        if self.exchange is not None:
            update = self.exchange(self._sublayer_input(self.norm2, x))
            x = self._residual_sum(self.norm2, x, update)
        update = self._feed_forward(self._sublayer_input(self.norm3, x))
        x = self._residual_sum(self.norm3, x, update)
        routing = None
        if competition is not None:
            padding = None if query_padding_mask is None else boolean_mask(query_padding_mask)
            routing = Routing(competition, padding=padding)
        return AttentionOutput(x, attended.weights, routing)

    def _compete(self, x: Tensor) -> Tensor | None:
        """c, `(batch, time, mechanisms)`."""
        if self.competition is None:
            return None
        logits = self.competition(x)
        # Weights that are to sum to 1 want more digits than bf16 has.
        return self.ablate_weights(at_least_float32(logits).softmax(-1))

    def _feed_forward(self, x: Tensor) -> Tensor:
        # The hidden layer, the widest tensor of a layer, stays divided.
        hidden = self.ffn_up.by_group(group_channels(x, self.num_mechanisms))
        hidden = ACTIVATIONS[self.ffn_activation](hidden)
        hidden = F.dropout(hidden, self.ffn_dropout, self.training)
        return ungroup_channels(self.ffn_down.by_group(hidden), x)

    def _sublayer_input(self, norm: Any, x: Tensor) -> Tensor:
        return norm(x) if self.pre_norm else x

    def _residual_sum(self, norm: Any, x: Tensor, update: Tensor) -> Tensor:
        for ablation in self.active_ablations:
            if ablation.units:
                mask = ablation.unit_mask(self.num_mechanisms, update.device).to(update)
                update = update * mask.repeat_interleave(update.size(-1) // self.num_mechanisms)
        total = x + F.dropout(update, self.residual_dropout, self.training)
        return total if self.pre_norm else norm(total)


TIM = IndependentMechanismsLayer  # the name that papers and tables use


class MechanismAttention(Attention):
    """Attention of each mechanism by itself: the heads of a mechanism see its channels only.

    The arguments are those of `MultiHeadAttention`, of all mechanisms together; values are as wide
    as keys. `num_mechanisms` divides `embed_dim`, both numbers of heads, and `kdim`.
    """

    output_parameters = ("out_proj.",)

    def __init__(
        self, embed_dim: int, num_heads: int, num_mechanisms: int, *, bias: bool, **options: Any
    ) -> None:
        super().__init__(
            embed_dim, num_heads, **options, vdim=options.get("kdim"), bias=bias, dense=False
        )
        d_mech, d_key = embed_dim // num_mechanisms, self.kdim // num_mechanisms
        d_heads = num_heads * self.head_dim // num_mechanisms
        d_kv = self.num_key_value_heads * self.head_dim // num_mechanisms
        gain = 2**-0.5  # as where nn.MultiheadAttention draws the three as one matrix
        self.q_proj: Any = GroupedLinear(num_mechanisms, d_mech, d_heads, bias, gain)
        self.k_proj: Any = GroupedLinear(num_mechanisms, d_key, d_kv, bias, gain)
        self.v_proj: Any = GroupedLinear(num_mechanisms, d_key, d_kv, bias, gain)
        self.out_proj = GroupedLinear(num_mechanisms, d_heads, d_mech, bias)

    def reset_parameters(self) -> None:
        for module in self.children():
            module.reset_parameters()  # type: ignore[operator]

    def combine(self, heads: Tensor, inputs: AttentionInputs, state: Any) -> tuple[Tensor, None]:
        return self.out_proj(heads.transpose(1, 2).flatten(2)), None


class MechanismExchange(nn.Module):
    """Attention over the mechanisms of one position, every position by itself.

    oᵢ = Σⱼ softmaxⱼ(qᵢ kⱼᵀ / √head_dim) vⱼ,  for mechanisms i and j and each head
    """

    def __init__(
        self,
        num_mechanisms: int,
        mechanism_dim: int,
        num_heads: int,
        head_dim: int,
        dropout: float,
        bias: bool,
    ) -> None:
        super().__init__()
        self.num_mechanisms, self.num_heads, self.dropout = num_mechanisms, num_heads, dropout
        width = num_heads * head_dim
        self.q_proj = GroupedLinear(num_mechanisms, mechanism_dim, width, bias)
        self.k_proj = GroupedLinear(num_mechanisms, mechanism_dim, width, bias)
        self.v_proj = GroupedLinear(num_mechanisms, mechanism_dim, width, bias)
        self.out_proj = GroupedLinear(num_mechanisms, width, mechanism_dim, bias)

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, time, embed_dim)` to the same."""
        grouped = group_channels(x, self.num_mechanisms)
        projections = (self.q_proj, self.k_proj, self.v_proj)
        by_head = (p.by_group(grouped).unflatten(-1, (self.num_heads, -1)) for p in projections)
        # Each (positions, heads, mechanisms, head_dim).
        q, k, v = (y.permute(1, 2, 0, 3) for y in by_head)
        # (mechanisms, positions, heads * head_dim)
        heads = self._attend(q, k, v).permute(2, 0, 1, 3).flatten(2)
        return ungroup_channels(self.out_proj.by_group(heads), x)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """All are `(positions, heads, mechanisms, head_dim)`."""
        dropout = self.dropout if self.training else 0.0
        # The products are tiny and many: plain ones take a third of the time of PyTorch's kernel,
        # but for a few positions without gradients, as in decoding step by step.
        if not (torch.is_grad_enabled() or torch.compiler.is_compiling()) and q.size(0) <= 256:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        logits = q / q.size(-1) ** 0.5 @ k.transpose(-2, -1)
        return F.dropout(logits.softmax(-1), dropout).to(v.dtype) @ v


class GroupedLinear(nn.Module):
    """A linear map of each group of channels: `y_j = x_j W_j + b_j`, the paper's GroupLinear.

    Args:
        groups: number of groups, which stand side by side.
        in_dim, out_dim: width of each.
        bias: whether there is a b.
        gain: factor of Glorot's bound, the bound of one group's map, when maps are drawn.

    Shape:
        x `(..., groups * in_dim)` to `(..., groups * out_dim)`; W `(groups, in_dim, out_dim)`.

    Example:
        >>> GroupedLinear(2, 3, 5, bias=False)(torch.randn(4, 6)).shape
        torch.Size([4, 10])
    """

    def __init__(
        self, groups: int, in_dim: int, out_dim: int, bias: bool, gain: float = 1.0
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(groups, in_dim, out_dim))
        self.bias = nn.Parameter(torch.empty(groups, out_dim)) if bias else None
        self.gain = gain
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the maps afresh, each as if it were alone, and sets biases to 0."""
        _, in_dim, out_dim = self.weight.shape
        bound = self.gain * (6 / (in_dim + out_dim)) ** 0.5
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return ungroup_channels(self.by_group(group_channels(x, self.weight.size(0))), x)

    def by_group(self, x: Tensor) -> Tensor:
        """`(groups, rows, in_dim)` to `(groups, rows, out_dim)`."""
        if self.bias is None:
            return torch.bmm(x, self.weight)
        return torch.baddbmm(self.bias.unsqueeze(1), x, self.weight)


class MechanismNorm(nn.Module):
    """Norm of each mechanism by itself, a layer norm or one by the root mean square."""

    def __init__(self, num_mechanisms: int, mechanism_dim: int, kind: NormKind, eps: float) -> None:
        super().__init__()
        shape = (num_mechanisms, mechanism_dim)
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(shape)) if kind == "layer" else None
        self.eps = eps
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the scale to 1 and the shift to 0."""
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, time, embed_dim)` to the same."""
        grouped = x.unflatten(-1, self.weight.shape)
        width = grouped.shape[-1:]
        if self.bias is None:
            return (F.rms_norm(grouped, width, eps=self.eps) * self.weight).to(x.dtype).flatten(-2)
        normed = F.layer_norm(grouped, width, eps=self.eps)
        return torch.addcmul(self.bias, normed, self.weight).to(x.dtype).flatten(-2)


def group_channels(x: Tensor, groups: int) -> Tensor:
    """`(..., groups * width)` to `(groups, rows, width)`, a view if `x` is contiguous."""
    return x.reshape(-1, groups, x.size(-1) // groups).transpose(0, 1)


def ungroup_channels(x: Tensor, like: Tensor) -> Tensor:
    """`(groups, rows, width)` to `(..., groups * width)`, with the rows of `like`."""
    return x.transpose(0, 1).reshape(*like.shape[:-1], x.size(0) * x.size(2))
