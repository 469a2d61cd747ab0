"""Trains a model: one loop on accelerate, with the rules of its systems, that goes on after a stop.

A checkpoint is a folder, written whole or not at all: the model as transformers saves it, and
`training.pt` with all else. A training that goes on from one ends with the same weights and the
same records as if it had not been stopped.
"""

import json
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import (
    DistributedDataParallelKwargs,
    ProjectConfiguration,
    broadcast_object_list,
    gather_object,
    set_seed,
)
from rich.console import Console
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import is_torch_bf16_gpu_available

from headwise.data.stream import StreamBatches
from headwise.files import partial_path, remove, written_whole
from headwise.models.plan import system_class
from headwise.ops.labels import IGNORED_LABEL
from headwise.ops.replicas import is_sharded, sharded_like, whole
from headwise.training.batches import Batch, Batches
from headwise.training.loss import aside_of_training, mean_loss, own_draws
from headwise.training.rules import rules_in, training_rules
from headwise.training.settings import TrainingSettings
from headwise.training.watching import StopSignal, Watch

_STATE = "training.pt"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM came; a checkpoint is written, from which the next start goes on."""


@dataclass
class Progress:
    """How far a training is.

    Attributes:
        step, total: numbers of optimizer steps: those taken, and those of the whole training.
        seconds: how long it has taken, without the time between a stop and the next start.
        best, best_step: the lowest validation loss, and its step; None if none was a number.
        waited: number of validations since then.
        slowed: what the learning rate is multiplied by, with `schedule: plateau`.
        ended: whether patience has ended it, or a validation loss that is no number.
        history: records with `step`, `seconds`, and what was found there.
    """

    step: int = 0
    total: int = 0
    seconds: float = 0.0
    best: float = math.inf
    best_step: int | None = None
    waited: int = 0
    slowed: float = 1.0
    ended: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)


class Trainer:
    """Trains a headwise model in a folder, in one process or in all of `torchrun` together.

    Args:
        model: what to train, with what is frozen already frozen.
        train, validation: the batches of this process.
        settings: how to train.
        folder: where checkpoints go.
        accelerator: of `accelerator_for`.
        measure: figures of the model to follow beside the validation loss. The main process alone
            calls it, at each validation.
        snapshot: what else to record of it, which JSON can hold; called at the start too.
        label, console: of the bar.
    """

    def __init__(
        self,
        model: Any,
        train: Batches | StreamBatches,
        validation: Batches | StreamBatches,
        settings: TrainingSettings,
        folder: Path,
        accelerator: Accelerator,
        *,
        measure: Callable[[Any], dict[str, float]] | None = None,
        snapshot: Callable[[Any], dict[str, Any]] | None = None,
        label: str = "training",
        console: Console | None = None,
    ) -> None:
        self.settings, self.folder, self.accelerator = settings, folder, accelerator
        self.train_batches, self.validation = train, validation
        self.measure, self.snapshot = measure, snapshot
        is_main = accelerator.is_main_process
        shown = (console or Console(stderr=True)) if is_main else Console(quiet=True)
        self.watch = Watch(label, shown, folder if is_main else None)
        per_epoch = train.per_epoch and train.per_epoch / settings.gradient_accumulation
        planned = settings.max_steps or max(1, math.ceil(settings.epochs * per_epoch - 1e-6))
        self.now = Progress(total=0 if settings.train == "nothing" else planned)
        self.kind = type(model)
        if settings.gradient_checkpointing:
            model.activation_checkpointing_enable()
        self.bare = model.to(accelerator.device)  # without wrappers
        if is_divided := settings.fsdp and accelerator.num_processes > 1:
            _divide(model, accelerator.device)
        elif settings.fsdp:
            self.watch.say("training.fsdp divides a model among processes, and this is one", "yellow")
        held, of_rules = rules_in(model), settings.of_rules().items()  # a recipe has those of all
        self.rules = training_rules(
            model,
            planned,
            steps_per_epoch=per_epoch and math.ceil(per_epoch),
            settings={name: of for name, of in of_rules if system_class(name).rule in held},
        )
        self.optimizer = self._make_optimizer()
        if not is_divided:
            accelerator.ddp_handler = DistributedDataParallelKwargs(
                find_unused_parameters=self.rules.leaves_out_gradients,
                broadcast_buffers=False,  # done once a step, for rules too
            )
            model = accelerator.prepare_model(model)
        self.model = torch.compile(model) if settings.compile else model
        self.loss_sum = torch.zeros((), device=accelerator.device)  # since the last record

    def _make_optimizer(self) -> torch.optim.Optimizer:
        settings = self.settings
        groups: Any = self.rules.parameter_groups(settings.learning_rate, settings.weight_decay)
        groups = groups or [{"params": []}]  # where rules move all that learns
        if settings.optimizer == "nesterov":
            momentum = settings.momentum
            return torch.optim.SGD(groups, momentum=momentum, nesterov=momentum > 0)
        betas, epsilon = settings.adam_betas, settings.adam_epsilon
        return torch.optim.AdamW(groups, betas=betas, eps=epsilon, fused=True)

    # The loop

    def fit(self) -> Progress:
        """Trains to the end, or to where patience or a validation loss that is no number ends it.

        Raises:
            Interrupted: Ctrl-C or SIGTERM came.
            ValueError: the last checkpoint is of another number of processes.
        """
        settings, is_resumed = self.settings, self._resume()
        now = self.now
        if not is_resumed or not (now.ended or now.step == now.total):
            with self._at_work(), StopSignal() as stop:
                if not is_resumed:
                    self._begin()
                batches = iter(self.train_batches)
                while now.step < now.total and not now.ended:
                    self._step(batches)
                    is_last = now.step == now.total
                    logs = now.step % settings.log_every == 0
                    validates = now.step % settings.evaluate_every == 0 or is_last
                    if logs:
                        self._note_loss()
                    if now.step % max(settings.log_every, now.total // 200) == 0 or is_last:
                        self._note(recorded=self.rules.record())
                    if validates:
                        self._validate()
                    is_stopped = self._agree(stop.came, logs or validates)
                    if validates or is_stopped:
                        self._save()
                    if is_stopped:
                        raise Interrupted(f"stopped at step {now.step}")
        self._tell_why_it_ended()
        return now

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """What a training sets in this process, shows and reports to."""
        now, settings, accelerator = self.now, self.settings, self.accelerator
        self._started = time.monotonic() - now.seconds
        self.rules.step = now.step
        self.rules.attach(self.optimizer)
        self.model.train()
        accelerator.init_trackers("headwise", init_kwargs={"wandb": {"name": self.folder.name}})
        products = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if settings.precision == "tf32" else products)
        torch.set_flush_denormal(True)  # a CPU is many times slower with numbers that small
        try:
            with self.watch.over(now.step, now.total):
                yield
        finally:
            torch.set_flush_denormal(False)
            torch.set_float32_matmul_precision(products)
            for tracker in accelerator.trackers if accelerator.is_main_process else ():
                tracker.finish()

    def _begin(self) -> None:
        """Records what the model is before the first step; without steps that is all there is."""
        set_seed(self.settings.seed, device_specific=True)
        self._note(recorded=self.rules.record(), **self._looks(snapshot=self.snapshot))
        if self.now.total == 0:
            self._validate()
            self._save()

    def _step(self, batches: Iterator[Batch]) -> None:
        """Takes one step of the optimizer, which may be on several batches."""
        now, settings, accelerator = self.now, self.settings, self.accelerator
        group = [next(batches) for _ in range(settings.gradient_accumulation)]
        tokens = sum(map(_tokens, group)) * accelerator.num_processes
        counted = sum(int((batch["labels"] != IGNORED_LABEL).sum()) for batch in group)
        labels = accelerator.reduce(torch.tensor(counted, device=accelerator.device)).clamp(min=1)
        group = [{name: x.to(accelerator.device) for name, x in batch.items()} for batch in group]
        self._share_buffers()
        self.rules.before_step(lambda: (self._loss(self.bare, b, labels, len(group)) for b in group))
        for number, batch in enumerate(group, 1):
            is_last = number == len(group)
            with nullcontext() if is_last else accelerator.no_sync(self.model):
                loss = self._loss(self.model, batch, labels, len(group))
                loss.backward()
            self.loss_sum = self.loss_sum + loss.detach()
        if settings.clip_norm:
            nn.utils.clip_grad_norm_(self.bare.parameters(), settings.clip_norm)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = self._learning_rate(now.step)  # rules set theirs later
        self.optimizer.step()
        self.optimizer.zero_grad()
        now.step += 1
        self.watch.stepped(now.step, tokens)

    def _learning_rate(self, step: int) -> float:
        factor = self.settings.factor(step, self.now.total)
        return self.settings.learning_rate * self.now.slowed * factor

    def _loss(self, model: Any, batch: Batch, labels: Tensor, batches: int) -> Tensor:
        """The share of a batch in the loss of a step, whose mean over processes counts."""
        with self._precision():
            out = model(**batch, num_items_in_batch=labels)
        loss: Tensor = out.token_loss * self.accelerator.num_processes
        return loss if out.auxiliary_loss is None else loss + out.auxiliary_loss / batches

    def _precision(self) -> Any:
        is_bf16, device = self.settings.precision == "bf16", self.accelerator.device.type
        if self.settings.precision == "auto":
            is_bf16 = device != "cpu" and is_torch_bf16_gpu_available()
        return torch.autocast(device, torch.bfloat16) if is_bf16 else nullcontext()

    def _share_buffers(self) -> None:
        """Gives all processes the buffers of the first one, whose are saved."""
        for buffer in self.bare.buffers() if self.accelerator.num_processes > 1 else ():
            dist.broadcast(buffer, 0)

    def _agree(self, came: bool, may_read: bool) -> bool:
        """Whether to stop, now that the signal came here or to another process."""
        if self.accelerator.num_processes == 1:
            return came
        if not may_read:  # to ask the others waits for the device
            return False
        return bool(self.accelerator.reduce(torch.tensor(int(came), device=self.accelerator.device)))

    # Records and validations

    def _note_loss(self) -> None:
        """Records the mean loss of the steps since the last record."""
        mean = self.accelerator.reduce(self.loss_sum, "mean") / self.settings.log_every
        self.loss_sum = torch.zeros_like(self.loss_sum)
        self._note(loss=float(mean), learning_rate=self._learning_rate(self.now.step - 1))

    def _note(self, **found: Any) -> None:
        now, found = self.now, {name: value for name, value in found.items() if value != {}}
        if not found:
            return
        now.seconds = time.monotonic() - self._started
        now.history.append({"step": now.step, "seconds": now.seconds, **found})
        figures = {name: x for name, x in found.items() if isinstance(x, float)}
        self.watch.found(**figures)
        figures |= {f"eval_{name}": x for name, x in found.get("measured", {}).items()}
        self.accelerator.log(figures, now.step)

    def _validate(self) -> None:
        now, settings = self.now, self.settings
        self._share_buffers()
        loss = mean_loss(self.bare, self.validation.epoch(), self._precision())
        looks = self._looks(measured=self.measure, snapshot=self.snapshot)
        self._note(eval_loss=loss, **looks)
        self.model.train()
        now.waited += 1
        if loss < now.best:
            now.best, now.best_step, now.waited = loss, now.step, 0
        elif settings.schedule == "plateau" and now.waited % settings.plateau.patience == 0:
            now.slowed *= settings.plateau.factor
        is_out_of_patience = settings.patience is not None and now.waited >= settings.patience
        now.ended = is_out_of_patience or not math.isfinite(loss)  # later steps mend no weights

    def _looks(self, **looks: Callable[[Any], Any] | None) -> dict[str, Any]:
        """What the main process finds when it looks at the model."""
        asked = {name: look for name, look in looks.items() if look is not None}
        model = self._whole_model() if asked else None
        if not self.accelerator.is_main_process or model is None:
            return {}
        with aside_of_training(model), self._precision():
            return {name: look(model) for name, look in asked.items()}

    def _whole_model(self) -> Any:
        """The model; where processes divide it, a copy that is put together."""
        if not any(map(is_sharded, self.bare.parameters())):
            return self.bare
        weights = self._collected(self.bare.state_dict())
        with own_draws():
            copy = self.kind(self.bare.config).to(self.bare.dtype)
        if self.accelerator.is_main_process:
            copy.load_state_dict(weights)
        return copy.to(self.accelerator.device)

    def _tell_why_it_ended(self) -> None:
        now = self.now
        losses = [record["eval_loss"] for record in now.history if "eval_loss" in record]
        where = f"at step {now.step:,} of {now.total:,}"
        if not math.isfinite(losses[-1]):
            self.watch.say(
                f"the training has diverged and ends {where}: its validation loss is {losses[-1]}; "
                f"try a smaller training.learning_rate, a longer training.warmup_steps, or "
                f"training.clip_norm=1"
            )
        elif now.step < now.total:
            self.watch.say(f"stopped early {where}: no better loss since step {now.best_step:,}")

    # Checkpoints

    def _save(self) -> None:
        now = self.now
        now.seconds = time.monotonic() - self._started
        weights, optimizer = self._collected(self.bare.state_dict()), self.optimizer.state_dict()
        optimizer["state"] = {n: self._collected(x) for n, x in optimizer["state"].items()}
        of_process = {"random": _random(), "loss_sum": self.loss_sum.cpu()}
        of_process["position"] = self.train_batches.position
        processes = gather_object([of_process])
        if self.accelerator.is_main_process:
            with written_whole(self.folder / f"checkpoint-{now.step}") as partial:
                self.bare.save_pretrained(partial, state_dict=weights)
                progress = json.dumps(asdict(now))
                state = {"optimizer": optimizer, "processes": processes, "progress": progress}
                torch.save(state, partial / _STATE)
            self._remove_superseded()
        self.accelerator.wait_for_everyone()

    def _collected(self, state: dict[str, Any]) -> dict[str, Any]:
        """Tensors with the parts of all processes, in the memory of the main one."""
        found: dict[str, Any] = {}
        for name, x in state.items():
            found[name] = x
            if isinstance(x, Tensor) and is_sharded(x):
                made = whole(x)
                found[name] = made.cpu() if self.accelerator.is_main_process else None
        return found

    def _remove_superseded(self) -> None:
        """Removes all checkpoints but the latest regular ones, the best one, and the last one."""
        found, every = checkpoints(self.folder), self.settings.evaluate_every
        regular = [p for p in found if step_of(p) % every == 0 or step_of(p) == self.now.total]
        kept = [*found[-1:], *regular[-self.settings.keep_checkpoints :]]
        for path in found:
            if path not in kept and step_of(path) != self.now.best_step:
                path.rename(partial_path(path))  # so that none is half there
                remove(partial_path(path))

    def _resume(self) -> bool:
        """Goes on from the last checkpoint that can be read, if there is one."""
        read = self._last_readable() if self.accelerator.is_main_process else None
        (path,) = broadcast_object_list([read and read[0]])
        if path is None:
            return False
        weights, state = read[1:] if read else _read(path)
        processes, number = state["processes"], self.accelerator.num_processes
        if len(processes) != number:
            raise ValueError(
                f"{path} is of a training by {len(processes)} processes, and this one has {number}:"
                f" go on by torchrun --nproc-per-node {len(processes)} -m headwise train "
                f"{self.folder} or by compare --nproc {len(processes)}, or use another folder"
            )
        held, tied = self.bare.state_dict(), self.bare.all_tied_weights_keys
        weights = {name: sharded_like(held[name], x) for name, x in weights.items()}
        missing = self.bare.load_state_dict(weights, strict=False).missing_keys
        if set(missing) - set(tied):
            raise ValueError(f"{path} lacks weights of the model: {', '.join(missing)}")
        every = [p for parameters in self.optimizer.param_groups for p in parameters["params"]]
        for index, of_parameter in state["optimizer"]["state"].items():
            for name, x in of_parameter.items():
                if x.shape == every[index].shape:
                    of_parameter[name] = sharded_like(every[index], x.to(self.accelerator.device))
        self.optimizer.load_state_dict(state["optimizer"])
        of_process = processes[self.accelerator.process_index]
        _set_random(of_process["random"])
        self.train_batches.position = of_process["position"]
        self.loss_sum = of_process["loss_sum"].to(self.accelerator.device)
        self.now = Progress(**json.loads(state["progress"]))
        if self.accelerator.is_main_process:
            self._remove_superseded()  # unless it was killed before it had done so
        return True

    def _last_readable(self) -> tuple[Path, dict[str, Tensor], dict[str, Any]] | None:
        for path in reversed(found := checkpoints(self.folder)):
            try:
                return path, *_read(path)
            except ValueError as error:
                aside = path.with_name(f"damaged-{path.name}")
                remove(aside)
                path.rename(aside)
                before = found[: found.index(path)]
                goes_on = f"the run goes on from {before[-1].name}" if before else "the run begins anew"
                self.watch.say(f"{path.name} cannot be used: {error}; {goes_on}", "yellow")
        return None


def accelerator_for(settings: TrainingSettings, folder: Path) -> Accelerator:
    """Returns the processes, the devices and the loggers of a training.

    Raises:
        ValueError: a logger is not installed.
    """
    for name in settings.report_to:
        if find_spec(name) is None:
            raise ValueError(
                f"training.report_to names {name}, which is not installed: pip install {name}, or "
                f"leave it out"
            )
    logs = str(folder / "logs")
    return Accelerator(
        cpu=not torch.accelerator.is_available(),  # without it processes on CPUs would train apart
        mixed_precision="no",  # the loop has its own autocast, which FSDP divides nothing by
        log_with=list(settings.report_to) or None,
        project_config=ProjectConfiguration(project_dir=str(folder), logging_dir=logs),
    )


def checkpoints(folder: Path) -> list[Path]:
    """Returns the checkpoints of a run, oldest first."""
    return sorted(folder.glob("checkpoint-*"), key=step_of)


def step_of(checkpoint: Path) -> int:
    """Returns the number of optimizer steps before a checkpoint."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def write_model(
    kind: Any, settings: TrainingSettings, folder: Path, save_beside: Callable[[Path], None]
) -> None:
    """Writes the final model of a finished run, which `settings.final_model` selects, to `model/`.

    Args:
        kind: class of the model.
        settings: of the training.
        folder: of the run.
        save_beside: writes into the folder of the model what belongs to it, such as a tokenizer.
    """
    found = checkpoints(folder)
    chosen = found[-settings.average_last :] if settings.final_model == "average" else found[-1:]
    state = torch.load(found[-1] / _STATE, map_location="cpu", weights_only=True, mmap=True)
    best_step = json.loads(state["progress"])["best_step"]
    if settings.final_model == "best" and best_step is not None:
        chosen = [folder / f"checkpoint-{best_step}"]
    if not chosen[0].is_dir():
        raise ValueError(
            f"{chosen[0]} is missing, the checkpoint of the lowest validation loss: put it back, or "
            f"delete {found[-1].name} too, and start the run again, which trains from before it"
        )
    model = kind.from_pretrained(chosen[-1])
    if len(chosen) > 1:
        weights = model.state_dict()
        total = {name: x.double() for name, x in weights.items() if x.is_floating_point()}
        for path in chosen[:-1]:
            other = kind.from_pretrained(path).state_dict()
            total = {name: x + other[name].double() for name, x in total.items()}
        model.load_state_dict(weights | {name: x / len(chosen) for name, x in total.items()})
    with written_whole(folder / "model") as partial:
        model.save_pretrained(partial)
        save_beside(partial)


