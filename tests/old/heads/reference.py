"""The systems as plain loops, straight from the papers' equations, in float64.

Nothing here imports headwise: parameters come by the names that the library promises.
"""

import math
from itertools import combinations

import torch
from torch import Tensor

NEVER = float("-inf")


def attention_bias(b, head, t, s, heads, key_padding_mask=None, attn_mask=None, is_causal=False):
    """What is added to the logit of query t for key s; -inf if it may not attend."""
    bias = 0.0
    if is_causal and s > t:
        return NEVER
    entries = []
    if key_padding_mask is not None:
        entries.append(key_padding_mask[b, s])
    if attn_mask is not None:
        if attn_mask.dim() == 2:
            entries.append(attn_mask[t, s])
        elif attn_mask.dim() == 3:
            entries.append(attn_mask[b * heads + head, t, s])
        else:
            entries.append(attn_mask[b, head if attn_mask.size(1) > 1 else 0, t, s])
    for entry in entries:
        if entry.dtype == torch.bool:
            entry = NEVER if entry else 0.0
        bias = bias + float(entry)
    return bias


def read(query: Tensor, keys: Tensor, values: Tensor, biases: list[float]) -> Tensor:
    """softmax(q kᵀ / √head_dim + bias) v of one head and one query; zeros if nothing is attended.

    query (head_dim,), keys and values (time, head_dim).
    """
    attended = [s for s, bias in enumerate(biases) if bias > NEVER]
    if not attended:
        return torch.zeros_like(values[0])
    scores = {s: (query @ keys[s]) / math.sqrt(len(query)) + biases[s] for s in attended}
    largest = max(float(score.detach()) for score in scores.values())
    exponentials = {s: torch.exp(score - largest) for s, score in scores.items()}
    total = sum(exponentials.values())
    return sum(exponentials[s] / total * values[s] for s in attended)


