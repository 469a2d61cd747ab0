"""Recipes with values of wrong kinds and of absurd sizes: an error that names the key, at once."""

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo
from typer.testing import CliRunner

from headwise.cli import app
from headwise.models.causal_lm import CausalLMConfig
from headwise.models.config import TransformerConfig
from headwise.models.trust import trusting
from headwise.recipes import RecipeError, load_recipe
from headwise.recipes.catalogue import TASKS, task_class
from headwise.recipes.pretrained import with_encoding
from headwise.recipes.schema import kinds
from headwise.recipes.settings import ModelSettings
from headwise.settings import Settings

DEMO = "interface-strings"


def message(*changes: str) -> str:
    """What is said about the demo's recipe with changes that it cannot have."""
    with pytest.raises(RecipeError) as caught:
        load_recipe(DEMO, changes)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("task={a: 1}", "task: there is no task {'a': 1}, expected one of translation"),
        ("task=[1]", "task: there is no task [1], expected one of translation"),
        ("data=5", "data is 5, expected keys with values"),
        ("model.attention={system: {a: 1}}", "it names the system {'a': 1}, expected one of"),
        ("model.attention={system: [a]}", "it names the system ['a'], expected one of"),
        ("model.attention='..:x'", "system '..:x' cannot be loaded: expected module:Class"),
        ("model.attention=':x'", "system ':x' cannot be loaded: expected module:Class"),
        ("model.attention='x:'", "system 'x:' cannot be loaded: expected module:Class"),
        ("model.pretrained=5", "pretrained is 5, expected the path of a file or a folder, which"),
        ("training={2020-01-01: 3}", "there is no key 'training.2020-01-01'"),
        ("training.max_steps=2020-01-01", "max_steps is '2020-01-01', expected a whole number"),
        ("training={!!binary aGk=: 3}", "the tag '!!binary' is given, expected a plain value"),
        ("systems={!!binary aGk=: {}}", "the tag '!!binary' is given"),
        ("training={max_steps: 5, max_steps: 6}", "the key 'max_steps' is given twice"),
        ("training=" + "[" * 5000, "more than 50 lists or mappings stand in each other"),
        ("training.learning_rate=.inf", "training.learning_rate is inf, expected a finite number"),
        ("training.weight_decay=.nan", "training.weight_decay is nan, expected a finite number"),
        ("training.mae.learning_rate=.inf", "mae.learning_rate is inf, expected a finite number"),
        ("training.epochs=.inf", "training.epochs is inf, expected a finite number"),
        ("training.adam_betas=[2, -1]", "adam_betas.0 is 2, expected a number less than 1"),
        ("training.adam_betas=[0.9, .nan]", "adam_betas.1 is nan, expected a finite number"),
        ("training.max_steps=1e30", "max_steps is 1e+30, expected a whole number in digits, such"),
        ("training.max_steps=1.5", "max_steps is 1.5, expected a whole number in digits, such"),
        ("training.max_steps=[1]", "max_steps is [1], expected a whole number in digits, such"),
        ("training.max_steps=" + "9" * 30, "expected a number less than or equal to 1000000000"),
        ("training.loader_workers=100000", "expected a number less than or equal to 256"),
        ("tokenizer.vocab_size=1000000000000", "a number less than or equal to 10000000"),
        ("seeds=[10000000000]", "seeds.0 is 10000000000, expected a number less than or equal to"),
    ],
)
def test_a_value_of_a_wrong_kind(change, said):
    assert said in message(change)


