"""The rules of training of a model's systems, for any training loop.

All but MAE's `before_step` happens in hooks of `optimizer.step()`, so that the rules skip the steps
that a `GradScaler` skips.
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from headwise.heads.rules import Rule, TrainingProgress, TrainingWarning, rule_settings
from headwise.heads.system import System
from headwise.messages import cut, did_you_mean
from headwise.models.inspect import layer_label
from headwise.models.parameters import decayed_parameters
from headwise.models.plan import rule_name, system_class


class TrainingRules:
    """The rules of training of all systems in a model, for any training loop.

    Args:
        model: any module that holds systems, without `DistributedDataParallel` around it.
        total_steps: number of optimizer steps of the training.
        steps_per_epoch: number of steps of a pass over the data. By default, each step counts as
            an epoch.
        settings: from the name of a system to settings that differ from its paper: a mapping, or
            an object of the rule's `settings_class`.

    Attributes:
        rules: the rules by the names of the systems that have them.
        step: number of optimizer steps so far. A loop that resumes a training sets it: rules have
            no other state.

    Raises:
        ValueError: settings of a system without a rule in the model, or wrong settings.

    Example:
        >>> import torch
        >>> import headwise as hw
        >>> layer = hw.BranchedAttention(8, 2, ffn_dim=16)
        >>> rules = hw.TrainingRules(layer, total_steps=6)
        >>> optimizer = rules.attach(torch.optim.AdamW(rules.parameter_groups(lr=1e-3)))
        >>> for _ in range(6):
        ...     layer(torch.randn(2, 5, 8)).output.square().mean().backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> rules.step, round(layer.alpha.sum().item(), 4)
        (6, 1.0)
    """

    def __init__(
        self,
        model: nn.Module,
        total_steps: int,
        *,
        steps_per_epoch: float | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.total_steps, self.step = model, total_steps, 0
        self.steps_per_epoch, self.rules = steps_per_epoch, dict[str, Rule]()
        self._is_prepared = False
        remaining = dict(settings or {})
        for rule_class, systems in rules_in(model).items():
            name = rule_name(type(next(iter(systems.values()))))
            chosen = rule_settings(name, rule_class, remaining.pop(name, {}))
            chosen.check(total_steps)
            self.rules[name] = rule_class(model, systems, chosen)
        for name in remaining:
            known = ", ".join(self.rules) or "none has one"
            raise ValueError(
                f"settings name {name!r}, expected some of the systems of the model with a rule of "
                f"training: {known}{did_you_mean(name, self.rules)}"
            )

    @property
    def progress(self) -> TrainingProgress:
        """The position of the next step in the training."""
        if self.steps_per_epoch is None:
            return TrainingProgress(self.step, self.total_steps)
        epoch = int((self.step + 1e-6) // self.steps_per_epoch)  # thirds of steps are rounded
        return TrainingProgress(self.step, self.total_steps, epoch)

    @property
    def leaves_out_gradients(self) -> bool:
        """Whether `DistributedDataParallel` needs `find_unused_parameters=True`, as with MAE."""
        return any(p.requires_grad for r in self.rules.values() for p in r.without_optimizer())

    def parameter_groups(self, lr: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Groups for an optimizer: decayed parameters, other ones, and those of the rules.

        Frozen parameters, and those that a rule moves without the optimizer, are in no group.

        Args:
            lr: learning rate of all groups but those of rules, which have their own rates.
            weight_decay: of matrices and embeddings, except those in `no_decay` of a system.
        """
        # A group has a parameter that two systems share only once.
        own_groups = [list(dict.fromkeys(rule.own_group())) for rule in self.rules.values()]
        without_optimizer = [rule.without_optimizer() for rule in self.rules.values()]
        rule_parameters = {p for parameters in own_groups + without_optimizer for p in parameters}
        rest = [p for p in self.model.parameters() if p.requires_grad and p not in rule_parameters]
        decayed = set(decayed_parameters(self.model))
        groups = [(weight_decay, [p for p in rest if p in decayed])]
        groups += [(0.0, [p for p in rest if p not in decayed]), *((0.0, ps) for ps in own_groups)]
        return [{"params": ps, "weight_decay": decay, "lr": lr} for decay, ps in groups if ps]

    def attach(self, optimizer: Any) -> Any:
        """Lets an optimizer follow these rules, in place of others, at each step; returns it.

        Args:
            optimizer: an optimizer with the groups of `parameter_groups`, also wrapped by
                accelerate. Of several optimizers, the one with the groups of the rules.

        Raises:
            ValueError: parameters of a rule have no group of their own in the optimizer.
        """
        inner = getattr(optimizer, "optimizer", optimizer)  # accelerate's has no hooks of its own
        self._rule_groups(inner)
        for hook in getattr(inner, "_rule_hooks", ()):
            hook.remove()
        hooks = inner._rule_hooks = [inner.register_step_pre_hook(self._before_update)]
        hooks.append(inner.register_step_post_hook(self._after_update))
        for rule in self.rules.values():
            for system in rule.systems.values():
                system.training_rule = rule
            drop = partial(self._drop_frozen, rule)
            hooks += [p.register_post_accumulate_grad_hook(drop) for p in rule.own_group()]
            rule.start()
        return optimizer

    def _drop_frozen(self, rule: Rule, parameter: Tensor) -> None:
        """Drops a gradient while its rate is 0, before it counts in a norm that clips gradients."""
        is_followed = all(system.training_rule is rule for system in rule.systems.values())
        if is_followed and self.step < self.total_steps and not rule.learning_rate(self.progress):
            parameter.grad = None

    def _rule_groups(self, optimizer: Optimizer) -> list[tuple[Rule, dict[str, Any]]]:
        """The groups whose rates rules set; raises `ValueError` if they are missing or mixed."""
        rule_groups = []
        for rule in self.rules.values():
            ids = {id(p) for p in rule.own_group()}
            groups = [g for g in optimizer.param_groups if ids.intersection(map(id, g["params"]))]
            if ids != {id(p) for group in groups for p in group["params"] if p.requires_grad}:
                names = ", ".join(name for name, p in self.model.named_parameters() if id(p) in ids)
                raise ValueError(
                    f"the optimizer has no group of {cut(names)} alone, which {type(rule).__name__}"
                    f" needs: expected one made of rules.parameter_groups(lr=...)"
                )
            rule_groups += [(rule, group) for group in groups]
        return rule_groups

    def before_step(self, loss: Callable[[], Tensor | Iterable[Tensor]]) -> None:
        """Lets rules take steps of their own; call it before any computation of a step.

        Args:
            loss: a function that computes the loss of the next step. Where gradients are
                accumulated, it returns several losses, whose gradients are summed. With several
                processes it computes the loss of the process's own batch, by the model without
                `DistributedDataParallel`; the rules average over processes.
        """

        def losses() -> Iterable[Tensor]:
            value = loss()
            return [value] if isinstance(value, Tensor) else value

        for rule in self.rules.values():
            rule.before_step(self.progress, losses)
        self._is_prepared = True

    def record(self) -> dict[str, float]:
        """Figures of the rules to record: `alpha encoder_self.2/5` is the α of unit 5."""
        return {
            f"{name} {layer_label(path, rule.systems[path])}/{unit}": value
            for rule in self.rules.values()
            for path, followed in rule.record().items()
            for name, values in followed.items()
            for unit, value in enumerate(values)
        }

    def _before_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        self._check_step(optimizer)
        for rule, group in self._rule_groups(optimizer):
            group["lr"] = rule.learning_rate(self.progress)  # instead of the rate of a schedule
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)

        def update() -> Any:  # the closure computes the gradients
            loss = closure and closure()
            for rule in self.rules.values():
                rule.before_update(self.progress)
            return loss

        return ((optimizer,), {**kwargs, "closure": update}) if closure else update()

    def _after_update(self, *_: Any) -> None:
        for rule in self.rules.values():
            rule.after_update(self.progress)
        self.step += 1
        self._is_prepared = False

    def _check_step(self, optimizer: Optimizer) -> None:
        """Raises, or warns, if a step would break the rules."""
        waiting = [name for name, rule in self.rules.items() if rule.steps_before]
        if waiting and not self._is_prepared:
            raise RuntimeError(
                f"optimizer.step() was called without what {' and '.join(waiting)} needs: call "
                f"rules.before_step(lambda: model(**batch).loss) before each step's own loss"
            )
        if self.rules and getattr(optimizer, "found_inf", None) is not None:
            raise RuntimeError(
                "a fused optimizer unscales gradients and skips steps where no rule sees it: build "
                "it with fused=False (optim='adamw_torch'), or train without GradScaler"
            )
        if self.rules and self.step == self.total_steps:
            warnings.warn(
                f"the training continues after total_steps={self.total_steps}, which the rules of "
                f"{' and '.join(self.rules)} count on: give TrainingRules the number of all steps",
                TrainingWarning,
                stacklevel=4,
            )


