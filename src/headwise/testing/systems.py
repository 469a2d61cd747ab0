"""`check_system`: the laws, and what models ask of a system beside them, at each of its sites."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn

from headwise.heads.ablation import WEIGHTS, Ablation, option_of
from headwise.heads.attention import Attention, MultiHeadAttention, standard_sizes
from headwise.heads.cache import AttentionCache
from headwise.heads.system import AttentionOutput, Routing, System
from headwise.models.config import Seq2SeqLMConfig
from headwise.models.parameters import decayed_parameters
from headwise.ops.rotary import Rotary, rotary_rates
from headwise.testing import laws
from headwise.testing.laws import Batch, Seen
from headwise.training.rules import training_rules

SITES = {
    "attention": ("encoder_self", "decoder_self", "decoder_cross"),
    "feed-forward": ("encoder_self", "decoder_cross"),
    "layer": ("encoder_self", "decoder_self"),
}
_KEYS = 5
_SIZES: dict[str, Any] = {"vocab_size": 8, "embed_dim": 16, "num_heads": 4, "ffn_dim": 32}
_RIGHT = torch.arange(7).expand(3, 7) >= torch.tensor([[7], [2], [4]])
_WITHIN = torch.tensor([[0, 1, 0, 0, 1, 0, 0], [1] * 7, [0, 0, 1, 1, 0, 0, 1]]) > 0
_MEMORY = torch.arange(_KEYS).expand(3, _KEYS) >= torch.tensor([[3], [5], [1]])
# Blocks of today's models, together and each by itself: a system may refuse one by a ValueError.
_BLOCKS: tuple[dict[str, Any], ...] = (
    {"num_key_value_heads": 2, "qk_norm": True, "norm": "pre", "norm_kind": "rms"},
    {"num_key_value_heads": 2},
    {"num_key_value_heads": 1},
    {"qk_norm": True},
    {"head_dim": 6, "bias": "qkv"},
    {"bias": False, "norm": "pre", "ffn_activation": "swiglu"},
)


def check_system(system: type[System], *, leave_out: Sequence[str] = (), **options: Any) -> None:
    """Check a system at every site where a model can put it, on a small model's sizes.

    - `sizes`: outputs are `(batch, time, embed_dim)`, also of nothing; what `routing` holds is
      finite, not negative, and says where the padding is.
    - `causality`, `padding`, `decoding`, `learning`, `copies`, `evaluation`, `half_precision`: the
      laws of `headwise.testing.laws`.
    - `weights`: the attention weights that `need_weights` asks for reproduce the output.
    - `blocks`: the first four, and `weights`, hold with what a model can settle for its
      attentions: `num_key_value_heads`, `qk_norm`, `head_dim`, `bias`, and rotary positions, which
      count by their distance alone. A system refuses one of these by a `ValueError`.
    - `resetting`: `reset_parameters()` sets every parameter, and none that is loaded already.
    - `standard_start`: the output is that of standard attention, where the system can start so.
    - `decay`: weight decay spares what starts as a scale.
    - `rule`: parameters that start on a simplex are still there after steps of training.
    - `ablations`: each of its `edits` changes evaluation and not training, draws nothing at a
      call, and agrees with decoding in steps.

    Args:
        system: the class; a model builds it by `from_config`, and so does this.
        leave_out: names of checks, from this list, that do not fit the system.
        options: what a plan sets beside its name.

    Raises:
        AssertionError: which check fails, at what site, and what to look for.

    >>> import headwise as hw
    >>> check_system(hw.MixtureOfAttentionHeads, size="2K5E8D")
    """
    if unknown := set(leave_out) - CHECKS.keys():
        raise ValueError(
            f"leave_out has {', '.join(sorted(unknown))}, expected some of {', '.join(CHECKS)}"
        )
    for site in SITES[system.replaces]:
        for name in (name for name in CHECKS if name not in leave_out):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                CHECKS[name](_Plan(system, site, options))


class SystemSubject:
    """A system at a site of a model, as the laws take it.

    Args:
        site: `encoder_self`, `decoder_self` or `decoder_cross`.
        first_position, base: of rotary positions, if the system is given such.
    """

    def __init__(
        self,
        module: System,
        site: str = "encoder_self",
        *,
        first_position: int | None = None,
        base: float = 10.0,
    ) -> None:
        self.module, self.site = module, site
        self.first_position, self.base = first_position, base
        self.causal = site != "encoder_self"
        self.name = f"{type(module).__name__} at {site}"

    def parts(self) -> System:
        return self.module

    def around(self, module: nn.Module) -> "SystemSubject":
        other = copy.copy(self)
        other.module = module  # type: ignore[assignment]
        return other

    def new_cache(self) -> Any:
        return _Caches((AttentionCache(), AttentionCache(static=True)))

    def draw(self, rows: int, time: int, seed: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        module: Any = self.module
        dtype = next((p.dtype for p in module.parameters()), torch.float64)
        shapes = (time, module.embed_dim), (_KEYS, getattr(module, "kdim", module.embed_dim))
        x, memory = (
            torch.randn(rows, *shape, generator=generator, dtype=torch.float64) for shape in shapes
        )
        return Batch(x, memory).to(dtype)

    def __call__(self, batch: Batch, **given: Any) -> Seen:
        out = self.call(batch, **given)
        routing = out.routing
        return Seen(out.output, *(() if routing is None else ([routing.weights], routing.loss)))

    def call(
        self,
        batch: Batch,
        *,
        padding: Tensor | None = None,
        mask: Tensor | None = None,
        cache: Any = None,
        **more: Any,
    ) -> AttentionOutput:
        """What the system itself returns; `more` are further arguments of its `forward`."""
        x, memory, memory_padding = batch
        mask = mask.unsqueeze(1) if mask is not None and mask.dim() == 3 else mask
        own, cross = (None, None) if cache is None else cache
        if self.site == "decoder_cross":
            queries = padding if padding is None else padding[:, padding.size(1) - x.size(1) :]
            masks = {"key_padding_mask": memory_padding, "query_padding_mask": queries}
            return self.module(x, memory, **masks, attn_mask=mask, cache=cross, **more)
        if self.first_position is not None:
            first = self.first_position + (0 if own is None else own.get_seq_length())
            rates = rotary_rates(_head_dim(self.module), self.base)
            more["rotary"] = Rotary(first + torch.arange(x.size(1)), rates)
        if self.causal:
            more |= {"is_causal": True, "cache": own}
        if self.causal and getattr(self.module, "cross_attention", None) is not None:
            more |= {"memory_key_padding_mask": memory_padding, "cross_cache": cross}
            return self.module(x, memory, key_padding_mask=padding, attn_mask=mask, **more)
        return self.module(x, key_padding_mask=padding, attn_mask=mask, **more)


class _Caches(tuple[AttentionCache, AttentionCache]):
    """That of a self-attention and that of a cross-attention, changed together."""

    def reorder_cache(self, index: Tensor) -> None:
        for cache in self:
            cache.reorder_cache(index)

    batch_select_indices = reorder_cache

    def batch_repeat_interleave(self, repeats: int) -> None:
        for cache in self:
            cache.batch_repeat_interleave(repeats)


class _Plan(NamedTuple):
    """A system where a plan puts it, in a model with some blocks."""

    system: type[System]
    site: str
    options: Mapping[str, Any]
    blocks: Mapping[str, Any] = {}
    first_position: int | None = None

    def make(self) -> System:
        config = Seq2SeqLMConfig(**_SIZES, **self.blocks, dropout=0.0)
        module = self.system.from_config(config, self.site, **self.options)
        module.site = self.site
        return module

    def build(self, *, randomize: bool = True) -> SystemSubject:
        module = self.make().double().eval()
        if randomize:
            _draw_parameters(module)
        subject = SystemSubject(module, self.site, first_position=self.first_position)
        subject.name = self.name
        return subject

    def drawn(self) -> tuple[SystemSubject, Batch, AttentionOutput]:
        """A subject, a batch whose memory is padded, and the output where it is padded too."""
        subject = self.build()
        batch = subject.draw(3, 7, 1)._replace(memory_padding=_MEMORY)
        return subject, batch, subject.call(batch, padding=_RIGHT)

    @property
    def name(self) -> str:
        blocks = [f"{name}={value}" for name, value in self.blocks.items()]
        blocks += [] if self.first_position is None else ["rotary positions"]
        name = f"{self.system.__name__} at {self.site}"
        return f"{name} with {', '.join(blocks)}" if blocks else name

    def expect(self, holds: bool | Tensor, problem: str, mend: str) -> None:
        if not holds:
            raise AssertionError(f"{self.name}: {problem}; {mend}")


@torch.no_grad()
def _draw_parameters(module: Any) -> Any:
    """Adds random numbers to all parameters, and draws running statistics anew.

    What starts as 0 or 1, or as that of standard attention, would hide mistakes.
    """
    for parameter in module.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.5)
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm1d) and norm.running_var is not None:
            nn.init.normal_(norm.running_mean)  # type: ignore[arg-type]
            nn.init.uniform_(norm.running_var, 0.5, 1.5)
    return module


def _head_dim(module: System) -> int:
    """The width of the heads that rotary positions turn; 0 if there are none."""
    found = (part.head_dim for part in module.modules() if isinstance(part, Attention))
    return next(found, 0)


def _check_sizes(plan: _Plan) -> None:
    # As it starts: what lives on a simplex, say, does not stay there when randomized.
    subject = plan.build(randomize=False)
    laws.empty_is_empty(subject, shapes=((3, 7), (1, 1), (3, 1), (0, 7), (3, 0), (0, 0)))
    batch = subject.draw(3, 7, 1)._replace(memory_padding=_MEMORY)
    out = subject.call(batch, padding=_RIGHT)
    mend = "expected AttentionOutput(output, weights, routing)"
    plan.expect(isinstance(out, AttentionOutput), f"forward returns {type(out).__name__}", mend)
    shapes = tuple(out.output.shape), tuple(batch.sequence.shape)
    problem = f"an input {shapes[1]} gives an output {shapes[0]}"
    plan.expect(shapes[0] == shapes[1], problem, "expected (batch, time, embed_dim) as it came")
    _expect_numbers(plan, "the output", out.output)
    if (routing := out.routing) is None:
        return
    mend = "say how much each head counts: reports take the weights for shares"
    plan.expect(isinstance(routing, Routing), "routing is no Routing", mend)
    _expect_numbers(plan, "routing.weights", routing.weights)
    plan.expect((routing.weights >= 0).all(), "routing.weights hold a negative number", mend)
    scalar = routing.loss is None or routing.loss.dim() == 0
    plan.expect(scalar, "routing.loss is no scalar", "take its mean over everything but padding")
    marked = routing.padding
    plan.expect(
        routing.weights.dim() < 3 or (marked is not None and torch.equal(marked, _RIGHT)),
        "routing.padding does not mark the padding of the queries",
        "set it in forward, which gets query_padding_mask, or in self-attention key_padding_mask",
    )


def _expect_numbers(plan: _Plan, what: str, x: Tensor) -> None:
    if x.isfinite().all():
        return
    kind, where = "NaN" if x.isnan().any() else "infinity", ""
    if x.dim() > 1:
        row = int(torch.nonzero(~x.isfinite())[0, 0])
        where = f" for a sequence of length {int((~_RIGHT[row]).sum())}, padded to 7"
    mend = "look for a division by a number of positions, or a logarithm, that can be 0"
    plan.expect(False, f"{what} holds {kind}{where}", mend)


def _check_causality(plan: _Plan) -> None:
    if plan.site != "encoder_self":
        laws.hidden_changes_nothing(plan.build())


def _check_padding(plan: _Plan) -> None:
    # Padding within moves what is real against rotary positions.
    within = () if plan.first_position is not None else (_WITHIN,)
    for padding in (_RIGHT, _RIGHT.flip(1), *within):
        laws.padding_changes_nothing(plan.build(), padding, memory_padding=_MEMORY)


def _check_decoding(plan: _Plan) -> None:
    if plan.site != "encoder_self":
        laws.steps_equal_one_pass(plan.build())
        laws.steps_equal_one_pass(plan.build(), padding=_RIGHT[:, 2:5].flip(1))


def _check_learning(plan: _Plan) -> None:
    for padding in (None, _WITHIN):
        laws.every_weight_learns(plan.build(), padding=padding)


def _check_copies(plan: _Plan) -> None:
    def loaded(module: nn.Module) -> nn.Module:
        other = plan.build().parts()
        other.load_state_dict(module.state_dict())
        return other

    for how in (loaded, copy.deepcopy):
        laws.copies_are_their_own(plan.build(), how)


def _check_weights(plan: _Plan) -> None:
    subject, batch, expected = plan.drawn()
    if not isinstance(subject.module, Attention):
        return  # what its weights are the weights of, only its own tests can say
    out = subject.call(batch, padding=_RIGHT, need_weights=True)
    weights = out.weights
    plan.expect(
        weights is not None and _close(out.output, expected.output),
        "need_weights gives no attention weights, or changes the output",
        "return AttentionOutput.weights where it is asked for, and compute the output as ever",
    )

    def read(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> Any:
        assert weights is not None
        return weights @ v.repeat_interleave(weights.size(1) // v.size(1), dim=1)

    subject.module.attend = read  # type: ignore[method-assign]
    plan.expect(
        _close(subject.call(batch, padding=_RIGHT).output, expected.output),
        "the weights that need_weights gives do not reproduce the output",
        "override attention_weights(q, k, mask) beside attend: it returns the weights by which "
        "attend reads the values",
    )


def _check_blocks(plan: _Plan) -> None:
    checks: tuple[str, ...] = ("sizes", "causality", "padding", "decoding", "weights")
    for blocks in _BLOCKS:
        modern = plan._replace(blocks=blocks)
        try:
            width = _head_dim(modern.make())
        except ValueError:
            continue  # it says that it does not take them
        except Exception as error:
            problem = f"building it raises {type(error).__name__}: {error}"
            mend = "take **options and pass them to the base class, or refuse them by a ValueError"
            raise AssertionError(f"{modern.name}: {problem}; {mend}") from error
        if plan.site != "decoder_cross" and width and width % 2 == 0:
            modern = modern._replace(first_position=0)
        for name in checks:
            CHECKS[name](modern)
        if modern.first_position is not None:
            _check_rotary(modern)
        checks = ("sizes", "weights")  # of the first that it takes all of them


def _check_rotary(plan: _Plan) -> None:
    subject = plan.build()
    batch, outputs = subject.draw(3, 7, 1), []
    for subject.first_position in (0, 50, None):
        outputs.append(subject(batch).output)
    here, later, without = outputs
    plan.expect(
        _close(here, later) and not _close(here, without),
        "rotary positions change nothing, or count otherwise than by their distance",
        "self.placed(queries, self.q_norm, inputs.rotary) turns queries, and "
        "self.keys_and_values(inputs) gives keys that are turned",
    )


def _check_resetting(plan: _Plan) -> None:
    with torch.device("meta"):
        module = plan.make()
    module.to_empty(device="cpu")
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            tensor.detach().fill_(float("nan"))
    module.reset_parameters()
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        mend = "a model that is built without memory, then filled, would keep what was there"
        plan.expect(tensor.isfinite().all(), f"reset_parameters() does not set {name}", mend)
    _draw_parameters(module)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    drawing = (name for name in vars(nn.init) if name.endswith("_") and name[0] != "_")
    idle: dict[str, Any] = dict.fromkeys(drawing, lambda tensor, *_, **__: tensor)
    with patch.multiple(nn.init, **idle):
        module.reset_parameters()
    for name, tensor in module.state_dict().items():
        plan.expect(
            torch.equal(tensor, before[name]),
            f"reset_parameters() sets {name} by other means than torch.nn.init",
            "call nn.init.ones_(...) and so on: from_pretrained knows how to keep these from what "
            "it has loaded, and nothing else",
        )


def _check_standard_start(plan: _Plan) -> None:
    subject, batch, _ = plan.drawn()
    module = subject.module
    if not isinstance(module, MultiHeadAttention):
        return  # as what it starts, only its own tests can say
    source = _draw_parameters(MultiHeadAttention(**standard_sizes(module)).double().eval())
    try:
        module.start_neutral()
        module.take_weights(source)
    except ValueError:
        return  # not with these options, or not at all, as it says
    wanted = subject.around(source).call(batch, padding=_RIGHT).output
    plan.expect(
        _close(subject.call(batch, padding=_RIGHT).output, wanted),
        "after start_neutral() the output is not that of standard attention with these weights",
        "give each further parameter the value with which it changes nothing, or do not override "
        "start_neutral",
    )


def _check_decay(plan: _Plan) -> None:
    module = plan.build(randomize=False).parts()
    decayed = {id(parameter) for parameter in decayed_parameters(module)}
    for name, parameter in module.named_parameters():
        if id(parameter) not in decayed or not parameter.numel():
            continue
        start = parameter.flatten()[0]
        plan.expect(
            start == 0 or not torch.equal(parameter, start.expand_as(parameter)),
            f"{name} starts as {start.item():g} throughout, and weight decay pulls it to 0",
            f"name it in no_decay = ({name!r},), or leave this check out if it is a matrix: "
            "check_system(..., leave_out=('decay',))",
        )


def _check_rule(plan: _Plan) -> None:
    subject = plan.build(randomize=False)
    module = subject.parts().train()
    other = dict(plan.build(randomize=False).parts().named_parameters())
    # What is drawn may be there by chance once, a matrix by its start; equal shares are meant.
    held = [
        name
        for name, x in module.named_parameters()
        if _is_on_simplex(x) and _is_on_simplex(other[name])
        if (x.dim() == 1 and x.unique().numel() == 1) or not torch.equal(x, other[name])
    ]
    rules = training_rules(module, total_steps=10)
    optimizer = rules.attach(torch.optim.SGD(rules.parameter_groups(lr=0.1), lr=0.1))
    batch = subject.draw(3, 7, 1)

    def loss() -> Tensor:
        seen = subject(batch)
        total = (seen.output - batch.sequence.flip(0)).square().mean()
        return total if seen.loss is None else total + seen.loss

    for _ in range(2):
        rules.before_step(loss)
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()
    for name in held:
        plan.expect(
            _is_on_simplex(module.get_parameter(name)),
            f"{name} starts on the simplex, and a step of training takes it away",
            "declare a rule of training whose after_update puts it back (rule = MyRule, see "
            "headwise.systems.Rule), or compute it from parameters that may be anything; if it "
            "need not stay so, leave this check out: check_system(..., leave_out=('rule',))",
        )


def _is_on_simplex(rows: Tensor) -> bool:
    """Whether all rows are not negative and sum to 1, as no plain optimizer would keep them."""
    if rows.dim() < 1 or rows.size(-1) < 2 or (rows < 0).any():
        return False
    return bool(((rows.sum(-1) - 1).abs() < 1e-5).all())


def _check_ablations(plan: _Plan) -> None:
    module: Any = plan.build().parts()
    changing = dict[str, bool]()
    for name in module.edits:
        option = option_of(name)
        units = module.num_heads if option == "head" else module.num_units
        values = {None: (None,), "seed": (0,), "top_k": (1,)}.get(option, (0, units - 1))
        # Of weights one may be all there is: a router that chooses one unit has no largest two.
        which = "of weights" if name in WEIGHTS else name
        for value in values if units > 1 else ():
            changes = _ablation_changes(plan, name, {option: value} if option else {})
            changing[which] = changing.get(which, False) or changes
    for which, changes in changing.items():
        plan.expect(
            changes,
            f"the ablation {which} changes no output in evaluation",
            "pass what is decided through self.decide(weights), or a router's logits through "
            "self.choose(logits, top_k), or leave the name out of edits",
        )


def _ablation_changes(plan: _Plan, name: str, options: dict[str, Any]) -> bool:
    # Random, since what is learned may start as what the ablation puts in its place.
    subject = plan.build()
    batch = subject.draw(3, 7, 1)
    learned, trained = (laws.run(subject, batch, train=x).seen.output for x in (False, True))
    subject.module.ablations = (Ablation(subject.module, name, **options),)
    after, again = (laws.run(subject, batch, seed=seed).seen.output for seed in (1, 2))
    plan.expect(
        _close(again, after) or not after.isfinite().all(),
        f"the ablation {name} gives another output at each call",
        "draw nothing where an ablation is in force",
    )
    plan.expect(
        not trained.isfinite().all()
        or _close(laws.run(subject, batch, train=True).seen.output, trained),
        f"the ablation {name} changes training",
        "look at self.ablations in evaluation only, as self.decide does",
    )
    if subject.causal:
        subject.name += f" under the ablation {name}"
        laws.steps_equal_one_pass(subject, (("read", 3), ("read", 1)))
    # As it starts: of random parameters, a sum that is to be 1 may be 0.
    started = plan.build(randomize=False)
    started.module.ablations = subject.module.ablations
    _expect_numbers(plan, f"the output under the ablation {name}", started(batch).output)
    return not _close(after, learned)


def _close(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and torch.allclose(x, y, rtol=1e-7, atol=1e-9)


CHECKS: dict[str, Callable[[_Plan], None]] = {
    "sizes": _check_sizes,
    "causality": _check_causality,
    "padding": _check_padding,
    "decoding": _check_decoding,
    "learning": _check_learning,
    "copies": _check_copies,
    "evaluation": lambda plan: laws.evaluation_draws_nothing(plan.build()),
    "half_precision": lambda plan: laws.half_precision_is_near(plan.build(randomize=False)),
    "weights": _check_weights,
    "blocks": _check_blocks,
    "resetting": _check_resetting,
    "standard_start": _check_standard_start,
    "decay": _check_decay,
    "rule": _check_rule,
    "ablations": _check_ablations,
}
