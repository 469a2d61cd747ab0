"""Rows of docs/compatibility.md: what headwise's models and another tool do together.

Each row is a test that runs for each system. Where a tool cannot do something with a system, the
row says so in `refused`, and the test passes if there is an error that says the same. So the page
(`page.py` writes it) has nothing that no test has seen.
"""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, NamedTuple

import pytest
import torch
from packaging.requirements import Requirement
from tiny import MOA, VOCABULARY, strengthen

import headwise as hw
from headwise.models.base import HeadwiseModel, model_class

PLANS: dict[str, Any] = {
    "standard": "standard",
    "weighted": "weighted",
    "agreement": "agreement",
    "mae": "mae",
    "tim": {"system": "tim", "layers": "all"},
    "moa": MOA,
    "gated": "gated",
    "differential": "differential",
    "moh": {"system": "moh", "shared_heads": 1, "top_k": 2},
}
SIZES = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 24, "dropout": 0.0, "vocab_size": VOCABULARY}
CONFIGS: dict[str, Callable[..., Any]] = {
    "causal": lambda **options: hw.CausalLMConfig(**{**SIZES, "layers": 2, **options}),
    "masked": lambda **options: hw.MaskedLMConfig(**{**SIZES, "layers": 2, **options}),
    "classifier": lambda **options: hw.SequenceClassifierConfig(
        **{**SIZES, "layers": 2, "classes": ["a", "b"], **options}
    ),
    "seq2seq": lambda **options: hw.Seq2SeqLMConfig(
        **{**SIZES, "encoder_layers": 2, "decoder_layers": 2, **options}
    ),
}


class Row(NamedTuple):
    """A row of the page.

    Attributes:
        tool: the tool; rows of one tool stand together.
        feature: what works, in the reader's words.
        needs: what the test needs beside headwise, as pip would be told; it is skipped without.
        refused: the systems that the feature does not work with, and how their error begins.
    """

    tool: str
    feature: str
    needs: tuple[str, ...]
    refused: Mapping[str, str]


def compatible(
    tool: str,
    feature: str,
    *,
    needs: Sequence[str] = (),
    refused: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a test, whose first argument is `system`, a row; further ones are its own."""
    row = Row(tool, feature, tuple(needs), refused or {})

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def checked(system: str, **others: Any) -> None:
            if system not in row.refused:
                return test(system, **others)
            with pytest.raises(Exception, match=re.escape(row.refused[system])):
                test(system, **others)
            return None

        missing = [need for need in row.needs if not _is_installed(Requirement(need))]
        checked.row = row  # type: ignore[attr-defined]
        marked = pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")(checked)
        return pytest.mark.parametrize("system", list(PLANS))(marked)

    return decorate


def _is_installed(need: Requirement) -> bool:
    if find_spec(need.name) is None:
        return False
    return not need.specifier or need.specifier.contains(version(need.name), prereleases=True)


def tiny_model(kind: str, system: str, *, seed: int = 0, **options: Any) -> HeadwiseModel:
    """A tiny model in evaluation mode, all of whose parts count; `kind` is a key of `CONFIGS`."""
    torch.manual_seed(seed)
    config = CONFIGS[kind](**{"attention": PLANS[system], **options})
    made = model_class(config)(config)
    strengthen(made)
    return made.eval()
