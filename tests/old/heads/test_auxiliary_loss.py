"""The losses of systems in models that drop them, and who trains without."""

import copy
import gc
import io
import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

import headwise as hw
from headwise.heads.watching import UnreadLossWarning

MAKERS = {
    "moa": lambda **options: hw.MixtureOfAttentionHeads(
        16, num_experts=4, top_k=2, head_dim=4, **options
    ),
    "moh": lambda **options: hw.MixtureOfHeads(16, 4, shared_heads=1, top_k=2, **options),
}


def attention(name="moa", **options):
    made = MAKERS[name](**options)
    for weight in made.parameters():  # a router that starts at zero has every choice alike
        nn.init.normal_(weight, std=0.5)
    return made


def encoder(name="moa"):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, num_layers=2)
    for layer in model.layers:
        layer.self_attn = attention(name)
    return model


def inputs(seed=1):
    return torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(seed))


def by_hooks(model, x):
    """The losses as hooks of one's own collect them, and the gradients that they give."""
    found = []
    hooks = [
        layer.self_attn.register_forward_hook(lambda m, a, out: found.append(out.routing.loss))
        for layer in model.layers
    ]
    y = model(x)
    for hook in hooks:
        hook.remove()
    (y.square().mean() + 100 * sum(found)).backward()
    return sum(found).detach(), gradients(model)


def gradients(model):
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def check(model, call, x):
    """The pass `call` gives the losses and the gradients that hooks give."""
    loss, expected = by_hooks(model, x)
    y = call(x)
    found = hw.auxiliary_loss(model)
    torch.testing.assert_close(found.detach(), loss)
    assert loss > 1e-4
    (y.square().mean() + 100 * found).backward()
    torch.testing.assert_close(gradients(model), expected)


def checkpointed(model, **options):
    def call(x):
        for layer in model.layers:
            x = checkpoint(layer, x, **options)
        return x

    return call


@pytest.mark.parametrize("name", MAKERS)
def test_the_losses_of_all_layers_are_summed_with_their_gradients(name):
    model = encoder(name).train()
    check(model, model, inputs())


def test_losses_under_gradient_checkpointing():
    model = encoder().train()
    check(model, checkpointed(model, use_reentrant=False), inputs())


@pytest.mark.parametrize("name", MAKERS)
def test_losses_of_a_compiled_model(name):
    model = encoder(name).train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    check(model, compiled, inputs())
    check(model, compiled, inputs(2))
    compiled(inputs())
    assert torch.equal(hw.auxiliary_loss(compiled), hw.auxiliary_loss(model))


def test_a_compiled_step_may_add_the_losses_itself():
    model = encoder().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    compiled = torch.compile(
        lambda x: (model(x).square().mean(), hw.auxiliary_loss(model)),
        fullgraph=True,
        backend="aot_eager",
    )
    with warnings.catch_warnings(), torch._dynamo.config.patch(error_on_recompile=True):
        warnings.simplefilter("error", UnreadLossWarning)
        for seed in (1, 2, 3):
            loss, expected = by_hooks(model, inputs(seed))
            y, found = compiled(inputs(seed))
            torch.testing.assert_close(found.detach(), loss)
            (y + 100 * found).backward()
            optimizer.step()
            torch.testing.assert_close(gradients(model), expected)


# What counts as the last pass


def test_a_module_that_a_pass_calls_twice_counts_twice():
    shared = attention()
    first, second = shared(inputs()), shared(inputs(2))
    expected = first.routing.loss + second.routing.loss
    assert torch.equal(hw.auxiliary_loss(nn.Sequential(shared, shared)), expected)


def test_each_of_the_batches_of_a_step_has_its_own_losses():
    model = encoder().train()
    for seed in (1, 2):
        expected, _ = by_hooks(model, inputs(seed))
        y = model(inputs(seed))
        loss = hw.auxiliary_loss(model)
        torch.testing.assert_close(loss.detach(), expected)
        assert torch.equal(hw.auxiliary_loss(model), loss)
        assert torch.equal(sum(hw.auxiliary_loss(layer) for layer in model.layers), loss)
        (y.mean() + loss).backward()
        assert torch.equal(hw.auxiliary_loss(model), loss)  # to be logged
    left = model.layers[1].self_attn
    out = left(inputs())  # a pass that leaves out the other layer
    assert torch.equal(hw.auxiliary_loss(model), out.routing.loss)


def test_a_pass_that_nobody_asked_about_does_not_count_in_the_next():
    model = encoder().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model(inputs(3))  # thrown away
    kept = model(inputs(4))
    kept.mean().backward()
    with pytest.warns(UnreadLossWarning):
        optimizer.step()
    model.zero_grad()
    check(model, model, inputs())
    with torch.no_grad():
        for seed in (5, 6):
            model.eval()(inputs(seed))
        seen = hw.auxiliary_loss(model)
    expected, _ = by_hooks(model, inputs(6))
    torch.testing.assert_close(seen, expected)
    assert not seen.requires_grad


def test_a_pass_without_gradients_leaves_a_loss_that_waits_as_it_is():
    """As of a teacher, which is asked between the pass of training and its loss."""
    model = encoder().train()
    y = model(inputs())
    with torch.no_grad():
        model(inputs(1))
    loss = hw.auxiliary_loss(model)
    expected, _ = by_hooks(model, inputs())
    torch.testing.assert_close(loss, expected)
    assert loss.requires_grad
    del y


