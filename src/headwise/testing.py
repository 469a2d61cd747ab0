"""Checks that every system of heads has to pass, yours too.

    from headwise.testing import check_system

    def test_my_system():
        check_system(MySystem)

Whatever a paper's equations say, a system stands in models that train on padded batches, predict
the next token, and decode step by step with beam search. What that asks of a system is the same
for all of them; that its equations are the paper's is for its own tests to show.
"""

import copy
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_type_hints
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from headwise.heads.attention import Attention
from headwise.heads.cache import AttentionCache
from headwise.heads.system import AttentionOutput, Place, Routing, System
from headwise.models.ablation import ablation_options
from headwise.models.parameters import decayed_parameters
from headwise.training.rules import training_rules

EMBED_DIM, NUM_HEADS, FFN_DIM = 16, 4, 32
BATCH, TIME, KEYS = 3, 7, 5
SITES = {
    "attention": ("encoder_self", "decoder_self", "decoder_cross"),
    "feed-forward": ("encoder_self", "decoder_cross"),
    "layer": ("encoder_self", "decoder_self"),
}


def check_system(
    system: type[System],
    *,
    ablation_options: Mapping[str, Mapping[str, Any]] | None = None,
    leave_out: Sequence[str] = (),
    **options: Any,
) -> None:
    """Check a system at every site where a model can put it, on a small model's sizes.

    - `sizes`: outputs are `(batch, time, embed_dim)`, down to an empty batch and a time of 0.
    - `causality`: in a decoder, a later token changes no earlier output, also in training.
    - `padding`: a padded batch gives what each of its sequences gives alone, and `routing.padding`
      says where the padding is.
    - `weights`: the attention weights that `need_weights` asks for reproduce the output.
    - `decoding`: decoding step by step, with beam search, equals decoding at once.
    - `learning`: every parameter gets a gradient, and a finite one though a sequence of the batch
      is nothing but padding.
    - `resetting`: `reset_parameters()` sets every parameter, and none that is loaded already.
    - `copies`: `state_dict()` holds all that an output depends on.
    - `half_precision`: it works under autocast, and as a whole in bfloat16.
    - `decay`: weight decay spares scales, shifts and norms.
    - `rule`: parameters that are drawn from a simplex, or with length 1, are still there after a
      step of training, by the system's rule if it declares one.
    - `macs`: the formula counts what PyTorch's flop counter counts, to two percent.
    - `ablations`: ablations change evaluation, and not training; decoding step by step agrees with
      decoding at once under each of them.

    Most parameters are random, since a scale that starts at 1 or a router that starts at 0 would
    hide mistakes. The caller's random state is left as it is.

    Args:
        system: the class; a model builds it by `from_plan`, and so does this.
        ablation_options: options of its ablations, by the name of the ablation. An option without
            a default is 1 where its type is `int`; others have to stand here.
        leave_out: names of checks, from this list, that do not fit the system.
        options: what a plan sets beside its name.

    Raises:
        AssertionError: a check that fails; the message says which, at what site, and what to look
            for.
        ValueError: `leave_out` names a check that there is not.

    >>> import headwise as hw
    >>> check_system(hw.MixtureOfAttentionHeads, size="2K5E8D")
    """
    unknown = set(leave_out) - CHECKS.keys()
    if unknown:
        raise ValueError(
            f"leave_out has {', '.join(sorted(unknown))}, expected some of {', '.join(CHECKS)}"
        )
    for site in SITES[system.replaces]:
        place = Place(site, EMBED_DIM, NUM_HEADS, FFN_DIM, cross_attention=site == "decoder_self")
        subject = Subject(system, place, options, ablation_options or {})
        for name, check in CHECKS.items():
            if name in leave_out:
                continue
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                check(subject)


