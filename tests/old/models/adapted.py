"""Models with adapters of peft, for tests."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from tiny import tokens
from torch import Tensor, nn

# Tests that need it are skipped without it.
peft: Any = import_module("peft") if find_spec("peft") else None


def batch(kind: str) -> dict[str, Tensor]:
    """A batch with labels."""
    labels = {
        "classifier": torch.tensor([0, 1, 0]),
        "seq2seq": tokens(3, 4),
        "causal": (ids := tokens(3, 5)),
        "masked": ids,
    }
    return {"input_ids": ids, "labels": labels[kind]}


def outputs(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """The logits of a batch, in evaluation."""
    given = dict(inputs)
    if given["labels"].shape[1:] == (4,):  # what the decoder reads
        given["decoder_input_ids"] = given["labels"]
    del given["labels"]
    with torch.no_grad():
        logits: Tensor = model.eval()(**given).logits
    return logits


def adapted(model: nn.Module, config: Any) -> Any:
    """With adapters that change the output."""
    made = peft.get_peft_model(model, config)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def assert_adapters_learn_and_merge(
    model: nn.Module,
    inputs: dict[str, Tensor],
    config: Any,
    dtype: torch.dtype = torch.float64,
) -> None:
    """Adapters alone get gradients, and merging them leaves the output as it is."""
    # EM routing's activations enlarge what float32 rounds.
    tolerance = {"rtol": 0, "atol": 1e-9 if dtype == torch.float64 else 1e-4}
    model.to(dtype)
    plain = outputs(model, inputs)
    own, names = {id(parameter) for parameter in model.parameters()}, set(model.state_dict())
    with_adapters = adapted(model, config)
    expected = outputs(with_adapters, inputs)
    assert (expected - plain).abs().max() > 1e-3

    with_adapters.train()(**inputs).loss.backward()
    for name, parameter in with_adapters.named_parameters():
        assert not (parameter.requires_grad and id(parameter) in own), name
        assert parameter.requires_grad == (parameter.grad is not None), name

    def assert_same() -> None:
        torch.testing.assert_close(outputs(with_adapters, inputs), expected, **tolerance)

    assert_same()
    with_adapters.merge_adapter()
    assert_same()
    with_adapters.unmerge_adapter()
    assert_same()
    with with_adapters.disable_adapter():
        torch.testing.assert_close(outputs(with_adapters, inputs), plain, **tolerance)
    merged = with_adapters.merge_and_unload()
    if any("base_layer" in name for name in merged.state_dict()):
        # A linear map within a module whose tensors have adapters: it takes a second pass.
        merged = with_adapters.merge_and_unload()
    assert set(merged.state_dict()) == names
    torch.testing.assert_close(outputs(merged, inputs), expected, **tolerance)
