"""Good and bad files of every format: rows stay aligned and as they are, or an error says where."""

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pandas
import pytest
from support.data_files import PARTS, TASKS, row, sentence, text_file, wav
from support.messages import assert_names
from support.road import in_each_part, road

from headwise.data.load import from_files
from headwise.data.settings import Data

BAD_BYTE = b"na\xefve"  # Latin-1


class Lines(NamedTuple):
    """The lines of a text file, what ends each, and what stands around them."""

    texts: list[str]
    end: str = "\n"
    mark: bytes = b""
    packed: bool = False
    ended: bool = True


NUMBERS = ["one two", "three", "four five"]
GOOD = {
    "lone carriage returns": Lines(["one\rtwo", "three", "\rfour"]),
    "ends of Windows": Lines(NUMBERS, end="\r\n"),
    "a byte order mark": Lines(NUMBERS, mark=b"\xef\xbb\xbf"),
    "a mark inside": Lines(["one", "\ufefftwo", "three"]),
    "gzip of Windows": Lines(NUMBERS, end="\r\n", mark=b"\xef\xbb\xbf", packed=True),
    "no last end": Lines(NUMBERS, ended=False),
    "what Unicode calls line ends": Lines(["a\u2028b", "c\x85d\u2029", "e\x0bf\x0cg\x1ch"]),
    "what tables take for others": Lines(["NA", "007", "null", "1e5", "None", "nan", "-0", "TRUE"]),
    "quotes": Lines(['"one', "'two'", '"three, four"', '""', "five\\n"]),
    "any language": Lines(["été", "中文 测试", "e\u0301🙂", "العربية", "<pad> <eos>"]),
    "empty lines": Lines(["one", "", "two", "", "", "three"]),
    "white space at the ends": Lines(["  one ", "two\u00a0", " three"]),
}


def written(path: Path, lines: Lines) -> Path:
    """Writes a file of lines; its name ends in .gz if it is packed."""
    text = lines.end.join(lines.texts) + lines.end * lines.ended
    content = lines.mark + text.encode()
    path = path.with_name(f"{path.name}.gz") if lines.packed else path
    path.write_bytes(gzip.compress(content) if lines.packed else content)
    return path


def cleaned(text: str) -> str:
    """Readers may put white space in order; what stands between it stays."""
    return " ".join(text.split())


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("kind", ["text", "table"])
def test_lines_of_a_text_stay_as_they_are(name, kind, tmp_path):
    file, lines = tmp_path / "a", GOOD[name]
    if kind == "table":  # of one column, where blank lines and "" are lines
        quoted = (f'"{line.replace(chr(34), chr(34) * 2)}"' for line in lines.texts)
        fields = [x if number % 2 or x != '""' else "" for number, x in enumerate(quoted)]
        file, lines = tmp_path / "a.csv", lines._replace(texts=["text", *fields])
    dataset = road("language-modelling", "files", in_each_part(written(file, lines)))
    assert list(map(cleaned, dataset.text())) == list(map(cleaned, GOOD[name].texts))


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("task", ["translation", "classification"])
def test_rows_stay_aligned_and_as_they_are(task, name, tmp_path):
    """Each text has the translation or the label of its own line, whatever stands in the lines."""
    lines = GOOD[name]
    labels = [str(number % 2) for number in range(len(lines.texts))]
    if task == "translation":
        labels = [f"line {number}" for number in range(len(lines.texts))]
        files = (written(tmp_path / "a", lines), written(tmp_path / "b", Lines(labels)))
    else:
        rows = map("\t".join, zip(lines.texts, labels, strict=True))
        files = written(tmp_path / "a.tsv", lines._replace(texts=["sentence\tlabel", *rows]))
    dataset = road(task, "files", in_each_part(files))
    pairs = [(cleaned(text), label) for text, label in zip(lines.texts, labels, strict=True)]
    kept = [pair for pair in pairs if pair[0]]
    for part in PARTS:
        assert [(cleaned(text), label) for text, label in dataset.rows(part)] == kept
    assert dataset.told()[1] == len(PARTS) * (len(pairs) - len(kept))


