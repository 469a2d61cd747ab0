"""transformers' Trainer, following the rules of training of the systems in its model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback
from transformers.trainer_utils import has_length

from headwise.heads.auxiliary_loss import auxiliary_loss
from headwise.heads.rule import Moment
from headwise.models.outputs import share_of_step
from headwise.training.rules import TrainingRules
from headwise.transformers_internals import loss_is_scaled, prepared_inputs, wrap_label_smoother

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
        rules: the rules of the model's systems.
    """

    rule_settings: Mapping[str, Any] = {}
    rules: TrainingRules

    # What the mixin finds in the Trainer behind it.
    model: Any
    args: Any
    state: Any
    train_dataset: Any
    optimizer: Any
    accelerator: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        wrap_label_smoother(self, lambda smoother: _SmoothedLoss(smoother, self))
        if not hasattr(self, "rules"):
            self.rules = TrainingRules(self.model, self.rule_settings)
            if self.rules.rules:  # the same class may train models that have no such system
                self.rules.check_names(self.rule_settings)
        self._undone: tuple[Sequence[Batch], Any] | None = None
        self.add_callback(_AfterUpdate(self))  # type: ignore[attr-defined]

    @property
    def moment(self) -> Moment:
        """Where in the training the step at hand stands."""
        state = self.state
        return Moment(
            state.global_step,
            state.max_steps,
            # Of a stream, whose length is unknown, the Trainer takes max_steps for an epoch.
            int(state.epoch or 0) if has_length(self.train_dataset) else None,
            self.args.learning_rate,
            self.warmup_steps(state.max_steps),
        )

    def warmup_steps(self, num_training_steps: int) -> int:
        """In how many steps the learning rate rises."""
        return int(self.args.get_warmup_steps(num_training_steps))

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        if self.rules.model is not self.model:
            # A Trainer with `model_init` makes its model anew for each training.
            self.rules = TrainingRules(self.model, self.rule_settings)
        if self.optimizer is None:
            groups = self.rules.parameter_groups(
                self.args.learning_rate, weight_decay=self.args.weight_decay
            )
            kind, options = self.optimizer_kind()
            self.optimizer = kind(groups, **options)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        self.rules.check(num_training_steps)
        return super().create_scheduler(  # type: ignore[misc]
            num_training_steps, optimizer
        )

    def optimizer_kind(self) -> tuple[Any, dict[str, Any]]:
        """The optimizer's class, and its arguments other than the parameters."""
        given = self.optimizer_cls_and_kwargs  # type: ignore[attr-defined]
        kind, options = given or self.get_optimizer_cls_and_kwargs(  # type: ignore[attr-defined]
            self.args, self.model
        )
        return kind, options

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        batches, items = super().get_batch_samples(  # type: ignore[misc]
            epoch_iterator, num_batches, device
        )
        # What comes before the step waits for the first training_step: only by then has a resumed
        # run its random state back.
        self._undone = (batches, items)
        return batches, items

    def training_step(self, model: Any, inputs: Batch, num_items_in_batch: Any = None) -> Tensor:
        undone, self._undone = self._undone, None
        if undone is not None:
            self.rules.before(self.moment, lambda: self._losses(*undone))
        with self.rules.around():
            loss = super().training_step(  # type: ignore[misc]
                model, inputs, num_items_in_batch
            )
        if self.accelerator.gradient_state.sync_gradients:
            scaler = getattr(self.accelerator, "scaler", None)
            self.rules.before_update(self.moment, self.optimizer, scaler)
        return loss

    def _losses(self, batches: Sequence[Batch], items: Any) -> Iterator[Tensor]:
        """The losses of a step's batches, by the model without data-parallel wrapper."""
        self.model.train()
        is_scaled = loss_is_scaled(self, items)
        for batch in batches:
            batch = prepared_inputs(self, batch)
            with self.compute_loss_context_manager():  # type: ignore[attr-defined]
                loss = self.compute_loss(  # type: ignore[attr-defined]
                    self.model, batch, num_items_in_batch=items
                )
            yield loss if is_scaled else loss / len(batches)


class _SmoothedLoss:
    """The Trainer's loss of logits and smoothed labels, and those of the systems."""

    def __init__(self, smoother: Any, trainer: RulesMixin) -> None:
        self.smoother = smoother
        self.trainer = trainer

    def __call__(
        self, outputs: Any, labels: Tensor, shift_labels: bool = False, **items: Any
    ) -> Tensor:
        loss: Tensor = self.smoother(outputs, labels, shift_labels=shift_labels, **items)
        if not self.trainer.model.training:
            return loss
        share = share_of_step(labels, items.get("num_items_in_batch"), shifted=shift_labels)
        return loss + (share * auxiliary_loss(self.trainer.model)).to(loss.device)


class _AfterUpdate(TrainerCallback):
    """Tells the rules when the optimizer has taken its step."""

    def __init__(self, trainer: RulesMixin) -> None:
        self.trainer = trainer

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.trainer.rules.after_update(self.trainer.moment)
