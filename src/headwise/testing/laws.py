"""Laws that hold for whatever maps sequences to sequences: a system, a layer, a whole model.

A law is a function of a `Subject`, which says how inputs are drawn and how a module is called. It
returns nothing, or raises an `AssertionError` that says which values differ and by how much. The
tolerance follows from the precision of the output, so use float64 where you can. `seed` is the seed
of the inputs; padding is boolean, `(rows, time)`, `True` at padding.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Tolerances, relative to the largest value.
_TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.05}


class Batch(NamedTuple):
    """Inputs of a subject, without padding in the sequences.

    Attributes:
        sequence: `(rows, time)` tokens or `(rows, time, width)` vectors.
        memory: a second input of each row, `(rows, keys, ...)`, such as that of an encoder.
        memory_padding: boolean `(rows, keys)`, `True` at padding, or None.
    """

    sequence: Tensor
    memory: Tensor | None = None
    memory_padding: Tensor | None = None

    def rows(self, index: Any) -> "Batch":
        """The batch of these rows."""
        return Batch(*(None if x is None else x[index] for x in self))  # type: ignore[arg-type]

    def to(self, dtype: torch.dtype) -> "Batch":
        """The batch with its vectors in this precision."""
        changed = (x.to(dtype) if x is not None and x.is_floating_point() else x for x in self)
        return Batch(*changed)  # type: ignore[arg-type]


class Result(NamedTuple):
    """The result of a subject for a batch.

    Attributes:
        output: `(rows, time, ...)`; `(rows, labels)` if there is one for each row.
        decisions: each `(rows, time, units)`, `(rows, units)` or `(units,)`.
        loss: an auxiliary loss, a scalar, or None.
    """

    output: Tensor
    decisions: Sequence[Tensor] = ()
    loss: Tensor | None = None


class Subject(Protocol):
    """A module under test, and how it is called.

    Attributes:
        module: the module; laws replace it by copies of it.
        causal: whether a position depends on no later one, so that the module can decode.
    """

    module: Any
    causal: bool

    def draw(self, rows: int, time: int, seed: int) -> Batch:
        """Draws a batch, another for each seed."""

    def __call__(
        self, batch: Batch, *, padding: Tensor | None = None, mask: Any = None, cache: Any = None
    ) -> Result:
        """Calls the module, without changing its mode of training.

        Args:
            batch: vectors have the precision that `draw` gives, but in `half_precision_is_near`.
            padding: with a cache, also of the positions in the cache, which come first.
            mask: the attention mask that the law was called with.
            cache: a cache of `new_cache`, to which the call adds the batch.
        """

    def new_cache(self) -> Any:
        """An empty cache, with transformers' methods `reorder_cache`, `batch_select_indices` and
        `batch_repeat_interleave`."""


def padding_changes_nothing(
    subject: Subject, padding: Tensor, *, memory_padding: Tensor | None = None, seed: int = 0
) -> None:
    """Padding changes no result of real positions, on either side or between them.

    Each row of a padded batch has the outputs, decisions and auxiliary loss of the row alone. In
    training, the values at padding change no output, loss, running statistic or gradient, and
    neither do rows and positions of padding alone.

    Args:
        padding: on the right, on the left, within, or in a whole row.
        memory_padding: the padding of the memory, `(rows, keys)`, with a real key in each row.
    """
    real, rows, times = ~padding, ~padding.all(1), ~padding.all(0)
    batch = subject.draw(padding.size(0), padding.size(1), seed)
    batch = batch._replace(memory_padding=memory_padding)
    noisy, noisy_too = (_with_noise(subject, batch, padding, seed + n, 100.0) for n in (1, 2))
    padded = run(subject, noisy, padding=padding).result
    finite("of a padded batch", padded)
    for row in torch.nonzero(rows).flatten().tolist():
        sequence, memory, _ = batch.rows([row])
        if memory is not None and memory_padding is not None:
            memory = memory[:, ~memory_padding[row]]
        alone = run(subject, Batch(sequence[:, real[row]], memory))
        real_in_row = torch.zeros_like(padding)
        real_in_row[row] = real[row]
        actual = _values(padded, real_in_row)
        _assert_same(f"of row {row} in a padded batch", actual, _values(alone.result))
        if alone.result.loss is not None:  # that of a batch is not that of its rows
            padded_row = run(subject, noisy.rows([row]), padding=padding[[row]])
            _assert_same(f"of row {row} padded", padded_row.traces, alone.traces)
    first, second = (
        run(subject, x, padding=padding, train=True, gradients=True) for x in (noisy, noisy_too)
    )
    expected, actual = (_values(p.result, real) | p.traces for p in (first, second))
    _assert_same("with other numbers at padding", actual, expected)
    input_gradient = first.gradients.pop("the input", torch.zeros(*padding.shape, 1))
    assert not input_gradient[padding].any(), "what is at padding gets a gradient"
    if rows.any() and not (rows.all() and times.all()) and not first.draws:
        cropped = noisy.rows(rows)._replace(sequence=noisy.sequence[rows][:, times])
        crop = run(subject, cropped, padding=padding[rows][:, times], train=True, gradients=True)
        _assert_same("beside rows or positions of padding alone", crop.traces, first.traces)


def hidden_changes_nothing(
    subject: Subject,
    mask: Tensor | None = None,
    *,
    rows: int = 2,
    time: int = 6,
    seed: int = 0,
) -> None:
    """Asserts that no result of a position depends on a position that it may not see.

    Args:
        mask: of a subject of one layer: over several, a position depends on what its visible
            positions see. `(time, time)`, `(rows, time, time)` or `(rows, heads, time, time)`;
            boolean `True` is hidden, as is -1000 or less in a float mask. Without one the subject
            has to be causal.
    """
    sees = torch.ones(rows, time, time, dtype=torch.bool)
    if mask is not None:
        hidden = mask if mask.dtype == torch.bool else mask <= -1000
        sees = sees & ~(hidden.all(1) if hidden.dim() == 4 else hidden)
    sees = (sees.tril() if subject.causal else sees) | torch.eye(time, dtype=torch.bool)
    batch = subject.draw(rows, time, seed)
    for train in (False, True):
        before = run(subject, batch, mask=mask, train=train).result
        for changed in range(time):
            hidden = ~sees[:, :, changed]
            is_changed = (torch.arange(time) == changed).expand(rows, time)
            changed_batch = _with_noise(subject, batch, is_changed, seed + 1, 3.0)
            after = run(subject, changed_batch, mask=mask, train=train).result
            which = f"{'in training ' if train else ''}where position {changed} is hidden"
            _assert_same(which, _values(after, hidden, False), _values(before, hidden, False))


# A step of decoding: reading some positions, or changing the rows as beam search does.
Action = tuple[str, Any]
BEAM_SEARCH: tuple[Action, ...] = (
    *(("read", 3), ("read", 1), ("reorder", (2, 0, 0)), ("read", 2)),
    *(("select", (0, 2)), ("read", 1), ("repeat", 2), ("read", 2)),
)


def steps_equal_one_pass(
    subject: Subject,
    actions: Iterable[Action] = BEAM_SEARCH,
    *,
    padding: Tensor | None = None,
    seed: int = 0,
) -> None:
    """Decoding in steps equals one pass, also when beam search changes the rows between steps.

    Args:
        actions: `("read", n)` reads n positions; `("reorder", indices)`, `("select", indices)` and
            `("repeat", n)` change the rows of the cache.
        padding: on the left of the first positions.
    """
    actions = list(actions)
    pads = torch.zeros(3, 0, dtype=torch.bool) if padding is None else padding
    cache, read = subject.new_cache(), subject.draw(len(pads), 0, seed)
    steps: list[list[Tensor]] = []
    for number, (action, value) in enumerate(actions, start=1):
        if action == "read":
            new = subject.draw(len(pads), value, seed + number).sequence
            read = read._replace(sequence=torch.cat([read.sequence, new], dim=1))
            length = read.sequence.size(1)
            pads = F.pad(pads, (0, max(0, length - pads.size(1))))
            so_far = None if padding is None else pads[:, :length]
            with torch.no_grad():  # as generate() does
                step = run(subject, read._replace(sequence=new), padding=so_far, cache=cache).result
            steps.append([step.output, *(x for x in step.decisions if x.dim() > 2)])
            continue
        if action == "repeat":
            index = torch.arange(len(pads)).repeat_interleave(value)
            cache.batch_repeat_interleave(value)
        else:
            index = torch.as_tensor(value)
            change_rows = cache.reorder_cache if action == "reorder" else cache.batch_select_indices
            change_rows(index)
        read, pads = read.rows(index), pads[index]
        steps = [[x[index] for x in step] for step in steps]
    real = ~pads[:, : read.sequence.size(1)]
    at_once = run(subject, read, padding=None if padding is None else ~real).result
    at_once = Result(at_once.output, [x for x in at_once.decisions if x.dim() > 2])
    output, *decisions = (torch.cat(x, 1) for x in zip(*steps, strict=True))
    which = "in steps, " + ", ".join(f"{action} {value}" for action, value in actions)
    _assert_same(which, _values(Result(output, decisions), real), _values(at_once, real))


def copies_are_their_own(
    subject: Subject, how: Callable[[Any], nn.Module] = copy.deepcopy, *, seed: int = 0
) -> None:
    """A copy has the results of the original, which a change of the copy leaves as it is.

    Args:
        how: a function that copies a module: `copy.deepcopy`; pickling and unpickling; building a
            new one that loads the `state_dict()`; `save_pretrained` and `from_pretrained`.
    """
    batch, original = subject.draw(3, 5, seed), subject.module
    before = _values(run(subject, batch).result)
    copied = how(original).train(original.training)
    _assert_same("of a copy", _values(run(_with_module(subject, copied), batch).result), before)
    with torch.no_grad():
        for tensor in (*copied.parameters(), *copied.buffers()):
            if tensor.is_floating_point():
                tensor.add_(torch.linspace(1, 2, tensor.numel()).view_as(tensor))
    _assert_same("after its copy has changed", _values(run(subject, batch).result), before)


def every_weight_learns(
    subject: Subject, *, padding: Tensor | None = None, mask: Tensor | None = None, seed: int = 0
) -> None:
    """Trainable parameters get finite gradients that are not zero.

    The one exception is a bias of the keys, which adds the same to all logits of a query.

    Args:
        padding, mask: arguments of the call; some queries may see no key.
    """
    rows, time = (3, 5) if padding is None else padding.shape
    batch = subject.draw(rows, time, seed)
    learning = run(subject, batch, padding=padding, mask=mask, train=True, gradients=True)
    for name, gradient in learning.gradients.items():
        assert gradient.isfinite().all(), f"gradients of {name} are not finite{_LOOK_FOR}"
        learns = gradient.any() or not gradient.numel() or name.endswith("k_proj.bias")
        assert learns, f"gradients of {name} are zero throughout"


def evaluation_draws_nothing(subject: Subject, *, seed: int = 0) -> None:
    """In evaluation all passes are equal, draw no random number and change no running statistic."""
    batch, before = subject.draw(3, 5, seed), _buffers(subject.module)
    first, second = run(subject, batch), run(subject, batch)
    assert not first.draws, "a pass in evaluation draws random numbers"
    for name, x in first.buffers.items():
        assert torch.equal(x, before[name]), f"a pass in evaluation changes {name}"
    _assert_same("of another pass", _values(second.result), _values(first.result))


def half_precision_is_near(subject: Subject, *, near: float = 0.1, seed: int = 0) -> None:
    """In bfloat16, under autocast and as a whole, results are finite and near those of float32.

    Args:
        near: largest relative error of the output at the median position: several times the
            precision of bfloat16, 2^-8. Other positions may choose another unit in a close choice.
    """
    batch = subject.draw(3, 5, seed).to(torch.float32)
    single, half = (
        _with_module(subject, copy.deepcopy(subject.module).to(dtype))
        for dtype in (torch.float32, torch.bfloat16)
    )
    exact = run(single, batch).result.output
    with torch.autocast("cpu", torch.bfloat16):
        mixed = run(single, batch).result
        learning = run(single, batch, train=True, gradients=True)
    whole = run(half, batch.to(torch.bfloat16)).result
    dtype = whole.output.dtype
    assert dtype == torch.bfloat16, f"a module in bfloat16 gives {dtype}"
    for result, how in ((mixed, "under autocast"), (whole, "as a whole")):
        finite(f"in bfloat16, {how},", result)
        error = (result.output.float() - exact).norm(dim=-1) / exact.norm(dim=-1).clamp(min=1e-6)
        off = float(error.median())
        assert off <= near, f"outputs in bfloat16, {how}, are off by {off:.2g} of their size"
    for name, gradient in learning.gradients.items():
        assert gradient.isfinite().all(), f"gradients of {name} are not finite, under autocast"


def empty_is_empty(subject: Subject, *, seed: int = 0) -> None:
    """Outputs of no rows or no positions are empty, and those of a single one are finite."""
    for rows, time in ((0, 4), (3, 0), (0, 0), (3, 1), (1, 1)):
        result = run(subject, subject.draw(rows, time, seed)).result
        shape = tuple(result.output.shape)
        fits = shape[0] == rows and (len(shape) == 2 or shape[1] == time)
        assert fits, f"{rows} rows of {time} give an output {shape}"
        finite(f"of {rows} rows of {time}", result)


class Pass(NamedTuple):
    """The results and side effects of a pass; `draws` says whether it drew random numbers."""

    result: Result
    buffers: dict[str, Tensor]
    gradients: dict[str, Tensor]
    draws: bool

    @property
    def traces(self) -> dict[str, Tensor]:
        """The auxiliary loss, running statistics and gradients, by their names in messages."""
        loss = {} if self.result.loss is None else {"auxiliary losses": self.result.loss}
        moved = {f"running statistics ({name})": x for name, x in self.buffers.items()}
        return loss | moved | {f"gradients of {name}": x for name, x in self.gradients.items()}


def run(
    subject: Subject, batch: Batch, *, train: bool = False, gradients: bool = False, **kwargs: Any
) -> Pass:
    """Runs one pass and returns its side effects on buffers and gradients, which it undoes."""
    module, sequence = subject.module, batch.sequence
    was_training, before = module.training, _buffers(module)
    if gradients and sequence.is_floating_point():
        sequence = sequence.detach().requires_grad_()
    module.train(train)
    gradient_of: dict[str, Tensor] = {}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)  # torch.manual_seed takes long without a device
        state = torch.get_rng_state()
        result = subject(batch._replace(sequence=sequence), **kwargs)
        draws = not torch.equal(torch.get_rng_state(), state)
        if gradients:
            # The gradients of a sum of all real outputs and the auxiliary loss.
            padding = kwargs.get("padding")
            outputs = _values(result, None if padding is None else ~padding)["outputs"]
            total = outputs.double().sin().sum()
            total = total if result.loss is None else total + result.loss
            leaves = {**dict(module.named_parameters()), "the input": sequence}
            leaves = {name: x for name, x in leaves.items() if x.requires_grad}
            grads = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
            gradient_of = dict(zip(leaves, grads, strict=True))
    module.train(was_training)
    after = _buffers(module)
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(before[name])
    loss = None if result.loss is None else result.loss.detach()
    result = Result(result.output.detach(), [x.detach() for x in result.decisions], loss)
    return Pass(result, after, gradient_of, draws)


def _with_module(subject: Subject, module: nn.Module) -> Subject:
    changed = copy.copy(subject)
    changed.module = module
    return changed


def _buffers(module: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.detach().clone() for name, buffer in module.named_buffers()}


def _with_noise(subject: Subject, batch: Batch, where: Tensor, seed: int, size: float) -> Batch:
    """The batch with other values at these positions and at the padding of the memory."""
    noise = subject.draw(batch.sequence.size(0), batch.sequence.size(1), seed)

    def mix(x: Tensor, y: Tensor, is_noise: Tensor) -> Tensor:
        y = size * y if y.is_floating_point() else y
        return torch.where(is_noise.reshape(*is_noise.shape, *[1] * (x.dim() - 2)), y, x)

    memory = batch.memory
    if memory is not None and noise.memory is not None and batch.memory_padding is not None:
        memory = mix(memory, noise.memory, batch.memory_padding)
    return batch._replace(sequence=mix(batch.sequence, noise.sequence, where), memory=memory)


def _named_tensors(result: Result) -> dict[str, Tensor]:
    """All tensors of a result, by their names in messages."""
    loss = {} if result.loss is None else {"auxiliary losses": result.loss}
    decisions = {f"decisions[{i}]": x for i, x in enumerate(result.decisions)}
    return {"outputs": result.output} | decisions | loss


def _values(result: Result, where: Tensor | None = None, whole: bool = True) -> dict[str, Tensor]:
    """Outputs and decisions at the positions `where`, `(rows, time)`, or at all of them.

    With `whole`, tensors with one value for a row, or for all rows, are among them.
    """
    tensors = dict[str, Tensor]()
    for name, x in _named_tensors(result).items():
        if x.dim() > 2:
            tensors[name] = x.flatten(0, 1) if where is None else x[where]
        elif x.dim() > 0 and whole:
            tensors[name] = x if where is None or x.dim() == 1 else x[where.any(1)]
    return tensors


_LOOK_FOR = (
    ": look for a softmax over keys that are all hidden, and for a division, logarithm or root of "
    "0, also one that where() hides"
)


def finite(which: str, result: Result) -> None:
    for name, x in _named_tensors(result).items():
        assert x.isfinite().all(), f"{name} {which} are not finite{_LOOK_FOR}"


def _assert_same(which: str, actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Checks that the tensors of two passes are equal up to rounding."""
    for name, y in expected.items():
        largest = max(1.0, float(y.double().abs().max())) if y.numel() else 1.0
        torch.testing.assert_close(
            actual[name],
            y,
            rtol=0.0,
            atol=_TOLERANCES.get(y.dtype, 0.0) * largest,
            msg=partial("{} {}: {}".format, name, which),
        )
