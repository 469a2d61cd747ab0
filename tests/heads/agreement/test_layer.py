"""Routing by agreement as a layer: what it reduces to, its parameters, cost and first outputs."""

import pytest
import torch
from reference import agreement_votes
from systems import DIM, HEADS, SYSTEMS, padding

import headwise as hw
from headwise.heads.agreement import AgreementAttention
from headwise.heads.agreement.simple import Simple
from headwise.heads.agreement.votes import by_capsule
from headwise.models.sites import attention_sites

BATCH, TIME = 2, 5
ALL = [name for name in SYSTEMS if name.startswith("agreement")]


def test_one_iteration_of_simple_routing_is_the_mean_of_the_votes():
    """Weights C are 1/N throughout: nothing but the ReLU is not linear."""
    module = SYSTEMS["agreement-simple"].build(squash=False, iterations=1)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    p = dict(module.named_parameters())
    out = module(x)
    for b in range(BATCH):
        for t in range(TIME):
            votes = agreement_votes(p, x, x, x, HEADS, b, t)
            torch.testing.assert_close(out.output[b, t], sum(votes) / HEADS)
    torch.testing.assert_close(out.routing.weights, torch.full_like(out.routing.weights, 1 / HEADS))


def test_with_positive_capsules_that_is_standard_attention():
    """The output projection has slices W_h W_{h→} / H, and the bias Σ_h b_h W_{h→} / H."""
    module = SYSTEMS["agreement-simple"].build(squash=False, iterations=1)
    standard = hw.MultiHeadAttention(DIM, HEADS).double()
    with torch.no_grad():
        module.capsule_bias.fill_(100.0)
        for name in ("q_proj", "k_proj", "v_proj"):
            getattr(standard, name).load_state_dict(getattr(module, name).state_dict())
        maps = module.capsule_weight @ module.vote_weight / HEADS  # (heads, head_dim, embed_dim)
        standard.out_proj.weight.copy_(maps.flatten(0, 1).t())
        biases = module.capsule_bias.unsqueeze(1) @ module.vote_weight
        standard.out_proj.bias.copy_(biases.sum((0, 1)) / HEADS)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    masks = {"is_causal": True, "key_padding_mask": padding(5, 3, time=TIME)}
    torch.testing.assert_close(module(x, **masks).output, standard(x, **masks).output)


def test_heads_that_agree_are_not_routed():
    """Equal votes have equal weights, and their mean is what each of them says."""
    module = SYSTEMS["agreement-simple"].build(squash=False)
    with torch.no_grad():
        for name in ("capsule_weight", "capsule_bias", "vote_weight"):
            weight = getattr(module, name)
            weight.copy_(weight[:1].expand_as(weight).clone())
        for name in ("q_proj", "k_proj", "v_proj"):
            for parameter in getattr(module, name).parameters():
                first = parameter[: module.head_dim].clone()
                parameter.copy_(torch.cat([first] * HEADS))
    x = torch.randn(1, 3, DIM, dtype=torch.float64)
    out = module(x)
    votes = agreement_votes(dict(module.named_parameters()), x, x, x, HEADS, 0, 1)
    torch.testing.assert_close(out.output[0, 1], votes[0])
    torch.testing.assert_close(out.routing.weights, torch.full_like(out.routing.weights, 1 / HEADS))


@pytest.mark.parametrize("name", ALL)
def test_routing_tells_how_much_each_head_counts(name):
    module = SYSTEMS[name].build()
    routing = module(torch.randn(BATCH, TIME, DIM, dtype=torch.float64)).routing
    assert routing.loss is None and routing.indices is None
    assert routing.weights.shape == (BATCH, TIME, HEADS)
    assert (routing.weights >= 0).all() and not routing.weights.requires_grad
    ones = torch.ones(BATCH, TIME, dtype=torch.float64)
    torch.testing.assert_close(routing.weights.sum(-1), ones)


