"""The loss of a model on data, and contexts in which it is computed."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headwise.models.inspect import eval_mode
from headwise.ops import IGNORED_LABEL
from headwise.ops.replicas import world_size


def on_device(batch: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Returns a batch with its tensors on a device; other arguments of a model stay as they are.

    A GPU copies from pinned memory, without a wait.
    """

    def moved(x: Tensor) -> Tensor:
        to_gpu = device.type == "cuda"
        x = x.pin_memory() if to_gpu and x.device.type == "cpu" else x
        return x.to(device, non_blocking=to_gpu)

    return {name: moved(x) if isinstance(x, Tensor) else x for name, x in batch.items()}


def loss_and_labels(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Returns the summed loss of a batch and the number of its labels, in one tensor of float64.

    The model is in evaluation mode.
    """
    batch = on_device(batch, model.device)
    # With a divisor of 1, the loss is the sum.
    loss = model(**batch, num_items_in_batch=1).loss
    labels = (batch["labels"] != IGNORED_LABEL).sum()
    return torch.stack([loss.double(), labels.double()])


def mean_loss(
    model: Any,
    batches: Iterable[dict[str, Tensor]],
    precision: AbstractContextManager[Any] | None = None,
) -> float:
    """Returns the mean loss per label, without label smoothing and auxiliary losses.

    Several processes call this together, each with its share of the batches. The model is left in
    evaluation mode.
    """
    model.eval()
    total = torch.zeros(2, dtype=torch.float64, device=model.device)
    with torch.no_grad(), precision or nullcontext():
        for batch in batches:
            total += loss_and_labels(model, batch)
    if world_size() > 1:
        dist.all_reduce(total)
    loss, labels = total.tolist()
    return float(loss / max(1.0, labels))


@contextmanager
def undisturbed_evaluation(model: nn.Module) -> Iterator[None]:
    """While this context is open, a model may be evaluated in the middle of its training.

    The model is in evaluation mode, no gradients are recorded, and the random states are restored
    at the end.
    """
    with eval_mode(model), torch.no_grad(), preserve_rng_state():
        yield


def preserve_rng_state() -> AbstractContextManager[None]:
    """Restores, at the end, the random states of the CPU and of the GPU that this process uses.

    `torch.random.fork_rng()` would take the states of all GPUs, and warn if there are several.

    >>> with preserve_rng_state():
    ...     one = torch.rand(1)
    >>> bool(torch.rand(1) == one)
    True
    """
    return torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_available() else [])


@contextmanager
def flush_denormal() -> Iterator[None]:
    """While this context is open, denormal numbers, with which a CPU is slow, count as 0.

    >>> smallest = torch.full((), 1e-310, dtype=torch.float64)
    >>> with flush_denormal():
    ...     float(smallest * 1)
    0.0
    >>> float(smallest * 1)
    1e-310
    """
    was_set = not torch.full((), 1e-310, dtype=torch.float64) * 1
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(was_set)
