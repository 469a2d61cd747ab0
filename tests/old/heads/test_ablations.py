"""Ablations of every system against plain loops over units, positions and heads."""

import copy
from itertools import combinations

import pytest
import reference
import tim_reference
import torch
from systems import DIM, HEADS, SYSTEMS, padding

import headwise as hw
from headwise.models.ablation import ablation_of, ablation_options

BATCH, TIME = 2, 4


def x_():
    return torch.randn(BATCH, TIME, DIM, dtype=torch.float64)


def under(layer, name, x, **options):
    """The layer's output under an ablation, and afterwards the layer as it was."""
    numbers = {key: options.pop(key) for key in ("index", "count") if key in options}
    layer.ablation = ablation_of(layer, name, options, **numbers)
    try:
        return layer(x)
    finally:
        layer.ablation = None


def parameters(layer):
    return dict(layer.named_parameters()) | dict(layer.named_buffers())


def over_positions(x, compute):
    rows = [torch.stack([compute(b, t) for t in range(x.size(1))]) for b in range(x.size(0))]
    return torch.stack(rows)


@pytest.mark.parametrize("name", ["standard", "standard without bias"])
def test_standard_attention_without_a_head_and_with_one_alone(name):
    layer, x = SYSTEMS[name].build(), x_()
    p = parameters(layer)

    def by_heads(kept):
        def compute(b, t):
            outputs = reference.head_outputs(p, x, x, x, HEADS, b, t)
            bias = p.get("out_proj.bias", 0.0)
            return sum((outputs[h] for h in kept), torch.zeros(DIM).double()) + bias

        return over_positions(x, compute)

    for head in range(HEADS):
        others = [h for h in range(HEADS) if h != head]
        removed = under(layer, "without-head", x, head=head).output
        torch.testing.assert_close(removed, by_heads(others))
        alone = under(layer, "only-head", x, head=head).output
        torch.testing.assert_close(alone, by_heads([head]))


@pytest.mark.parametrize("name", ["mae-7", "mae-6"])
@pytest.mark.parametrize("ablation", ["without-top-expert", "only-expert", "only-head"])
def test_ablated_mixtures_are_those_of_the_equations(name, ablation):
    layer, x = SYSTEMS[name].build(), x_()
    p, learned = parameters(layer), layer(x).routing.weights.detach()  # (batch, experts)
    options = {"only-expert": {"expert": 1}, "only-head": {"head": 2}}.get(ablation, {})
    out = under(layer, ablation, x, **options)
    gates = []
    for row in learned:
        if ablation == "without-top-expert":
            kept = [0.0 if g == max(row) else float(g) for g in row]
            gates.append(torch.tensor([g / sum(kept) for g in kept]).double())
        elif ablation == "only-expert":
            gates.append(torch.tensor([float(e == 1) for e in range(len(row))]).double())
        else:
            gates.append(row)

    def compute(b, t):
        outputs = torch.stack(reference.head_outputs(p, x, x, x, HEADS, b, t))
        if ablation == "only-head":
            outputs[[h for h in range(HEADS) if h != 2]] = 0.0
        choices = combinations(range(HEADS), layer.dropped_heads)
        experts = [reference.expert(list(outputs), left_out) for left_out in choices]
        return sum(g * y for g, y in zip(gates[b], experts, strict=True)) + p["out_proj.bias"]

    torch.testing.assert_close(out.output, over_positions(x, compute))


@pytest.mark.parametrize("name", ["moa", "moa dense", "moa of the authors' code"])
@pytest.mark.parametrize("ablation", ["uniform", "without-top-expert", "only-expert"])
def test_choices_of_experts(name, ablation):
    layer, x = SYSTEMS[name].build(), x_()
    p, options = parameters(layer), {"expert": 1} if ablation == "only-expert" else {}
    out = under(layer, ablation, x, **options)

    def compute(b, t):
        ranked, _, logits = reference.moa_router(p, x[b, t], layer.num_experts)
        chosen = ranked[: layer.top_k]
        allowed = list(range(layer.num_experts))
        if ablation == "without-top-expert":
            chosen, allowed = ranked[1 : layer.top_k + 1], sorted(ranked[1:])
        if ablation == "only-expert":
            chosen = allowed = [1]
        total = sum(torch.exp(logits[i]) for i in allowed)
        weights = [torch.exp(logits[i]) / total for i in chosen]
        if layer.normalize_weights:
            weights = [w / sum(weights) for w in weights]
        if ablation == "uniform":
            weights = [sum(weights) / len(weights)] * len(weights)
        return of_experts(p, x, b, t, dict(zip(chosen, weights, strict=True)))

    torch.testing.assert_close(out.output, over_positions(x, compute))


