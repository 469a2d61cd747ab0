"""MoH by itself: its numerics' naive twins, the special cases, its ablations, its words."""

import pytest
import torch
from systems import DIM, HEADS, SYSTEMS, padding

import headwise as hw
from headwise.heads.moh.naive import (
    naive_balance_loss,
    naive_gates,
    naive_quantized_gates,
    naive_query_norm_logits,
)
from headwise.heads.moh.routing import balance_loss, query_norm_logits, select_heads
from headwise.models.ablation import ablation_of

MOH = [name for name in SYSTEMS if name.startswith("moh")]
BATCH, TIME, ROUTED = 3, 4, 5


def observed(layer, x):
    """One pass of the layer, and what its heads have read in it."""
    seen = []
    layer.observers = (seen.append,)
    out = layer(x, is_causal=True)
    layer.observers = ()
    return out, seen[0].outputs


def gates_at(layer, x, top_k=None):
    """The naive gates of one position."""
    if layer.needs_queries:
        queries = layer.q_proj(x).unflatten(0, (HEADS, -1))[layer.shared_heads :].tolist()
        logits = naive_query_norm_logits(queries)
        return naive_quantized_gates(layer.shared_heads, logits, top_k or layer.top_k)
    shared = [] if layer.kind_router is None else [0.0] * layer.shared_heads
    if layer.shared_router is not None:
        shared = layer.shared_router(x).tolist()
    kinds = [] if layer.kind_router is None else layer.kind_router(x).tolist()
    routed = layer.routed_router(x).tolist()
    return naive_gates(shared, routed, kinds, top_k or layer.top_k, layer.scaled_gates)


def check(layer, heads, x, out, gates_of):
    """The output and the gates at each position are those that a function of it gives."""
    for b in range(len(x)):
        for t in range(x.size(1)):
            gates = torch.tensor(gates_of(x[b, t]), dtype=torch.float64)
            torch.testing.assert_close(out.routing.weights[b, t], gates)
            expected = layer.out_proj((heads[b, :, t] * gates.unsqueeze(-1)).flatten())
            torch.testing.assert_close(out.output[b, t], expected)


@pytest.mark.parametrize("name", MOH)
@torch.no_grad()
def test_gates_equal_their_naive_twin(name):
    layer = SYSTEMS[name].build()
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    out, heads = observed(layer, x)
    check(layer, heads, x, out, lambda position: gates_at(layer, position))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("top_k", [1, 2, ROUTED])
def test_the_balance_loss_equals_its_naive_twin_forward_and_backward(top_k, padded):
    logits = torch.randn(BATCH, TIME, ROUTED, dtype=torch.float64, requires_grad=True)
    mask = padding(4, 2, 0, time=TIME) if padded else None
    probability = logits.softmax(-1)
    _, chosen = select_heads(probability, top_k, scaled=True)
    fast, naive = (loss(probability, chosen, mask) for loss in (balance_loss, naive_balance_loss))
    torch.testing.assert_close(fast, naive)
    grads = [torch.autograd.grad(loss, logits, retain_graph=True) for loss in (fast, naive)]
    torch.testing.assert_close(*grads)


def by_query_norms(shared_heads, top_k, **options):
    options = {"shared_heads": shared_heads, "top_k": top_k, "router": "query-norm", **options}
    return hw.MixtureOfHeads(DIM, HEADS, **options).double()


@pytest.mark.parametrize("routed", [1, 2, 4])
def test_query_norm_logits_equal_their_naive_twin_forward_and_backward(routed):
    q = torch.randn(BATCH, routed, TIME, 3, dtype=torch.float64, requires_grad=True)
    fast = query_norm_logits(q)
    for b in range(BATCH):
        for t in range(TIME):
            naive = torch.tensor(naive_query_norm_logits(q[b, :, t].tolist()), dtype=q.dtype)
            torch.testing.assert_close(fast[b, t], naive)
    assert torch.autograd.gradcheck(query_norm_logits, q)


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
    sizes = {"shared_heads": shared, "top_k": HEADS - shared, "router_start": "neutral"}
    standard, moh = hw.MultiHeadAttention(DIM, HEADS), hw.MixtureOfHeads(DIM, HEADS, **sizes)
    missing, unexpected = moh.load_state_dict(standard.state_dict(), strict=False)
    assert not unexpected and all("router" in name for name in missing)
    x = torch.randn(BATCH, TIME, DIM)
    del sizes["router_start"]
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
