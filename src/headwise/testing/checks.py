"""`check_system`: the laws, and further demands of models on a system, at each of its sites."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn

from headwise.heads.ablation import HEADS, WEIGHTS, Ablation, ablation_option
from headwise.heads.attention import Attention
from headwise.heads.system import AttentionOutput, System
from headwise.models.config import Seq2SeqLMConfig
from headwise.models.modeling import DecodingCache
from headwise.ops.rotary import Rotary, rotary_rates
from headwise.testing import laws
from headwise.testing.laws import Batch, Result

SITES = {
    "attention": ("encoder_self", "decoder_self", "decoder_cross"),
    "feed-forward": ("encoder_self", "decoder_cross"),
    "layer": ("encoder_self", "decoder_self"),
}
_TIME, _KEYS = 7, 5
_SIZES: dict[str, Any] = {"vocab_size": 8, "embed_dim": 16, "num_heads": 4, "ffn_dim": 32}
# Settings of today's models, beside rotary positions.
_MODERN = {"num_key_value_heads": 2, "qk_norm": True, "head_dim": 6, "bias": "qkv", "norm": "pre"}
_PAD_RIGHT = torch.arange(_TIME).expand(3, _TIME) >= torch.tensor([[7], [2], [4]])
_PAD_LEFT = _PAD_RIGHT.flip(1)
_PAD_WITHIN = torch.tensor([[0, 1, 0, 0, 1, 0, 0], [1] * 7, [0, 0, 1, 1, 0, 0, 1]]) > 0
_PAD_MEMORY = torch.arange(_KEYS).expand(3, _KEYS) >= torch.tensor([[3], [5], [1]])


def check_system(system: type[System], *, leave_out: Sequence[str] = (), **options: Any) -> None:
    """Check a system at every site where a model can put it, on a small model's sizes.

    - `outputs`: they are `(batch, time, embed_dim)`, also of nothing, and the same at each pass in
      evaluation; what `routing` holds is finite, not negative, and says where the padding is.
    - `causality`, `padding`, `decoding`, `learning`, `copies`, `half_precision`: the laws of
      `headwise.testing.laws`.
    - `weights`: the attention weights that `need_weights` asks for reproduce the output, also with
      a float mask, which is added to the logits.
    - `resetting`: `reset_parameters()` sets every parameter, and none that is loaded already.
    - `ablations`: each of its `supported_ablations` changes evaluation and not training, draws
      nothing at a call, and agrees with decoding in steps.

    All of them run once with the defaults, and once with the settings of today's models: fewer
    heads of keys, norms of queries and keys, heads of another width, fewer biases, rotary
    positions. A system that does not support these raises a `ValueError` in its constructor.

    Args:
        system: the class, which is built by `from_config`.
        leave_out: names of checks that do not apply to the system.
        options: options of the system in a plan.

    Raises:
        AssertionError: a check fails; the message names it and the site.

    >>> import headwise as hw
    >>> check_system(hw.MixtureOfAttentionHeads, size="2K5E8D")
    """
    if unknown := set(leave_out) - CHECKS.keys():
        raise ValueError(
            f"leave_out has {', '.join(sorted(unknown))}, expected some of {', '.join(CHECKS)}"
        )
    for site in SITES[system.replaces]:
        for settings in ({}, _MODERN):
            case = _Case(system, site, options, settings)
            try:
                case.build_system()
            except ValueError:
                if settings:
                    continue  # it says that it does not take them
                raise
            for name in (name for name in CHECKS if name not in leave_out):
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(0)
                    try:
                        CHECKS[name](case)
                    except AssertionError as error:
                        extra = f" with {settings} and rotary positions" if settings else ""
                        subject = f"{system.__name__} at {site}{extra}"
                        raise AssertionError(f"{subject}: {name}: {error}") from error


class SystemSubject:
    """A system at a site of a model, as a subject of the laws.

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

    def new_cache(self) -> Any:
        return DecodingCache(1, 1)

    def draw(self, rows: int, time: int, seed: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        module: Any = self.module
        dtype = next((p.dtype for p in module.parameters()), torch.float64)
        shapes = (time, module.embed_dim), (_KEYS, getattr(module, "kdim", module.embed_dim))
        x, memory = (
            torch.randn(rows, *shape, generator=generator, dtype=torch.float64) for shape in shapes
        )
        return Batch(x, memory).to(dtype)

    def __call__(self, batch: Batch, **arguments: Any) -> Result:
        out = self.call(batch, **arguments)
        routing = out.routing
        return Result(out.output, *(() if routing is None else ([routing.weights], routing.loss)))

    def call(
        self, batch: Batch, *, padding: Any = None, mask: Any = None, cache: Any = None, **more: Any
    ) -> AttentionOutput:
        """The output of the system itself; `more` are further arguments of its `forward`."""
        x, memory, memory_padding = batch
        mask = mask.unsqueeze(1) if mask is not None and mask.dim() == 3 else mask
        self_cache, cross_cache = (None, None) if cache is None else cache.layer_caches(0)
        if self.site == "decoder_cross":
            queries = padding if padding is None else padding[:, padding.size(1) - x.size(1) :]
            masks = {"key_padding_mask": memory_padding, "query_padding_mask": queries}
            return self.module(x, memory, **masks, attn_mask=mask, cache=cross_cache, **more)
        if self.first_position is not None:
            first = self.first_position + (0 if self_cache is None else self_cache.get_seq_length())
            heads = (part for part in self.module.modules() if isinstance(part, Attention))
            rates = rotary_rates(next(heads).head_dim, self.base)
            more["rotary"] = Rotary(first + torch.arange(x.size(1)), rates)
        if self.causal:
            more |= {"is_causal": True, "cache": self_cache}
        if self.causal and getattr(self.module, "cross_attention", None) is not None:
            more |= {"memory_key_padding_mask": memory_padding, "cross_cache": cross_cache}
            return self.module(x, memory, key_padding_mask=padding, attn_mask=mask, **more)
        return self.module(x, key_padding_mask=padding, attn_mask=mask, **more)


class _Case(NamedTuple):
    """A system at a site, with its options and the settings of the model."""

    system: type[System]
    site: str
    options: Mapping[str, Any]
    settings: Mapping[str, Any]

    def build_system(self) -> System:
        config = Seq2SeqLMConfig(**_SIZES, **self.settings, dropout=0.0)
        module = self.system.from_config(config, self.site, **self.options)
        module.place(self.site, layer=0)
        return module

    @property
    def num_keys(self) -> int:
        return _KEYS if self.site == "decoder_cross" else _TIME

    def build_subject(self, *, randomize: bool = True) -> SystemSubject:
        module = self.build_system().double().eval()
        module.training_rule = True  # without a warning that no rule trains it
        if randomize:
            _draw_parameters(module)
        widths = (part.head_dim for part in module.modules() if isinstance(part, Attention))
        rotary = bool(self.settings) and self.site != "decoder_cross" and next(widths, 1) % 2 == 0
        return SystemSubject(module, self.site, first_position=0 if rotary else None)


@torch.no_grad()
def _draw_parameters(module: Any) -> None:
    """Adds random numbers to all parameters, and draws running statistics anew.

    Mistakes would hide behind initial values of 0, of 1, or of standard attention.
    """
    for parameter in module.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.5)
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm1d) and norm.running_var is not None:
            nn.init.normal_(norm.running_mean)  # type: ignore[arg-type]
            nn.init.uniform_(norm.running_var, 0.5, 1.5)


