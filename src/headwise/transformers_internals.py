"""What headwise takes from transformers that its documentation does not promise.

All of it stands here, one assumption after the other, and headwise uses the names below. When a
release of transformers breaks an assumption, this file is what has to change;
`tests/pretrained/test_transformers_assumptions.py` has those that stay.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import partial, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.convert_slow_tokenizer import bytes_to_unicode as bytes_to_unicode
from transformers.generation import GenerationMixin
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_layers import (
    GradientCheckpointingLayer as GradientCheckpointingLayer,
)
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import ModelOutput

# 1. Models, their outputs and `generate()` pass a cache under one name. It is `cache` from
# transformers 5.24 on, and was `past_key_values` before.
CACHE = next(
    field.name
    for field in fields(BaseModelOutputWithPastAndCrossAttentions)
    if field.name in ("cache", "past_key_values")
)


def given_cache(cache: Any, others: dict[str, Any]) -> Any:
    """Returns the cache of a call, which callers may also name `past_key_values`.

    Raises:
        TypeError: there are both.
    """
    former = others.pop("past_key_values", None)
    if former is None:
        return cache
    if cache is not None:
        raise TypeError(
            "cache and past_key_values are both given, expected one of them: they are two names "
            "of one argument"
        )
    return former


@dataclass
class CacheOutput(ModelOutput):
    """A field of an output that holds the cache, under the name that `generate()` looks for.

    Both names can be read: the other one is a property.
    """

    if CACHE == "cache":
        cache: Any = None
    else:
        past_key_values: Any = None

        @property
        def cache(self) -> Any:
            return self.past_key_values


# 2. A cache does with its layers what `CacheLayerMixin` names, and asks whether they are of that
# class, which a class can say that is none of its subclasses.
def cache_layer(kind: type) -> type:
    """Makes a class one whose objects can be layers of a cache of transformers."""
    return CacheLayerMixin.register(kind)


# 3. A cache that makes its layers when they are needed knows their class.
def make_layers(cache: Cache, count: int) -> None:
    """Makes the first layers of a cache, where it makes them when they are needed."""
    while cache.layer_class_to_replicate is not None and len(cache.layers) < count:
        cache.layers.append(cache.layer_class_to_replicate())


class GenerationHooks(GenerationMixin):
    """4. `generate()` asks the model for three things, under names that are its own.

    Two are handed on to methods with public names, which a subclass has. The third, a mask for a
    cache of a fixed size, the cache gives itself, by `of_all_positions(mask, time)`.
    """

    def cache_for_generation(self, settings: Any, inputs: dict[str, Any], length: int) -> None:
        """Puts the cache for generating into `inputs`, under the name `CACHE`."""
        raise NotImplementedError

    def settle_length(self, settings: Any, has_default_max_length: bool) -> None:
        """Leaves one of `max_length` and `max_new_tokens` in the settings of a call."""
        raise NotImplementedError

    # `generate()` looks at the arguments that this method has in transformers.
    @wraps(GenerationMixin.prepare_inputs_for_generation)
    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As in transformers, but with the cache under the name by which peft looks for it.

        peft puts learned prefixes there. Models of transformers 5.24 do not see these in
        `generate()`.
        """
        inputs = super().prepare_inputs_for_generation(*args, **kwargs)
        if CACHE in inputs:
            inputs["past_key_values"] = inputs.pop(CACHE)
        return inputs

    def _prepare_cache_for_generation(  # type: ignore[no-untyped-def]
        self, generation_config, model_kwargs, generation_mode, batch_size, max_cache_length
    ) -> None:
        self.cache_for_generation(generation_config, model_kwargs, max_cache_length)

    def _prepare_generated_length(  # type: ignore[no-untyped-def]
        self, generation_config, has_default_max_length, **others
    ):
        self.settle_length(generation_config, has_default_max_length)
        return super()._prepare_generated_length(
            generation_config, has_default_max_length, **others
        )

    def create_masks_for_generate(
        self, *, attention_mask: Tensor | None, inputs_embeds: Tensor, **inputs: Any
    ) -> Tensor | None:
        if attention_mask is None:
            return None
        return inputs[CACHE].of_all_positions(attention_mask, inputs_embeds.size(1))


