"""What is tried: `--tune` as it is read, checked, and applied to each system."""

import re
from contextlib import nullcontext

import numerals
import pytest

from headwise.recipes import load_recipe
from headwise.runs.grid import TUNING_SEED, Grid, candidates, check_grid, parse_grid

RATE = ("training", "learning_rate")
PERIOD = ("training", "mae", "period")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(numerals.write_recipe(tmp_path_factory.mktemp("world")))


@pytest.fixture(scope="module")
def file(path):
    return load_recipe(path)


# As it is read


def test_values_are_yaml_and_lists_stand_in_brackets():
    grid = parse_grid(
        ["training.learning_rate = 1e-3, 0.3", "training.adam_betas=[0.9, 0.98],[0.9, 0.999]"], 50
    )
    assert grid == Grid(
        {RATE: [1e-3, 0.3], ("training", "adam_betas"): [[0.9, 0.98], [0.9, 0.999]]}, 50
    )
    assert len(grid.combinations()) == 4
    assert grid.combinations()[1] == [(RATE, 1e-3), (("training", "adam_betas"), [0.9, 0.999])]


def test_nothing_is_tuned_without_the_option():
    assert parse_grid([]) is None
    with pytest.raises(ValueError, match="--tune-steps is 5, but nothing is tuned"):
        parse_grid([], 5)
    with pytest.raises(ValueError, match=r"--tune-equal is 0.1, but nothing is tuned"):
        parse_grid([], None, 0.1)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("training.learning_rate", "expected KEY=VALUE,VALUE such as training.learning_rate="),
        ("training.learning_rate=", "at least two values.*=VALUE gives every system a single one"),
        ("model.ffn_dim=[1", r"expected YAML values, separated by commas: not valid YAML"),
        ("data.language=fr,de", "compared on the same data, by the same evaluation"),
        ("training.seed=1,2", "a seed is no setting to choose"),
        ("training.max_steps=5,6", "--tune-steps sets that of the tries"),
    ],
)
def test_what_cannot_be_tuned(option, said):
    with pytest.raises(ValueError, match=said):
        parse_grid([option])


@pytest.mark.parametrize("other", ["training.mae.period=4,5", "training.mae={},{period: 2}"])
def test_a_key_is_named_once(other):
    with pytest.raises(ValueError, match="expected each key once, with all of its values"):
        parse_grid(["training.mae.period=1,2", other])


# As it is checked


def check(path, *options, changes=(), systems=("standard", "mae"), seeds=(1,), match=None):
    check_grid(parse_grid(options), load_recipe(path, changes), systems, seeds, match)


RATES, PERIODS = "training.learning_rate=1e-3,3e-3", "training.mae.period=1,2"
OF_MAE = ["systems.mae.training.learning_rate=1e-2"]


@pytest.mark.parametrize(
    ("option", "how", "said"),
    [
        (RATES, {"changes": ["training.mae.learning_rate=0.5", "training.warmup_steps=3"]}, ""),
        (RATES, {"changes": ["training.learning_rate=1"]}, "both give training.learning_rate"),
        (
            RATES,
            {"changes": ["training={max_steps: 3, learning_rate: 1}"]},
            "--set and --tune both",
        ),
        (PERIODS, {"changes": ["training.mae={period: 3}"]}, "both give training.mae.period"),
        (RATES, {"changes": OF_MAE}, "recipe sets it for mae, which tuning would undo"),
        (RATES, {"changes": OF_MAE, "systems": ["standard", "moa"]}, ""),
        ("training.mae.learning_rate=1,2", {"changes": OF_MAE}, ""),
        ("model.attention=mae,moa", {"changes": OF_MAE}, "sets it for mae, which"),
        ("model.attention.encoder_self.system=mae,moa", {}, "sets it for mae, which"),
        (RATES, {"seeds": [1, TUNING_SEED]}, "--seeds has 1000000, the seed of the tries"),
        ("model.dropout=0,0.1", {"match": "parameters"}, ""),
        ("model.num_heads=2,4", {"match": "parameters"}, ""),
        ("model.ffn_dim=16,32", {"match": "parameters"}, "--match parameters sets model.ffn_dim"),
        ("model.num_heads=2,4", {"match": "parameters-and-heads"}, "sets model.num_heads of each"),
    ],
)
def test_what_is_set_otherwise_cannot_be_tuned(path, option, how, said):
    with pytest.raises(ValueError, match=re.escape(said)) if said else nullcontext():
        check(path, option, **how)


