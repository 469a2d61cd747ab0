"""Running text that is read while it is trained on."""

import json
import shutil
from itertools import chain

import pytest
import tiny_tasks
from torchrun import on_copies

from headwise import __main__ as entry
from headwise.data.running import documents as module
from headwise.data.running.corpus import load_text_corpus
from headwise.data.running.settings import TextFiles, TextHub
from headwise.data.sources import CorpusError
from headwise.data.streams import Stream
from headwise.recipes import RecipeError, load_recipe
from headwise.recipes.catalogue import task_class
from headwise.training.run import run_training


def write_lines(path, start, stop):
    path.write_text("".join(f"line {i} of some words\n" for i in range(start, stop)))
    return path


@pytest.fixture
def files(tmp_path):
    return [write_lines(tmp_path / f"{i}.txt", 100 * i, 100 * i + 100) for i in range(2)]


@pytest.fixture
def hub(tmp_path):
    rows = [json.dumps({"text": f"line {i} of some words\n"}) for i in range(200)]
    (tmp_path / "train.jsonl").write_text("\n".join(rows))
    return str(tmp_path)


def texts(documents):
    return list(chain.from_iterable(documents))


def test_files_and_datasets_give_all_rows_but_those_that_are_held_out(files, hub):
    rows = {"streaming": True, "held_out_rows": 10, "documents": "line"}
    for settings in (
        TextFiles(train=files, **rows),
        TextHub(name=hub, validation_split=None, test_split=None, **rows),
    ):
        corpus = load_text_corpus(settings)
        expected = [f"line {i} of some words" for i in range(200)]
        assert texts(corpus.validation) == expected[:10]
        assert texts(corpus.test) == expected[10:20]
        assert texts(corpus.train) == expected[20:]
        assert [row["row"] for row in corpus.train.rows()] == [[line] for line in expected[20:]]
        assert corpus.notes["test"].startswith("10 documents, 10 lines, 50 words; rows 11 to 20 of")
        assert "nothing is stored or counted" in corpus.notes["train"]


@pytest.mark.parametrize("nothing", ["", "\n \n"])
def test_a_file_without_text_is_left_out(files, nothing, tmp_path):
    (tmp_path / "empty.txt").write_text(nothing)
    settings = TextFiles(
        train=[files[0], tmp_path / "empty.txt", files[1]], streaming=True, held_out_rows=10
    )
    documents = list(load_text_corpus(settings).train)
    assert texts(documents) == [f"line {i} of some words" for i in range(20, 200)]
    with pytest.raises(CorpusError, match=r"empty\.txt: there is no text"):
        load_text_corpus(settings.model_copy(update={"streaming": False}))


def test_a_folder_is_told_by_its_files(tmp_path, monkeypatch):
    """Two projects have a folder of one name, and then one of them changes."""
    settings = TextHub(
        name="data",
        validation_split=None,
        test_split=None,
        documents="line",
        streaming=True,
        held_out_rows=5,
    )
    for project, word in (("a", "zebra"), ("b", "quokka"), ("b", "a")):
        folder = tmp_path / project / "data"
        folder.mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(folder.parent)
        rows = [json.dumps({"text": f"{word} {i}"}) for i in range(20)]
        (folder / "train.jsonl").write_text("\n".join(rows))
        corpus = load_text_corpus(settings)
        assert (corpus.validation[0], next(iter(corpus.train))) == ([f"{word} 0"], [f"{word} 10"])


def test_parts_of_their_own_are_stored_and_the_stream_is_whole(files, tmp_path):
    held_out = write_lines(tmp_path / "held-out.txt", 500, 503)
    settings = TextFiles(
        train=files, validation=held_out, test=held_out, tests={"a": held_out}, streaming=True
    )
    corpus = load_text_corpus(settings)
    for part in (corpus.validation, corpus.test, corpus.tests["a"]):
        assert len(texts(part)) == 3
    assert len(texts(corpus.train)) == 200
    plain = load_text_corpus(settings.model_copy(update={"train": files[:1]}))
    assert plain.digest != corpus.digest == load_text_corpus(settings).digest


