"""What a plan names is not imported unasked: folders and recipes of others run no code."""

import json
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from typer.testing import CliRunner

import headwise as hw
from headwise.cli import app
from headwise.models.trust import is_trusting
from headwise.recipes import load_recipe, to_yaml

HOSTILE = """
from pathlib import Path
import headwise as hw
Path(__file__).with_name("was here").touch()
class Heads(hw.MultiHeadAttention):
    pass
"""
SIZES = {"vocab_size": 9, "embed_dim": 8, "num_heads": 2, "ffn_dim": 8, "layers": 1}
NOT_IMPORTED = "'hostile:Heads' is of a module that is not imported"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model's folder whose configuration names a class of a module that Python would find."""
    (tmp_path / "hostile.py").write_text(HOSTILE, encoding="utf-8")
    hw.CausalLM(hw.CausalLMConfig(**SIZES)).save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    values = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**values, "attention": "hostile:Heads"}), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("hostile", None)


@pytest.mark.parametrize("trust", [{}, {"trust_remote_code": False}])
@pytest.mark.parametrize(
    "load",
    [
        hw.CausalLM.from_pretrained,
        hw.CausalLMConfig.from_pretrained,
        AutoConfig.from_pretrained,
        AutoModel.from_pretrained,
        AutoModelForCausalLM.from_pretrained,
    ],
)
def test_loading_a_model_runs_no_code_that_it_names(folder, load, trust):
    with pytest.raises(ValueError, match=NOT_IMPORTED):
        load(folder, **trust)
    assert not (folder / "was here").exists()


def edit(folder, **values):
    config = folder / "config.json"
    given = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**given, "attention": "standard", **values}), encoding="utf-8")


@pytest.mark.parametrize("kind", [hw.CausalLM, AutoModelForCausalLM])
@pytest.mark.parametrize(
    "name", ["attn_implementation", "_attn_implementation", "_attn_implementation_internal"]
)
@pytest.mark.parametrize("value", ["someone/kernel", {"": "someone/kernel"}, "flash_attention_3"])
def test_nor_code_of_the_hub(folder, kind, name, value):
    edit(folder, **{name: value})
    with pytest.raises(ValueError, match=f"config.json has {name}=.* expected one of eager, sdpa"):
        kind.from_pretrained(folder)


def test_nor_code_beside_it(folder, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # whatever it may ask
    # It would be run as a copy somewhere else.
    code = f"from pathlib import Path\nPath({str(folder / 'was here')!r}).touch()\n"
    (folder / "custom_generate").mkdir()
    for name in ("hostile.py", "custom_generate/generate.py"):
        (folder / name).write_text(code, encoding="utf-8")
    edit(folder, auto_map={"AutoConfig": "hostile.Config", "AutoModelForCausalLM": "hostile.Model"})
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert type(model) is hw.CausalLM
    assert not (folder / "was here").exists()


class Pickled:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("kind", [hw.CausalLM, AutoModelForCausalLM])
def test_weights_are_not_unpickled(folder, kind):
    edit(folder)
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Pickled(folder / "was here")}, folder / "pytorch_model.bin")
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        kind.from_pretrained(folder)
    assert not (folder / "was here").exists()
    torch.load(folder / "pytorch_model.bin", weights_only=False)
    assert (folder / "was here").exists()  # it would have been


def test_nor_do_the_commands_with_a_recipe(folder):
    recipe = to_yaml(load_recipe("lm-pydoc").recipe).replace(": standard", ": hostile:Heads")
    (folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
    for command in ("train", "compare", "cost"):
        done = CliRunner().invoke(app, [command, "recipe.yaml"])
        assert done.exit_code == 2 and NOT_IMPORTED in done.stderr, done.output
    assert not (folder / "was here").exists()
    path = list(sys.path)
    done = CliRunner().invoke(app, ["cost", "recipe.yaml", "--trust"])
    assert done.exit_code == 0, done.output
    assert (folder / "was here").exists()
    assert not is_trusting()  # any more
    assert sys.path == path


@pytest.mark.parametrize("load", [hw.CausalLM, hw.CausalLMConfig])
def test_a_user_who_trusts_says_so(folder, load):
    assert load.from_pretrained(folder, trust_remote_code=True) is not None
    assert not is_trusting()


def test_what_the_program_has_imported_may_be_named(folder):
    import hostile

    model = AutoModelForCausalLM.from_pretrained(folder)
    assert type(model.decoder.layers[0].self_attention) is hostile.Heads


class Own(hw.MultiHeadAttention):
    pass


def test_a_registered_class_is_found_under_its_former_name(folder):
    assert hw.systems.register_system(Own, "hostile:Heads") is Own
    try:
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert type(model.decoder.layers[0].self_attention) is Own
        assert model(torch.tensor([[1, 2]])).logits.shape == (1, 2, 9)
    finally:
        from headwise.models import trust

        del trust._registered["hostile:Heads"]
    assert not (folder / "was here").exists()


@pytest.mark.parametrize(
    ("system", "name", "message"),
    [
        (torch.nn.Linear, "a:B", "expected a subclass of headwise.systems.System"),
        (Own, "Own", "name is 'Own', expected module:Class"),
        (Own, ":Own", "name is ':Own', expected module:Class"),
    ],
)
def test_what_cannot_be_registered_is_an_error(system, name, message):
    with pytest.raises(ValueError, match=message):
        hw.systems.register_system(system, name)
