"""The figures of all papers, in the order of publication."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from headwise.analysis.cost import count_parameters, forward_macs
from headwise.analysis.papers.figures import (
    Figure,
    Paper,
    encoder_decoder,
    image_model,
    language_model,
    layers_of,
    masked_model,
    matrices,
    speech_enhancer,
)
from headwise.heads.moh import MixtureOfHeads
from headwise.heads.system import Place
from headwise.models.parameters import gate_parameters
from headwise.models.plan import build_system
from headwise.pretrained.attaching import output_parameters


def weighted_figures() -> Paper:
    """Returns the Weighted Transformer's figures, of table 2."""
    figures = []
    for layers, printed in ((2, "36M"), (4, "50M"), (6, "65M"), (8, "80M")):
        figures += _weighted_rows(printed, 41_000, encoder_layers=layers, decoder_layers=layers)
    big = {"embed_dim": 1024, "num_heads": 16, "ffn_dim": 4096}
    figures += _weighted_rows("213M", 37_000, **big)
    figures += [
        Figure(
            "κ and α, N=6, 8 branches",
            "params",
            "+192",
            encoder_decoder("weighted").routing,
            exact=True,
        ),
        Figure(
            "κ and α of 213M, both stacks",
            "params",
            "+192",
            encoder_decoder("weighted", **big).routing,
            remark="which the paper gives 16 branches in its table 2, and here the number of 8",
            exact=True,
        ),
        Figure(
            "κ and α of 213M, the encoder alone",
            "params",
            "+192",
            encoder_decoder({"encoder_self": "weighted"}, **big).routing,
            exact=True,
        ),
    ]
    return Paper(
        "Ahmed et al. 2017, Weighted Transformer Network, table 2",
        "The baselines' figures are those of Vaswani et al., who give 37,000 words; their models "
        "of d=512 fit 41,000. Ours adds κ and α, as the paper says, but is smaller by the "
        "output bias that a sub-layer with its feed-forward inside does without.",
        tuple(figures),
    )


def _weighted_rows(printed: str, words: int, **sizes: int) -> list[Figure]:
    name = f"N={sizes.get('encoder_layers', 6)}, d={sizes.get('embed_dim', 512)}"
    return [
        Figure(
            f"{who}, {name}",
            "params",
            printed,
            encoder_decoder(system, **sizes).parameters(words),
            f"{words:,}",
        )
        for who, system in (("Transformer", "standard"), ("Weighted", "weighted"))
    ]


def agreement_figures() -> Paper:
    """Returns the figures of routing by agreement, of tables 2 to 4."""

    def added(plan: Any, **sizes: int) -> int:
        routed, standard = (encoder_decoder(p, **sizes) for p in (plan, "standard"))
        return routed.parameters(0) - standard.parameters(0)

    def in_encoder(*layers: int, routing: str = "em") -> dict[str, Any]:
        numbers = [layer - 1 for layer in layers]  # the paper counts from 1
        return {"encoder_self": {"system": "agreement", "routing": routing, "layers": numbers}}

    em: dict[str, Any] = {"system": "agreement"}
    everywhere = (1, 2, 3, 4, 5, 6)
    big = {"embed_dim": 1024, "num_heads": 16, "ffn_dim": 4096}
    unknown = "embeddings not stated; without them ours is {:.1f}M"
    base = encoder_decoder("standard").parameters(0)
    large = encoder_decoder("standard", **big).parameters(0)
    figures = [
        Figure("base, standard", "params", "88.0M", None, remark=unknown.format(base / 1e6)),
        Figure("big, standard", "params", "264M", None, remark=unknown.format(large / 1e6)),
    ]
    for name, printed, plan in (
        ("encoder self, simple", "+12.6M", in_encoder(*everywhere, routing="simple")),
        ("encoder self", "+12.6M", in_encoder(*everywhere)),
        ("encoder-decoder", "+12.6M", {"decoder_cross": em}),
        ("decoder self", "+12.6M", {"decoder_self": em}),
        ("encoder self and encoder-decoder", "+25.2M", {"encoder_self": em, "decoder_cross": em}),
        ("all three", "+37.8M", em),
    ):
        figures.append(Figure(name, "params", printed, added(plan)))
    for name, printed, standard, layers, sizes in (
        ("encoder layers 1–6", "100.6M", 88.0e6, everywhere, {}),
        ("encoder layers 4–6", "94.3M", 88.0e6, (4, 5, 6), {}),
        ("encoder layers 1–3", "94.3M", 88.0e6, (1, 2, 3), {}),
        ("encoder layers 1–2", "92.2M", 88.0e6, (1, 2), {}),
        ("encoder layer 6", "90.1M", 88.0e6, (6,), {}),
        ("encoder layer 1", "90.1M", 88.0e6, (1,), {}),
        ("En–De base, layers 1–2", "92M", 88e6, (1, 2), {}),
        ("En–De big, layers 1–2", "297M", 264e6, (1, 2), big),
        ("Zh–En base, layers 1–2", "112M", 108e6, (1, 2), {}),
        ("Zh–En big, layers 1–2", "337M", 304e6, (1, 2), big),
    ):
        ours = standard + added(in_encoder(*layers), **sizes)
        figures.append(Figure(name, "params", printed, ours))
    return Paper(
        "Li et al. 2019, Routing-by-Agreement, tables 2 to 4",
        "What counts is the difference from the standard model, which no vocabulary changes: "
        "totals are the standard model's in print and what ours adds to it, with the capsules' "
        "biases and EM's two scalars.",
        tuple(figures),
    )