def _check_outputs(case: _Case) -> None:
    # With its initial parameters, since random ones may leave, for example, a simplex.
    subject = case.build_subject(randomize=False)
    laws.empty_is_empty(subject)
    laws.evaluation_draws_nothing(subject)
    batch = subject.draw(3, _TIME, 1)._replace(memory_padding=_PAD_MEMORY)
    out = subject.call(batch, padding=_PAD_RIGHT)
    laws.finite("of a padded batch", subject(batch, padding=_PAD_RIGHT))
    shape, expected = tuple(out.output.shape), tuple(batch.sequence.shape)
    assert shape == expected, f"the shape is {shape}, expected (batch, time, embed_dim), {expected}"
    if subject.first_position is not None:
        subject.first_position = None
        changes = not torch.equal(subject.call(batch, padding=_PAD_RIGHT).output, out.output)
        assert changes, (
            "rotary positions change nothing: use self.norm_and_rotate and self.keys_and_values"
        )
    if (routing := out.routing) is not None:
        assert not (routing.weights < 0).any(), "routing.weights hold a negative number"
        assert routing.loss is None or routing.loss.dim() == 0, "routing.loss is no scalar"
        padding = torch.zeros(()) if routing.padding is None else routing.padding
        is_marked = routing.weights.dim() < 3 or torch.equal(padding, _PAD_RIGHT)
        assert is_marked, "routing.padding does not mark the padding of the queries"


def _check_causality(case: _Case) -> None:
    if case.site != "encoder_self":
        laws.hidden_changes_nothing(case.build_subject())


def _check_padding(case: _Case) -> None:
    # Padding within moves what is real against rotary positions.
    within = () if case.build_subject().first_position is not None else (_PAD_WITHIN,)
    for padding in (_PAD_RIGHT, _PAD_LEFT, *within):
        laws.padding_changes_nothing(case.build_subject(), padding, memory_padding=_PAD_MEMORY)


def _check_decoding(case: _Case) -> None:
    if case.site != "encoder_self":
        laws.steps_equal_one_pass(case.build_subject())
        laws.steps_equal_one_pass(case.build_subject(), padding=_PAD_LEFT[:, 2:5])


