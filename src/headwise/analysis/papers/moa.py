"""MoA's figures."""

from collections.abc import Iterator

from headwise.analysis.cost import count_parameters, forward_macs
from headwise.analysis.papers.figures import Figure, Paper
from headwise.analysis.papers.models import encoder_decoder, masked_model


def moa_figures() -> Paper:
    """Returns the figures of tables 1 to 3."""
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