class Subject(NamedTuple):
    """A system at a place, built and called as a model does it."""

    system: type[System]
    place: Place
    options: dict[str, Any]
    ablation_options: Mapping[str, Mapping[str, Any]] = {}

    @property
    def decodes(self) -> bool:
        """Whether its queries are a causal sequence that grows step by step."""
        return self.place.site != "encoder_self"

    def build(
        self, *, train: bool = False, dtype: torch.dtype = torch.float64, randomize: bool = True
    ) -> System:
        module = self.system.from_plan(self.place, **self.options)
        return (_randomize(module) if randomize else module).to(dtype).train(train)

    def call(
        self,
        module: System,
        x: Tensor,
        memory: Tensor,
        padding: Tensor | None = None,
        memory_padding: Tensor | None = None,
        cache: AttentionCache | None = None,
        cross_cache: AttentionCache | None = None,
    ) -> AttentionOutput:
        """One pass; `memory` is the encoder's output, which only some sites look at."""
        if self.place.site == "encoder_self":
            return module(x, key_padding_mask=padding)
        if self.place.site == "decoder_cross":
            return module(
                x,
                memory,
                key_padding_mask=memory_padding,
                query_padding_mask=padding,
                cache=cross_cache,
            )
        masks = {"key_padding_mask": padding, "query_padding_mask": padding}
        if self.system.replaces == "attention":
            return module(x, **masks, is_causal=True, cache=cache)
        return module(
            x,
            memory,
            **masks,
            memory_key_padding_mask=memory_padding,
            is_causal=True,
            cache=cache,
            cross_cache=cross_cache,
        )

    def repeatable(self, module: System, *args: Any) -> AttentionOutput:
        """A pass that draws what the last one drew, and leaves no trace in the module."""
        torch.manual_seed(1)
        return self.call(copy.deepcopy(module), *args)

    def expect(self, holds: bool | Tensor, problem: str, mend: str) -> None:
        if not holds:
            name = f"{self.system.__name__} at {self.place.site}"
            raise AssertionError(f"{name}: {problem}; {mend}")


