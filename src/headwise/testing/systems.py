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
from headwise.heads.system import AttentionOutput, System
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
_TIME, _KEYS = 7, 5
_SIZES: dict[str, Any] = {"vocab_size": 8, "embed_dim": 16, "num_heads": 4, "ffn_dim": 32}
_RIGHT = torch.arange(_TIME).expand(3, _TIME) >= torch.tensor([[7], [2], [4]])
_LEFT = _RIGHT.flip(1)
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
    - `masks`: a float mask hides where it is -inf, as a boolean one does, and is added elsewhere.
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
        self, batch: Batch, *, padding: Any = None, mask: Any = None, cache: Any = None, **more: Any
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

    def drawn(self) -> tuple[SystemSubject, Batch]:
        """A subject, and a batch whose memory is padded."""
        subject = self.build()
        return subject, subject.draw(3, _TIME, 1)._replace(memory_padding=_MEMORY)

    def hidden(self) -> Tensor:
        """What a mask hides from each query, `(queries, keys)`: from the first, everything."""
        keys = _KEYS if self.site == "decoder_cross" else _TIME
        hidden = (torch.arange(_TIME).unsqueeze(1) + torch.arange(keys)) % 3 == 0
        return hidden | (torch.arange(_TIME).unsqueeze(1) == 0)

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
    batch = subject.draw(3, _TIME, 1)._replace(memory_padding=_MEMORY)
    out = subject.call(batch, padding=_RIGHT)
    problem = f"outputs are {tuple(out.output.shape)}"
    mend = f"expected (batch, time, embed_dim), here {tuple(batch.sequence.shape)}"
    plan.expect(out.output.shape == batch.sequence.shape, problem, mend)
    if (routing := out.routing) is None:
        return
    mend = "say how much each head counts: reports take the weights for shares"
    holds = not (routing.weights < 0).any()
    plan.expect(holds, "routing.weights hold a negative number", mend)
    holds = routing.loss is None or routing.loss.dim() == 0
    plan.expect(holds, "routing.loss is no scalar", "take its mean over all but padding")
    mend = "set it in forward: query_padding_mask, or in self-attention key_padding_mask"
    marked = torch.zeros(()) if routing.padding is None else routing.padding
    holds = routing.weights.dim() < 3 or torch.equal(marked, _RIGHT)
    plan.expect(holds, "routing.padding does not mark the padding of the queries", mend)


def _check_causality(plan: _Plan) -> None:
    if plan.site != "encoder_self":
        laws.hidden_changes_nothing(plan.build())


def _check_padding(plan: _Plan) -> None:
    # Padding within moves what is real against rotary positions.
    within = () if plan.first_position is not None else (_WITHIN,)
    for padding in (_RIGHT, _LEFT, *within):
        laws.padding_changes_nothing(plan.build(), padding, memory_padding=_MEMORY)


def _check_decoding(plan: _Plan) -> None:
    if plan.site != "encoder_self":
        laws.steps_equal_one_pass(plan.build())
        laws.steps_equal_one_pass(plan.build(), padding=_LEFT[:, 2:5])


def _check_learning(plan: _Plan) -> None:
    for padding in (None, _WITHIN):
        laws.every_weight_learns(plan.build(), padding=padding)
    laws.every_weight_learns(plan.build(), padding=_LEFT, mask=_as_float(plan.hidden()))


def _as_float(hidden: Tensor) -> Tensor:
    return torch.zeros(hidden.shape).double().masked_fill(hidden, float("-inf"))


