"""How alike heads are, of attentions whose answer is known."""

import math

import pytest
import tiny
import torch
from tiny import PLANS, padded, tokens

import headwise as hw
from headwise.analysis.decisions.likeness import HeadMoments, Likeness, ModelLikeness

DIM, WIDTH = 12, 4


def attention(heads=3, seed=0):
    torch.manual_seed(seed)
    return hw.MultiHeadAttention(DIM, heads, head_dim=WIDTH).double().eval()


def likeness_of(model, *calls, **given):
    with Likeness(model) as likeness:
        for call in calls:
            model(call, **given)
    return likeness.result()


def only(made):
    (module,) = made.modules
    return module


@torch.no_grad()
def copy_head(module, to, of, names=("q_proj", "k_proj", "v_proj")):
    for name in names:
        proj = getattr(module, name)
        for parameter in (proj.weight, proj.bias):
            parameter[to * WIDTH : (to + 1) * WIDTH] = parameter[of * WIDTH : (of + 1) * WIDTH]


def naive_overlap(weights, real):
    """Mean over queries of Σ min(a, b), of weights `(batch, heads, queries, keys)`."""
    batch, heads, queries, _ = weights.shape
    rows = [(b, t) for b in range(batch) for t in range(queries) if real[b][t]]
    return [
        [
            sum(
                min(float(x), float(y))
                for b, t in rows
                for x, y in zip(weights[b, i, t], weights[b, j, t], strict=True)
            )
            / len(rows)
            for j in range(heads)
        ]
        for i in range(heads)
    ]


def test_a_copy_says_and_looks_the_same():
    module = attention()
    copy_head(module, to=2, of=0)
    made = only(likeness_of(module, torch.randn(5, 9, DIM).double()))
    assert made.outputs[0][2] == pytest.approx(1.0)
    assert made.attention[0][2] == pytest.approx(1.0)
    assert made.most_alike_outputs == made.most_alike_attention == (0, 2)
    assert made.outputs[0][1] < 0.9 and made.attention[0][1] < 0.999
    for matrix, mean in ((made.outputs, made.mean_outputs), (made.attention, made.mean_attention)):
        assert mean == pytest.approx((matrix[0][1] + matrix[0][2] + matrix[1][2]) / 3)
        assert all(matrix[i][i] == pytest.approx(1.0) for i in range(3))
        assert [[matrix[j][i] for j in range(3)] for i in range(3)] == [
            pytest.approx(row) for row in matrix
        ]
    assert (made.positions, made.queries, made.unit) == (45, 45, "head")


def test_a_head_that_says_the_same_turned_around_is_alike():
    module = attention(2)
    copy_head(module, to=1, of=0)
    turned, _ = torch.linalg.qr(torch.randn(WIDTH, WIDTH).double())
    with torch.no_grad():
        module.v_proj.weight[WIDTH:] = turned @ module.v_proj.weight[:WIDTH]
        module.v_proj.bias[WIDTH:] = 7.0
    made = only(likeness_of(module, torch.randn(5, 9, DIM).double()))
    assert made.mean_outputs == pytest.approx(1.0)


@pytest.mark.parametrize("causal", [False, True])
def test_padding_counts_nowhere(causal):
    """Against plain loops over what `forward` returns; one sequence alone says the same."""
    module, x = attention(), torch.randn(3, 6, DIM).double()
    padding = torch.arange(6) >= torch.tensor([6, 2, 4])[:, None]
    made = only(likeness_of(module, x, key_padding_mask=padding, is_causal=causal))
    assert made.positions == 12
    with torch.no_grad():
        weights = module(x, key_padding_mask=padding, is_causal=causal, need_weights=True).weights
    first = 1 if causal else 0  # where a query sees one key, all heads look alike
    counted = [[t >= first and not bool(padding[b, t]) for t in range(6)] for b in range(3)]
    assert made.queries == sum(map(sum, counted)) == (9 if causal else 12)
    for row, expected in zip(made.attention, naive_overlap(weights, counted), strict=True):
        assert row == pytest.approx(expected)
    with Likeness(module) as alone:
        for sequence, length in zip(x, (6, 2, 4), strict=True):
            module(sequence[None, :length], is_causal=causal)
    assert only(alone.result()).outputs == [pytest.approx(row) for row in made.outputs]
    assert only(alone.result()).attention == [pytest.approx(row) for row in made.attention]


