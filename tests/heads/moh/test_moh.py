"""MoH by itself: its numerics' naive twins, the special cases, its ablations, its words."""

import pytest
import torch
from systems import DIM, HEADS, SYSTEMS, padding

import headwise as hw
from headwise.analysis.decisions.snapshots import record_attention
from headwise.heads.ablations import drawn_weights
from headwise.heads.moh.naive import (
    naive_balance_loss,
    naive_gates,
    naive_quantized_gates,
    naive_query_norm_logits,
)
from headwise.heads.moh.routing import balance_loss, query_norm_logits, select_heads
from headwise.models.ablation import ablation_of
from headwise.models.plan import build_system

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


@torch.no_grad()
def test_the_scaled_loss_says_how_uneven_the_heads_are():
    """β K where all are equally in use, β R where all tokens select one head alone."""
    layer = hw.MixtureOfHeads(DIM, HEADS, shared_heads=0, top_k=1, balance_coef=0.5)
    even, one = torch.eye(HEADS, DIM).unsqueeze(0), torch.eye(1, DIM).expand(1, 4, DIM)
    layer.routed_router.weight.copy_(50 * torch.eye(HEADS, DIM))
    assert float(layer(even).routing.loss) == pytest.approx(0.5)
    assert float(layer(one).routing.loss) == pytest.approx(0.5 * HEADS)


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


@pytest.mark.parametrize("routed", [1, 2])
def test_equal_query_norms_have_finite_gradients(routed):
    """Equal norms have no deviation to divide by; a query of zeros has no direction."""
    for q in (torch.ones(1, routed, 2, 3), torch.zeros(1, routed, 2, 3)):
        q.requires_grad_()
        logits = query_norm_logits(q)
        logits.softmax(-1)[..., 0].sum().backward()
        assert logits.isfinite().all() and q.grad.isfinite().all()


def test_the_gradient_of_a_gate_goes_to_the_probability_straight():
    """∂loss/∂pᵢ = ∂loss/∂gᵢ of all routed heads, by the chain rule from gates that are leaves."""
    layer, shared = by_query_norms(1, 2, balance_coef=0.0), 1
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    _, heads = observed(layer, x)
    direction = torch.randn_like(x)
    output = layer(x, is_causal=True).output
    (got,) = torch.autograd.grad((output * direction).sum(), layer.q_proj.weight)

    # The loss as a function of gates alone: gᵢ oᵢ · (direction W)ᵢ.
    seen = (direction @ layer.out_proj.weight).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    of_gates = (heads * seen).sum(-1).transpose(1, 2)[..., shared:].detach()
    assert (of_gates != 0).all()  # those of heads that are not selected count too
    weight = layer.q_proj.weight.detach().clone().requires_grad_()
    q = (x @ weight.T + layer.q_proj.bias).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    norms = q[:, shared:].square().sum(-1).sqrt().transpose(1, 2)
    mean = norms.mean(-1, keepdim=True)
    deviation = ((norms - mean).square().sum(-1, keepdim=True) / (HEADS - shared - 1)).sqrt()
    probability = (norms / deviation).softmax(-1)
    (straight,) = torch.autograd.grad((probability * of_gates).sum(), weight)

    # What the queries learn besides, by attending: the same layer with gates that are constants.
    gates = layer(x, is_causal=True).routing.weights.detach()
    module = hw.MultiHeadAttention(DIM, HEADS).double()
    module.load_state_dict(layer.state_dict())
    seen = []
    module.observers = (seen.append,)
    module(x, is_causal=True)
    joined = (seen[0].outputs.transpose(1, 2) * gates.unsqueeze(-1)).flatten(2)
    attending = (module.out_proj(joined) * direction).sum()
    (by_attending,) = torch.autograd.grad(attending, module.q_proj.weight)
    torch.testing.assert_close(got, straight + by_attending)
    assert not torch.allclose(got, by_attending)