def mae_figures() -> Paper:
    """Returns MAE's figures, of tables 2, 3, 4 and 7."""
    uniform: dict[str, Any] = {"system": "mae", "gate": "uniform"}
    models = (
        ("BASE", "61M", "39M", "standard"),
        ("UNI-MAE-7", "61M", "39M", uniform),
        ("UNI-MAE-6", "61M", "39M", {**uniform, "dropped_heads": 2}),
        ("MAE-7, NOBCD", "63M", "41M", "mae"),
        ("MAE-6", "63M", "41M", {"system": "mae", "dropped_heads": 2}),
    )
    wmt, iwslt = 32_000, 8_848 + 6_632
    figures = []
    for name, printed, _, plan in models:
        ours = encoder_decoder(plan).parameters(wmt)
        figures.append(Figure(f"WMT14 {name}", "params", printed, ours, f"{wmt:,}"))
    base, gated, gated_iwslt = (
        encoder_decoder("standard"),
        encoder_decoder("mae"),
        encoder_decoder("mae", ffn_dim=1024),
    )
    more = encoder_decoder(uniform).parameters(0) - base.parameters(0)
    figures.append(Figure("UNI-MAE over BASE", "params", "+0", more, exact=True))
    for name, _, printed, plan in models:
        ours = encoder_decoder(plan, ffn_dim=1024).parameters(iwslt)
        remark = "41 only if cut, not rounded" if printed == "41M" else ""
        figures.append(Figure(f"IWSLT14 {name}", "params", printed, ours, f"{iwslt:,}", remark))
    gates = sum(p.numel() for p in gate_parameters(gated.layers))
    outputs = sum(p.numel() for p in output_parameters(gated.layers))
    figures += [
        Figure(
            "gates of WMT14 MAE-7",
            "share",
            "3–5%",
            gated.routing / gated.parameters(wmt),
            f"{wmt:,}",
        ),
        Figure(
            "gates of IWSLT14 MAE-7",
            "share",
            "3–5%",
            gated_iwslt.routing / gated_iwslt.parameters(iwslt),
            f"{iwslt:,}",
            "the same gates in a smaller model; with the printed 2M of 41M it is 4.9%",
        ),
        Figure("FTG: gates", "params", "2M", gates),
        Figure("FTG+: gates and output projections", "params", "7M", gates + outputs),
        Figure("FTALL", "params", "63M", gated.parameters(wmt), f"{wmt:,}"),
        Figure("UNI-MAE-7, gates over 8 experts", "entropy", "2.08", math.log(8)),
        *(
            Figure(f"WikiText-103 {name}", "params", printed, language_model(plan), "267,735")
            for name, printed, plan in (
                ("BASE", "247M", "standard"),
                ("UNI-MAE-7", "247M", uniform),
                ("MAE-7, NOBCD", "249M", "mae"),
            )
        ),
        Figure(
            "WikiText-103, gates of 16 layers",
            "params",
            "+2M",
            16 * _gate(1024),
            remark="at the d=1024 of Baevski and Auli; at d=512 it would be "
            f"{16 * _gate(512) / 1e6:.2f}M",
        ),
    ]
    return Paper(
        "Peng et al. 2020, A Mixture of h−1 Heads (MAE), tables 2, 3, 4 and 7",
        "WMT14: one joint vocabulary for all embeddings. IWSLT14: the paper has around 9K and 7K "
        "words; fairseq's script, which it follows, gives 8,848 and 6,632, and the output shares "
        "the embedding of the target. WikiText-103: the model of Baevski and Auli, 16 layers of "
        "d=1024, with adaptive embeddings that input and output share and all words of the text.",
        tuple(figures),
    )


