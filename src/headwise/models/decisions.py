"""What the systems of a model decide while it runs."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headwise.heads.system import AttentionOutput, Routing
from headwise.models.sites import AttentionSite, attention_sites


@contextmanager
def decisions(model: nn.Module) -> Iterator[dict[AttentionSite, list[Routing]]]:
    """Within it, every forward pass of the model notes what each system decides.

    Yields:
        For each site, in the order in which they stand, the decisions of the passes so far, their
        tensors detached. Systems that decide nothing, such as standard attention, are left out.

    Example:
        >>> import torch
        >>> from headwise.models.causal_lm import CausalLM, CausalLMConfig
        >>> config = CausalLMConfig(vocab_size=50, embed_dim=16, num_heads=4, ffn_dim=32, layers=2,
        ...                         attention={"system": "tim", "layers": [1]})
        >>> model = CausalLM(config).eval()
        >>> with decisions(model) as decided:
        ...     logits = model(input_ids=torch.tensor([[5, 6, 7]])).logits
        >>> [(place.site, place.layer, [tuple(each.weights.shape) for each in routings])
        ...  for place, routings in decided.items()]
        [('decoder_self', 1, [(1, 3, 2)])]
    """
    decided: dict[AttentionSite, list[Routing]] = {}
    hooks = []
    for site in attention_sites(model):

        def note(
            module: nn.Module, args: object, out: AttentionOutput, site: AttentionSite = site
        ) -> None:
            if out.routing is not None:
                decided.setdefault(site, []).append(_detached(out.routing))

        hooks.append(site.module.register_forward_hook(note))
    try:
        yield decided
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def decisions_by_position(model: nn.Module, **inputs: Tensor) -> dict[AttentionSite, Routing]:
    """What a pass decides for each of its positions, in evaluation mode.

    Args:
        model: of one stack.
        inputs: of its forward; the first is `(batch, time, ...)`.

    Returns:
        For each site whose system decides for every position by itself, the decisions, their
        weights `(batch, time, experts)`.
    """
    batch, time = next(iter(inputs.values())).shape[:2]
    training = model.training
    model.eval()
    with decisions(model) as decided:
        model(**inputs)
    model.train(training)
    return {
        site: made
        for site, (made, *_) in decided.items()
        if made.weights.dim() == 3 and made.weights.shape[:2] == (batch, time)
    }


def _detached(routing: Routing) -> Routing:
    loss = None if routing.loss is None else routing.loss.detach()
    return routing._replace(weights=routing.weights.detach(), loss=loss)