def _divide(model: nn.Module, device: torch.device) -> None:
    """Divides a model among all processes by FSDP2, layer by layer; its class is then another."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    layers = [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]
    for part in (*reversed(layers), model):  # what is inside of others goes first
        # The model itself too: rules then find all parameters divided while nothing is computed.
        fully_shard(part, mesh=mesh, reshard_after_forward=True)


def _read(checkpoint: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads the weights and all else of a checkpoint; a ValueError names the file that it cannot."""
    weights: dict[str, Tensor] = {}
    path = checkpoint / "config.json"
    try:
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(checkpoint.glob("*.safetensors")) or [checkpoint / "model.safetensors"]:
            weights |= load_file(path)
        path = checkpoint / _STATE
        return weights, torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, ValueError, RuntimeError, EOFError, SafetensorError, UnpicklingError) as error:
        why = str(error).strip().partition("\n")[0]
        raise ValueError(f"{path.name} cannot be read ({why})") from error


def _tokens(batch: Batch) -> int:
    """Tokens of a batch, padding apart: those read and those predicted."""
    read = int(batch["attention_mask"].sum()) if "attention_mask" in batch else 0
    labels = batch["labels"]
    return read if labels.is_floating_point() else read + int((labels != IGNORED_LABEL).sum())


def _random() -> dict[str, Any]:
    """The states of all random draws of this process, in types that are read without pickle."""
    name, keys, *others = np.random.get_state(legacy=True)
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    of_numpy = [name, keys.tolist(), *others]
    states = {"torch": torch.get_rng_state(), "cuda": cuda, "numpy": of_numpy}
    return {**states, "python": random.getstate()}


def _set_random(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    np.random.set_state(tuple(states["numpy"]))
    random.setstate(states["python"])
