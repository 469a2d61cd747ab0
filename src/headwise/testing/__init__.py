"""Checks that every system of heads has to pass, yours too.

    from headwise.testing import check_system

    def test_my_system():
        check_system(MySystem)

Whatever a paper's equations say, a system stands in models that train on padded batches, predict
the next token, and decode step by step with beam search. What that asks of a system is the same
for all of them; that its equations are the paper's is for its own tests to show.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from headwise.heads.system import Place, System
from headwise.testing.ablations import check_ablations
from headwise.testing.outputs import (
    check_blocks,
    check_causality,
    check_chosen_heads,
    check_decoding,
    check_half_precision,
    check_macs,
    check_padding,
    check_sizes,
    check_standard_start,
    check_weights,
)
from headwise.testing.parameters import (
    check_copies,
    check_decay,
    check_learning,
    check_resetting,
    check_rule,
)
from headwise.testing.subject import EMBED_DIM, FFN_DIM, NUM_HEADS, SITES, Subject

__all__ = ["CHECKS", "SITES", "Subject", "check_system"]

CHECKS: dict[str, Callable[[Subject], None]] = {
    "sizes": check_sizes,
    "causality": check_causality,
    "padding": check_padding,
    "weights": check_weights,
    "chosen_heads": check_chosen_heads,
    "decoding": check_decoding,
    "learning": check_learning,
    "resetting": check_resetting,
    "copies": check_copies,
    "standard_start": check_standard_start,
    "blocks": check_blocks,
    "half_precision": check_half_precision,
    "decay": check_decay,
    "rule": check_rule,
    "macs": check_macs,
    "ablations": check_ablations,
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
    - `chosen_heads`: where each query chooses its heads, what all of them would read agrees.
    - `decoding`: decoding step by step, with beam search, equals decoding at once.
    - `learning`: every parameter gets a finite gradient, also beside a sequence of padding alone.
    - `resetting`: `reset_parameters()` sets every parameter, and none that is loaded already.
    - `copies`: `state_dict()` holds all that an output depends on.
    - `standard_start`: the output is that of standard attention, where the system can start so.
    - `blocks`: the first of these hold with grouped keys, norms of queries and keys, and rotary
      positions, which count by their distance alone, where the system takes them.
    - `half_precision`: it works under autocast, and as a whole in bfloat16.
    - `decay`: weight decay spares what starts as a scale.
    - `rule`: parameters that start on a simplex are still there after a step of training.
    - `macs`: the formula counts what PyTorch's flop counter counts, to two percent.
    - `ablations`: ablations change evaluation, and not training, and draw nothing at a call;
      decoding in steps agrees under each; what `ablation_ranges()` returns fits.

    Args:
        system: the class; a model builds it by `from_plan`, and so does this.
        ablation_options: options of its ablations, by the name of the ablation. An option without
            a default is the last that `ablation_ranges()` has for it, or 1.
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
