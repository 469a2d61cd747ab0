"""Recipes: what they mean, and what is said where they are wrong."""

import sys
from functools import cache

import pytest
import torch
import yaml

import headwise as hw
from headwise.models.trust import trusting
from headwise.recipe import (
    RecipeError,
    differences,
    load_recipe,
    shipped_recipes,
    to_yaml,
    with_defaults,
)
from headwise.recipe.catalogue import task_class
from headwise.recipe.schema import locate
from headwise.training.rules import TrainingRules

DEMO = "interface-strings"
SMALL = """
description: small
model: {embed_dim: 16, num_heads: 4, dropout: 0.3}
training: {max_steps: 5, mae: {period: 2}}
systems:
  standard: {}
  mae:
    description: gated
    model: {attention: mae, dropout: 0.1}
    training: {max_steps: 7, mae: {unit: steps}}
"""


@pytest.fixture
def small(tmp_path):
    """The path of a recipe file."""
    path = tmp_path / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return str(path)


def message(name, *changes):
    """What is said about a recipe that cannot be used."""
    with pytest.raises(RecipeError) as caught:
        load_recipe(name, changes)
    return str(caught.value)


# Those that headwise ships


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_fits_with_each_of_its_systems(name):
    file = load_recipe(name)
    assert file.recipe.description
    # Recipes of fine-tuning compare ways to train one system.
    assert file.system_names[0] == "standard" or file.recipe.model.pretrained is not None
    assert len(file.system_names) >= 2
    for system in file.system_names:
        assert file.recipe.systems[system].description
        recipe = file.system(system)
        assert recipe.systems == {}
        # What a run's folder keeps can be read back, and is the same recipe.
        assert type(recipe).model_validate(yaml.safe_load(to_yaml(recipe))) == recipe


SETTINGS_OF_THE_PAPERS = [
    ("mae-wmt14-en-de", "standard", "training.warmup_steps", 4000),
    ("mae-wmt14-en-de", "mae-7", "training.warmup_steps", 8000),
    ("mae-wmt14-en-de", "mae-7", "training.mae.method", "block-coordinate-descent"),
    ("mae-wmt14-en-de", "nobcd", "training.mae.method", "joint"),
    ("mae-iwslt14-de-en", "mae-6", "training.warmup_steps", 8000),
    ("mae-iwslt14-de-en", "mae-6", "training.weight_decay", 1e-4),
    ("moa-wmt14-en-de", "moa-base", "training.epochs", 100),
    ("moa-wmt14-en-de", "moa-base", "model.attention_dropout", 0.2),
    ("moa-wmt14-en-de", "moa-f", "model.attention.size", "4K32E256D"),
    ("moa-wmt14-en-de", "moa-big", "training.gradient_accumulation", 64),
    ("moa-losses-wmt14-en-de", "16e-z-large", "model.attention.size", "8K16E128D"),
    ("moa-losses-wmt14-en-de", "16e-z-large", "model.attention.balance_coef", 0),
    ("moa-losses-wmt14-en-de", "32e-both", "model.attention.z_coef", 0.001),
    ("moa-losses-wmt14-en-de", "8e-z", "model.attention_dropout", 0.2),
    ("moa-wmt14-en-fr", "moa-base", "training.epochs", 50),
    ("moa-wmt14-en-fr", "moa-big", "training.epochs", 100),
    ("moa-wmt14-en-fr", "moa-base", "model.attention_dropout", 0),
    ("moa-wmt14-en-fr", "moa-big", "model.attention_dropout", 0.1),
    ("moa-wmt14-en-fr", "moa-big", "training.warmup_steps", 8000),
    ("weighted-wmt14-en-de", "standard", "training.max_steps", 100_000),
    ("weighted-wmt14-en-de", "weighted", "training.max_steps", 60_000),
    ("weighted-wmt14-en-de", "weighted", "training.final_model", "last"),
    ("weighted-wmt14-en-de", "weighted-8-layers", "model.dropout", 0.3),
    ("weighted-wmt14-en-de", "standard-8-layers", "model.dropout", 0.1),
    ("weighted-wmt14-en-de", "standard-large", "training.max_steps", 300_000),
    ("weighted-wmt14-en-fr", "weighted-large", "training.max_steps", 250_000),
    ("weighted-wmt14-en-fr", "weighted-large", "training.weighted.freeze_last", 10_000),
    ("agreement-wmt14-en-de", "agreement", "training.max_steps", 100_000),
    ("agreement-wmt17-zh-en", "agreement-big", "training.max_steps", 300_000),
    ("agreement-wmt17-zh-en", "agreement-big", "model.dropout", 0.3),
    ("tim-wmt14-en-de", "tim-comp", "model.attention.num_mechanisms", 2),
    ("tim-wmt14-en-de", "tim-nocomp", "model.attention.competition", False),
    ("tim-bert", "tim-comp", "model.ffn_activation", "gelu"),
    ("tim-bert", "standard", "model.positions", "learned"),
    ("tim-cifar10", "tim-comp", "model.positions", "learned"),
    ("tim-mnist-cifar10", "standard", "model.ffn_activation", "gelu"),
    ("tim-dns", "tim-comp-2", "model.ffn_activation", "leaky-relu"),
    ("moa-wikitext103-mlm", "standard", "model.positions", "learned"),
]