@torch.no_grad()
def test_query_norms_select_the_heads_of_the_longest_queries():
    layer = by_query_norms(1, 1)
    layer.q_proj.weight.zero_()
    layer.q_proj.bias.copy_(torch.tensor([9.0, 1.0, 3.0, 2.0]).repeat_interleave(DIM // HEADS))
    routing = layer(torch.randn(1, 2, DIM, dtype=torch.float64)).routing
    assert routing.weights.tolist() == [[[1.0, 0.0, 1.0, 0.0]] * 2]
    assert routing.indices.tolist() == [[[0, 2]] * 2]


def test_query_norms_have_no_parameters_and_three_quarters_of_the_heads_as_in_the_paper():
    standard = hw.MultiHeadAttention(DIM, HEADS)
    layer = by_query_norms(2, 1)
    assert layer.state_dict().keys() == standard.state_dict().keys()
    place = hw.systems.Place("decoder_self", embed_dim=64, num_heads=32, ffn_dim=8)
    layer = build_system({"system": "moh", "router": "query-norm"}, place)
    assert (layer.shared_heads, layer.top_k) == (16, 8)
    assert layer(torch.randn(1, 3, 64)).routing.weights.sum(-1).tolist() == [[24.0] * 3]


def test_what_a_standard_attention_does_not_have_has_to_be_given():
    standard = hw.MultiHeadAttention(DIM, HEADS)
    said = r"shared_heads and top_k are missing, .*\(attention, shared_heads=\.\.\., top_k=\.\.\.\)"
    with pytest.raises(ValueError, match=said):
        hw.MixtureOfHeads.from_attention(standard)
    with pytest.raises(ValueError, match=r"top_k is missing, .* give it"):
        hw.MixtureOfHeads.from_attention(standard, shared_heads=2)


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


def test_over_heads_all_or_three_quarters_are_in_force_if_nothing_is_said():
    for neutral, options, top_k in ((True, {}, 4), (False, {}, 2), (False, {"shared_heads": 2}, 3)):
        over = hw.MixtureOfHeads.over_heads(10, 8, 3, neutral=neutral, **options)
        assert (over.shared_heads, over.top_k) == (options.get("shared_heads", 4), top_k)


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
        as_wide = hw.MixtureOfHeads.over_heads(12, HEADS, 3, neutral=False, **sizes)
        with pytest.raises(ValueError, match="key is not given, expected the queries of the heads"):
            as_wide(read, **given)
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


@pytest.mark.parametrize(
    ("options", "message"),
    [({"top_k": 1}, "top_k is 1, expected 3"), ({"scaled_gates": False}, "scaled_gates is False")],
)
def test_from_a_standard_attention_that_cannot_stay_as_it_is(options, message):
    with pytest.raises(ValueError, match=f"cannot start from a standard .*{message}"):
        hw.MixtureOfHeads.from_attention(
            hw.MultiHeadAttention(DIM, HEADS), **{"shared_heads": 1, "top_k": 3, **options}
        )


@pytest.mark.parametrize("name", MOH)
def test_routing_says_which_heads_are_in_force(name):
    layer = SYSTEMS[name].build()
    routing = layer(torch.randn(BATCH, TIME, DIM, dtype=torch.float64)).routing
    in_force = torch.zeros(BATCH, TIME, HEADS, dtype=torch.bool)
    in_force.scatter_(-1, routing.indices, True)
    assert routing.indices.shape == (BATCH, TIME, layer.shared_heads + layer.top_k)
    assert torch.equal(routing.weights > 0, in_force)
    assert in_force[..., : layer.shared_heads].all()


@pytest.mark.parametrize("name", MOH)
@pytest.mark.parametrize("ablation", hw.MixtureOfHeads.ablations)
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

    if ablation != "random":
        check(layer, heads, x, out, changed)
        return
    shares = out.routing.weights / out.routing.weights.sum(-1, keepdim=True)
    torch.testing.assert_close(shares, shares[:1, :1].expand_as(shares))
    number = layer.shared_heads + layer.top_k
    (drawn,) = drawn_weights(number, 1, 0, 0, 1)
    shares = shares[0, 0]
    torch.testing.assert_close(shares[shares > 0].sort()[0], drawn.double().sort()[0])
    assert (shares[: layer.shared_heads] > 0).all()


@torch.no_grad()
def test_random_heads_share_what_the_selected_would_have_had():
    layer = SYSTEMS["moh of all heads"].build()
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    total = layer(x).routing.weights.sum(-1)
    layer.ablation = ablation_of(layer, "random", {})
    torch.testing.assert_close(layer(x).routing.weights.sum(-1), total)


def test_one_selected_head_learns_its_router_from_the_loss_alone():
    """The reading of the authors' code that the docstring warns of; the text has no such case."""
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    for scaled in (True, False):
        layer = SYSTEMS["moh"].build(top_k=1, scaled_gates=scaled)
        layer(x).output.square().sum().backward()
        gradient = layer.routed_router.weight.grad
        assert (gradient.abs().max() < 1e-12) == scaled


def test_the_promised_parameters():
    standard = dict(hw.MultiHeadAttention(DIM, HEADS).named_parameters()).keys()
    wanted = {
        0: {"routed_router.weight": (4, DIM)},
        1: {"routed_router.weight": (3, DIM), "kind_router.weight": (2, DIM)},
        2: {
            "routed_router.weight": (2, DIM),
            "kind_router.weight": (2, DIM),
            "shared_router.weight": (2, DIM),
        },
    }
    for shared, expected in wanted.items():
        layer = hw.MixtureOfHeads(DIM, HEADS, shared_heads=shared, top_k=1)
        added = {n: tuple(p.shape) for n, p in layer.named_parameters() if n not in standard}
        assert added == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shared_heads": 4, "top_k": 1}, "shared_heads is 4, expected 0 to 3"),
        ({"shared_heads": -1, "top_k": 1}, "shared_heads is -1, expected 0 to 3"),
        ({"shared_heads": 1, "top_k": 4}, "top_k is 4, expected 1 to 3"),
        ({"shared_heads": 1, "top_k": 0}, "top_k is 0, expected 1 to 3"),
        ({"shared_heads": 1, "top_k": 1, "router_start": "zero"}, "router_start is 'zero'"),
        ({"shared_heads": 1, "top_k": 1, "router": "query"}, "router is 'query', expected 'le"),
        (
            {"shared_heads": 1, "top_k": 1, "router": "query-norm", "scaled_gates": False},
            "scaled_gates is False, expected it to be left out: router is 'query-norm'",
        ),
        (
            {"shared_heads": 1, "top_k": 1, "router": "query-norm", "router_start": "neutral"},
            "router_start is 'neutral', expected it to be left out",
        ),
    ],
)
def test_sizes_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        hw.MixtureOfHeads(DIM, HEADS, **options)


