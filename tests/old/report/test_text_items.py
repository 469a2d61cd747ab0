"""A text file as items of plain models: what they read, and the loss of each line."""

import pytest
import torch
from saved_models import LONGEST
from torch.nn.functional import cross_entropy

from headwise.report import text_items
from headwise.report.plain_models import open_plain
from headwise.report.text_items import TextItems

TEXT = {
    "gpt2": "open the file\n\n  close the file again \n" + "page " * 40,
    "bert": "open the file\nthe kernel is dead\nread every page of it, read every page again",
    "marian": "open the file\tclose it\nthe kernel\tis dead again",
    "t5": "open the file\tclose it\nthe kernel\tis dead again",
    "classifier": "open the file\tlong\nclose\t0",
}


@pytest.fixture
def items(saved, tmp_path):
    def made(name, text=None):
        file = tmp_path / "text.txt"
        file.write_text(TEXT[name] if text is None else text)
        return TextItems(*open_plain(saved(name)), file)

    return made


@pytest.mark.parametrize("name", TEXT)
@torch.no_grad()
def test_losses_are_those_of_the_logits(items, name):
    made = items(name)
    rows = made.losses()
    assert rows.shape == (len(made.batches), 2) and rows.dtype == torch.float64
    for batch, (loss, count) in zip(made.batches, rows.tolist(), strict=True):
        logits, labels = made.model(**batch).logits.double(), batch["labels"].flatten()
        logits = logits.reshape(len(labels), -1)
        if name == "gpt2":
            logits, labels = logits[:-1], labels[1:]
        hidden = labels != -100
        assert count == hidden.sum() > 0
        naive = cross_entropy(logits[hidden], labels[hidden], reduction="sum")
        assert loss == pytest.approx(naive.item(), rel=1e-5)


def test_what_is_read_of_lines(items):
    made = items("gpt2")
    first, second, third = (batch["input_ids"][0].tolist() for batch in made.batches)
    assert made.tokenizer.decode(second, skip_special_tokens=True) == "  close the file again "
    assert len(third) == LONGEST and len(first) < len(second)
    assert made.in_words.endswith(f"1 lines are cut to {LONGEST}")
    assert "; 1 lines" in items("marian", "page " * 40 + "\t" + "page " * 40).in_words
    pair = items("marian").batches[0]
    assert made.tokenizer.decode(pair["labels"][0], skip_special_tokens=True) == "close it"
    assert [each["labels"].item() for each in items("classifier").batches] == [1, 0]
    assert list(items("body", "open the file").batches[0]) == ["input_ids"]


def test_one_token_in_seven_is_hidden(items):
    made = items("bert", "abcdefghijklmnopqrstu\nx")
    batch = made.batches[0]
    ids, labels, mask = batch["input_ids"][0], batch["labels"][0], made.tokenizer.mask_token_id
    assert ((ids == mask) == (labels != -100)).all()
    words = len(ids) - 1  # and the end
    assert (ids == mask).sum() == -(-words // 7) and ids[-1] == made.tokenizer.eos_token_id
    whole = torch.where(labels == -100, ids, labels).tolist()
    assert made.tokenizer.decode(whole, skip_special_tokens=True) == "abcdefghijklmnopqrstu"
    assert (made.batches[1]["input_ids"] == mask).sum() == 1


def test_the_first_tokens_of_a_long_file(items, monkeypatch):
    monkeypatch.setattr(text_items, "MOST_TOKENS", 10)
    made = items("gpt2", 50 * "open the file\n")
    assert len(made.batches) < 5 and "; the rest of the file is left out" in made.in_words


def test_lines_of_one_token_have_nothing_to_predict(items, monkeypatch):
    monkeypatch.setattr(text_items, "longest_input", lambda *_: 1)
    assert len(items("bert").batches) == 3
    with pytest.raises(ValueError, match=r"no line of .* has a token after the first"):
        items("gpt2")
