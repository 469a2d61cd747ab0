"""MoH by itself: where it is standard attention, over other heads, and its ablations."""

from types import SimpleNamespace

import pytest
import reference
import torch
from systems import DIM, HEADS, SYSTEMS

import headwise as hw
from headwise.heads.moh.layer import query_norm_logits
from headwise.models.ablation import ablation_of

MOH = [name for name in SYSTEMS if name.startswith("moh")]
BATCH, TIME = 3, 4
FACTS = ("num_heads", "shared_heads", "top_k", "needs_queries", "scaled_gates")


def observed(layer, x):
    """One pass of the layer, and what its heads have read in it."""
    seen = []
    layer.observers = (seen.append,)
    out = layer(x, is_causal=True)
    layer.observers = ()
    return out, seen[0].outputs


def gates_at(layer, x, top_k=None):
    """The gates of one position by loops."""
    facts = {name: getattr(layer, name) for name in FACTS}
    facts["top_k"] = top_k or layer.top_k
    gates = reference.moh_gates(dict(layer.named_parameters()), x, SimpleNamespace(**facts))
    return [float(gate) for gate in gates]


def check(layer, heads, x, out, gates_of):
    """The output and the gates at each position are those that a function of it gives."""
    for b in range(len(x)):
        for t in range(x.size(1)):
            gates = torch.tensor(gates_of(x[b, t]), dtype=torch.float64)
            torch.testing.assert_close(out.routing.weights[b, t], gates)
            expected = layer.out_proj((heads[b, :, t] * gates.unsqueeze(-1)).flatten())
            torch.testing.assert_close(out.output[b, t], expected)


@pytest.mark.parametrize("routed", [1, 2, 4])
def test_query_norms_have_gradients(routed):
    q = torch.randn(BATCH, routed, TIME, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(query_norm_logits, q)


@torch.no_grad()
def test_a_standard_attention_with_fewer_heads_if_asked_for():
    """`neutral=False`: the weights of the source, and what remains of its output."""
    standard = hw.MultiHeadAttention(DIM, HEADS).double()
    options = {"shared_heads": 2, "top_k": 1, "router": "query-norm"}
    with pytest.raises(ValueError, match="top_k is 1, expected 2, by which every head counts 1"):
        hw.MixtureOfHeads.from_attention(standard, **options)
    made = hw.MixtureOfHeads.from_attention(standard, neutral=False, **options)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    out, heads = observed(made, x)
    check(made, heads, x, out, lambda position: gates_at(made, position))
    assert not torch.allclose(out.output, standard(x, is_causal=True).output)
    whole = hw.MixtureOfHeads.from_attention(standard, **{**options, "top_k": 2})
    torch.testing.assert_close(whole(x).output, standard(x).output, rtol=0, atol=0)


@pytest.mark.parametrize("routed", ["learned", "query-norm"])
def test_over_the_heads_of_another_module_that_it_selects_from(routed):
    sizes = {"shared_heads": 1, "top_k": 1, "router": routed}
    with pytest.raises(ValueError, match="top_k is 1, expected 3"):
        hw.MixtureOfHeads.over_heads(10, HEADS, 3, **sizes)
    over = hw.MixtureOfHeads.over_heads(10, HEADS, 3, neutral=False, **sizes)
    x, queries, read = torch.randn(2, 5, 10), torch.randn(2, 5, 12), torch.randn(2, 5, 12)
    given = {"value": read, "is_causal": True}
    if routed == "query-norm":
        with pytest.raises(ValueError, match=r"key has shape .* expected \(batch, time, 12\)"):
            over(x, **given)
        given["key"] = queries
    out = over(x, **given)
    gates = out.routing.weights
    assert (gates > 0).sum(-1).eq(2).all()
    expected = read.unflatten(-1, (HEADS, 3)) * gates.unsqueeze(-1)
    torch.testing.assert_close(out.output, expected.flatten(2))
    if routed == "query-norm":
        longest = queries.unflatten(-1, (HEADS, 3)).norm(dim=-1)[..., 1:].argmax(-1)
        assert torch.equal(out.routing.indices[..., 1] - 1, longest)


@pytest.mark.parametrize("shared", range(HEADS))
@pytest.mark.parametrize("masks", [{}, {"is_causal": True}], ids=["none", "causal"])
def test_all_heads_and_nothing_learned_are_standard_attention(shared, masks):
    """So routers can be added to a pretrained model without changing what it computes."""
    sizes = {"shared_heads": shared, "top_k": HEADS - shared}
    standard = hw.MultiHeadAttention(DIM, HEADS)
    moh = hw.MixtureOfHeads(DIM, HEADS, **sizes, router_start="neutral")
    missing, unexpected = moh.load_state_dict(standard.state_dict(), strict=False)
    assert not unexpected and all("router" in name for name in missing)
    x = torch.randn(BATCH, TIME, DIM)
    for layer in (moh, hw.MixtureOfHeads.from_attention(standard, **sizes)):
        out = layer(x, **masks)
        torch.testing.assert_close(out.routing.weights, torch.ones(BATCH, TIME, HEADS))
        torch.testing.assert_close(out.output, standard(x, **masks).output, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", MOH)
@pytest.mark.parametrize("ablation", sorted(hw.MixtureOfHeads.ablations.keys() - {"random"}))
@torch.no_grad()
def test_ablations_gate_by_gate(name, ablation):
    layer = SYSTEMS[name].build()
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    out, heads = observed(layer, x)
    options = {"without-head": {"head": 1}, "only-head": {"head": 1}, "fewer-heads": {"top_k": 1}}
    layer.ablation = ablation_of(layer, ablation, options.get(ablation, {}))
    out = layer(x, is_causal=True)
    if ablation in ("without-head", "only-head"):  # those of all attentions leave the gates
        kept = torch.tensor([(h == 1) == (ablation == "only-head") for h in range(HEADS)])
        heads = heads * kept.view(1, HEADS, 1, 1)

    def changed(position):
        gates = gates_at(layer, position, 1 if ablation == "fewer-heads" else None)
        in_force = [g for g in gates if g]
        if ablation == "uniform":
            return [sum(in_force) / len(in_force) if g else 0.0 for g in gates]
        if ablation == "without-top-head":  # the first where several are the largest
            return [0.0 if i == gates.index(max(gates)) else g for i, g in enumerate(gates)]
        return gates

    check(layer, heads, x, out, changed)