def check_sizes(subject: Subject) -> None:
    # As it starts: what lives on a simplex, say, does not stay there when randomized.
    module = subject.build(randomize=False)
    sizes = ((BATCH, TIME, KEYS), (1, TIME, 1), (BATCH, 1, KEYS), (1, 1, 1))
    for batch, time, keys in (*sizes, (0, TIME, KEYS), (BATCH, 0, KEYS), (BATCH, 0, 0)):
        x, memory = _random(batch, time), _random(batch, keys)
        try:
            out = subject.call(module, x, memory)
        except Exception as error:
            problem = f"an input {tuple(x.shape)} raises {type(error).__name__}: {error}"
            subject.expect(False, problem, "models meet batches and sequences of every length")
            raise
        subject.expect(
            isinstance(out, AttentionOutput),
            f"forward returns {type(out).__name__}",
            "expected AttentionOutput(output, weights, routing)",
        )
        subject.expect(
            out.output.shape == x.shape,
            f"an input {tuple(x.shape)} gives an output {tuple(out.output.shape)}",
            "expected (batch, time, embed_dim) as it came",
        )
        subject.expect(
            out.output.isfinite().all(),
            f"an input {tuple(x.shape)} gives numbers that are not finite",
            "look for a division by a number of positions, or a variance, that can be 0",
        )
        if out.routing is None:
            continue
        subject.expect(
            isinstance(out.routing, Routing) and (out.routing.weights >= 0).all(),
            "routing is no Routing, or its weights hold a negative number",
            "say how much each head counts: reports take the weights for shares",
        )
        loss = out.routing.loss
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
        x, memory = _random(BATCH, TIME), _random(BATCH, KEYS)
        before = subject.repeatable(module, x, memory).output
        for t in (1, TIME // 2, TIME - 1):
            changed = torch.cat([x[:, :t], _random(BATCH, TIME - t)], dim=1)
            after = subject.repeatable(module, changed, memory).output
            subject.expect(
                _close(after[:, :t], before[:, :t]),
                f"{'in training, ' if train else ''}a later token changes an earlier output",
                "what is decided for a position may only depend on those up to it, so look for "
                "sums and statistics over time",
            )


def check_padding(subject: Subject) -> None:
    module = subject.build()
    for left in (False, True):
        padding = _padding(7, 2, 4, time=TIME, left=left)
        memory_padding = _padding(3, 5, 1, time=KEYS, left=left)
        x, memory = _random(BATCH, TIME), _random(BATCH, KEYS)
        masks = (padding, memory_padding)
        together = subject.repeatable(
            module, _fill(x, padding), _fill(memory, memory_padding), *masks
        )
        for row in range(BATCH):
            real, real_keys = ~padding[row], ~memory_padding[row]
            sequence = x[row, real].unsqueeze(0), memory[row, real_keys].unsqueeze(0)
            alone = subject.repeatable(module, *sequence).output[0]
            subject.expect(
                _close(together.output[row, real], alone),
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
            other = subject.repeatable(module, _fill(x, padding, -9.0), memory, *masks).routing
            subject.expect(
                other is not None and _close(other.loss, together.routing.loss),
                "what stands at padding changes routing.loss",
                "leave out what inputs.query_padding marks",
            )


def check_decoding(subject: Subject) -> None:
    if subject.decodes:
        _expect_same_in_steps(subject, subject.build())


def _expect_same_in_steps(subject: Subject, module: System, under: str = "") -> None:
    x, memory = _random(BATCH, TIME), _random(BATCH, KEYS)
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
            _close(torch.cat(outputs, dim=1), subject.call(module, seen, encoded).output),
            f"{under}decoding {what} differs from decoding at once",
            "what a step has to know of earlier ones belongs into inputs.cache.memory, a row for "
            "each sequence; beam search reorders that with keys and values",
        )


def check_learning(subject: Subject) -> None:
    module = subject.build(train=True)
    for padding in (None, _padding(TIME, 0, 3, time=TIME)):
        module.zero_grad()
        x, memory = _random(BATCH, TIME).requires_grad_(), _random(BATCH, KEYS)
        keys = None if padding is None else _padding(KEYS, 0, 2, time=KEYS)
        _backward(subject.call(module, x, memory, padding, keys))
        for name, parameter in [("query", x), *module.named_parameters()]:
            if not parameter.requires_grad:
                continue
            gradient = parameter.grad
            subject.expect(
                gradient is not None,
                f"{name} gets no gradient",
                "use it for an output, or say requires_grad_(False)",
            )
            assert gradient is not None
            subject.expect(
                gradient.isfinite().all(),
                f"the gradient of {name} is not finite"
                + ("" if padding is None else " where a sequence is nothing but padding"),
                "look for a division, a logarithm or a root of 0, also one that where() hides",
            )
            # A bias of the keys adds the same to all logits of a query.
            subject.expect(
                gradient.any() or name.endswith("k_proj.bias"),
                f"the gradient of {name} is zero throughout",
                "look for a detach(), an argmax or a comparison between it and the output",
            )


def check_resetting(subject: Subject) -> None:
    with torch.device("meta"):
        module = subject.system.from_plan(subject.place, **subject.options)
    module.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.fill_(float("nan"))
    module.reset_parameters()
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        subject.expect(
            tensor.isfinite().all(),
            f"reset_parameters() does not set {name}",
            "a model that is built without memory, then filled, would keep what was there",
        )
    _randomize(module)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    drawing = (name for name in vars(nn.init) if name.endswith("_") and name[0] != "_")
    idle: dict[str, Any] = dict.fromkeys(drawing, _leave)
    with patch.multiple(nn.init, **idle):
        module.reset_parameters()
    for name, tensor in module.state_dict().items():
        subject.expect(
            torch.equal(tensor, before[name]),
            f"reset_parameters() sets {name} by other means than torch.nn.init",
            "call nn.init.ones_(...) and so on: from_pretrained knows how to keep these from what "
            "it has loaded, and nothing else",
        )


def check_copies(subject: Subject) -> None:
    module, other = subject.build(), subject.build()
    other.load_state_dict(module.state_dict())
    x, memory = _random(BATCH, TIME), _random(BATCH, KEYS)
    subject.expect(
        _close(subject.call(other, x, memory).output, subject.call(module, x, memory).output),
        "a module with the same state_dict() gives another output",
        "make what the output depends on a parameter or a buffer",
    )


def check_half_precision(subject: Subject) -> None:
    x, memory = _random(BATCH, TIME), _random(BATCH, KEYS)
    module = subject.build(train=True, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = subject.call(module, x.float(), memory.float())
    half = subject.build(dtype=torch.bfloat16)
    whole = subject.call(half, x.bfloat16(), memory.bfloat16())
    for out, how in ((mixed, "under autocast"), (whole, "as a whole")):
        subject.expect(
            out.output.isfinite().all(),
            f"outputs in bfloat16, {how}, are not finite",
            "compute exponentials, logarithms and sums over many positions in float32",
        )
    subject.expect(
        whole.output.dtype == torch.bfloat16,
        f"a module in bfloat16 gives {whole.output.dtype}",
        "look for a constant or a buffer of another type, and convert it where it is used",
    )
    _backward(mixed)
    subject.expect(
        all(p.grad is None or p.grad.isfinite().all() for p in module.parameters()),
        "gradients under autocast in bfloat16 are not finite",
        "compute exponentials, logarithms and sums over many positions in float32",
    )


def check_weights(subject: Subject) -> None:
    module = subject.build()
    if not isinstance(module, Attention):
        return  # what its weights are the weights of, only its own tests can say
    x, memory = _random(BATCH, TIME), _random(BATCH, KEYS)
    padding, keys = _padding(7, 2, 4, time=TIME), _padding(3, 5, 1, time=KEYS)
    asked = copy.deepcopy(module)
    asked.forward = functools.partial(asked.forward, need_weights=True)  # type: ignore[method-assign]
    expected = subject.repeatable(module, x, memory, padding, keys).output
    out = subject.call(asked, x, memory, padding, keys)
    weights = out.weights
    subject.expect(
        weights is not None and _close(out.output, expected),
        "need_weights gives no attention weights, or changes the output",
        "return AttentionOutput.weights where it is asked for, and compute the output as ever",
    )
    assert weights is not None

    def read(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        return weights @ v

    by_weights = copy.deepcopy(module)
    by_weights.attend = read  # type: ignore[method-assign]
    subject.expect(
        _close(subject.call(by_weights, x, memory, padding, keys).output, expected),
        "the weights that need_weights gives do not reproduce the output",
        "override attention_weights(q, k, mask) beside attend: it returns the weights by which "
        "attend reads the values",
    )


def check_decay(subject: Subject) -> None:
    module = subject.build(randomize=False)
    decayed = {id(parameter) for parameter in decayed_parameters(module)}
    for name, parameter in module.named_parameters():
        if id(parameter) not in decayed:
            continue
        start = parameter.flatten()[0]
        is_scale = bool(start != 0) and torch.equal(parameter, start.expand_as(parameter))
        subject.expect(
            not is_scale,
            f"{name} starts as {start.item():g} throughout, and weight decay pulls it to 0",
            f"name it in no_decay = ({name!r},), or leave this check out if it is a matrix: "
            "check_system(..., leave_out=('decay',))",
        )
        words = set(re.split(r"[._]", _own_name(module, name)))
        subject.expect(
            not words & {"norm", "bias", "scale", "shift", "gain", "gamma", "beta"},
            f"{name} sounds like a part of a norm, a scale or a shift, and is decayed",
            f"name it in no_decay = ({name!r},), or name it otherwise if it is a matrix",
        )


def _own_name(module: System, name: str) -> str:
    """What a parameter itself is called, and what it is the `weight` of."""
    *path, own = name.split(".")
    owner = module.get_submodule(".".join(path))
    # A layer called `scale` computes scales, and its weights are a matrix.
    is_matrix = isinstance(owner, (nn.Linear, nn.Bilinear, nn.Embedding, nn.modules.conv._ConvNd))
    return own if is_matrix else ".".join([*path[-1:], own])


def check_rule(subject: Subject) -> None:
    module = subject.build(train=True, randomize=False)
    # What is drawn anew and meets a constraint every time is meant to. A constant, such as the
    # identity or 1/H, may meet it by chance.
    other = dict(subject.build(randomize=False).named_parameters())
    held = {
        name: set()
        if torch.equal(parameter, other[name])
        else _constraints(parameter) & _constraints(other[name])
        for name, parameter in module.named_parameters()
    }
    rules = training_rules(module, total_steps=10)
    optimizer = torch.optim.SGD(rules.parameter_groups(lr=0.1), lr=0.1)
    x, memory = _random(BATCH, TIME), _random(BATCH, KEYS)
    target = _random(BATCH, TIME)

    def loss() -> Tensor:
        out = subject.call(module, x, memory)
        total = (out.output - target).square().mean()
        extra = None if out.routing is None else out.routing.loss
        return total if extra is None else total + extra

    for _ in range(2):
        rules.before_step(loss)
        with rules.step(optimizer):
            loss().backward()
        optimizer.step()
        rules.after_step()
        optimizer.zero_grad()
    for name, parameter in module.named_parameters():
        lost = held[name] - _constraints(parameter)
        subject.expect(
            not lost,
            f"{name} starts {' and '.join(sorted(lost))}, and a step of training takes it away",
            "declare a rule of training whose after_update puts it back (rule = MyRule, see "
            "headwise.Rule), or compute it from parameters that may be anything; if it need not "
            "stay so, leave this check out: check_system(..., leave_out=('rule',))",
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
    with (
        FlopCounterMode(display=False) as counter,
        torch.no_grad(),
        sdpa_kernel(SDPBackend.MATH),
    ):
        subject.call(module, torch.randn(1, time, width), torch.randn(1, keys, width))
    measured = counter.get_total_flops() // 2
    subject.expect(
        abs(counted - measured) <= 0.02 * measured,
        f"macs says {counted:,} for a sequence of {time}, and PyTorch's flop counter {measured:,}",
        "add what the system multiplies by matrices of its own, as super().macs(...) + Macs(...)",
    )


def check_ablations(subject: Subject) -> None:
    ablations = subject.system.ablations
    unknown = subject.ablation_options.keys() - ablations.keys()
    subject.expect(
        not unknown,
        f"ablation_options are given for {', '.join(sorted(unknown))}",
        f"the ablations are {', '.join(ablations) or 'none'}",
    )
    changing: dict[str, bool] = {}
    for name in ablations:
        # Random, since what is learned may start as what the ablation puts in its place.
        module = subject.build()
        x, memory = _random(BATCH, TIME), _random(BATCH, KEYS)
        before = subject.repeatable(module, x, memory).output
        if not _ablate(subject, module, name):
            continue
        after = subject.repeatable(module, x, memory).output
        changing[name] = after.shape != before.shape or not _close(after, before)
        _expect_evaluation_alone(subject, name)
        if subject.decodes:
            _expect_same_in_steps(subject, module, f"under the ablation {name}, ")
    subject.expect(
        not changing or any(changing.values()),
        f"no ablation changes an output in evaluation, of {', '.join(changing)}",
        "forward has to look at self.ablation, which is what the ablation's function returns",
    )


def _expect_evaluation_alone(subject: Subject, name: str) -> None:
    x, memory = _random(BATCH, TIME), _random(BATCH, KEYS)
    for train in (False, True):
        # As it starts: of random parameters, a sum that is to be 1 may be 0.
        module = subject.build(train=train, randomize=False)
        before = subject.repeatable(module, x, memory).output
        _ablate(subject, module, name)
        after = subject.repeatable(module, x, memory).output
        subject.expect(
            after.shape == before.shape and bool(after.isfinite().all()),
            f"the ablation {name} gives outputs of another shape, or that are not finite",
            "return what forward can put in the place of the learned decision",
        )
        subject.expect(
            not train or _close(after, before),
            f"the ablation {name} changes training",
            "look at self.ablation in evaluation only: `if not self.training`",
        )


def _ablate(subject: Subject, module: System, name: str) -> bool:
    """Put an ablation in force; False if it refuses a system that is built like this one."""
    function = subject.system.ablations[name]
    hints, options = get_type_hints(function), dict(subject.ablation_options.get(name, {}))
    parameters = ablation_options(function)
    for key, parameter in parameters.items():
        if key in options or parameter.default is not parameter.empty:
            continue
        subject.expect(
            hints.get(key) is int,
            f"the ablation {name} has the option {key}, which has no default and is no int",
            f"give it a value: check_system(..., ablation_options={{{name!r}: {{{key!r}: ...}}}})",
        )
        options[key] = 1
    takes = inspect.signature(function).parameters
    numbers = {key: number for key, number in (("index", 0), ("count", 1)) if key in takes}
    try:
        module.ablation = function(module, **options, **numbers)
    except ValueError as error:
        # Without options, what does not fit is the system: it was built without the decision.
        subject.expect(
            not options,
            f"the ablation {name} with {options} raises ValueError: {error}",
            f"give options that fit: check_system(..., ablation_options={{{name!r}: ...}})",
        )
        return False
    return True


CHECKS: dict[str, Callable[[Subject], None]] = {
    "sizes": check_sizes,
    "causality": check_causality,
    "padding": check_padding,
    "weights": check_weights,
    "decoding": check_decoding,
    "learning": check_learning,
    "resetting": check_resetting,
    "copies": check_copies,
    "half_precision": check_half_precision,
    "decay": check_decay,
    "rule": check_rule,
    "macs": check_macs,
    "ablations": check_ablations,
}


def _constraints(parameter: Tensor) -> set[str]:
    """What holds for a parameter that no plain optimizer would keep so."""
    if parameter.dim() < 1 or parameter.size(-1) < 2:
        return set()
    rows = parameter.detach()
    found = set()
    sums, lengths = rows.sum(-1), rows.norm(dim=-1)
    if (rows >= 0).all() and torch.allclose(sums, torch.ones_like(sums), atol=1e-5):
        found.add("on the simplex")
    if torch.allclose(lengths, torch.ones_like(lengths), atol=1e-5) and not _orthonormal(rows):
        found.add("with rows of length 1")
    return found


def _orthonormal(rows: Tensor) -> bool:
    """Whether this may be drawn by `nn.init.orthogonal_`, which asks nothing of training."""
    if rows.dim() < 2:
        return False
    products = rows @ rows.mT
    return torch.allclose(products, torch.eye(rows.size(-2)).to(rows), atol=1e-5)


@torch.no_grad()
def _randomize(module: System) -> System:
    for parameter in module.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.5)
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm1d) and norm.running_var is not None:
            nn.init.normal_(norm.running_mean)  # type: ignore[arg-type]
            nn.init.uniform_(norm.running_var, 0.5, 1.5)
    return module


def _random(batch: int, time: int) -> Tensor:
    return torch.randn(batch, time, EMBED_DIM, dtype=torch.float64)


def _padding(*lengths: int, time: int, left: bool = False) -> Tensor:
    """Boolean `(batch, time)`, `True` at padding."""
    rows = torch.arange(time).expand(len(lengths), time) >= torch.tensor(lengths).unsqueeze(1)
    return rows.flip(1) if left else rows


def _fill(x: Tensor, padding: Tensor, value: float = 100.0) -> Tensor:
    return x.masked_fill(padding.unsqueeze(-1), value)


def _close(x: Tensor | None, y: Tensor | None) -> bool:
    return x is not None and y is not None and torch.allclose(x, y, rtol=1e-7, atol=1e-9)


def _backward(out: AttentionOutput) -> None:
    loss = out.output.square().mean()
    if out.routing is not None and out.routing.loss is not None:
        loss = loss + out.routing.loss
    loss.backward()


def _leave(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
    return tensor
