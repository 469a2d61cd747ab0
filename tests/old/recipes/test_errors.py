"""What is said where a recipe is wrong."""

import pytest
from small_recipe import DEMO, SMALL, message

from headwise.models.trust import trusting
from headwise.recipes import RecipeError, load_recipe, shipped_recipes
from headwise.recipes.catalogue import task_class
from headwise.recipes.pretrained import with_encoding
from headwise.recipes.schema import locate


def test_an_unknown_recipe_gives_the_nearest_and_all_there_are():
    said = message("interface-string")
    assert "there is no recipe 'interface-string'; did you mean 'interface-strings'?" in said
    for name in shipped_recipes():
        assert name in said


def test_a_file_needs_the_ending_yaml(tmp_path):
    path = tmp_path / "recipe.txt"
    path.write_text(SMALL)
    assert "(the name of a recipe file has to end in .yaml)" in message(str(path))


def test_a_missing_file_is_named(tmp_path):
    assert message(str(tmp_path / "none.yaml")) == f"there is no recipe file {tmp_path}/none.yaml"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"training: [1", "bad.yaml: not valid YAML"),
        (b"", "bad.yaml is empty, expected keys with values, such as training:"),
        (b"- 1", "bad.yaml is a list, expected keys with values"),
        (b"word", "bad.yaml is 'word', expected keys with values"),
        (b"a: 1\nb: 2\na: 3", 'bad.yaml: line 3: not valid YAML: found duplicate key "a"'),
        (b"training: {}\ndescription: caf\xe9", "line 2: not UTF-8"),
        (b"model: {embed_dim: 16}", "training is missing"),
    ],
)
def test_a_file_that_is_no_recipe(tmp_path, content, said):
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    complaint = message(str(path))
    assert str(path) in complaint
    assert said in complaint


@pytest.mark.parametrize("change", ["training.max_steps", "=5", "a..b=1", ".a=1", ""])
def test_set_wants_a_key_and_a_value(change):
    assert message(DEMO, change) == (
        f"--set is {change!r}, expected key.key=value, such as training.max_steps=100"
    )


@pytest.mark.parametrize(
    ("change", "key", "nearest"),
    [
        ("trainning.max_steps=5", "trainning", "training"),
        ("training.max_step=5", "training.max_step", "max_steps"),
        ("training.mae.perod=5", "training.mae.perod", "period"),
        ("model.embed_dims=5", "model.embed_dims", "embed_dim"),
        ("data.langauge=de", "data.langauge", "language"),
        ("evaluation.beamsize=5", "evaluation.beamsize", "beam_size"),
        ("systems.moa.modle.dropout=0", "systems.moa.modle", "model"),
        ("systems.moa.model.norn=pre", "model.norn", "norm"),  # of one system
    ],
)
def test_an_unknown_key_is_named_with_the_nearest(change, key, nearest):
    said = message(DEMO, change)
    assert f"there is no key '{key}'; did you mean '{nearest}'?" in said
    assert "known: " in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "training.max_steps=many",
            "training.max_steps is 'many', expected a whole number in digits",
        ),
        (
            "training.max_steps=0",
            "training.max_steps is 0, expected a number greater than or equal to 1",
        ),
        (
            "training.mae.unit=hours",
            "training.mae.unit is 'hours', expected 'epochs' or 'steps'",
        ),
        ("training=5", "training is 5, expected keys with values"),
        ("model.norm=mid", "model.norm is 'mid', expected 'post' or 'pre'"),
        ("data.language=xx", "data.language is 'xx', expected 'fr', 'de' or 'zh-CN'"),
        (
            "data.corpus=file",
            "data.corpus is 'file', expected one of interface-strings, files, hub; "
            "did you mean 'files'?",
        ),
        (
            "data.corpus=null",
            "data.corpus is missing, expected one of interface-strings, files, hub",
        ),
        ("data.corpus=[files]", "data.corpus is ['files'], expected one of interface-strings"),
        ("training.adam_betas=[a, 1]", "training.adam_betas.0 is 'a', expected a number, such as"),
        ("data.corpus=files", "data.train is missing"),
        ("systems=5", "systems is 5, expected keys with values"),
        ("tokenizer.vocab_size=100", "tokenizer: vocab_size is 100, expected at least 260"),
        ("systems.a/b.model.dropout=0", "systems has the name 'a/b', expected one of letters,"),
        ("seeds=[1, 1]", "seeds: 1 is there more than once, expected different numbers"),
        ("seeds=[-1]", "seeds.0 is -1, expected a number greater than or equal to 0"),
        ("training.max_steps=null", "training: expected exactly one of max_steps and epochs"),
        ("task=[1]", "task: there is no task [1], expected one of translation"),
        ("data=5", "data is 5, expected keys with values"),
        ("model.attention={system: {a: 1}}", "it names the system {'a': 1}, expected one of"),
        ("model.attention=':x'", "system ':x' cannot be loaded: expected module:Class"),
        ("model.pretrained=5", "pretrained is 5, expected the path of a file or a folder, which"),
        ("training={2020-01-01: 3}", "there is no key 'training.2020-01-01'"),
        ("training.epochs=.inf", "training.epochs is inf, expected a finite number"),
        ("training.adam_betas=[2, -1]", "adam_betas.0 is 2, expected a number less than 1"),
        ("training.max_steps=1.5", "max_steps is 1.5, expected a whole number in digits, such"),
        ("training.patience=true", "training: patience is true, expected a number"),
        ("training.mae.learning_rate=false", "learning_rate is false, expected a number"),
        ("training.max_steps=[1]", "max_steps is [1], expected a whole number in digits, such"),
        ("training.max_steps=" + "9" * 30, "expected a number less than or equal to 1000000000"),
        ("model.attention={system: moa, z_coef: .inf}", "attention.z_coef is inf, expected a"),
        ("model.encoder_layers=100000", "the number of layers of encoder is 100,000, expected"),
        ("model.ffn_dim=1000000000000", "ffn_dim is 1,000,000,000,000, expected"),
        ("systems={2017: {}}", "systems.2017 is 2017, expected a valid string"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_expected(change, said):
    assert said in message(DEMO, change)


def test_all_problems_are_given_at_once():
    said = message(DEMO, "training.seed=x", "model.norm=mid", "evaluation.beam_size=0")
    assert said.count("\n  ") >= 3
    for key in ("training.seed", "model.norm", "evaluation.beam_size"):
        assert key in said


def test_an_unknown_system_gives_the_nearest_and_all_there_are(small):
    with pytest.raises(RecipeError) as caught:
        load_recipe(small).system("standart")
    said = str(caught.value)
    assert "there is no system 'standart' in recipe" in said
    assert "did you mean 'standard'?" in said
    assert "known: standard, mae" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["model.embed_dim=30"], "embed_dim is 30, expected a multiple of num_heads = 8"),
        (
            ["model.attention={encoder_self: {system: moa, top_k: 9, num_experts: 4}}"],
            "top_k is 9, expected 1 to num_experts = 4",
        ),
        (
            ["model.attention={decoder_self: {system: mae, dropped_heads: 8}}"],
            "dropped_heads is 8, expected 1 to 7",
        ),
        (["model.attention=mea"], "attention: it names the system 'mea'"),
        (["model.attention={encoder: mae}"], "did you mean 'encoder_self'?"),
        (["model.attention={encoder_self: {system: mae, layers: [2]}}"], "names layer 2"),
        (
            ["model.attention={encoder_self: {system: mae, droped_heads: 2}}"],
            "did you mean 'dropped_heads'?",
        ),
        (
            ["model.share_embeddings=all", "tokenizer.joint=false"],
            "tokenizer.joint is false, expected",
        ),
        (["systems.moa.model.attention.encoder_self.size=8K4E16D"], "system moa"),
    ],
)
def test_sizes_that_do_not_fit_are_found_before_any_data_is_read(monkeypatch, changes, said):
    def never(*_):
        raise AssertionError("data was read")

    monkeypatch.setattr("headwise.data.pairs.corpus.read_interface_strings", never)
    assert said in message(DEMO, *changes)


