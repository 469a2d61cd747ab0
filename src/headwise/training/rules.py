"""The rules of training of a model's systems, for any training loop.

A loop attaches them to its optimizer, and calls `before_step` where MAE learns. All else happens in
hooks that PyTorch calls before and after `optimizer.step()`, so that a step which a `GradScaler`
skips is none for the rules either.
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.optim import Optimizer

from headwise.heads.rules import Moment, Rule, RuleSettings, UntrainedRuleWarning
from headwise.heads.system import System, auxiliary_loss
from headwise.models.parameters import decayed_parameters
from headwise.models.plan import rule_name, system_name
from headwise.ops.checks import did_you_mean
from headwise.ops.replicas import is_sharded


class TrainingRules:
    """The rules of training of all systems in a model; `headwise.training_rules` makes it.

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

    Attributes:
        rules: the rules by the names of the systems that have them.
        step: number of optimizer steps taken. A loop that goes on with a training sets it.

    Raises:
        ValueError: settings of a system whose rule the model does not need, or that do not fit.

    Example:
        >>> import headwise as hw
        >>> layer = hw.BranchedAttention(8, 2, ffn_dim=16)
        >>> rules = hw.training_rules(layer, total_steps=6)
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
        steps_per_epoch: int | None = None,
        warmup_steps: int | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        for name, count in (("total_steps", total_steps), ("steps_per_epoch", steps_per_epoch)):
            if count is not None and count < 1:
                raise ValueError(f"{name} is {count}, expected a positive number")
        self.model, self.total_steps, self.step = model, total_steps, 0
        self.steps_per_epoch, self.warmup_steps = steps_per_epoch, warmup_steps
        self.rules: dict[str, Rule] = {}
        self._is_prepared = self._went_beyond = False
        left = dict(settings or {})
        known: list[str] = []
        for kind, systems in rules_in(model).items():
            kinds = [type(system) for system in systems.values()]
            names = list(dict.fromkeys([*map(rule_name, kinds), *map(system_name, kinds)]))
            known += names
            given = [left.pop(name) for name in names if name in left]
            if len(given) > 1:
                raise ValueError(
                    f"settings name the one rule of {' and '.join(names)} more than once, expected "
                    f"one name, as {names[0]!r}"
                )
            chosen = rule_settings(names[0], kind, given[0] if given else {})
            try:
                chosen.check(total_steps)
            except ValueError as error:
                raise ValueError(f"{names[0]}.{error}") from None
            self.rules[names[0]] = kind(model, systems, chosen)
        for name in left:
            raise ValueError(
                f"settings name {name!r}, expected one of the systems of the model that have a "
                f"rule of training: {', '.join(known) or 'none has'}{did_you_mean(name, known)}"
            )

    @property
    def moment(self) -> Moment:
        """Where in the training the coming step stands."""
        epoch = None if self.steps_per_epoch is None else self.step // self.steps_per_epoch
        return Moment(self.step, self.total_steps, epoch, self.warmup_steps)

    @property
    def leaves_out_gradients(self) -> bool:
        """Whether a backward pass may give parameters that learn no gradient, as MAE's gates:
        `DistributedDataParallel` then needs `find_unused_parameters=True`."""
        return any(p.requires_grad for p in self._without_optimizer())

    def _without_optimizer(self) -> list[nn.Parameter]:
        return [p for rule in self.rules.values() for p in rule.without_optimizer()]

    def parameter_groups(
        self,
        lr: float,
        weight_decay: float = 0.0,
        factor: Callable[[str], float] = lambda name: 1.0,
    ) -> list[dict[str, Any]]:
        """Groups of parameters for an optimizer: decayed ones, others, and those of the rules.

        Parameters that a rule moves without the optimizer are in none, nor are frozen ones.

        Args:
            lr: learning rate of all but the rules' own groups.
            weight_decay: of matrices and embeddings; norms, biases, scalars, and what a system
                names in `no_decay` take none.
            factor: what the learning rate of a parameter is multiplied by, by its name in the
                model: for rates by layer. The rules' own groups keep the rates of the rules.
        """
        # A parameter that two systems share stands in a group once.
        own = [list(dict.fromkeys(rule.own_group())) for rule in self.rules.values()]
        placed = {id(p) for group in (*own, self._without_optimizer()) for p in group}
        decayed = {id(p) for p in decayed_parameters(self.model)}
        groups: dict[tuple[float, float], list[nn.Parameter]] = {}
        for name, p in self.model.named_parameters():
            if p.requires_grad and id(p) not in placed:
                decay = weight_decay if id(p) in decayed else 0.0
                groups.setdefault((decay, lr * factor(name)), []).append(p)
        made = [{"params": ps, "lr": rate, "weight_decay": d} for (d, rate), ps in groups.items()]
        made.sort(key=lambda group: group["weight_decay"], reverse=True)
        return made + [{"params": ps, "lr": lr, "weight_decay": 0.0} for ps in own if ps]

    def attach(self, optimizer: Any) -> Any:
        """Has the rules followed at each step of an optimizer, and returns it.

        Args:
            optimizer: made of `parameter_groups`, or of groups that keep apart what these do; also
                as accelerate wraps it. Of several optimizers it is the one with the rules' groups.

        Raises:
            ValueError: what a rule trains by the optimizer stands in none of its groups, or with
                others in one.
        """
        inner = getattr(optimizer, "optimizer", optimizer)  # accelerate's has no hooks of its own
        rules = self.rules.values()
        for rule in rules:
            self._check_groups(rule, inner)
        for hook in getattr(inner, "_rules_of_training", ()):  # of other rules, before these
            hook.remove()
        inner._rules_of_training = [
            inner.register_step_pre_hook(self._before_update),
            inner.register_step_post_hook(self._after_update),
            *(self._drop_while_frozen(rule, p) for rule in rules for p in rule.own_group()),
        ]
        for rule in rules:
            for system in rule.systems.values():
                system.follows_rule = True
            rule.start()
        return optimizer

    def before_step(self, loss: Callable[[], Tensor | Iterable[Tensor]]) -> None:
        """Called before anything of a step is computed; rules may take steps of their own.

        Args:
            loss: computes the loss of the coming step's batch; if gradients are accumulated over
                several batches, gives one loss after the other, whose gradients are summed. It is
                called only if a rule needs it. With several processes it is the loss of the
                process's own batch, computed by the model without its data-parallel wrapper; the
                mean over the processes counts.

        Raises:
            TypeError: it computes what is no loss.
        """

        def losses() -> Iterator[Tensor]:
            computed = loss()
            for each in [computed] if isinstance(computed, Tensor) else computed:
                if not isinstance(each, Tensor):
                    raise TypeError(
                        f"loss gives a {type(each).__name__}, expected a tensor of one number, or "
                        f"several in turn: return the loss alone, as model(x).loss is"
                    )
                yield each

        for rule in self.rules.values():
            rule.before_step(self.moment, losses)
        self._is_prepared = True

    def state_dict(self) -> dict[str, int]:
        """What a checkpoint has to keep: the number of steps taken."""
        return {"step": self.step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Goes on where `state_dict` was taken."""
        self.step = state["step"]

    def record(self) -> dict[str, dict[str, dict[str, list[float]]]]:
        """What the rules follow over the training: name of the system to path to numbers."""
        return {name: record for name, rule in self.rules.items() if (record := rule.record())}

    def _before_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """The hook before `optimizer.step()`."""
        self._check_step(optimizer)
        moment = self.moment
        own = [
            (rule, group)
            for rule in self.rules.values()
            for group in optimizer.param_groups
            if any(p is group["params"][0] for p in rule.own_group())
        ]
        for rule, group in own:
            group["lr"] = rule.learning_rate(moment)  # whatever a schedule has set

        def update() -> None:
            for _, group in own:
                for p in group["params"] if group["lr"] == 0 else ():
                    p.grad = None  # so that any optimizer leaves it as it is
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
        for rule in self.rules.values():
            rule.after_update(self.moment)
        self.step += 1
        self._is_prepared = False

    def _check_step(self, optimizer: Optimizer) -> None:
        """Raises where a step would learn something else than the rules say, or warns."""
        waiting = [name for name, rule in self.rules.items() if rule.steps_before]
        if waiting and not self._is_prepared:
            raise RuntimeError(
                f"optimizer.step() was called without rules.before_step(loss), which "
                f"{' and '.join(waiting)} needs: call rules.before_step(lambda: "
                f"model(**batch).loss) before the loss of each step is computed"
            )
        if self.rules and getattr(optimizer, "found_inf", None) is not None:
            raise RuntimeError(
                "a GradScaler leaves it to a fused optimizer to unscale gradients and to skip "
                "steps, which rules of training do not see: build it with fused=False (in "
                "TrainingArguments optim='adamw_torch'), or train in bfloat16"
            )
        if self.rules and self.step >= self.total_steps and not self._went_beyond:
            self._went_beyond = True
            warnings.warn(
                f"the training goes on after total_steps={self.total_steps}, by which the rules of "
                f"{' and '.join(self.rules)} reckon: give training_rules the number of steps that "
                f"are taken",
                UntrainedRuleWarning,
                stacklevel=4,
            )

    def _drop_while_frozen(self, rule: Rule, parameter: nn.Parameter) -> Any:
        """Hooks a parameter so that its gradient, while its rate is 0, is in no norm to clip."""
        if is_sharded(parameter):  # it is in no graph itself: FSDP fills in its gradient

            def drop(p: Tensor) -> None:
                p.grad = p.grad if rule.learning_rate(self.moment) else None

            return parameter.register_post_accumulate_grad_hook(drop)

        return parameter.register_hook(
            lambda x: x if rule.learning_rate(self.moment) else torch.zeros_like(x)
        )

    def _check_groups(self, rule: Rule, optimizer: Optimizer) -> None:
        own = {id(p) for p in rule.own_group()}
        groups = [{id(p) for p in g["params"] if p.requires_grad} for g in optimizer.param_groups]
        if own == set().union(*(group for group in groups if group & own)):
            return
        names = [name for name, p in self.model.named_parameters() if id(p) in own]
        shown = ", ".join(names[:3]) + ", …" * (len(names) > 3)
        raise ValueError(
            f"the optimizer has no group of {shown} alone, which {type(rule).__name__} trains by "
            f"it: expected one made of rules.parameter_groups(lr=...), whose `factor` divides a "
            f"model further"
        )


training_rules = TrainingRules


def rules_in(model: nn.Module) -> dict[type[Rule], dict[str, System]]:
    """The systems of a model, those within others too, by their rule and their path."""
    found: dict[type[Rule], dict[str, System]] = {}
    for path, module in model.named_modules():
        if isinstance(module, System) and module.rule is not None:
            found.setdefault(module.rule, {})[path] = module
    return found


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

    def set_initial_training_values(self: Any, args: Any, dataloader: Any) -> Any:
        values = super().set_initial_training_values(args, dataloader)  # type: ignore[misc]
        epochs, per_epoch, *_, self._total_steps = values
        # Of a stream, whose length is unknown, the Trainer takes all steps for an epoch.
        self._steps_per_epoch = None if epochs == sys.maxsize else per_epoch
        return values

    def create_optimizer(self: Any, model: Any = None) -> Any:
        self.rules = training_rules(
            self.model,
            self._total_steps,
            steps_per_epoch=self._steps_per_epoch,
            warmup_steps=self.args.get_warmup_steps(self._total_steps),
            settings=self.rule_settings,
        )
        if self.optimizer is None:
            given = self.optimizer_cls_and_kwargs
            kind, options = given or self.get_optimizer_cls_and_kwargs(self.args, self.model)
            groups = self.rules.parameter_groups(self.args.learning_rate, self.args.weight_decay)
            self.optimizer = kind(groups, **options)
        return self.optimizer

    def create_scheduler(self: Any, num_training_steps: int, optimizer: Any = None) -> Any:
        self.rules.attach(self.optimizer)  # by now it has the parameters that are trained
        return super().create_scheduler(num_training_steps, optimizer)  # type: ignore[misc]

    def get_batch_samples(self: Any, *args: Any) -> Any:
        self._coming = super().get_batch_samples(*args)  # type: ignore[misc]
        return self._coming

    def training_step(self: Any, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        # Only by now, and not when it has its batches, has a resumed run its random state back.
        if self._coming is not None:
            batches, items = self._coming
            self._coming = None
            self.rules.step = self.state.global_step
            self.rules.before_step(lambda: self._losses(batches, items))
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]
        if self.label_smoother is not None and auxiliary_loss(self.model).requires_grad:
            raise ValueError(
                "label_smoothing_factor is given, but the Trainer then leaves out the losses that "
                "systems of the model add: set label_smoothing of the model's config instead, or "
                "add headwise.auxiliary_loss(model) in a compute_loss_func"
            )
        return loss

    def _losses(self: Any, batches: Sequence[Any], items: Any) -> Iterator[Tensor]:
        """The losses of a step's batches, by the model without data-parallel wrapper."""
        self.model.train()
        is_scaled = self.loss_is_scaled_for_ga
        if is_scaled is None:  # as the Trainer decides whether it divides by the number of batches
            counts = self.model_accepts_loss_kwargs and items is not None
            is_scaled = counts or self.compute_loss_func is not None
        for batch in batches:
            with self.compute_loss_context_manager():
                inputs = self._prepare_inputs(batch)
                loss = self.compute_loss(self.model, inputs, num_items_in_batch=items)
            yield loss if is_scaled else loss / len(batches)