@pytest.mark.parametrize("source", ["files", "hub"])
def test_labels_stay_as_they_are(source):
    """They are names of classes: 007 is not 7, and NA is not missing."""
    labels = ["NA", "007", "7", "true", "None", "1.0", "no"]
    rows = [(sentence(key), labels[key % len(labels)]) for key in range(70)]
    dataset = road("classification", source, in_each_part(rows))
    assert Counter(dataset.rows()) == Counter(rows)


@pytest.mark.parametrize(
    ("labels", "classes", "expected"),
    [
        ([0, 1, -1], ["no", "yes"], ["no", "yes", None]),  # -1 is no label, as on the hub
        (["0", "1", "-1"], ["no", "yes"], ["no", "yes", None]),  # as in tables
        ([1, 2, 3], ["1", "2", "3"], ["1", "2", "3"]),
        ([False, True], ["no", "yes"], ["no", "yes"]),
        ([0, 1], None, ["0", "1"]),
        ([1.0, 2.0], ["1.0", "2.0"], ["1.0", "2.0"]),
    ],
)
def test_numbers_are_places_among_classes_unless_these_are_numbers(labels, classes, expected):
    rows = [(sentence(key), labels[key % len(labels)]) for key in range(30)]
    data = {} if classes is None else {"classes": classes}
    dataset = road("classification", "hub", in_each_part(rows), data=data)
    pairs = [(text, expected[key % len(labels)]) for key, (text, _) in enumerate(rows)]
    assert Counter(dataset.rows()) == Counter(pair for pair in pairs if pair[1] is not None)


@pytest.mark.parametrize("layout", ["lines", "a list", "a stream"])
def test_texts_of_json_that_look_like_dates_stay(layout, tmp_path):
    rows = [(f"20{key}-01-01", ("2021-01-01", "2021-01-01 00:00:00")[key % 2]) for key in range(60)]
    records = [json.dumps({"sentence": text, "label": label}) for text, label in rows]
    records = ["[", *(f"{x}," for x in records[:-1]), records[-1], "]"] * (
        layout == "a list"
    ) or records
    place, is_stream = text_file(tmp_path / "a.json", records), layout == "a stream"
    data = {"files": {"train": str(place)}, "classes": sorted({label for _, label in rows})}
    held_out = 5 if is_stream else None
    dataset = road("classification", "files", {"train": place}, held_out=held_out, data=data)
    batches = dataset.epoch(0, 400)
    read = [pair for batch in batches for pair in dataset.rows_of(batch)]
    read += [*dataset.rows("validation"), *dataset.rows("test")]
    assert Counter(read) == Counter((" ".join(text.split()), label) for text, label in rows)


@pytest.mark.parametrize(
    "text",
    [
        '{"text": "2021-01-01"}\n\n{"text": "b"}\n',
        '[{"text": "2021-01-01"},\n {"text": "b"}]',
        '{"text":\n"2021-01-01"}  {"text": "b"}\r',
    ],
)
def test_values_of_json_are_divided_in_any_way(text, tmp_path):
    place = tmp_path / "a.json"
    place.write_text(text, encoding="utf-8", newline="")
    rows = from_files(str(place), Data(files={"train": str(place)}))
    assert rows["text"][:] == ["2021-01-01", "b"]


@pytest.mark.parametrize("held_out", [None, 2])
@pytest.mark.parametrize("suffix", [".txt", ".csv", ".jsonl", ".parquet"])
def test_the_name_of_a_file_is_no_pattern(suffix, held_out, tmp_path):
    expected = [sentence(key) for key in range(30)]
    for name, texts in (("a[1] b*c", expected), ("a1 bxc", ["another"] * 30)):
        place = tmp_path / f"{name}{suffix}"
        if suffix == ".parquet":
            pandas.DataFrame({"text": texts}).to_parquet(place)
        else:
            table = {".csv": ["text", *texts], ".jsonl": [json.dumps({"text": x}) for x in texts]}
            text_file(place, table.get(suffix, texts))
    place = tmp_path / f"a[1] b*c{suffix}"
    dataset = road("language-modelling", "files", {"train": place}, held_out=held_out)
    assert dataset.text("validation") == (expected[:2] if held_out else expected[-6:-3])
    if held_out:
        with pytest.raises(ValueError, match=r"/\*\.txt .* Patterns with \* are not expanded"):
            road("language-modelling", "files", {"train": tmp_path / "*.txt"}, held_out=held_out)


