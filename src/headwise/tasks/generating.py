"""Text generation: a language model continues prompts."""

import sys
import zlib
from collections.abc import Sequence
from typing import Any, cast

import torch
from pydantic import Field
from torch import Tensor
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from headwise.data.tokenizers.tokenization import TextTokenizer
from headwise.models.for_tasks import CausalLM
from headwise.settings import LARGEST_SEED, FrozenSettings
from headwise.training.processes import own_draws


class GenerationSettings(FrozenSettings):
    """Settings of text generation, by nucleus sampling or greedily.

    Holtzman et al. 2020, *The Curious Case of Neural Text Degeneration*,
    https://arxiv.org/abs/1904.09751.
    """

    max_new_tokens: int = Field(60, ge=1, le=10_000_000)
    """Largest number of tokens that are written."""
    lines: int | None = Field(None, ge=1, le=1_000_000_000)
    """Number of lines after which the text ends. Default: line ends do not end it."""
    temperature: float = Field(1.0, ge=0, le=1000)
    """Temperature: logits are divided by it before sampling; 0 always takes the most probable
    token."""
    top_p: float = Field(0.95, gt=0, le=1)
    """Tokens are sampled from the most probable ones that together have this probability."""
    seed: int = Field(1, ge=0, le=LARGEST_SEED)
    """Seed of the sampling, which also depends on the prompt."""


def generation_config(settings: GenerationSettings, pad: int, eos: int) -> GenerationConfig:
    """Returns the settings as transformers reads them from the folder of a model.

    With `lines: 1` a text ends with its line; more lines cannot be counted there.
    """
    return GenerationConfig(
        max_new_tokens=settings.max_new_tokens,
        pad_token_id=pad,
        bos_token_id=eos,
        eos_token_id=eos if settings.lines == 1 else None,
        **_sampling(settings),
    )


def generate_text(
    model: CausalLM,
    tokenizer: TextTokenizer,
    prompts: Sequence[str],
    settings: GenerationSettings,
) -> list[str]:
    r"""Returns the text with which the model continues each prompt, without the prompt.

    A prompt begins a line and may hold line ends, `\n`; with an empty prompt the model begins the
    text. The text depends only on prompt and settings, not on the other prompts. When it gets
    longer than the sequences that the model was trained on (`max_length` of its configuration),
    the model goes on from the last half of such a sequence.
    """
    texts = []
    for prompt in prompts:
        ids = prompt_ids(tokenizer, prompt)
        # The prompt is part of the seed: prompts would share their random numbers otherwise.
        seed = zlib.crc32(f"{settings.seed} {prompt}".encode())  # of 32 bits, as PyTorch reads them
        written = continue_ids(model, ids, tokenizer.eos_token_id, settings, seed)
        # Decoded together with the prompt: a text by itself would lose its first space.
        before, after = tokenizer.decode([ids[1:], ids[1:] + written])
        if "\n" in prompt and not prompt.rpartition("\n")[2].strip():
            before += "\n"  # decoding leaves out a line end at the end
        texts.append(after[len(before) :])
    return texts


def prompt_ids(tokenizer: TextTokenizer, prompt: str) -> list[int]:
    """Returns the tokens of a prompt, behind the line end with which a text begins."""
    *lines, last = (line.strip() for line in prompt.split("\n"))
    return [
        tokenizer.eos_token_id,
        *(token for row in tokenizer.encode(lines) for token in row),
        *tokenizer.encode([last], eos=False)[0],
    ]


def continue_ids(
    model: CausalLM, ids: list[int], eos: int, settings: GenerationSettings, seed: int
) -> list[int]:
    """Returns the tokens with which a model continues the given ones, at least one."""
    model.eval()
    context, written = list(ids), list[int]()
    longest, lines = model.config.max_length, settings.lines or sys.maxsize
    with torch.no_grad(), own_draws():
        torch.manual_seed(seed)
        while len(written) < settings.max_new_tokens and written.count(eos) < lines:
            if len(context) >= longest:
                context = context[-max(1, longest // 2) :]
            count = min(max(1, longest - len(context)), settings.max_new_tokens - len(written))
            stop = _AfterLines(lines - written.count(eos), eos, len(context))
            inputs = torch.tensor([context], device=model.device)
            out = model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                max_new_tokens=count,
                eos_token_id=None,  # the end of a line is not the end of a text
                stopping_criteria=StoppingCriteriaList([stop]),
                remove_invalid_values=True,  # of a model that diverged
                **_sampling(settings),
            )
            new = cast(Tensor, out)[0, len(context) :].tolist()
            written += new
            context += new
    return written


def write_tokens(
    model: CausalLM, tokenizer: TextTokenizer, settings: GenerationSettings, length: int
) -> int:
    """Writes one text of exactly `length` tokens and returns the number of tokens."""
    endless = settings.model_copy(update={"lines": None, "max_new_tokens": length})
    eos = tokenizer.eos_token_id
    return len(continue_ids(model, [eos], eos, endless, settings.seed))


def _sampling(settings: GenerationSettings) -> dict[str, Any]:
    """The arguments of `generate()` that say how tokens are chosen."""
    if settings.temperature == 0:
        return {"do_sample": False, "temperature": 1.0, "top_p": 1.0}
    options = {"temperature": settings.temperature, "top_p": settings.top_p, "top_k": 0}
    return {"do_sample": True, **options}


class _AfterLines(StoppingCriteria):
    """Ends a text after a number of lines."""

    def __init__(self, lines: int, eos: int, start: int) -> None:
        self.lines, self.eos, self.start = lines, eos, start

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> torch.BoolTensor:
        ended = (input_ids[:, self.start :] == self.eos).sum(dim=1) >= self.lines
        return cast(torch.BoolTensor, ended)
