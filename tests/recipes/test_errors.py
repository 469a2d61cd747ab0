"""What is said where a recipe is wrong."""

import pytest
from small_recipe import DEMO, SMALL, message

from headwise.recipes import RecipeError, load_recipe, shipped_recipes
from headwise.recipes.catalogue import task_class
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


def test_set_wants_few_keys_in_each_other():
    for change in ("a" + ".a" * 1200 + "=1", "training" + ".x" * 100_000 + "={}"):
        complaint = message(DEMO, change)
        assert "keys in each other, expected at most 50" in complaint and len(complaint) < 500
    assert "in each other" not in message(DEMO, "a" + ".a" * 49 + "=1")


def test_set_wants_yaml():
    assert "--set is 'training.adam_betas=[1': not valid YAML" in message(
        DEMO, "training.adam_betas=[1"
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
    ],
)
def test_an_unknown_key_is_named_with_the_nearest(change, key, nearest):
    said = message(DEMO, change)
    assert f"there is no key '{key}'; did you mean '{nearest}'?" in said
    assert "known: " in said


def test_an_unknown_key_of_a_corpus_lists_those_of_that_corpus():
    changes = ("data.train.source=a", "data.train.target=b", "data.trian=x")
    said = message(DEMO, "data.corpus=files", *changes)
    assert "'data.trian'; did you mean 'train'?" in said
    assert "target_language" in said
    assert "revision" not in said  # that is one of the hub's


def test_a_key_like_no_other_is_named_without_a_guess():
    said = message(DEMO, "zzz=5")
    assert "there is no key 'zzz'\n" in said
    assert "training" in said


def test_an_unknown_key_in_a_system_says_which(small):
    said = message(small, "systems.mae.model.depth=5")
    assert "system mae" in said
    assert "there is no key 'model.depth'" in said


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
    ],
)
def test_a_wrong_value_is_named_with_what_is_expected(change, said):
    assert said in message(DEMO, change)


def test_all_problems_are_given_at_once():
    said = message(DEMO, "training.seed=x", "model.norm=mid", "evaluation.beam_size=0")
    assert said.count("\n  ") >= 3
    for key in ("training.seed", "model.norm", "evaluation.beam_size"):
        assert key in said


def test_names_are_told_before_values_and_all_at_once():
    said = message(DEMO, "training.seed=x", "datta=1", "model.embed_dims=1", "model.attention=x")
    for name in ("'datta'", "'model.embed_dims'", "the system 'x'"):
        assert name in said
    assert "training.seed is" not in said


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
            ["model.embed_dim=30", "model.attention=moa", "systems={}"],
            "embed_dim is 30, expected a multiple of num_heads = 8",
        ),
        (
            ["model.attention={encoder_self: {system: moa, top_k: 9, num_experts: 4}}"],
            "top_k is 9, expected 1 to num_experts = 4",
        ),
        (
            ["model.attention={encoder_self: {system: moa, size: 8K4E16D}}"],
            "top_k is 8, expected 1 to num_experts = 4",
        ),
        (
            ["model.attention={decoder_self: {system: mae, dropped_heads: 8}}"],
            "dropped_heads is 8, expected 1 to 7",
        ),
        (
            ["model.attention={decoder_self: {system: mae, dropped_heads: two}}"],
            "attention.decoder_self.dropped_heads is 'two': input should be a valid integer",
        ),
        (
            ["model.attention={decoder_self: {system: mae, gate_hidden_dim: -1}}"],
            "gate_hidden_dim is -1",
        ),
        (
            ["model.attention={decoder_self: {system: mae, gate_dropout: 5}}"],
            "gate_dropout is 5, expected a probability",
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


def test_a_number_is_no_name_of_a_system(small):
    said = message(small, "systems={2017: {training: {max_steps: 2}}}")
    assert "the key 2017 is a number, expected text; put it in quotes" in said
