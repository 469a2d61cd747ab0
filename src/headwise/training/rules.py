"""The rules of training of a model's systems, hooked to the optimizer of any training loop.

A loop makes them by `training_rules`, attaches them to its optimizer, and calls `before_step` where
MAE learns. All else happens in two hooks that PyTorch calls before and after `optimizer.step()`, so
that a step which a `GradScaler` skips is none for the rules either.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.optim import Optimizer

from headwise.heads.rules import Moment, Rule, RuleSettings, UntrainedRuleWarning
from headwise.heads.system import System
from headwise.models.parameters import decayed_parameters
from headwise.models.plan import rule_name, system_name
from headwise.ops.checks import did_you_mean
from headwise.ops.replicas import whole


def training_rules(
    model: nn.Module,
    total_steps: int,
    *,
    steps_per_epoch: int | None = None,
    warmup_steps: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> "TrainingRules":
    """The rules of training of all systems in a model; see `TrainingRules` for what they offer.

    Args:
        model: a headwise model, or any module that holds systems; without data-parallel wrapper.
            One that `fully_shard` has divided is not wrapped.
        total_steps: number of optimizer steps of the training.
        steps_per_epoch: number of optimizer steps of a pass over the data. A rule that counts
            epochs counts steps where it is not given.
        warmup_steps: in how many steps the learning rate of the optimizer rises, for rules whose
            own schedule follows it.
        settings: the name of a system to the settings of its rule, a mapping or an object of the
            rule's `settings_class`. Without settings, those of the paper.

    Raises:
        ValueError: settings of a system whose rule the model does not need, or that do not fit.

    Example:
        >>> import torch
        >>> import headwise as hw
        >>> layer = hw.BranchedAttention(8, 2, ffn_dim=16)
        >>> rules = hw.training_rules(layer, total_steps=6)
        >>> optimizer = rules.attach(torch.optim.AdamW(rules.parameter_groups(lr=1e-3)))
        >>> for _ in range(6):
        ...     layer(torch.randn(2, 5, 8)).output.square().mean().backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> rules.moment.step, round(layer.alpha.sum().item(), 4)
        (6, 1.0)
    """
    return TrainingRules(model, total_steps, steps_per_epoch, warmup_steps, settings or {})


class TrainingRules:
    """The rules of a model's systems, joined; `training_rules` makes it.

    Attributes:
        rules: the rules by the names of the systems that have them.
        leaves_out_gradients: whether a backward pass may give parameters that learn no gradient,
            as the gates of MAE: `DistributedDataParallel` then needs `find_unused_parameters=True`.
        moment: where in the training the coming step stands.
    """

    def __init__(
        self,
        model: nn.Module,
        total_steps: int,
        steps_per_epoch: int | None,
        warmup_steps: int | None,
        settings: Mapping[str, Any],
    ) -> None:
        for name, count in (("total_steps", total_steps), ("steps_per_epoch", steps_per_epoch)):
            if count is not None and count < 1:
                raise ValueError(f"{name} is {count}, expected a positive number")
        self.model, self.total_steps = model, total_steps
        self.steps_per_epoch, self.warmup_steps = steps_per_epoch, warmup_steps
        self.rules: dict[str, Rule] = {}
        known: list[str] = []
        for kind, systems in rules_in(model).items():
            names = _names(systems)
            known += names
            given = [name for name in names if name in settings]
            if len(given) > 1:
                raise ValueError(
                    f"settings name {' and '.join(map(repr, given))}, which have one rule of "
                    f"training, expected it once: name {names[0]!r} alone"
                )
            of_rule = rule_settings(names[0], kind, settings[given[0]] if given else {})
            try:
                of_rule.check(total_steps)
            except ValueError as error:
                raise ValueError(f"{names[0]}.{error}") from None
            self.rules[names[0]] = kind(model, systems, of_rule)
        for name in settings:
            if name not in known:
                raise ValueError(
                    f"settings name {name!r}, expected one of the systems of the model that have a "
                    f"rule of training: {', '.join(self.rules) or 'none has'}"
                    f"{did_you_mean(name, known)}"
                )
        self._steps_before = [
            rule for rule in self.rules.values() if type(rule).before_step is not Rule.before_step
        ]
        self._steps = 0
        self._peak_rate: float | None = None
        self._is_prepared = self._is_unscaled = self._went_beyond = False
        self._optimizer: Optimizer | None = None
        self._scaler: torch.amp.GradScaler | None = None
        self._hooks: list[Any] = []

    @property
    def moment(self) -> Moment:
        epoch = None if self.steps_per_epoch is None else self._steps // self.steps_per_epoch
        return Moment(self._steps, self.total_steps, epoch, self._peak_rate, self.warmup_steps)

    @property
    def leaves_out_gradients(self) -> bool:
        return any(parameter.requires_grad for parameter in self._without_optimizer())

    def parameter_groups(
        self,
        lr: float,
        weight_decay: float = 0.0,
        factor: Callable[[str], float] = lambda name: 1.0,
    ) -> list[dict[str, Any]]:
        """Groups of parameters for an optimizer: decayed ones, others, and those of the rules.

        Parameters that a rule moves by itself are in none of them, nor are frozen ones.

        Args:
            lr: learning rate of all but the rules' own groups.
            weight_decay: of matrices and embeddings; norms, biases, scalars, and what a system
                names in `no_decay` take none.
            factor: what the learning rate of a parameter is multiplied by, by its name in the
                model: for rates by layer. The rules' own groups keep the rates of the rules.
        """
        # A parameter that two systems share stands in a group once.
        own = [list(dict.fromkeys(rule.own_group())) for rule in self.rules.values()]
        apart = {id(p) for p in self._without_optimizer()} | {id(p) for ps in own for p in ps}
        decayed = {id(parameter) for parameter in decayed_parameters(self.model)}
        others: dict[tuple[float, float], list[nn.Parameter]] = {}
        for name, p in self.model.named_parameters():
            if p.requires_grad and id(p) not in apart:
                decay = weight_decay if id(p) in decayed else 0.0
                others.setdefault((-decay, lr * factor(name)), []).append(p)
        kinds = [(rate, -decay, others[decay, rate]) for decay, rate in sorted(others)]
        kinds += [(lr, 0.0, parameters) for parameters in own if parameters]
        # Where rules move all that learns, a group without parameters keeps an optimizer working.
        return [
            {"params": parameters, "lr": rate, "weight_decay": decay}
            for rate, decay, parameters in kinds or [(lr, 0.0, [])]
        ]

    def attach(self, optimizer: Any, scaler: torch.amp.GradScaler | None = None) -> Any:
        """Has the rules followed at each step of an optimizer, and returns it.

        Args:
            optimizer: made of `parameter_groups`, or of groups that keep apart what these do; also
                as accelerate wraps it. Of several optimizers it is the one with the rules' groups.
            scaler: the one that scales the losses, if any does; it then unscales the gradients
                of parameters that the optimizer does not have too.

        Raises:
            ValueError: what a rule trains by the optimizer stands in none of its groups, or with
                others in one; or what a rule moves by itself stands in one.
        """
        inner = getattr(optimizer, "optimizer", optimizer)  # accelerate's has no hooks of its own
        others = {id(group) for _, group in self._own_groups(inner)}
        rates = [g.get("initial_lr", g["lr"]) for g in inner.param_groups if id(g) not in others]
        self._peak_rate = max(map(float, rates), default=None)
        self.detach()
        self._hooks = [
            inner.register_step_pre_hook(self._before_update),
            inner.register_step_post_hook(self._after_update),
        ]
        self._hooks += [
            parameter.register_hook(partial(self._used, rule))
            for rule in self.rules.values()
            for parameter in rule.own_group()
            if parameter.requires_grad
        ]
        self._optimizer = inner
        if scaler is not None and scaler is not self._scaler and scaler.is_enabled():
            self._scaler, unscale = scaler, scaler.unscale_

            def unscale_all(which: Optimizer) -> None:
                # Before whatever clips, and in a step that the scaler is about to skip.
                unscale(which)
                if which is self._optimizer:
                    self._unscale(any(map(bool, scaler._found_inf_per_device(which).values())))

            scaler.unscale_ = unscale_all  # type: ignore[method-assign,assignment]
        for rule in self.rules.values():
            for system in rule.systems.values():
                system.follows_rule = True
            rule.start()
        return optimizer

    def detach(self) -> None:
        """Takes the rules off the optimizer that they are attached to."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._optimizer = [], None

    def before_step(self, loss: Callable[[], Tensor | Iterable[Tensor]]) -> None:
        """Called before anything of a step is computed; rules may take steps of their own.

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
            several = isinstance(computed, Iterable) and not isinstance(computed, Tensor | Mapping)
            for each in computed if several else [computed]:
                if not isinstance(each, Tensor) or each.numel() != 1:
                    raise TypeError(
                        f"loss gives a {type(each).__name__}, expected a tensor of one number, or "
                        f"several in turn: return the loss alone, as model(x).loss is"
                    )
                yield each

        for rule in self._steps_before:
            rule.before_step(self.moment, losses)
        self._is_prepared = True

    def state_dict(self) -> dict[str, int]:
        """What a checkpoint has to keep: the number of steps taken."""
        return {"steps": self._steps}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Goes on where `state_dict` was taken."""
        self._steps = state["steps"]

    def record(self) -> dict[str, dict[str, dict[str, list[float]]]]:
        """What the rules follow over the training: name of the system to path to numbers."""
        records = {name: rule.record() for name, rule in self.rules.items()}
        return {name: record for name, record in records.items() if record}

    def _used(self, rule: Rule, gradient: Tensor) -> Tensor:
        """A gradient of the rule's group, zero where its rate is: no norm to clip then has it."""
        return gradient if rule.learning_rate(self.moment) else torch.zeros_like(gradient)

    def _before_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """The hook before `optimizer.step()`."""
        if self._steps_before and not self._is_prepared:
            raise RuntimeError(
                f"optimizer.step() was called without rules.before_step(loss), which "
                f"{_joined(self._steps_before)} needs: call rules.before_step(lambda: "
                f"model(**batch).loss) before the loss of each step is computed"
            )
        if self.rules and self._steps >= self.total_steps and not self._went_beyond:
            self._went_beyond = True
            warnings.warn(
                f"the training goes on after total_steps={self.total_steps}, by which "
                f"{_joined(self.rules.values())} reckons: give training_rules the number of steps "
                f"that are taken",
                UntrainedRuleWarning,
                stacklevel=3,
            )
        moment = self.moment
        for rule, group in self._own_groups(optimizer):
            group["lr"] = rule.learning_rate(moment)  # whatever a schedule has set

        def update() -> None:
            if self._scaler is not None and not self._is_unscaled:  # a fused optimizer unscales
                self._unscale()
            for rule in self.rules.values():
                rule.before_update(moment)

        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            return update()

        def computed() -> Any:  # the gradients are there when the closure has been called
            loss = closure()
            update()
            return loss

        return (optimizer,), {**kwargs, "closure": computed}

    def _after_update(self, *_: Any) -> None:
        """The hook after `optimizer.step()`."""
        moment = self.moment
        for rule in self.rules.values():
            rule.after_update(moment)
        self._steps += 1
        self._is_prepared = self._is_unscaled = False

    def _without_optimizer(self) -> list[nn.Parameter]:
        return [p for rule in self.rules.values() for p in rule.without_optimizer()]

    def _unscale(self, is_skipped: bool = False) -> None:
        """Takes the scale out of gradients that the scaler does not see, or drops them."""
        assert self._scaler is not None
        apart, scale = self._without_optimizer(), self._scaler.get_scale()
        gradients = [p.grad.div_(scale) for p in apart if p.grad is not None]
        if is_skipped or not all(bool(whole(x.isfinite().all())) for x in gradients):
            for parameter in apart:
                parameter.grad = None
        self._is_unscaled = not is_skipped

    def _own_groups(self, optimizer: Optimizer) -> list[tuple[Rule, dict[str, Any]]]:
        """The optimizer's groups that rules set the rates of; raises where others are in them."""
        found = []
        for rule in self.rules.values():
            own, apart = (
                {id(p) for p in parameters if p.requires_grad}
                for parameters in (rule.own_group(), rule.without_optimizer())
            )
            missing = set(own)
            for group in optimizer.param_groups:
                held = {id(p) for p in group["params"] if p.requires_grad}
                missing -= held
                if held & apart:
                    self._refuse(f"has {{}}, which {_joined([rule])} moves itself", held & apart)
                if held & own and held - own:
                    self._refuse(f"has {{}} in a group of {_joined([rule])}", held - own)
                if held & own:
                    found.append((rule, group))
            if missing:
                self._refuse(f"lacks {{}}, which {_joined([rule])} trains by it", missing)
        return found

    def _refuse(self, problem: str, parameters: set[int]) -> None:
        names = [name for name, p in self.model.named_parameters() if id(p) in parameters]
        shown = ", ".join(names[:3]) + ", …" * (len(names) > 3)
        raise ValueError(
            f"the optimizer {problem.format(shown)}: expected one made of "
            f"rules.parameter_groups(lr=...), whose `factor` divides a model further"
        )


