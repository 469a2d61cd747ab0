"""Parameters and multiply-accumulates, against formulas and PyTorch's flop counter."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from headwise.analysis.cost import (
    Parameters,
    count_parameters,
    forward_macs,
    measure_macs,
    model_cost,
    parameters_by_part,
)
from headwise.heads.mae import MixtureOfAttentiveExperts
from headwise.heads.multi_head import MultiHeadAttention
from headwise.heads.system import Macs, System
from headwise.heads.weighted import BranchedAttention
from headwise.models.plan import SYSTEMS
from headwise.models.seq2seq import Seq2SeqLM, Seq2SeqLMConfig
from headwise.models.sites import attention_sites
from headwise.recipes import load_recipe, shipped_recipes
from headwise.recipes.catalogue import task_class

D, FFN, V, HEADS = 16, 32, 50, 4
T = 10  # tokens on either side
BOTH = {"encoder": T, "decoder": T}


def pair(source, target):
    return {"encoder": source, "decoder": target}


def model(attention="standard", **options):
    sizes = {"vocab_size": V, "embed_dim": D, "num_heads": HEADS, "ffn_dim": FFN}
    layers = {"encoder_layers": 1, "decoder_layers": 1}
    return Seq2SeqLM(Seq2SeqLMConfig(attention=attention, **sizes, **layers, **options))


def count_macs(network, lengths):
    return model_cost(network.config, lengths).macs


def test_the_base_transformer_on_the_meta_device():
    with torch.device("meta"):
        base = Seq2SeqLM(Seq2SeqLMConfig())
    d, ffn, vocabulary, layers, tokens = 512, 2048, 32_000, 6, 10
    linear = layers * tokens * (12 * d * d + 2 * 2 * d * ffn) + d * vocabulary * tokens
    assert linear == 604_241_920  # the 604M that the MoA paper gives
    products = 3 * layers * 2 * tokens * tokens * d
    assert count_macs(base, BOTH) == linear + products


def test_counting_leaves_the_model_and_the_generator_alone():
    network = model("mae").train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    state = torch.get_rng_state()
    forward_macs(network, BOTH)
    measure_macs(network, BOTH)
    assert torch.equal(state, torch.get_rng_state())
    assert network.training
    assert all(torch.equal(t, before[name]) for name, t in network.state_dict().items())


# Formulas against what is computed


PLANS = {
    "standard": "standard",
    "mae": "mae",
    "mae-6": {"system": "mae", "dropped_heads": 2},
    "uni-mae": {"system": "mae", "gate": "uniform"},
    "mae window": {"system": "mae", "gate_window": 2},
    "moa": {"system": "moa", "size": "2K4E8D"},
    "moa dense": {"system": "moa", "size": "4K4E8D"},
    "gated": "gated",
    "differential": "differential",
    "gated elementwise": {"system": "gated", "gate": "elementwise"},
    "gated by few entries": {"system": "gated", "gate_inputs": 3, "gate_bias": True},
    "gated by shares": {"system": "gated", "preset": "quantizable-transformers"},
    "moh": "moh",
    "moh of routed heads": {"system": "moh", "shared_heads": 0, "top_k": 2},
    "weighted": "weighted",
    "weighted shared": {"system": "weighted", "ffn": "shared"},
    "weighted full": {"system": "weighted", "ffn": "full"},
    "weighted to the letter": {"system": "weighted", "preset": "paper"},
    "weighted to the letter split": {"system": "weighted", "preset": "paper", "ffn": "split"},
    "agreement": "agreement",
    "agreement simple": {"system": "agreement", "routing": "simple"},
    "agreement capsules": {"system": "agreement", "num_capsules": 4},
    "tim": {"system": "tim", "layers": "all"},
    "tim of four": {"system": "tim", "layers": "all", "num_mechanisms": 4},
    "tim no competition": {"system": "tim", "layers": "all", "competition": False},
    "tim no exchange": {"system": "tim", "layers": "all", "exchange_heads": 0},
}
SITES = ("encoder_self", "decoder_self", "decoder_cross")
LENGTHS = ((10, 10), (7, 3), (3, 8), (1, 1), (40, 24))


def systems(network):
    """Site and system."""
    return [(place.site, place.module) for place in attention_sites(network)]


def count_products(network, source, target):
    """What the flop counter finds on this machine; the fused kernel of attention it cannot read."""
    tokens = [torch.randint(3, V, (1, length)) for length in (source, target)]
    counter = FlopCounterMode(display=False)
    with counter, torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # no shortcuts of decoding
        network.eval()(input_ids=tokens[0], decoder_input_ids=tokens[1])
    return counter.get_total_flops() // 2


def beyond_the_formula(network, source, target):
    """Weighted sums that are computed as products, though with no matrix of weights."""
    total = 0
    for site, system in systems(network):
        queries = source if site == "encoder_self" else target
        if isinstance(system, MixtureOfAttentiveExperts) and system.gate is not None:
            # Weights of experts become those of heads by a matrix of zeros and ones, unless an
            # expert leaves out the head of its own number.
            if system.dropped_heads == 1:
                continue
            gates = 1 if site == "encoder_self" else queries
            total += gates * system.num_experts * system.num_heads
        elif isinstance(system, BranchedAttention) and system.holds_residual:
            # The sum of the streams, and of the shared hidden units, weighted by alpha.
            total += queries * HEADS * (D + (FFN if system.ffn == "shared" else 0))
        elif isinstance(system, BranchedAttention) and system.ffn == "shared":
            # The sum over branches, weighted by alpha, of each hidden unit, where W₁ is folded.
            once, each = D * D * FFN, D * FFN  # head_dim is D / branches
            if once + queries * each < queries * (D * D + HEADS * D * FFN):
                total += queries * HEADS * FFN
    return total


PLACED = [
    (name, site)
    for name, plan in PLANS.items()
    for site in SITES
    # One takes the place of the last attention and the feed-forward, one that of the whole layer.
    if not ("weighted" in str(plan) and site == "decoder_self")
    and not ("tim" in str(plan) and site == "decoder_cross")
]


def test_every_system_is_among_the_plans():
    named = {plan if isinstance(plan, str) else plan["system"] for plan in PLANS.values()}
    assert named == set(SYSTEMS)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize(("name", "site"), PLACED)
def test_formulas_are_what_the_flop_counter_counts(name, site, norm):
    network = model({site: PLANS[name]}, norm=norm)
    for source, target in LENGTHS:
        formula = sum(forward_macs(network, pair(source, target)))
        counted = count_products(network, source, target)
        assert counted - formula == beyond_the_formula(network, source, target)


class Unpriced(MultiHeadAttention):
    """A system of somebody's own that says nothing of what it costs."""

    def macs(self, queries, keys, *, is_causal=False):
        raise NotImplementedError