def _check_masks(plan: _Plan) -> None:
    subject, batch = plan.drawn()

    def output(padding: Tensor, memory_padding: Tensor, mask: Tensor) -> Tensor:
        given = batch._replace(memory_padding=memory_padding)
        return subject.call(given, padding=padding, mask=mask).output.detach()

    boolean = [_RIGHT, _MEMORY, plan.hidden()]
    added = [_as_float(hidden) for hidden in boolean]
    biased = [mask + 1e-6 * torch.randn_like(mask) for mask in added]
    wanted = output(*boolean)
    mend = "add a float mask to the logits, in attend and in attention_weights"
    same = _close(output(*added), wanted)
    plan.expect(same, "float masks of -inf and 0 do not hide what boolean masks hide", mend)
    off = float((output(*biased) - wanted).abs().max())
    problem = f"a bias of 1e-6 in a float mask changes the output by {off:.2g}"
    plan.expect(0 < off < 1e-3, problem, mend)


def _check_copies(plan: _Plan) -> None:
    def loaded(module: nn.Module) -> nn.Module:
        other = plan.build().parts()
        other.load_state_dict(module.state_dict())
        return other

    laws.copies_are_their_own(plan.build(), loaded)
    laws.copies_are_their_own(plan.build(), copy.deepcopy)


