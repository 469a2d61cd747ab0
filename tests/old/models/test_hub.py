"""Models on the hub: what is sent there, and folders that say where their classes are."""

import inspect
import os
import shutil
import subprocess
import sys

import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from local_hub import LocalHub

import headwise as hw
from headwise.models import hub

SIZES = {"vocab_size": 9, "embed_dim": 8, "num_heads": 2, "ffn_dim": 8, "layers": 1}
FILES = ["README.md", "config.json", "find_headwise.py", "generation_config.json"]
FILES.append("model.safetensors")


@pytest.fixture
def local(tmp_path, monkeypatch):
    made = LocalHub(tmp_path / "hub")
    monkeypatch.setattr(hub, "HfApi", lambda **_: made)
    return made


def model():
    return hw.CausalLM(hw.CausalLMConfig(**SIZES, attention="moa")).eval()


def test_the_local_hub_takes_what_the_hub_takes():
    for name in (
        "create_repo",
        "create_branch",
        "file_exists",
        "upload_folder",
        "snapshot_download",
    ):
        ours, theirs = (
            {k for k in inspect.signature(getattr(each, name)).parameters if k != "self"}
            for each in (LocalHub, HfApi)
        )
        assert ours <= theirs, name


@pytest.mark.parametrize("revision", ["new", "refs/pr/1", None])
def test_a_branch_is_made_where_there_is_none(local, revision):
    model().push_to_hub("user/name", revision=revision)
    made = [call for call in local.calls if "branch" in call]
    named = {"branch": "new", "of": "user/name", "exist_ok": True}
    assert made == ([named] if revision == "new" else [])


@torch.no_grad()
def test_a_model_is_sent_with_its_card(local):
    sent = model()
    said = sent.push_to_hub(
        "user/name", private=True, tags=["mine"], commit_message="A model", token="hf_of_mine"
    )
    assert said == "https://hub/user/name/commit/1"
    made, uploaded = local.calls
    assert made == {"made": "user/name", "private": True}
    assert uploaded == {
        "sent": FILES,
        "message": "A model",
        "revision": None,
        "token": "hf_of_mine",
    }
    card = ModelCard.load(local.folder / "user" / "name" / "README.md")
    assert card.data.library_name == "headwise" and card.data.tags == ["headwise", "mine"]
    assert 'model = headwise.CausalLM.from_pretrained("user/name")' in card.text
    assert f"headwise {hw.__version__}, transformers " in card.text
    read = hw.CausalLM.from_pretrained(local.folder / "user" / "name")
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(read(ids).logits, sent(ids).logits)


def test_a_card_that_is_there_stays(local):
    model().push_to_hub("user/name")
    card = local.folder / "user" / "name" / "README.md"
    card.write_text("My own words.")
    model().push_to_hub("user/name")
    assert card.read_text() == "My own words."
    assert local.calls[-1]["sent"] == [name for name in FILES if name != "README.md"]


def test_what_the_hub_denies_is_told_with_what_to_do(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match="push_to_hub is 'user/name', and nothing could be") as found:
        model().push_to_hub("user/name")
    assert "offline mode is enabled" in str(found.value)
    assert "`hf auth login`" in str(found.value)
    assert "hf upload user/name FOLDER" in str(found.value)
    for name in ("name", "a/b/c"):
        with pytest.raises(ValueError, match=f"push_to_hub is '{name}', expected a user and a na"):
            model().push_to_hub(name)


# --- folders that say where their classes are -------------------------------------------------

LOAD = """
import sys
from transformers import AutoConfig, AutoModel
for folder in sys.argv[1:]:
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    made = AutoModel.from_pretrained(folder, trust_remote_code=True)
    print(type(config).__name__, type(made).__module__)
    made.save_pretrained(folder + "-again")
"""
WITHOUT = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "headwise":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Without())
"""


def run(code, *arguments, tmp_path):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"},
    )


def saved(folder, config):
    made = hw.models.base.model_class(config)(config)
    made.save_pretrained(folder / config.model_type)
    return folder / config.model_type


def test_each_model_is_found_without_importing_headwise(tmp_path):
    layers = {k: v for k, v in SIZES.items() if k != "layers"}
    sound = {k: v for k, v in SIZES.items() if k != "vocab_size"}
    configs = [
        hw.CausalLMConfig(**SIZES),
        hw.MaskedLMConfig(**SIZES),
        hw.SequenceClassifierConfig(**SIZES, classes=["a", "b"]),
        hw.Seq2SeqLMConfig(**layers, encoder_layers=1, decoder_layers=1),
        hw.SpeechEnhancerConfig(**sound, front_channels=[8, 8]),
    ]
    folders = [saved(tmp_path, config) for config in configs]
    # One more as if it had been downloaded.
    cached, commit = tmp_path / "cache" / "hub" / "models--user--name", "a" * 40
    shutil.copytree(folders[0], cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    done = run(LOAD, *folders, "user/name", tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr
    expected = [f"{type(each).__name__} {type(each).__module__}" for each in configs]
    assert done.stdout.splitlines() == [*expected, expected[0]]
    for folder in folders:  # what was loaded that way is saved as before
        again = folder.with_name(f"{folder.name}-again")
        assert (again / "find_headwise.py").read_bytes() == (
            folder / "find_headwise.py"
        ).read_bytes()
        assert sorted(path.name for path in again.glob("*.py")) == ["find_headwise.py"]
        assert '"AutoConfig": "find_headwise.' in (again / "config.json").read_text()


def test_where_headwise_is_not_installed_the_user_is_told_to(tmp_path):
    done = run(WITHOUT + LOAD, saved(tmp_path, hw.CausalLMConfig(**SIZES)), tmp_path=tmp_path)
    assert done.returncode == 1
    assert "ImportError: " in done.stderr and "Run `pip install headwise`" in done.stderr


def test_a_configuration_of_ones_own_names_no_class_of_headwise(tmp_path):
    class Mine(hw.CausalLMConfig):
        model_type = "mine"

        def __init__(self, **kwargs):
            super().__init__(**kwargs)

    Mine(**SIZES).save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert "auto_map" not in (tmp_path / "config.json").read_text()