def _joined(rules: Iterable[Rule]) -> str:
    return " and ".join(type(rule).__name__ for rule in rules)


def rules_in(model: nn.Module) -> dict[type[Rule], dict[str, System]]:
    """The systems of a model, those within others too, by their rule and their path."""
    found: dict[type[Rule], dict[str, System]] = {}
    for path, module in model.named_modules():
        if isinstance(module, System) and module.rule is not None:
            found.setdefault(module.rule, {})[path] = module
    return found


def _names(systems: Mapping[str, System]) -> list[str]:
    """The names by which settings may name the rule of some systems, the usual one first."""
    kinds = [type(system) for system in systems.values()]
    return list(dict.fromkeys([*map(rule_name, kinds), *map(system_name, kinds)]))


def rule_settings(name: str, kind: type[Rule], given: Any) -> RuleSettings:
    """The settings of a rule, which may be given as a mapping."""
    try:
        return kind.settings_class.model_validate(given)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, (name, *problem["loc"])))
        if problem["type"] != "extra_forbidden":
            raise ValueError(f"{where} is {problem['input']!r}: {problem['msg']}") from None
        known = list(kind.settings_class.model_fields)
        raise ValueError(
            f"{where} is no setting, expected one of {', '.join(known) or 'none'}"
            f"{did_you_mean(problem['loc'][-1], known)}"
        ) from None
