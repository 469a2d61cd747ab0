"""What a recipe means: systems, data sets, and changes from the command line."""

import pytest
from small_recipe import DEMO

from headwise.plain_yaml import read_yaml
from headwise.recipes import RecipeError, differences, load_recipe, to_yaml
from headwise.recipes.file import RecipeFile, split_path


def test_a_system_is_the_recipe_with_its_changes(small):
    file = load_recipe(small)
    base, mae = file.system("standard"), file.system("mae")
    assert (base.model.attention, base.model.dropout, base.training.max_steps) == (
        "standard",
        0.3,
        5,
    )
    assert (mae.model.attention, mae.model.dropout, mae.training.max_steps) == ("mae", 0.1, 7)
    assert mae.model.embed_dim == 16  # what it does not name stays
    assert (mae.training.mae.period, mae.training.mae.unit) == (2, "steps")
    assert base.training.mae.unit == "epochs"


def test_a_plan_of_attention_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "plans.yaml"
    path.write_text(
        """
        model: {attention: {encoder_self: mae}}
        training: {max_steps: 1}
        systems: {cross: {model: {attention: {decoder_cross: mae}}}}
        """
    )
    assert load_recipe(str(path)).system("cross").model.attention == {"decoder_cross": "mae"}


@pytest.mark.parametrize(
    ("change", "path", "value"),
    [
        ("training.max_steps=100", ("training", "max_steps"), 100),
        ("training.learning_rate=1e-3", ("training", "learning_rate"), 1e-3),
        ("training.adam_betas=[0.8, 0.9]", ("training", "adam_betas"), (0.8, 0.9)),
        ("training.mae.period=3", ("training", "mae", "period"), 3),
        ("model.attention={encoder_self: moa}", ("model", "attention"), {"encoder_self": "moa"}),
        ("description=a = b", ("description",), "a = b"),
        (" training . seed = 4 ", ("training", "seed"), 4),
    ],
)
def test_set_changes_one_key(small, change, path, value):
    found = load_recipe(small, [change]).recipe
    for key in path:
        found = getattr(found, key)
    assert found == value


def test_the_command_line_wins_over_a_systems_changes(small):
    file = load_recipe(small, ["training.max_steps=11", "model.dropout=0"])
    for system in ("standard", "mae"):
        assert file.system(system).training.max_steps == 11
        assert file.system(system).model.dropout == 0
    assert file.system("mae").model.attention == "mae"


@pytest.mark.parametrize(
    "changes", [["model={embed_dim: 32}"], ["model={embed_dim: 32}", "training={max_steps: 3}"]]
)
def test_a_whole_part_on_the_command_line_leaves_what_systems_change_in_it(small, changes):
    file = load_recipe(small, changes)
    mae = file.system("mae")
    assert (mae.model.embed_dim, mae.model.attention, mae.model.dropout) == (32, "mae", 0.1)
    assert file.system("standard").model.attention == "standard"
    assert mae.training.max_steps == 7


def test_a_data_set_is_the_recipe_with_its_changes(tmp_path):
    path = tmp_path / "languages.yaml"
    path.write_text(
        """
        data: {corpus: interface-strings, max_length: 20}
        training: {max_steps: 1}
        systems: {standard: {}, mae: {model: {attention: mae}}}
        datasets:
          french: {}
          german: {language: de, max_length: 30}
          mine: {corpus: files, train: {source: a, target: b}}
        seeds: [1, 2]
        """
    )
    file = load_recipe(str(path), ["data.max_ratio=2"])
    assert file.dataset_names == ["french", "german", "mine"]
    german = file.system("mae", "german")
    assert (german.data.language, german.data.max_length, german.data.max_ratio) == ("de", 30, 2)
    assert german.model.attention == "mae"
    assert (german.systems, german.datasets, german.seeds) == ({}, {}, [])
    assert file.system(None, "french").data.max_length == 20
    # The keys of one kind of corpus are not those of another.
    assert file.system("standard", "mine").data.max_length is None
    with pytest.raises(RecipeError, match=r"there is no data set 'germna' .* mean 'german'"):
        file.system("mae", "germna")
    with pytest.raises(RecipeError, match=r"data set german:\n  data\.language"):
        load_recipe(str(path), ["datasets.german.language=xx"])


def test_data_sets_that_say_all_need_no_data_beside_them(tmp_path):
    path = tmp_path / "alone.yaml"
    # With the built-in docstrings in place of data, max_length would be above batch_tokens.
    path.write_text(
        """
        task: classification
        data: {max_length: 64}
        training: {max_steps: 1, batch_tokens: 64}
        systems: {standard: {}}
        datasets:
          mine: {corpus: files, train: a.tsv}
          theirs: {corpus: docstrings, max_length: 32}
        """
    )
    file = load_recipe(str(path))
    mine = file.system("standard", "mine").data
    assert (mine.corpus, mine.max_length) == ("files", 64)
    assert file.system(None, "theirs").data.max_length == 32
    changed = load_recipe(str(path), ["data.max_length=16"])
    assert changed.system(None, "theirs").data.max_length == 16
    with pytest.raises(RecipeError, match=r"no data of its own, expected .*: mine, theirs"):
        file.system("standard")
    assert not file.is_set(("training", "learning_rate"), "standard")
    # The recipe in a report gives the same data sets.
    again = tmp_path / "again.yaml"
    again.write_text(file.yaml())
    assert load_recipe(str(again)).system("standard", "mine").data == mine
    path.write_text(path.read_text().replace("corpus: docstrings, ", ""))
    with pytest.raises(RecipeError, match=r"data set theirs:\n  data\.corpus is missing"):
        load_recipe(str(path))
    path.write_text(path.read_text().replace("corpus: files, ", ""))
    with pytest.raises(RecipeError, match=r"data set mine:\n  data\.corpus is missing"):
        load_recipe(str(path))