# As it is applied to a system


def tried(file, system, *options, steps=None):
    return candidates(file, system, None, parse_grid(options, steps))


def test_every_combination_is_a_recipe(file):
    found = tried(file, "mae", "training.learning_rate=1e-3,3e-3", "training.mae.period=1,2")
    assert [candidate.values for candidate in found] == [
        {"training.learning_rate": rate, "training.mae.period": period}
        for rate in (0.001, 0.003)
        for period in (1, 2)
    ]
    for candidate in found:
        training = candidate.recipe.training
        values = {
            "training.learning_rate": training.learning_rate,
            "training.mae.period": training.of_rules()["mae"].period,
        }
        assert values == candidate.values
        assert training.seed == 1
        assert candidate.training == training.model_copy(update={"seed": TUNING_SEED})


def test_tries_need_a_run_to_start_from_if_seeds_have_theirs(path, tmp_path):
    file = load_recipe(path, [f"model.pretrained={tmp_path}/run-{{seed}}"])
    assert len(tried(file, "standard", RATES)) == 2  # the runs may be gone
    (tmp_path / "run-1" / "model").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"there is no .*run-1000000, from which the tries of"):
        tried(file, "standard", RATES)
    (tmp_path / f"run-{TUNING_SEED}" / "model").mkdir(parents=True)
    assert len(tried(file, "standard", RATES)) == 2


@pytest.mark.parametrize("change", ["training.max_steps=6", "training.epochs=2"])
def test_tries_reach_the_learning_rate(path, change):
    file = load_recipe(path, [change])
    with pytest.raises(ValueError, match="--tune-steps is 2, expected more than the 2 steps of"):
        tried(file, "standard", "training.learning_rate=1e-3,3e-3", steps=2)


def test_combinations_that_do_not_differ_for_a_system_are_one_try(file):
    options = ["training.mae.period=1,2", "training.learning_rate=1e-3,3e-3"]
    found = tried(file, "standard", *options)
    assert [candidate.values for candidate in found] == [
        {"training.learning_rate": 0.001},
        {"training.learning_rate": 0.003},
    ]
    # What is not tuned for a system stays as the recipe has it.
    assert {candidate.recipe.training.of_rules()["mae"].period for candidate in found} == {2}
    assert len(tried(file, "mae", *options)) == 4
    (only,) = tried(file, "moa", options[0])
    assert only.values == {}


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("training.learning_rat=1,2", r"system mae:\n.* did you mean 'learning_rate'"),
        ("training.learning_rate=0.1,-2", r"training\.learning_rate is -2, expected a number gr"),
        ("model.embed_dim=16,18", "embed_dim is 18, expected a multiple of num_heads"),
        ("training.learning_rate=1e-3,0.001", r"learning_rate=0\.001 twice"),
    ],
)
def test_wrong_keys_and_values(file, option, said):
    with pytest.raises(ValueError, match=f"(?s){said}"):
        tried(file, "mae", option)


def test_folders_are_named_after_values(file):
    (one, _) = tried(file, "mae", "training.learning_rate=1e-3,3e-3")
    assert one.folder_name(None) == "training.learning_rate=0.001"
    assert one.folder_name(100) == "training.learning_rate=0.001,steps=100"
    (betas, other) = tried(file, "mae", "training.adam_betas=[0.9, 0.98],[0.9, 0.999]")
    assert betas.folder_name(None) == "training.adam_betas=0.9,0.98"
    assert other.folder_name(None) != betas.folder_name(None)