@pytest.mark.parametrize(("name", "system", "key", "value"), SETTINGS_OF_THE_PAPERS)
def test_the_papers_settings_are_there(name, system, key, value):
    found = load_recipe(name).system(system).model_dump()
    for part in key.split("."):
        found = found[part]
    assert found == value


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("mae-wmt14-en-de", 8 * 4096),
        ("moa-wmt14-en-de", 32 * 8092),
        ("moa-losses-wmt14-en-de", 32 * 8092),
        ("moa-wmt14-en-fr", 32 * 8092),
        ("weighted-wmt14-en-de", 25_000),
        ("weighted-wmt14-en-fr", 25_000),
        ("agreement-wmt14-en-de", 8 * 4096),
        ("agreement-wmt17-zh-en", 8 * 4096),
        ("tim-wmt14-en-de", 8 * 4096),
    ],
)
def test_a_step_sees_as_many_tokens_as_in_the_paper(name, tokens):
    file = load_recipe(name)
    for system in file.system_names:
        training = file.system(system).training
        expected = 64 * 4096 if system == "moa-big" else tokens
        assert training.batch_tokens * training.gradient_accumulation == expected


# Sizes of the models, which the papers give or which follow from what they say


@cache
def parameters(name, system):
    """The number of parameters of a shipped recipe's system, if its vocabulary is filled."""
    recipe = load_recipe(name).system(system)
    task = task_class(recipe.task)
    with torch.device("meta"):
        model = task.model_class(task.nominal_config(recipe))
    model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", shipped_recipes())
def test_the_model_of_every_shipped_system_can_be_built(name):
    for system in load_recipe(name).system_names:
        assert parameters(name, system) > 0


@pytest.mark.parametrize(
    ("layers", "branches", "millions"),
    [
        ("-2-layers", 8, 36),
        ("-4-layers", 8, 50),
        ("", 8, 65),
        ("-8-layers", 8, 80),
        ("-large", 16, 213),
    ],
)
def test_sizes_of_the_weighted_transformer(layers, branches, millions):
    """Its table 2; our vocabulary of 37,000 is a little smaller than the paper's seems to be."""
    recipe = "weighted-wmt14-en-de"
    standard = parameters(recipe, f"standard{layers}")
    assert standard / 1e6 == pytest.approx(millions, rel=0.07)
    model = load_recipe(recipe).system(f"weighted{layers}").model
    replaced = 2 * model.encoder_layers  # pairs of an attention and a feed-forward
    # κ and α; one norm less, and no bias between attention and feed-forward.
    added = replaced * (2 * branches - 2 * model.embed_dim - model.embed_dim)
    assert parameters(recipe, f"weighted{layers}") == standard + added


@pytest.mark.parametrize(
    ("system", "modules", "printed"),
    [
        ("simple-encoder", 6, 12.6),
        ("em-encoder", 6, 12.6),
        ("em-cross", 6, 12.6),
        ("em-decoder", 6, 12.6),
        ("em-encoder-cross", 12, 25.2),
        ("em-all", 18, 37.8),
        ("em-layers-4-6", 3, 94.3 - 88.0),
        ("em-layers-1-3", 3, 94.3 - 88.0),
        ("agreement", 2, 92.2 - 88.0),
        ("em-layer-6", 1, 90.1 - 88.0),
        ("em-layer-1", 1, 90.1 - 88.0),
    ],
)
def test_sizes_of_routing_by_agreement(system, modules, printed):
    """Its tables 2 and 3: with H heads, H·d² weights more per module that is routed."""
    name = "agreement-wmt14-en-de"
    added = parameters(name, system) - parameters(name, "standard")
    weights = modules * 8 * 512**2
    assert weights == pytest.approx(added, rel=0.01)  # apart from biases and what EM learns
    assert weights / 1e6 == pytest.approx(printed, abs=0.15)