def attn_implementation(config: Any) -> str | None:
    """The name of the implementation of attention, for which a configuration has no public name."""
    name: str | None = getattr(config, "_attn_implementation", None)
    return name


class ModelHooks(PreTrainedModel):
    """5. `PreTrainedModel` draws weights and checkpoints layers by private methods."""

    def checkpoint_layers(self, enable: bool, function: Callable[..., Any], every: int) -> None:
        """Switches gradient checkpointing on or off; a subclass may exchange the function."""
        super()._set_gradient_checkpointing(enable, function, every)

    def _set_gradient_checkpointing(
        self,
        enable: bool = True,
        gradient_checkpointing_func: Callable[..., Any] = checkpoint,
        every_n_layers: int = 1,
    ) -> None:
        self.checkpoint_layers(enable, gradient_checkpointing_func, every_n_layers)

    def _initialize_weights(self, module: nn.Module, *_: Any) -> None:
        # For models outside its own package, transformers skips modules without parameters of
        # their own, such as standard attention. `_init_weights` itself spares loaded weights.
        super()._initialize_weights(module)


def is_loaded(weight: Tensor) -> bool:
    """6. A weight that was loaded is marked, so that it is not drawn again."""
    return getattr(weight, "_is_hf_initialized", False)


def config_fields() -> set[str]:
    """7. What every configuration has are fields of a data class."""
    return {field.name for field in fields(PreTrainedConfig)}


_OPTIMIZER, _SCHEDULER = "optimizer.pt", "scheduler.pt"


class TrainerHooks:
    """8. The Trainer writes a checkpoint in one method, and its parts in others.

    A subclass has this before `transformers.Trainer`, which needs much that models do not: so it is
    no base of this class, and what belongs to it is imported when it is used.
    """

    # What it finds in the Trainer behind it.
    args: Any
    state: Any
    control: Any
    callback_handler: Any
    optimizer: Any
    lr_scheduler: Any

    def save_checkpoint(self) -> None:
        """Writes a checkpoint; a subclass says how."""
        raise NotImplementedError

    def save_training_state(self, folder: Path, state: str) -> None:
        """Writes all of a checkpoint but the weights: what a resumed training reads.

        Every process calls it; each writes its own random state, and the main one all else.
        """
        from transformers.trainer_callback import ExportableState

        trainer: Any = self
        self.save_optimizer(folder / _OPTIMIZER)
        trainer._save_scaler(str(folder))
        trainer._save_rng_state(str(folder))
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), folder / _SCHEDULER)
            callbacks: list[Any] = [*self.callback_handler.callbacks, self.control]
            for callback in callbacks:
                if isinstance(callback, ExportableState):
                    self.state.stateful_callbacks[type(callback).__name__] = callback.state()
            self.state.save_to_json(str(folder / state))

    def save_optimizer(self, file: Path) -> None:
        """Writes the optimizer's state; every process calls it."""
        if self.args.should_save:
            torch.save(self.optimizer.state_dict(), file)

    def load_optimizer(self, file: Path) -> None:
        """Reads the optimizer's state; every process calls it."""
        self.optimizer.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))

    def remove_old_checkpoints(self, run: Path) -> None:
        """Removes checkpoints that are more than `save_total_limit`, but for the best one."""
        from transformers.trainer_utils import rotate_checkpoints

        rotate_checkpoints(
            output_dir=str(run),
            save_total_limit=self.args.save_total_limit,
            best_model_checkpoint=self.state.best_model_checkpoint,
            use_mtime=False,
        )

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self.save_checkpoint()

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            self.load_optimizer(Path(checkpoint, _OPTIMIZER))
            scheduler = torch.load(Path(checkpoint, _SCHEDULER), weights_only=True)
            self.lr_scheduler.load_state_dict(scheduler)


