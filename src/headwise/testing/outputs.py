"""Checks of what a system computes: sizes, order of time, padding, decoding, precision, cost."""

import copy
import functools
import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from headwise.heads.attention import Attention
from headwise.heads.cache import AttentionCache
from headwise.heads.heads_read import HeadsRead
from headwise.heads.multi_head import MultiHeadAttention, standard_sizes
from headwise.heads.system import AttentionOutput, Routing, System
from headwise.models.decisions import heads_read
from headwise.models.plan import options_of
from headwise.ops.attention import share_heads
from headwise.testing.subject import (
    BATCH,
    KEYS,
    TIME,
    Subject,
    backward,
    close,
    draw_parameters,
    filled,
    padding_mask,
    random_input,
)

_IN_FLOAT32 = "compute exponentials, logarithms and sums over many positions in float32"


def check_sizes(subject: Subject) -> None:
    # As it starts: what lives on a simplex, say, does not stay there when randomized.
    module = subject.build(randomize=False)
    sizes = ((BATCH, TIME, KEYS), (1, TIME, 1), (BATCH, 1, KEYS), (1, 1, 1))
    for batch, time, keys in (*sizes, (0, TIME, KEYS), (BATCH, 0, KEYS), (BATCH, 0, 0)):
        x, memory = random_input(batch, time), random_input(batch, keys)
        given = f"an input {tuple(x.shape)}"
        try:
            out = subject.call(module, x, memory)
        except Exception as error:
            problem = f"{given} raises {type(error).__name__}: {error}"
            subject.expect(False, problem, "models meet batches and sequences of every length")
            raise
        subject.expect(
            isinstance(out, AttentionOutput),
            f"forward returns {type(out).__name__}",
            "expected AttentionOutput(output, weights, routing)",
        )
        subject.expect(
            out.output.shape == x.shape,
            f"{given} gives an output {tuple(out.output.shape)}",
            "expected (batch, time, embed_dim) as it came",
        )
        subject.expect(
            out.output.isfinite().all(),
            f"{given} gives numbers that are not finite",
            "look for a division by a number of positions, or a variance, that can be 0",
        )
        if out.routing is not None:
            _expect_routing(subject, out.routing)


def _expect_routing(subject: Subject, routing: Any) -> None:
    subject.expect(
        isinstance(routing, Routing) and (routing.weights >= 0).all(),
        "routing is no Routing, or its weights hold a negative number",
        "say how much each head counts: reports take the weights for shares",
    )
    loss = routing.loss
    subject.expect(
        loss is None or (loss.dim() == 0 and loss.isfinite()),
        "routing.loss is no finite scalar",
        "sum or average it over everything but padding",
    )