@pytest.mark.parametrize("name", ["agreement-wmt14-en-de", "agreement-wmt17-zh-en"])
def test_sizes_of_effective_aggregation(name):
    """Its table 4: 4 million more for the base model, 33 million more for the big one."""
    base = parameters(name, "agreement") - parameters(name, "standard")
    big = parameters(name, "agreement-big") - parameters(name, "standard-big")
    assert round(base / 1e6) == 4
    assert big / 1e6 == pytest.approx(33, abs=1)


@pytest.mark.parametrize(
    ("system", "millions"),
    [
        ("moa-base", 65),
        ("moa-a", 87),
        ("moa-b", 125),
        ("moa-c", 83),
        ("moa-d", 123),
        ("moa-e", 200),
        ("moa-f", 200),
        ("moa-big", 200),
    ],
)
def test_sizes_of_mixtures_of_attention_heads(system, millions):
    """Its table 3, whose vocabulary has some 4,800 subwords more than the 32,000 of its text."""
    found = (parameters("moa-wmt14-en-de", system) + 4800 * 512) / 1e6
    assert found == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize("system", ["tim-comp", "tim-nocomp"])
def test_independent_mechanisms_are_as_large_as_the_standard_model(system):
    standard = parameters("tim-wmt14-en-de", "standard")
    assert parameters("tim-wmt14-en-de", system) == pytest.approx(standard, rel=0.01)


# Systems and changes


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


def test_further_test_sets_of_speech_had_another_name(tmp_path):
    folders = {"noisy": "a", "clean": "b"}
    recipe = {
        "task": "speech-enhancement",
        "data": {"corpus": "generated", "transfer": {"voicebank": folders}},
        "training": {"max_steps": 1},
    }
    path = tmp_path / "older.yaml"
    path.write_text(yaml.safe_dump(recipe))
    file = load_recipe(str(path))
    assert file.notes == ["data.transfer is now data.tests"]
    assert list(file.recipe.data.tests) == ["voicebank"]


def test_a_path_under_systems_changes_that_system_alone(small):
    file = load_recipe(small, ["systems.mae.training.max_steps=9"])
    assert file.system("mae").training.max_steps == 9
    assert file.system("standard").training.max_steps == 5


def test_of_two_changes_of_one_key_the_later_wins(small):
    changes = ["training.max_steps=9", "training.max_steps=8"]
    assert load_recipe(small, changes).recipe.training.max_steps == 8


def test_a_system_can_be_added_on_the_command_line(small):
    file = load_recipe(small, ["systems.wide.model.embed_dim=64"])
    assert file.system_names == ["standard", "mae", "wide"]
    assert file.system("wide").model.embed_dim == 64


def test_null_takes_a_value_back(small):
    recipe = load_recipe(small, ["training.max_steps=null", "training.epochs=2"]).recipe
    assert (recipe.training.max_steps, recipe.training.epochs) == (None, 2)


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


def test_one_attention_for_all_is_no_comparison(small):
    load_recipe(small, ["systems.mae.model.attention=moa"]).check_comparable()
    file = load_recipe(small, ["model.attention=moa"])
    with pytest.raises(RecipeError, match=r"--set systems\.mae\.model\.attention="):
        file.check_comparable()
    without_own = load_recipe(small, ["model.attention=moa", "systems={a: {}, b: {}}"])
    without_own.check_comparable()


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


def test_changes_do_not_reach_the_next_recipe(small):
    load_recipe(small, ["training.max_steps=100", "systems.mae.model.dropout=0.9"])
    file = load_recipe(small)
    assert file.recipe.training.max_steps == 5
    assert file.system("mae").model.dropout == 0.1


# What is wrong


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


def test_keys_of_older_recipes_are_read_with_a_note(tmp_path):
    text = SMALL.replace("mae: {period: 2}", "gates: {period: 2}")
    text = text.replace("mae: {unit: steps}", "gates: {unit: steps}")
    assert text.count("gates:") == 2
    path = tmp_path / "old.yaml"
    text += "evaluation: {branches: top-k, branches_top_k: 2}\n"
    path.write_text(text, encoding="utf-8")
    changes = ["training.gates.learning_rate=0.5", "training.branches.freeze_last=1"]
    file = load_recipe(str(path), changes)
    mae = file.system("mae").training.mae
    assert (mae.period, mae.unit, mae.learning_rate) == (2, "steps", 0.5)
    assert file.recipe.training.weighted.freeze_last == 1
    assert file.recipe.evaluation.ablation == {"weighted": {"name": "top-k", "top_k": 2}}
    assert file.notes == [
        "training.gates is now training.mae",
        "systems.mae.training.gates is now systems.mae.training.mae",
        "evaluation.branches is now evaluation.ablation.weighted",
        "evaluation.branches_top_k is now evaluation.ablation.weighted",
        "training.branches is now training.weighted",
    ]
    old = to_yaml(file.recipe).replace("  mae:\n    method", "  gates:\n    method")
    assert "  gates:\n" in old and with_defaults(old) == to_yaml(file.recipe)


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
    said = message(DEMO, "training.seed=x", "model.norm=mid", "datta=1")
    assert said.count("\n  ") >= 3
    for key in ("training.seed", "model.norm", "'datta'"):
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

    monkeypatch.setattr("headwise.tasks.text.parallel.corpus.read_interface_strings", never)
    assert said in message(DEMO, *changes)


