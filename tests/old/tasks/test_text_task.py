"""What tasks on text of one language share."""

import os

import pytest

from headwise.data.sources import CorpusError
from headwise.data.tokenizers.settings import TextTokenizerSettings
from headwise.data.tokenizers.tokenization import TOKENIZER, TextTokenizer
from headwise.tasks.language_modelling import LanguageModelling, LanguageModellingRecipe
from headwise.tasks.masked_language_modelling import MaskedLanguageModelling, MaskedRecipe

TASKS = [(LanguageModelling, LanguageModellingRecipe), (MaskedLanguageModelling, MaskedRecipe)]


def recipe(kind, tmp_path):
    lines = [f"line {number} of some text, neither long nor short" for number in range(40)]
    (tmp_path / "text").write_text("\n".join(lines), encoding="utf-8")
    return kind.model_validate(
        {
            "data": {"corpus": "files", "train": str(tmp_path / "text")},
            "tokenizer": {"vocab_size": 270},
            "block_length": 16,
            "model": {"layers": 1, "embed_dim": 8, "num_heads": 2, "ffn_dim": 8},
            "training": {"max_steps": 1},
        }
    )


@pytest.mark.parametrize(("task", "kind"), TASKS)
def test_what_a_run_has_kept_is_not_learned_again(task, kind, tmp_path):
    settings = recipe(kind, tmp_path)
    assert task.prepare(settings, tmp_path).tokenizer.vocab_size == 270  # nothing is there yet
    other = TextTokenizer.train(["another text"], TextTokenizerSettings(vocab_size=262))
    other.save(tmp_path / TOKENIZER)
    made = task.prepare(settings, tmp_path)
    assert made.tokenizer.vocab_size == other.vocab_size != 270
    assert made.notes["vocabulary"] == f"{other.vocab_size} subwords"
    made.save(tmp_path / "run")
    again = task.prepare(settings, tmp_path / "run").tokenizer
    assert again.encode(["some text"]) == other.encode(["some text"])


def test_a_stream_that_has_changed_gives_another_vocabulary(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "cache"))
    settings = recipe(LanguageModellingRecipe, tmp_path)
    data = settings.data.model_copy(update={"streaming": True, "held_out_rows": 5})
    settings = settings.model_copy(update={"data": data})
    before = LanguageModelling.prepare(settings).encoding()
    text = (tmp_path / "text").read_text()
    (tmp_path / "text").write_text(text[:700] + text[700:].upper())  # of the same size
    os.utime(tmp_path / "text", (1, 1))
    assert LanguageModelling.prepare(settings).encoding() != before


def test_a_stream_without_text_is_an_error_that_names_its_files(tmp_path):
    settings = recipe(LanguageModellingRecipe, tmp_path)
    (tmp_path / "empty").touch()
    given = {"train": [tmp_path / "empty"], "streaming": True}
    given |= dict.fromkeys(("validation", "test"), settings.data.train)
    data = settings.data.model_copy(update=given)
    with pytest.raises(CorpusError, match=r"^empty: there is no text\."):
        LanguageModelling.prepare(settings.model_copy(update={"data": data}))


@pytest.mark.parametrize(("task", "kind"), TASKS)
def test_the_model_knows_the_vocabulary(task, kind, tmp_path):
    settings = recipe(kind, tmp_path)
    made = task.prepare(settings)
    config = made.model_config(settings.model)
    special = {"pad": 0, "bos": 1, "eos": 2}
    assert {name: getattr(config, f"{name}_token_id") for name in special} == special
    assert (config.vocab_size, config.max_length) == (270, 16)
    nominal = task.nominal_config(settings)
    assert (nominal.vocab_size, nominal.max_length) == (270, 16)
