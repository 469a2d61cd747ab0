"""The rules of training of all systems in a model, for any training loop.

A system may ask for more than gradient descent on all parameters (`headwise.heads.rule`).
`training_rules` finds the rules of a model's systems and joins them into one object, which any loop
can call. headwise's own trainer, the mixin for transformers' Trainer and the callback for Lightning
do nothing else.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.optim import Optimizer

from headwise.heads.rule import Losses, Moment, Rule, RuleSettings
from headwise.heads.system import System
from headwise.heads.watching import UntrainedRuleWarning, optimizer_steps
from headwise.messages import did_you_mean
from headwise.models.parameters import decayed_parameters
from headwise.models.plan import rule_name, system_class, system_name

Records = dict[str, dict[str, dict[str, list[float]]]]


def training_rules(
    model: nn.Module,
    total_steps: int,
    *,
    steps_per_epoch: int | None = None,
    warmup_steps: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> "TrainingRules":
    """The rules of training of all systems in a model.

    Args:
        model: a headwise model, or any module that holds systems; without data-parallel wrapper.
            One that `fully_shard` has divided is not wrapped.
        total_steps: number of optimizer steps of the training.
        steps_per_epoch: number of optimizer steps of a pass over the data. A rule that counts
            epochs counts steps where it is not given.
        warmup_steps: in how many steps the learning rate of the optimizer rises. A rule whose own
            schedule is in proportion to that has the paper's where it is not given.
        settings: the name of a system to the settings of its rule, a mapping or an object of the
            rule's `settings_class`. Without settings, those of the paper.

    Returns:
        An object to call in the loop; it does nothing for systems without a rule.

    Raises:
        ValueError: settings of a system whose rule the model does not need, or that do not fit.

    Example:
        >>> import torch
        >>> import headwise as hw
        >>> layer = hw.MultiHeadAttention(embed_dim=8, num_heads=2)
        >>> rules = training_rules(layer, total_steps=6)
        >>> optimizer = torch.optim.AdamW(rules.parameter_groups(lr=1e-3))
        >>> for _ in range(6):
        ...     x = torch.randn(2, 5, 8)
        ...     rules.before_step(lambda: layer(x).output.square().mean())
        ...     with rules.step(optimizer):
        ...         layer(x).output.square().mean().backward()
        ...     optimizer.step()
        ...     rules.after_step()
        ...     optimizer.zero_grad()
        >>> rules.moment.step
        6
    """
    if total_steps < 1:
        raise ValueError(f"total_steps is {total_steps}, expected a positive number")
    if steps_per_epoch is not None and steps_per_epoch < 1:
        raise ValueError(f"steps_per_epoch is {steps_per_epoch}, expected a positive number")
    rules = TrainingRules(model, settings or {})
    rules.check_names(settings or {})
    rules.total_steps, rules.steps_per_epoch = total_steps, steps_per_epoch
    rules.warmup_steps = warmup_steps
    rules.check(total_steps)
    return rules


class TrainingRules:
    """The rules of a model's systems, joined; `training_rules` makes it.

    Attributes:
        rules: the rules by the names of the systems that declare them.
        keys: for each rule, the keys of `settings` that are names of a system with it.
        moment: where in the training the coming step stands.
    """

    def __init__(self, model: nn.Module, settings: Mapping[str, Any]) -> None:
        self.model = model
        held: dict[type[Rule], dict[str, Any]] = {}
        names: dict[type[Rule], str] = {}
        # Systems within other systems too: whatever decides, all of them are trained.
        for path, module in model.named_modules():
            if isinstance(module, System) and module.rule is not None:
                held.setdefault(module.rule, {})[path] = module
                names.setdefault(module.rule, rule_name(type(module)))
        self.rules: dict[str, Rule] = {}
        self.keys: dict[str, list[str]] = {}
        for rule, systems in held.items():
            name = names[rule]
            self.keys[name] = keys = _keys_of(rule, systems, settings)
            given = settings[name if name in keys else keys[0]] if keys else None
            self.rules[name] = rule(model, systems, _settings(name, rule, given))
        self.total_steps = 0
        self.steps_per_epoch: int | None = None
        self.warmup_steps: int | None = None
        self.peak_rate: float | None = None
        self._steps = 0
        # The calls of the loop in the step at hand, and how many steps optimizers had taken then.
        self._called: set[str] = set()
        self._optimizer_steps = 0
        self._told: set[str] = set()

    def check_names(self, settings: Mapping[str, Any]) -> None:
        """Raises `ValueError` for settings of a system that has no rule here.

        Also for those of one rule that are given under two of its names, and differ.
        """
        used = {key for keys in self.keys.values() for key in keys}
        for name in settings:
            if name not in used:
                known = list(self.rules)
                raise ValueError(
                    f"settings name {name!r}, expected one of the systems of the model that have a "
                    f"rule of training: {', '.join(known) or 'none has'}{did_you_mean(name, known)}"
                )
        for name, keys in self.keys.items():
            rule = type(self.rules[name])
            found = {key: _settings(name, rule, settings[key]) for key in keys}
            for key in keys[1:]:
                if found[key] != found[keys[0]]:
                    raise ValueError(
                        f"settings of one rule of training are given under two of its names, "
                        f"{keys[0]!r}: {settings[keys[0]]!r} and {key!r}: {settings[key]!r}, "
                        f"expected them once: name them {name!r} alone"
                    )

    @property
    def moment(self) -> Moment:
        epoch = None if self.steps_per_epoch is None else self._steps // self.steps_per_epoch
        return Moment(self._steps, self.total_steps, epoch, self.peak_rate, self.warmup_steps)

    def check(self, total_steps: int) -> None:
        """Raise `ValueError` if settings do not fit a training of `total_steps` steps."""
        for name, rule in self.rules.items():
            try:
                rule.settings.check(total_steps)
            except ValueError as error:
                raise ValueError(f"{name}.{error}") from None

    def last_phases(self, total_steps: int) -> dict[str, int]:
        """How many steps at the end of a training rules train in another way, by system."""
        phases = {name: rule.last_phase(total_steps) for name, rule in self.rules.items()}
        return {name: steps for name, steps in phases.items() if steps}

    @property
    def leaves_out_gradients(self) -> bool:
        """Whether a backward pass gives some parameters that require gradients none.

        `DistributedDataParallel` then needs `find_unused_parameters=True`.
        """
        return any(rule.leaves_out_gradients for rule in self.rules.values())

    def parameter_groups(self, lr: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Groups of parameters for an optimizer: decayed ones, others, and those of the rules.

        Parameters that a rule moves by itself are in none of them, nor are frozen ones.

        Args:
            lr: learning rate of all but the rules' own groups.
            weight_decay: of matrices and embeddings; norms, biases, scalars, and what a system
                names in `no_decay` take none.
        """
        self.peak_rate = lr
        # A parameter that two systems share stands in a group once.
        own = [list(dict.fromkeys(rule.own_group())) for rule in self.rules.values()]
        apart = {id(p) for rule in self.rules.values() for p in rule.without_optimizer()}
        apart |= {id(parameter) for group in own for parameter in group}
        decayed = {id(parameter) for parameter in decayed_parameters(self.model)}
        others = [p for p in self.model.parameters() if p.requires_grad and id(p) not in apart]

        def group(parameters: list[nn.Parameter], decay: float = 0.0) -> dict[str, Any]:
            return {"params": parameters, "lr": lr, "weight_decay": decay}

        groups = [
            group([p for p in others if id(p) in decayed], weight_decay),
            group([p for p in others if id(p) not in decayed]),
            *map(group, own),  # their rule sets the learning rate before each update
        ]
        # Without any, since rules move all that learns, the empty group keeps an optimizer working.
        return [group for group in groups if group["params"]] or groups[:1]

    def before_step(self, loss: Callable[[], Tensor | Iterable[Tensor]]) -> None:
        """Called before anything of the step is computed; rules may take steps of their own.

        Args:
            loss: computes the loss of the coming step's batch; if gradients are accumulated over
                several batches, gives one loss after the other, whose gradients are summed. It is
                called only if a rule needs it. With several processes it is the loss of the
                process's own batch, computed by the model without its data-parallel wrapper; the
                mean over the processes counts.

        Raises:
            TypeError: it is no function, or computes what is no loss.
        """
        if not callable(loss):
            raise TypeError(
                f"loss is a {type(loss).__name__}, expected a function that computes it: call "
                f"rules.before_step(lambda: model(x).loss)"
            )

        def losses() -> Iterator[Tensor]:
            computed: Any = loss()
            several = not isinstance(computed, Tensor | Mapping) and isinstance(computed, Iterable)
            for each in computed if several else [computed]:
                if not isinstance(each, Tensor) or each.numel() != 1:
                    shape = f" of shape {tuple(each.shape)}" if isinstance(each, Tensor) else ""
                    raise TypeError(
                        f"loss gives a {type(each).__name__}{shape}, expected a tensor of one "
                        f"number, or several in turn: return the loss alone, as model(x).loss is"
                    )
                yield each

        self._follow("before_step", stacklevel=3)
        self.before(self.moment, losses)

    @contextmanager
    def step(
        self, optimizer: Optimizer, scaler: torch.amp.GradScaler | None = None
    ) -> Iterator[None]:
        """A context for the forward and backward pass of a step, or of all that it accumulates.

        At its end the optimizer has the learning rates that rules have for their own parameters,
        whatever a schedule has set, and gradients that must not be used are gone.

        Args:
            optimizer: made with `parameter_groups`.
            scaler: the scaler of the losses, if there is one.

        Raises:
            ValueError: a group of the optimizer holds parameters that belong in others.
        """
        self._follow("step", stacklevel=4)  # contextmanager is between
        with self.around():
            yield
        self.before_update(self.moment, optimizer, scaler)
        self._optimizer_steps = optimizer_steps()

    def after_step(self) -> None:
        """Called after the optimizer's step; rules may project parameters."""
        self._follow("after_step", stacklevel=3)
        self.after_update(self.moment)
        self._called.clear()
        self._steps += 1

    def _follow(self, call: str, stacklevel: int) -> None:
        """Warns, once of each, where a loop leaves out a call, or takes more steps than it said.

        A step of which the loss has overflowed may end without the optimizer's, and without
        `after_step`.
        """
        problem = ""
        if call in self._called and optimizer_steps() > self._optimizer_steps:
            problem = "rules.after_step() was not called after an optimizer's step"
        elif call == "after_step" and "step" not in self._called:
            problem = "rules.step(optimizer) was never opened"
        elif call == "step" and "before_step" not in self._called and self._steps_before:
            problem = "rules.before_step(loss) was not called"
        elif call != "after_step" and 0 < self.total_steps <= self._steps:
            problem = f"the training goes on after total_steps={self.total_steps}"
        if call in self._called:
            self._called.clear()
        self._called.add(call)
        self._optimizer_steps = optimizer_steps()
        if problem and self.rules and problem not in self._told:
            self._told.add(problem)
            names = " and ".join(type(rule).__name__ for rule in self.rules.values())
            warnings.warn(
                f"{problem}, so that {names} is half followed: parameters may never learn, or "
                f"leave where they have to be; see docs/own-loop.md",
                UntrainedRuleWarning,
                stacklevel=stacklevel,
            )

    @property
    def _steps_before(self) -> bool:
        return any(rule.steps_before for rule in self.rules.values())

    def state_dict(self) -> dict[str, int]:
        """Returns what a checkpoint has to keep: the number of steps taken."""
        return {"steps": self._steps}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Goes on where `state_dict` was taken."""
        self._steps = state["steps"]

    # For trainers, which count steps themselves

    def before(self, moment: Moment, losses: Losses) -> None:
        """Does what `before_step` does, at a moment that the caller knows."""
        self._are_followed()
        for rule in self.rules.values():
            rule.before_step(moment, losses)

    @contextmanager
    def around(self) -> Iterator[None]:
        """The context of a forward and backward pass."""
        self._called.add("step")
        with ExitStack() as stack:
            for rule in self.rules.values():
                stack.enter_context(rule.around_step())
            yield

    def before_update(
        self,
        moment: Moment,
        optimizer: Optimizer,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        """Called when the gradients of a step are complete."""
        self._are_followed()
        for rule in self.rules.values():
            # A scaler knows only the parameters of its optimizer.
            _unscale(rule.without_optimizer(), scaler)
            rule.before_update(moment)
            for group in _groups_of(rule, optimizer):
                group["lr"] = rule.learning_rate(moment)

    def after_update(self, moment: Moment) -> None:
        """Called after the optimizer's step, at a moment that the caller knows."""
        self._are_followed()
        for rule in self.rules.values():
            rule.after_update(moment)

    def _are_followed(self) -> None:
        # Not when they are made: a loop may take the groups of parameters and forget the rest.
        for rule in self.rules.values():
            for system in rule.systems.values():
                system.follows_rule = True

    def record(self) -> Records:
        """What the rules follow over the training: name of the system to path to numbers."""
        records = {name: rule.record() for name, rule in self.rules.items()}
        return {name: record for name, record in records.items() if record}

    def step_seconds(self, measure: Callable[[], float]) -> float:
        """How long a step takes; `measure` runs forward and backward pass and says how long."""
        with self.around():
            seconds = measure()
        return seconds + sum(rule.extra_seconds(measure) for rule in self.rules.values())