def _check_weights(plan: _Plan) -> None:
    subject, batch = plan.drawn()
    if not isinstance(subject.module, Attention):
        return  # what its weights are the weights of, only its own tests can say
    given = {"padding": _RIGHT, "mask": torch.randn(plan.hidden().shape).double()}
    expected = subject.call(batch, **given).output
    out = subject.call(batch, **given, need_weights=True)
    weights: Any = out.weights
    same = weights is not None and _close(out.output, expected)
    mend = "return them as AttentionOutput.weights, and compute the output as ever"
    plan.expect(same, "need_weights gives no attention weights, or changes the output", mend)

    def read(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> Any:
        return weights @ v.repeat_interleave(weights.size(1) // v.size(1), dim=1)

    subject.module.attend = read  # type: ignore[method-assign]
    same = _close(subject.call(batch, **given).output, expected)
    mend = "let attention_weights(q, k, mask) return the weights by which attend reads"
    plan.expect(same, "the weights that need_weights gives do not reproduce the output", mend)


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
            modern.expect(False, problem, mend)
        if plan.site != "decoder_cross" and width and width % 2 == 0:
            modern = modern._replace(first_position=0)
        for name in checks:
            CHECKS[name](modern)
        if modern.first_position is not None:
            _check_rotary(modern)
        checks = ("sizes", "weights")  # of the first that it takes all of them


def _check_rotary(plan: _Plan) -> None:
    subject, batch = plan.drawn()
    outputs = []
    for subject.first_position in (0, 50, None):
        outputs.append(subject(batch).output)
    here, later, without = outputs
    counts = _close(here, later) and not _close(here, without)
    problem = "rotary positions change nothing, or count otherwise than by their distance"
    mend = "take queries from self.placed and keys from self.keys_and_values, as project does"
    plan.expect(counts, problem, mend)


def _check_resetting(plan: _Plan) -> None:
    with torch.device("meta"):
        module = plan.make()
    module.to_empty(device="cpu")
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            tensor.detach().fill_(float("nan"))
    module.reset_parameters()
    mend = "a model that is built without memory would keep what was there"
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        plan.expect(tensor.isfinite().all(), f"reset_parameters() does not set {name}", mend)
    # from_pretrained has the functions of nn.init spare what it has loaded, as these spare all.
    before = {name: x.clone() for name, x in _draw_parameters(module).state_dict().items()}
    drawing = (name for name in vars(nn.init) if name.endswith("_") and name[0] != "_")
    idle: dict[str, Any] = dict.fromkeys(drawing, lambda tensor, *_, **__: tensor)
    with patch.multiple(nn.init, **idle):
        module.reset_parameters()
    mend = "call nn.init.ones_(...) and so on, which spare what from_pretrained has loaded"
    for name, tensor in module.state_dict().items():
        problem = f"reset_parameters() sets {name} by other means than torch.nn.init"
        plan.expect(torch.equal(tensor, before[name]), problem, mend)


def _check_standard_start(plan: _Plan) -> None:
    subject, batch = plan.drawn()
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
    same = _close(subject.call(batch, padding=_RIGHT).output, wanted)
    problem = "after start_neutral() the output is not that of standard attention"
    mend = "give further parameters values that change nothing, or do not override start_neutral"
    plan.expect(same, problem, mend)


def _check_decay(plan: _Plan) -> None:
    module = plan.build(randomize=False).parts()
    decayed = {id(parameter) for parameter in decayed_parameters(module)}
    for name, x in module.named_parameters():
        if id(x) in decayed and x.numel() and x.any():
            problem = f"{name} starts as {x.max():g} throughout, which weight decay pulls to 0"
            mend = f"name it in no_decay = ({name!r},); if it is a matrix, leave_out=('decay',)"
            plan.expect(x.min() < x.max(), problem, mend)


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
    batch = subject.draw(3, _TIME, 1)

    def loss() -> Tensor:
        output, _, loss = subject(batch)
        total = (output - batch.sequence.flip(0)).square().mean()
        return total if loss is None else total + loss

    for _ in range(2):
        rules.before_step(loss)
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()
    mend = (
        "declare a rule of training whose after_update puts it back (rule = MyRule, see "
        "headwise.systems.Rule), or compute it from parameters that may be anything; if it need "
        "not stay so, leave this check out: check_system(..., leave_out=('rule',))"
    )
    for name in held:
        problem = f"{name} starts on the simplex, and a step of training takes it away"
        plan.expect(_is_on_simplex(module.get_parameter(name)), problem, mend)


def _is_on_simplex(rows: Tensor) -> bool:
    """Whether all rows are not negative and sum to 1, as no plain optimizer would keep them."""
    if rows.dim() < 1 or rows.size(-1) < 2:
        return False
    return bool((rows >= 0).all() and ((rows.sum(-1) - 1).abs() < 1e-5).all())


def _check_ablations(plan: _Plan) -> None:
    module: Any = plan.build().parts()
    idle = []
    for name in module.edits:
        option = option_of(name)
        units = module.num_heads if option == "head" else module.num_units
        values = {None: (None,), "seed": (0,), "top_k": (1,)}.get(option, (0, units - 1))
        given = [{option: value} if option else {} for value in values]
        if units > 1 and not any(_ablation_changes(plan, name, options) for options in given):
            idle.append(name)
    # Of weights one may be all there is: a router that chooses one unit has no largest two.
    if not set(WEIGHTS) & set(module.edits) <= set(idle):
        idle = [name for name in idle if name not in WEIGHTS]
    names = ", ".join(idle)
    problem = f"the output is the same under each of the ablations {names}"
    mend = f"call self.decide(weights) or self.choose(logits, top_k), or leave {names} out of edits"
    plan.expect(not idle, problem, mend)


def _ablation_changes(plan: _Plan, name: str, options: dict[str, Any]) -> bool:
    # Random too, since what is learned may start as what the ablation puts in its place.
    started, subject = plan.build(randomize=False), plan.build()
    batch = subject.draw(3, _TIME, 1)
    before, trained = (laws.run(subject, batch, train=x).seen.output for x in (False, True))
    for each in (started, subject):
        each.module.ablations = (Ablation(each.module, name, **options),)
        each.name += f" under the ablation {name}"
    laws.evaluation_draws_nothing(started)
    if subject.causal:
        laws.steps_equal_one_pass(subject, (("read", 3), ("read", 1)))
    after, retrained = (laws.run(subject, batch, train=x).seen.output for x in (False, True))
    # Of random parameters, a sum that is to be 1 may be 0, and the output NaN.
    stays = _close(retrained, trained) or not trained.isfinite().all()
    mend = "look at self.ablations in evaluation only, as self.decide does"
    plan.expect(stays, f"the ablation {name} changes training", mend)
    return not _close(after, before)


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
    "masks": _check_masks,
    "weights": _check_weights,
    "blocks": _check_blocks,
    "resetting": _check_resetting,
    "standard_start": _check_standard_start,
    "decay": _check_decay,
    "rule": _check_rule,
    "ablations": _check_ablations,
}
