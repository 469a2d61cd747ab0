"""Loggers of other projects, to which a run reports beside its own history.

They are the callbacks of transformers' integrations. Where they send figures, and under which
project, each takes from environment variables of its own, such as `WANDB_PROJECT` and
`MLFLOW_TRACKING_URI`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import transformers
from transformers.integrations import TensorBoardCallback

Logger = Literal[
    "tensorboard", "wandb", "mlflow", "comet_ml", "trackio", "clearml", "dvclive", "swanlab"
]
LOGS = "logs"  # folder of TensorBoard's files inside the folder of a run


def check_loggers(names: Sequence[str]) -> None:
    """Raises `ValueError` if a logger is not installed."""
    for name in names:
        if find_spec(name) is None:
            raise ValueError(
                f"training.report_to names {name}, which is not installed: pip install {name}, or "
                f"leave it out"
            )


@contextmanager
def own_logs(names: Sequence[str]) -> Iterator[None]:
    """Ends the runs of W&B and SwanLab that are begun while this context is open.

    They last as long as the process, and would take the figures of its next training too.
    """
    loggers = [import_module(name) for name in names if name in ("wandb", "swanlab")]
    idle = [logger for logger in loggers if not _is_logging(logger)]
    try:
        yield
    finally:
        for logger in filter(_is_logging, idle):
            logger.finish()


def _is_logging(logger: Any) -> bool:
    """Whether W&B or SwanLab has a run in this process."""
    return (logger.run if logger.__name__ == "wandb" else logger.get_run()) is not None


def write_logs_into(trainer: transformers.Trainer, folder: Path) -> None:
    """Has TensorBoard's files written into `folder/logs`, if the environment names no place."""
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
            callback.logging_dir = str(folder / LOGS)


def figures(record: Mapping[str, Any]) -> dict[str, float]:
    """Returns the single numbers of a record of training, which is all that loggers take.

    >>> figures({"eval_loss": 2.5, "measured": {"accuracy": 40.0}, "recorded": {"a rule": {}}})
    {'eval_loss': 2.5, 'eval_accuracy': 40.0}
    """
    measured = {f"eval_{name}": value for name, value in record.get("measured", {}).items()}
    single = {name: value for name, value in record.items() if isinstance(value, int | float)}
    return single | measured