def test_rows_of_attention_need_not_sum_to_1():
    module, x = hw.DifferentialAttention(DIM, 3).double().eval(), torch.randn(3, 6, DIM).double()
    weights = module(x, need_weights=True).weights.detach()
    assert weights.min() < 0
    made = only(likeness_of(module, x))
    for row, expected in zip(made.attention, naive_overlap(weights, [[1] * 6] * 3), strict=True):
        assert row == pytest.approx(expected)


def test_batches_and_contexts_add_up(monkeypatch):
    module, x = attention(), torch.randn(6, 5, DIM).double()
    together = likeness_of(module, x)
    apart = Likeness(module)
    for half in x.chunk(2):
        with apart:
            module(half)
    module(x)  # not counted
    monkeypatch.setattr("headwise.analysis.decisions.likeness._CHUNK", 3 * 5 * 5 * 4)
    chunked = likeness_of(module, x)  # four sequences at once, then two
    for other in (only(apart.result()), only(chunked)):
        for name in ("outputs", "attention"):
            for row, expected in zip(
                getattr(other, name), getattr(only(together), name), strict=True
            ):
                assert row == pytest.approx(expected)


def chosen_and_dense(kept=1):
    """One attention whose tokens choose 2 of 4 experts, and the same with all 4."""
    torch.manual_seed(0)
    options = {"num_key_value_heads": kept}
    sparse, dense = (hw.MixtureOfAttentionHeads(DIM, 4, k, WIDTH, **options) for k in (2, 4))
    sparse, dense = sparse.double().eval(), dense.double().eval()
    with torch.no_grad():
        sparse.router.weight.normal_()
    dense.load_state_dict(sparse.state_dict())
    return sparse, dense