@pytest.mark.parametrize("embed_dim, heads", [(512, 8), (1024, 16)])
def test_as_many_parameters_as_the_paper_counts(embed_dim, heads):
    """Table 2: 12.6M more in six layers of the base model; two scalars, and biases, aside."""
    with torch.device("meta"):
        routed = AgreementAttention(embed_dim, heads)
        simple = AgreementAttention(embed_dim, heads, routing="simple", bias=False)
        standard = hw.MultiHeadAttention(embed_dim, heads)
        unbiased = hw.MultiHeadAttention(embed_dim, heads, bias=False)
    count = lambda module: sum(p.numel() for p in module.parameters())  # noqa: E731
    assert count(simple) - count(unbiased) == heads * embed_dim**2
    biases = (heads - 1) * embed_dim
    assert count(routed) - count(standard) == heads * embed_dim**2 + biases + 2
    if embed_dim == 512:
        assert round(6 * heads * embed_dim**2 / 1e6, 1) == 12.6


def test_promised_names_and_shapes():
    module = AgreementAttention(12, 4, head_dim=5, kdim=7, vdim=8)
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    assert shapes == {
        "q_proj.weight": (20, 12),
        "q_proj.bias": (20,),
        "k_proj.weight": (20, 7),
        "k_proj.bias": (20,),
        "v_proj.weight": (20, 8),
        "v_proj.bias": (20,),
        "capsule_weight": (4, 5, 12),
        "capsule_bias": (4, 12),
        "vote_weight": (4, 12, 12),
        "beta_a": (1,),
        "beta_u": (1,),
    }
    simple = AgreementAttention(12, 4, routing="simple", bias=False)
    assert set(simple.state_dict()) == {
        *(f"{p}_proj.weight" for p in "qkv"),
        *("capsule_weight", "vote_weight"),
    }


def test_macs_count_the_votes():
    routed, standard = AgreementAttention(64, 4), hw.MultiHeadAttention(64, 4)
    more = routed.macs(3, 5).linear - standard.macs(3, 5).linear
    assert more == 3 * 4 * 64**2
    assert routed.macs(3, 5).attention == standard.macs(3, 5).attention


@pytest.mark.parametrize("embed_dim, heads", [(64, 4), (256, 8)])
@pytest.mark.parametrize("options", [{}, {"routing": "simple", "squash": False}])
def test_starts_with_outputs_as_large_as_those_of_standard_attention(embed_dim, heads, options):
    x = torch.randn(8, 30, embed_dim)
    standard = hw.MultiHeadAttention(embed_dim, heads)
    routed = AgreementAttention(embed_dim, heads, **options)
    projections = {k: v for k, v in standard.state_dict().items() if not k.startswith("out")}
    routed.load_state_dict(projections, strict=False)
    ratio = (routed(x).output.std() / standard(x).output.std()).item()
    assert 0.5 < ratio < 2


def heard(votes, capsules, iterations, squash):
    """How many heads a capsule of simple routing hears: the exponential of the entropy of their
    shares, on average.
    """
    chunk = by_capsule(votes.transpose(0, 1), capsules)
    steps = Simple(capsules, iterations, squash).steps(chunk)
    share = steps[-1].share  # (heads, tokens, capsules)
    entropy = -(share * share.clamp(min=1e-30).log()).sum(0)
    return float(entropy.exp().mean())


@pytest.mark.parametrize("norm, layers", [("post", 2), ("pre", 2), ("pre", 6)])
@pytest.mark.parametrize(
    "options",
    [
        {"routing": "em"},
        *(
            {"routing": "simple", "squash": squash, "num_capsules": capsules}
            for squash in (True, False)
            for capsules in (64, 8)
        ),
    ],
    ids=str,
)
def test_a_model_starts_with_heads_that_are_heard(norm, layers, options, monkeypatch):
    """In each layer a capsule hears at least 4 of 8 heads before the first step, and the output has
    about the scale of standard attention.
    """
    sizes = {"embed_dim": 64, "num_heads": 8, "ffn_dim": 64, "layers": layers, "norm": norm}
    plan = {"system": "agreement", **options}
    scales, heads = {}, []
    route = AgreementAttention._route

    def noted(self, votes):
        if self.method == "simple":
            heads.append(heard(votes, self.num_capsules, self.iterations, self.squash))
        return route(self, votes)

    monkeypatch.setattr(AgreementAttention, "_route", noted)
    ids = torch.randint(4, 100, (8, 12))
    for name in (plan, "standard"):
        torch.manual_seed(1)
        model = hw.MaskedLM(hw.MaskedLMConfig(vocab_size=100, attention=name, **sizes)).eval()
        found = scales[str(name)] = []
        for place in attention_sites(model):
            place.module.register_forward_hook(
                lambda module, args, out, found=found: found.append(out[0].std().item())
            )
        model(ids)
    ratios = [a / b for a, b in zip(scales[str(plan)], scales["standard"], strict=True)]
    assert all(0.4 < ratio < 2 for ratio in ratios), ratios
    assert len(heads) == (layers if options["routing"] == "simple" else 0)
    assert all(each >= 4 for each in heads), heads


