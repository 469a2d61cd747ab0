"""Which parameters are whose, and how many a model of the papers' sizes has."""

import re

import pytest
import torch
from tiny import PLANS, model

import headwise as hw
from headwise.models.parameters import decayed_parameters
from headwise.models.sites import attention_sites

# How the gates and the output projections of each system begin, after the path of the system.
GATES = {
    hw.MultiHeadAttention: (),
    hw.MixtureOfAttentiveExperts: ("gate.",),
    hw.MixtureOfAttentionHeads: ("router.",),
    hw.BranchedAttention: ("kappa", "alpha"),
    hw.AgreementAttention: ("vote_weight", "beta_a", "beta_u"),
    hw.IndependentMechanismsLayer: ("competition_weight", "exchange."),
    hw.GatedAttention: ("gate_proj.",),
    hw.DifferentialAttention: ("lambda_proj.",),
    hw.MixtureOfHeads: ("shared_router.", "routed_router.", "kind_router."),
}
OUTPUTS = {
    hw.MixtureOfAttentionHeads: ("expert_output",),
    hw.BranchedAttention: ("branch_output",),
    hw.AgreementAttention: ("capsule_weight", "capsule_bias"),
    hw.IndependentMechanismsLayer: ("self_attention.out_weight", "cross_attention.out_weight"),
}


def beginnings(made, of_system, default=()):
    sites = attention_sites(made)
    return tuple(
        f"{site.path}.{name}"
        for site in sites
        for name in of_system.get(type(site.module), default)
    )


@pytest.mark.parametrize("plan", PLANS)
def test_gates_and_others_are_everything_once(plan):
    made = model(PLANS[plan])
    gates, others = hw.gate_parameters(made), hw.non_gate_parameters(made)
    everything = [*gates, *others]
    assert len({id(p) for p in everything}) == len(everything)
    assert {id(p) for p in everything} == {id(p) for p in made.parameters()}
    names = {id(p): name for name, p in made.named_parameters()}
    expected = beginnings(made, GATES)
    assert {names[id(p)] for p in gates} == {
        name for name in names.values() if name.startswith(expected)
    }
    assert bool(gates) == (plan not in ("standard", "uni-mae"))


@pytest.mark.parametrize("plan", PLANS)
def test_output_parameters_are_the_output_projections(plan):
    made = model(PLANS[plan])
    names = {id(p): name for name, p in made.named_parameters()}
    expected = beginnings(made, OUTPUTS, default=("out_proj.",))
    got = [names[id(p)] for p in hw.output_parameters(made)]
    assert set(got) == {name for name in names.values() if name.startswith(expected)}
    assert len(got) == len(set(got)) > 0


@pytest.mark.parametrize("plan", PLANS)
def test_sites_name_every_attention(plan):
    made = model(PLANS[plan])
    sites = [(site.site, site.layer) for site in attention_sites(made)]
    expected = [("encoder_self", 0), ("encoder_self", 1)]
    whole = {"tim": (0, 1), "all mixed": (0,)}.get(plan, ())  # layers without a cross-attention
    for layer in (0, 1):
        expected += [("decoder_self", layer)]
        expected += [("decoder_cross", layer)] if layer not in whole else []
    assert sites == expected
    # A stack by itself names them as within the model.
    of_stacks = [*attention_sites(made.encoder), *attention_sites(made.decoder)]
    assert [(site.site, site.layer) for site in of_stacks] == expected


def test_layers_that_are_wrapped_one_by_one_keep_their_sites():
    made = model("standard")
    expected = [(site.site, site.layer) for site in attention_sites(made)]
    for stack in (made.encoder, made.decoder):
        for layer in (0, 1):
            stack.layers[layer] = torch.compile(stack.layers[layer], backend="eager")
    assert [(site.site, site.layer) for site in attention_sites(made)] == expected


@pytest.mark.parametrize("plan", PLANS)
def test_weight_decay_spares_norms_biases_and_scalars(plan):
    made = model(PLANS[plan])
    decayed = {id(p) for p in decayed_parameters(made)}
    names = dict(made.named_parameters())
    spared = {name for name, p in names.items() if id(p) not in decayed}
    of_norms = {name for name in names if re.search(r"norm\d?\.(weight|bias)$", name)}
    biases = {name for name in names if name.endswith("bias")}
    scalars = {n for n in names if n.rpartition(".")[2] in ("kappa", "alpha", "beta_a", "beta_u")}
    assert spared == of_norms | biases | scalars


def millions(**options):
    with torch.device("meta"):
        made = hw.Seq2SeqLM(hw.Seq2SeqLMConfig(**options))
    made.tie_weights()
    return sum(p.numel() for p in made.parameters()) / 1e6


def test_parameter_counts_of_the_papers():
    """Table 1 of MoA's paper and table 2 of MAE's: 61M for the base model, 63M with gates."""
    base, mae = millions(), millions(attention="mae")
    assert base == pytest.approx(60.5, abs=0.05)
    assert mae == pytest.approx(63, abs=0.5)
    site = {"system": "moa", "size": "8K8E128D"}
    sites = ("encoder_self", "decoder_self", "decoder_cross")
    moa = millions(attention=dict.fromkeys(sites, site))
    assert moa == pytest.approx(
        base + 18 * (18 * 128 * 512 + 8 * 512 - 4 * 512 * 513) / 1e6, abs=1e-3
    )
    assert moa == pytest.approx(63, abs=0.5)
