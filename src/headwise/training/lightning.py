"""Lightning's Trainer, following the rules of training of the systems in its module.

It needs Lightning: `pip install lightning` (or `pytorch-lightning`).
"""

import inspect
import math
from contextlib import ExitStack
from typing import Any

from headwise.training.rules import TrainingRules, training_rules

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback


class RulesCallback(Callback):
    """Trains every system of a LightningModule by its rule, under automatic optimization.

    Build the optimizer in `configure_optimizers` from the groups of the rules:

        rules = headwise.training_rules(self, total_steps=...)
        return torch.optim.AdamW(rules.parameter_groups(lr=3e-4))

    The callback sets the learning rates that rules have for parameters of their own, whatever a
    schedule sets. A step before the step, which some rules take, calls `training_step` once more on
    the same batch; with accumulated gradients, on the first batch of those that are accumulated.

    Args:
        settings: name of a system to the settings of its rule.
        warmup_steps: in how many steps the learning rate of the optimizer rises. A rule whose own
            warm-up is a share of it needs the number.
    """

    def __init__(
        self, settings: dict[str, Any] | None = None, *, warmup_steps: int | None = None
    ) -> None:
        super().__init__()
        self.settings = settings
        self.warmup_steps = warmup_steps
        self.rules: TrainingRules | None = None
        self._around = ExitStack()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        total = trainer.estimated_stepping_batches
        if not math.isfinite(total):
            raise ValueError(
                "the Trainer has neither max_steps nor max_epochs with data of known length, so "
                "the number of its steps is unknown, which the rules of training need: give it "
                "max_steps"
            )
        batches = trainer.num_training_batches
        # The last step of an epoch may accumulate fewer batches.
        per_epoch = (
            math.ceil(batches / trainer.accumulate_grad_batches) if math.isfinite(batches) else None
        )
        self.rules = training_rules(
            *(pl_module, int(total)),
            warmup_steps=self.warmup_steps,
            steps_per_epoch=per_epoch,
            settings=self.settings,
        )
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        # The rules' own groups have rates that are made of this one.
        own = {id(p) for rule in self.rules.rules.values() for p in rule.own_group()}
        others = [group for group in groups if not any(id(p) in own for p in group["params"])]
        self.rules.peak_rate = max(g.get("initial_lr", g["lr"]) for g in others or groups)
        self.rules.load_state_dict({"steps": trainer.global_step})

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        assert self.rules is not None
        if batch_idx % trainer.accumulate_grad_batches == 0:

            def loss() -> Any:
                with trainer.precision_plugin.train_step_context():
                    found = pl_module.training_step(*_arguments(pl_module, batch, batch_idx))
                if found is None:  # the module passes over this batch
                    return []
                return found["loss"] if isinstance(found, dict) else found

            self.rules.before_step(loss)
        self._around.enter_context(self.rules.around())

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        assert self.rules is not None
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self.rules.before_update(self.rules.moment, optimizer, scaler)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        assert self.rules is not None
        self._around.close()
        while self.rules.moment.step < trainer.global_step:
            self.rules.after_step()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._around.close()  # of a batch that the module has skipped, which ends the epoch

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._around.close()


def _arguments(module: Any, batch: Any, number: int) -> list[Any]:
    """The arguments of a module's training step, which may leave out the number of the batch."""
    parameters = inspect.signature(module.training_step).parameters
    if "dataloader_iter" in parameters:
        raise ValueError(
            "training_step takes dataloader_iter, expected batch: a step before the step needs the "
            "same batch as the step itself"
        )
    variadic = any(of.kind is of.VAR_POSITIONAL for of in parameters.values())
    return [batch, number] if len(parameters) > 1 or variadic else [batch]