def test_a_system_without_a_formula_is_measured():
    plan = f"{__name__}:Unpriced"
    assert count_macs(model(plan), pair(7, 5)) == count_macs(model(), pair(7, 5))
    cost = model_cost(model(plan).config, pair(7, 5))
    assert cost.linear_macs is None
    assert cost.macs == count_macs(model(), pair(7, 5))


class Plain(MultiHeadAttention):
    """Another name for standard attention."""


class Wide(MultiHeadAttention):
    """It adds a matrix, and says nothing of it."""

    def __init__(self, embed_dim, num_heads, **options):
        super().__init__(embed_dim, num_heads, **options)
        self.gate = torch.nn.Linear(embed_dim, embed_dim)

    def combine(self, heads, inputs, choice):
        output, routing = super().combine(heads, inputs, choice)
        return output * self.gate(inputs.query), routing


class Scaled(Wide):
    """It reads values, of which meta tensors have none."""

    def combine(self, heads, inputs, choice):
        return super().combine(heads * inputs.query.mean().item(), inputs, choice)


class Known(Wide):
    def macs(self, queries, keys, *, is_causal=False):
        own = queries * self.gate.weight.numel()
        return super().macs(queries, keys, is_causal=is_causal) + Macs(own, 0)


class Doubled(Known):
    """Its base class has a formula of its own."""

    def combine(self, heads, inputs, choice):
        return super().combine(heads + self._by_head(self.q_proj(inputs.query)), inputs, choice)


