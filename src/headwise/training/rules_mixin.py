"""transformers' Trainer, following the rules of training of the systems in its model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.trainer_utils import has_length

from headwise.heads.system import auxiliary_loss
from headwise.ops.labels import IGNORED_LABEL
from headwise.training.rules import TrainingRules, training_rules

Batch = dict[str, Any]


class RulesMixin:
    """Makes a Trainer of transformers train every system of its model by its rule.

        class Trainer(headwise.RulesMixin, transformers.Trainer):
            rule_settings = {"SYSTEM": {...}}   # only what differs from the papers

    The optimizer then gets the groups of `TrainingRules.parameter_groups`, at the learning rate and
    weight decay of the arguments. A Trainer that was given an optimizer of its own keeps it; make
    that one with `headwise.training_rules(model, ...).parameter_groups(...)`.

    Attributes:
        rule_settings: name of a system of the model to the settings of its rule.
        rules: the rules of the model's systems, from the beginning of a training on.
    """

    rule_settings: Mapping[str, Any] = {}
    rules: TrainingRules

    # Optimizer steps of the training, and of a pass over the data.
    _steps: tuple[int, int | None] = (1, None)
    # The batches of the coming step, and how many labels they have, until it begins.
    _coming: tuple[Sequence[Batch], Any] | None = None

    # What the mixin finds in the Trainer behind it.
    model: Any
    args: Any
    state: Any
    optimizer: Any
    accelerator: Any
    label_smoother: Any

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        values = super().set_initial_training_values(args, dataloader)  # type: ignore[misc]
        # Of a stream, whose length is unknown, the Trainer takes all steps for an epoch.
        self._steps = values[6], values[1] if has_length(dataloader) else None
        return values

    def warmup_steps(self, num_training_steps: int) -> int:
        """In how many steps the learning rate rises."""
        return int(self.args.get_warmup_steps(num_training_steps))

    def optimizer_kind(self) -> tuple[Any, dict[str, Any]]:
        """The optimizer's class, and its arguments other than the parameters."""
        given = self.optimizer_cls_and_kwargs  # type: ignore[attr-defined]
        kind, options = given or self.get_optimizer_cls_and_kwargs(  # type: ignore[attr-defined]
            self.args, self.model
        )
        return kind, options

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        if self.label_smoother is not None and not isinstance(self.label_smoother, _SmoothedLoss):
            self.label_smoother = _SmoothedLoss(self.label_smoother, self)
        if hasattr(self, "rules"):
            self.rules.detach()  # of a training before
        steps, per_epoch = self._steps
        self.rules = training_rules(
            self.model,
            steps,
            steps_per_epoch=per_epoch,
            warmup_steps=self.warmup_steps(steps),
            settings=self.rule_settings,
        )
        if self.optimizer is None:
            rate, decay = self.args.learning_rate, self.args.weight_decay
            kind, options = self.optimizer_kind()
            self.optimizer = kind(self.rules.parameter_groups(rate, decay), **options)
        optimizer: torch.optim.Optimizer = self.rules.attach(
            self.optimizer, self.accelerator.scaler
        )
        return optimizer

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        self._coming = super().get_batch_samples(  # type: ignore[misc]
            epoch_iterator, num_batches, device
        )
        return self._coming

    def training_step(self, model: Any, inputs: Batch, num_items_in_batch: Any = None) -> Tensor:
        # Only by now, and not when it has its batches, has a resumed run its random state back.
        if self._coming is not None:
            batches, items = self._coming
            self._coming = None
            self.rules.load_state_dict({"steps": self.state.global_step})
            self.rules.before_step(lambda: self._losses(batches, items))
        loss: Tensor = super().training_step(  # type: ignore[misc]
            model, inputs, num_items_in_batch
        )
        return loss

    def _losses(self, batches: Sequence[Batch], items: Any) -> Iterator[Tensor]:
        """The losses of a step's batches, by the model without data-parallel wrapper."""
        trainer: Any = self
        self.model.train()
        is_scaled = trainer.loss_is_scaled_for_ga
        if is_scaled is None:  # as the Trainer decides whether it divides by the number of batches
            counts = trainer.model_accepts_loss_kwargs and items is not None
            is_scaled = counts or trainer.compute_loss_func is not None
        for batch in batches:
            with trainer.compute_loss_context_manager():
                inputs = trainer._prepare_inputs(batch)
                loss = trainer.compute_loss(self.model, inputs, num_items_in_batch=items)
            yield loss if is_scaled else loss / len(batches)


class _SmoothedLoss:
    """The Trainer's loss of logits and smoothed labels, and those that the systems add."""

    def __init__(self, smoother: Any, trainer: RulesMixin) -> None:
        self.smoother = smoother
        self.trainer = trainer

    def __call__(self, outputs: Any, labels: Tensor, **how: Any) -> Tensor:
        loss: Tensor = self.smoother(outputs, labels, **how)
        if not self.trainer.model.training:
            return loss
        added = auxiliary_loss(self.trainer.model).to(loss.device)
        items = how.get("num_items_in_batch")
        if items is None:
            return loss + added
        # The loss is summed over batches and processes: added losses count by the labels of each.
        predicted = labels[..., 1:] if how.get("shift_labels") else labels
        return loss + added * ((predicted != IGNORED_LABEL).sum() / items)
