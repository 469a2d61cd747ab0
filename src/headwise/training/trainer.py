"""The loop that trains a model, on accelerate, with the rules of its systems.

A training that resumes from a checkpoint ends with the same weights and the same records as one
without a stop. The loop waits for the device only at `log_every` and at validations.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import accelerate.utils
import torch
import torch.distributed as dist
from rich.console import Console
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from headwise.files import written_whole
from headwise.ops import IGNORED_LABEL
from headwise.ops.replicas import full_tensor, shard_like
from headwise.training.batches import Batch, Batches
from headwise.training.checkpoints import (
    STATE,
    last_readable,
    random_states,
    read_checkpoint,
    remove_superseded,
    set_random_states,
)
from headwise.training.console import ProgressDisplay, StopSignal
from headwise.training.loss import flush_denormal, mean_loss, on_device, undisturbed_evaluation
from headwise.training.rules import TrainingRules, settings_in_use
from headwise.training.settings import TrainingSettings

if TYPE_CHECKING:  # it stands a floor above
    from headwise.data.stream import StreamBatches


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM came; a checkpoint is written, from which the next start resumes."""


@dataclass
class TrainingState:
    """The progress of a training, which is part of every checkpoint."""

    step: int = 0  # steps of the optimizer so far
    total: int = 0  # steps that are planned
    seconds: float = 0.0  # time in training, without that between a stop and the next start
    best: float = math.inf  # validation loss
    best_step: int | None = None  # None while no validation loss was a number
    evals_since_best: int = 0
    lr_scale: float = 1.0  # factor of the learning rate, for `schedule: plateau`
    ended: bool = False  # by patience, or by a validation loss that is no number
    # A row for each step at which something was recorded, with `step`.
    history: list[dict[str, float]] = field(default_factory=list)


