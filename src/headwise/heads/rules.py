"""Rules of training: the steps of a paper beyond gradient descent on all parameters.

`headwise.TrainingRules` finds the rules of a model's systems and hooks them to an optimizer.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

from pydantic import ValidationError
from torch import Tensor, nn

from headwise.messages import expected_one_of
from headwise.settings import Settings


class TrainingWarning(UserWarning):
    """A system is trained otherwise than its paper says: without its rule, or without its loss."""


class TrainingProgress(NamedTuple):
    """The place of a step in a training.

    Attributes:
        step: number of optimizer steps before it.
        total_steps: number of optimizer steps of the whole training.
        epoch: number of passes over the data before it; None if nobody counts them.
    """

    step: int
    total_steps: int
    epoch: int | None = None


class RuleSettings(Settings):
    """The settings of a rule; a rule with any has a subclass of it."""

    def check(self, total_steps: int) -> None:
        """Raises `ValueError` if the settings do not fit a training of `total_steps` steps."""


def rule_settings(name: str, rule_class: "type[Rule]", values: Any) -> RuleSettings:
    """The settings of a system's rule; raises `ValueError` for an unknown key or a bad value."""
    try:
        return rule_class.settings_class.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, (name, *problem["loc"])))
        if problem["type"] == "extra_forbidden":
            expected = expected_one_of(problem["loc"][-1], rule_class.settings_class.model_fields)
            raise ValueError(f"{key} is no setting, {expected}") from None
        raise ValueError(f"{key} is {problem['input']!r}: {problem['msg']}") from None


class Rule:
    """How the systems of one kind in a model are trained.

    One object of a rule serves all systems of a model whose class names the rule. A step calls

        before_step(progress, losses)      when nothing of the step has been computed yet
        before_update(progress)            when the gradients are there, before the optimizer's step
        after_update(progress)             after the optimizer's step

    Each does nothing unless a subclass overrides it. State for a resumed training belongs in a
    buffer of the system, which every checkpoint holds. A rule reads the parameters from the systems
    at each call, since they may have been replaced.

    Args:
        model: the model that is trained.
        systems: its systems that have this rule, by their paths in the model.
        settings: an object of `settings_class`.

    Attributes:
        settings_class: of the settings that a recipe gives as `training.rules.SYSTEM`.
    """

    settings_class: ClassVar[type[RuleSettings]] = RuleSettings

    def __init__(self, model: nn.Module, systems: Mapping[str, Any], settings: Any) -> None:
        self.model, self.systems, self.settings = model, dict(systems), settings

    @property
    def layers(self) -> list[Any]:
        """The systems without their paths."""
        return list(self.systems.values())

    @property
    def steps_before(self) -> bool:
        """Whether a loop has to call `before_step`, which then a subclass overrides."""
        return type(self).before_step is not Rule.before_step

    def start(self) -> None:
        """Prepares the systems for training, when the rule is attached to an optimizer."""

    def own_group(self) -> list[nn.Parameter]:
        """Parameters that learn, in a group of the optimizer that is the rule's own.

        They have the rule's learning rate and no decay. A rule that moves them itself, from their
        gradients in `before_update`, clears these, so that the optimizer leaves them as they are.
        """
        return []

    def learning_rate(self, progress: TrainingProgress) -> float:
        """The learning rate of `own_group()` in a step; where it is 0, they have no gradients."""
        raise NotImplementedError

    def without_optimizer(self) -> list[nn.Parameter]:
        """Parameters that learn in `before_step` alone, and are in no group of the optimizer."""
        return []

    def before_step(
        self, progress: TrainingProgress, losses: Callable[[], Iterable[Tensor]]
    ) -> None:
        """May compute the losses of the coming step and learn from them.

        A rule that overrides it has the loop call `rules.before_step(loss)` before each step.

        Args:
            losses: computes the losses anew, one for each batch of the step. The sum of their
                gradients is the gradient of the step; with several processes, the mean of these.
        """

    def before_update(self, progress: TrainingProgress) -> None:
        """The gradients are complete and unscaled, and the optimizer has not used them yet."""

    def after_update(self, progress: TrainingProgress) -> None:
        """The optimizer has taken its step."""

    def record(self) -> dict[str, dict[str, list[float]]]:
        """Values to log: from the path of a system to a name to a number for each unit.

        A name is none of `share`, `entropy` and `explained`, which are measured of all systems.
        """
        return {}