def test_a_system_can_be_added_on_the_command_line(small):
    file = load_recipe(small, ["systems.wide.model.embed_dim=64"])
    assert file.system_names == ["standard", "mae", "wide"]
    assert file.system("wide").model.embed_dim == 64


def test_names_with_dots_are_found_on_the_command_line(tmp_path):
    path = tmp_path / "dots.yaml"
    path.write_text(
        """
        data: {corpus: interface-strings, tests: {v1.2: {source: a, target: b}}}
        training: {max_steps: 1}
        systems:
          tim-0.5: {model: {attention: tim, dropout: 0.2}}
          tim-0.5.1: {}
        """
    )
    changes = [
        "systems.tim-0.5.training.max_steps=7",
        "systems.tim-0.5.model.dropout=0",
        "systems.tim-0.5.1.training.max_steps=8",
        "data.tests.v1.2.source=c",
    ]
    file = load_recipe(str(path), changes)
    assert file.system_names == ["tim-0.5", "tim-0.5.1"]
    first, second = map(file.system, file.system_names)
    assert (first.training.max_steps, second.training.max_steps) == (7, 8)
    assert (first.model.attention, first.model.dropout) == ("tim", 0)
    assert {name: str(test.source) for name, test in first.data.tests.items()} == {"v1.2": "c"}
    of_system = "systems.tim-0.5.training.package.module:Class.rate"
    assert split_path(of_system)[-3:] == ("training", "package.module:Class", "rate")
    with pytest.raises(RecipeError, match=r"max_steps.*'x'"):
        load_recipe(str(path), ["systems.tim-0.5.training.max_steps=x"])


@pytest.mark.parametrize("text", ["1e3", "1E5", "0o17", "652e817", "+.5", "-08", "._", "no"])
def test_texts_that_look_like_numbers_stay_texts(small, text):
    file = load_recipe(small, [f"description='{text}'"])
    assert read_yaml(file.yaml())["description"] == text
    assert read_yaml(to_yaml(file.system("mae")))["description"] == text


def test_a_budget_in_epochs_takes_the_place_of_one_in_steps(small):
    file = load_recipe(small, ["training.epochs=3"])
    for system in file.system_names:  # one of them has max_steps of its own
        training = file.system(system).training
        assert (training.max_steps, training.epochs) == (None, 3)
    of_one = load_recipe(small, ["systems.mae.training.epochs=3"])
    assert of_one.system("mae").training.max_steps is None
    assert of_one.system("standard").training.max_steps == 5
    back = load_recipe(small, ["training.epochs=3", "training.max_steps=4"]).recipe.training
    assert (back.max_steps, back.epochs) == (4, None)


def test_the_kind_of_corpus_counts_wherever_it_is_named():
    changes = ["data.train.source=a.txt", "data.train.target=b.txt", "data.corpus=files"]
    assert str(load_recipe(DEMO, changes).recipe.data.train.source) == "a.txt"


def test_another_kind_of_corpus_drops_the_keys_of_the_first():
    changes = ["data.corpus=files", "data.train.source=a.txt", "data.train.target=b.txt"]
    recipe = load_recipe(DEMO, changes).recipe
    assert recipe.data.corpus == "files"
    assert str(recipe.data.train.source) == "a.txt"
    # Naming the kind that it has already drops nothing.
    assert load_recipe(DEMO, ["data.corpus=interface-strings"]).recipe.data.language == "fr"


@pytest.mark.parametrize(
    ("name", "changes", "kept"),
    [
        ("classify-docstrings", ["data.train=a.tsv"], {"max_length": 64}),
        ("classify-docstrings", ["data.train=a", "data.max_length=32"], {"max_length": 32}),
        ("mae-wikitext103", ["data.train=a"], {"documents": "title"}),
        (
            "tim-bert",
            ["data.train=a"],
            {"documents": "line", "validation_fraction": 1e-3, "test_fraction": 1e-3},
        ),
    ],
)
def test_another_kind_of_corpus_keeps_numbers_and_choices(name, changes, kept):
    data = load_recipe(name, ["data.corpus=files", *changes]).recipe.data
    assert data.model_dump(exclude_unset=True, exclude={"corpus", "train"}) == kept


def test_one_of_two_sources_of_images_keeps_them_too():
    changes = ["data.left.corpus=idx", "data.left.train=a"]
    left = load_recipe("tim-mnist-cifar10", changes).recipe.data.left
    assert (left.size, left.mode, left.validation_fraction) == (32, "grey", 0.02)


def test_files_of_one_kind_of_corpus_are_not_those_of_another():
    file = load_recipe("tim-cifar10", ["data={corpus: folder, train: a, size: 4, tests: {x: b}}"])
    raw = read_yaml(file.yaml())
    with pytest.raises(RecipeError, match=r"data.train is missing"):
        RecipeFile("mine", raw, [(("data", "corpus"), "idx")])
    changes = [(("data", "corpus"), "idx"), (("data", "train"), "c")]
    data = RecipeFile("mine", raw, changes).recipe.data
    assert (data.size, data.tests) == (4, {})


def test_differences_name_the_key_and_both_values(small):
    old = to_yaml(load_recipe(small).system("standard"))
    new = to_yaml(load_recipe(small, ["training.seed=7", "model.norm=pre"]).system("standard"))
    assert differences(old, new) == [
        "model.norm: post before, pre now",
        "training.seed: 1 before, 7 now",
    ]
    assert differences(old, old) == []
    assert differences("a: {b: 1}\nc: 2", "a: {d: 3}\nc: 2") == [
        "a.b: 1 before, not set now",
        "a.d: not set before, 3 now",
    ]
