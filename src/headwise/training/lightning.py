"""Lightning's Trainer, following the rules of training of the systems in its module.

It needs Lightning: `pip install lightning` (or `pytorch-lightning`).
"""

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
    """

    def __init__(self, settings: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.settings = settings
        self.rules: TrainingRules | None = None
        self._around = ExitStack()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        total = int(trainer.estimated_stepping_batches)
        per_epoch = trainer.num_training_batches
        per_epoch = max(1, int(per_epoch) // trainer.accumulate_grad_batches)
        steps = self.rules.state_dict() if self.rules is not None else None
        self.rules = training_rules(
            pl_module, total, steps_per_epoch=per_epoch, settings=self.settings
        )
        self.rules.load_state_dict(steps or {"steps": trainer.global_step})

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        assert self.rules is not None
        if batch_idx % trainer.accumulate_grad_batches == 0:

            def loss() -> Any:
                found = pl_module.training_step(batch, batch_idx)
                return found["loss"] if isinstance(found, dict) else found

            self.rules.before_step(loss)
        self._around.enter_context(self.rules.around())

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        assert self.rules is not None
        self.rules.before_update(self.rules.moment, optimizer)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        assert self.rules is not None
        self._around.close()
        while self.rules.moment.step < trainer.global_step:
            self.rules.after_step()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._around.close()

    def state_dict(self) -> dict[str, Any]:
        return {} if self.rules is None else self.rules.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Does nothing: the Trainer counts the steps."""