def rules_in(model: nn.Module) -> dict[type[Rule], dict[str, System]]:
    """The systems of a model, also inside other systems, by their rule and their path."""
    by_rule: dict[type[Rule], dict[str, System]] = {}
    for path, module in model.named_modules():
        if isinstance(module, System) and module.rule is not None:
            by_rule.setdefault(module.rule, {})[path] = module
    return by_rule


def settings_in_use(model: nn.Module, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings of all rules, by system, whose rule a system of the model has."""
    held = rules_in(model)
    return {name: each for name, each in settings.items() if system_class(name).rule in held}


class RulesMixin:
    """`class Trainer(headwise.RulesMixin, transformers.Trainer)` trains systems by their rules.

    The optimizer gets the groups of `TrainingRules.parameter_groups`, at the learning rate and
    weight decay of the arguments; a Trainer that was given an optimizer keeps it.

    `rule_settings` are the `settings` of `TrainingRules`.
    """

    rule_settings: Mapping[str, Any] = {}
    rules: TrainingRules

    def set_initial_training_values(self: Any, args: Any, dataloader: Any) -> Any:
        values = super().set_initial_training_values(args, dataloader)  # type: ignore[misc]
        epochs, per_epoch, *_, self._total_steps = values
        # Of a stream, whose length is unknown, the Trainer takes all steps for an epoch.
        self._steps_per_epoch = None if epochs == sys.maxsize else per_epoch
        return values

    def create_optimizer(self: Any, model: Any = None) -> Any:
        options = {"steps_per_epoch": self._steps_per_epoch, "settings": self.rule_settings}
        self.rules = TrainingRules(self.model, self._total_steps, **options)
        if self.optimizer is None:
            chosen = self.optimizer_cls_and_kwargs
            kind, kwargs = chosen or self.get_optimizer_cls_and_kwargs(self.args, self.model)
            groups = self.rules.parameter_groups(self.args.learning_rate, self.args.weight_decay)
            self.optimizer = kind(groups, **kwargs)
        return self.optimizer

    def create_scheduler(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.rules.attach(self.optimizer)  # which has by now what FSDP makes of the parameters
        return super().create_scheduler(*args, **kwargs)  # type: ignore[misc]

    def get_batch_samples(self: Any, *args: Any) -> Any:
        self._next_samples = super().get_batch_samples(*args)  # type: ignore[misc]
        return self._next_samples

    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._next_samples is not None:  # only by now a resumed run has its random state
            (batches, items), self._next_samples = self._next_samples, None
            self.rules.step = self.state.global_step
            self.rules.before_step(lambda: self._losses(batches, items))
        return super().training_step(*args, **kwargs)  # type: ignore[misc]

    def _losses(self: Any, batches: Sequence[Any], items: Any) -> Iterator[Tensor]:
        """The losses of a step's batches, by the model without data-parallel wrapper."""
        self.model.train()
        is_scaled = self.loss_is_scaled_for_ga  # by the number of batches
        if is_scaled is None:
            is_scaled = items is not None or self.compute_loss_func is not None
        for batch in batches:
            inputs = self._prepare_inputs(batch)
            with self.compute_loss_context_manager():
                loss = self.compute_loss(self.model, inputs, num_items_in_batch=items)
            yield loss if is_scaled else loss / len(batches)
