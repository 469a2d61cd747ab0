"""A rule of training: what a paper asks for beyond gradient descent on all parameters.

Whoever trains a model asks the rules of its systems; `headwise.training.rules` does that.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from headwise.settings import Settings

# Computes the losses of the coming step anew, one for each of its batches. The sum of their
# gradients is the gradient of the step; with several processes, the mean of these sums.
Losses = Callable[[], Iterable[Tensor]]


class Moment(NamedTuple):
    """Where in a training a step stands.

    Attributes:
        step: number of optimizer steps before it.
        total_steps: number of optimizer steps of the whole training.
        epoch: number of passes over the data before it; None if nobody counts them.
        peak_rate: the highest learning rate of the parameters that have none of their own, or None.
        warmup_steps: how many steps that rate rises, or None.
    """

    step: int
    total_steps: int
    epoch: int | None = None
    peak_rate: float | None = None
    warmup_steps: int | None = None


class RuleSettings(Settings):
    """The settings of a rule; a rule with any has a subclass of it."""

    def check(self, total_steps: int) -> None:
        """Raise `ValueError` if the settings do not fit a training of `total_steps` steps."""


class Rule:
    """How the systems of one kind in a model are trained.

    One object of a rule serves all systems of a model whose class names the rule. A step of a
    training calls, in this order,

        before_step(moment, losses)      when nothing of the step has been computed yet
        around_step()                    around forward and backward pass of each batch
        before_update(moment)            when the gradients are there, before the optimizer's step
        after_update(moment)             after the optimizer's step

    Each does nothing unless a subclass overrides it. A rule keeps nothing that a resumed training
    needs: that belongs in a buffer of the system, which every checkpoint holds. It reads the
    parameters from the systems at each call, since they may have been replaced.

    Args:
        model: the model that is trained.
        systems: its systems that have this rule, by their paths in the model.
        settings: an object of `settings_class`.

    Attributes:
        settings_class: the class of the settings; a recipe gives them as `training.SYSTEM`.
    """

    settings_class: ClassVar[type[RuleSettings]] = RuleSettings

    def __init__(self, model: nn.Module, systems: Mapping[str, Any], settings: Any) -> None:
        self.model = model
        self.systems = dict(systems)
        self.settings = settings

    @property
    def layers(self) -> list[Any]:
        """The systems without their paths."""
        return list(self.systems.values())

    def own_group(self) -> list[nn.Parameter]:
        """Parameters that the optimizer trains with the rule's learning rate, without decay."""
        return []

    def learning_rate(self, moment: Moment) -> float:
        """The learning rate of `own_group()` in a step."""
        raise NotImplementedError(
            f"{type(self).__name__} has an own_group() and no learning_rate()"
        )

    def without_optimizer(self) -> list[nn.Parameter]:
        """Parameters that no optimizer may have, since the rule moves them itself."""
        return []

    @property
    def leaves_out_gradients(self) -> bool:
        """Whether some parameters that require gradients get none in a backward pass."""
        return False

    @property
    def steps_before(self) -> bool:
        """Whether `before_step` is needed; a loop that never calls it is told so."""
        return type(self).before_step is not Rule.before_step

    def before_step(self, moment: Moment, losses: Losses) -> None:
        """Called before a step; may compute the losses of its batches and learn from them."""

    def around_step(self) -> AbstractContextManager[Any]:
        """A context in which the step's forward and backward passes run."""
        return nullcontext()

    def before_update(self, moment: Moment) -> None:
        """Called when the gradients of a step are complete, before the optimizer uses them.

        If the loss is scaled, the gradients of `without_optimizer()` alone are unscaled already.
        """

    def after_update(self, moment: Moment) -> None:
        """Called after the optimizer's step."""

    def last_phase(self, total_steps: int) -> int:
        """How many steps at the end of a training are trained in another way."""
        return 0

    def extra_seconds(self, measure: Callable[[], float]) -> float:
        """How many seconds the rule adds to a step; `measure` times a forward and backward."""
        return 0.0

    def record(self) -> dict[str, dict[str, list[float]]]:
        """What is worth following over the training: path of a system to name to numbers."""
        return {}
