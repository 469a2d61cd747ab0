"""A layer of independent mechanisms as plain loops, straight from algorithm 1 of the paper.

Nothing here imports headwise: parameters come by the names that the library promises.
"""

import math

import torch
from reference import activation, attention_bias, read, rms_norm, slices, turned
from torch import Tensor


def grouped(h: Tensor, p: dict[str, Tensor], name: str) -> Tensor:
    """GroupLinear(h, W, n_s) = [h_j W_j] of one position, and a bias of each group if there is."""
    weight = p[f"{name}_weight"]
    bias = p.get(f"{name}_bias", torch.zeros(len(weight), 1, dtype=torch.float64))
    groups = zip(slices(h, len(weight)), weight, bias, strict=True)
    return torch.cat([h_j @ w + b for h_j, w, b in groups])


def norm(p: dict[str, Tensor], name: str, h: Tensor) -> Tensor:
    """norm(h, n_s) of one position; without a bias it is that by the root mean square."""
    weight, bias = p[f"{name}.weight"], p.get(f"{name}.bias")
    parts = []
    for j, h_j in enumerate(slices(h, len(weight))):
        if bias is None:
            parts.append(rms_norm(h_j, weight[j], 1e-5))
            continue
        mean = sum(h_j) / len(h_j)
        variance = sum((x - mean) ** 2 for x in h_j) / len(h_j)
        parts.append((h_j - mean) / torch.sqrt(variance + 1e-5) * weight[j] + bias[j])
    return torch.cat(parts)


def competition(p: dict[str, Tensor], h: Tensor) -> Tensor:
    """Step 1 at one position: c, `(n_s,)`."""
    exponentials = torch.exp(grouped(h, p, "competition"))
    return exponentials / exponentials.sum()


def placed(p, name: str, heads: list[Tensor], position: int, base: float | None) -> list[Tensor]:
    """Queries or keys of one position, normed by their mechanisms and turned, if they are to."""
    if f"{name}.weight" in p:
        scales = p[f"{name}.weight"]
        of = [i * len(scales) // len(heads) for i in range(len(heads))]  # the mechanism of a head
        heads = [rms_norm(x, scales[j], 1e-5) for x, j in zip(heads, of, strict=True)]
    return heads if base is None else [turned(x, position, base) for x in heads]


def attention(p, name, queries, memory, heads, b, t, base=None, **masks) -> Tensor:
    """Steps 2: Attention(Q, K, V, n_s H), then GroupLinear with W^O, at position t of row b."""
    q = slices(grouped(queries[t], p, f"{name}.q"), heads)
    q = placed(p, f"{name}.q_norm", q, t, base)
    keys = [grouped(m, p, f"{name}.k") for m in memory]
    kept = len(keys[0]) // len(q[0])  # heads of keys
    ks = [placed(p, f"{name}.k_norm", slices(k, kept), s, base) for s, k in enumerate(keys)]
    vs = [slices(grouped(m, p, f"{name}.v"), kept) for m in memory]
    out = []
    for i in range(heads):
        biases = [attention_bias(b, i, t, s, heads, **masks) for s in range(len(memory))]
        j = i * kept // heads
        out.append(
            read(q[i], torch.stack([k[j] for k in ks]), torch.stack([v[j] for v in vs]), biases)
        )
    return grouped(torch.cat(out), p, f"{name}.out")


def exchange(p: dict[str, Tensor], h: Tensor, heads: int) -> Tensor:
    """Step 3 at one position: mechanisms attend to mechanisms."""
    mechanisms = len(p["exchange.q_weight"])
    split = [slices(grouped(h, p, f"exchange.{x}"), mechanisms * heads) for x in "qkv"]
    q, k, v = split  # each mechanism's heads, the first mechanism's first
    out = []
    for i in range(mechanisms):
        for head in range(heads):
            width = len(q[0])
            scores = [
                torch.exp(q[i * heads + head] @ k[j * heads + head] / math.sqrt(width))
                for j in range(mechanisms)
            ]
            out.append(
                sum(scores[j] / sum(scores) * v[j * heads + head] for j in range(mechanisms))
            )
    return grouped(torch.cat(out), p, "exchange.out")


def feed_forward(p: dict[str, Tensor], h: Tensor, ffn_activation: str) -> Tensor:
    """Step 4 at one position."""
    hidden = slices(grouped(h, p, "ffn_up"), len(p["ffn_up_weight"]))
    active = [activation(ffn_activation, of_mechanism) for of_mechanism in hidden]
    return grouped(torch.cat(active), p, "ffn_down")


def layer(
    p: dict[str, Tensor],
    x: Tensor,
    memory: Tensor | None = None,
    *,
    heads: int,
    exchange_heads: int,
    pre_norm: bool,
    ffn_activation: str = "relu",
    of_stream: bool = True,
    base: float | None = None,
    memory_key_padding_mask: Tensor | None = None,
    **masks,
) -> tuple[Tensor, Tensor | None]:
    """The output and c, of every row and position."""

    def sublayer(name, rows, update):
        """`update` maps the rows it is given, and a position, to what is added there."""
        seen = [norm(p, name, h) for h in rows] if pre_norm else rows
        added = [h + update(seen, t) for t, h in enumerate(rows)]
        return added if pre_norm else [norm(p, name, h) for h in added]

    outputs, competitions = [], []
    for b in range(x.size(0)):
        compete = []

        def step_1_and_2(h, t, b=b, compete=compete):
            read_here = attention(p, "self_attention", h, h, heads, b, t, base, **masks)
            if "competition_weight" not in p:
                return read_here
            compete.append(competition(p, x[b][t] if of_stream else h[t]))
            parts = slices(read_here, len(compete[t]))
            return torch.cat([c * part for c, part in zip(compete[t], parts, strict=True)])

        def of_memory(h, t, b=b):
            mask = {"key_padding_mask": memory_key_padding_mask}
            return attention(p, "cross_attention", h, memory[b], heads, b, t, **mask)

        h = sublayer("norm1", list(x[b]), step_1_and_2)
        if memory is not None:
            h = sublayer("cross_norm", h, of_memory)
        if exchange_heads:
            h = sublayer("norm2", h, lambda h, t: exchange(p, h[t], exchange_heads))
        h = sublayer("norm3", h, lambda h, t: feed_forward(p, h[t], ffn_activation))
        outputs.append(torch.stack(h))
        if compete:
            competitions.append(torch.stack(compete))
    return torch.stack(outputs), torch.stack(competitions) if competitions else None
