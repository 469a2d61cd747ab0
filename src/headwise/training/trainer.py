"""Training: transformers' Trainer with batches by token budget and the systems' rules."""

import json
import math
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from rich.console import Console
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import (
    PreTrainedModel,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import rotate_checkpoints
from transformers.utils import is_torch_bf16_gpu_available, is_torch_tf32_available

from headwise.files import clear_leftovers, partial_path, written_whole
from headwise.models.plan import system_class
from headwise.ops.labels import IGNORED_LABEL
from headwise.settings import MOST_STEPS
from headwise.training.batching import (
    Batch,
    BatchLoader,
    Collate,
    Items,
    Stream,
    TokenBudgetSampler,
)
from headwise.training.callbacks import (
    ProgressBar,
    StopEarly,
    StopOnInterrupt,
)
from headwise.training.checkpoints import OPTIMIZER, SCHEDULER, STATE, checkpoints, step_of
from headwise.training.denormals import denormals_as_zero
from headwise.training.evaluating import aside_of_training, validation_loss
from headwise.training.loggers import figures, write_logs_into
from headwise.training.processes import gathered, own_draws, share_buffers
from headwise.training.rules import rules_in, training_rules
from headwise.training.rules_mixin import RulesMixin
from headwise.training.schedule import Plateau, learning_rate_factor
from headwise.training.settings import TrainingSettings
from headwise.training.sharding import part_of_state, shard, whole_state, whole_weights

Measure = Callable[[Any], dict[str, float]]
Snapshot = Callable[[Any], dict[str, Any]]

STREAM = "stream.json"  # of a checkpoint: the position of each process in a stream


class Trainer(RulesMixin, transformers.Trainer):
    """Trains a model whose output has `token_loss`, `auxiliary_loss` and `logits`.

    The systems in the model are trained by their rules, with the settings that `settings` has for
    them. A run can be stopped at any time and goes on from its last checkpoint with the same losses
    as if it had not been; checkpoints appear under their name only when they are whole. A run whose
    validation loss is no number ends there. With several processes (`torchrun`, `accelerate
    launch`) each takes its share of every batch, and losses are those of one process.

    Args:
        model: what to train.
        train, validation: data sets whose items `collate` joins; each has `lengths`. What is
            trained on may be a stream, of which each process has its share.
        collate: joins items into a batch with `labels`, -100 where nothing is predicted.
        settings: how to train.
        folder: where checkpoints go.
        measure: figures to follow beside the loss, taken of the model at each validation.
        snapshot: what else to note of the model, before the first step and at each validation: a
            dictionary that JSON can hold, or an empty one. Like `measure`, the main process alone
            calls it, and it does not change the training.
        label: what the progress bar calls the run.
        console: where the bar is drawn.
        saves_on_each_machine: whether one process of each machine writes the checkpoints, for
            machines that share no folder; else the main process does.
    """

    optimizer: Any
    lr_scheduler: Any
    control: Any

    def __init__(
        self,
        model: PreTrainedModel,
        train: Items | Stream,
        validation: Items,
        collate: Collate,
        settings: TrainingSettings,
        folder: Path,
        *,
        measure: Measure | None = None,
        snapshot: Snapshot | None = None,
        label: str = "training",
        console: Console | None = None,
        saves_on_each_machine: bool = False,
    ) -> None:
        self.settings = settings
        self.measure = measure
        self.snapshot = snapshot
        self.progress = ProgressBar(label, console or Console(stderr=True))
        self.stop = StopOnInterrupt()
        self.plateau: Plateau | None = None
        # A recipe has settings for the rules of other systems too, which it may be run with.
        held = rules_in(model)
        of_rules = settings.of_rules().items()
        self.rule_settings = {name: of for name, of in of_rules if system_class(name).rule in held}
        if settings.gradient_checkpointing:
            model.activation_checkpointing_enable()
        self.stream: Any = None  # the batches of a stream
        # Of the rules it is asked before the training what a step leaves without gradients.
        rules = training_rules(model, MOST_STEPS, settings=self.rule_settings)
        arguments = _arguments(settings, folder, rules.leaves_out_gradients, saves_on_each_machine)
        self.kind = type(model)
        self.is_sharded = settings.fsdp and arguments.world_size > 1 and settings.train != "nothing"
        if self.is_sharded:
            shard(model, arguments.device)
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=cast(Any, train),
            eval_dataset=cast(Any, validation),
            data_collator=collate,
            callbacks=[self.progress, self.stop],
        )
        if isinstance(train, Stream):
            self.stream = train.batches(
                collate,
                settings.batch_tokens,
                seed=settings.seed,
                rank=self.args.process_index,
                world_size=self.args.world_size,
            )
        self._sampler(validation, shuffle=False)  # what does not fit is found before training
        if self.is_sharded:  # accelerate wraps a model unless it is told that none trains it
            prepare = self.accelerator.prepare_model
            self.accelerator.prepare_model = partial(prepare, evaluation_mode=True)
        write_logs_into(self, folder)
        if saves_on_each_machine:
            saved_by_this_process(model)
        self.add_callback(_Records(self))
        if settings.patience is not None:
            self.add_callback(StopEarly(settings.patience))
        self.remove_callback(transformers.PrinterCallback)
        self.model_accepts_loss_kwargs = True  # forward takes num_items_in_batch

    def warmup_steps(self, num_training_steps: int) -> int:
        return self.settings.warmup(num_training_steps)

    # Data

    def get_train_dataloader(self) -> DataLoader:
        if self.stream is not None:
            return self.stream.loader()
        sampler = self._sampler(self.train_dataset, shuffle=True)
        return self._loader(self.train_dataset, sampler)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        return self._loader(dataset, self._sampler(dataset, shuffle=False))

    def _loader(self, dataset: Any, sampler: TokenBudgetSampler) -> BatchLoader:
        workers = self.settings.loader_workers
        return BatchLoader(cast(Items, dataset), sampler, self.data_collator, workers)

    def _sampler(self, dataset: Any, *, shuffle: bool) -> TokenBudgetSampler:
        return TokenBudgetSampler(
            dataset.lengths,
            self.settings.batch_tokens,
            seed=self.settings.seed,
            shuffle=shuffle,
            rank=self.args.process_index,
            world_size=self.args.world_size,
        )

    # Optimization

    def optimizer_kind(self) -> tuple[Any, dict[str, Any]]:
        if self.settings.optimizer == "nesterov":
            rate, momentum = self.settings.learning_rate, self.settings.momentum
            return torch.optim.SGD, {"lr": rate, "momentum": momentum, "nesterov": momentum > 0}
        return super().optimizer_kind()

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        if self.lr_scheduler is None:
            schedule, warmup = self.settings.schedule, self.warmup_steps(num_training_steps)
            if schedule == "plateau":
                how = self.settings.plateau
                self.plateau = Plateau(warmup, how.factor, how.patience)

            def factor(step: int) -> float:
                return learning_rate_factor(step, schedule, warmup, num_training_steps)

            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, self.plateau or factor)
        return self.lr_scheduler

    def training_step(
        self, model: nn.Module, inputs: Batch, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        self.progress.count_tokens(_tokens(inputs) * self.args.world_size)
        if self.is_sharded:
            share_buffers(self.model)
        return super().training_step(model, inputs, num_items_in_batch)

    def log_records(self) -> None:
        """Logs what the rules record, about 200 times in a run and at its last step."""
        step, total = self.state.global_step, self.state.max_steps
        if step % max(self.settings.log_every, total // 200) == 0 or step == total:
            records = self.rules.record()
            if records:
                # A record of any kind takes back the request for one of the loss.
                requested = self.control.should_log
                self.log({"recorded": records})
                self.control.should_log = requested

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        out = model(**inputs, num_items_in_batch=num_items_in_batch)
        loss = out.token_loss
        if num_items_in_batch is not None:
            # Divided by the labels of all processes, then averaged over these by DDP.
            loss = loss * self.args.world_size
        if out.auxiliary_loss is not None:
            loss = loss + out.auxiliary_loss / self.current_gradient_accumulation_steps
        return (loss, out) if return_outputs else loss

    # Validation

    def log_start(self) -> None:
        """Logs what `snapshot` finds of the model as it is."""
        if found := self._aside(snapshot=self.snapshot):
            self.log(found)

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Mean loss per label, without smoothing and auxiliary losses."""
        share_buffers(self.model)
        loss = validation_loss(
            self.model,
            self.get_eval_dataloader(eval_dataset),
            self.compute_loss_context_manager(),
        )
        metrics = {f"{metric_key_prefix}_loss": loss}
        self.log({**metrics, **self._aside(measured=self.measure, snapshot=self.snapshot)})
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        if self.plateau is not None:
            self.plateau.validated(loss)
        if not math.isfinite(loss):  # later steps do not mend weights
            self.control.should_training_stop = True
        return metrics

    def _aside(self, **looks: Callable[[Any], Any] | None) -> dict[str, Any]:
        """What the main process finds when it looks at the model; nothing that is empty."""
        asked = {name: look for name, look in looks.items() if look is not None}
        whole = self._whole_model() if asked and self.is_sharded else self.model
        if not self.args.should_save:
            return {}
        with aside_of_training(whole):
            found = {name: look(whole) for name, look in asked.items()}
        return {name: made for name, made in found.items() if made}

    def _whole_model(self) -> Any:
        """Returns a copy of a sharded model, in a process that saves; all call this together."""
        weights = whole_weights(self.model, keep=self.args.should_save)
        if not self.args.should_save:
            return None
        with own_draws():
            copy = self.kind(self.model.config).to(self.model.dtype)
        copy.load_state_dict(weights)
        return copy.to(self.args.device)

    # Checkpoints

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """As transformers does it, but under another name until all of it is written."""
        run = Path(self.args.output_dir)
        final = run / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            clear_leftovers(list(run.iterdir()))
        # One process begins and renames the folder, and all of them write into it.
        begins = self.args.should_save
        with written_whole(final) if begins else nullcontext(partial_path(final)) as folder:
            self.accelerator.wait_for_everyone()
            self._save_weights(folder)
            if self.state.best_global_step:
                best = run / f"checkpoint-{self.state.best_global_step}"
                self.state.best_model_checkpoint = str(best)
            self._save_state(folder)
            self.accelerator.wait_for_everyone()
        self.accelerator.wait_for_everyone()  # until all machines have it, the one before it stays
        if self.args.should_save:
            self.remove_stops(run)
            self.remove_old_checkpoints(run)

    def _save_weights(self, folder: Path) -> None:
        if not self.is_sharded:
            self.save_model(str(folder), _internal_call=True)
            return
        weights = whole_weights(self.model, keep=self.args.should_save)
        if self.args.should_save:
            self.model.save_pretrained(folder, state_dict=weights)

    def _save_state(self, folder: Path) -> None:
        """Writes what a resumed training reads beside the weights.

        Every process calls it; each writes its own random state, and the main one all else.
        """
        optimizer = whole_state(self.optimizer, keep=self.args.should_save)
        self._save_scaler(str(folder))
        self._save_rng_state(str(folder))
        # Those of all processes, since each machine may have a folder of its own.
        positions = gathered(self.stream.state_dict()) if self.stream is not None else []
        if not self.args.should_save:
            return
        torch.save(optimizer, folder / OPTIMIZER)
        torch.save(self.lr_scheduler.state_dict(), folder / SCHEDULER)
        if positions:
            (folder / STREAM).write_text(json.dumps(positions), encoding="utf-8")
        callbacks: list[Any] = [*self.callback_handler.callbacks, self.control]
        for callback in callbacks:
            if isinstance(callback, ExportableState):
                self.state.stateful_callbacks[type(callback).__name__] = callback.state()
        self.state.save_to_json(str(folder / STATE))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        # With `mmap` the processes of a machine share what each takes its part of.
        how: dict[str, Any] = {"map_location": "cpu", "weights_only": True}
        state = torch.load(Path(checkpoint, OPTIMIZER), mmap=self.is_sharded, **how)
        self.optimizer.load_state_dict(part_of_state(self.optimizer, state))
        self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint, SCHEDULER), **how))

    def remove_old_checkpoints(self, run: Path) -> None:
        """Removes checkpoints that are more than `save_total_limit`, but for the best one."""
        rotate_checkpoints(
            output_dir=str(run),
            save_total_limit=self.args.save_total_limit,
            best_model_checkpoint=self.state.best_model_checkpoint,
            use_mtime=False,
        )

    def _find_position(self, checkpoint: Path) -> None:
        """Goes to the position in a stream at which a checkpoint was written."""
        if self.stream is None:
            return
        positions = json.loads((checkpoint / STREAM).read_text(encoding="utf-8"))
        if len(positions) != self.args.world_size:
            raise ValueError(
                f"{checkpoint} was written by {len(positions)} processes, each with its share of a "
                f"stream (data.streaming), and {self.args.world_size} go on: start as many"
            )
        self.stream.load_state_dict(positions[self.args.process_index])

    def remove_stops(self, run: Path) -> None:
        """Removes older checkpoints that Ctrl-C left between two regular ones.

        Averages must not use them.
        """
        for older in checkpoints(run)[:-1]:
            if step_of(older) % self.settings.evaluate_every:
                shutil.rmtree(older, ignore_errors=True)

    # Running

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """Every record also has the seconds so far, interruptions apart, and the CPU threads.

        The history keeps all of a record, and loggers are given its numbers.
        """
        seconds = self.progress.seconds()
        record = {**logs, "seconds": seconds, "threads": torch.get_num_threads()}
        super().log(figures(record), start_time)
        where = {k: v for k, v in self.state.log_history[-1].items() if k in ("epoch", "step")}
        self.state.log_history[-1] = record | where

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        if resume_from_checkpoint:
            self._find_position(Path(resume_from_checkpoint))
        try:
            with denormals_as_zero():
                return super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            self.progress.close()
            self.stop.restore()


class _Records(TrainerCallback):
    """Has a trainer log what its rules record, and what its model is before the first step."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        if self.trainer.state.global_step == 0:  # a run that goes on has recorded where it stopped
            self.trainer.log_records()
            self.trainer.log_start()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.trainer.log_records()


def saved_by_this_process(model: PreTrainedModel) -> PreTrainedModel:
    """Has a model save itself in this process too, where `save_pretrained` says that it is to.

    Of several processes transformers has the first alone save a model.
    """
    vars(model)["should_save_on_this_rank"] = bool
    return model


def _tokens(inputs: Batch) -> int:
    """Tokens of a batch, padding apart: those read and those predicted."""
    read = inputs["attention_mask"].sum() if "attention_mask" in inputs else 0
    labels = inputs["labels"]
    if labels.is_floating_point():  # a number of figures for each frame or text, which were read
        return int(read)
    return int(read + (labels != IGNORED_LABEL).sum())


def _is_bf16(settings: TrainingSettings) -> bool:
    if settings.precision != "auto":
        return settings.precision == "bf16"
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return is_torch_bf16_gpu_available()


def _arguments(
    settings: TrainingSettings,
    folder: Path,
    leaves_out_gradients: bool,
    saves_on_each_machine: bool,
) -> TrainingArguments:
    return TrainingArguments(
        # transformers would expand a ~ at the beginning, and headwise's own files lie elsewhere.
        output_dir=os.path.join(os.curdir, folder),  # noqa: PTH118 - pathlib drops the dot
        # Without it processes that torchrun starts on CPUs would train apart.
        use_cpu=not torch.accelerator.is_available(),
        max_steps=settings.max_steps or -1,
        num_train_epochs=settings.epochs or 1,
        per_device_train_batch_size=1,  # batches come from TokenBudgetSampler
        gradient_accumulation_steps=settings.gradient_accumulation,
        learning_rate=settings.learning_rate,
        adam_beta1=settings.adam_betas[0],
        adam_beta2=settings.adam_betas[1],
        adam_epsilon=settings.adam_epsilon,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.clip_norm,
        bf16=_is_bf16(settings),
        tf32=settings.precision == "tf32" if is_torch_tf32_available() else None,
        torch_compile=settings.compile,
        seed=settings.seed,
        logging_steps=settings.log_every,
        logging_nan_inf_filter=False,
        eval_strategy="steps",
        eval_steps=settings.evaluate_every,
        save_strategy="steps",
        save_steps=settings.evaluate_every,
        save_on_each_node=saves_on_each_machine,
        # transformers counts the best checkpoint among those it keeps.
        save_total_limit=settings.keep_checkpoints + 1,
        metric_for_best_model="loss",
        greater_is_better=False,
        ddp_find_unused_parameters=leaves_out_gradients,
        report_to=list(settings.report_to) or "none",
        run_name=folder.name,
        disable_tqdm=True,
        remove_unused_columns=False,
        # So that a resumed run goes on counting the validations that patience waits.
        restore_callback_states_from_checkpoint=settings.patience is not None,
    )
