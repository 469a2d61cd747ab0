"""Bad input of any kind is told at once, by the names and the values that are wrong."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub.errors import StrictDataclassError
from hypothesis import example, given
from hypothesis import strategies as st
from support.forms import NINE, build
from support.messages import assert_names
from support.recipes import places, resolved, shipped
from support.tiny_tasks import run

import headwise as hw
from headwise.recipes.recipe import TASKS, task_class
from headwise.settings import Settings

pytestmark = pytest.mark.quick

# Those that start from a run are checked with that run.
SHIPPED = {name: keys for name, keys in shipped().items() if "pretrained" not in str(keys)}
DEMO = "interface-strings"


def told(call: Callable, *args: Any, **options: Any) -> str:
    with pytest.raises((ValueError, TypeError, StrictDataclassError)) as caught:
        call(*args, **options)
    return str(caught.value)


# --- systems and models -------------------------------------------------------------------------

CONSTRUCTED = [
    (hw.MultiHeadAttention, (8, 0), {}, {"num_heads", "0"}),
    (hw.MultiHeadAttention, (10, 4), {}, {"embed_dim", "10", "num_heads", "4"}),
    (hw.MultiHeadAttention, (8, 2), {"kdim": -5}, {"kdim", "-5"}),
    (hw.MAE, (8, 2), {"dropped_heads": 2}, {"dropped_heads", "2"}),
    (hw.MAE, (8, 2), {"gate": "none"}, {"gate", "none", "uniform"}),
    (hw.MoA, (8, 4, 5, 4), {}, {"top_k", "5", "4"}),
    (hw.MoA, (8, 4, 2, 4), {"balance": "token"}, {"balance", "token", "batch", "sequence"}),
    (hw.MoH, (8, 4), {"shared_heads": 1, "top_k": 4}, {"top_k", "4", "3"}),
    (hw.GatedAttention, (8, 4), {"gate": "both"}, {"gate", "both", "headwise", "elementwise"}),
    (hw.AgreementAttention, (8, 4), {"routing": "magic"}, {"routing", "magic", "em", "simple"}),
    (hw.AgreementAttention, (8, 4), {"num_capsules": 5}, {"num_capsules", "5", "embed_dim", "8"}),
    (hw.BranchedAttention, (10, 4, 4), {}, {"embed_dim", "10", "num_branches", "4"}),
    (hw.BranchedAttention, (8, 2, 4), {"weights": "sparse"}, {"weights", "sparse", "simplex"}),
    (hw.BranchedAttention, (8, 2, 4), {"top_k": 3}, {"top_k", "3", "2"}),
    (hw.TIM, (12, 4, 8, 3), {}, {"num_heads", "4", "num_mechanisms", "3"}),
    (hw.TIM, (12, 4, 8, 2), {"kdim": 6}, {"kdim", "6", "cross_attention"}),
    (hw.TIM, (12, 4, 8, 2), {"norm": "middle"}, {"norm", "middle", "post", "pre"}),
]


@pytest.mark.parametrize(
    ("make", "args", "options", "must_name"), CONSTRUCTED, ids=range(len(CONSTRUCTED))
)
def test_a_wrong_argument_of_a_constructor_is_named(make, args, options, must_name):
    assert_names(told(make, *args, **options), must_name)


CONFIGURED = [
    ({"embed_dim": 30, "num_heads": 8}, {"embed_dim", "30", "num_heads", "8"}),
    ({"norm": "mid"}, {"norm", "mid", "post", "pre"}),
    ({"embed_dims": 8}, {"embed_dims", "embed_dim", "CausalLMConfig"}),
    ({"tie_word_embeddings": False}, {"tie_word_embeddings", "share_embeddings"}),
    ({"max_positions": 9}, {"max_positions", "9", "positions", "learned"}),
    ({"attention": "mea"}, {"mea", "mae"}),
    ({"attention": {"encoder": "mae"}}, {"encoder", "decoder_self"}),
    ({"attention": {"system": "moa", "top_k": 9, "num_experts": 4}}, {"top_k", "9", "4"}),
    ({"attention": {"system": "mae", "droped_heads": 2}}, {"droped_heads", "dropped_heads"}),
    ({"layers": 2, "attention": {"system": "mae", "layers": [2]}}, {"layers", "2", "1"}),
    ({"attention": "no_such_module:Class"}, {"no_such_module:Class"}),
]


@pytest.mark.parametrize(("options", "must_name"), CONFIGURED, ids=range(len(CONFIGURED)))
def test_a_configuration_that_no_model_has(options, must_name):
    assert_names(told(hw.CausalLMConfig, **options), must_name)


X, KEY = torch.randn(2, 5, 12), torch.randn(2, 3, 12)
SHOWN = torch.zeros(2, 5, dtype=torch.bool)
CALLED = [
    ((X[0],), {}, {"query", "(5, 12)", "12"}),
    ((X[..., :7],), {}, {"query", "(2, 5, 7)", "12"}),
    ((X, KEY[..., :7]), {}, {"key", "(2, 3, 7)", "12"}),
    ((X, KEY, KEY[:, :2]), {}, {"value", "(2, 2, 12)", "(2, 3, 12)"}),
    ((X,), {"key_padding_mask": SHOWN.T}, {"key_padding_mask", "(5, 2)", "(2, 5)"}),
    ((X, KEY), {"key_padding_mask": SHOWN}, {"key_padding_mask", "(2, 5)", "(2, 3)"}),
    ((X,), {"key_padding_mask": SHOWN.long()}, {"key_padding_mask", "torch.int64", "torch.bool"}),
    ((X, KEY), {"attn_mask": torch.zeros(3, 5)}, {"attn_mask", "(3, 5)", "(5, 3)"}),
    ((X,), {"attn_mask": torch.zeros(2, 7, 5, 5)}, {"attn_mask", "(2, 7, 5, 5)"}),
]


@pytest.mark.parametrize("name", [name for name in NINE if name != "tim"])
@pytest.mark.parametrize(("args", "options", "must_name"), CALLED, ids=range(len(CALLED)))
def test_a_call_with_wrong_shapes(name, args, options, must_name):
    assert_names(told(build(name, dtype=torch.float32), *args, **options), must_name)


# --- recipes ------------------------------------------------------------------------------------

CHANGED = [  # what `--set` takes, for the recipe of the demo
    ("training.max_steps", {"--set", "training.max_steps"}),
    ("trainning.max_steps=5", {"trainning", "training"}),
    ("training.max_step=5", {"training.max_step", "max_steps"}),
    ("training.rules.mae.perod=5", {"training.rules", "mae.perod", "period"}),
    ("systems.moa.model.norn=pre", {"norn", "norm", "moa"}),
    ("training.max_steps=many", {"training.max_steps", "many"}),
    ("training.max_steps=1.5", {"training.max_steps", "1.5"}),
    ("training.max_steps=null", {"max_steps", "epochs"}),
    ("training.patience=true", {"patience", "true"}),
    ("training.adam_betas=[a, 1]", {"training.adam_betas.0", "a"}),
    ("model.embed_dim=0", {"embed_dim", "0"}),
    ("data.options.langauge=fr", {"data.options", "langauge", "language"}),
    ("data.options.language=1", {"data.options.language", "1"}),
    ("data.corpus=files", {"data.corpus"}),
    ("data.tests.a.max_length=5", {"tests.a.max_length", "path", "columns"}),
    ("data.tests.a.optoins={}", {"tests.a.optoins", "options"}),
    ("tokenizer.vocab_size=100", {"vocab_size", "100"}),
    ("systems.a/b.model.dropout=0", {"systems", "a/b"}),
    ("task=[1]", {"task", "1", "translation"}),
    ("base=lm-pydoc", {"base"}),
    ("seeds=[1, 1]", {"seeds", "1"}),
    # What a user is likely to mistake is told with how to mend it.
    ("data.train=a.txt", {"data.files.train"}),
    ("data.files.train=007", {"data.files.train", "quotes"}),
    ("data.files.train=1e3", {"data.files.train", "quotes"}),
    ("model.vocab_size=9", {"model.vocab_size", "leave it out"}),
    (f"training.max_steps=[{'z' * 100_000}", {"--set"}),  # long values are cut
]


@pytest.mark.parametrize(("change", "must_name"), CHANGED, ids=range(len(CHANGED)))
def test_a_change_that_no_recipe_has(change, must_name):
    assert_names(told(resolved, DEMO, change, system="moa"), must_name)


FILES = [
    (b"training: [1", set()),
    (b"", {"training"}),
    (b"- 1", set()),
    (b"\0", set()),
    (b"[" * 100_000, set()),
    (b"a: !!python/name:os.system x", set()),
    (b"a: 1\nb: 2\na: 3", {"a", "3"}),
    (b"training: {}\ndescription: caf\xe9", {"2"}),
    (b"model: {embed_dim: 16}", {"task"}),
    (b"task: images", {"training"}),
]


@pytest.mark.parametrize(("content", "must_name"), FILES, ids=range(len(FILES)))
def test_a_file_that_is_no_recipe(content, must_name, tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    assert_names(told(resolved, path), {"bad.yaml", *must_name})


@st.composite
def spoilt(draw: st.DrawFn) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """A shipped recipe with a value of a wrong type, and the path of its key."""
    recipe = copy.deepcopy(SHIPPED[draw(st.sampled_from(list(SHIPPED)))])
    # Options of a system are its constructor's; files may have any columns.
    named = [path for path in places(recipe) if isinstance(path[-1], str)]
    free = {"files", "left", "right"}
    plan = ("attention", "system", "layers")
    checked = [
        path
        for path in named
        if not free.intersection(path) and ("attention" not in path or path[-1] in plan)
    ]
    path = draw(st.sampled_from(checked))
    parent: Any = recipe
    for key in path[:-1]:
        parent = parent[key]
    value = parent[path[-1]]
    wrong: list[Any] = [[[0.5]], {"no_such_key": ["x"]}]
    if isinstance(value, (int, float)):  # also true and false
        wrong += ["many", b"\0"]
    elif isinstance(value, (dict, list)):
        wrong = [7.5, True]
    # What anchors share is one object: it is not to be spoilt in several places.
    parent[path[-1]] = draw(st.sampled_from(wrong))
    return recipe, path


TRANSLATION = SHIPPED[DEMO]


@given(spoilt())
@example(({**TRANSLATION, "evaluation": {"bleu": {"tokenize": [[0.5]]}}}, ("tokenize",)))
@example(({**TRANSLATION, "evaluation": {"bleu": {"force": "many"}}}, ("force",)))
def test_a_value_of_a_wrong_type_is_told_by_its_key(tmp_path_factory, given_recipe):
    recipe, path = given_recipe
    folder = tmp_path_factory.mktemp("spoilt")
    (folder / "spoilt.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    done = run("cost", folder / "spoilt.yaml")
    assert done.exit_code == 2 and isinstance(done.exception, SystemExit), (path, done.output)
    assert_names(done.stderr, {"spoilt.yaml"})
    assert path[-1] in done.stderr and "Traceback" not in done.stderr
    assert not done.stdout
    assert [path.name for path in folder.iterdir()] == ["spoilt.yaml"]


def test_no_settings_hide_a_check_of_their_base():
    """pydantic calls one validator of a name: the subclass's in place of its base's."""

    def checks(kind: type[Settings]) -> set[str]:
        decorators = kind.__pydantic_decorators__
        return {*decorators.model_validators, *decorators.field_validators}

    kinds = [task_class(name).recipe_class for name in TASKS]
    kinds += [kind.model_fields["data"].annotation for kind in kinds]
    for kind in kinds:
        for base in kind.__mro__[1:]:
            if issubclass(base, Settings):
                assert not checks(base) & vars(kind).keys(), (kind, base)


# --- command lines ------------------------------------------------------------------------------

TYPED = [  # and more in tests/cli/test_commands.py, which do not wait for PyTorch
    ("train", {"RECIPE"}),
    (f"compare {DEMO} --systems moa,moa", {"--systems", "moa,moa"}),
    (f"compare {DEMO} --jobs 0", {"--jobs", "1"}),
    (f"compare {DEMO} --datasets german", {"german"}),
    ("recipes --keys mao", {"mao", "moa"}),
    ("cost lm-pydoc --set model.embed_dmi=1", {"embed_dmi", "embed_dim"}),
    ("train lm-pydoc --import no_such_module", {"--import", "no_such_module"}),
    ("train lm-pydoc --import own.yaml", {"--import", "own.yaml"}),
    ("train lm-pydoc --import own/system.py", {"--import", "without .py"}),
    (f"compare {DEMO} --set systems={{}}", {DEMO, "systems"}),
    (f"compare {DEMO} --set model.attention=moa", {"--set", "model.attention"}),
    (f"compare {DEMO} --tune model.dropuot=0,0.1", {"dropuot", "dropout"}),
]


@pytest.mark.parametrize(("line", "must_name"), TYPED, ids=[line for line, _ in TYPED])
def test_a_wrong_command_line_is_told_before_anything_is_written(
    line, must_name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    done = run(*line.split())
    assert done.exit_code == 2 and isinstance(done.exception, SystemExit), done.output
    assert_names(done.stderr, must_name)
    assert not done.stdout and not list(Path().iterdir())