def _gate(embed_dim: int) -> int:
    """The number of parameters of one gate over 8 experts."""
    place = Place("decoder_self", embed_dim, num_heads=8, ffn_dim=4 * embed_dim)
    with torch.device("meta"):
        attention = build_system({"system": "mae"}, place)
    return sum(p.numel() for p in gate_parameters(attention))


def tim_figures() -> Paper:
    """Returns TIM's figures, of table 2, the text and the appendix."""
    narrow = {"embed_dim": 768, "num_heads": 12, "layers": 12}
    wide = {"embed_dim": 1024, "num_heads": 16, "ffn_dim": 4096, "layers": 12}
    as_printed = {"system": "tim", "preset": "paper"}
    everywhere = {**as_printed, "layers": "all"}
    no_competition = {**as_printed, "competition": False}
    words = 32_678
    lost = "its sizes are missing in the text; 1024/4096 here"
    figures = []
    for name, printed, plan, sizes, remark in (
        ("BERT, 768/3072", "110M", "standard", {**narrow, "ffn_dim": 3072}, ""),
        ("BERT-130M, 768/4096", "130M", "standard", {**narrow, "ffn_dim": 4096}, ""),
        ("TIM-All-Layers, 12 of 12", "110M", everywhere, wide, lost),
        ("TIM-NoComp, 9 of 12", "130M", no_competition, wide, lost),
        ("TIM-Comp, 9 of 12", "130M", as_printed, wide, lost),
    ):
        ours = count_parameters(masked_model(plan, words, **sizes))
        figures.append(Figure(name, "params", printed, ours, f"{words:,}", remark))

    small, wider = (
        {"embed_dim": d, "num_heads": heads, "ffn_dim": 4 * d, "layers": 6}
        for d, heads in ((184, 8), (200, 10))
    )
    tim, baseline = image_model(as_printed, **wider), image_model("standard", **small)
    figures += [
        Figure(
            "images: TIM (d=200, 10 heads) over baseline (d=184, 8 heads)",
            "share",
            "95–105%",
            count_parameters(tim) / count_parameters(baseline),
            "512",
            "“roughly the same” in words, for which the bounds are ours",
        ),
        Figure(
            "saving of a TIM layer, d=184",
            "share",
            "30–40%",
            1 - layers_of(everywhere, **small) / layers_of("standard", **small),
            remark="“usually”",
        ),
        Figure(
            "saving of a TIM layer, d=768",
            "share",
            "30–40%",
            1
            - layers_of(everywhere, **narrow, ffn_dim=3072)
            / layers_of("standard", **narrow, ffn_dim=3072),
            remark="the wider the layer, the less its exchange weighs, and it nears 1/2",
        ),
        Figure(
            "speech enhancement, baseline",
            "params",
            "6M",
            speech_enhancer("standard", 256),
            remark="with a feed-forward as wide as the model; its width is not given",
        ),
        Figure(
            "speech enhancement, TIM, d=512",
            "params",
            "6M",
            speech_enhancer(as_printed, 512),
            remark="the appendix's d; the text's “about 20%” more than 256, d=304, gives "
            f"{speech_enhancer(as_printed, 304) / 1e6:.2f}M",
        ),
    ]
    return Paper(
        "Lamb et al. 2021, Independent Mechanisms (TIM), table 2, §2.3, appendix",
        "BERT: our masked language model with 512 learned positions; BERT's own count has a pooler "
        "in the place of the layer before the output. Images: our language model with learned "
        "positions, 512 colours, an output of its own and a feed-forward of 4d, as minGPT. Two "
        "mechanisms, no biases in TIM layers. Speech: with the four convolutions and an output for "
        "each of 257 frequencies.",
        tuple(figures),
    )