def test_a_graph_is_kept_no_longer_than_that_of_the_output():
    model = encoder().train()
    y = model(inputs())
    loss = hw.auxiliary_loss(model)
    value = loss.detach().clone()
    del loss
    saved = [layer.self_attn.losses.calls[0].value for layer in model.layers]
    assert all(each.requires_grad for each in saved)
    copied = copy.deepcopy(model)
    torch.save(model, io.BytesIO())
    assert hw.auxiliary_loss(copied) == 0
    copied(inputs())
    torch.testing.assert_close(hw.auxiliary_loss(copied).detach(), value)
    gc.disable()  # what is freed is freed at once
    try:
        del y, saved
        assert not any(
            layer.self_attn.losses.calls[0].value.requires_grad for layer in model.layers
        )
    finally:
        gc.enable()
    assert torch.equal(hw.auxiliary_loss(model), value)


def test_of_nested_systems_the_outer_ones_loss_counts():
    class Outer(hw.systems.System):
        def __init__(self, keeps):
            super().__init__()
            self.inner, self.keeps = attention(), keeps

        def forward(self, x):
            out = self.inner(x)
            routing = out.routing._replace(loss=3 * out.routing.loss) if self.keeps else None
            return out._replace(routing=routing)

    for keeps, factor in ((True, 3), (False, 1)):
        outer = Outer(keeps)
        outer(inputs())
        assert outer.inner.losses.calls
        inner = hw.auxiliary_loss(outer.inner)
        assert torch.equal(hw.auxiliary_loss(outer), factor * inner) and inner > 0


@pytest.mark.parametrize("model", [nn.Linear(2, 2), hw.MultiHeadAttention(16, 4), nn.Identity()])
def test_without_a_loss_it_is_zero(model):
    x = torch.randn(2, 5, 2) if isinstance(model, nn.Linear) else inputs()
    model(x)
    assert hw.auxiliary_loss(model) == 0 and hw.auxiliary_loss(model).shape == ()


@pytest.mark.parametrize("is_compiled", [False, True])
def test_within_transforms_of_torch_func_losses_are_those_of_the_outputs(is_compiled):
    layer, x = attention().eval(), inputs()
    before = layer(x).routing.loss
    (expected,) = torch.autograd.grad(before, layer.router.weight)

    def of_outputs(weight):
        return functional_call(layer, {"router.weight": weight}, x).routing.loss

    def of_model(weight):
        return of_outputs(weight) + hw.auxiliary_loss(layer)

    def computed(function):
        if is_compiled:
            function = torch.compile(function, fullgraph=True, backend="aot_eager")
        return function(layer.router.weight.detach())

    torch.testing.assert_close(computed(grad(of_outputs)), expected)
    for wrong in (grad(of_model), lambda weight: vmap(of_model)(weight[None])):
        with pytest.raises(Exception, match=r"add routing\.loss of the outputs"):
            computed(wrong)
    assert torch.equal(hw.auxiliary_loss(layer), before)  # outside


# Models that add the losses themselves


def language_model():
    attention = {"decoder_self": {"system": "moh", "shared_heads": 1, "top_k": 2}}
    config = hw.CausalLMConfig(
        vocab_size=20, embed_dim=16, num_heads=4, ffn_dim=32, layers=2, attention=attention
    )
    return hw.CausalLM(config).train()


def gated_model():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=20,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    model = LlamaForCausalLM(config).train()
    hw.gate_heads(model, "moh")
    return model


@pytest.mark.parametrize(
    ("make", "is_compiled"), [(language_model, False), (language_model, True), (gated_model, False)]
)
def test_what_a_model_has_added_is_not_added_twice(make, is_compiled):
    model, ids = make(), torch.randint(3, 20, (2, 6))
    called = torch.compile(model, backend="aot_eager") if is_compiled else model
    out = called(input_ids=ids, labels=ids)
    with pytest.warns(UserWarning, match="left out here, so as not to count twice"):
        assert hw.auxiliary_loss(model) == 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    out.loss.backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnreadLossWarning)
        warnings.filterwarnings("error", "left out here")
        optimizer.step()
        out = called(input_ids=ids)  # a loss of one's own, of logits
        assert hw.auxiliary_loss(model) > 0
        assert hw.auxiliary_loss(model).requires_grad


# Who trains without


def train(model, loss_of, steps=3):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("is_compiled", [False, True])
def test_who_never_adds_the_losses_is_told_once(is_compiled):
    model = encoder().train()
    called = torch.compile(model, fullgraph=True, backend="aot_eager") if is_compiled else model
    with pytest.warns(UnreadLossWarning, match=r"add headwise\.auxiliary_loss\(model\)") as seen:
        train(model, lambda m: called(inputs()).square().mean())
    # PyTorch has warnings of its own on some releases of Python, such as 3.13.0.
    (told,) = (each for each in seen if each.category is UnreadLossWarning)
    assert told.filename == __file__


def test_reentrant_checkpoints_take_the_gradient_away_and_say_so():
    model = encoder().train()
    call = checkpointed(model, use_reentrant=True)
    x = inputs().requires_grad_()
    with pytest.warns(UnreadLossWarning, match="use_reentrant=True"):
        train(model, lambda m: call(x).square().mean() + hw.auxiliary_loss(m))


@pytest.mark.parametrize("is_compiled", [False, True])
def test_who_adds_the_losses_is_not_warned(is_compiled):
    model = encoder().train()
    called = torch.compile(model, fullgraph=True, backend="aot_eager") if is_compiled else model
    alone, off = attention(), attention(balance_coef=0.0, z_coef=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, lambda m: called(inputs()).mean() + hw.auxiliary_loss(m))
        train(alone, lambda m: (out := m(inputs())).output.mean() + out.routing.loss)
        train(off, lambda m: m(inputs()).output.mean())
        frozen = encoder().requires_grad_(False)
        head = nn.Linear(16, 2)
        train(head, lambda m: m(frozen(inputs())).mean())
        train(head, lambda m: m(encoder()(inputs())).mean())  # no optimizer has the encoder