def test_several_files_are_one_text_in_their_order(tmp_path):
    places = [str(written(tmp_path / name, Lines([name, "x"]))) for name in ("b", "a", "c")]
    last = written(tmp_path / "d", Lines(["y"]))
    data = {"files": {"train": places}}
    dataset = road("language-modelling", "files", in_each_part(last), data=data)
    assert dataset.text() == ["b", "x", "a", "x", "c", "x"]


@pytest.mark.parametrize(
    ("kind", "held_out"), [("csv", None), ("csv", 5), ("tsv", None), ("jsonl", 5)]
)
def test_a_column_that_one_file_has_more_is_passed_over(kind, held_out, tmp_path):
    rows, files = [row("classification", key) for key in range(24)], []
    for name, part, more in (("a", rows[:14], ("more",)), ("b", rows[14:], ())):
        names = ("sentence", "label", *more)
        records = [names, *((*pair, *more) for pair in part)]
        lines = map({"csv": ",", "tsv": "\t"}.get(kind, "").join, records)
        if kind == "jsonl":
            lines = (json.dumps(dict(zip(names, record, strict=True))) for record in records[1:])
        files.append(str(text_file(tmp_path / f"{name}.{kind}", lines)))
    files_of = {"train": files} if held_out else in_each_part(files)
    place = {"train": Path(files[0])}
    data = {"files": files_of}
    dataset = road("classification", "files", place, held_out=held_out, data=data)
    if held_out:
        read = [pair for batch in dataset.epoch(0, 400) for pair in dataset.rows_of(batch)]
        assert Counter(read) == Counter(rows[2 * held_out :])
    else:
        assert dataset.rows() == rows


# --- bad files --------------------------------------------------------------------------------

TABLE = ["sentence\tlabel", *(f"{sentence(key)}\t{key % 2}" for key in range(20))]
ALIKE = "\n".join([TABLE[0], *(f"{sentence(key)}\tonly" for key in range(60))]).encode()
PACKED = gzip.compress(b"".join(b"line %d\n" % number for number in range(9_000)))
SOUND = wav(row("speech-enhancement", 0)[1])


def text(*lines: str | bytes) -> bytes:
    return b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines)


def table(*lines: str) -> bytes:
    return text(*TABLE, *lines)


