"""Laws that hold for whatever maps sequences to sequences: a system, a layer, a whole model.

A law is a function of a `Subject`, which says how inputs are drawn and how a module is called. It
returns nothing, or raises `AssertionError`: which subject breaks which law, and what to look for.
Compare in float64 where you can: what may differ follows from the precision of the output. `seed`
is that of the inputs; padding is boolean, `(rows, time)`, `True` at padding.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# In a float mask, what is as low as this lets nothing through in any precision.
_HIDES = -1000.0
# How far results of two ways to compute the same may be apart, relative to the largest of them.
_ALLOWED = {torch.float64: 1e-8, torch.float32: 1e-4}
_FINITE = "look for a division by a number of positions, or a variance, that can be 0"


class Batch(NamedTuple):
    """Sequences to give to a subject, all of them real.

    Attributes:
        sequence: `(rows, time)` tokens or `(rows, time, width)` vectors: what laws cut and change.
        memory: what each row also reads, `(rows, keys, ...)`, such as an encoder's input.
        memory_padding: boolean `(rows, keys)`, `True` at padding, or None.
    """

    sequence: Tensor
    memory: Tensor | None = None
    memory_padding: Tensor | None = None

    def rows(self, index: Any) -> "Batch":
        """The batch of these rows."""
        return Batch(*(None if x is None else x[index] for x in self))  # type: ignore[arg-type]

    def to(self, dtype: torch.dtype) -> "Batch":
        """Vectors in this precision; tokens and padding stay."""
        changed = (x.to(dtype) if x is not None and x.is_floating_point() else x for x in self)
        return Batch(*changed)  # type: ignore[arg-type]


class Seen(NamedTuple):
    """What a subject makes of a batch.

    Attributes:
        output: `(rows, time, ...)`; `(rows, labels)` if there is one for each row.
        decisions: each `(rows, time, units)`, `(rows, units)` or `(units,)`.
        loss: an auxiliary loss, a scalar, or None.
    """

    output: Tensor
    decisions: Sequence[Tensor] = ()
    loss: Tensor | None = None


class Subject(Protocol):
    """Something to which the laws apply. Its attribute `name`, if it has one, stands in messages.

    Attributes:
        causal: whether a position depends on those up to it alone, so that it can be decoded.
    """

    causal: bool

    def draw(self, rows: int, time: int, seed: int) -> Batch:
        """Draws a batch, another for each seed."""

    def __call__(
        self,
        batch: Batch,
        *,
        padding: Tensor | None = None,
        mask: Tensor | None = None,
        cache: Any = None,
    ) -> Seen:
        """Calls the module, in the mode that it is in.

        Args:
            batch: vectors have the precision that `draw` gives, but in `half_precision_is_near`.
            padding: with a cache of all positions, those in the cache first.
            mask: what attention may not see, as `hidden_changes_nothing` was given it.
            cache: one that `new_cache` has made; the call adds the batch to it.
        """

    def new_cache(self) -> Any:
        """An empty cache, with transformers' methods `reorder_cache`, `batch_select_indices` and
        `batch_repeat_interleave`."""

    def parts(self) -> nn.Module:
        """The module."""

    def around(self, module: nn.Module) -> "Subject":
        """The same subject with another module of the same kind."""


def padding_changes_nothing(
    subject: Subject, padding: Tensor, *, memory_padding: Tensor | None = None, seed: int = 0
) -> None:
    """Padding, wherever it stands, changes nothing of what is real.

    A padded batch gives each row what the row gives alone: outputs, decisions, auxiliary loss. In
    training, what stands at padding changes no output, no loss, no running statistic and no
    gradient, and rows and positions that are padding throughout might as well not be there.

    Args:
        padding: right, left or within, or a whole row.
        memory_padding: that of the memory, `(rows, keys)`, with a real key in each row.
    """
    law = _Law(subject, "padding changes nothing", "leave out padding, and do not mix rows")
    drawn = subject.draw(padding.size(0), padding.size(1), seed)
    drawn = drawn._replace(memory_padding=memory_padding)
    noisy = [_with_noise(subject, drawn, padding, seed + 1 + i, 100.0) for i in range(2)]
    together = run(subject, noisy[0], padding=padding).seen
    law.finite(together, "of a padded batch")
    for row in torch.nonzero(~padding.all(1)).flatten().tolist():
        real = ~padding[row]
        alone = Batch(drawn.sequence[:, real], drawn.memory).rows([row])
        if drawn.memory is not None and memory_padding is not None:
            alone = alone._replace(memory=drawn.memory[[row]][:, ~memory_padding[row]])
        single = run(subject, alone).seen
        where = torch.zeros_like(padding)
        where[row] = real
        mine, its = _at(together, where), _at(single, torch.ones(1, int(real.sum())) > 0)
        law.same_seen(f"of row {row} in a padded batch", mine, its)
        if single.loss is not None:
            padded = run(subject, noisy[0].rows([row]), padding=padding[[row]]).seen
            law.same(f"auxiliary losses of row {row} padded", padded.loss, single.loss)
    first, second = (run(subject, x, padding=padding, train=True, gradients=True) for x in noisy)
    which = "with other numbers at padding"
    law.same_seen(which, _at(second.seen, ~padding), _at(first.seen, ~padding))
    law.same_traces(which, second, first)
    at_padding = first.gradients.get("the input", torch.zeros(*padding.shape, 1))[padding]
    law.expect(not at_padding.any(), "what stands at padding gets a gradient")
    rows, times = ~padding.all(1), ~padding.all(0)
    again = run(subject, noisy[0], padding=padding, train=True, seed=2).seen
    draws = not torch.equal(_at(again, ~padding).output, _at(first.seen, ~padding).output)
    if rows.any() and not (rows.all() and times.all()) and not draws:
        smaller = noisy[0].rows(rows)
        smaller = smaller._replace(sequence=smaller.sequence[:, times])
        kept = padding[rows][:, times]
        bare = run(subject, smaller, padding=kept, train=True, gradients=True)
        first.gradients.pop("the input", None)  # of another shape
        law.same_traces("beside rows or positions of padding alone", first, bare)


def hidden_changes_nothing(
    subject: Subject,
    mask: Tensor | None = None,
    *,
    rows: int = 2,
    time: int = 6,
    modes: Sequence[bool] = (False, True),
    seed: int = 0,
) -> None:
    """What a position may not see changes nothing there: the future, or what a mask hides.

    Args:
        mask: `(time, time)`, `(rows, time, time)` or `(rows, heads, time, time)`; boolean `True` is
            hidden, as is -1000 or less in a float mask. Without one the subject has to be causal.
        modes: False looks at evaluation, True at training.
    """
    law = _Law(subject, "what is hidden changes nothing", "look for sums and choices over time")
    sees = _sees(mask, rows, time, subject.causal)
    batch = subject.draw(rows, time, seed)
    for train in modes:
        before = run(subject, batch, mask=mask, train=train).seen
        for changed in range(time):
            hidden = ~sees[:, :, changed]  # (rows, time): the positions that do not see it
            where = (torch.arange(time) == changed).expand(rows, time)
            other = _with_noise(subject, batch, where, seed + 1, 3.0)
            after = run(subject, other, mask=mask, train=train).seen
            which = f"{'in training ' if train else ''}where position {changed} is hidden"
            law.same_seen(which, _at(after, hidden, False), _at(before, hidden, False))


# What is done while decoding: read so many positions, or change the rows as beam search does.
Action = tuple[str, Any]
BEAM_SEARCH: tuple[Action, ...] = (
    *(("read", 3), ("read", 1), ("reorder", (2, 0, 0)), ("read", 2)),
    *(("select", (0, 2)), ("read", 1), ("repeat", 2), ("read", 2)),
)


def steps_equal_one_pass(
    subject: Subject,
    actions: Iterable[Action] = BEAM_SEARCH,
    *,
    rows: int = 3,
    padding: Tensor | None = None,
    seed: int = 0,
) -> None:
    """Decoding in steps equals one pass, whatever beam search does with the rows between.

    Args:
        actions: `("read", n)` reads so many positions; `("reorder", indices)`, `("select",
            indices)` and `("repeat", n)` change the rows.
        rows: at the start.
        padding: on the left of what is read first.
    """
    mend = "what a step has to know of earlier ones belongs into the cache, a row for each sequence"
    law = _Law(subject, "steps equal one pass", mend)
    cache, read, steps = subject.new_cache(), subject.draw(rows, 0, seed), list[list[Tensor]]()
    pads = torch.zeros(rows, 0, dtype=torch.bool) if padding is None else padding
    actions = list(actions)
    for number, (action, value) in enumerate(actions, start=1):
        size, length = read.sequence.shape[:2]
        if action == "read":
            new = subject.draw(size, value, seed + number).sequence
            read = read._replace(sequence=torch.cat([read.sequence, new], dim=1))
            pads = F.pad(pads, (0, max(0, length + value - pads.size(1))))
            given = None if padding is None else pads[:, : length + value]
            with torch.no_grad():  # as generate() does
                step = run(subject, read._replace(sequence=new), padding=given, cache=cache).seen
            steps.append([step.output, *(x for x in step.decisions if x.dim() > 2)])
            continue
        index = torch.arange(size).repeat_interleave(value) if action == "repeat" else value
        index = torch.as_tensor(index)
        if action == "repeat":
            cache.batch_repeat_interleave(value)
        else:
            change = cache.reorder_cache if action == "reorder" else cache.batch_select_indices
            change(index)
        read, pads = read.rows(index), pads[index]
        steps = [[x[index] for x in step] for step in steps]
    real = ~pads[:, : read.sequence.size(1)]
    whole = run(subject, read, padding=None if padding is None else ~real).seen
    output, *decisions = (torch.cat(x, 1) for x in zip(*steps, strict=True))
    which = "after " + ", ".join(f"{action} {value}" for action, value in actions)
    law.same_seen(which, _at(Seen(output, decisions), real, False), _at(whole, real, False))


def copies_are_their_own(
    subject: Subject, how: Callable[[Any], nn.Module] = copy.deepcopy, *, seed: int = 0
) -> None:
    """A copy gives what the original gives, and what is done to the copy leaves the original.

    Args:
        how: copies a module: `copy.deepcopy`; a round through pickle; one built anew that loads the
            `state_dict()`; `save_pretrained` and `from_pretrained`.
    """
    mend = "make what the output depends on a parameter or a buffer, which state_dict() holds"
    law, batch = _Law(subject, "copies are their own", mend), subject.draw(3, 5, seed)
    before, original = run(subject, batch).seen, subject.parts()
    other = how(original).train(original.training)
    law.same_seen("of a copy", run(subject.around(other), batch).seen, before)
    with torch.no_grad():
        for tensor in (*other.parameters(), *other.buffers()):
            if tensor.is_floating_point():
                tensor.add_(torch.linspace(1, 2, tensor.numel()).view_as(tensor))
    law.same_seen("after its copy has changed", run(subject, batch).seen, before)


def every_weight_learns(subject: Subject, *, padding: Tensor | None = None, seed: int = 0) -> None:
    """What may learn gets a finite gradient that is not zero, and what is frozen gets none.

    A bias of the keys adds the same to all logits of a query, and is the one exception.
    """
    law = _Law(subject, "every weight learns", "say requires_grad_(False) of what shall not learn")
    rows, time = (3, 5) if padding is None else padding.shape
    batch = subject.draw(rows, time, seed)
    ran = run(subject, batch, padding=padding, train=True, gradients=True)
    for name, gradient in ran.gradients.items():
        problem = f"the gradient of {name} is not finite{'' if padding is None else ' at padding'}"
        mend = "look for a division, a logarithm or a root of 0, also one that where() hides"
        law.expect(gradient.isfinite().all(), problem, mend)
        learns = gradient.any() or not gradient.numel() or name.endswith("k_proj.bias")
        mend = "use it for an output, with no detach(), argmax or comparison between"
        law.expect(learns, f"the gradient of {name} is zero throughout", mend)
    law.expect(not ran.moved, f"{', '.join(ran.moved)} is frozen, and gets a gradient")


def evaluation_draws_nothing(subject: Subject, *, seed: int = 0) -> None:
    """In evaluation a pass gives what the last one gave, draws no number and moves no statistic."""
    mend = "ask self.training before noise, dropout and statistics"
    law, batch = _Law(subject, "evaluation draws nothing", mend), subject.draw(3, 5, seed)
    before = {name: x.clone() for name, x in subject.parts().named_buffers()}
    first, again = run(subject, batch), run(subject, batch, seed=2)
    law.expect(not first.draws, "a pass draws random numbers")
    for name, x in first.buffers.items():
        is_same = torch.equal(x.nan_to_num(), before[name].nan_to_num())
        law.expect(is_same, f"a pass changes {name}")
    law.same_seen("of another pass", again.seen, first.seen)


def half_precision_is_near(subject: Subject, *, near: float = 0.1, seed: int = 0) -> None:
    """In bfloat16, under autocast and as a whole, results are finite and near those of float32.

    Args:
        near: how far the output at the median position may be off, relative to its size: several
            times the precision of bfloat16, 2^-8. The median, as a close choice may fall otherwise.
    """
    mend = "compute exponentials, logarithms and sums over many positions in float32"
    law = _Law(subject, "half precision is near", mend)
    batch = subject.draw(3, 5, seed).to(torch.float32)
    single, half = (
        subject.around(copy.deepcopy(subject.parts()).to(dtype))
        for dtype in (torch.float32, torch.bfloat16)
    )
    exact = run(single, batch).seen.output
    with torch.autocast("cpu", torch.bfloat16):
        mixed = run(single, batch).seen
        learning = run(single, batch, train=True, gradients=True)
    whole = run(half, batch.to(torch.bfloat16)).seen
    dtype = whole.output.dtype
    law.expect(dtype == torch.bfloat16, f"a module in bfloat16 gives {dtype}", "convert constants")
    for seen, how in ((mixed, "under autocast"), (whole, "as a whole")):
        law.finite(seen, f"in bfloat16, {how},")
        error = (seen.output.float() - exact).norm(dim=-1) / exact.norm(dim=-1).clamp(min=1e-6)
        off = float(error.median())
        law.expect(off <= near, f"outputs in bfloat16, {how}, are off by {off:.2g} of their size")
    for name, gradient in learning.gradients.items():
        problem = f"the gradient of {name} under autocast is not finite"
        law.expect(gradient.isfinite().all(), problem)


def empty_is_empty(
    subject: Subject,
    *,
    shapes: Sequence[tuple[int, int]] = ((0, 4), (3, 0), (0, 0), (3, 1), (1, 1)),
    seed: int = 0,
) -> None:
    """No rows give no rows, no positions give none, and a single one gives finite numbers.

    Args:
        shapes: `(rows, time)` of the batches.
    """
    mend = "models meet batches and sequences of every length"
    law = _Law(subject, "what is empty gives nothing", mend)
    for rows, time in shapes:
        try:
            seen = run(subject, subject.draw(rows, time, seed)).seen
        except Exception as error:
            problem = f"{rows} rows of {time} raise {type(error).__name__}: {error}"
            raise AssertionError(law.message(problem)) from error
        shape = tuple(seen.output.shape)
        fits = shape[: min(2, len(shape) - 1)] == (rows, time)[: len(shape) - 1]
        law.expect(fits, f"{rows} rows of {time} give an output {shape}")
        law.finite(seen, f"of {rows} rows of {time}")


class Pass(NamedTuple):
    """What one pass gave and left behind.

    `moved` are the frozen parameters with a gradient; `draws` is whether random numbers were drawn.
    """

    seen: Seen
    buffers: dict[str, Tensor]
    gradients: dict[str, Tensor]
    moved: list[str]
    draws: bool


def run(
    subject: Subject,
    batch: Batch,
    *,
    train: bool = False,
    seed: int = 1,
    gradients: bool = False,
    **given: Any,
) -> Pass:
    """One pass, and what it does to buffers and gradients; it leaves no trace in the module."""
    module, sequence = subject.parts(), batch.sequence
    with _left_alone(module, train, seed):
        if gradients and sequence.is_floating_point():
            sequence = sequence.detach().clone().requires_grad_()
        state = torch.get_rng_state()
        frozen = [name for name, x in module.named_parameters() if not x.requires_grad]
        seen = subject(batch._replace(sequence=sequence), **given)
        draws = not torch.equal(torch.get_rng_state(), state)
        leaves: dict[str, Tensor] = dict(module.named_parameters()) if gradients else {}
        if gradients:
            padding = given.get("padding")
            real = torch.ones(sequence.shape[:2]) > 0 if padding is None else ~padding
            _objective(_at(seen, real)).backward()
        moved = [name for name in frozen if name in leaves and leaves.pop(name).grad is not None]
        leaves |= {"the input": sequence} if sequence.requires_grad else {}
        found = {n: torch.zeros_like(x) if x.grad is None else x.grad for n, x in leaves.items()}
        buffers = {name: x.detach().clone() for name, x in module.named_buffers()}
    loss = None if seen.loss is None else seen.loss.detach()
    seen = Seen(seen.output.detach(), [x.detach() for x in seen.decisions], loss)
    return Pass(seen, buffers, found, moved, draws)


@contextmanager
def _left_alone(module: nn.Module, train: bool, seed: int) -> Iterator[None]:
    """Sets mode and seed; mode, buffers, gradients and random numbers then are as they were."""
    modes = {part: part.training for part in module.modules()}
    buffers = {name: x.clone() for name, x in module.named_buffers()}
    gradients = [(x, x.grad) for x in module.parameters()]
    module.zero_grad(set_to_none=True)
    module.train(train)
    try:
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed takes long where no device is in use.
            torch.default_generator.manual_seed(seed)
            yield
    finally:
        for part, mode in modes.items():
            part.training = mode
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for name, buffer in module.named_buffers():  # a pass may have put others in place
                buffer.copy_(buffers[name])


def _objective(seen: Seen) -> Tensor:
    """A scalar that depends on all of the output, and on the auxiliary loss."""
    total = seen.output.to(torch.promote_types(seen.output.dtype, torch.float32)).sin().sum()
    return total if seen.loss is None else total + seen.loss


def _sees(mask: Tensor | None, rows: int, time: int, causal: bool) -> Tensor:
    """Boolean `(rows, time, time)`: on which positions each depends, over any number of layers."""
    sees = torch.ones(rows, time, time, dtype=torch.bool)
    if mask is not None:
        hidden = mask if mask.dtype == torch.bool else mask <= _HIDES
        sees = sees & ~(hidden.all(1) if hidden.dim() == 4 else hidden)
    sees = (sees.tril() if causal else sees) | torch.eye(time, dtype=torch.bool)
    return torch.linalg.matrix_power(sees.double(), time) > 0


def _with_noise(subject: Subject, batch: Batch, where: Tensor, seed: int, size: float) -> Batch:
    """Other tokens, or larger vectors, at these positions and at the padding of the memory."""
    other = subject.draw(batch.sequence.size(0), batch.sequence.size(1), seed)

    def mixed(x: Tensor, y: Tensor, at: Tensor) -> Tensor:
        y = size * y if y.is_floating_point() else y
        return torch.where(at.reshape(*at.shape, *[1] * (x.dim() - 2)), y, x)

    memory = batch.memory
    if memory is not None and other.memory is not None and batch.memory_padding is not None:
        memory = mixed(memory, other.memory, batch.memory_padding)
    return batch._replace(sequence=mixed(batch.sequence, other.sequence, where), memory=memory)


def _at(seen: Seen, where: Tensor, whole: bool = True) -> Seen:
    """What is computed at some positions, `(rows, time)`.

    What is computed of a row as a whole, or of all rows, is left out unless it is wanted; then the
    loss is too.
    """
    parts = [
        x[where] if x.dim() > 2 else x[where.any(1)] if x.dim() == 2 else x
        for x in (seen.output, *seen.decisions)
        if whole or x.dim() > 2
    ]
    return Seen(parts[0], parts[1:], seen.loss if whole else None)


class _Law(NamedTuple):
    """Raises `AssertionError` where a law does not hold."""

    subject: Subject
    name: str
    mend: str

    def message(self, problem: str, mend: str | None = None) -> str:
        name = getattr(self.subject, "name", "") or type(self.subject.parts()).__name__
        return f"{name}: {self.name}, but {problem}; {mend or self.mend}"

    def expect(self, holds: Any, problem: str, mend: str | None = None) -> None:
        if not holds:
            raise AssertionError(self.message(problem, mend))

    def finite(self, seen: Seen, which: str) -> None:
        named = [("outputs", seen.output), *(("decisions", x) for x in seen.decisions)]
        named += [] if seen.loss is None else [("the auxiliary loss", seen.loss)]
        for what, x in named:
            kind = "NaN" if x.isnan().any() else "infinite"
            self.expect(x.isfinite().all(), f"{what} {which} are not finite ({kind})", _FINITE)

    def same(self, what: str, got: Tensor | None, wanted: Tensor | None) -> None:
        if got is None or wanted is None or got.shape != wanted.shape:
            shapes = (None if x is None else tuple(x.shape) for x in (got, wanted))
            raise AssertionError(self.message("{} are {} in place of {}".format(what, *shapes)))
        if not got.numel() or not got.is_floating_point():
            self.expect(torch.equal(got, wanted), f"{what} are others")
            return
        self.expect(got.isfinite().all(), f"{what} are not finite")
        size = max(1.0, float(wanted.detach().abs().max()))
        off = float((got - wanted).detach().abs().max()) / size
        self.expect(off <= _ALLOWED.get(got.dtype, 0.05), f"{what} are others, by {off:.2g}")

    def same_seen(self, which: str, got: Seen, wanted: Seen) -> None:
        self.same(f"outputs {which}", got.output, wanted.output)
        for x, y in zip(got.decisions, wanted.decisions, strict=True):
            self.same(f"decisions {which}", x, y)

    def same_traces(self, which: str, got: Pass, wanted: Pass) -> None:
        if got.seen.loss is not None:
            self.same(f"auxiliary losses {which}", got.seen.loss, wanted.seen.loss)
        for name, x in got.buffers.items():
            self.same(f"running statistics ({name}) {which}", x, wanted.buffers[name])
        for name, x in got.gradients.items():
            if name in wanted.gradients:
                self.same(f"gradients of {name} {which}", x, wanted.gradients[name])