class Trainer:
    """Trains a headwise model in a folder, in one process or in all of `torchrun` together.

    Args:
        model: a model whose parameters are frozen if they are not to be trained.
        train, validation: the batches of this process.
        settings: the settings of training.
        folder: the folder of the checkpoints.
        accelerator: the result of `accelerator_for`.
        measure: a function of the model that returns further figures to record, by name. Only the
            main process calls it, before the first step and at each validation; with FSDP no
            process calls it.
        label, console: name of the bar, and where it is shown.
    """

    def __init__(
        self,
        model: Any,
        train: "Batches | StreamBatches",
        validation: Batches,
        settings: TrainingSettings,
        folder: Path,
        accelerator: accelerate.Accelerator,
        *,
        measure: Callable[[Any], dict[str, float]] | None = None,
        label: str = "training",
        console: Console | None = None,
    ) -> None:
        self._settings, self._folder, self._accelerator = settings, folder, accelerator
        self._train, self._validation = train, validation
        self._is_main, self._world = accelerator.is_main_process, accelerator.num_processes
        device, use_bf16 = accelerator.device.type, settings.precision == "bf16"
        if settings.precision == "auto" and device == "cuda":  # some emulate bf16, slowly
            use_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        self._autocast = partial(torch.autocast, device, torch.bfloat16, enabled=use_bf16)
        console = (console or Console(stderr=True)) if self._is_main else Console(quiet=True)
        self._display = ProgressDisplay(label, console, folder if self._is_main else None)
        per_epoch = train.per_epoch and train.per_epoch / settings.gradient_accumulation
        # A recipe with a stream, which has no epochs, has `max_steps`.
        total = settings.max_steps or math.ceil((settings.epochs or 0) * (per_epoch or 0) - 1e-6)
        self._progress = TrainingState(total=0 if settings.trainable == "nothing" else total)
        self._loss_sum = torch.zeros((), device=accelerator.device)  # since the last record
        if settings.gradient_checkpointing:
            model.activation_checkpointing_enable()
        self._unwrapped = model  # without wrappers
        is_sharded = settings.fsdp and self._world > 1
        self._measure = None if is_sharded else measure
        if is_sharded:
            _apply_fsdp(model, accelerator.device)
        model.to(accelerator.device)
        self._rules = TrainingRules(
            model,
            total,
            steps_per_epoch=per_epoch or None,
            settings=settings_in_use(model, settings.rules),
        )
        self._optimizer = self._make_optimizer()
        if self._world > 1 and not is_sharded and self._progress.total:
            accelerator.ddp_handler = accelerate.utils.DistributedDataParallelKwargs(
                find_unused_parameters=self._rules.leaves_out_gradients,
                broadcast_buffers=False,  # `_step` does so, for steps of rules too
            )
            model = accelerator.prepare_model(model)
        self._model: Any = torch.compile(model) if settings.compile else model

    def _make_optimizer(self) -> torch.optim.Optimizer:
        settings = self._settings
        groups: Any = self._rules.parameter_groups(settings.learning_rate, settings.weight_decay)
        groups = groups or [{"params": []}]  # where rules move all trained parameters
        if settings.optimizer == "nesterov":
            momentum = settings.momentum
            return torch.optim.SGD(groups, momentum=momentum, nesterov=momentum > 0)
        betas, epsilon = settings.adam_betas, settings.adam_epsilon
        return torch.optim.AdamW(groups, betas=betas, eps=epsilon, fused=True)

    # The loop

    def fit(self) -> TrainingState:
        """Trains to the last step, or until patience or a diverged validation loss ends it.

        Raises:
            Interrupted: Ctrl-C or SIGTERM came.
            ValueError: the last checkpoint is of another number of processes.
        """
        is_resumed = self._resume()
        progress = self._progress
        if not is_resumed or (progress.step < progress.total and not progress.ended):
            self._started = time.monotonic() - progress.seconds
            # After resuming, since some optimizers call `step()` to load their state.
            self._rules.step = progress.step
            self._rules.attach(self._optimizer)
            names = {"wandb": {"name": self._folder.name}}
            self._accelerator.init_trackers("headwise", init_kwargs=names)
            with self._display.over(progress.step, progress.total), StopSignal() as stop:
                if not is_resumed:
                    accelerate.utils.set_seed(self._settings.seed, device_specific=True)
                    if progress.total:
                        self._record(self._figures())
                    else:
                        self._validate()
                        self._save()
                with flush_denormal():
                    self._loop(stop)
        self._tell_why_it_ended()
        return progress

    def _loop(self, stop: StopSignal) -> None:
        progress, settings = self._progress, self._settings
        batches = iter(self._train)
        self._model.train()
        while progress.step < progress.total and not progress.ended:
            self._step(batches)
            step, is_last = progress.step, progress.step == progress.total
            logs = step % settings.log_every == 0
            validates = step % settings.evaluate_every == 0 or is_last
            if logs:  # of the steps since the last time
                loss = self._accelerator.reduce(self._loss_sum, "mean") / settings.log_every
                self._loss_sum = torch.zeros_like(self._loss_sum)
                self._record({"loss": float(loss), "learning_rate": self._rate})
            if validates:
                self._validate()
            is_stopped = stop.came
            # The other processes are asked where this one waits for the device anyway.
            if self._world > 1:
                is_stopped = (logs or validates) and self._sum(int(stop.came)).item() > 0
            if validates or is_stopped:
                self._save()
            if is_stopped:
                raise Interrupted(f"stopped at step {step}")

    def _step(self, batches: Iterator[Batch]) -> None:
        """Takes one step of the optimizer, on one batch or several."""
        progress, settings, device = self._progress, self._settings, self._accelerator.device
        group = [next(batches) for _ in range(settings.gradient_accumulation)]
        # Labels are counted on the CPU, so that the loop does not wait for the device.
        count = sum(int((batch["labels"] != IGNORED_LABEL).sum()) for batch in group)
        labels = self._sum(count).clamp(min=1)
        group = [on_device(batch, device) for batch in group]
        self._share_buffers()
        self._rules.before_step(lambda: (self._loss(self._unwrapped, b, labels) for b in group))
        for number, batch in enumerate(group, 1):
            is_last = number == len(group)
            with nullcontext() if is_last else self._accelerator.no_sync(self._model):
                loss = self._loss(self._model, batch, labels)
                loss.backward()
            self._loss_sum = self._loss_sum + loss.detach()
        if settings.clip_norm:
            # Rules move their own parameters at rates of their own, in steps of their own too.
            own = {p for rule in self._rules.rules.values() for p in rule.own_group()}
            clipped = [p for p in self._unwrapped.parameters() if p not in own]
            nn.utils.clip_grad_norm_(clipped, settings.clip_norm)
        factor = progress.lr_scale * settings.lr_factor(progress.step, progress.total)
        self._rate = settings.learning_rate * factor
        for parameter_group in self._optimizer.param_groups:
            parameter_group["lr"] = self._rate  # rules set their own afterwards
        self._optimizer.step()
        self._optimizer.zero_grad()
        progress.step += 1
        self._display.show(step=progress.step)

    def _loss(self, model: Any, batch: Batch, labels: Tensor) -> Tensor:
        """The share of a batch in the loss of a step, which is the mean over processes."""
        with self._autocast():
            out = model(**batch, num_items_in_batch=labels)
        loss: Tensor = out.token_loss * self._world
        if out.auxiliary_loss is not None:
            loss = loss + out.auxiliary_loss / self._settings.gradient_accumulation
        return loss

    def _sum(self, number: int) -> Tensor:
        """The sum of a number over all processes."""
        # A copy of a tensor would wait for the device.
        return self._accelerator.reduce(torch.full((), number, device=self._accelerator.device))

    def _share_buffers(self) -> None:
        """Copies the buffers of the first process, which are saved, to all processes."""
        for buffer in self._unwrapped.buffers() if self._world > 1 else ():
            dist.broadcast(buffer, 0)

    # Records and validations

    def _record(self, figures: dict[str, float]) -> None:
        """Adds figures to the row of this step."""
        progress = self._progress
        if not figures:
            return
        progress.seconds = time.monotonic() - self._started
        if not progress.history or progress.history[-1]["step"] != progress.step:
            progress.history.append({"step": progress.step})
        progress.history[-1] |= figures
        self._display.show(**{n: figures[n] for n in ("loss", "eval_loss") if n in figures})
        # Loggers do not get figures of single units (`share encoder_self.2/5`), which are many.
        logged = {name: value for name, value in figures.items() if "/" not in name}
        self._accelerator.log(logged, progress.step)

    def _validate(self) -> None:
        progress, settings, plateau = self._progress, self._settings, self._settings.plateau
        self._share_buffers()
        loss = mean_loss(self._unwrapped, self._validation.epoch(), self._autocast())
        self._record({"eval_loss": loss, **self._figures()})
        self._model.train()
        progress.evals_since_best += 1
        if loss < progress.best:
            progress.best, progress.best_step, progress.evals_since_best = loss, progress.step, 0
        elif settings.schedule == "plateau" and progress.evals_since_best % plateau.patience == 0:
            progress.lr_scale *= plateau.factor
        is_patient = settings.patience is None or progress.evals_since_best < settings.patience
        # No later step makes weights finite again.
        progress.ended = not is_patient or not math.isfinite(loss)

    def _figures(self) -> dict[str, float]:
        """Figures of the rules, and those that the main process measures."""
        figures = self._rules.record()
        if self._measure is not None and self._is_main:
            with undisturbed_evaluation(self._unwrapped), self._autocast():
                figures |= self._measure(self._unwrapped)
        return figures

    def _tell_why_it_ended(self) -> None:
        progress, say = self._progress, self._display.say
        *_, loss = (row["eval_loss"] for row in progress.history if "eval_loss" in row)
        where = f"at step {progress.step:,} of {progress.total:,}"
        if not math.isfinite(loss):
            say(
                f"the training has diverged and ends {where}: its validation loss is {loss}; try a "
                f"smaller training.learning_rate, a longer training.warmup_steps, or "
                f"training.clip_norm=1"
            )
        elif progress.step < progress.total:
            say(f"stopped early {where}: no better loss since step {progress.best_step:,}")

    # Checkpoints

    def _save(self) -> None:
        progress, optimizer_state = self._progress, self._optimizer.state_dict()
        progress.seconds = time.monotonic() - self._started
        weights = self._gather(self._unwrapped.state_dict())
        states = {n: self._gather(state) for n, state in optimizer_state["state"].items()}
        process = {"position": self._train.position, "loss_sum": self._loss_sum.cpu()}
        processes = accelerate.utils.gather_object([process | random_states()])
        if self._is_main:
            with written_whole(self._folder / f"checkpoint-{progress.step}") as partial:
                self._unwrapped.save_pretrained(partial, state_dict=weights)
                state = {"optimizer": optimizer_state | {"state": states}, "processes": processes}
                torch.save({**state, "progress": json.dumps(asdict(progress))}, partial / STATE)
            remove_superseded(self._folder, self._settings, progress.best_step, progress.total)
        self._accelerator.wait_for_everyone()

    def _gather(self, state: dict[str, Any]) -> dict[str, Any]:
        """Whole tensors from the shards of all processes, on the CPU of the main process."""
        gathered = dict(state)
        for name, x in state.items():
            if (whole := full_tensor(x)) is not x:
                gathered[name] = whole.cpu() if self._is_main else None
        return gathered

    def _resume(self) -> bool:
        """Loads the last checkpoint that can be read, if there is one."""
        last = last_readable(self._folder, self._display.say) if self._is_main else None
        (last,) = accelerate.utils.broadcast_object_list([last])
        if last is None:
            return False
        weights, state = read_checkpoint(last)
        count, device = len(state["processes"]), self._accelerator.device
        if count != self._world:
            raise ValueError(
                f"{last} is of {count} processes, and now there are {self._world}: resume with as "
                f"many (torchrun --nproc-per-node {count} -m headwise train {self._folder}), "
                f"or train in another folder"
            )
        for name, tied in self._unwrapped.all_tied_weights_keys.items():  # the file has one of them
            weights.setdefault(name, weights[tied])
        current = self._unwrapped.state_dict()
        self._unwrapped.load_state_dict({n: shard_like(current[n], x) for n, x in weights.items()})
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        for number, parameter_state in state["optimizer"]["state"].items():
            for name, x in parameter_state.items():
                x = x.to(device, copy=True)  # the file may be removed
                is_like = x.shape == parameters[number].shape
                parameter_state[name] = shard_like(parameters[number], x) if is_like else x
        self._optimizer.load_state_dict(state["optimizer"])
        process = state["processes"][self._accelerator.process_index]
        set_random_states(process)
        self._train.position = process["position"]
        self._loss_sum = process["loss_sum"].to(device, copy=True)
        self._progress = progress = TrainingState(**json.loads(state["progress"]))
        if progress.best_step and not (self._folder / f"checkpoint-{progress.best_step}").is_dir():
            # It went when a better one was written, which cannot be read.
            progress.best, progress.best_step = math.inf, None
        if self._is_main:  # a killed process may not have done so
            remove_superseded(self._folder, self._settings, progress.best_step, progress.total)
        return True


