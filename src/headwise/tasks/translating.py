"""Translation of texts by a model: beam search over batches of similar length."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from headwise.data.encoded import TokenItem, collate_tokens
from headwise.data.tokenizers.tokenization import TranslationTokenizer
from headwise.messages import shown
from headwise.models.config import Seq2SeqLMConfig
from headwise.models.for_tasks import Seq2SeqLM
from headwise.tasks.bleu import TranslationEvaluation
from headwise.training.batching import TokenBudgetSampler
from headwise.training.processes import alone, divided


def translate(
    model: Seq2SeqLM,
    tokenizer: TranslationTokenizer,
    texts: Sequence[str],
    settings: TranslationEvaluation,
    *,
    batch_tokens: int = 4096,
    advance: Callable[[int], None] = lambda count: None,
    shared: bool = False,
) -> list[str]:
    """Translates texts: returns one translation for each, in the same order, without line breaks.

    Args:
        model, tokenizer: model that translates, which is put into evaluation mode.
        texts: one sentence each; the translation of an empty text is empty.
        settings: beam size, length penalty and longest translations. A model with learned
            positions ends a translation where they end.
        batch_tokens: number of source tokens, times the beam size, that are translated at once.
        advance: is called with the number of texts that have just been translated.
        shared: whether the processes of a data-parallel run, all of which call this, translate a
            share of the batches each.
    """
    model.eval()
    translations = [""] * len(texts)
    filled = [index for index, text in enumerate(texts) if text.strip()]
    advance(len(texts) - len(filled))
    sources = tokenizer.source.encode([texts[index].strip() for index in filled])
    lengths = [len(ids) for ids in sources]
    most = model.config.max_positions
    if most is not None and max(lengths, default=0) > most:
        longest = lengths.index(max(lengths))
        raise ValueError(
            f"texts has {shown(texts[filled[longest]])} of {lengths[longest]} tokens, expected at "
            f"most {most}, as many as the model has learned positions (max_positions); divide it"
        )
    budget = max(batch_tokens // settings.beam_size, *lengths, 1)
    batches = list(TokenBudgetSampler(lengths, budget, shuffle=False)) if lengths else []

    def translate_batch(batch: list[int]) -> list[str]:
        made = translate_ids(model, tokenizer, [sources[i] for i in batch], settings)
        return tokenizer.decode_target(made)

    with nullcontext() if shared else alone():
        made = divided(batches, translate_batch, lambda batch: advance(len(batch)))
    for batch, of_batch in zip(batches, made, strict=True):
        for i, text in zip(batch, of_batch, strict=True):
            translations[filled[i]] = " ".join(text.splitlines())
    return translations


def generation_config(settings: TranslationEvaluation, config: Seq2SeqLMConfig) -> GenerationConfig:
    """Returns the search as transformers reads it from the folder of a model.

    There the longest translation does not depend on its source: it has `max_target_length` tokens,
    or as many as the model has positions.
    """
    longest = config.max_target_length
    if config.max_positions is not None:
        longest = min(longest, config.max_positions + 1)  # the last token is not read
    return GenerationConfig(
        max_length=longest,
        num_beams=settings.beam_size,
        length_penalty=settings.length_penalty,
        early_stopping=False,
        do_sample=False,
        pad_token_id=config.pad_token_id,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )


def translate_ids(
    model: Seq2SeqLM,
    tokenizer: TranslationTokenizer,
    sources: Sequence[list[int]],
    settings: TranslationEvaluation,
) -> list[list[int]]:
    """Translates one batch: returns the tokens of each translation, behind the start token.

    Those behind the first `<eos>` of a translation mean nothing.
    """
    limits = [settings.max_length(len(ids)) for ids in sources]
    if (most := model.config.max_positions) is not None:
        limits = [min(limit, most) for limit in limits]
    outputs = _search(
        model,
        tokenizer,
        sources,
        settings,
        max_length=max(limits) + 1,  # the start token counts as one of the sequence
        stopping_criteria=StoppingCriteriaList([_OwnLimit(limits)]),
    )
    return outputs.tolist()


def write_tokens(
    model: Seq2SeqLM,
    tokenizer: TranslationTokenizer,
    texts: Sequence[str],
    settings: TranslationEvaluation,
    length: int,
) -> int:
    """Searches for translations of exactly `length` tokens and returns the number of tokens."""
    sources = tokenizer.source.encode(list(texts))
    lengths = {"min_new_tokens": length, "max_new_tokens": length}
    return _search(model, tokenizer, sources, settings, **lengths).numel()


def _search(
    model: Seq2SeqLM,
    tokenizer: TranslationTokenizer,
    sources: Sequence[list[int]],
    settings: TranslationEvaluation,
    **limits: Any,
) -> Tensor:
    """The tokens of the best hypotheses of beam search, behind the start token.

    `limits` are what `generate` is told of their length.
    """
    items: list[TokenItem] = [{"input_ids": ids, "labels": []} for ids in sources]
    inputs = collate_tokens(items, tokenizer.pad_token_id)
    with torch.no_grad():
        outputs: Tensor = model.generate(
            inputs["input_ids"].to(model.device),
            attention_mask=inputs["attention_mask"].to(model.device),
            num_beams=settings.beam_size,
            length_penalty=settings.length_penalty,
            early_stopping=False,
            do_sample=False,
            **limits,
        )
    return outputs[:, 1:]


class _OwnLimit(StoppingCriteria):
    """Ends each translation at the limit of its own source, whatever else is in the batch."""

    def __init__(self, limits: list[int]) -> None:
        self.limits = torch.tensor(limits)

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> torch.BoolTensor:
        # Rows are hypotheses, the same number of them for each source.
        limits = self.limits.to(input_ids.device)
        limits = limits.repeat_interleave(len(input_ids) // len(limits))
        return cast(torch.BoolTensor, input_ids.size(1) > limits)