def test_data_of_no_kind_beside_data_sets():
    assert "data is 5, expected keys with values" in message("data=5", "datasets={a: {}}")


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ("system: moa, balance_coef: .nan", "balance_coef is nan"),
        ("system: moa, z_coef: .inf", "z_coef is inf"),
        ("system: moh, shared_heads: 1, top_k: 2, balance_coef: .nan", "balance_coef is nan"),
        ("system: agreement, inverse_temperature: .inf", "inverse_temperature is inf"),
        ("system: weighted, output_gain: .nan", "output_gain is nan"),
    ],
)
def test_the_options_of_systems_are_finite(options, key):
    said = message(f"model.attention={{{options}}}")
    assert f"model: attention.{key}, expected a finite number" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            ["model.num_heads=32", "model.attention={system: mae, dropped_heads: 12}"],
            "dropped_heads = 12 of num_heads = 32 make 225,792,840 experts",
        ),
        (["model.num_heads=1000000", "model.embed_dim=1000000"], "num_heads is 1,000,000, exp"),
        (
            ["model.embed_dim=1000000000000"],
            "at least 32,512,000,000,000,000",
        ),
        (["model.ffn_dim=1000000000000"], "make at least 256,000,004,096,000 parameters, expected"),
        (["model.encoder_layers=100000"], "the number of layers of encoder is 100,000, expected"),
        (
            ["model.positions=learned", "model.max_positions=1000000000000"],
            "make at least 256,000,004,161,536 parameters, expected",
        ),
        (
            ["model.attention={system: moa, size: 8K32E64000000000D}"],
            "make at least 3,244,032,004,382,720 parameters",
        ),
    ],
)
def test_what_explodes_is_counted_and_not_built(changes, said):
    assert said in message(*changes)


LONG = "z" * 100_000


@pytest.mark.parametrize(
    "change",
    [
        f"model.attention={LONG}",
        f"systems.standard.model.attention={LONG}",
        f"{LONG}=5",
        f"training.{LONG}=5",
        f"training.max_steps='{'word ' * 5000}'",
        f"training.batch_tokens=[{'1, ' * 5000}]",
        f"training.max_steps={'9' * 5000}",
        f"training.max_steps=[{LONG}",
        f"data.corpus={LONG}",
        f"task={LONG}",
        f"evaluation.ablation={{{LONG}: a}}",
        f"evaluation.ablation.{LONG}=a",
    ],
    ids=range(12),
)
def test_long_values_are_cut_in_messages(change):
    said = message(change)
    assert len(max(said.split(), key=len)) < 300
    assert len(said) < 1200  # there may be a list of the keys that are known


@pytest.mark.parametrize("name", ["x" * 5000 + ".yaml", "x" * 5000, "a\0b.yaml"])
def test_a_recipe_that_no_file_can_be_named(name):
    with pytest.raises(RecipeError) as caught:
        load_recipe(name)
    assert "there is no recipe" in str(caught.value)
    assert len(max(str(caught.value).split(), key=len)) < 300


def test_the_line_of_a_fault_in_a_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("training:\n  max_steps: 5\n  seed: 1\n  max_steps: 6\n", encoding="utf-8")
    with pytest.raises(RecipeError) as caught:
        load_recipe(str(path))
    assert str(caught.value) == (
        f"recipe {path}: line 4: the key 'max_steps' is given twice (lines 2 and 4), expected each "
        f"key once; leave one of the two out"
    )


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise RuntimeError('boom')", "fails with RuntimeError: boom; mend the module"),
        ("import sys; sys.exit(3)", "fails with SystemExit: 3; mend the module"),
        ("def f(): f()\nf()", "fails with RecursionError"),
        ("def f(:", "fails with SyntaxError"),
        (f"raise ValueError({LONG!r})", "fails with ValueError: zzz"),
    ],
)
def test_a_module_of_a_system_that_fails(tmp_path, monkeypatch, code, said):
    (tmp_path / "failing_system.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with trusting():
        complaint = message("model.attention=failing_system:Mine")
    assert "the system 'failing_system:Mine' cannot be loaded" in complaint
    assert said in complaint
    assert len(complaint) < 700


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (
            "images-digits",
            "data.size=4000",
            "data.size makes images of 16,000,000 pixels",
        ),
        ("images-digits", "evaluation.temperature=1e-300", "temperature is 1e-300, expected a"),
        ("speech-generated", "data.level=[-.inf, 0]", "data.level.0 is -inf, expected a finite"),
        ("speech-generated", "data.seconds=1.0e+9", "expected a number less than or equal to 3600"),
    ],
)
def test_values_of_other_tasks(name, change, said):
    with pytest.raises(RecipeError) as caught:
        load_recipe(name, [change])
    assert said in str(caught.value)


# Every number of every task's settings


def bounds(metadata: list[Any]) -> set[str]:
    """Which bounds a number has: `low`, `high`."""
    kinds_of = {Ge: "low", Gt: "low", Le: "high", Lt: "high"}
    found = {kinds_of[type(each)] for each in metadata if type(each) in kinds_of}
    for each in metadata:
        if isinstance(each, FieldInfo):
            found |= bounds(each.metadata)
    return found