def linear(p: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    y = p[f"{name}.weight"] @ x
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def slices(x: Tensor, heads: int) -> list[Tensor]:
    return list(x.split(len(x) // heads))


def rms_norm(x: Tensor, weight: Tensor | float, eps: float) -> Tensor:
    """x / √(mean x² + ε) · weight."""
    return x / torch.sqrt((x * x).mean() + eps) * weight


def turned(x: Tensor, position: int, base: float) -> Tensor:
    """Entries i and i + half of a head, turned by the angle position · base^(-i / half)."""
    half, out = len(x) // 2, list(x)
    for i in range(half):
        angle = position * base ** (-i / half)
        cosine, sine = math.cos(angle), math.sin(angle)
        out[i] = x[i] * cosine - x[i + half] * sine
        out[i + half] = x[i + half] * cosine + x[i] * sine
    return torch.stack(out)


def placed(p: dict[str, Tensor], name: str, heads: list[Tensor], position: int) -> list[Tensor]:
    """Queries or keys of one position, normed and turned where there is a norm and a base."""
    if f"{name}.weight" in p:
        heads = [rms_norm(x, p[f"{name}.weight"], 1e-6) for x in heads]
    return [turned(x, position, p["rotary"]) for x in heads] if "rotary" in p else heads


def heads_read(p, query, key, value, heads, b, t, **masks) -> list[Tensor]:
    """oⱼ of each head, for query t of row b; `query`, `key` and `value` are rows."""
    q = placed(p, "q_norm", slices(linear(p, "q_proj", query[t]), heads), t)
    kept = len(p["k_proj.weight"]) // len(q[0])  # heads of keys
    ks = [placed(p, "k_norm", slices(linear(p, "k_proj", x), kept), s) for s, x in enumerate(key)]
    vs = [slices(linear(p, "v_proj", x), kept) for x in value]
    out = []
    for j in range(heads):
        biases = [attention_bias(b, j, t, s, heads, **masks) for s in range(len(key))]
        i = j * kept // heads
        out.append(read(q[j], _stack(ks, i), _stack(vs, i), biases))
    return out


def _stack(rows: list[list[Tensor]], head: int) -> Tensor:
    return torch.stack([row[head] for row in rows]) if rows else torch.zeros(0, 1).double()


def head_outputs(p, query, key, value, heads, b, t, **masks) -> list[Tensor]:
    """oⱼWⱼ of each head, for query t of row b."""
    read_by = heads_read(p, query[b], key[b], value[b], heads, b, t, **masks)
    size = p["out_proj.weight"].size(1) // heads
    weights = p["out_proj.weight"].split(size, dim=1)
    return [w @ o for w, o in zip(weights, read_by, strict=True)]


def _over_queries(query: Tensor, compute) -> Tensor:
    rows = [[compute(b, t) for t in range(query.size(1))] for b in range(query.size(0))]
    return torch.stack([torch.stack(row) for row in rows])


def _bias(p: dict[str, Tensor]) -> Tensor | float:
    return p.get("out_proj.bias", 0.0)


def standard(p, query, key, value, heads, **masks) -> Tensor:
    """Σⱼ oⱼWⱼ (equation 4 of the MAE paper)."""

    def compute(b, t):
        return sum(head_outputs(p, query, key, value, heads, b, t, **masks)) + _bias(p)

    return _over_queries(query, compute)


def expert(parts: list[Tensor], left_out: tuple[int, ...]) -> Tensor:
    """h/(h−t) Σ_{j∉S} oⱼWⱼ: equation 5, for any number t of heads left out."""
    h, t = len(parts), len(left_out)
    return h / (h - t) * sum(parts[j] for j in range(h) if j not in left_out)


def gate(
    p: dict[str, Tensor], inputs: list[Tensor], embed_dim: int, root: bool, scales: bool
) -> Tensor:
    """softmax(W₂ u + b₂), u = tanh(W₁ BatchNorm(mean of inputs) + b₁), batch norm as in evaluation;
    or the scales of heads, 2σ(W₃ u + b₃).
    """
    x = sum(inputs) / len(inputs) if inputs else torch.zeros(embed_dim, dtype=torch.float64)
    x = (x - p["gate.norm.running_mean"]) / torch.sqrt(p["gate.norm.running_var"] + 1e-5)
    x = x * max(1, len(inputs)) ** 0.5 if root else x
    x = x * p["gate.norm.weight"] + p["gate.norm.bias"]
    hidden = torch.tanh(linear(p, "gate.hidden", x))
    if scales:
        return 2 / (1 + torch.exp(-linear(p, "gate.scale", hidden)))
    logits = linear(p, "gate.output", hidden)
    exponentials = torch.exp(logits - logits.max().detach())
    return exponentials / exponentials.sum()


def mae_sight(query, padding, causal, heads=1, **masks) -> list[list[list[int]]]:
    """The positions that each position sees: real ones that some head may attend to."""

    def is_seen(b, t, s):
        if (padding is not None and padding[b, s]) or (causal and s > t):
            return False
        return any(attention_bias(b, j, t, s, heads, **masks) > -1000 for j in range(heads))

    time = range(query.size(1))
    return [[[s for s in time if is_seen(b, t, s)] for t in time] for b in range(query.size(0))]


def masked_mean(x: Tensor, seen: Tensor, window: int | None = None) -> Tensor:
    """The mean of what each position sees, `(batch, time, time)`, or of the last `window` of it."""
    out = torch.zeros_like(x)
    for b in range(x.size(0)):
        for t in range(x.size(1)):
            kept = [s for s in range(x.size(1)) if seen[b, t, s]][-(window or x.size(1)) :]
            if kept:
                out[b, t] = sum(x[b, s] for s in kept) / len(kept)
    return out


def mae_gates(p, query, sight, window=None, root=False, scales=False) -> list[list[Tensor]]:
    """The gate of each row and position: of the mean of what it sees, or of the last of that; or
    its scales of heads.
    """

    def inputs(b, t):
        seen = sight[b][t]
        return [query[b, s] for s in (seen[-window:] if window else seen)]

    batch, time, dim = query.shape
    return [[gate(p, inputs(b, t), dim, root, scales) for t in range(time)] for b in range(batch)]


def mae(p, query, key, value, heads, dropped, gates, scales=None, **masks) -> Tensor:
    """Σ_S g_S f_S, expert by expert (equation 6), of heads that may be scaled."""

    def compute(b, t):
        parts = head_outputs(p, query, key, value, heads, b, t, **masks)
        if scales is not None:
            parts = [scale * part for scale, part in zip(scales[b][t], parts, strict=True)]
        experts = [expert(parts, left_out) for left_out in combinations(range(heads), dropped)]
        mixed = sum(g * f for g, f in zip(gates[b][t], experts, strict=True))
        return mixed + _bias(p)

    return _over_queries(query, compute)


def head_gate(p, x, heads, j, row, module) -> Tensor:
    """One number of the gate of head j, of one position x: that of one row of V."""
    weights = p["gate_proj.weight"][row]
    first = j * (len(x) // heads) if module.gate_inputs == "head" else 0
    logit = weights @ x[first : first + len(weights)]  # as much as the gate sees
    if "gate_proj.bias" in p:
        logit = logit + p["gate_proj.bias"][row]
    if module.gate_activation == "softplus":
        base = 2.0 if module.neutral_start else math.e
        return torch.log(1 + base**logit) / math.log(base)
    doubled = module.neutral_start or module.gate_activation == "doubled-sigmoid"
    return (2.0 if doubled else 1.0) / (1 + torch.exp(-logit))


def gated(p, query, key, value, heads, module, **masks) -> tuple[Tensor, Tensor]:
    """Σⱼ (oⱼ ⊙ gateⱼ(x)) Wⱼ, element by element, and the mean gate of each head."""
    size = p["out_proj.weight"].size(1) // heads
    headwise = len(p["gate_proj.weight"]) == heads
    weights = torch.zeros(*query.shape[:2], heads, dtype=query.dtype)

    def compute(b, t):
        y = torch.zeros(query.size(2), dtype=torch.float64)
        read_by = heads_read(p, query[b], key[b], value[b], heads, b, t, **masks)
        for j, o in enumerate(read_by):
            for e in range(size):
                row = j if headwise else j * size + e
                scale = head_gate(p, query[b, t], heads, j, row, module)
                y = y + scale * o[e] * p["out_proj.weight"][:, j * size + e]
                weights[b, t, j] += scale.detach() / size
        return y + _bias(p)

    return _over_queries(query, compute), weights


def differential(p, query, key, value, heads, **masks) -> tuple[Tensor, Tensor]:
    """Σⱼ (oⱼ − σ(λⱼ(x)) o′ⱼ) Wⱼ, where o′ⱼ reads with the second query, and σ(λⱼ(x))."""
    size = p["out_proj.weight"].size(1) // heads
    second = {**p, "q_proj.weight": p["second_q_proj.weight"]}
    if "second_q_proj.bias" in p:
        second["q_proj.bias"] = p["second_q_proj.bias"]
    weights = torch.zeros(*query.shape[:2], heads, dtype=query.dtype)

    def compute(b, t):
        y = torch.zeros(query.size(2), dtype=torch.float64)
        both = (
            heads_read(each, query[b], key[b], value[b], heads, b, t, **masks)
            for each in (p, second)
        )
        for j, (o, other) in enumerate(zip(*both, strict=True)):
            share = 1 / (1 + torch.exp(-(p["lambda_proj.weight"][j] @ query[b, t])))
            for e in range(size):
                read = o[e] - share * other[e]
                y = y + read * p["out_proj.weight"][:, j * size + e]
            weights[b, t, j] = share.detach()
        return y + _bias(p)

    return _over_queries(query, compute), weights


def moh_router(p, x: Tensor, module) -> tuple[list[int], list[Tensor]]:
    """The routed heads that one token selects, and the probabilities of all."""
    if module.needs_queries:
        queries = slices(linear(p, "q_proj", x), module.num_heads)[module.shared_heads :]
        norms = [sum(n * n for n in q).sqrt() for q in queries]
        mean = sum(norms) / len(norms)
        deviation = (sum((norm - mean) ** 2 for norm in norms) / (len(norms) - 1)).sqrt()
        logits = [norm / deviation for norm in norms]
    else:
        logits = list(p["routed_router.weight"] @ x)
    probabilities = over_capsules(logits)
    by_probability = sorted(
        range(len(probabilities)), key=lambda i: -float(probabilities[i].detach())
    )
    return by_probability[: module.top_k], probabilities


def moh_gates(p, x: Tensor, module) -> list[Tensor]:
    """g of each head at one position, shared heads first (equations of the MoH paper)."""
    chosen, probabilities = moh_router(p, x, module)
    if module.needs_queries:  # 1 or 0, and the gradient of p
        hard = [float(i in chosen) for i in range(len(probabilities))]
        routed = [g + (p_i - p_i.detach()) for g, p_i in zip(hard, probabilities, strict=True)]
        return [torch.ones((), dtype=torch.float64)] * module.shared_heads + routed
    total = sum(probabilities[i] for i in chosen)
    zero = torch.zeros((), dtype=torch.float64)
    routed = [probabilities[i] if i in chosen else zero for i in range(len(probabilities))]
    if module.scaled_gates:
        routed = [g / total * module.top_k for g in routed]
    if module.shared_heads == 0:
        return routed
    shared = [zero + 1]
    if module.shared_heads > 1:
        shared = over_capsules(list(p["shared_router.weight"] @ x))
    alpha = over_capsules(list(p["kind_router.weight"] @ x))
    if module.scaled_gates:
        shared, alpha = [module.shared_heads * g for g in shared], [2 * a for a in alpha]
    return [alpha[0] * g for g in shared] + [alpha[1] * g for g in routed]


def moh(p, query, key, value, heads, module, **masks) -> tuple[Tensor, Tensor]:
    """Σⱼ gⱼ oⱼWⱼ, and the gates."""
    weights = torch.zeros(*query.shape[:2], heads, dtype=query.dtype)

    def compute(b, t):
        gates = moh_gates(p, query[b, t], module)
        weights[b, t] = torch.stack(gates).detach()
        parts = head_outputs(p, query, key, value, heads, b, t, **masks)
        return sum(g * part for g, part in zip(gates, parts, strict=True)) + _bias(p)

    return _over_queries(query, compute), weights


def moh_loss(p, query, module, padding=None) -> Tensor:
    """Σᵢ Pᵢ fᵢ over the routed heads, of the real tokens of all rows."""
    tokens = [
        moh_router(p, query[b, t], module)
        for b in range(query.size(0))
        for t in range(query.size(1))
        if padding is None or not padding[b, t]
    ]
    loss = torch.zeros((), dtype=torch.float64)
    for i in range(module.routed_heads):
        f = sum(i in chosen for chosen, _ in tokens) / max(1, len(tokens))
        loss = loss + f * sum(p_i[i] for _, p_i in tokens) / max(1, len(tokens))
    return loss


def agreement_votes(p, query, key, value, heads, b, t, relu=True, **masks) -> list[Tensor]:
    """Ω_h W_{h→} of each head: equations 5 and 6 of routing by agreement.

    Ω_h is ReLU(o_h W_h + b_h), or the same map of a layer norm of all heads.
    """
    read_by = heads_read(p, query[b], key[b], value[b], heads, b, t, **masks)
    if "capsule_norm.weight" in p:
        read_by = [layer_norm(p, "capsule_norm", torch.cat(read_by))] * heads
    votes = []
    for h, o in enumerate(read_by):
        own = h % p["capsule_weight"].size(0)
        z = o @ p["capsule_weight"][own]
        z = z + p["capsule_bias"][own] if "capsule_bias" in p else z
        votes.append((z.clamp(min=0) if relu else z) @ p["vote_weight"][h])
    return votes


def shares_of(c: list[list[Tensor]]) -> list[list[Tensor]]:
    """C_{h→n} / Σ_h C_{h→n}."""
    sums = [sum(row[n] for row in c) for n in range(len(c[0]))]
    return [[row[n] / sums[n] for n in range(len(row))] for row in c]


def over_capsules(row: list[Tensor]) -> list[Tensor]:
    """A head's weights from their logarithms: they sum to 1 over the capsules."""
    largest = max(float(x.detach()) for x in row)
    exponentials = [torch.exp(x - largest) for x in row]
    return [x / sum(exponentials) for x in exponentials]


def over_heads(b: list[list[Tensor]]) -> list[list[Tensor]]:
    """Each capsule's weights of the heads from their logarithms."""
    columns = [over_capsules([row[n] for row in b]) for n in range(len(b[0]))]
    return [[columns[n][h] for n in range(len(columns))] for h in range(len(b))]


def simple_routing(votes, capsules, iterations, squash, of_heads) -> tuple[Tensor, Tensor]:
    """Algorithm 1 for one token; also each head's mean share of the capsules."""
    heads = range(len(votes))
    v = [slices(vote, capsules) for vote in votes]  # v[h][n], a vector
    b = [[torch.zeros((), dtype=torch.float64)] * capsules for _ in heads]
    for _ in range(iterations):
        c = over_heads(b) if of_heads else [over_capsules(row) for row in b]
        shares = shares_of(c)
        output = []
        for n in range(capsules):
            omega = sum(shares[h][n] * v[h][n] for h in heads)
            if squash:
                square = (omega * omega).sum()
                length = torch.sqrt(square)
                omega = square / (1 + square) * (omega / length if length > 0 else omega)
            output.append(omega)
        b = [[b[h][n] + (output[n] * v[h][n]).sum() for n in range(capsules)] for h in heads]
    weights = torch.stack([sum(shares[h]) / capsules for h in heads])
    return torch.cat(output), weights


def em_routing(votes, capsules, iterations, limit, activation, beta_a, beta_u):
    """Algorithm 2 for one token; also each head's mean share of the capsules."""
    heads = range(len(votes))
    v = [slices(vote, capsules) for vote in votes]
    c = [[torch.tensor(1 / capsules, dtype=torch.float64)] * capsules for _ in heads]
    for i in range(iterations):
        rate = limit * (1 - 0.95 ** (i + 1))
        shares = shares_of(c)
        mus, logits, costs = [], [], []
        for n in range(capsules):
            total = sum(c[h][n] for h in heads)
            mu = sum(shares[h][n] * v[h][n] for h in heads)
            variance = sum(shares[h][n] * (v[h][n] - mu) ** 2 for h in heads).clamp(min=1e-6)
            sigma = torch.sqrt(variance)
            chi = sum(torch.log(s) + (1 + math.log(2 * math.pi)) / 2 for s in sigma) * total
            mus.append(mu)
            costs.append(beta_u[n] * total + chi)
            densities = [
                -torch.log(sigma * math.sqrt(2 * math.pi)) - (v[h][n] - mu) ** 2 / (2 * variance)
                for h in heads
            ]
            logits.append([density.sum() for density in densities])
        if activation == "standardised":
            rate = 1 + 2 * i / (iterations - 1)
            mean = sum(costs) / capsules
            deviation = torch.sqrt(sum((cost - mean) ** 2 for cost in costs) / capsules + 1e-9)
            costs = [(cost - mean) / deviation for cost in costs]
        a = [1 / (1 + torch.exp(-rate * (beta_a[n] - costs[n]))) for n in range(capsules)]
        if activation == "none":
            a = [torch.ones((), dtype=torch.float64)] * capsules
        output = [a[n] * mus[n] for n in range(capsules)]
        c = [
            over_capsules([torch.log(a[n]) + logits[n][h] for n in range(capsules)]) for h in heads
        ]
    weights = torch.stack([sum(shares[h]) / capsules for h in heads])
    return torch.cat(output), weights


def has_relu(module) -> bool:
    """Whether a ReLU makes the input capsules: not where simple routing's are of all heads."""
    return module.method == "em" or module.inputs == "head"


def agreement_of(p, votes, module, iterations: int) -> tuple[Tensor, Tensor]:
    """The routing of one token's votes by the module's settings."""
    sizes = module.num_capsules, iterations
    if module.method == "simple":
        return simple_routing(votes, *sizes, module.squash, module.normalize == "heads")
    nothing = torch.zeros(1, dtype=torch.float64)
    betas = (p.get(name, nothing).expand(sizes[0]) for name in ("beta_a", "beta_u"))
    return em_routing(votes, *sizes, module.inverse_temperature, module.activation, *betas)


def agreement(p, query, key, value, heads, module, **masks) -> tuple[Tensor, Tensor]:
    """The routed capsules of each query, and how much each head counts."""
    weights = torch.zeros(*query.shape[:2], heads, dtype=query.dtype)

    def compute(b, t):
        votes = agreement_votes(p, query, key, value, heads, b, t, has_relu(module), **masks)
        y, weights[b, t] = agreement_of(p, votes, module, module.iterations)
        return y

    output = _over_queries(query, compute)
    return output, weights.detach()


def activation(name: str, x: Tensor) -> Tensor:
    """That of a feed-forward: ReLU, LeakyReLU, or x Φ(x) with the normal distribution Φ.

    SwiGLU and GEGLU multiply the second half of the entries by the SiLU or GELU of the first.
    """
    if name in ("swiglu", "geglu"):
        gate, units = slices(x, 2)
        return (
            gate / (1 + torch.exp(-gate)) if name == "swiglu" else activation("gelu", gate)
        ) * units
    if name == "gelu":
        return x * (1 + torch.erf(x / math.sqrt(2))) / 2
    return torch.where(x > 0, x, {"relu": 0.0, "leaky-relu": 0.01}[name] * x)


def branch_weights(p, branches, weights, merged, top_k) -> tuple[list[Tensor], list[Tensor]]:
    """κ and α outside training, entry by entry."""

    def of(name):
        if weights in ("random", "uniform"):
            return [torch.tensor(1 / branches, dtype=torch.float64)] * branches
        if weights in ("simplex", "fixed"):
            return list(p[name])
        exponentials = [torch.exp(x) for x in p[name]]
        return [x / sum(exponentials) for x in exponentials]

    kappa, alpha = of("alpha" if merged else "kappa"), of("alpha")
    if top_k is not None:
        kept = sorted(range(branches), key=lambda i: float(alpha[i].detach()))[-top_k:]
        total = sum(alpha[i] for i in kept)
        alpha = [alpha[i] / total if i in kept else 0 * alpha[i] for i in range(branches)]
    return kappa, alpha


def layer_norm(p, name: str, x: Tensor) -> Tensor:
    """(x − mean) / √(variance + 1e-5), with a weight and a bias of each entry.

    Without a bias it is x / √(mean x² + 1e-5), with a weight.
    """
    if f"{name}.bias" not in p:
        return rms_norm(x, p[f"{name}.weight"], 1e-5)
    centred = x - x.mean()
    normal = centred / torch.sqrt((centred * centred).mean() + 1e-5)
    return normal * p[f"{name}.weight"] + p[f"{name}.bias"]


def branched(p, query, key, value, heads, module, weights, **masks) -> Tensor:
    """Σᵢ αᵢ FFN(κᵢ oᵢWᵢ), branch by branch: equations 5 to 7 of the Weighted Transformer.

    With residual sums LN(Σᵢ αᵢzᵢ + M Σᵢ αᵢ FFNᵢ(zᵢ)), zᵢ = LN(x + aᵢ), aᵢ = Mκᵢ oᵢWᵢ; with pre-norm
    x + M Σᵢ αᵢ (aᵢ + FFNᵢ(LN(x + aᵢ))).
    """
    kappa, alpha = weights
    residual, pre_norm = module.inner == "residual", module.inner == "residual" and module.pre_norm
    factor = heads if residual and module.ffn == "split" else 1

    def normed(rows):  # what attention reads in self-attention
        return [layer_norm(p, "norm1", x) for x in rows] if pre_norm else list(rows)

    def fed_forward(i, z):
        wide, down = linear(p, "ffn_up", z), p["ffn_down.weight"]
        if module.ffn != "shared":  # other parts of the hidden layer are those of other branches
            wide, down = slices(wide, heads)[i], down.chunk(heads, 1)[i]
        fed = down @ activation(module.ffn_activation, wide)
        return factor * alpha[i] * (fed + p.get("ffn_down.bias", 0.0) / factor)

    def compute(b, t):
        keys = normed(key[b]) if key is query else list(key[b])
        values = normed(value[b]) if value is query else list(value[b])
        x, stream = query[b, t], torch.zeros(query.size(2), dtype=torch.float64)
        fed = stream
        read_by = heads_read(p, normed(query[b]), keys, values, heads, b, t, **masks)
        for i, o in enumerate(read_by):
            z = kappa[i] * (o @ p["branch_output"][i])
            if residual:
                added = heads * z
                z = layer_norm(p, "norm2" if pre_norm else "norm1", x + added)
                stream = stream + alpha[i] * (heads * added if pre_norm else z)
            fed = fed + fed_forward(i, z)
        if not residual:
            return fed
        return x + stream + fed if pre_norm else layer_norm(p, "norm2", stream + fed)

    return _over_queries(query, compute)


def moa_router(p, x: Tensor, top_k: int) -> tuple[list[int], Tensor, Tensor]:
    """Equations 7 and 8 for one token: experts chosen, probabilities, logits."""
    logits = p["router.weight"] @ x
    exponentials = torch.exp(logits)
    probabilities = exponentials / exponentials.sum()
    by_probability = sorted(range(len(logits)), key=lambda i: -float(probabilities[i].detach()))
    return by_probability[:top_k], probabilities, logits


def moa(p, query, key, value, module, **masks) -> tuple[Tensor, Tensor]:
    """y = Σ_{i∈G(x)} wᵢ oᵢWᵢ (equations 6 to 12), and w; masks are the same for all experts.

    Each expert has a head for each shared head of keys.
    """
    weights = query.new_zeros(*query.shape[:2], len(p["router.weight"]))
    shared = len(p["k_proj.weight"]) // module.head_dim

    def compute(b, t):
        chosen, probabilities, _ = moa_router(p, query[b, t], module.top_k)
        total = sum(probabilities[i] for i in chosen)
        total = total.detach() if module.detach_normalizer else total
        ks = [slices(linear(p, "k_proj", x), shared) for x in key[b]]
        ks = [placed(p, "k_norm", k, s) for s, k in enumerate(ks)]
        vs = [slices(linear(p, "v_proj", x), shared) for x in value[b]]
        biases = [attention_bias(b, 0, t, s, module.top_k, **masks) for s in range(key.size(1))]
        y = torch.zeros(query.size(2), dtype=torch.float64)
        nothing = torch.zeros(len(probabilities), 1, dtype=torch.float64)
        output_bias = p.get("output_bias", nothing)
        for i in chosen:
            q = query[b, t] @ p["expert_query"][i] + p.get("query_bias", nothing)[i]
            q = placed(p, "q_norm", slices(q, shared), t)
            each = [read(q[h], _stack(ks, h), _stack(vs, h), biases) for h in range(shared)]
            added = torch.cat(each) @ p["expert_output"][i]
            w = probabilities[i] / total if module.normalize_weights else probabilities[i]
            y = y + w * (added if output_bias.dim() == 1 else added + output_bias[i])
            weights[b, t, i] = w.detach()
        return y + output_bias if output_bias.dim() == 1 else y

    return _over_queries(query, compute), weights


def moa_losses(p, query, top_k, padding=None, per_sequence=False) -> tuple[Tensor, Tensor]:
    """Equations 13 to 16 over the real tokens of all rows, or the first of them row by row."""
    if per_sequence:
        rows = range(query.size(0))
        pads = [None if padding is None else padding[b : b + 1] for b in rows]
        real = [b for b in rows if padding is None or not padding[b].all()]
        balances = [moa_losses(p, query[b : b + 1], top_k, pads[b])[0] for b in real]
        zero = torch.zeros((), dtype=torch.float64)
        balance = sum(balances, zero) / max(1, len(real))
        return balance, moa_losses(p, query, top_k, padding)[1]
    experts = p["router.weight"].size(0)
    f = [0.0] * experts
    big_p = [torch.zeros((), dtype=torch.float64)] * experts
    squares, tokens = torch.zeros((), dtype=torch.float64), 0
    for b in range(query.size(0)):
        for t in range(query.size(1)):
            if padding is not None and padding[b, t]:
                continue
            chosen, probabilities, logits = moa_router(p, query[b, t], top_k)
            for i in range(experts):
                f[i] += float(i in chosen)
                big_p[i] = big_p[i] + probabilities[i]
            squares = squares + torch.log(torch.exp(logits).sum()) ** 2
            tokens += 1
    if tokens == 0:
        return squares, squares
    sum_f, sum_p = sum(f), sum(big_p)
    balance = experts * sum(f[i] / sum_f * big_p[i] / sum_p for i in range(experts))
    return balance, squares / tokens