def test_votes_of_a_given_scale():
    for gain in (1.0, 3.0):
        votes = AgreementAttention(64, 4, vote_gain=gain).vote_weight
        assert float(votes.detach().abs().max()) == pytest.approx(gain * (3 / 64) ** 0.5, rel=0.01)
    with pytest.raises(ValueError, match="vote_gain is 0"):
        AgreementAttention(64, 4, vote_gain=0)


def test_parameters_made_on_meta_can_be_drawn():
    with torch.device("meta"):
        module = AgreementAttention(16, 4)
    module.to_empty(device="cpu")
    for parameter in module.parameters():
        torch.nn.init.constant_(parameter, float("nan"))
    module.reset_parameters()
    assert all(p.isfinite().all() for p in module.parameters())
    assert module.beta_a == 0 and module.beta_u == 0
    assert module(torch.randn(1, 3, 16)).output.isfinite().all()


def test_it_learns():
    """Routed heads can fit what one token of a sequence says."""
    module = AgreementAttention(16, 4)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    x = torch.randn(16, 6, 16)
    target = x.roll(1, dims=-1) / 2
    losses = []
    for _ in range(60):
        loss = (module(x).output - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("name", ALL)
def test_stands_in_pytorchs_own_layers(name):
    """Also in evaluation, where they look for packed weights to hand to a kernel of their own."""
    module = SYSTEMS[name].build()
    layer = torch.nn.TransformerEncoderLayer(DIM, HEADS, 16, 0.0, batch_first=True).double()
    layer.self_attn = module
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    expected = layer.norm1(x + module(x).output)
    expected = layer.norm2(expected + layer._ff_block(expected))
    with torch.no_grad():  # with gradients they never do
        torch.testing.assert_close(layer.eval()(x), expected)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"routing": "magic"}, "routing is 'magic', expected 'em' or 'simple'"),
        ({"num_capsules": 5}, "num_capsules is 5, expected a divisor of embed_dim = 12"),
        ({"num_capsules": 0}, "num_capsules is 0, expected a divisor of embed_dim = 12"),
        ({"iterations": 0}, "iterations is 0, expected at least 1"),
        ({"activation": "softmax"}, "expected 'sigmoid' or 'standardised' or 'none'"),
        ({"normalize": "all"}, "normalize is 'all', expected 'capsules' or 'heads'"),
        ({"inverse_temperature": -1.0}, "inverse_temperature is -1.0, expected a positive number"),
        (
            {"inverse_temperature": 1e300},
            "is 1e+300, expected a positive number, at most 1,000,000",
        ),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError) as error:
        AgreementAttention(12, 4, **options)
    assert message in str(error.value)


def test_the_largest_inverse_temperature_is_finite():
    module = AgreementAttention(12, 4, inverse_temperature=1e6)
    x = (100 * torch.randn(2, 3, 12)).requires_grad_()
    output = module(x).output
    output.square().sum().backward()
    assert output.isfinite().all() and x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


@pytest.mark.parametrize(
    "options, shown",
    [
        ({}, "head_dim=3, routing=em, num_capsules=12, iterations=3"),
        ({"routing": "simple"}, "routing=simple, squash=True, num_capsules=12"),
    ],
)
def test_printing_tells_the_sizes(options, shown):
    assert shown in repr(AgreementAttention(12, 4, **options))
