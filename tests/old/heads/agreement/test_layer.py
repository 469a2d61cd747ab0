"""Routing by agreement as a layer: what it reduces to, its parameters, cost and first outputs."""

import pytest
import torch
from reference import agreement_votes
from systems import DIM, HEADS, SYSTEMS, padding

import headwise as hw
from headwise.heads.agreement import AgreementAttention
from headwise.heads.attention import Attention

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
        assert round(6 * (count(simple) - count(unbiased)) / 1e6, 1) == 12.6


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


def outputs_of_attentions(model, tokens):
    outputs = []
    for module in model.modules():
        if isinstance(module, Attention):
            module.register_forward_hook(lambda *args: outputs.append(args[-1]))
    model(tokens)
    return outputs


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("layers", [2, 6])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_capsules": 32},
        {"routing": "simple"},
        {"routing": "simple", "num_capsules": 32},
        {"routing": "simple", "squash": False},
        {"routing": "simple", "squash": False, "num_capsules": 32},
        {"routing": "simple", "inputs": "all"},
        {"preset": "authors"},
        {"preset": "authors", "routing": "simple"},
    ],
    ids=str,
)
def test_at_the_start_all_heads_are_heard_in_outputs_of_the_standard_scale(options, layers, norm):
    sizes = {"vocab_size": 100, "embed_dim": 128, "num_heads": 8, "layers": layers, "norm": norm}
    tokens = torch.randint(0, 100, (8, 24))
    scales, heard = [], []
    for plan in ("standard", {"system": "agreement", **options}):
        model = hw.CausalLM(hw.CausalLMConfig(**sizes, attention=plan, dropout=0.0)).eval()
        outputs = outputs_of_attentions(model, tokens)
        scales.append(torch.stack([out.output.square().mean().sqrt() for out in outputs]))
        heard = [out.routing.heard.mean() for out in outputs if out.routing is not None]
    ratio = (scales[1] / scales[0]).mean()
    assert 0.5 <= ratio <= 2
    # The E step of wide capsules multiplies densities, which tell heads apart at any scale.
    is_wide_em = "num_capsules" in options and "routing" not in options
    assert torch.stack(heard).mean() >= (2.5 if is_wide_em else 4)
