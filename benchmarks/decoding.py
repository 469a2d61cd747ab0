"""Greedy decoding with each system, and where the time of a translation goes.

    python benchmarks/decoding.py                        # each system over our standard model
    python benchmarks/decoding.py --batches 1 --threads 1 --cpu-time
    python benchmarks/decoding.py --reference            # our standard model over others' models
    python benchmarks/decoding.py --encoder              # agreement in the encoder, by beam search
    python benchmarks/decoding.py --weights              # how many a step reads, instead of times

Models of the base size (512 dimensions, 6 + 6 layers) translate the same random sentences into
outputs of a given length, in turns. Each figure is the median of the ratios within rounds, with its
95% interval. Models are not trained, and MoA's routers drawn so that tokens spread over its
experts.

`--weights` counts the weights of the decoder and of the map to the vocabulary that a step reads,
over those of the first system. A machine that waits for its memory cannot be faster than that,
but for what the systems have in common. Of MoA's experts a batch reads those that its tokens
choose, as if no two chose the same as long as there are others. The keys and values of the source
are computed once, and are left out.

`--reference` has our standard models over those of transformers, Marian's encoder-decoder and
GPT-2, of the same sizes, and our attention over `nn.MultiheadAttention`, forward and backward.

`--encoder` has what Li et al. 2019 (https://arxiv.org/abs/1904.03100) print in table 2: routing by
agreement in the encoder alone leaves the speed of decoding as it is. The encoder runs once for a
translation and the decoder once for every token, so that what the encoder costs weighs less the
longer outputs are, and the more time each token takes, as with a larger vocabulary. It is measured
with and without the encoder's own time: without, its output is given.
"""

import argparse
import copy
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from layers import add_measuring, in_turns, spread_tokens
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
)

import headwise as hw
from headwise.analysis.speed import OverRounds

PLANS: dict[str, Any] = {
    "standard": "standard",
    "mae": "mae",
    "moa, 8K8E64D": {"system": "moa", "size": "8K8E64D"},
    "moa, 8K32E64D": {"system": "moa", "size": "8K32E64D"},
    "tim": {"system": "tim", "layers": "all"},
    "weighted": "weighted",
    "agreement, EM": "agreement",
    "agreement, simple": {"system": "agreement", "routing": "simple"},
}
BEAMS = 4  # of `--encoder`
SIZES: dict[str, Any] = {"embed_dim": 512, "num_heads": 8, "ffn_dim": 2048}
Run = Callable[[], object]


def main() -> None:
    """Measure and print."""
    options = parse_options()
    torch.manual_seed(0)
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.weights:
        Console().print(weights_table(options))
        return
    parts = (encoders_part, encoders_share) if options.encoder else (decoding, greedy_table)
    measure, table_of = (reference, reference_table) if options.reference else parts
    Console().print(table_of(measure(options), options))


def decoding(options: argparse.Namespace) -> dict[tuple[str, int], OverRounds]:
    """Each system over the first, by batch."""
    vocabulary = options.vocabularies[0]
    names = options.systems or list(PLANS)
    models = {name: build(PLANS[name], vocabulary, options) for name in names}
    found = {}
    for batch in options.batches:
        source = sentences(vocabulary, batch, options)
        runs = {name: greedy(model, source, options.tokens[0]) for name, model in models.items()}
        seconds = in_turns(runs, options)
        found |= {(name, batch): over(own, seconds[names[0]]) for name, own in seconds.items()}
    return found


def reference(options: argparse.Namespace) -> dict[tuple[str, int], OverRounds]:
    """Our standard models over those of others, by batch."""
    vocabulary, tokens = options.vocabularies[0], options.tokens[0]
    encoder_decoders = (build("standard", vocabulary, options), marian(vocabulary, options))
    only_decoders = (causal(vocabulary, options), gpt2(vocabulary, options))
    attentions = (hw.MultiHeadAttention(512, 8), nn.MultiheadAttention(512, 8, batch_first=True))
    found = {}
    for batch in options.batches:
        source = sentences(vocabulary, batch, options)
        x = torch.randn(batch, 128, 512, device=options.device)
        pairs: dict[str, tuple[Run, ...]] = {
            "Marian, greedy": tuple(greedy(model, source, tokens) for model in encoder_decoders),
            "GPT-2, greedy": tuple(greedy(model, source, tokens) for model in only_decoders),
            "nn.MultiheadAttention, 128 tokens": tuple(
                forward_backward(module.to(options.device), x) for module in attentions
            ),
        }
        for name, (ours, theirs) in pairs.items():
            seconds = in_turns({"ours": ours, "theirs": theirs}, options)
            found[name, batch] = over(seconds["ours"], seconds["theirs"])
    return found