@pytest.mark.parametrize("kept", [1, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_chosen_heads_are_compared_at_all_positions(causal, kept):
    sparse, dense = chosen_and_dense(kept)
    x = torch.randn(4, 6, DIM).double()
    padding = torch.arange(6) >= torch.tensor([6, 6, 3, 4])[:, None]
    given = {"key_padding_mask": padding, "is_causal": causal}
    made, expected = only(likeness_of(sparse, x, **given)), only(likeness_of(dense, x, **given))
    assert made.unit == ("expert" if kept == 1 else "head")  # each expert has two
    assert len(made.outputs) == 4 * kept and made.positions == 19
    assert made.outputs == [pytest.approx(row) for row in expected.outputs]
    assert made.attention == [pytest.approx(row) for row in expected.attention]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_every_system_has_it(plan):
    made = tiny.model(PLANS[plan])
    ids, mask = padded([5, 3], 5)
    with Likeness(made) as likeness, torch.autocast("cpu", torch.bfloat16):
        made(input_ids=ids, attention_mask=mask, decoder_input_ids=tokens(2, 4))
    result = likeness.result()
    assert [(m.where.site, m.where.layer) for m in result.modules] == [
        ("encoder_self", 0), ("encoder_self", 1), ("decoder_self", 0), ("decoder_cross", 0),
        ("decoder_self", 1), ("decoder_cross", 1),
    ]  # fmt: skip
    assert [m.positions for m in result.modules] == [8, 8, 8, 8, 8, 8]
    assert [m.queries for m in result.modules] == [8, 8, 6, 8, 6, 8]
    for module in result.modules:
        assert made.get_submodule(module.where.path) is not None
        assert 0.0 <= module.mean_attention <= 1.0
        assert module.mean_outputs is not None
    assert sum(system.modules for system in result.systems) == 6
    for system in result.systems:
        own = [m.mean_attention for m in result.modules if m.where.system == system.system]
        assert system.attention == pytest.approx(sum(own) / len(own))
    assert ModelLikeness.model_validate_json(result.model_dump_json()) == result


def test_one_head_alone_has_no_likeness():
    assert likeness_of(attention(1), torch.randn(2, 8, DIM).double()) is None
    assert Likeness(attention()).result() is None


def test_padding_that_attentions_are_not_told_can_be_said():
    module, x = attention(), torch.randn(2, 5, DIM).double()
    padding = torch.arange(5) >= torch.tensor([5, 3])[:, None]
    memory = torch.randn(2, 4, DIM).double()
    with Likeness(module) as told:
        told.padding = {"": padding}
        module(x, memory)
        told.padding = {"": padding[:, :2]}  # of other positions, so that it says nothing here
        module(x, memory)
    assert only(told.result()).positions == 8 + 10


DOUBLE = torch.float64


def cka(*heads, dtype=DOUBLE, batches=1):
    """Of heads that are `(positions, head_dim)` each."""
    moments = HeadMoments()
    for part in torch.stack(heads, dim=1).to(dtype).chunk(batches):
        moments.add(part)
    return moments.cka()


def naive_hsic(x, y):
    """The unbiased estimate as the equation reads, with the kernels themselves."""
    n = len(x)
    k, m = ([[float(a @ b) if i != j else 0.0 for j, b in enumerate(z)] for i, a in enumerate(z)]
            for z in (x, y))  # fmt: skip
    trace = sum(k[i][j] * m[j][i] for i in range(n) for j in range(n))
    sums = sum(map(sum, k)) * sum(map(sum, m))
    product = sum(sum(k[i]) * sum(m[i]) for i in range(n))
    return (trace + sums / (n - 1) / (n - 2) - 2 * product / (n - 2)) / (n * (n - 3))


def naive_cka(x, y):
    return naive_hsic(x, y) / math.sqrt(naive_hsic(x, x) * naive_hsic(y, y))


@pytest.mark.parametrize("positions", [4, 7, 12])
def test_it_is_the_definition(positions):
    heads = [torch.randn(positions, 3, dtype=DOUBLE) + 2 for _ in range(3)]
    heads[1] += heads[0]
    made = cka(*heads)
    for i, x in enumerate(heads):
        for j, y in enumerate(heads):
            if naive_hsic(x, x) > 0 and naive_hsic(y, y) > 0:
                assert float(made[i, j]) == pytest.approx(naive_cka(x, y), abs=1e-9)
            else:  # so few positions may leave nothing of a head
                assert math.isnan(made[i, j])


def test_independent_heads_are_at_zero_whatever_their_width():
    """The plain estimate would be near 1 with 20 positions of 64 dimensions."""
    draws = torch.stack([cka(torch.randn(20, 64), torch.randn(20, 64))[0, 1] for _ in range(300)])
    assert abs(float(draws.mean())) < 4 * float(draws.std()) / 300**0.5
    assert float(draws.std()) == pytest.approx(2**0.5 / 20, rel=0.25)


def test_a_head_that_says_the_same_everywhere_is_like_none():
    x = torch.randn(30, 4)
    for same in (torch.zeros(30, 4), torch.full((30, 4), 0.1) + torch.tensor([3.0, 1.0, 7.0, 0.3])):
        made = cka(x, same, x, dtype=torch.float32, batches=3)
        assert made[1].isnan().all() and made[:, 1].isnan().all()
        assert float(made[0, 2]) == pytest.approx(1.0, abs=1e-4)


def test_too_few_positions_say_nothing():
    assert cka(*torch.randn(2, 3, 4)).isnan().all()
    empty = HeadMoments()
    empty.add(torch.randn(0, 2, 4))
    assert empty.cka().shape == (0, 0)
