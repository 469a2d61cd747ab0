"""Texts as tokens: vocabularies, blocks of running text, masks, and probes made of a text."""

import math
import random
import re
from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from support.data_files import LABELLED, PARTS, TASKS, TEXTS, WORDS, row, sentence
from support.road import Road, in_each_part, road

TEXT_TASKS = [task for task in TASKS if task in (*TEXTS, *LABELLED, "translation")]
KEYS = range(60)


def walk(task: str, **recipe) -> Road:
    return road(task, "files", in_each_part([row(task, key) for key in KEYS]), **recipe)


@pytest.fixture(scope="module", params=TEXT_TASKS)
def dataset(request) -> Road:
    return walk(request.param)


# --- vocabularies -----------------------------------------------------------------------------

# Without line ends, and without the names of special tokens, which take a "<".
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="<"))


@given(TEXT)
@example("e\u0301\U0001f642 中文 \u200d\ufeff  two  spaces , don 't")
def test_any_text_comes_back(dataset, text):
    for tokenizer in dataset.tokenizers.values():
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=True).strip() == text.strip()
        assert max(ids) < len(tokenizer)


@pytest.mark.parametrize("task", [task for task in TEXT_TASKS if task != "probing"])
def test_special_tokens_are_names_in_a_text_of_subwords_and_no_tokens(task):
    """But the mask of a masked language model. Also for the tokenizer that a run saves."""
    names = ["<pad>", "<bos>", "<eos>", "<unk>", "</s>", "<s>", "[PAD]", "<|endoftext|>"]
    text = " a ".join([*names, *["<mask>"] * (task != "masked-language-modelling")])
    other = text if task == "translation" else "x"
    rows = [(text, other), (text, other if task == "translation" else "y")] * 3
    rows = rows if task in ("translation", *LABELLED) else [text] * 3
    data = {"max_length": 512} if task in LABELLED else {}
    dataset = road(task, "files", in_each_part(rows), data=data)
    for tokenizer in dataset.tokenizers.values():
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert not {*ids} & {*tokenizer.all_special_ids}
        assert tokenizer.decode(ids).strip() == text
    if task == "translation":
        batch = dataset.batch("train", [0])
        assert (batch["input_ids"] < 4).sum() == (batch["labels"] < 4).sum() == 1  # the end
        assert dataset.rows()[0] == (text, text)


@pytest.mark.parametrize("joint", [True, False])
def test_what_is_saved_gives_the_ids_of_pairs(joint):
    dataset = walk("translation", tokenizer={"vocab_size": 300, "joint": joint})
    batch = dataset.batch("train", range(len(KEYS)))
    for key in KEYS:
        source, target = row("translation", key)
        ids = batch["input_ids"][key][batch["attention_mask"][key].bool()]
        labels = batch["labels"][key]
        assert dataset.tokenizers["source"](source)["input_ids"] == ids.tolist()
        assert dataset.tokenizers["target"](target)["input_ids"] == labels[labels != -100].tolist()


@pytest.mark.parametrize("max_length", [9, 16, 64])
@pytest.mark.parametrize("pairs", [False, True])
def test_what_is_saved_gives_the_ids_of_labelled_texts(pairs, max_length):
    """Long ones are cut in the same way, of a pair the longer text first."""
    texts = [(sentence(7**key), sentence(5 ** (9 - key)))[: 1 + pairs] for key in range(10)]
    rows = [(*pair, str(number % 2)) for number, pair in enumerate(texts)]
    data = {"max_length": max_length}
    dataset = road("classification", "files", in_each_part(rows), data=data)
    for index, pair in enumerate(texts):
        ids = dataset.batch("train", [index])["input_ids"][0].tolist()
        saved = dataset.tokenizers["source"](*pair, truncation=True, max_length=max_length)
        assert saved["input_ids"] == ids and len(ids) <= max_length


def test_a_vocabulary_has_the_size_that_is_asked_for(dataset):
    rows = in_each_part([row(dataset.name, key) for key in range(300)])
    model = {"embed_dim": 8, "num_heads": 2, "ffn_dim": 8}
    for size in (270, 290):
        resized = road(dataset.name, "files", rows, tokenizer={"vocab_size": size}, model=model)
        tokenizer = resized.tokenizers["source"]
        assert len(tokenizer) == size == resized.model().config.vocab_size
        special = [tokenizer.pad_token_id, tokenizer.eos_token_id]
        assert None not in special and special[0] != special[1]