def encoders_part(options: argparse.Namespace) -> list[tuple[str, ...]]:
    """Rows: agreement in the encoder over standard, and the encoder's part of standard's time."""
    plans: dict[str, Any] = {"standard": "standard", "routed": {"encoder_self": "agreement"}}
    rows = []
    for vocabulary in options.vocabularies:
        models = {name: build(plan, vocabulary, options) for name, plan in plans.items()}
        source = sentences(vocabulary, options.sentences, options)
        with torch.no_grad():
            encoded = {name: model.encoder(source) for name, model in models.items()}
        for tokens in options.tokens:
            runs = {name: searching(model, source, tokens) for name, model in models.items()}
            after = {
                f"{name} after": searching(model, source, tokens, encoded[name])
                for name, model in models.items()
            }
            s = in_turns({**runs, **after}, options)
            share = 1 - over(s["standard after"], s["standard"]).value
            ratios = (
                over(s["routed"], s["standard"]),
                over(s["routed after"], s["standard after"]),
            )
            shares = (*(shown(ratio) for ratio in ratios), f"{share:.1%}")
            rows.append((f"{vocabulary:,}", f"{tokens}", *shares))
    return rows


def greedy_table(found: Mapping[tuple[str, int], OverRounds], options: argparse.Namespace) -> Table:
    """A row for each system, a column for each batch."""
    return table_by_batch(f"time over {next(iter(found))[0]}", found, options)


def reference_table(
    found: Mapping[tuple[str, int], OverRounds], options: argparse.Namespace
) -> Table:
    """A row for each model of others, a column for each batch."""
    return table_by_batch("time of our standard model, over that of", found, options)


def table_by_batch(
    what: str, found: Mapping[tuple[str, int], OverRounds], options: argparse.Namespace
) -> Table:
    table = empty_table(what, options)
    table.add_column("")
    for batch in options.batches:
        table.add_column(f"batch {batch}", justify="right")
    for name in dict.fromkeys(name for name, _ in found):
        table.add_row(name, *(shown(found[name, batch]) for batch in options.batches))
    return table


def weights_table(options: argparse.Namespace) -> Table:
    """Weights that a step reads over those of the first system, by batch."""
    table = Table(title="weights that a step of decoding reads")
    for header in ("", *(f"batch {batch}" for batch in options.batches)):
        table.add_column(header, justify="right" if header else "left")
    first: list[float] = []
    for name in options.systems or PLANS:
        model = build(PLANS[name], options.vocabularies[0], options)
        read = [weights_read(model, batch) for batch in options.batches]
        first = first or read
        table.add_row(name, *(f"{own / one:.2f}" for own, one in zip(read, first, strict=True)))
    return table


def weights_read(model: hw.Seq2SeqLM, batch: int) -> float:
    """How many weights a step of decoding so many sentences reads."""
    count: float = model.lm_head.weight.numel()
    for layer in model.decoder.layers:
        for name, weight in layer.named_parameters():
            if re.search(r"cross_attention\.[kv]_(proj\.)?weight$", name):
                continue
            used = 1.0
            if name.endswith((".expert_query", ".expert_output")):
                attention = layer.get_submodule(name.rpartition(".")[0])
                used = min(1.0, batch * attention.top_k / attention.num_experts)
            count += used * weight.numel()
    return count


