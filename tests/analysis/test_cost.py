"""`headwise cost`: parameters are those of the model, products those that PyTorch counts."""

import pytest
import torch
from support.tiny_tasks import SYSTEMS, answer, run, write_recipe
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import headwise as hw
from headwise.analysis.cost import model_cost

SIZES = {"vocab_size": 280, "embed_dim": 16, "num_heads": 4, "ffn_dim": 16}
MODELS = {
    "language-modelling": (hw.CausalLM, {"layers": 1}),
    "translation": (hw.Seq2SeqLM, {"encoder_layers": 1, "decoder_layers": 1}),
}


@pytest.fixture(scope="module")
def costs(tmp_path_factory):
    """Of each task what `headwise cost` says."""
    found = {}
    for task in MODELS:
        recipe = write_recipe(task, tmp_path_factory.mktemp(task))
        (found[task],) = answer("cost", recipe)["recipes"]
    return found


def model(task, system):
    kind, layers = MODELS[task]
    return kind(kind.config_class(**SIZES, **layers, attention=SYSTEMS[system])).eval()


@pytest.mark.parametrize("task", MODELS)
@pytest.mark.parametrize("system", SYSTEMS)
def test_parameters_are_those_of_the_model(costs, task, system):
    parameters = costs[task]["systems"][system]["parameters"]
    total = parameters.pop("total")
    assert total == model(task, system).num_parameters()
    assert sum(parameters.values()) == total


@pytest.mark.parametrize("task", MODELS)
@pytest.mark.parametrize("system", SYSTEMS)
def test_products_are_those_that_pytorch_counts(costs, task, system):
    """To two percent: the counter takes no note of the few products of a vector with a vector."""
    made, lengths = model(task, system), costs[task]["lengths"]
    given = {"input_ids": torch.ones(1, lengths.get("encoder", lengths["decoder"])).long()}
    if "encoder" in lengths:
        given["decoder_input_ids"] = torch.ones(1, lengths["decoder"]).long()
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        made(**given)
    counted = counter.get_total_flops() / 2
    assert costs[task]["systems"][system]["macs"] == pytest.approx(counted, rel=0.02)


def test_products_of_the_standard_model_by_hand(costs):
    found = costs["translation"]
    d, ffn, vocabulary = SIZES["embed_dim"], SIZES["ffn_dim"], SIZES["vocab_size"]
    m, n = found["lengths"]["encoder"], found["lengths"]["decoder"]
    linear = m * (4 * d * d + 2 * d * ffn)  # the encoder's layer
    linear += n * (4 * d * d + 2 * d * d + 2 * d * ffn + d * vocabulary) + m * 2 * d * d
    attended = 2 * d * (m * m + n * n + n * m)
    standard = found["systems"]["standard"]
    assert standard["linear_macs"] == linear
    assert standard["macs"] == linear + attended


def test_what_grows_with_a_setting_grows_in_the_cost(tmp_path):
    recipe = write_recipe("language-modelling", tmp_path)
    small, large = (
        answer("cost", recipe, "--systems", "standard", "--set", f"model.ffn_dim={width}")
        for width in (16, 48)
    )
    macs = [each["recipes"][0]["systems"]["standard"]["linear_macs"] for each in (small, large)]
    tokens = small["recipes"][0]["lengths"]["decoder"]
    assert macs[1] - macs[0] == tokens * 2 * 16 * (48 - 16)


def test_the_table_has_what_the_answer_has(tmp_path):
    recipe = write_recipe("translation", tmp_path)
    (found,) = answer("cost", recipe, "--systems", "standard,mae", "--lengths", "7,5")["recipes"]
    assert found["lengths"] == {"encoder": 7, "decoder": 5}
    printed = run("cost", recipe, "--systems", "standard,mae", "--lengths", "7,5").stdout
    for system, cost in found["systems"].items():
        (row,) = [line.split() for line in printed.splitlines() if line.split()[:1] == [system]]
        numbers = [*cost["parameters"].values(), cost["linear_macs"], cost["macs"]]
        units = {"k": 1e3, "M": 1e6}
        read = [float(each.rstrip("kM")) * units.get(each[-1], 1) for each in row[1:]]
        assert read == pytest.approx(numbers, rel=0.005)
    assert "7 positions in the encoder and 5 positions in the decoder" in " ".join(printed.split())
    assert run("cost", recipe, "--lengths", "7").exit_code


class Asking(hw.MultiHeadAttention):
    """A system that reads values, which nothing has where a model takes no memory."""

    def combine(self, heads, inputs, choice):
        return super().combine(heads * float(heads.detach().sum() > 0), inputs, choice)


def test_a_system_that_reads_values_is_counted_too():
    own, standard = (
        hw.CausalLMConfig(**SIZES, layers=1, attention=f"{__name__}:Asking" if asks else "standard")
        for asks in (True, False)
    )
    state = torch.get_rng_state()
    assert model_cost(own, {"decoder": 9}) == model_cost(standard, {"decoder": 9})
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ValueError, match=r"encoder.*expected .*decoder"):
        model_cost(own, {"encoder": 9})
