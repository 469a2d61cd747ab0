"""The nine systems as plain loops, straight from the papers' equations, in float64.

Nothing here imports headwise. Parameters come by the names that the library promises, sizes and
options by the attributes of the module; `expected` is what a test calls.
"""

import math
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

NEVER = float("-inf")
ZERO = torch.zeros((), dtype=torch.float64)


def expected(
    module: Any, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, **masks: Any
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Output, what `routing.weights` holds, and the auxiliary loss, of a module in evaluation.

    Args:
        module: any of the nine.
        query, key, value: as the module is called; a layer's memory is the key.
        masks: the masks of the call; `rotary`, the base of rotary positions.
    """
    p = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    base = masks.pop("rotary", None)
    q_norm = getattr(module, "self_attention", module).q_norm
    p["eps"] = None if q_norm is None else q_norm.eps
    name = type(module).__name__
    if name == "IndependentMechanismsLayer":
        return *tim(p, query, key, module, base, **masks), None
    if base is not None and key is None:
        p["rotary"] = base
    padding = masks.pop("query_padding_mask", None)
    if padding is None and key is None:
        padding = is_hidden(masks.get("key_padding_mask"))
    value = value if value is not None else query if key is None else key
    inputs = (p, query, query if key is None else key, value, module)
    if name == "MultiHeadAttention":
        return standard(*inputs, **masks), None, None
    if name == "MixtureOfAttentiveExperts":
        return *mae(*inputs, padding, key is not None, **masks), None
    if name == "MixtureOfHeads":
        return *moh(*inputs, **masks), moh_loss(p, query, module, padding)
    if name == "MixtureOfAttentionHeads":
        return *moa(*inputs, **masks), moa_loss(p, query, module, padding)
    systems = {"GatedAttention": gated, "DifferentialAttention": differential}
    systems |= {"AgreementAttention": agreement, "BranchedAttention": branched}
    return *systems[name](*inputs, **masks), None


def is_hidden(mask: Tensor | None) -> Tensor | None:
    """Where a mask lets nothing through."""
    return mask if mask is None or mask.dtype == torch.bool else mask <= -1000


def softmax(row: list[Tensor]) -> list[Tensor]:
    largest = max(float(x.detach()) for x in row)
    exponentials = [torch.exp(x - largest) for x in row]
    total = sum(exponentials)
    return [x / total for x in exponentials]


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def linear(p: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    y = p[f"{name}.weight"] @ x
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def slices(x: Tensor, number: int) -> list[Tensor]:
    return list(x.split(len(x) // number))


def norm(x: Tensor, weight: Any, bias: Tensor | None, eps: float) -> Tensor:
    """(x − mean) / √(variance + ε) · weight + bias; without a bias x / √(mean x² + ε) · weight."""
    centred = x if bias is None else x - x.mean()
    normal = centred / torch.sqrt((centred * centred).mean() + eps)
    return normal * weight + (0.0 if bias is None else bias)


def layer_norm(p: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return norm(x, p[f"{name}.weight"], p.get(f"{name}.bias"), 1e-5)


def activation(name: str, x: Tensor) -> Tensor:
    """That of a feed-forward; Φ is the normal distribution, or what GPT-2 takes for it.

    SwiGLU and GEGLU multiply the second half of the entries by the SiLU or GELU of the first.
    """
    if name in ("swiglu", "geglu"):
        gate, units = slices(x, 2)
        return units * activation("silu" if name == "swiglu" else "gelu", gate)
    if name == "gelu-tanh":
        return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    if name == "gelu":
        return x * (1 + torch.erf(x / math.sqrt(2))) / 2
    if name == "silu":
        return x * sigmoid(x)
    return torch.where(x > 0, x, {"relu": 0.0, "leaky-relu": 0.01}[name] * x)


# Attention


def mask_at(b, head, t, s, heads, key_padding_mask=None, attn_mask=None, is_causal=False) -> float:
    """What is added to the logit of query t for key s; -inf if it may not attend."""
    if is_causal and s > t:
        return NEVER
    entries = [] if key_padding_mask is None else [key_padding_mask[b, s]]
    if attn_mask is not None and attn_mask.dim() == 2:
        entries.append(attn_mask[t, s])
    elif attn_mask is not None and attn_mask.dim() == 3:
        entries.append(attn_mask[b * heads + head, t, s])
    elif attn_mask is not None:
        entries.append(attn_mask[b, head if attn_mask.size(1) > 1 else 0, t, s])
    hides = [NEVER if x else 0.0 for x in entries if x.dtype == torch.bool]
    return sum(hides) + sum(float(x) for x in entries if x.dtype != torch.bool)


def read(query: Tensor, keys: list[Tensor], values: list[Tensor], biases: list[float]) -> Tensor:
    """softmax(q kᵀ / √head_dim + bias) v of one head and query; zeros if nothing is attended."""
    attended = [s for s, bias in enumerate(biases) if bias > NEVER]
    if not attended:
        return torch.zeros_like(query)
    weights = softmax([query @ keys[s] / math.sqrt(len(query)) + biases[s] for s in attended])
    return sum(w * values[s] for w, s in zip(weights, attended, strict=True))


def turned(x: Tensor, position: int, base: float) -> Tensor:
    """Entries i and i + half of a head, turned by the angle position · base^(-i / half)."""
    half, out = len(x) // 2, list(x)
    for i in range(half):
        angle = position * base ** (-i / half)
        cosine, sine = math.cos(angle), math.sin(angle)
        out[i] = x[i] * cosine - x[i + half] * sine
        out[i + half] = x[i + half] * cosine + x[i] * sine
    return torch.stack(out)


def placed(p: dict[str, Any], name: str, heads: list[Tensor], position: int) -> list[Tensor]:
    """Queries or keys of one position, normed and turned where there is a norm and a base."""
    if f"{name}.weight" in p:
        heads = [norm(x, p[f"{name}.weight"], None, p["eps"]) for x in heads]
    return [turned(x, position, p["rotary"]) for x in heads] if "rotary" in p else heads


def keys_and_values(p, key, value, number) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """Of each head of keys the keys and the values of all positions."""
    ks = [placed(p, "k_norm", slices(linear(p, "k_proj", x), number), s) for s, x in enumerate(key)]
    vs = [slices(linear(p, "v_proj", x), number) for x in value]
    return [[k[i] for k in ks] for i in range(number)], [[v[i] for v in vs] for i in range(number)]


def heads_read(p, query, key, value, heads, b, t, **masks) -> list[Tensor]:
    """oⱼ of each head, for query t of row b; `query`, `key` and `value` are rows."""
    q = placed(p, "q_norm", slices(linear(p, "q_proj", query[t]), heads), t)
    key_heads = len(p["k_proj.weight"]) // len(q[0])
    ks, vs = keys_and_values(p, key, value, key_heads)
    biases = [[mask_at(b, j, t, s, heads, **masks) for s in range(len(key))] for j in range(heads)]
    shared = [j * key_heads // heads for j in range(heads)]  # the head of keys of each head
    return [read(q[j], ks[shared[j]], vs[shared[j]], biases[j]) for j in range(heads)]


def head_outputs(p, query, key, value, heads, b, t, **masks) -> list[Tensor]:
    """oⱼWⱼ of each head, for query t of row b."""
    outputs = heads_read(p, query[b], key[b], value[b], heads, b, t, **masks)
    weights = p["out_proj.weight"].split(len(outputs[0]), dim=1)
    return [w @ o for w, o in zip(weights, outputs, strict=True)]


def output_bias(p: dict[str, Tensor]) -> Tensor | float:
    return p.get("out_proj.bias", 0.0)


def over_queries(query: Tensor, compute) -> tuple[Tensor, Tensor]:
    """What `compute` gives of each row and position: an output and its decision."""
    rows = [[compute(b, t) for t in range(query.size(1))] for b in range(query.size(0))]
    outputs = torch.stack([torch.stack([y for y, _ in row]) for row in rows])
    return outputs, torch.stack([torch.stack([w for _, w in row]) for row in rows]).detach()


def standard(p, query, key, value, module, **masks) -> Tensor:
    """Σⱼ oⱼWⱼ (equation 4 of the MAE paper)."""

    def compute(b, t):
        parts = head_outputs(p, query, key, value, module.num_heads, b, t, **masks)
        return sum(parts) + output_bias(p), ZERO

    return over_queries(query, compute)[0]


# MAE


def gate(p: dict[str, Tensor], inputs: list[Tensor], embed_dim: int) -> list[Tensor]:
    """softmax(W₂ u + b₂), u = tanh(W₁ BatchNorm(mean of inputs) + b₁), as in evaluation."""
    x = sum(inputs) / len(inputs) if inputs else torch.zeros(embed_dim, dtype=torch.float64)
    x = (x - p["gate.norm.running_mean"]) / torch.sqrt(p["gate.norm.running_var"] + 1e-5)
    x = x * p["gate.norm.weight"] + p["gate.norm.bias"]
    return softmax(list(linear(p, "gate.output", torch.tanh(linear(p, "gate.hidden", x)))))


def mae_sight(query, padding, causal, heads=1, **masks) -> list[list[list[int]]]:
    """The positions that each position sees: real ones that some head may attend to."""

    def is_seen(b, t, s):
        if (padding is not None and padding[b, s]) or (causal and s > t):
            return False
        return any(mask_at(b, j, t, s, heads, **masks) > -1000 for j in range(heads))

    time = range(query.size(1))
    return [[[s for s in time if is_seen(b, t, s)] for t in time] for b in range(query.size(0))]


def mae(p, query, key, value, module, padding, is_cross, **masks) -> tuple[Tensor, Tensor]:
    """Σ_S g_S f_S, f_S = h/(h−t) Σ_{j∉S} oⱼWⱼ, expert by expert (equations 5 and 6), and the gates.

    A position has a gate of its own where queries are causal, or a mask says what each sees.
    """
    causal = masks.get("is_causal", False) or (is_cross and module.causal_queries)
    sight = mae_sight(query, padding, causal)
    by_position = causal or (not is_cross and masks.get("attn_mask") is not None)
    if not is_cross:
        sight = mae_sight(query, padding, causal, module.num_heads, **masks)
    h, dropped = module.num_heads, module.dropped_heads
    without = list(combinations(range(h), dropped))

    def compute_gates(b, t):
        if module.gate is None:
            return [ZERO + 1 / len(without)] * len(without)
        window = module.gate_window if by_position and module.gate_window else len(query[b])
        return gate(p, [query[b, s] for s in sight[b][t][-window:]], query.size(2))

    def compute(b, t):
        gates = compute_gates(b, t)
        parts = head_outputs(p, query, key, value, h, b, t, **masks)
        mixed = output_bias(p)
        for g, left_out in zip(gates, without, strict=True):
            mixed = mixed + g * h / (h - dropped) * sum(
                parts[j] for j in range(h) if j not in left_out
            )
        return mixed, torch.stack(gates)

    output, weights = over_queries(query, compute)
    return output, weights if by_position else weights[:, 0]


# Gates, differences and choices of heads


def gated(p, query, key, value, module, **masks) -> tuple[Tensor, Tensor]:
    """Σⱼ (oⱼ ⊙ gateⱼ(x)) Wⱼ, element by element, and the mean gate of each head."""
    heads, size = module.num_heads, module.head_dim

    def scale(x, row):
        logit = p["gate_logits"][row] if "gate_logits" in p else p["gate_proj.weight"][row] @ x
        return (2.0 if module.neutral_start else 1.0) * sigmoid(logit)

    def compute(b, t):
        y, means = output_bias(p), []
        for j, o in enumerate(heads_read(p, query[b], key[b], value[b], heads, b, t, **masks)):
            rows = [j * size + e if module.elementwise else j for e in range(size)]
            gates = [scale(query[b, t], row) for row in rows]
            for e, entry_gate in enumerate(gates):
                y = y + entry_gate * o[e] * p["out_proj.weight"][:, j * size + e]
            means.append(sum(gates) / size)
        return y, torch.stack(means)

    return over_queries(query, compute)


def differential(p, query, key, value, module, **masks) -> tuple[Tensor, Tensor]:
    """Σⱼ (oⱼ − σ(λⱼ(x)) o′ⱼ) Wⱼ, where o′ⱼ reads with the second query, and 1 − σ(λⱼ(x))."""
    second = {**p, "q_proj.weight": p["second_q_proj.weight"]}
    if "second_q_proj.bias" in p:
        second["q_proj.bias"] = p["second_q_proj.bias"]

    def compute(b, t):
        inputs = (query, key, value, module.num_heads, b, t)
        outputs = [head_outputs(maps, *inputs, **masks) for maps in (p, second)]
        shares = [sigmoid(row @ query[b, t]) for row in p["lambda_proj.weight"]]
        parts = (o - share * other for o, other, share in zip(*outputs, shares, strict=True))
        return sum(parts) + output_bias(p), 1 - torch.stack(shares)

    return over_queries(query, compute)


def most_likely(probabilities: list[Tensor], number: int) -> list[int]:
    order = sorted(range(len(probabilities)), key=lambda i: -float(probabilities[i].detach()))
    return order[:number]


def moh(p, query, key, value, module, **masks) -> tuple[Tensor, Tensor]:
    """Σⱼ gⱼ oⱼWⱼ, shared heads first, and the gates."""

    def compute_gates(x):
        probabilities = softmax(list(p["routed_router.weight"] @ x))
        chosen = most_likely(probabilities, module.top_k)
        total = sum(probabilities[i] for i in chosen) / module.top_k
        factor = 1 / total if module.scaled else 1.0
        routed = [factor * g if i in chosen else 0 * g for i, g in enumerate(probabilities)]
        if module.shared_heads == 0:
            return routed
        shared = [ZERO + 1]
        if module.shared_heads > 1:
            shared = softmax(list(p["shared_router.weight"] @ x))
        alpha = softmax(list(p["kind_router.weight"] @ x))
        if module.scaled:
            shared, alpha = [module.shared_heads * g for g in shared], [2 * a for a in alpha]
        return [alpha[0] * g for g in shared] + [alpha[1] * g for g in routed]

    def compute(b, t):
        gates = compute_gates(query[b, t])
        parts = head_outputs(p, query, key, value, module.num_heads, b, t, **masks)
        mixed = sum(g * part for g, part in zip(gates, parts, strict=True))
        return mixed + output_bias(p), torch.stack(gates)

    return over_queries(query, compute)


def real_tokens(query: Tensor, padding: Tensor | None) -> list[Tensor]:
    places = [(b, t) for b in range(query.size(0)) for t in range(query.size(1))]
    return [query[place] for place in places if padding is None or not padding[place]]


def loads(weight: Tensor, tokens: list[Tensor], top_k: int) -> list[tuple[int, Tensor]]:
    """Of each unit of a router, how many tokens choose it, and its summed probability."""
    probabilities = [softmax(list(weight @ x)) for x in tokens]
    chosen = [most_likely(row, top_k) for row in probabilities]
    counts = [sum(i in row for row in chosen) for i in range(len(weight))]
    return [(n, sum((row[i] for row in probabilities), ZERO)) for i, n in enumerate(counts)]


def moh_loss(p, query, module, padding=None) -> Tensor:
    """β Σᵢ Pᵢ fᵢ over the routed heads, of the real tokens of all rows."""
    tokens = real_tokens(query, padding)
    head_loads = loads(p["routed_router.weight"], tokens, module.top_k)
    loss = sum((f * big_p for f, big_p in head_loads), ZERO) / max(1, len(tokens)) ** 2
    return module.balance_coef * (len(head_loads) if module.scaled else 1) * loss


# Routing by agreement


def agreement(p, query, key, value, module, **masks) -> tuple[Tensor, Tensor]:
    """The routed capsules of each query, and how much each head counts.

    Ω_h is ReLU(o_h W_h + b_h), or a map of a layer norm of all heads; the votes are Ω_h W_{h→}.
    """
    heads = module.num_heads
    relu = module.routing == "em" or module.capsule_inputs == "head"

    def compute(b, t):
        outputs = heads_read(p, query[b], key[b], value[b], heads, b, t, **masks)
        if "capsule_norm.weight" in p:
            outputs = [layer_norm(p, "capsule_norm", torch.cat(outputs))] * heads
        votes = []
        for h, o in enumerate(outputs):
            i = h % len(p["capsule_weight"])
            z = o @ p["capsule_weight"][i]
            z = z + p["capsule_bias"][i] if "capsule_bias" in p else z
            vote = (z.clamp(min=0) if relu else z) @ p["vote_weight"][h]
            votes.append(slices(vote, module.num_capsules))
        if module.routing == "simple":
            over_heads = module.normalize == "heads"
            return simple_routing(votes, module.iterations, module.squash, over_heads)
        betas = (
            p.get(x, ZERO.reshape(1)).expand(module.num_capsules) for x in ("beta_a", "beta_u")
        )
        options = (module.iterations, module.inverse_temperature, module.activation)
        return em_routing(votes, *options, *betas)

    return over_queries(query, compute)


def normalized(c: list[list[Tensor]]) -> list[list[Tensor]]:
    """C_{h→n} / Σ_h C_{h→n}."""
    sums = [sum(row[n] for row in c) for n in range(len(c[0]))]
    return [[row[n] / sums[n] for n in range(len(row))] for row in c]


def mean_share(shares: list[list[Tensor]]) -> Tensor:
    return torch.stack([sum(row) / len(row) for row in shares])


def simple_routing(v, iterations, squash, over_heads) -> tuple[Tensor, Tensor]:
    """Algorithm 1 for the votes v[h][n] of one token; also each head's mean share."""
    heads, capsules = range(len(v)), range(len(v[0]))
    b = [[ZERO] * len(capsules) for _ in heads]
    for _ in range(iterations):
        c = [softmax(row) for row in b]
        if over_heads:
            columns = [softmax([row[n] for row in b]) for n in capsules]
            c = [[columns[n][h] for n in capsules] for h in heads]
        shares, output = normalized(c), []
        for n in capsules:
            omega = sum(shares[h][n] * v[h][n] for h in heads)
            square = (omega * omega).sum()
            if squash and square > 0:
                omega = square / (1 + square) * (omega / torch.sqrt(square))
            output.append(0 * omega if squash and square == 0 else omega)
        b = [[b[h][n] + (output[n] * v[h][n]).sum() for n in capsules] for h in heads]
    return torch.cat(output), mean_share(shares)


def em_routing(v, iterations, limit, activation, beta_a, beta_u) -> tuple[Tensor, Tensor]:
    """Algorithm 2 for the votes v[h][n] of one token; also each head's mean share.

    The C of a capsule may all be too small for a number, while their shares are not.
    """
    heads, capsules = range(len(v)), range(len(v[0]))
    log_c = [[ZERO - math.log(len(capsules))] * len(capsules) for _ in heads]
    for i in range(iterations):
        rate = limit * (1 - 0.95 ** (i + 1))
        columns = [softmax([row[n] for row in log_c]) for n in capsules]
        mus, logits, costs = [], [], []
        for n, shares in enumerate(columns):
            total = sum(torch.exp(log_c[h][n]) for h in heads)
            mu = sum(shares[h] * v[h][n] for h in heads)
            variance = sum(shares[h] * (v[h][n] - mu) ** 2 for h in heads).clamp(min=1e-6)
            sigma = torch.sqrt(variance)
            chi = (torch.log(sigma) + (1 + math.log(2 * math.pi)) / 2).sum() * total
            mus.append(mu)
            costs.append(beta_u[n] * total + chi)
            scale = -torch.log(sigma * math.sqrt(2 * math.pi))
            logits.append([(scale - (v[h][n] - mu) ** 2 / (2 * variance)).sum() for h in heads])
        if activation == "standardised":
            rate = 1 + 2 * i / max(1, iterations - 1)
            mean = sum(costs) / len(costs)
            deviation = torch.sqrt(sum((x - mean) ** 2 for x in costs) / len(costs) + 1e-9)
            costs = [(x - mean) / deviation for x in costs]
        log_a = [-torch.logaddexp(ZERO, -rate * (beta_a[n] - costs[n])) for n in capsules]
        log_a = [ZERO for _ in capsules] if activation == "none" else log_a
        rows = [[log_a[n] + logits[n][h] for n in capsules] for h in heads]
        log_c = [[x - torch.logsumexp(torch.stack(row), 0) for x in row] for row in rows]
    shares = [[columns[n][h] for n in capsules] for h in heads]
    return torch.cat([torch.exp(log_a[n]) * mus[n] for n in capsules]), mean_share(shares)


# The Weighted Transformer


def branched(p, query, key, value, module, **masks) -> tuple[Tensor, Tensor]:
    """Σᵢ αᵢ FFN(κᵢ oᵢWᵢ), branch by branch: equations 5 to 7; and α.

    With residual sums LN(Σᵢ αᵢzᵢ + M Σᵢ αᵢ FFNᵢ(zᵢ)), zᵢ = LN(x + aᵢ), aᵢ = Mκᵢ oᵢWᵢ; with pre-norm
    x + M Σᵢ αᵢ (aᵢ + FFNᵢ(LN(x + aᵢ))).
    """
    heads = module.num_heads
    kappa, alpha = branch_weights(p, heads, module)
    residual = module.inner == "residual"
    pre_norm = residual and module.pre_norm
    factor = heads if residual and module.ffn == "split" else 1

    def fed_forward(i, z):
        wide, down = linear(p, "ffn_up", z), p["ffn_down.weight"]
        if module.ffn != "shared":  # other parts of the hidden layer are those of other branches
            wide, down = slices(wide, heads)[i], down.chunk(heads, 1)[i]
        fed = down @ activation(module.ffn_activation, wide)
        return factor * alpha[i] * (fed + p.get("ffn_down.bias", 0.0) / factor)

    def compute(b, t):
        x, stream = query[b, t], torch.zeros(query.size(2), dtype=torch.float64)
        # In self-attention all that is read is normed first.
        rows = [
            [layer_norm(p, "norm1", x) for x in y[b]] if pre_norm and y is query else list(y[b])
            for y in (query, key, value)
        ]
        fed = stream
        for i, o in enumerate(heads_read(p, *rows, heads, b, t, **masks)):
            z = kappa[i] * (o @ p["branch_output"][i])
            if residual:
                added = heads * z
                z = layer_norm(p, "norm2" if pre_norm else "norm1", x + added)
                stream = stream + alpha[i] * (heads * added if pre_norm else z)
            fed = fed + fed_forward(i, z)
        if residual:
            fed = x + stream + fed if pre_norm else layer_norm(p, "norm2", stream + fed)
        return fed, ZERO

    return over_queries(query, compute)[0], torch.stack(alpha).detach()


def branch_weights(p, branches, module) -> tuple[list[Tensor], list[Tensor]]:
    """κ and α outside training, entry by entry."""

    def weights(name):
        if module.weights in ("random", "uniform"):
            return [ZERO + 1 / branches] * branches
        return list(p[name]) if module.weights in ("simplex", "fixed") else softmax(list(p[name]))

    kappa, alpha = weights("alpha" if module.merged else "kappa"), weights("alpha")
    if module.top_k is not None:
        kept = most_likely(alpha, module.top_k)
        total = sum(alpha[i] for i in kept)
        alpha = [alpha[i] / total if i in kept else 0 * alpha[i] for i in range(branches)]
    return kappa, alpha


# MoA


def moa(p, query, key, value, module, **masks) -> tuple[Tensor, Tensor]:
    """y = Σ_{i∈G(x)} wᵢ oᵢWᵢ (equations 6 to 12), and w; masks are the same for all experts.

    Each expert has a head for each shared head of keys.
    """
    key_heads = len(p["k_proj.weight"]) // module.head_dim

    def compute(b, t):
        probabilities = softmax(list(p["router.weight"] @ query[b, t]))
        chosen = most_likely(probabilities, module.top_k)
        total = sum(probabilities[i] for i in chosen).detach()
        ks, vs = keys_and_values(p, key[b], value[b], key_heads)
        biases = [mask_at(b, 0, t, s, module.top_k, **masks) for s in range(key.size(1))]
        y, weights = torch.zeros(query.size(2), dtype=torch.float64), [ZERO] * len(probabilities)
        for i in chosen:
            q = placed(p, "q_norm", slices(query[b, t] @ p["expert_query"][i], key_heads), t)
            outputs = [read(q[h], ks[h], vs[h], biases) for h in range(key_heads)]
            weights[i] = probabilities[i] / (total if module.normalize_weights else 1.0)
            y = y + weights[i] * (torch.cat(outputs) @ p["expert_output"][i])
        return y, torch.stack(weights)

    return over_queries(query, compute)


def moa_loss(p, query, module, padding=None) -> Tensor:
    """α times the balance loss, of the batch or the mean of its sequences, + β times the z-loss."""
    tokens = real_tokens(query, padding)
    groups = [tokens]
    if module.balance == "sequence":
        pads = [None] * len(query) if padding is None else [pad[None] for pad in padding]
        groups = [real_tokens(x[None], pad) for x, pad in zip(query, pads, strict=True)]
    groups = [group for group in groups if group]
    balance = sum((balance_loss(p, group, module) for group in groups), ZERO) / max(1, len(groups))
    logits = [p["router.weight"] @ x for x in tokens]
    squares = sum((torch.log(torch.exp(row).sum()) ** 2 for row in logits), ZERO)
    loss = module.balance_coef * balance + module.z_coef * squares / max(1, len(tokens))
    return loss / max(1, len(tokens)) if module.per_batch else loss


def balance_loss(p, tokens, module) -> Tensor:
    """E Σᵢ fᵢ/Σf · Pᵢ/ΣP (equations 13 to 15)."""
    expert_loads = loads(p["router.weight"], tokens, module.top_k)
    all_f, all_p = (sum(column) for column in zip(*expert_loads, strict=True))
    return len(expert_loads) * sum(f / all_f * big_p / all_p for f, big_p in expert_loads)


# TIM


def with_linear_maps(p: dict[str, Tensor]) -> dict[str, Tensor]:
    """GroupLinear(h, W, n_s) = [h_j W_j] is a linear map whose matrix is block diagonal."""
    maps = dict(p)
    for name, x in p.items():
        if x.dim() == 3:
            maps[name] = torch.block_diag(*x.mT)
            bias = f"{name.removesuffix('weight')}bias"
            maps |= {bias: p[bias].flatten()} if bias in p else {}
    return maps


def child_parameters(p: dict[str, Tensor], name: str) -> dict[str, Any]:
    """The maps of one of the attentions, by the names that they have in the other systems."""
    prefix = f"{name}."
    return {n.removeprefix(prefix): x for n, x in p.items() if n.startswith(prefix)}


def grouped_norm(p: dict[str, Tensor], name: str, h: Tensor) -> Tensor:
    """norm(h, n_s) of one position, mechanism by mechanism."""
    weight, bias = p[f"{name}.weight"], p.get(f"{name}.bias")
    parts = enumerate(slices(h, len(weight)))
    return torch.cat(
        [norm(x, weight[j], None if bias is None else bias[j], 1e-5) for j, x in parts]
    )


def tim_attention(p, queries, memory, heads, b, t, **masks) -> Tensor:
    """Step 2: Attention(Q, K, V, n_s H), then GroupLinear with W^O, at position t of row b."""
    return linear(
        p, "out_proj", torch.cat(heads_read(p, queries, memory, memory, heads, b, t, **masks))
    )


def tim_exchange(p: dict[str, Tensor], h: Tensor, mechanisms: int, heads: int) -> Tensor:
    """Step 3 at one position: mechanisms attend to mechanisms."""
    # Each mechanism's heads, the first mechanism's first.
    q, k, v = (slices(linear(p, f"{x}_proj", h), mechanisms * heads) for x in "qkv")
    nothing, out = [0.0] * mechanisms, []
    for i in range(mechanisms * heads):
        others = range(i % heads, mechanisms * heads, heads)
        out.append(read(q[i], [k[j] for j in others], [v[j] for j in others], nothing))
    return linear(p, "out_proj", torch.cat(out))


def tim(p, x, memory, module, base, memory_key_padding_mask=None, **masks):
    """A layer of independent mechanisms (algorithm 1), and the competition c if there is one."""
    eps = p.pop("eps")
    p, heads, mechanisms = with_linear_maps(p), module.num_heads, module.num_mechanisms
    self_p, cross_p = (child_parameters(p, f"{site}_attention") for site in ("self", "cross"))
    self_p["eps"] = cross_p["eps"] = eps
    if base is not None:
        self_p["rotary"] = base

    def sublayer(name, rows, update):
        """`update` maps the rows that it is given, and a position, to what is added there."""
        normed = [grouped_norm(p, name, h) for h in rows] if module.pre_norm else rows
        added = [h + update(normed, t) for t, h in enumerate(rows)]
        return added if module.pre_norm else [grouped_norm(p, name, h) for h in added]

    def feed_forward(h):
        hidden = slices(linear(p, "ffn_up", h), mechanisms)
        active = [activation(module.ffn_activation, part) for part in hidden]
        return linear(p, "ffn_down", torch.cat(active))

    def row(b):
        competition = []

        def self_attention(h, t):
            output = tim_attention(self_p, h, h, heads, b, t, **masks)
            if "competition.weight" not in p:
                return output
            competition.append(torch.stack(softmax(list(linear(p, "competition", x[b, t])))))
            parts = slices(output, len(competition[t]))
            return torch.cat([c * part for c, part in zip(competition[t], parts, strict=True)])

        def cross_attention(h, t):
            mask = {"key_padding_mask": memory_key_padding_mask}
            return tim_attention(cross_p, h, memory[b], heads, b, t, **mask)

        h = sublayer("norm1", list(x[b]), self_attention)
        h = h if memory is None else sublayer("cross_norm", h, cross_attention)
        if module.exchange is not None:
            exchange, number = child_parameters(p, "exchange"), module.exchange.num_heads
            h = sublayer("norm2", h, lambda h, t: tim_exchange(exchange, h[t], mechanisms, number))
        h = sublayer("norm3", h, lambda h, t: feed_forward(h[t]))
        return torch.stack(h), torch.stack(competition).detach() if competition else None

    outputs, competitions = zip(*(row(b) for b in range(len(x))), strict=True)
    decisions = None if competitions[0] is None else torch.stack(competitions)
    return torch.stack(outputs), decisions