# Differences


def test_no_differences_between_a_recipe_and_itself(small):
    text = to_yaml(load_recipe(small).recipe)
    assert differences(text, text) == []


def test_differences_name_the_key_and_both_values(small):
    old = to_yaml(load_recipe(small).system("standard"))
    new = to_yaml(load_recipe(small, ["training.seed=7", "model.norm=pre"]).system("standard"))
    assert differences(old, new) == [
        "model.norm: post before, pre now",
        "training.seed: 1 before, 7 now",
    ]


def test_differences_name_keys_that_only_one_has():
    old, new = "a: {b: 1}\nc: 2", "a: {d: 3}\nc: 2"
    assert differences(old, new) == [
        "a.b: 1 before, not set now",
        "a.d: not set before, 3 now",
    ]


# Where in the settings an error is


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


# Systems of a user's own

OF_A_USER = """
import headwise as hw

class SpeedSettings(hw.RuleSettings):
    rate: float = 0.1

class Speed(hw.Rule):
    settings_class = SpeedSettings

class A(hw.MultiHeadAttention):
    rule = Speed

class Sub(A):
    pass

class Twin(hw.MultiHeadAttention):
    rule = Speed

class Plain(hw.MultiHeadAttention):
    pass

class Half(hw.BranchedAttention):
    pass

class LikeMae(hw.MixtureOfAttentiveExperts):
    rule = hw.MixtureOfAttentiveExperts.rule
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The name of a package whose systems its module `impl` declares, and itself imports."""
    name = "_heads_of_a_user"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text(f"from {name}.impl import A, Half, Sub\n")
    (folder / "impl.py").write_text(OF_A_USER)
    monkeypatch.syspath_prepend(tmp_path)
    with trusting():
        yield name
    for module in (name, f"{name}.impl"):
        sys.modules.pop(module, None)


