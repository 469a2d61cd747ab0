"""A system over the heads of one attention: what hooks of a transformers model do in a pass."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from headwise.heads.attention import MultiHeadAttention, hides
from headwise.heads.system import System, auxiliary_loss, is_repeated
from headwise.ops.labels import IGNORED_LABEL
from headwise.pretrained.places import Place

NAME = "head_gates"  # of the child of an attention module
_OF_ENCODER = ("key_value_states", "encoder_hidden_states")  # arguments of cross-attentions
_WAYS_OUT = (
    "pass use_cache=False, have gates look at their own position alone (gate_window=1 of MAE's), "
    "or convert the model: headwise.from_transformers(model).with_attention('mae')"
)


class Stack:
    """What all gates of a stack of layers, such as a decoder, know of a forward pass.

    Attributes:
        looks_around: whether any of its gates sees more than its own position.
        counts: whether `begin` is asked for although none does.
        begin: how many positions a cache held before the pass.
        mask: the `attention_mask` that the stack was called with, or None.
    """

    def __init__(self, module: nn.Module) -> None:
        self.names = list(inspect.signature(type(module).forward).parameters)[1:]
        self.looks_around = self.counts = False
        self.begin, self.mask = 0, None
        # By what a layer is called with, also when it is computed again for its gradients.
        self.of_layers = WeakTensorKeyDictionary()
        self.handle = module.register_forward_pre_hook(self.start, with_kwargs=True)

    def start(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the stack: keeps its mask, and refuses what gates that look around cannot do."""
        given = dict(zip(self.names, args, strict=False)) | kwargs
        self.mask = given.get("attention_mask")
        if not (self.looks_around or self.counts):
            return
        caches = [each for each in given.values() if hasattr(each, "get_seq_length")]
        self.begin = int(caches[0].get_seq_length()) if caches else 0
        if self.looks_around and self.begin:
            raise ValueError(
                f"the model computes with a cache of earlier positions, whose hidden states the "
                f"gates over its heads do not know, which average over positions: {_WAYS_OUT}"
            )
        if self.looks_around and self._is_packed(given):
            raise ValueError(
                f"position_ids or cu_seq_lens_q say that several texts are packed into a row, over "
                f"which gates that average over positions would mix them: give each a row of its "
                f"own, or {_WAYS_OUT}"
            )

    def _is_packed(self, given: dict[str, Any]) -> bool:
        places = given.get("position_ids")
        if given.get("cu_seq_lens_q") is not None or given.get("seq_idx") is not None:
            return True
        if places is None or places.size(-1) < 2:
            return False
        if places.dim() == 3:  # of time, height and width: pixels share a time
            return bool((places[0].diff(dim=-1) < 0).any())
        restarts = places.diff(dim=-1) <= 0
        if isinstance(self.mask, Tensor) and self.mask.shape == places.shape:
            real = self.mask != 0
            restarts = restarts & real[:, 1:] & real[:, :-1]
        return bool(restarts.any())

    def padding(self, batch: int, queries: int) -> Tensor | None:
        """`(batch, queries)`, `True` at padding, by the mask of this pass; None if there is none.

        Raises:
            ValueError: a mask that does not say it, for gates that look around.
        """
        mask: Any = self.mask
        if mask is None:
            return None
        shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        earlier = mask.size(1) - queries if isinstance(mask, Tensor) and mask.dim() == 2 else -1
        if earlier == 0 or (earlier > 0 and not self.looks_around):
            return (mask[:, earlier:] == 0).expand(batch, -1)
        if self.looks_around:
            raise ValueError(
                f"attention_mask is {shape}, expected (batch, {queries}), with 0 at padding: gates "
                f"that average over positions do not know what else a mask hides; leave it out if "
                f"nothing is padding, or have gates look at their own position alone "
                f"(gate_window=1 of MAE's)"
            )
        if isinstance(mask, Tensor) and mask.dim() == 4 and mask.size(-1) == mask.size(-2):
            own = mask[:, 0].diagonal(dim1=-2, dim2=-1)  # a text sees itself, padding does not
            return (hides(own) if own.is_floating_point() else own == 0).expand(batch, -1)
        return None

    def padding_of(self, keys: list[Tensor], batch: int, queries: int) -> Tensor | None:
        """As `padding`, also where a layer is computed again for its gradients.

        The model may have gone on to another batch by then, but the layer gets the same `keys`
        again: its mask, or the hidden states of an encoder.
        """
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or self.mask is None:
            return self.padding(batch, queries)
        if not is_repeated():
            padding = self.padding(batch, queries)
            self.of_layers.update(dict.fromkeys(keys, padding))
            return padding
        known = [key for key in keys if key in self.of_layers]
        if keys and not known:
            raise RuntimeError(
                "a layer is computed again for its gradients with a copy of its mask, of which its "
                "gates know no padding: give gradient_checkpointing_enable() or TrainingArguments "
                "the checkpointing option use_reentrant=False"
            )
        return self.of_layers[known[0]] if known else None

    def __getstate__(self) -> dict[str, Any]:
        # A copy begins anew.
        return {**vars(self), "mask": None, "of_layers": WeakTensorKeyDictionary()}