def _groups_of(rule: Rule, optimizer: Optimizer) -> list[dict[str, Any]]:
    """The optimizer's groups of the rule's own parameters; they may hold no others."""
    own = {id(parameter) for parameter in rule.own_group()}
    apart = {id(parameter) for parameter in rule.without_optimizer() if parameter.requires_grad}
    found = []
    for number, group in enumerate(optimizer.param_groups):
        ids = {id(parameter) for parameter in group["params"]}
        if (ids & own and ids - own) or ids & apart:
            raise ValueError(
                f"optimizer has a group {number} of {len(ids)} parameters, of which "
                f"{len(ids & (own | apart))} are trained by {type(rule).__name__} in a way of "
                f"their own, expected the groups of `parameter_groups()`: build the optimizer as "
                f"in torch.optim.AdamW(rules.parameter_groups(lr=...))"
            )
        if ids & own:
            found.append(group)
    return found


def _unscale(parameters: list[nn.Parameter], scaler: torch.amp.GradScaler | None) -> None:
    """Takes the scale of the loss out of gradients; gradients that overflowed are dropped."""
    if scaler is None or not scaler.is_enabled():
        return
    scale = scaler.get_scale()
    gradients = [p.grad.div_(scale) for p in parameters if p.grad is not None]
    if not all(bool(gradient.isfinite().all()) for gradient in gradients):
        for parameter in parameters:
            parameter.grad = None


def _keys_of(
    rule: type[Rule], systems: Mapping[str, System], settings: Mapping[str, Any]
) -> list[str]:
    """The keys of settings that name a system with this rule, in any of the ways to name it."""
    kinds = {type(system) for system in systems.values()}
    names = {name_of(kind) for kind in kinds for name_of in (rule_name, system_name)}
    return [key for key in settings if key in names or _rule_of(key) is rule]


def _rule_of(key: str) -> type[Rule] | None:
    try:
        return system_class(key).rule
    except ValueError:  # no system, or one that is defined where nobody can import it
        return None


def _settings(name: str, rule: type[Rule], given: Any) -> RuleSettings:
    known = list(rule.settings_class.model_fields)
    for key in given if isinstance(given, Mapping) else ():
        if key not in known:
            raise ValueError(
                f"settings of {name} have the key {key!r}, expected one of "
                f"{', '.join(known) or 'none'}{did_you_mean(str(key), known)}"
            )
    try:
        return rule.settings_class.model_validate({} if given is None else given)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, (name, *problem["loc"])))
        raise ValueError(f"settings: {where} is {problem['input']!r}: {problem['msg']}") from None