def check_causality(subject: Subject) -> None:
    if not subject.decodes:
        return
    for train in (False, True):
        module = subject.build(train=train)
        x, memory = random_input(BATCH, TIME), random_input(BATCH, KEYS)
        before = subject.repeatable(module, x, memory).output
        for t in (1, TIME // 2, TIME - 1):
            changed = torch.cat([x[:, :t], random_input(BATCH, TIME - t)], dim=1)
            after = subject.repeatable(module, changed, memory).output
            subject.expect(
                close(after[:, :t], before[:, :t]),
                f"{'in training, ' if train else ''}a later token changes an earlier output",
                "what is decided for a position may only depend on those up to it, so look for "
                "sums and statistics over time",
            )


def check_padding(subject: Subject) -> None:
    module = subject.build()
    for left in (False, True):
        padding = padding_mask(7, 2, 4, time=TIME, left=left)
        memory_padding = padding_mask(3, 5, 1, time=KEYS, left=left)
        x, memory = random_input(BATCH, TIME), random_input(BATCH, KEYS)
        masks = (padding, memory_padding)
        together = subject.repeatable(
            module, filled(x, padding), filled(memory, memory_padding), *masks
        )
        for row in range(BATCH):
            real, real_keys = ~padding[row], ~memory_padding[row]
            sequence = x[row, real].unsqueeze(0), memory[row, real_keys].unsqueeze(0)
            alone = subject.repeatable(module, *sequence).output[0]
            subject.expect(
                close(together.output[row, real], alone),
                f"a sequence with padding on the {'left' if left else 'right'} gives other outputs "
                f"than alone",
                "leave out what inputs.query_padding marks, and do not mix the rows of a batch",
            )
        if together.routing is not None and together.routing.weights.dim() == 3:
            marked = together.routing.padding
            subject.expect(
                marked is not None and torch.equal(marked, padding),
                "routing.padding does not mark the padding of the queries",
                "set it in forward, which gets query_padding_mask, or in self-attention "
                "key_padding_mask: whoever counts decisions leaves out what it marks",
            )
        if together.routing is not None and together.routing.loss is not None:
            other = subject.repeatable(module, filled(x, padding, -9.0), memory, *masks).routing
            subject.expect(
                other is not None and close(other.loss, together.routing.loss),
                "what stands at padding changes routing.loss",
                "leave out what inputs.query_padding marks",
            )


def check_weights(subject: Subject) -> None:
    module = subject.build()
    if not isinstance(module, Attention):
        return  # what its weights are the weights of, only its own tests can say
    x, memory = random_input(BATCH, TIME), random_input(BATCH, KEYS)
    padding, keys = padding_mask(7, 2, 4, time=TIME), padding_mask(3, 5, 1, time=KEYS)
    asked = copy.deepcopy(module)
    asked.forward = functools.partial(asked.forward, need_weights=True)  # type: ignore[method-assign]
    expected = subject.repeatable(module, x, memory, padding, keys).output
    out = subject.call(asked, x, memory, padding, keys)
    weights = out.weights
    subject.expect(
        weights is not None and close(out.output, expected),
        "need_weights gives no attention weights, or changes the output",
        "return AttentionOutput.weights where it is asked for, and compute the output as ever",
    )
    assert weights is not None

    def read(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        return weights @ share_heads(weights, v)

    by_weights = copy.deepcopy(module)
    by_weights.attend = read  # type: ignore[method-assign]
    subject.expect(
        close(subject.call(by_weights, x, memory, padding, keys).output, expected),
        "the weights that need_weights gives do not reproduce the output",
        "override attention_weights(q, k, mask) beside attend: it returns the weights by which "
        "attend reads the values",
    )


def check_chosen_heads(subject: Subject) -> None:
    module = subject.build()
    if not isinstance(module, Attention) or not module.chooses_heads:
        return
    reads: list[HeadsRead] = []
    with heads_read(module, lambda place, read: reads.append(read)):
        subject.call(module, random_input(BATCH, TIME), random_input(BATCH, KEYS))
    (read,) = reads
    shape = (BATCH, TIME, read.q.size(1))
    subject.expect(
        read.chosen is not None and read.chosen.shape == shape,
        f"chooses_heads is set, but routing.indices are not the {shape[-1]} heads of each query",
        f"expected integers of shape (batch, queries, heads) = {shape}",
    )
    assert read.chosen is not None
    try:
        every = read.every_head()
    except NotImplementedError as error:
        problem = "chooses_heads is set without queries_of_every_head"
        subject.expect(False, problem, f"override it: {error}")
        raise
    picked = read.chosen.transpose(1, 2).unsqueeze(-1).expand_as(read.outputs)
    subject.expect(
        close(every.outputs.gather(1, picked), read.outputs),
        "what every head would read is not, at the chosen ones, what these have read",
        "queries_of_every_head returns them in the order that routing.indices count in",
    )


def check_decoding(subject: Subject) -> None:
    if subject.decodes:
        expect_same_in_steps(subject, subject.build())


def expect_same_in_steps(subject: Subject, module: System, under: str = "") -> None:
    x, memory = random_input(BATCH, TIME), random_input(BATCH, KEYS)
    for rows, what in ((None, "step by step"), (torch.tensor([2, 0, 0]), "with beam search")):
        caches = AttentionCache(), AttentionCache(static=True)
        seen, encoded = x, memory
        outputs: list[Tensor] = []
        for start, end in ((0, 3), (3, 4), (4, 6), (6, 7)):
            if start == 4 and rows is not None:
                for cache in caches:
                    cache.reorder_cache(rows)
                seen, encoded = torch.cat([x[rows, :start], x[:, start:]], dim=1), memory[rows]
                outputs = [output[rows] for output in outputs]
            step = subject.call(module, x[:, start:end], encoded, None, None, *caches)
            outputs.append(step.output)
        subject.expect(
            close(torch.cat(outputs, dim=1), subject.call(module, seen, encoded).output),
            f"{under}decoding {what} differs from decoding at once",
            "what a step has to know of earlier ones belongs into inputs.cache.memory, a row for "
            "each sequence; beam search reorders that with keys and values",
        )


def check_standard_start(subject: Subject) -> None:
    system = subject.system
    standard = MultiHeadAttention
    neutral = getattr(system, "start_neutral", standard.start_neutral)
    silent = (System.start_as_standard, standard.start_as_standard)
    if neutral is standard.start_neutral and system.start_as_standard in silent:
        return  # it does not say how
    module = subject.build()
    if not isinstance(module, MultiHeadAttention):
        return  # as what it starts, only its own tests can say
    source = MultiHeadAttention(**standard_sizes(module)).double().eval()
    draw_parameters(source)
    try:
        module.start_as_standard(source)
    except ValueError:
        return  # not with these options, as it says
    x, memory = random_input(BATCH, TIME), random_input(BATCH, KEYS)
    masks = padding_mask(7, 2, 4, time=TIME), padding_mask(3, 5, 1, time=KEYS)
    subject.expect(
        close(
            subject.call(module, x, memory, *masks).output,
            subject.call(source, x, memory, *masks).output,
        ),
        "after start_as_standard(attention) the output is not that of the attention",
        "give each further parameter the value with which it changes nothing, or do not override "
        "start_neutral",
    )


def check_blocks(subject: Subject) -> None:
    wanted = {"num_key_value_heads": 2, "qk_norm": True}
    settled: dict[str, Any] = {k: v for k, v in wanted.items() if k in options_of(subject.system)}
    _, width = subject.build().key_size() or (0, 0)
    takes = "rotary" in inspect.signature(subject.system.forward).parameters and width % 2 == 0
    turns = takes and subject.place.site != "decoder_cross"
    place = subject.place._replace(**settled)
    try:
        subject._replace(place=place).build()
    except ValueError:  # by its options it has no two heads of keys
        settled.pop("num_key_value_heads", None)
        place = subject.place._replace(**settled)
    modern = subject._replace(place=place, first_position=0 if turns else None)
    if turns:
        module, x, memory = modern.build(), random_input(BATCH, TIME), random_input(BATCH, KEYS)
        here, later, without = (
            modern._replace(first_position=first).repeatable(module, x, memory).output
            for first in (0, 50, None)
        )
        subject.expect(
            close(here, later) and not close(here, without),
            "rotary positions change nothing, or count otherwise than by their distance",
            "project returns queries as they are, which `placed` turns, and keys from "
            "self._keys_and_values(inputs), which turns them",
        )
    for check in (check_sizes, check_causality, check_padding, check_decoding, check_macs):
        check(modern)


def check_half_precision(subject: Subject) -> None:
    x, memory = random_input(BATCH, TIME), random_input(BATCH, KEYS)
    module = subject.build(train=True, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = subject.call(module, x.float(), memory.float())
    half = subject.build(dtype=torch.bfloat16)
    whole = subject.call(half, x.bfloat16(), memory.bfloat16())
    for out, how in ((mixed, "under autocast"), (whole, "as a whole")):
        subject.expect(
            out.output.isfinite().all(), f"outputs in bfloat16, {how}, are not finite", _IN_FLOAT32
        )
    subject.expect(
        whole.output.dtype == torch.bfloat16,
        f"a module in bfloat16 gives {whole.output.dtype}",
        "look for a constant or a buffer of another type, and convert it where it is used",
    )
    backward(mixed)
    subject.expect(
        all(p.grad is None or p.grad.isfinite().all() for p in module.parameters()),
        "gradients under autocast in bfloat16 are not finite",
        _IN_FLOAT32,
    )


def check_macs(subject: Subject) -> None:
    # Wider and longer, so that what is no product with weights does not count for much.
    width, time, keys = 64, 16, 12
    place = subject.place._replace(embed_dim=width, ffn_dim=2 * width)
    module = subject._replace(place=place).build(dtype=torch.float32)
    is_causal = subject.place.site == "decoder_self"
    reads_memory = subject.place.site == "decoder_cross" or (
        subject.system.replaces == "layer" and subject.place.cross_attention
    )
    try:
        counted = sum(module.macs(time, keys if reads_memory else time, is_causal=is_causal))
    except NotImplementedError:
        return  # whoever counts then measures
    # The plain kernel, whose products the counter sees one by one.
    plain, counter = sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False)
    with counter, torch.enable_grad(), plain:  # as in training, where no shortcuts are taken
        subject.call(module, torch.randn(1, time, width), torch.randn(1, keys, width))
    measured = counter.get_total_flops() // 2
    subject.expect(
        abs(counted - measured) <= 0.02 * measured,
        f"macs says {counted:,} for a sequence of {time}, and PyTorch's flop counter {measured:,}",
        "add what the system multiplies by matrices of its own, as super().macs(...) + Macs(...)",
    )