class HeadGates(nn.Module):
    """A system between what the heads of an attention have read and its output projection.

    A hook of the attention notes the hidden states that it is called with. A hook of its output
    projection has the system change what the projection takes.

    Args:
        system: the system, made by its `over_heads`.
        place: the attention module, whose child this becomes.
        stack: what it shares with the others of the stack.
    """

    def __init__(self, system: MultiHeadAttention, place: Place, stack: Stack) -> None:
        super().__init__()
        self.system, self.stack, self.path, self.site = system, stack, place.path, place.site
        self.projection = place.projection_path
        self.is_causal = place.site != "encoder_self"
        self.looks_around = system.sees_other_positions(self.is_causal)
        self.attention_sees, self.in_chunks = _attention_sees(place)
        self.gate_window = getattr(system, "gate_window", None)
        names = list(inspect.signature(type(place.module).forward).parameters)[1:]
        self.first = names[0] if names else "hidden_states"
        keys = [name for name in names if name.endswith("mask") or name in _OF_ENCODER]
        self.keys = {name: names.index(name) for name in keys}
        self.hidden: Tensor | None = None
        self.padding: Tensor | None = None
        self.handles = [
            place.module.register_forward_pre_hook(self.note, with_kwargs=True),
            place.module.register_forward_hook(self.check_used),
        ]
        self.hooked: tuple[nn.Module, RemovableHandle] | None = None  # a tuple: it is no child
        self._hook(place.module)

    def note(self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the attention: keeps its hidden states, and which of them are padding."""
        if attention._modules.get(NAME) is not self:
            raise RuntimeError(
                f"another module has taken the place of the gates at {self.path!r}, which hooks "
                f"still call: for peft, name the system in modules_to_save=['{NAME}.system']; for "
                f"several devices, start a process for each in place of nn.DataParallel"
            )
        self._hook(attention)
        hidden = args[0] if args else kwargs[self.first]
        batch, queries = hidden.shape[:2]
        seen, window = self.attention_sees, self.gate_window
        is_within = not self.in_chunks and window is not None and seen and window <= seen
        if self.looks_around and seen and queries > seen and not is_within:
            raise ValueError(
                f"the attention at {self.path!r} sees {seen} positions at most, and the gates over "
                f"its heads would average over {queries}: pass gate_window=1 to gate_heads, or up "
                f"to {seen} where it is a sliding window"
            )
        keys = [kwargs.get(n, args[i] if i < len(args) else None) for n, i in self.keys.items()]
        keys = [key for key in keys if isinstance(key, Tensor)]
        self.padding = self.stack.padding_of(keys, batch, queries)
        self.hidden = hidden

    def change(self, projection: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Before the projection: what the heads have read becomes what the system makes of it."""
        heads, hidden = args[0], self.hidden
        self.hidden = None
        if hidden is None or heads.shape[:2] != hidden.shape[:2]:
            raise RuntimeError(
                f"the output projection of the attention at {self.path!r} is called with "
                f"{tuple(heads.shape)}, expected once in each call of the attention, with (batch, "
                f"queries, heads * head_dim): no gates can be over its heads"
            )
        parameter = next(self.system.parameters(), heads)
        made = self.system(
            hidden.to(parameter.device, parameter.dtype),
            value=heads,
            is_causal=self.is_causal,
            query_padding_mask=self.padding,
        )
        return made.output.to(heads.dtype), *args[1:]

    def check_used(self, attention: nn.Module, args: object, output: object) -> None:
        """After the attention: its projection must have been called."""
        if self.hidden is not None:
            self.hidden = None
            raise RuntimeError(
                f"the attention at {self.path!r}, a {type(attention).__name__}, has not called its "
                f"output projection {self.projection!r}: no gates can be over its heads"
            )

    def _hook(self, attention: nn.Module) -> None:
        """Hooks the projection; also what has taken its place since, such as LoRA's module."""
        projection = attention.get_submodule(self.projection)
        if self.hooked is None or self.hooked[0] is not projection:
            if self.hooked is not None:
                self.hooked[1].remove()
            self.hooked = projection, projection.register_forward_pre_hook(self.change)

    def remove(self) -> None:
        """Takes the hooks away."""
        assert self.hooked is not None
        for handle in (*self.handles, self.hooked[1], self.stack.handle):
            handle.remove()


def _attention_sees(place: Place) -> tuple[int | None, bool]:
    """How many of the last positions a causal attention sees, None for all; whether in chunks."""
    module: Any = place.module
    config = getattr(module, "config", None)
    kinds = getattr(config, "layer_types", None) or []
    kind = kinds[place.layer] if place.layer < len(kinds) else None
    if kind == "full_attention" or place.site != "decoder_self":
        return None, False
    if kind == "chunked_attention":
        return config.attention_chunk_size, True
    if getattr(module, "attention_type", None) == "local":  # GPT-Neo
        return config.window_size, False
    window = getattr(module, "sliding_window", getattr(config, "sliding_window", None))
    return window or None, False  # some models say 0 for all


def forget_losses(model: nn.Module, args: object) -> None:
    """Before a model: systems that are not called in this pass, such as an encoder's, add none."""
    for module in model.modules():
        if isinstance(module, System):
            module.routing_loss = None


def add_losses(model: nn.Module, args: object, kwargs: dict[str, Any], output: Any) -> Any:
    """After a model in training: adds the losses of its systems to that of its output.

    Where batches are summed up before a step, `num_items_in_batch` is how many labels they have
    together, and the losses count as much as this batch's share of these.
    """
    labels = kwargs.get("labels")
    as_tuple = isinstance(output, tuple) and labels is not None
    loss = output[0] if as_tuple else getattr(output, "loss", None)
    systems = [module for module in model.modules() if isinstance(module, System)]
    if loss is None or not model.training or all(s.routing_loss is None for s in systems):
        return output
    added = auxiliary_loss(model)
    learns = any(p.requires_grad for s in systems if s.routing_loss is not None
                 for p in s.parameters())  # fmt: skip
    if learns and torch.is_grad_enabled() and not added.requires_grad:
        raise RuntimeError(
            "the loss of the systems over the heads has no gradient, which reentrant gradient "
            "checkpointing takes away: give gradient_checkpointing_enable() or TrainingArguments "
            "the checkpointing option use_reentrant=False"
        )
    items = kwargs.get("num_items_in_batch")
    if items is not None and labels is not None:
        shifted = getattr(model, "loss_type", None) == "ForCausalLM"  # so the Trainer counts
        predicted = labels[..., 1:] if shifted else labels
        added = added * (predicted != IGNORED_LABEL).sum() / items
    loss = loss + added.to(loss.device)
    if as_tuple:
        return (loss, *output[1:])
    output["loss"] = loss
    return output