def of_experts(p, x, b, t, weights):
    """Σ wᵢ oᵢ Wᵢ of the experts at one position."""
    keys = torch.stack([reference.linear(p, "k_proj", h) for h in x[b]])
    values = torch.stack([reference.linear(p, "v_proj", h) for h in x[b]])
    y = torch.zeros(DIM).double()
    for i, weight in weights.items():
        o = reference.read(x[b, t] @ p["expert_query"][i], keys, values, [0.0] * TIME)
        y = y + weight * (o @ p["expert_output"][i])
    return y


AGREEMENT = [name for name in SYSTEMS if name.startswith("agreement")]


def agreement_by(name, layer, x, voters, iterations=None):
    """The routing of the votes of some heads: `voters(b, t)` gives their numbers."""
    p = SYSTEMS[name].parameters(layer)
    weights = torch.zeros(BATCH, TIME, HEADS).double()
    iterations = iterations or layer.iterations

    def compute(b, t):
        heads = voters(b, t)
        relu = reference.has_relu(layer)
        votes = reference.agreement_votes(p, x, x, x, HEADS, b, t, relu)
        y, share = reference.agreement_of(p, [votes[h] for h in heads], layer, iterations)
        weights[b, t, heads] = share.detach()
        return y

    return over_positions(x, compute), weights


@pytest.mark.parametrize("name", AGREEMENT)
@pytest.mark.parametrize("ablation", ["without-head", "only-head", "without-top-head"])
def test_votes_that_are_left_out(name, ablation):
    layer, x = SYSTEMS[name].build(), x_()
    top = layer(x).routing.weights.argmax(-1)
    options = {} if ablation == "without-top-head" else {"head": 1}
    out = under(layer, ablation, x, **options)

    def voters(b, t):
        if ablation == "only-head":
            return [1]
        removed = 1 if ablation == "without-head" else int(top[b, t])
        return [h for h in range(HEADS) if h != removed]

    expected, weights = agreement_by(name, layer, x, voters)
    torch.testing.assert_close(out.output, expected)
    torch.testing.assert_close(out.routing.weights, weights)


@pytest.mark.parametrize("name", [name for name in SYSTEMS if name.startswith("branched")])
@pytest.mark.parametrize("ablation", ["without-branch", "only-branch", "uniform", "top-k"])
def test_ablated_branches_are_those_of_the_equations(name, ablation):
    layer, x = SYSTEMS[name].build(), x_()
    with torch.no_grad():  # a point of the simplex, so that the others have a sum
        for weights in layer._drawn_weights():
            weights.copy_(weights.abs() / weights.abs().sum())
    p = SYSTEMS[name].parameters(layer)
    how = (layer.weights, layer.merged, layer.top_k)
    kappa, alpha = reference.branch_weights(p, HEADS, *how)
    if ablation == "only-branch":
        alpha = [torch.tensor(float(i == 1)).double() for i in range(HEADS)]
    elif ablation == "uniform":
        kappa = alpha = [torch.tensor(1 / HEADS).double()] * HEADS
    elif ablation == "top-k":
        largest = int(torch.stack(list(alpha)).topk(1).indices)  # which of equal ones is not said
        alpha = [torch.tensor(float(i == largest)).double() for i in range(HEADS)]
    else:
        total = sum(a for i, a in enumerate(alpha) if i != 1)
        alpha = [torch.zeros(()).double() if i == 1 else a / total for i, a in enumerate(alpha)]
    expected = reference.branched(p, x, x, x, HEADS, layer, (kappa, alpha))
    options = {"uniform": {}, "top-k": {"top_k": 1}}.get(ablation, {"branch": 1})
    out = under(layer, ablation, x, **options)
    torch.testing.assert_close(out.output, expected)
    torch.testing.assert_close(out.routing.weights, torch.stack(alpha))


