"""Eight properties of the road from data to batches, for every task and every source of rows."""

import json
import os
from collections import Counter
from functools import cache
from itertools import combinations, islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.data_files import (
    PARTS,
    RATE,
    STREAMED,
    TASKS,
    TEXTS,
    png,
    row,
    sentence,
    text_file,
    wav,
)
from support.road import SOURCES, Road, in_each_part, index_batches, road

from headwise.data.stream import Stream

WALKS = [(task, source) for task in TASKS for source in SOURCES[task]]
STREAMS = [(task, source) for task in STREAMED for source in SOURCES[task]]
STORED_OR_STREAMED = [*((task, None) for task in TASKS), *((task, 10) for task in STREAMED)]
BUDGET = 400  # tokens, pixels or frames of a batch
FEW = settings(max_examples=max(2, settings.default.max_examples // 3))  # data are prepared in each


def rows_of(task: str, keys: Any) -> list[Any]:
    return [row(task, key) for key in keys]


def three_parts(task: str, train: int = 60) -> dict[str, list[Any]]:
    """Rows of their own for each part."""
    ends = (0, train, train + 10, train + 20)
    return {
        part: rows_of(task, range(*keys)) for part, keys in zip(PARTS, pairwise(ends), strict=True)
    }


@cache
def walk(task: str, source: str = "files", held_out: int | None = None) -> Road:
    """The road of a task, prepared once; of a stream, the first rows are held out of the rest."""
    if held_out is None:
        return road(task, source, three_parts(task))
    return road(task, source, {"train": rows_of(task, range(60))}, held_out=held_out)


def content(dataset: Road, part: str = "train") -> Counter:
    """What a part holds: the lines of running text, else its rows."""
    return Counter(dataset.text(part) if dataset.name in TEXTS else dataset.rows(part))


# --- 1: one key is in one part ----------------------------------------------------------------


def divided(task: str, source: str, rows: list[Any]) -> dict[str, Counter]:
    """In which part the keys of rows are: first texts, or pixels."""
    shares = {"validation_fraction": 0.2, "test_fraction": 0.2}
    dataset = road(task, source, {"train": rows}, data=shares)
    keys = {part: dataset.rows(part) for part in PARTS}
    if task != "images":
        keys = {part: [key for key, _ in rows] for part, rows in keys.items()}
    return {part: Counter(keys[part]) for part in PARTS}


@pytest.mark.quick
@pytest.mark.parametrize("task", ["translation", "classification", "images"])
@FEW
@given(data=st.data())
def test_parts_are_disjoint_whatever_the_order_of_rows(task, data):
    """Order and repetition of rows change nothing of it, nor does the source in which they stand.

    A text that comes again with another translation or label is the same key.
    """
    whole = divided(task, "files", rows_of(task, range(60)))
    assert all(len(whole[part]) >= 3 for part in PARTS)
    assert not any(one & other for one, other in combinations(whole.values(), 2))
    keys = data.draw(st.permutations(range(60)))
    repeated = rows_of(task, data.draw(st.lists(st.sampled_from(keys), max_size=20)))
    if task != "images":
        repeated = [(text, rows_of(task, [0, 1])[i % 2][1]) for i, (text, _) in enumerate(repeated)]
    rows = data.draw(st.permutations(rows_of(task, keys) + repeated))
    parts = divided(task, data.draw(st.sampled_from(SOURCES[task])), rows)
    assert {part: set(parts[part]) for part in PARTS} == {part: set(whole[part]) for part in PARTS}
    assert sum(sum(counts.values()) for counts in parts.values()) == len(rows)


@pytest.mark.quick
@pytest.mark.parametrize("source", SOURCES["language-modelling"])
@pytest.mark.parametrize("task", TEXTS)
def test_running_text_is_cut_between_lines(task, source):
    """Its parts are one text, of which the end is held out."""
    lines = rows_of(task, range(120))
    shares = {"validation_fraction": 0.2, "test_fraction": 0.1}
    dataset = road(task, source, {"train": lines}, data=shares)
    texts = [dataset.text(part) for part in PARTS]
    assert [line for text in texts for line in text] == lines
    for text, share in zip(texts, (0.7, 0.2, 0.1), strict=True):
        assert abs(len(text) - share * len(lines)) <= 1


# --- 2: a share of the training split ---------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
def test_train_fractions_are_nested_and_never_empty(task):
    """A larger share has all of a smaller one, none is empty, and the other parts stay whole."""
    rows = three_parts(task, train=600 if task in TEXTS else 60)
    contents = []
    for share in (1.0, 0.7, 0.3, 1e-9):
        dataset = road(task, "files", rows, data={"train_fraction": share})
        contents.append([content(dataset, part) for part in PARTS])
        (train, *held_out), (whole, *whole_held_out) = contents[-1], contents[0]
        assert abs(sum(train.values()) / sum(whole.values()) - share) < 0.2
        assert train and held_out == whole_held_out
    assert all(less[0] < more[0] for more, less in pairwise(contents))


# --- 3 and 4: batches, and their shares -------------------------------------------------------

LENGTHS = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=8, max_size=60)


@pytest.mark.quick
@given(LENGTHS, st.integers(1, 8), st.integers(0, 60), st.integers(0, 3))
@example([(1, 1)] * 24 + [(12, 12)], 1, 12, 0)  # half of the last two would be over the budget
def test_batches_of_any_lengths(lengths, world, room, epoch):
    """Each item comes once, within the budget; each process has a share of every batch."""
    longest = max(map(max, lengths))
    budget = longest * (1 + room // 8 if room % 2 else world) + room
    options = {"epoch": epoch, "seed": 5, "world": world}
    try:
        ranks = [index_batches(lengths, budget, rank=rank, **options) for rank in range(world)]
    except ValueError as error:
        # Of so large a budget, each batch can have a row for every process.
        assert world > 1 and budget < 2 * world * longest
        assert str(world) in str(error)
        return
    batches = [[index for share in batch for index in share] for batch in zip(*ranks, strict=True)]
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert batches == index_batches(lengths, budget, epoch=epoch, seed=5)
    for batch, *shares in zip(batches, *ranks, strict=True):
        assert len(batch) * max(max(lengths[index]) for index in batch) <= budget
        sizes = list(map(len, shares))
        assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1


@pytest.mark.quick
@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("task", TASKS)
def test_an_epoch_has_every_item_once(task, world):
    dataset = walk(task)
    for epoch in (0, 1):
        ranks = [dataset.epoch(epoch, BUDGET, rank=rank, world=world) for rank in range(world)]
        rows = Counter(row for batches in ranks for b in batches for row in dataset.rows_of(b))
        assert rows == Counter(dataset.rows(epoch=epoch))
        for shares in zip(*ranks, strict=True):
            size = sum(len(share["labels"]) for share in shares)
            longest = (dataset.size(share) // len(share["labels"]) for share in shares)
            assert max(longest) * size <= BUDGET


@pytest.mark.parametrize(("task", "held_out"), STORED_OR_STREAMED)
def test_the_order_is_another_in_each_epoch_and_for_each_seed(task, held_out):
    dataset = walk(task, held_out=held_out)
    orders = [
        [dataset.rows_of(batch) for batch in dataset.epoch(epoch, BUDGET, seed=seed)]
        for seed, epoch in ((0, 0), (0, 1), (1, 0), (0, 1))
    ]
    assert all(one != other for one, other in combinations(orders[:3], 2))
    assert orders[3] == orders[1]


# --- 5: going on from a position --------------------------------------------------------------


@pytest.mark.parametrize(("task", "held_out"), STORED_OR_STREAMED)
@FEW
@given(data=st.data())
def test_what_goes_on_from_a_position_is_the_same_rest(task, held_out, data):
    """A position is JSON, and another process that reads the same data goes on from it."""
    source = data.draw(st.sampled_from(SOURCES[task]))
    world = data.draw(st.integers(1, 3))
    share = {"world": world, "rank": data.draw(st.integers(0, world - 1)), "seed": 3}
    count = data.draw(st.integers(1, 14))
    first, other = walk(task, source, held_out).again(), walk(task, source, held_out).again()
    for dataset in (first, other):
        dataset.items().window = 7  # rows of a stream that are read at once: several in a pass
    whole = list(islice(first.batches(BUDGET, **share), count + 5))
    position = json.loads(json.dumps(whole[count - 1][2]))
    rest = list(islice(other.batches(BUDGET, position, **share), 5))
    for resumed, expected in zip(rest, whole[count:], strict=True):
        (epoch, batch, position), (same_epoch, same, same_position) = resumed, expected
        assert (epoch, position) == (same_epoch, same_position)
        assert batch.keys() == same.keys()
        assert all(torch.equal(batch[name], same[name]) for name in batch)


# --- 6: streams -------------------------------------------------------------------------------


def letters(dataset: Road, rows: Any) -> Counter:
    """The letters of running text, however it is cut into blocks and subwords."""
    tokenizer = dataset.tokenizers["source"]
    special = {tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}
    ids = [token for row in rows for token in row if token not in special]
    return Counter("".join(tokenizer.convert_ids_to_tokens(ids)))


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(("task", "source"), STREAMS)
def test_a_stream_is_the_stored_data_less_what_is_held_out(task, source, world):
    dataset, rows = walk(task, source, 10), rows_of(task, range(60))
    assert content(dataset, "validation") == Counter(rows[:10])
    assert content(dataset, "test") == Counter(rows[10:20])
    for number in (0, 1):
        ranks = [dataset.epoch(number, BUDGET, rank=rank, world=world) for rank in range(world)]
        batches = [batch for batches in ranks for batch in batches]
        assert max(map(dataset.size, batches)) <= BUDGET // world
        read = [row for batch in batches for row in dataset.rows_of(batch)]
        if task in TEXTS:
            stored = road(task, source, in_each_part(rows[20:]))
            assert letters(dataset, read) == letters(stored, stored.rows())
        else:
            assert Counter(read) == Counter(rows[20:])


# --- 7: what items hold -----------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize(("task", "source"), [walk for walk in WALKS if "speech" not in walk[0]])
def test_items_hold_what_was_written(task, source):
    for part, rows in three_parts(task).items():
        written = [image.tobytes() for image in rows] if task == "images" else rows
        assert content(walk(task, source), part) == Counter(written)


@pytest.mark.quick
@pytest.mark.parametrize("task", TASKS)
def test_a_padded_batch_holds_the_items_and_masks_the_rest(task):
    """A row of a batch is the item alone, and behind it labels of -100 and a mask of 0."""
    dataset, indices = walk(task), [*range(5), len(walk(task).items()) - 1]
    batch = dataset.batch("train", indices)
    for number, index in enumerate(indices):
        for name, alone in dataset.batch("train", [index]).items():
            padded = batch[name][number : number + 1]
            if alone.ndim > 1:  # (rows, time, ...)
                padded, padding = padded[:, : alone.size(1)], padded[:, alone.size(1) :]
                assert (padding == {"labels": -100, "attention_mask": 0}.get(name, padding)).all()
            assert torch.equal(padded, alone)


# --- 8: what is left out is told --------------------------------------------------------------

SOUND = wav(0.1 * row("speech-enhancement", 0)[1], RATE)
FLAWED = {
    ("translation", "files"): [("", "x"), ("x", " "), ("x " * 30, "x")],
    ("translation", "hub"): [("", "x"), ("x", None), ("x", "x " * 30)],
    ("classification", "files"): [("", "even"), ("x", ""), (" ", "odd")],
    ("classification", "hub"): [("", "even"), ("x", None), (" ", "odd")],
    ("images", "files"): [b"", b"no image", png(row("images", 1))[:40]],
    ("images", "hub"): [b"", b"no image", png(row("images", 1))[:40]],
    ("speech-enhancement", "hub"): [(b"no sound", SOUND), (SOUND, b""), (SOUND[:100], SOUND)],
}


@pytest.mark.parametrize(("task", "source"), FLAWED)
@FEW
@given(data=st.data())
def test_all_that_is_read_is_kept_or_told_to_be_left_out(task, source, data):
    parts = three_parts(task, train=30)
    flaws = data.draw(st.lists(st.sampled_from(FLAWED[task, source]), max_size=3))
    rows = data.draw(st.permutations([*range(30), *flaws]))
    parts["train"] = [row(task, key) if isinstance(key, int) else key for key in rows]
    options = {"max_length": 10} if task == "translation" else {}
    dataset = road(task, source, parts, data=options)
    kept, left_out = dataset.told()
    assert kept == {"train": 30, "validation": 10, "test": 10}
    assert left_out == len(flaws)
    assert {part: len(dataset.rows(part)) for part in PARTS} == kept


@pytest.mark.parametrize("task", ["translation", "language-modelling"])
def test_files_that_were_changed_are_read_anew(task, tmp_path):
    """Also those of the same size, at the same place."""
    for first in ("cat", "dog"):
        lines = [f"{first} {sentence(key)}" for key in range(40)]
        place = text_file(tmp_path / "text.txt", lines)
        pairs = list(zip(lines, lines, strict=True))
        files, expected = (place, lines) if task in TEXTS else ((place, place), pairs)
        assert content(road(task, "files", in_each_part(files))) == Counter(expected)


@pytest.mark.parametrize("source", ["files", "hub"])
def test_a_stream_whose_files_were_changed_is_another(source, tmp_path):
    """Also at equal size, and behind what is held out: a run does not go on with other data."""
    dataset = walk("language-modelling", source, 10)
    content_hash = dataset.again().task.content_hash()
    assert content_hash == dataset.task.content_hash()
    data = dataset.recipe.data
    place = Path(data.files["train"]) if source == "files" else Path(data.path, "train.jsonl")
    if source == "files":  # but to move it changes nothing
        moved = data.model_copy(update={"files": {"train": str(place.rename(f"{place}-moved"))}})
        assert Stream(moved, type(dataset.task)).content_hash == dataset.task.content_hash("train")
        Path(f"{place}-moved").rename(place)
    text, times = place.read_text(), place.stat()
    place.write_text("two".join(text.rsplit("one", 1)))
    os.utime(place, ns=(times.st_atime_ns, times.st_mtime_ns + 1_000_000))
    assert dataset.again().task.content_hash() != content_hash
    place.write_text(text)


@pytest.mark.parametrize(
    "change",
    [
        {"columns": {"source": "texts.fr", "target": "texts.en"}},
        {"split": {"train": "train", "validation": "train", "test": None}},
        {"max_length": 3},
    ],
)
def test_a_stream_that_is_read_in_another_way_is_another(change):
    dataset = walk("translation", "hub", 10)
    data = dataset.recipe.data.model_copy(update=change)
    found = Stream(data, type(dataset.task)).content_hash
    assert found != dataset.task.content_hash("train")


def test_a_held_out_split_without_rows_is_told():
    rows = {"train": [("", "x")] * 5 + rows_of("translation", range(20))}
    with pytest.raises(ValueError, match="the validation split has no rows, of 5 that were read"):
        road("translation", "files", rows, held_out=5)


@pytest.mark.parametrize("is_regression", [False, True])
def test_rows_of_a_stream_without_a_label_that_fits_are_left_out_and_told(is_regression):
    names = ("1.5", "-2.0") if is_regression else ("even", "odd")
    rows = [(sentence(key), names[key % 2]) for key in range(40)]
    flawed = [*rows[:30], ("x", "many"), ("x", "-100"), *rows[30:]]
    data = {"regression": True, "classes": None} if is_regression else {}
    dataset = road("classification", "files", {"train": flawed}, held_out=5, data=data)
    with pytest.warns(match=r"train\.tsv: rows whose label is not .* are left out"):
        read = [x for batch in dataset.epoch(0, BUDGET) for x in dataset.rows_of(batch)]
    expected = [(text, float(y) if is_regression else y) for text, y in rows[10:]]
    assert Counter(read) == Counter(expected)


def test_a_stream_has_steps_and_no_epochs():
    rows = {"train": rows_of("translation", range(60))}
    for training in ({"epochs": 2}, {"max_steps": 2, "loader_workers": 1}):
        with pytest.raises(ValueError, match="streaming"):
            road("translation", "files", rows, held_out=10, training=training)


def test_shards_come_in_another_order_in_each_pass(tmp_path):
    """With `datasets` of any version, whose own shuffling is not used."""
    files = [
        text_file(tmp_path / f"{n}.txt", [f"{n} {sentence(key)}" for key in range(8)])
        for n in "abcdef"
    ]
    data = {"files": {"train": list(map(str, files))}, "window": 8, "block_length": 300}
    dataset = road("language-modelling", "files", {"train": files[0]}, held_out=1, data=data)
    orders = []
    for number in (0, 1):
        texts = [dataset.rows_of(batch) for batch in dataset.epoch(number, BUDGET)]
        tokens = torch.tensor([token for rows in texts for row in rows for token in row])
        lines = dataset.lines(tokens)
        orders.append(list(dict.fromkeys(line[0] for line in lines if line)))
    assert sorted(orders[0]) == sorted(orders[1]) == list("abcdef") and orders[0] != orders[1]