def moa_figures() -> Paper:
    """Returns MoA's figures, of tables 1 to 3."""
    return Paper(
        "Zhang et al. 2022, Mixture of Attention Heads (MoA), tables 1 to 3",
        "MACs: 10 source and 10 target tokens, products with weights alone. The paper says 32,000 "
        "words for En–De and 40,000 for En–Fr. The MACs fit 32,000, the parameters 36,800 and "
        "44,300 with all embeddings shared; figures of others are with the words that fit them. "
        "Masked language models: ours with 512 learned positions, as RoBERTa has, 128 tokens. "
        "There the paper counts attention's products for MoA alone.",
        (*_moa_translation(), *_moa_masked()),
    )


def _moa_translation() -> Iterator[Figure]:
    big = {"embed_dim": 1024, "num_heads": 16, "ffn_dim": 4096}
    deep = {"encoder_layers": 18, "decoder_layers": 18}
    deeper = {"encoder_layers": 60, "decoder_layers": 12}
    for name, params, macs, words, plan, sizes in (
        ("Transformer base (Vaswani et al.)", "65M", "604M", 41_000, "standard", {}),
        ("Admin 6L-6L", "61M", "604M", 32_000, "standard", {}),
        ("base 8K8E128D", "65M", "628M", 36_800, _size("8K8E128D"), {}),
        ("Transformer big (Vaswani et al.)", "213M", "2090M", 36_800, "standard", big),
        ("Transformer big (Ott et al.)", "210M", "2090M", 32_000, "standard", big),
        ("Admin 18L-18L", "151M", "1490M", 36_800, "standard", deep),
        ("Admin 60L-12L", "256M", "2550M", 36_800, "standard", deeper),
        ("(A) 8K8E256D", "87M", "841M", 36_800, _size("8K8E256D"), {}),
        ("(B) 8K16E256D", "125M", "841M", 36_800, _size("8K16E256D"), {}),
        ("(C) 8K32E64D", "83M", "524M", 36_800, _size("8K32E64D"), {}),
        ("(D) 8K32E128D", "123M", "631M", 36_800, _size("8K32E128D"), {}),
        ("(E) 8K32E256D", "200M", "841M", 36_800, _size("8K32E256D"), {}),
        ("(F) 4K32E256D", "200M", "654M", 36_800, _size("4K32E256D"), {}),
        ("big 16K32E256D", "200M", "1220M", 36_800, _size("16K32E256D"), {}),
    ):
        stack = encoder_decoder(plan, **sizes)
        yield Figure(name, "params", params, stack.parameters(words), f"{words:,}")
        yield Figure(name, "MACs", macs, stack.macs(10, 32_000).linear, "32,000")
    for name, params, macs in (
        ("LightConv", "202M", "1750M"),
        ("DynamicConv", "213M", "1790M"),
    ):
        remark = "headwise has no convolutions"
        yield Figure(name, "params", params, None, remark=remark)
        yield Figure(name, "MACs", macs, None, remark=remark)
    for name, params, words, plan, sizes in (
        ("Transformer base (Vaswani et al.)", "62M", 32_000, "standard", {}),
        ("Admin 6L-6L", "67M", 44_300, "standard", {}),
        ("base 8K8E128D", "69M", 44_300, _size("8K8E128D"), {}),
        ("Transformer big (Vaswani et al.)", "210M", 32_000, "standard", big),
        ("Transformer big (Ott et al.)", "222M", 44_300, "standard", big),
        ("Admin 60L-12L", "262M", 44_300, "standard", deeper),
        ("big 16K32E256D", "204M", 44_300, _size("16K32E256D"), {}),
    ):
        ours = encoder_decoder(plan, **sizes).parameters(words)
        # The 32,000 are in Vaswani et al., who give no size for this pair of languages.
        remark = "with their 32,000; 34,900 would fit" if params == "62M" else ""
        yield Figure(f"En–Fr {name}", "params", params, ours, f"{words:,}", remark)


def _moa_masked() -> Iterator[Figure]:
    words, tokens = 50_265, 128
    for name, params, macs, plan in (
        ("Transformer, 8 heads", "51.34M", "6.55G", "standard"),
        ("8K8E128D", "52.45M", "7.27G", _size("8K8E128D")),
        ("8K8E256D", "61.89M", "8.97G", _size("8K8E256D")),
        ("8K16E256D", "78.75M", "8.97G", _size("8K16E256D")),
        ("8K32E256D", "112.47M", "8.98G", _size("8K32E256D")),
        ("8K64E256D", "179.91M", "8.98G", _size("8K64E256D")),
    ):
        model = masked_model(plan, words, layers=8)
        linear, attention = forward_macs(model, {"encoder": tokens})
        ours, remark = linear, ""
        if plan != "standard":
            ours += attention
            twice = ours + attention
            remark = f"{twice / 1e9:.2f}G with attention's products twice"
        yield Figure(f"masked, {name}", "params", params, count_parameters(model), f"{words:,}")
        yield Figure(f"masked, {name}", "MACs", macs, ours, f"{words:,}", remark)