@pytest.mark.parametrize(
    ("system", "products", "has_formula"),
    [(Plain, 0, True), (Wide, 1, False), (Scaled, 1, False), (Known, 1, True), (Doubled, 2, False)],
)
def test_an_inherited_formula_holds_where_the_counter_finds_the_same(system, products, has_formula):
    network, standard = model(f"{__name__}:{system.__name__}"), model()
    state = torch.get_rng_state()
    standard, cost = (model_cost(each.config, pair(7, 5)) for each in (standard, network))
    assert torch.equal(state, torch.get_rng_state())
    own = products * (7 + 5 + 5) * D * D
    assert cost.macs == standard.macs + own
    assert cost.linear_macs == (standard.linear_macs + own if has_formula else None)
    if not has_formula:
        with pytest.raises(NotImplementedError, match=f"{system.__name__}: the formula macs"):
            forward_macs(network, pair(7, 5))


# Parameters by part


def by_part(attention="standard", **options):
    return parameters_by_part(model(attention, **options))


def test_parts_of_the_standard_model():
    attention, ffn = 3 * 4 * (D * D + D), 2 * (2 * D * FFN + FFN + D)
    assert by_part() == Parameters(V * D, attention, 0, ffn, 5 * 2 * D)
    assert by_part(norm="pre").rest == 7 * 2 * D


@pytest.mark.parametrize(("share", "embeddings"), [("all", 1), ("target", 2), ("none", 3)])
def test_tied_embeddings_are_in_one_part_once(share, embeddings):
    assert by_part(share_embeddings=share).embeddings == embeddings * V * D


@pytest.mark.parametrize("name", PLANS)
def test_parts_are_all_there_is(name):
    network = model(PLANS[name])
    parts = parameters_by_part(network)
    assert parts.total == count_parameters(network)
    routing = [
        parameter.numel()
        for _, system in systems(network)
        for own, parameter in system.named_parameters()
        if any(own.startswith(prefix) for prefix in system.routing_parameters)
    ]
    assert parts.routing == sum(routing)
    assert parts.embeddings == V * D


def test_gates_and_routers_are_routing():
    gate = 2 * D + (D * 256 + 256) + (256 * HEADS + HEADS)
    assert by_part("mae").routing == 3 * gate
    assert by_part("mae")._replace(routing=0) == by_part()
    moa = by_part({"system": "moa", "size": "2K4E8D"})
    assert moa.routing == 3 * 4 * D
    assert moa.attention == 3 * (2 * 4 * D * 8 + 2 * D * 8)


class Gated(System):
    """A system that asks another one which heads to take."""

    routing_parameters = ("adviser.",)

    def __init__(self):
        super().__init__()
        self.adviser = MultiHeadAttention(D, HEADS)
        self.heads = MultiHeadAttention(D, HEADS)


def test_of_systems_in_each_other_the_outer_one_says_what_is_routing():
    one = 4 * (D * D + D)
    assert parameters_by_part(torch.nn.ModuleList([Gated()])) == Parameters(0, one, one)


def test_a_feed_forward_inside_attention_is_feed_forward():
    weighted = by_part("weighted")
    assert weighted.feed_forward == by_part().feed_forward
    assert weighted.routing == 2 * 2 * HEADS
    assert weighted.attention == by_part().attention - 2 * D  # no output bias
    assert weighted.rest == by_part().rest
    letter = by_part({"system": "weighted", "preset": "paper"})
    assert letter.rest == by_part().rest - 2 * 2 * D  # no norm between the two


# Recipes


@pytest.mark.parametrize("recipe", shipped_recipes())
def test_every_shipped_recipe_has_its_cost_told_without_memory(recipe):
    file = load_recipe(recipe)
    task = task_class(file.recipe.task)
    for name in file.system_names:
        cost = model_cost(task.nominal_config(file.system(name)), task.cost_lengths(file.recipe))
        assert cost.parameters.total > 1e5
        assert cost.linear_macs < cost.macs