# The task, its training files, and what an error has to name.
BAD: dict[str, tuple[str, dict[str, bytes], Iterable[str]]] = {
    "no UTF-8": ("language-modelling", {"a.txt": text("a", "b", BAD_BYTE)}, {"a.txt", "3"}),
    "empty": ("language-modelling", {"a.txt": b""}, {"a.txt"}),
    "blank": ("masked-language-modelling", {"a.txt": b"\n \n"}, {"a.txt"}),
    "cut gzip": ("language-modelling", {"a.gz": PACKED[: len(PACKED) // 2]}, {"a.gz"}),
    "unequal": ("translation", {"a": text("1", "2"), "b": text("1")}, {"a", "b", "2", "1"}),
    "an end lost": ("translation", {"a": b"1\r2\n3\n", "b": b"1\n2\n3\n"}, {"a", "b", "2", "3"}),
    "no pair": ("translation", {"a": text("", "x"), "b": text("x", "")}, {"2"}),
    "empty table": ("classification", {"a.tsv": b""}, {"a.tsv"}),
    "header alone": ("classification", {"a.tsv": text(TABLE[0])}, {"a.tsv"}),
    "no such column": (
        "classification",
        {"a.tsv": text("sentence\tscore", "x\t1")},
        {"a.tsv", "label", "score"},
    ),
    "ragged": ("classification", {"a.tsv": table("x", "y", "z\t1\t2")}, {"a.tsv", "22", "2"}),
    "a field of two lines": (  # marks have no meaning in a .tsv
        "classification",
        {"a.tsv": table('"a text', 'that goes on"\t1')},
        {"a.tsv", "22", "1"},
    ),
    "one name twice": (
        "classification",
        {"a.tsv": text("sentence\tlabel\tlabel", "x\t1\t2")},
        {"a.tsv", "1"},
    ),
    "a long field": (
        "classification",
        {"a.csv": text("sentence,label", f'"{"x" * 131_073}",1')},
        {"a.csv", "2", "131,072", "jsonl"},
    ),
    "numbers as texts": ("language-modelling", {"a.jsonl": text('{"text": 5}')}, {"text", "5"}),
    "lists as labels": (
        "classification",
        {"a.jsonl": text('{"sentence": "x", "label": ["y"]}')},
        {"label", "['y']", "data.columns.label"},
    ),
    "one class": ("classification", {"a.tsv": ALIKE}, {"only"}),
    "partition": ("probing", {"a.txt": text("tr\tO\tx", "dev\tO\ty")}, {"a.txt", "2", "dev"}),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_an_error_that_says_where(name, tmp_path):
    task, files, must_name = BAD[name]
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    places = [tmp_path / file for file in files]
    with pytest.raises(ValueError) as error:
        road(task, "files", {"train": tuple(places) if len(places) > 1 else places[0]})
    assert_names(str(error.value), must_name)
    assert "signatures" not in str(error.value)


@pytest.mark.parametrize("task", [task for task in TASKS if task != "speech-enhancement"])
@pytest.mark.parametrize("is_folder", [False, True])
def test_what_is_no_file_is_an_error_that_names_it(task, is_folder, tmp_path):
    place = tmp_path / "place"
    if is_folder:
        place.mkdir()
    with pytest.raises(ValueError, match=re.escape(str(place))):
        road(task, "files", {"train": (place, place) if task == "translation" else place})


@pytest.mark.parametrize(
    ("data", "must_name"),
    [
        ({"split": {"test": "dev"}}, {"dev", "train"}),
        ({"columns": {"source": "texts.de"}}, {"texts.de", "texts.en", "texts.fr"}),
        ({"columns": {"source": "texts"}}, {"texts"}),  # it holds no text, but columns
        ({"path": "/no/such/folder"}, {"/no/such/folder"}),
    ],
)
def test_a_dataset_that_cannot_be_read_is_an_error_that_says_what(data, must_name):
    rows = [row("translation", key) for key in range(20)]
    with pytest.raises(ValueError) as error:
        road("translation", "hub", {"train": rows}, data=data)
    assert_names(str(error.value), must_name)


# --- images and sounds in folders -------------------------------------------------------------


def test_a_folder_of_which_nothing_can_be_read_is_an_error_that_names_it(tmp_path):
    for name, content in (("a.png", b"no image"), ("b.wav", b"no sound"), ("notes.txt", b"")):
        (tmp_path / name).write_bytes(content)
    for task, source, place, bad in (
        ("images", "files", tmp_path, r"a\.png"),
        ("speech-enhancement", "files", (tmp_path, tmp_path), r"b\.wav"),
    ):
        with pytest.warns(match=bad), pytest.raises(ValueError, match=tmp_path.name):
            road(task, source, {"train": place})


def test_sounds_without_a_partner_are_left_out_and_told(tmp_path):
    for side in ("noisy", "clean"):
        for key in range(20):
            (tmp_path / side).mkdir(exist_ok=True)
            sound = wav(row("speech-enhancement", key)[1])
            (tmp_path / side / f"{key:02}.wav").write_bytes(sound)
    (tmp_path / "noisy" / "99.wav").write_bytes(SOUND)
    (tmp_path / "clean" / "98.wav").write_bytes(SOUND)
    (tmp_path / "clean" / "00.wav").write_bytes(wav(row("speech-enhancement", 30)[1]))  # longer
    folders = (tmp_path / "noisy", tmp_path / "clean")
    dataset = road("speech-enhancement", "files", {"train": folders})
    assert sum(dataset.told()[0].values()) == 19 and dataset.told()[1] == 2


@pytest.mark.parametrize("task", [task for task in TASKS if task != "masked-language-modelling"])
def test_built_in_data_are_there_offline_and_the_same_again(task):
    dataset = road(task, "built-in")
    for part in PARTS:
        assert len(dataset.rows(part)) > 2 and dataset.rows(part) == dataset.again().rows(part)