@pytest.mark.parametrize(
    ("heads", "options", "expected"),
    [
        (8, {}, (4, 2)),
        (2, {}, (1, 1)),
        (1, {}, (0, 1)),
        (8, {"shared_heads": 2}, (2, 3)),
        (8, {"num_heads": 16}, (8, 4)),
    ],
)
def test_a_plan_has_three_quarters_of_the_heads_in_force(heads, options, expected):
    place = hw.systems.Place("encoder_self", embed_dim=32, num_heads=heads, ffn_dim=8)
    layer = build_system({"system": "moh", **options}, place)
    assert (layer.shared_heads, layer.top_k) == expected


def test_load_is_of_choices_and_entropy_of_the_heads_in_force():
    plan = {"system": "moh", "shared_heads": 1, "top_k": 2, "router_start": "neutral"}
    config = hw.CausalLMConfig(
        vocab_size=9, embed_dim=16, num_heads=4, ffn_dim=8, layers=1, attention=plan
    )
    model = hw.CausalLM(config)
    (found,) = record_attention(model, [{"input_ids": torch.randint(3, 9, (2, 5))}])
    assert found.load[0] == pytest.approx(1 / 3) and sum(found.load) == pytest.approx(1.0)
    # Three heads are in force; with nothing learned the gates of all three are 1.
    assert found.uniform == pytest.approx(torch.tensor(3.0).log().item())
    assert found.entropy == pytest.approx(found.uniform)