def accelerator_for(settings: TrainingSettings, folder: Path) -> accelerate.Accelerator:
    """Returns the `Accelerator` of a training, which has its processes, devices and loggers.

    Raises:
        ValueError: a logger is not installed.
    """
    for name in settings.report_to:
        if find_spec(name) is None:
            raise ValueError(
                f"training.report_to names {name}, which is not installed: pip install {name}, or "
                f"leave it out"
            )
    return accelerate.Accelerator(
        # Checkpoints keep random states of CUDA alone. Without `cpu=True`, processes on CPUs would
        # train apart.
        cpu=not torch.cuda.is_available(),
        mixed_precision="no",  # the trainer has its own autocast
        log_with=list(settings.report_to) or None,
        project_config=accelerate.utils.ProjectConfiguration(logging_dir=str(folder / "logs")),
        # The others wait while the first process prepares data, which may take an hour.
        kwargs_handlers=[accelerate.utils.InitProcessGroupKwargs(timeout=timedelta(hours=6))],
    )


def _apply_fsdp(model: nn.Module, device: torch.device) -> None:
    """Shards a model over all processes by FSDP2, layer by layer; this changes its class."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    layers = [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]
    for part in (*reversed(layers), model):  # inner modules first
        # Resharding the model too lets rules find all parameters sharded between forward passes.
        fully_shard(part, mesh=mesh, reshard_after_forward=True)