def with_training(tmp_path, training, attention="standard"):
    path = tmp_path / "own.yaml"
    own = {**yaml.safe_load(SMALL), "training": {"max_steps": 500, **training}}
    own["model"]["attention"] = attention
    path.write_text(yaml.safe_dump(own, sort_keys=False), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("named", ["{}:A", "{}:Sub", "{}.impl:A", "{}.impl:Sub"])
def test_settings_reach_the_rule_under_each_name_of_its_system(tmp_path, package, named):
    key = named.format(package)
    path = with_training(tmp_path, {key: {"rate": 0.7}}, attention=f"{package}:Sub")
    recipe = load_recipe(path).recipe
    rules = training_rules_of(recipe)
    assert [(name, rule.settings.rate) for name, rule in rules.items()] == [
        (f"{package}.impl:A", 0.7)
    ]
    (tmp_path / "stamp.yaml").write_text(to_yaml(recipe), encoding="utf-8")
    again = load_recipe(str(tmp_path / "stamp.yaml")).recipe
    assert to_yaml(again) == to_yaml(recipe) == with_defaults(to_yaml(recipe))
    assert f"{package}.impl:A:" in to_yaml(recipe)


def training_rules_of(recipe):
    """The rules of a model of one stack with the attention of a recipe."""
    model = hw.CausalLM(
        hw.CausalLMConfig(
            vocab_size=9,
            embed_dim=16,
            num_heads=4,
            ffn_dim=32,
            layers=1,
            attention=recipe.model.attention,
        )
    )
    return TrainingRules(model, recipe.training.of_rules()).rules


def test_settings_of_a_subclass_are_those_of_the_rule_it_inherits(tmp_path, package):
    path = with_training(tmp_path, {f"{package}:Half": {"freeze_last": 3}})
    assert load_recipe(path).recipe.training.weighted.freeze_last == 3


def test_a_rule_of_headwise_keeps_its_name_in_another_system(tmp_path, package):
    key = f"{package}.impl:LikeMae"
    recipe = load_recipe(with_training(tmp_path, {key: {"period": 9}}, attention=key)).recipe
    assert recipe.training.mae.period == training_rules_of(recipe)["mae"].settings.period == 9
    (tmp_path / "stamp.yaml").write_text(to_yaml(recipe), encoding="utf-8")
    assert to_yaml(load_recipe(str(tmp_path / "stamp.yaml")).recipe) == to_yaml(recipe)


@pytest.mark.parametrize("named", ["{}:A", "{}.impl:Sub"])
@pytest.mark.parametrize("where", ["training", "systems.mae.training"])
def test_set_finds_a_system_whose_name_has_dots(tmp_path, package, where, named):
    path = with_training(tmp_path, {f"{package}:A": {"rate": 0.7}})
    chosen = load_recipe(path, [f"{where}.{named.format(package)}.rate=0.5"]).system("mae")
    assert chosen.training.of_rules()[f"{package}.impl:A"].rate == 0.5


def test_an_ablation_is_found_under_a_name_with_dots(small, package):
    file = load_recipe(small, [f"evaluation.ablation.{package}.impl:Half=uniform"])
    assert file.recipe.evaluation.ablation == {f"{package}.impl:Half": "uniform"}


@pytest.mark.parametrize(
    "one, other",
    [
        ("{}:A", "{}:Sub"),
        ("{}.impl:A", "{}:A"),
        ("{}:A", "{}.impl:Twin"),
        ("mae", "{}.impl:LikeMae"),
    ],
)
def test_two_names_of_one_rule_are_refused(tmp_path, package, one, other):
    one, other = one.format(package), other.format(package)
    said = message(with_training(tmp_path, {one: {}, other: {}}))
    assert f"training has settings under {one} and under {other}, which have the same" in said


@pytest.mark.parametrize(
    "key, said",
    [
        ("gone_heads:A", "training.gone_heads:A: the system 'gone_heads:A' cannot be loaded: No "),
        ("{}.impl:B", "has no attribute 'B'; expected module:Class"),
        ("{}.impl:Plain", "impl:Plain: the system has no rule of training with settings"),
    ],
)
def test_a_system_without_settings_under_training_says_why(tmp_path, package, key, said):
    assert said in message(with_training(tmp_path, {key.format(package): {}}))


def test_a_wrong_setting_of_a_system_of_ones_own_is_named(tmp_path, package):
    said = message(with_training(tmp_path, {f"{package}:A": {"rat": 1}}))
    assert f"there is no key 'training.{package}.impl:A.rat'; did you mean 'rate'?" in said


# Keys of older recipes, on the command line


@pytest.mark.parametrize(
    "changes, ablation",
    [
        (["evaluation.branches=uniform"], {"weighted": {"name": "uniform"}, "mae": "uniform"}),
        (["evaluation.branches=learned"], {"mae": "uniform"}),
        (["evaluation={branches: uniform}"], {"weighted": {"name": "uniform"}}),
        (
            ["evaluation.branches=top-k", "evaluation.branches_top_k=2"],
            {"weighted": {"name": "top-k", "top_k": 2}, "mae": "uniform"},
        ),
    ],
)
def test_an_older_key_on_the_command_line_wins(tmp_path, changes, ablation):
    path = tmp_path / "own.yaml"
    path.write_text(SMALL + "evaluation: {ablation: {weighted: random, mae: uniform}}\n")
    file = load_recipe(str(path), changes)
    assert file.recipe.evaluation.ablation == ablation
    assert file.system("mae").evaluation.ablation == ablation
    assert "evaluation.branches is now evaluation.ablation.weighted" in file.notes_on_changes


def test_notes_on_changes_are_not_those_on_the_file(tmp_path):
    path = tmp_path / "old.yaml"
    path.write_text(SMALL.replace("mae: {period: 2}", "gates: {period: 2}"))
    file = load_recipe(str(path), ["evaluation.branches=uniform"])
    assert file.notes_on_changes == ["evaluation.branches is now evaluation.ablation.weighted"]
    assert file.notes == ["training.gates is now training.mae", *file.notes_on_changes]


def test_an_older_option_without_its_ablation_is_refused(small):
    said = message(small, "evaluation.branches_top_k=2")
    assert "evaluation.branches_top_k is 2, an option of an ablation that is not named" in said
    assert "give evaluation.ablation.weighted" in said


def test_an_older_key_beside_an_ablation_of_the_wrong_form(small):
    said = message(small, "evaluation={ablation: weighted, branches: uniform}")
    assert "evaluation.ablation is 'weighted', expected" in said


def test_a_number_is_no_name_of_a_system(small):
    said = message(small, "systems={2017: {training: {max_steps: 2}}}")
    assert "the key 2017 is a number, expected text; put it in quotes" in said