@pytest.mark.parametrize(
    ("task", "location", "keys", "sibling"),
    [
        ("translation", ("data", "files", "train", "sorce"), "data.train.sorce", "source"),
        ("probing", ("data", "generated", "texts", "hub", "nme"), "data.texts.nme", "name"),
        ("images", ("data", "pair", "left", "idx", "trian"), "data.left.trian", "train"),
        (
            "speech-enhancement",
            ("data", "pairs", "tests", "other", "pairs", "nosy"),
            "data.tests.other.nosy",
            "noisy",
        ),
        (
            "translation",
            ("model", "attention", "dict[str,any]", 1, "[key]"),
            "model.attention.1",
            "",
        ),
        ("translation", ("systems", "a/b", "[key]"), "systems.a/b", ""),
    ],
)
def test_an_error_is_located_behind_unions_and_names(task, location, keys, sibling):
    found = locate(task_class(task).recipe_class, location)
    assert ".".join(found.keys) == keys
    assert sibling in found.siblings if sibling else not found.siblings


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("images-digits", "data.size=4000", "data.size makes images of 16,000,000 pixels"),
        ("images-digits", "training.batch_tokens=64", "64 pixels, expected fewer than training"),
        ("speech-generated", "data.level=[-.inf, 0]", "data.level.0 is -inf, expected a finite"),
    ],
)
def test_values_of_other_tasks(name, change, said):
    assert said in message(name, change)


LONG = "z" * 100_000


@pytest.mark.parametrize(
    "change",
    [
        f"model.attention={LONG}",
        f"training.{LONG}=5",
        f"training.max_steps=[{LONG}",
        f"task={LONG}",
    ],
    ids=range(4),
)
def test_long_values_are_cut_in_messages(change):
    said = message(DEMO, change)
    assert len(max(said.split(), key=len)) < 300
    assert len(said) < 1200  # there may be a list of the keys that are known


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise RuntimeError('boom')", "fails with RuntimeError: boom; mend the module"),
        ("import sys; sys.exit(3)", "fails with SystemExit: 3; mend the module"),
        ("def f(:", "fails with SyntaxError"),
    ],
)
def test_a_module_of_a_system_that_fails(tmp_path, monkeypatch, code, said):
    (tmp_path / "failing_system.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with trusting():
        complaint = message(DEMO, "model.attention=failing_system:Mine")
    assert "the system 'failing_system:Mine' cannot be loaded" in complaint
    assert said in complaint


@pytest.mark.parametrize(
    ("text", "said"), [("", "it has no keys"), ("- a", "it has no keys"), ("a: [", "not valid")]
)
def test_the_damaged_recipe_of_the_run_to_start_from_is_named(tmp_path, text, said):
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"recipe\.yaml, the recipe of the run") as caught:
        with_encoding({"model": {"pretrained": str(tmp_path)}}, ("tokenizer",))
    assert said in str(caught.value)


def test_a_change_has_to_fit_the_systems_that_are_trained():
    file = load_recipe("lm-pydoc", ["model.layers=1"])
    assert file.system("standard").model.layers == 1
    with pytest.raises(RecipeError, match=r"system tim:\s.*names layer 1, expected 0 to 0"):
        file.system("tim")
    with pytest.raises(RecipeError, match="system tim"):
        load_recipe("lm-pydoc", ["systems.tim.model.layers=1"])