def loss_is_scaled(trainer: Any, items: Any) -> bool:
    """9. Whether a Trainer's loss of a batch is divided by what all of a step's batches hold.

    Else the Trainer divides it by their number.
    """
    decided: bool | None = getattr(trainer, "loss_is_scaled_for_ga", None)
    if decided is not None:
        return decided
    accepts = trainer.model_accepts_loss_kwargs and items is not None
    return accepts or trainer.compute_loss_func is not None


def prepared_inputs(trainer: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """10. A batch as a Trainer gives it to the model, on its device."""
    return trainer._prepare_inputs(batch)


# 11. A model whose `loss_type` is this one shifts its labels, so that the first is never predicted:
# by that the Trainer counts labels.
SHIFTED_LOSS = "ForCausalLM"


def shifts_labels(model: nn.Module) -> bool:
    """Whether a model shifts its labels, as the Trainer has it."""
    return getattr(model, "loss_type", None) == SHIFTED_LOSS


def shift_smoothed_labels(model_type: str, kind: type) -> None:
    """12. The Trainer shifts the labels that it smoothes for models whose classes a table names."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type] = kind.__name__


def wrap_label_smoother(trainer: Any, wrap: Callable[[Any], Any]) -> None:
    """13. A Trainer that smoothes labels has an attribute that computes the loss of them.

    It is called with the output of the model, the labels, and by name `shift_labels` and
    `num_items_in_batch`; other Trainers have None there.
    """
    if trainer.label_smoother is not None:
        trainer.label_smoother = wrap(trainer.label_smoother)


def compute_layers_again(model: PreTrainedModel) -> None:
    """14. Gradient checkpointing is called activation checkpointing from transformers 5.24 on."""
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()


# 15. Of several processes the first alone saves a model, whichever says that it is a main one.
def saved_by_this_process(model: PreTrainedModel) -> PreTrainedModel:
    """Has a model save itself in this process too, where `save_pretrained` says that it is to."""
    vars(model)["should_save_on_this_rank"] = bool
    return model


def leave_unwrapped(trainer: Any) -> None:
    """16. accelerate wraps a model for several processes unless it is told that none trains it."""
    accelerator = trainer.accelerator
    accelerator.prepare_model = partial(accelerator.prepare_model, evaluation_mode=True)


class RegisteredAttention:
    """17. Attention by a function of `ALL_ATTENTION_FUNCTIONS`, which a module calls.

    It reads some attributes of the module, and gives `(batch, queries, heads, head_dim)`. A table
    has the masks that a function takes: those of flash attention are True at tokens, `(batch,
    keys)`, and of queries and keys alike; others are as for `"sdpa"`. In the place of a mask flash
    attention takes sequences one behind another, and where each begins.
    """

    def __init__(self, name: str, config: Any) -> None:
        self.name = name
        self.config = config
        masks = ALL_MASK_ATTENTION_FUNCTIONS
        self.takes_padding_alone = masks.get(name) is masks["flash_attention_2"]

    @staticmethod
    def names() -> list[str]:
        """The registered names, without those that need a paged cache."""
        return [name for name in ALL_ATTENTION_FUNCTIONS.valid_keys() if "paged|" not in name]

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, dropout: float
    ) -> Tensor:
        how = {"is_causal": is_causal, "dropout": dropout}
        if self.takes_padding_alone:
            self._check(q, mask)
            real = None if mask is None else ~mask.flatten(0, -2).expand(q.size(0), -1)
            if real is None or is_causal:
                return self._read(q, k, v, real, **how)
            return self._of_lengths(q, k, v, real, **how)
        if mask is not None:
            mask = ~mask if mask.dtype == torch.bool else mask.to(q.dtype)
            mask = mask[(None,) * (4 - mask.dim())]
        return self._read(q, k, v, mask, **how)

    def _read(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **how: Any) -> Tensor:
        module = SimpleNamespace(
            config=self.config,
            is_causal=how["is_causal"],
            num_key_value_groups=q.size(1) // k.size(1),
            training=True,  # what is dropped in evaluation is the caller's business
        )
        function = ALL_ATTENTION_FUNCTIONS[self.name]
        read: Tensor = function(module, q, k, v, mask, scaling=q.size(-1) ** -0.5, **how)[0]
        return read.transpose(1, 2)

    def _of_lengths(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor, **how: Any) -> Tensor:
        """All queries of a sequence, which may be another one's, and its keys without padding."""
        batch, queries = q.size(0), q.size(2)
        starts = torch.arange(0, (batch + 1) * queries, queries, device=q.device, dtype=torch.int32)
        ends = real.sum(1).cumsum(0, dtype=torch.int32)
        q = q.transpose(1, 2).flatten(0, 1).transpose(0, 1).unsqueeze(0)  # (1, heads, all, width)
        k, v = (x.transpose(1, 2)[real].transpose(0, 1).unsqueeze(0) for x in (k, v))
        where: dict[str, Any] = {"cu_seq_lens_q": starts, "cu_seq_lens_k": F.pad(ends, (1, 0))}
        where |= {"max_length_q": queries, "max_length_k": real.size(1)}
        read = self._read(q, k, v, None, **how, **where).squeeze(0)  # (heads, all, width)
        return read.unflatten(1, (batch, queries)).transpose(0, 1)

    def _check(self, q: Tensor, mask: Tensor | None) -> None:
        halves = (torch.float16, torch.bfloat16)
        in_halves = q.dtype in halves or torch.is_autocast_enabled(q.device.type)
        if "flash" in self.name and not in_halves:
            raise ValueError(
                f"attn_implementation is {self.name!r} and the model computes in {q.dtype}, "
                f"expected torch.float16 or torch.bfloat16: convert the model, or use autocast"
            )
        if mask is None:
            return
        of_keys = mask.size(-2) == 1 and (mask.dim() == 2 or mask.size(1) == 1)
        if of_keys and mask.dtype == torch.bool:
            return
        raise ValueError(
            f"attn_implementation is {self.name!r}, which has no masks but of padding and of what "
            f"is causal from the first key on, expected no attn_mask, and one token in a call with "
            f"a cache that is not empty: use 'sdpa' for others"
        )


# 18. The functions by which rotary positions are scaled read a few attributes of a configuration.
def scaled_rotary_frequencies(
    parameters: Mapping[str, Any], head_dim: int, device: torch.device
) -> tuple[Tensor, float]:
    """The rates of rotary positions of a `rope_type` for long texts, and the scale of the turns."""
    config = SimpleNamespace(
        rope_parameters={"rope_theta": 10_000.0, **parameters},
        head_dim=head_dim,
        hidden_size=head_dim,  # that of one head, where a function asks for both
        num_attention_heads=1,
        max_position_embeddings=parameters.get("original_max_position_embeddings"),
        standardize_rope_params=lambda: None,
    )
    return ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, device)


# 19. Attentions ask a configuration for their function, under a private name. It need not be that
# of the model around them, which may hold a copy.
@contextmanager
def attending_eagerly(model: nn.Module) -> Iterator[None]:
    """While this context is open, models of transformers compute attention with its weights."""
    with ExitStack() as stack:
        for module in model.modules():  # a configuration may be that of several
            config = getattr(module, "config", None)
            if isinstance(config, PreTrainedConfig):
                before = attn_implementation(config)
                stack.callback(setattr, config, "_attn_implementation_internal", before)
                config._attn_implementation_internal = "eager"
        yield