def _size(size: str) -> dict[str, str]:
    return {"system": "moa", "size": size}


def moh_figures() -> Paper:
    """Returns MoH's figures, of table C and §4.4."""
    words = 65_536
    small = {"embed_dim": 768, "ffn_dim": 2048, "layers": 12, "num_heads": 12}
    big = {"embed_dim": 1536, "ffn_dim": 4096, "layers": 24, "num_heads": 16}
    figures = []
    for name, printed, routers, sizes in (
        ("LLM-S", "186M", False, small),
        ("MoH-LLM-S", "186M", True, small),
        ("LLM-B", "881M", False, big),
        ("MoH-LLM-B", "882M", True, big),
    ):
        ours = _llama(words, **sizes) + (_routers(**sizes) if routers else 0)
        figures.append(Figure(name, "params", printed, ours, f"{words:,}"))
    llama = _layer(4096, 32, router="query-norm")
    figures += [
        Figure(
            "routers of MoH-LLM-B",
            "params",
            "+1M",
            _routers(**big),
            remark="the difference of two rounded figures",
        ),
        Figure(
            "Llama 3 8B, heads in force",
            "share",
            "75%",
            (llama.shared_heads + llama.top_k) / llama.num_heads,
            remark="half of 32 heads shared, half of the others selected",
        ),
    ]
    return Paper(
        "Jin et al. 2025, Mixture-of-Head Attention (MoH), table C, §4.4",
        "The models are those of Llama, with two embeddings; what ours counts is transformers' "
        "Llama of these sizes, and the routers of our layers. How many of the heads are shared is "
        "not stated, and changes nothing: a logit for each head and one for each of the two kinds.",
        tuple(figures),
    )


def _llama(words: int, embed_dim: int, ffn_dim: int, layers: int, num_heads: int) -> int:
    config = LlamaConfig(
        vocab_size=words,
        hidden_size=embed_dim,
        intermediate_size=ffn_dim,
        num_hidden_layers=layers,
        num_attention_heads=num_heads,
    )
    with torch.device("meta"):
        return count_parameters(LlamaForCausalLM(config))


def _routers(embed_dim: int, layers: int, num_heads: int, **_: int) -> int:
    place = Place("decoder_self", embed_dim, num_heads, ffn_dim=4 * embed_dim)
    with torch.device("meta"):
        standard = build_system({"system": "standard"}, place)
    return layers * (matrices(_layer(embed_dim, num_heads)) - matrices(standard))


def _layer(embed_dim: int, num_heads: int, **options: Any) -> MixtureOfHeads:
    place = Place("decoder_self", embed_dim, num_heads, ffn_dim=4 * embed_dim)
    with torch.device("meta"):
        return MixtureOfHeads.from_plan(place, **options)


def gated_figures() -> Paper:
    """Returns the figures of gated attention, of table 1, by the sizes of table 7."""
    return Paper(
        "Qiu et al. 2025, Gated Attention, tables 1 and 7",
        "What a gate behind each head adds to the mixture of experts of 15B parameters: 24 layers "
        "of d=2048 with 32 heads of 128.",
        tuple(
            Figure(f"{gate} gates, 24 layers", "params", printed, 24 * _gates(gate, 2048, 32, 128))
            for gate, printed in (("elementwise", "+201M"), ("headwise", "+1.6M"))
        ),
    )


def _gates(gate: str, embed_dim: int, num_heads: int, head_dim: int) -> int:
    """The number of parameters of the gates of one layer."""
    place = Place("decoder_self", embed_dim, num_heads, ffn_dim=4 * embed_dim)
    with torch.device("meta"):
        gated = build_system({"system": "gated", "gate": gate, "head_dim": head_dim}, place)
        standard = build_system({"system": "standard", "head_dim": head_dim}, place)
    return matrices(gated) - matrices(standard)


def published_figures() -> list[Paper]:
    """Returns the figures of all papers, in the order of publication."""
    return [
        weighted_figures(),
        agreement_figures(),
        mae_figures(),
        tim_figures(),
        moa_figures(),
        moh_figures(),
        gated_figures(),
    ]
