"""Text from a language model: what it writes behind a prompt."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, cast

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

from headwise.models.causal_lm import CausalLM
from headwise.tasks.text.tokenization import TextTokenizer


class GenerationSettings(BaseModel):
    """How text is written: by sampling from the nucleus, or greedily.

    Holtzman et al. 2020, *The Curious Case of Neural Text Degeneration*,
    https://arxiv.org/abs/1904.09751.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_new_tokens: int = Field(60, ge=1, description="tokens written at most")
    lines: int | None = Field(
        None, ge=1, description="stop at the end of so many lines; default: write on over them"
    )
    temperature: float = Field(
        1.0, ge=0, description="logits are divided by it before sampling; 0 takes the likeliest"
    )
    top_p: float = Field(
        0.95, gt=0, le=1, description="sample from the likeliest tokens that have this probability"
    )
    seed: int = Field(1, ge=0, description="of the sampling, together with the prompt")


def generate_text(
    model: CausalLM,
    tokenizer: TextTokenizer,
    prompts: Sequence[str],
    settings: GenerationSettings,
) -> list[str]:
    r"""What the model writes behind each prompt, without the prompt: `prompt + text` reads on.

    A prompt begins a line and may hold line ends, `\n`; an empty one lets the model begin. What it
    writes depends on prompt and settings alone, not on the other prompts. Where text gets longer
    than the sequences that the model was trained on (`max_length` of its configuration), it goes
    on from the last half of them.

    Args:
        model: put into evaluation.
        tokenizer: the model's.
        prompts: text.
        settings: how to write.

    Example:
        >>> from headwise.models.causal_lm import CausalLMConfig
        >>> from headwise.tasks.text.tokenization import TextTokenizerSettings
        >>> tokenizer = TextTokenizer.train(["open the file"], TextTokenizerSettings())
        >>> config = CausalLMConfig(vocab_size=tokenizer.vocab_size, embed_dim=16, num_heads=2,
        ...                         ffn_dim=16, layers=1)
        >>> settings = GenerationSettings(max_new_tokens=5, seed=3)
        >>> texts = generate_text(CausalLM(config), tokenizer, ["open the", ""], settings)
        >>> [type(text).__name__ for text in texts]
        ['str', 'str']
    """
    model.eval()
    texts = []
    for prompt in prompts:
        *lines, last = (line.strip() for line in prompt.split("\n"))
        ids = [
            tokenizer.eos_token_id,  # a text begins where a line has ended
            *(token for row in tokenizer.encode(lines) for token in row),
            *tokenizer.encode([last], eos=False)[0],
        ]
        with torch.no_grad(), torch.random.fork_rng():
            # Each prompt draws by itself: prompts of one seed would draw alike otherwise.
            torch.manual_seed(settings.seed + (zlib.crc32(prompt.encode()) << 32))
            written = _write(model, ids, tokenizer.eos_token_id, settings)
        # Decoded with what stands before it: a text by itself would lose its first space.
        before, after = tokenizer.decode([ids[1:], ids[1:] + written])
        if lines and not last:
            before += "\n"  # a line end with nothing behind it is not decoded
        texts.append(after[len(before) :])
    return texts


def _write(model: CausalLM, ids: list[int], eos: int, settings: GenerationSettings) -> list[int]:
    """The ids that follow."""
    context, written = list(ids), list[int]()
    longest = model.config.max_length
    while len(written) < settings.max_new_tokens:
        if len(context) >= longest:
            context = context[-max(1, longest // 2) :]
        room = max(1, longest - len(context))
        new = _continue(
            model,
            context,
            min(room, settings.max_new_tokens - len(written)),
            eos,
            None if settings.lines is None else settings.lines - written.count(eos),
            settings,
        )
        written += new
        context += new
        if settings.lines is not None and written.count(eos) >= settings.lines:
            break
    return written


def _continue(
    model: CausalLM,
    ids: list[int],
    count: int,
    eos: int,
    lines: int | None,
    settings: GenerationSettings,
) -> list[int]:
    """Up to `count` ids behind `ids`; fewer if that many `lines` have ended."""
    inputs = torch.tensor([ids], device=model.device)
    stops = [] if lines is None else [_AfterLines(lines, eos, len(ids))]
    sampling: dict[str, Any] = {"do_sample": False}
    if settings.temperature > 0:
        sampling = {
            "do_sample": True,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "top_k": 0,
        }
    out = model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        max_length=len(ids) + count,
        eos_token_id=None,  # the end of a line is not that of a text
        stopping_criteria=StoppingCriteriaList(stops),
        **sampling,
    )
    return cast(Tensor, out)[0, len(ids) :].tolist()


class _AfterLines(StoppingCriteria):
    """Ends a text with the end of a line."""

    def __init__(self, lines: int, eos: int, start: int) -> None:
        self.lines, self.eos, self.start = lines, eos, start

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> torch.BoolTensor:
        ended = (input_ids[:, self.start :] == self.eos).sum(dim=1) >= self.lines
        return cast(torch.BoolTensor, ended)
