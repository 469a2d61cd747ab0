"""TIM's figures."""

from headwise.analysis.cost import count_parameters
from headwise.analysis.papers.figures import Figure, Paper
from headwise.analysis.papers.models import (
    image_model,
    layers_of,
    masked_model,
    speech_enhancer,
)


def tim_figures() -> Paper:
    """Returns the figures of table 2, of the text and of the appendix."""
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