def encoders_share(rows: list[tuple[str, ...]], options: argparse.Namespace) -> Table:
    """A row for each vocabulary and length."""
    table = empty_table(
        f"agreement in the encoder over standard, {options.sentences} sentences, {BEAMS} beams",
        options,
    )
    headers = ("vocabulary", "output tokens", "whole", "without the encoder", "encoder's share*")
    for header in headers:
        table.add_column(header, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def empty_table(what: str, options: argparse.Namespace) -> Table:
    tokens = f"{options.time} tokens into {', '.join(map(str, options.tokens))}"
    caption = f"torch {torch.__version__}, {options.device}, {torch.get_num_threads()} threads"
    share = "; * of the standard model's time" if options.encoder else ""
    return Table(title=f"{what}; {tokens}, {options.rounds} rounds", caption=caption + share)


def build(plan: Any, vocabulary: int, options: argparse.Namespace) -> hw.Seq2SeqLM:
    """Returns a model of the base size, in evaluation mode."""
    config = hw.Seq2SeqLMConfig(vocab_size=vocabulary, attention=plan, **SIZES)
    model = hw.Seq2SeqLM(config).to(options.device).eval()
    spread_tokens(model)
    return model


def causal(vocabulary: int, options: argparse.Namespace) -> PreTrainedModel:
    """Our model without an encoder, as GPT-2 is made: pre-norm, GELU, learned positions."""
    as_gpt2 = {
        "norm": "pre",
        "ffn_activation": "gelu",
        "positions": "learned",
        "max_positions": 1024,
    }
    config = hw.CausalLMConfig(vocab_size=vocabulary, layers=6, **as_gpt2, **SIZES)
    return hw.CausalLM(config).to(options.device).eval()


def gpt2(vocabulary: int, options: argparse.Namespace) -> PreTrainedModel:
    """GPT-2 of the same size."""
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = GPT2Config(
        vocab_size=vocabulary, n_embd=512, n_layer=6, n_head=8, n_inner=2048, **tokens
    )
    return GPT2LMHeadModel(config).to(options.device).eval()


def marian(vocabulary: int, options: argparse.Namespace) -> PreTrainedModel:
    """Marian's encoder-decoder of the same size."""
    of_stack = {"layers": 6, "ffn_dim": 2048, "attention_heads": 8}
    sizes = {f"{stack}_{k}": v for stack in ("encoder", "decoder") for k, v in of_stack.items()}
    config = MarianConfig(
        vocab_size=vocabulary,
        d_model=512,
        activation_function="relu",
        pad_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
        **sizes,
    )
    return MarianMTModel(config).to(options.device).eval()


def sentences(vocabulary: int, count: int, options: argparse.Namespace) -> Tensor:
    return torch.randint(3, vocabulary, (count, options.time), device=options.device)


def greedy(model: Any, source: Tensor, tokens: int) -> Run:
    """What generates so many tokens for each sentence."""
    how = {"min_new_tokens": tokens, "max_new_tokens": tokens, "do_sample": False, "num_beams": 1}
    mask = torch.ones_like(source)
    return lambda: model.generate(source, attention_mask=mask, **how)


def searching(model: hw.Seq2SeqLM, source: Tensor, tokens: int, encoded: Any = None) -> Run:
    """The same by beam search; where the encoder's output is given it is not computed."""
    how = {"min_new_tokens": tokens, "max_new_tokens": tokens, "num_beams": BEAMS}
    if encoded is None:
        return lambda: model.generate(source, **how)
    # A copy, since the search puts its own in there.
    return lambda: model.generate(source, encoder_outputs=copy.copy(encoded), **how)


def forward_backward(module: nn.Module, x: Tensor) -> Run:
    def run() -> None:
        y = x.detach().requires_grad_()
        how = {"need_weights": False} if isinstance(module, nn.MultiheadAttention) else {}
        module(y, y, y, **how)[0].sum().backward()
        module.zero_grad(set_to_none=True)

    return run


def over(ours: list[float], theirs: list[float]) -> OverRounds:
    """Returns the ratio within each round."""
    return OverRounds.of([one / other for one, other in zip(ours, theirs, strict=True)])


def shown(found: OverRounds) -> str:
    """Returns a ratio with its interval as text."""
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--reference", action="store_true", help="beside models of others")
    what.add_argument("--encoder", action="store_true", help="agreement in the encoder alone")
    what.add_argument("--weights", action="store_true", help="count them instead")
    parser.add_argument("--systems", nargs="+", choices=PLANS, help="the baseline first")
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 1])
    parser.add_argument("--vocabularies", type=int, nargs="+", help="the first, but of --encoder")
    parser.add_argument("--tokens", type=int, nargs="+", help="likewise; those of the outputs")
    parser.add_argument("--sentences", type=int, default=8, help="of --encoder")
    parser.add_argument("--time", type=int, default=16, help="tokens of a source")
    parser.add_argument("--device", default="cpu")
    add_measuring(parser, rounds=9)
    options = parser.parse_args()
    options.vocabularies = options.vocabularies or ([2_000, 32_000] if options.encoder else [2_000])
    options.tokens = options.tokens or ([24, 72] if options.encoder else [32])
    return options


if __name__ == "__main__":
    main()