@pytest.mark.parametrize(
    ("ablation", "competition"),
    [
        *(("without-mechanism", competition) for competition in (True, False)),
        *(("only-mechanism", competition) for competition in (True, False)),
        ("without-winner", True),  # without competition nothing wins
    ],
)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_ablated_mechanisms_are_those_of_the_equations(ablation, competition, norm, monkeypatch):
    layer = hw.IndependentMechanismsLayer(
        12, 6, 24, 3, competition=competition, norm=norm, cross_attention=True
    )
    layer = layer.double().eval()
    x, memory = torch.randn(2, BATCH, TIME, 12, dtype=torch.float64)
    if ablation == "without-winner":
        removed, options = [], {}
    else:
        removed = [1] if ablation == "without-mechanism" else [0, 2]
        options = {"mechanism": 1}
    learned = tim_reference.competition

    def competing(p, h):
        c = learned(p, h)
        out = removed or [int(c.argmax())]
        kept = [0.0 if j in out else float(c[j].detach()) for j in range(3)]
        return torch.tensor([k / sum(kept) for k in kept]).double()

    def silenced(update):
        def silent(*arguments, **masks):
            parts = reference.slices(update(*arguments, **masks), 3)
            return torch.cat([0 * part if j in removed else part for j, part in enumerate(parts)])

        return silent

    monkeypatch.setattr(tim_reference, "competition", competing)
    for name in ("attention", "exchange", "feed_forward"):
        monkeypatch.setattr(tim_reference, name, silenced(getattr(tim_reference, name)))
    expected, c = tim_reference.layer(
        *(parameters(layer), x, memory), heads=6, exchange_heads=2, pre_norm=norm == "pre"
    )
    layer.ablation = ablation_of(layer, ablation, options)
    out = layer(x, memory)
    torch.testing.assert_close(out.output, expected)
    if competition:
        torch.testing.assert_close(out.routing.weights, c)


def every_ablation():
    for name, system in SYSTEMS.items():
        layer = system.build()
        ranges = layer.ablation_ranges()
        for ablation, function in layer.ablations.items():
            (option,) = [o for o in ablation_options(function) if o in ranges] or [None]
            yield pytest.param(name, ablation, option, id=f"{name}-{ablation}")


@pytest.mark.parametrize(("name", "ablation", "option"), list(every_ablation()))
def test_every_value_that_a_system_declares_runs_and_minds_padding(name, ablation, option):
    layer, x = SYSTEMS[name].build(), x_()
    mask = padding(TIME, 2, time=TIME)
    values = [{}] if option is None else [{option: v} for v in layer.ablation_ranges()[option]]
    for options in values:
        layer.ablation = ablation_of(layer, ablation, options)
        together = layer(x, key_padding_mask=mask).output
        assert together.isfinite().all()
        torch.testing.assert_close(together[1, :2], layer(x[1:, :2]).output[0])


@pytest.mark.parametrize(("name", "ablation", "option"), list(every_ablation()))
def test_in_training_nothing_is_ablated(name, ablation, option):
    layer, x = SYSTEMS[name].build(train=True), x_()
    found = []
    for made in (None, ablation_of(layer, ablation, {} if option is None else {option: 1})):
        other = copy.deepcopy(layer)  # a pass in training moves the statistics of gates
        other.ablation = made
        torch.manual_seed(0)  # of branches that are drawn anew at each pass
        found.append(other(x).output)
    assert torch.equal(*found)


RANDOM = [name for name, system in SYSTEMS.items() if "random" in system.build().ablations]


@pytest.mark.parametrize("name", RANDOM)
def test_random_weights_of_another_default_dtype(name):
    layer = SYSTEMS[name].build()
    torch.set_default_dtype(torch.float64)
    try:
        assert under(layer, "random", x_()).output.isfinite().all()
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", RANDOM)
def test_random_weights_are_drawn_once_for_each_seed_and_layer(name):
    layer, x = SYSTEMS[name].build(), x_()
    drawn = under(layer, "random", x).output
    assert torch.equal(under(layer, "random", x).output, drawn)
    for other in ({"seed": 1}, {"index": 1, "count": 2}):
        assert not torch.equal(under(layer, "random", x, **other).output, drawn)


@pytest.mark.parametrize(
    ("layer", "name", "message"),
    [
        (hw.AgreementAttention(8, 1), "without-head", "num_heads is 1"),
        (hw.BranchedAttention(8, 1, 16), "without-branch", "num_branches is 1"),
        (hw.MixtureOfAttentionHeads(8, 1, 1, 4), "without-top-expert", "num_experts is 1"),
        (hw.IndependentMechanismsLayer(8, 2, 16, 1), "without-mechanism", "num_mechanisms is 1"),
    ],
)
def test_the_only_unit_cannot_be_removed(layer, name, message):
    options = dict.fromkeys(ablation_options(layer.ablations[name]), 0)
    with pytest.raises(ValueError, match=message):
        ablation_of(layer, name, options)