def unbounded(annotation: Any, metadata: list[Any]) -> bool:
    """Whether a value may be a number without a lower or an upper bound."""
    if get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        return unbounded(annotation, [*metadata, *more])
    if get_origin(annotation) in (Union, UnionType):
        return any(unbounded(each, metadata) for each in get_args(annotation))
    if get_origin(annotation) in (list, tuple):
        return any(unbounded(each, []) for each in get_args(annotation))
    return annotation in (int, float) and bounds(metadata) != {"low", "high"}


def all_settings(settings: type[Settings]) -> Iterator[type[Settings]]:
    yield settings
    for field in settings.model_fields.values():
        annotation = field.annotation
        if get_origin(annotation) is dict:
            annotation = get_args(annotation)[1]
        for kind in kinds(annotation):
            yield from all_settings(kind)


# The configuration of a model and the vocabularies check these against each other.
CHECKED_TOGETHER = {
    *("embed_dim", "num_heads", "ffn_dim", "layers", "encoder_layers", "decoder_layers"),
    *("hidden_dim", "max_positions", "front_channels", "adaptive_cutoffs"),
    *("vocab_size", "source_vocab_size", "target_vocab_size", "bins"),
}


@pytest.mark.parametrize("task", TASKS)
def test_every_number_has_bounds(task):
    found = {
        f"{settings.__name__}.{name}"
        for settings in all_settings(task_class(task).recipe_class)
        for name, field in settings.model_fields.items()
        if name not in CHECKED_TOGETHER and unbounded(field.annotation, list(field.metadata))
    }
    assert found == set()


@pytest.mark.parametrize("task", TASKS)
def test_no_setting_may_be_infinite(task):
    for settings in all_settings(task_class(task).recipe_class):
        assert issubclass(settings, Settings) and not settings.model_config["allow_inf_nan"]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("size", ["embed_dim", "ffn_dim", "layers", "encoder_layers"])
def test_no_size_of_a_model_explodes(task, size):
    model = task_class(task).recipe_class.model_fields["model"].annotation
    assert issubclass(model, ModelSettings)
    if size in model.model_fields:
        with pytest.raises(ValueError, match=r"expected at most [\d,]+"):
            model(**{size: 8 * 10**12})


# How commands end


@pytest.mark.parametrize(
    "arguments",
    [
        ["cost", DEMO, "--set", "task={a: 1}"],
        ["cost", DEMO, "--set", "training=" + "[" * 5000],
        ["recipes", "x" * 5000 + ".yaml"],
        ["evaluate", "x" * 5000],
        ["train", DEMO, "--set", "model.num_heads=32", "--set", "model.attention=mae",
         "--set", "model.attention.dropped_heads=12"],
        ["compare", DEMO, "--tune", "training.learning_rate=" + "[" * 5000],
        ["evaluate", "nowhere", "--ablate", "mae=uniform,expert=" + "[" * 5000],
    ],
)  # fmt: skip
def test_commands_end_with_a_message(arguments):
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ") and len(done.stderr) < 1500


def test_the_configurations_that_people_build_are_built():
    sizes = [
        {"embed_dim": 12_288, "num_heads": 96, "ffn_dim": 49_152, "layers": 96},  # GPT-3
        {"embed_dim": 16_384, "num_heads": 128, "ffn_dim": 80_000, "layers": 126},  # Llama 3, 405B
        {"embed_dim": 512, "num_heads": 8, "ffn_dim": 2048, "layers": 2500},  # DeepNet
    ]
    for each in sizes:
        assert isinstance(CausalLMConfig(vocab_size=256_000, **each), TransformerConfig)


@pytest.mark.parametrize(
    ("text", "said"), [("", "it has no keys"), ("- a", "it has no keys"), ("a: [", "not valid")]
)
def test_the_damaged_recipe_of_the_run_to_start_from_is_named(tmp_path, text, said):
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"recipe\.yaml, the recipe of the run") as caught:
        with_encoding({"model": {"pretrained": str(tmp_path)}}, ("tokenizer",))
    assert said in str(caught.value)