@pytest.mark.parametrize("task", TEXTS)
def test_words_are_numbered_by_frequency_and_rare_ones_are_unknown(task):
    words = ["a"] * 9 + ["b"] * 7 + ["c"] * 5 + ["d"] * 3 + ["e"]
    random.Random(0).shuffle(words)
    lines = in_each_part([" ".join(words)])
    size = 3 + (3 if task == "language-modelling" else 5)  # three words and the special tokens
    settings = {"type": "word", "vocab_size": size, "min_frequency": 2}
    dataset = road(task, "files", lines, tokenizer=settings, data={"block_length": 64})
    tokenizer = dataset.tokenizers["source"]
    ids = tokenizer.convert_tokens_to_ids(["a", "b", "c"])
    assert ids == sorted(ids) and len(set(ids)) == 3
    counts = Counter(dataset.rows()[0])
    assert [counts.pop(token) for token in ids] == [9, 7, 5]
    assert sorted(counts.values()) == [1, 4]  # the end of the line, and what is unknown


# --- blocks -----------------------------------------------------------------------------------

LINES = st.lists(st.integers(0, 12), min_size=1, max_size=25).filter(any)  # words of each line


def in_words(lengths: list[int]) -> list[str]:
    return [
        " ".join(WORDS[(i + n) % 10] for n in range(length)) for i, length in enumerate(lengths)
    ]


def blocks(task: str, lengths: list[int], size: int) -> tuple[Road, list[tuple[int, ...]]]:
    """The tokens of each block of a text whose tokens are words and line ends."""
    vocabulary = {"type": "word", "vocab_size": 40, "min_frequency": 1}
    lines = in_each_part(in_words(lengths))
    dataset = road(task, "files", lines, tokenizer=vocabulary, data={"block_length": size})
    return dataset, dataset.rows()


@given(LINES, st.integers(8, 20))
def test_blocks_of_language_modelling_cover_the_text_once(lengths, size):
    """Each token is predicted once; the first of a block from the last of the block before."""
    dataset, found = blocks("language-modelling", lengths, size)
    assert dataset.text() == in_words(lengths)
    assert all(len(block) == size for block in found[:-1]) and 1 <= len(found[-1]) <= size
    read = [dataset.batch("train", [index])["input_ids"][0].tolist() for index in range(len(found))]
    assert read[0][0] == dataset.tokenizers["source"].eos_token_id
    assert all(ids[1:] == list(block) for ids, block in zip(read, found, strict=True))
    assert all(other[0] == one[-1] for one, other in pairwise(read))


@given(LINES, st.integers(8, 20))
@example([7, 7, 0, 7, 0, 0, 7], 8)  # a separator of two documents ends or begins a block
@example([8, 0, 6], 17)  # without the separator both would fit
def test_blocks_of_masked_language_modelling_are_of_full_lines(lengths, size):
    dataset, found = blocks("masked-language-modelling", lengths, size)
    end, room = dataset.tokenizers["source"].eos_token_id, size - 1  # behind the first token
    assert " ".join(dataset.text()).split() == " ".join(in_words(lengths)).split()
    assert found[0][0] != end
    for block in found:
        assert 1 <= len(block) <= room and block[-2:] != (end, end)
    for one, other in pairwise(found):
        if one[-1] == end:  # full: the next line would not have fitted
            rest = other.index(end) + 1 if end in other else len(other)
            separator = 0 in lengths  # one may have been left out between the blocks
            assert len(one) + separator + rest > room and other[0] != end
        else:  # within a line that is too long for a block
            assert len(one) == room and end not in one[1:]


# --- masks ------------------------------------------------------------------------------------


def near(count: int, total: int, share: float) -> bool:
    """Whether a count of independent draws is within five standard errors of its mean."""
    return abs(count - total * share) < 5 * math.sqrt(total * share * (1 - share)) + 1


