"""Encoders and decoders whose attention follows a plan, as Hugging Face models.

Vaswani et al. 2017, *Attention Is All You Need*, https://arxiv.org/abs/1706.03762, with norms after
each residual sum, as published, or before each sub-layer. Learned positions are drawn and scaled as
tokens are, so that the two start equally large, as in Devlin et al. 2018, *BERT*,
https://arxiv.org/abs/1810.04805.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache
from transformers.generation import GenerationConfig, GenerationMixin
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import ModelOutput

from headwise.heads.attention import Attention, MultiHeadAttention, draw_linear
from headwise.heads.cache import AttentionCache
from headwise.heads.system import AttentionOutput, System
from headwise.models.adaptive import AdaptiveEmbedding
from headwise.models.config import TransformerConfig
from headwise.models.plan import LayerSpec, Plan, build_system, system_class
from headwise.ops import IGNORED_LABEL
from headwise.ops.layers import ACTIVATIONS, at_least_float32, hidden_width, make_norm
from headwise.ops.rotary import Rotary


@dataclass
class HeadwiseOutput(ModelOutput):
    """The output of every model. A field is None if the model lacks it or no call asked for it.

    Attributes:
        loss: `token_loss`; in training, `token_loss` plus `auxiliary_loss`. With
            `num_items_in_batch`, the number of labels of several batches together, the auxiliary
            loss counts by this batch's share of the labels.
        logits: the predictions of the model.
        last_hidden_state: of the last stack, `(batch, time, embed_dim)`.
        token_loss: the loss of the task: the sum over all labels that are not -100, divided by
            `num_items_in_batch`, or by their number.
        auxiliary_loss: the sum of the losses that systems add; None where no gradients are enabled,
            since pipelines expect a row for each item. `headwise.auxiliary_loss` has it there too.
        cache: the keys, values and memories of all positions so far.
        hidden_states: the input of the first layer and the output of each layer; the last one
            follows the final norm.
        attentions, cross_attentions: attention weights before dropout, `(batch, heads, queries,
            keys)` for each layer. MoA's are of the heads that each query has chosen. A model with
            an encoder returns hidden states and weights of its decoder; `model.encoder` returns
            those of the encoder.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    last_hidden_state: Tensor | None = None
    token_loss: Tensor | None = None
    auxiliary_loss: Tensor | None = None
    cache: Any = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None


class FeedForward(nn.Module):
    """f(x W₁ + b₁) W₂ + b₂, at each position by itself, where f is an activation.

    Gated activations take both of their maps from W₁, that of the gate first.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width, bias = hidden_width(config.ffn_activation, config.ffn_dim), config.bias is True
        self.ffn_up = nn.Linear(config.embed_dim, width, bias=bias)
        self.ffn_down = nn.Linear(config.ffn_dim, config.embed_dim, bias=bias)
        self.dropout, self.activation = config.ffn_dropout, config.ffn_activation

    def forward(self, x: Tensor) -> Tensor:
        hidden = ACTIVATIONS[self.activation](self.ffn_up(x))
        return self.ffn_down(F.dropout(hidden, self.dropout, self.training))


class Residual(nn.Module):
    """The residual sum around a sub-layer f, with its norm and dropout.

    Post-norm: norm(x + dropout(f(x))). Pre-norm: x + dropout(f(norm(x))).
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = make_norm(config.norm_kind, config.embed_dim, config.norm_eps)
        self.pre_norm, self.dropout = config.norm == "pre", config.dropout

    def before(self, x: Tensor) -> Tensor:
        """The input of the sub-layer."""
        return self.norm(x) if self.pre_norm else x

    def after(self, x: Tensor, update: Tensor) -> Tensor:
        """The residual sum of x and the sub-layer's output."""
        x = x + F.dropout(update, self.dropout, self.training)
        return x if self.pre_norm else self.norm(x)