def _check_learning(case: _Case) -> None:
    for padding in (None, _PAD_WITHIN):
        laws.every_weight_learns(case.build_subject(), padding=padding)
    queries = torch.arange(_TIME).unsqueeze(1)
    # The first query sees no key.
    hidden = ((queries + torch.arange(case.num_keys)) % 3 == 0) | (queries == 0)
    mask = torch.zeros(hidden.shape).double().masked_fill(hidden, float("-inf"))
    laws.every_weight_learns(case.build_subject(), padding=_PAD_LEFT, mask=mask)


def _check_copies(case: _Case) -> None:
    def reload(module: nn.Module) -> nn.Module:
        other = case.build_subject().module
        other.load_state_dict(module.state_dict())
        return other

    laws.copies_are_their_own(case.build_subject(), reload)
    laws.copies_are_their_own(case.build_subject(), copy.deepcopy)


def _check_weights(case: _Case) -> None:
    subject = case.build_subject()
    module = subject.module
    if not isinstance(module, Attention):
        return  # only tests of its own know how its weights are used
    batch = subject.draw(3, _TIME, 1)._replace(memory_padding=_PAD_MEMORY)
    masks = {"padding": _PAD_RIGHT, "mask": torch.randn(_TIME, case.num_keys).double()}
    expected = subject.call(batch, **masks).output
    unmasked = subject.call(batch, padding=_PAD_RIGHT).output
    out = subject.call(batch, **masks, need_weights=True)
    weights: Any = out.weights
    same = weights is not None and _close(out.output, expected)
    assert same, "need_weights gives no attention weights, or changes the output"

    def attend(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
        return weights @ v.repeat_interleave(weights.size(1) // v.size(1), dim=1)

    module.attend = attend  # type: ignore[assignment, method-assign]
    same = _close(subject.call(batch, **masks).output, expected)
    assert same, "the weights that need_weights gives do not reproduce the output"
    assert not _close(unmasked, expected), "a float mask of finite numbers is not added to logits"


def _check_resetting(case: _Case) -> None:
    with torch.device("meta"):
        module = case.build_system()
    module.to_empty(device="cpu")
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            tensor.detach().fill_(float("nan"))
    module.reset_parameters()
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        assert tensor.isfinite().all(), f"reset_parameters() does not set {name}"
    # In from_pretrained the functions of nn.init leave loaded weights alone; here, all weights.
    _draw_parameters(module)
    before = {name: x.clone() for name, x in module.state_dict().items()}
    names = (name for name in vars(nn.init) if name.endswith("_") and name[0] != "_")
    no_ops: dict[str, Any] = dict.fromkeys(names, lambda tensor, *_, **__: tensor)
    with patch.multiple(nn.init, **no_ops):
        module.reset_parameters()
    for name, tensor in module.state_dict().items():
        is_kept = torch.equal(tensor, before[name])
        assert is_kept, f"reset_parameters() sets {name} by other means than torch.nn.init"


def _check_ablations(case: _Case) -> None:
    idle = []
    system: Any = case.build_system()
    for name in system.supported_ablations:
        num_units = system.num_heads if name in HEADS else system.num_units
        if num_units > 1 and not _changes_evaluation(case, name, num_units):
            idle.append(name)
    # Some ablations of weights may change nothing, as for a router that chooses a single unit.
    if not set(WEIGHTS) & set(system.supported_ablations) <= set(idle):
        idle = [name for name in idle if name not in WEIGHTS]
    names = ", ".join(idle)
    assert not idle, (
        f"{names} change nothing: call self.ablate_weights, or leave {names} out of "
        f"supported_ablations"
    )


def _changes_evaluation(case: _Case, name: str, num_units: int) -> bool:
    """Whether an ablation changes evaluation; asserts that it changes nothing else."""
    subject, option = case.build_subject(), ablation_option(name)
    module: Any = subject.module
    batch = subject.draw(3, _TIME, 1)
    before, trained = (laws.run(subject, batch, train=x).result.output for x in (False, True))
    # A unit may count nowhere, as one that no position selects.
    numbers = {None: [0], "seed": [0], "top_k": [1]}.get(option, range(num_units))
    for number in numbers:
        module.ablations = (Ablation(module, name, **({option: number} if option else {})),)
        laws.evaluation_draws_nothing(subject)
        if subject.causal:
            laws.steps_equal_one_pass(subject, (("read", 3), ("read", 1)))
        after, retrained = (laws.run(subject, batch, train=x).result.output for x in (False, True))
        assert _close(retrained, trained), f"the ablation {name} changes training"
        if not _close(after, before):
            return True
    return False


def _close(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and torch.allclose(x, y, rtol=1e-7, atol=1e-9)


CHECKS: dict[str, Callable[[_Case], None]] = {
    "outputs": _check_outputs,
    "causality": _check_causality,
    "padding": _check_padding,
    "decoding": _check_decoding,
    "learning": _check_learning,
    "copies": _check_copies,
    "half_precision": lambda case: laws.half_precision_is_near(case.build_subject(randomize=False)),
    "weights": _check_weights,
    "resetting": _check_resetting,
    "ablations": _check_ablations,
}