def test_long_documents_are_cut(files, monkeypatch):
    monkeypatch.setattr(module, "_MOST_WORDS", 12)  # which three lines of five words reach
    settings = TextFiles(train=files, streaming=True, held_out_rows=10, documents="none")
    documents = list(load_text_corpus(settings).train)
    assert [len(document) for document in documents] == [3] * 26 + [2] + [3] * 33 + [1]
    with_blanks = [(line, False) for line in ["a b c d e"] * 3 + ["", ""] + ["a b c d e"]]
    assert [len(document) for document in module.in_passages(with_blanks)] == [5, 1]


def test_too_few_rows_to_hold_out(files):
    with pytest.raises(
        CorpusError, match=r"first file has 100 rows, expected more than the 100 .*held_out_rows"
    ):
        load_text_corpus(TextFiles(train=files, streaming=True, held_out_rows=50))
    with pytest.raises(ValueError, match=r"train_fraction is 0\.5 and streaming is true"):
        TextFiles(train=files, streaming=True, train_fraction=0.5)


# --- tasks ------------------------------------------------------------------------------------

TASKS = ("language-modelling", "masked-language-modelling")
STREAM = [
    "data.streaming=true",
    "data.held_out_rows=20",
    "data.documents=line",
    "data.shuffle_rows=16",
    "tokenizer.sample_rows=30",
]


def prepare(task, folder, *changes):
    path = tiny_tasks.write_recipe(task, folder)
    recipe = load_recipe(str(path), [*STREAM, *changes]).recipe
    return recipe, task_class(task).prepare(recipe)


@pytest.mark.parametrize("task", TASKS)
def test_a_run_that_goes_on_ends_as_one_that_was_not_interrupted(task, tmp_path):
    changes = ("training.gradient_accumulation=2", "training.max_steps=6")
    runs = tiny_tasks.train_and_go_on(*prepare(task, tmp_path, *changes), tmp_path)
    once, twice = ([r["loss"] for r in run.history if "loss" in r] for run in runs)
    assert twice == once and len(once) == 6
    (position,) = json.loads((tmp_path / "once" / "checkpoint-6" / "stream.json").read_text())
    assert position["batches"] == 12 and position["windows"] > 0


def test_a_tokenizer_is_learned_from_the_first_rows(tmp_path, monkeypatch):
    read = []
    rows_of = Stream.rows_of

    def counted(self, shard):
        for row in rows_of(self, shard):
            read.append(row)
            yield row

    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Stream, "rows_of", counted)
    _, made = prepare("language-modelling", tmp_path)
    # What is held out, twice (the rows before a part are passed over), and 30 behind it.
    assert len(read) == 21 + 41 + 40 + 31
    assert made.notes["train"].startswith("a stream")
    with pytest.raises(ValueError, match=r"train part is a stream .* expected a part that is stor"):
        made.part("train")
    batch = next(iter(made.train.batches(made.collate, 256).loader()))
    assert batch["input_ids"].numel() <= 256 + 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("training.epochs=2", r"training\.epochs is 2.* expected training\.max_steps in its place"),
        ("training.loader_workers=1", r"loader_workers is 1 .* expected 0"),
    ],
)
def test_what_a_stream_cannot_is_refused(change, message, tmp_path):
    path = tiny_tasks.write_recipe("language-modelling", tmp_path)
    without = ["training.max_steps=null"] if "epochs" in change else []
    with pytest.raises(RecipeError, match=message):
        load_recipe(str(path), [*STREAM, *without, change])


def test_another_number_of_processes_does_not_go_on(tmp_path):
    """Two processes train on a stream; one alone has not the positions of both."""
    path = tiny_tasks.write_recipe("language-modelling", tmp_path)
    changes = list(chain.from_iterable(("--set", change) for change in STREAM))
    command = [entry.__file__, "train", path, "--output", tmp_path / "run", *changes]
    on_copies(2, *command, "--system", "standard")
    folder = tmp_path / "run"
    positions = json.loads((folder / "checkpoint-4" / "stream.json").read_text())
    assert [position["batches"] for position in positions] == [4, 4]
    for name in ("model", "checkpoint-4"):
        shutil.rmtree(folder / name)
    recipe = load_recipe(str(path), STREAM).recipe
    made = task_class(recipe.task).prepare(recipe, folder)
    model = made.build_model(recipe.model)
    given = (model, made.train, made.validation, made.collate, recipe.training, folder)
    with pytest.raises(ValueError, match=r"written by 2 processes, .* and 1 go on: start as many"):
        run_training(*given)