class Layer(GradientCheckpointingLayer):
    """Self-attention, attention over the encoder's output if there is any, and a feed-forward.

    A system may replace the last of these attentions together with the feed-forward, or all three.

    Args:
        config: the model's.
        specs: the system at each of the layer's sites, in the order of computation.
        index: the number of the layer.
    """

    def __init__(self, config: TransformerConfig, specs: dict[str, LayerSpec], index: int) -> None:
        super().__init__()
        self.system: Any = None  # a system that replaces the whole layer
        self.self_attention: Any = None
        self.cross_attention: Any = None
        self.feed_forward: Any = None
        for site, spec in specs.items():
            system = build_system(spec, config, site, index)
            if system.replaces == "layer":
                self.system = system
                return
            name = "cross_attention" if site == "decoder_cross" else "self_attention"
            setattr(self, name, system)
            setattr(self, f"{name}_residual", None if system.holds_residual else Residual(config))
        if system.replaces == "attention":
            self.feed_forward = FeedForward(config)
            self.feed_forward_residual = Residual(config)

    def forward(
        self, x: Tensor, self_kwargs: dict[str, Any], cross_kwargs: dict[str, Any]
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Returns the output, the losses that systems add, and attention weights if asked for.

        Args:
            self_kwargs, cross_kwargs: arguments of the two attentions, beside `x`.
        """
        if self.system is not None:  # of a whole layer, with arguments of both attentions
            memory_kwargs = {
                _MEMORY_NAMES[key]: arg for key, arg in cross_kwargs.items() if key in _MEMORY_NAMES
            }
            outs = [self.system(x, **self_kwargs, **memory_kwargs)]
            x = outs[0].output
        else:
            x, out = _attend(x, self.self_attention, self.self_attention_residual, self_kwargs)
            outs = [out]
        if self.cross_attention is not None:
            x, out = _attend(x, self.cross_attention, self.cross_attention_residual, cross_kwargs)
            outs.append(out)
        if self.feed_forward is not None:
            residual = self.feed_forward_residual
            x = residual.after(x, self.feed_forward(residual.before(x)))
        routings = [out.routing for out in outs if out.routing is not None]
        losses = [routing.loss for routing in routings if routing.loss is not None]
        return x, losses, [out.weights for out in outs if out.weights is not None]


# Names of arguments for the encoder's output: of a cross-attention, and of a system of a layer.
_MEMORY_NAMES = {
    "key": "memory",
    "key_padding_mask": "memory_key_padding_mask",
    "cache": "cross_cache",
}


def _attend(
    x: Tensor, attention: Any, residual: Any, kwargs: dict[str, Any]
) -> tuple[Tensor, AttentionOutput]:
    if residual is None:  # the system has its own residual sums
        out = attention(x, **kwargs)
        return out.output, out
    out = attention(residual.before(x), **kwargs)
    return residual.after(x, out.output), out


class HeadwiseModel(PreTrainedModel):
    """A transformer whose attention follows the plan of its configuration.

    Its forward returns a `HeadwiseOutput`. A subclass calls `post_init()` at the end of its
    constructor. Arguments of every forward, as far as the model reads tokens or generates them:

    - `input_ids`: tokens, `(batch, time)`.
    - `inputs_embeds`: what `get_input_embeddings()` gives for the tokens, in their place; the model
      scales it as its own.
    - `attention_mask`: 1 at tokens and 0 at padding, which may be on either side, `(batch, time)`;
      behind a cache `(batch, cached + time)`. A token's position is the number of
      tokens before it, padding left out; several texts in one row would see one another.
    - `labels`: what is to be predicted, and -100 where nothing is.
    - `num_items_in_batch`: by what the sum of the labels' losses is divided; by default the number
      of labels that are not -100.
    - `cache`, `use_cache`: the cache of earlier calls in a decoding, to which this call adds; and
      whether to return one, which is new if none is given.
    - `output_attentions`, `output_hidden_states`: whether to return them.
    """

    config: TransformerConfig
    config_class: ClassVar[type[TransformerConfig]]
    base_model_prefix = ""
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _input_embed_layer = "embedding"
    _no_split_modules: ClassVar = ["Layer"]
    _supports_sdpa = True

    def with_attention(self, attention: Plan, *, neutral: bool = True) -> Self:
        """A copy of the model with other systems at its standard attentions.

        The output in evaluation stays the same, up to rounding, until the copy is trained. The copy
        also has the frozen weights and the mode of training of the model; the two share no memory.

        Args:
            attention: the plan of the copy, see `headwise.models.plan`.
            neutral: whether the output has to stay the same. If not, the parameters that systems
                add to those of standard attention start as their constructors say.

        Raises:
            ValueError: the plan does not fit, or replaces a system other than standard attention,
                or a system cannot start from standard attention with the same output.
        """
        advice = (
            "mae, gated, differential and moh alone start from trained attention; build a new "
            "model with this plan"
        )
        name = attention if isinstance(attention, str) else attention.get("system")
        if name and not issubclass(system_class(name), MultiHeadAttention):
            raise ValueError(f"{name} cannot start from a trained model: {advice}")
        model = copy.deepcopy(self)
        config, old_specs = model.config, model.config.layer_specs()
        config.attention = copy.deepcopy(attention)  # type: ignore[assignment]
        new_specs = config.layer_specs()
        for path, old in list(model.named_modules()):
            site, layer = getattr(old, "site", ""), getattr(old, "layer", 0)
            if not site or (spec := new_specs[site][layer]) == old_specs[site][layer]:
                continue
            place = f"attention.{site}, layer {layer}: {spec['system']}"
            new: Any = build_system(spec, config, site, layer)
            if type(old) is not MultiHeadAttention or not isinstance(new, MultiHeadAttention):
                raise ValueError(
                    f"{place} cannot start from a trained {type(old).__name__}: {advice}"
                )
            try:
                new.init_from(old, neutral=neutral)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from error
            model.set_submodule(path, new)
        return model

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Module:
        if isinstance(self.get_input_embeddings(), AdaptiveEmbedding):
            raise NotImplementedError("adaptive embeddings, which have bands, cannot be resized")
        return super().resize_token_embeddings(*args, **kwargs)

    def make_output(
        self,
        states: HeadwiseOutput,
        logits: Tensor,
        total: Tensor | None = None,
        labels: Tensor | None = None,
        num_items: Tensor | int | None = None,
    ) -> HeadwiseOutput:
        """The output of a model, from the output of its last stack.

        Args:
            total: the loss of the task, summed over all labels that are not -100.
            labels, num_items: see `HeadwiseModel`.
        """
        losses: dict[str, Any] = {}
        if total is not None and labels is not None:
            count = (labels != IGNORED_LABEL).sum()
            token_loss = loss = total / (count.clamp(min=1) if num_items is None else num_items)
            if states.auxiliary_loss is not None and self.training:
                # The losses of accumulated batches are summed: each adds its share.
                share = 1.0 if num_items is None else count / num_items
                loss = token_loss + share * states.auxiliary_loss.to(total.device)
            losses = {"loss": loss, "token_loss": token_loss}
        return HeadwiseOutput(**{**states, **losses, "logits": logits})

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Summed over all labels that are not -100, in float32 at least; in training smoothed."""
        logits = at_least_float32(logits).flatten(0, -2)
        labels = labels.flatten()
        smoothing = getattr(self.config, "label_smoothing", 0.0) if self.training else 0.0
        return F.cross_entropy(
            logits, labels, ignore_index=IGNORED_LABEL, reduction="sum", label_smoothing=smoothing
        )

    def _init_weights(self, module: nn.Module) -> None:
        # The functions of nn.init leave weights alone that have been loaded.
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
        elif isinstance(module, (System, AdaptiveEmbedding, nn.LayerNorm, nn.RMSNorm)):
            module.reset_parameters()
        elif isinstance(module, nn.Linear):
            draw_linear(module)

    def _initialize_weights(self, module: nn.Module, *_: Any) -> None:
        # transformers skips modules outside its package whose parameters are all in submodules,
        # such as standard attention.
        super()._initialize_weights(module)

    def _set_gradient_checkpointing(self, enable: bool = True, *args: Any, **kwargs: Any) -> None:
        function = args[0] if args else kwargs.get("gradient_checkpointing_func")
        if getattr(function, "keywords", {}).get("use_reentrant"):
            raise ValueError(
                "use_reentrant is True, expected False: the encoder would learn nothing through "
                "the decoder's layers; leave use_reentrant out"
            )
        super()._set_gradient_checkpointing(enable, *args, **kwargs)


class Stack(HeadwiseModel):
    """Embeddings, positions, layers, and the norm behind them.

    Args:
        config: the configuration of the whole model.
        name: `encoder` or `decoder`; by default the stack of the first site.
        vocab_size: number of tokens; by default as the configuration says. With 0 there are no
            embeddings, and the layers read `inputs_embeds`.
    """

    def __init__(
        self, config: TransformerConfig, name: str | None = None, vocab_size: int | None = None
    ) -> None:
        super().__init__(config)
        name = config.sites[0].split("_")[0] if name is None else name
        self.is_causal = name == "decoder"
        vocab_size = getattr(config, "vocab_size", 0) if vocab_size is None else vocab_size
        width, norm = config.embed_dim, (config.norm_kind, config.embed_dim, config.norm_eps)
        self.embedding: Any = None
        self.positions: Any = None
        if vocab_size and getattr(config, "adaptive_cutoffs", None):
            self.embedding = AdaptiveEmbedding(config)
        elif vocab_size:
            self.embedding = nn.Embedding(vocab_size, width)
        if vocab_size and config.max_positions is not None:
            self.positions = nn.Embedding(config.max_positions, width)
        has_norm = vocab_size and config.embedding_norm
        self.embedding_norm = make_norm(*norm) if has_norm else nn.Identity()
        by_site = {
            s: specs for s, specs in config.layer_specs().items() if s.startswith(f"{name}_")
        }
        self.layers: Any = nn.ModuleList(
            Layer(config, dict(zip(by_site, specs, strict=True)), index)
            for index, specs in enumerate(zip(*by_site.values(), strict=True))
        )
        # With pre-norm nothing has normalised the last residual sum yet.
        self.final_norm = make_norm(*norm) if config.norm == "pre" else nn.Identity()
        # Heads of some systems have a width of their own, and turn at rates of their own.
        default = config.head_dim or width // config.num_heads
        self.widths: list[int] = []
        for layer in self.layers:
            attentions = (module for module in layer.modules() if isinstance(module, Attention))
            self.widths.append(next((attention.head_dim for attention in attentions), default))
        is_rotary = config.positions == "rotary"
        self.rates = {w: config.rotary_rates(w) for w in set(self.widths) if is_rotary}
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: "DecodingCache | None" = None,
        inputs_embeds: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> HeadwiseOutput:
        """Computes hidden states from tokens, or from their embeddings.

        Args:
            encoder_hidden_states: the output of the encoder, `(batch, source time, embed_dim)`.
            encoder_attention_mask: `(batch, source time)`.

        Raises:
            TypeError: an argument is unknown.
        """
        for name, value in kwargs.items():  # transformers passes unknown flags as False or None
            if name != "return_dict" and value is not None and value is not False:
                raise TypeError(f"{name} is not an argument of {type(self).__name__}")
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("of the input ids and inputs_embeds, expected exactly one")
        embeds: Any = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        learns = self.training and torch.is_grad_enabled()
        if cache is not None and learns and any(x.gradient_checkpointing for x in self.layers):
            raise ValueError(
                "a cache is asked for (use_cache) with gradient checkpointing, which computes "
                "layers twice, expected none: leave it out, or switch checkpointing off"
            )
        past_length = 0 if cache is None else cache.get_seq_length()
        padding = padding_mask(attention_mask, embeds, past_length)
        positions = self._positions(embeds, padding, past_length)
        rotary = {width: Rotary(positions, *rates) for width, rates in self.rates.items()}
        # Arguments of the attentions in all layers; there, True is padding.
        self_kwargs: dict[str, Any] = {
            "key_padding_mask": padding,
            "is_causal": self.is_causal,
            "need_weights": output_attentions,
        }
        cross_kwargs: dict[str, Any] = {
            "key": encoder_hidden_states,
            "key_padding_mask": padding_mask(encoder_attention_mask, encoder_hidden_states),
            "query_padding_mask": None if padding is None else padding[:, past_length:],
            "need_weights": output_attentions,
        }
        x = F.dropout(self._add_positions(embeds, positions), self.config.dropout, self.training)
        states, weights = [], []
        losses: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            states.append(x)
            caches = (None, None) if cache is None else cache.layer_caches(index)
            self_kwargs |= {"rotary": rotary.get(self.widths[index]), "cache": caches[0]}
            cross_kwargs["cache"] = caches[1]
            x, layer_losses, layer_weights = layer(
                x, _without_unset(self_kwargs), _without_unset(cross_kwargs)
            )
            losses += layer_losses
            weights.append(layer_weights)
        x = self.final_norm(x)
        auxiliary_loss: Any = None
        if losses and torch.is_grad_enabled():
            auxiliary_loss = sum(loss.to(x.device) for loss in losses)  # of several devices
        return HeadwiseOutput(
            last_hidden_state=x,
            auxiliary_loss=auxiliary_loss,
            cache=cache,
            hidden_states=(*states, x) if output_hidden_states else None,
            attentions=tuple(each[0] for each in weights if each) if output_attentions else None,
            cross_attentions=tuple(each[1] for each in weights if len(each) > 1) or None,
        )

    def _positions(self, embeds: Tensor, padding: Tensor | None, past_length: int) -> Tensor:
        """The positions of tokens, `(time,)` or `(batch, time)`; -1 at padding on the left."""
        end, limit = past_length + embeds.size(1), self.config.max_positions
        positions = torch.arange(past_length, end, device=embeds.device)
        if padding is not None:  # so that padding on the left equals padding on the right
            positions = (~padding).cumsum(1)[:, past_length:] - 1
        # The maximum comes last, since it waits for a GPU.
        if limit and end > limit and positions.numel() and positions.max() >= limit:
            raise ValueError(
                f"a sequence has {int(positions.max()) + 1} tokens, expected at most {limit}: the "
                f"model has that many learned positions (max_positions)"
            )
        return positions

    def _add_positions(self, x: Tensor, positions: Tensor) -> Tensor:
        """Embeddings with sinusoidal or learned positions, scaled and normed."""
        if self.embedding is None:
            return x
        if self.positions is not None:
            x = x + self.positions(positions.clamp(min=0))
        x = x * self.config.embed_dim**0.5 if self.config.scale_embeddings else x
        if self.config.positions == "sinusoidal":
            x = x + sinusoids(positions, x.size(-1)).to(x.dtype)
        return self.embedding_norm(x)


class DecodingCache(Cache):
    """One `AttentionCache` for each attention of a decoder.

    Between the steps of a beam search, `generate()` reorders it: keys, values, and the memories of
    systems. The keys of cross-attention are computed once.

    Args:
        num_self: number of self-attentions in the decoder.
        num_cross: number of attentions over an encoder's output.
    """

    is_compileable = False  # its tensors grow
    is_croppable = False  # a system's memory of earlier steps cannot be taken back

    def __init__(self, num_self: int, num_cross: int = 0) -> None:
        self.depth = num_self
        caches = [AttentionCache(static=i >= num_self) for i in range(num_self + num_cross)]
        super().__init__(layers=caches)

    def layer_caches(self, index: int) -> tuple[AttentionCache, AttentionCache | None]:
        """The caches of a layer's self-attention and of its cross-attention, if it has one."""
        cross = self.layers[self.depth + index] if len(self.layers) > self.depth else None
        return self.layers[index], cross

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.layers[layer_idx].get_seq_length()


class DecodingGenerationMixin(GenerationMixin):
    """`generate()` through a cache that all systems can use."""

    config: Any

    def new_cache(self) -> DecodingCache:
        """An empty cache for the decoder."""
        depths = self.config.depths()
        return DecodingCache(depths["decoder_self"], depths.get("decoder_cross", 0))

    def set_generation(self, **settings: Any) -> None:
        """Sets the default settings of `generate()`."""
        names = ("pad_token_id", "bos_token_id", "eos_token_id")
        tokens = {name: getattr(self.config, name) for name in names}
        self.generation_config = GenerationConfig(**tokens, **settings)

    def _prepare_cache_for_generation(self, settings: Any, inputs: Any, *_: Any) -> None:
        # The cache of transformers would hold keys and values only.
        if settings.cache_implementation not in (None, "dynamic"):
            raise ValueError(
                f"cache_implementation is {settings.cache_implementation!r}, expected 'dynamic': "
                f"the systems of headwise keep more than keys and values in their cache"
            )
        if settings.use_cache is not False and inputs.get("cache") is None:
            inputs["cache"] = self.new_cache()

    def _prepare_generated_length(self, generation_config: Any, **kwargs: Any) -> Any:
        default = self.generation_config.max_length  # transformers would warn of both lengths
        if generation_config.max_new_tokens is not None and generation_config.max_length == default:
            generation_config.max_length = None
        return super()._prepare_generated_length(generation_config, **kwargs)


def _without_unset(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments without None and False, which a system need not accept."""
    return {name: x for name, x in kwargs.items() if x is not None and x is not False}


def padding_mask(mask: Tensor | None, x: Tensor | None, past_length: int = 0) -> Tensor | None:
    """Padding, `(batch, past_length + time)`, `True` there, from transformers' mask of tokens.

    Raises:
        ValueError: the mask has another shape, or numbers other than 0 and 1.
    """
    if mask is None or x is None:
        return None
    expected = (x.size(0), past_length + x.size(1))
    if tuple(mask.shape) != expected:
        raise ValueError(
            f"attention_mask has shape {tuple(mask.shape)}, expected (batch, time) = {expected}, "
            f"1 at tokens and 0 at padding; cached positions count too"
        )
    # Values of an integer mask are not read, since that waits for a GPU.
    if mask.is_floating_point() and ((mask != 0) & (mask != 1)).any():
        raise ValueError(
            "attention_mask has numbers other than 0 and 1, as a mask that is added to attention "
            "scores does, expected 1 at tokens and 0 at padding"
        )
    return mask == 0


def check_labels(labels: Tensor, shape: Any) -> Tensor:
    """The labels; raises `ValueError` unless they have a shape."""
    if labels.shape != shape:
        raise ValueError(
            f"labels has shape {tuple(labels.shape)}, expected {tuple(shape)}: a label for each "
            f"item that is predicted, {IGNORED_LABEL} where none is"
        )
    return labels


def sinusoids(positions: Tensor, embed_dim: int) -> Tensor:
    """Sinusoidal positions: sin(t / 10000^(2i/d)) in channel 2i, its cosine in channel 2i + 1.

    >>> sinusoids(torch.tensor([0, 1]), 2)
    tensor([[0.0000, 1.0000],
            [0.8415, 0.5403]])
    """
    channels = torch.arange(0, embed_dim, 2, device=positions.device)
    angles = positions.unsqueeze(-1) * torch.exp(channels * (-math.log(10_000) / embed_dim))
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :embed_dim]


def squared_error(predicted: Tensor, labels: Tensor) -> Tensor:
    """The sum of squared errors over all labels that are not -100, in float32 or float64."""
    errors = at_least_float32(predicted) - labels
    return errors.masked_fill(labels == IGNORED_LABEL, 0.0).square().sum()