@pytest.mark.parametrize("fraction", [0.15, 0.5])
def test_masking_hides_as_many_tokens_as_asked(fraction):
    """Of BERT: which share is predicted, and what is read in its place; never a special token."""
    lines = in_each_part([sentence(key) for key in range(200)])
    recipe = {"masking": {"fraction": fraction}, "data": {"block_length": 64}}
    dataset = road("masked-language-modelling", "files", lines, **recipe)
    tokenizer, size = dataset.tokenizers["source"], len(dataset.items())
    special = torch.tensor(tokenizer.all_special_ids)
    words = len(tokenizer) - len(special)
    totals: Counter[str] = Counter()
    for epoch in range(30):
        batch = dataset.batch("train", range(size), epoch)
        read, labels = batch["input_ids"], batch["labels"]
        chosen, hidden = labels != -100, read == tokenizer.mask_token_id
        text = torch.where(chosen, labels, read)
        candidates = ~torch.isin(text, special)
        assert (chosen & ~candidates).sum() == (hidden & ~chosen).sum() == 0
        changed = chosen & ~hidden & (read != labels)
        assert not torch.isin(read[changed], special).any()
        excess = chosen.sum(1) - candidates.sum(1) * fraction  # one token more or less in a block
        assert excess.abs().max() <= 1
        counted = {"chosen": chosen, "hidden": hidden, "changed": changed, "words": candidates}
        totals += Counter({name: int(mask.sum()) for name, mask in counted.items()})
    assert near(totals["chosen"], totals["words"], fraction)
    assert near(totals["hidden"], totals["chosen"], 0.8)
    assert near(totals["changed"], totals["chosen"], 0.1 * (words - 1) / words)


def test_masks_are_drawn_by_epoch_and_index_and_are_fixed_outside_training():
    dataset = walk("masked-language-modelling")

    def labels(part: str, indices, epoch: int) -> list[list[int]]:
        return [dataset.batch(part, [i], epoch)["labels"][0].tolist() for i in indices]

    first = labels("train", range(6), 0)
    assert labels("train", (4, 0, 2), 0) == [first[4], first[0], first[2]]
    assert labels("train", range(6), 1) != first
    for part in ("validation", "test"):
        assert labels(part, range(6), 0) == labels(part, range(6), 1)
    assert labels("validation", range(6), 0) != labels("test", range(6), 0) != first
    for epoch in (0, 1):
        rows = labels("train", range(len(dataset.items())), epoch)
        rows = sorted([token for token in row if token != -100] for row in rows)
        batches = dataset.epoch(epoch, 400)
        assert rows == sorted(row[row != -100].tolist() for b in batches for row in b["labels"])


# --- probes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("probe", "more"), [("SeLen", {"num_bins": 3}), ("WC", {"num_words": 3}), ("BShift", {})]
)
def test_probes_are_made_of_the_sentences_themselves(probe, more):
    """Each label follows from its sentence, and all classes have equal sizes in every part."""
    draw, words = random.Random(0), [f"{a}{b}en" for a in "bdfgklmnprst" for b in "aeiou"]
    often = [1 / (1 + rank) for rank in range(len(words))]
    lines = [f"So {' '.join(draw.choices(words, often, k=4 + k % 9))} {k} ." for k in range(900)]
    options = {"probe": probe, **more}
    dataset = road("probing", "text", {"train": lines}, data={"options": options})
    known = set(lines)
    for part in PARTS:
        rows = dataset.rows(part)
        assert len(set(Counter(label for _, label in rows).values())) == 1
        classes = {label for _, label in rows}
        for text, label in rows:
            words = re.findall(r"\w+", text)
            if probe == "SeLen":
                low, _, high = label.partition("-")
                assert int(low) <= len(words) <= int(high or low)
            elif probe == "WC":
                assert words.count(label) >= 1 and not set(words) & classes - {label}
            elif label == "O":
                assert text in known
            else:
                swaps = [
                    [*words[:i], words[i + 1], words[i], *words[i + 2 :]]
                    for i in range(1, len(words) - 1)  # the first word stays
                ]
                assert text not in known and any(f"{' '.join(swap)} ." in known for swap in swaps)
