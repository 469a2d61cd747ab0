"""Labelled texts: GLUE's own files, any other, the hub, docstrings; and how they are divided."""

import json
from collections import Counter
from itertools import permutations

import datasets
import pytest

from headwise.data.labelled import corpus as module
from headwise.data.labelled.corpus import Example, load_labelled_corpus
from headwise.data.labelled.settings import (
    Docstrings,
    Glue,
    LabelledFiles,
    LabelledHub,
)
from headwise.data.sources import CorpusError

# The column names of GLUE's files, as they are in its archive.
COLUMNS = {
    "MNLI/train": "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse "
    "sentence1_parse sentence2_parse sentence1 sentence2 label1 gold_label",
    "MNLI/dev_matched": "index promptID pairID genre sentence1_binary_parse "
    "sentence2_binary_parse sentence1_parse sentence2_parse sentence1 sentence2 label1 label2 "
    "label3 label4 label5 gold_label",
    "QNLI": "index question sentence label",
    "SST-2": "sentence label",
    "STS-B": "index genre filename year old_index source1 source2 sentence1 sentence2 score",
}


def row(columns, **values):
    """A line of a file with these columns; those without a value get their name."""
    return "\t".join(str(values.get(column, column)) for column in columns.split())


def write(path, columns, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(columns.split()), *(row(columns, **values) for values in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def tsv(tmp_path):
    """Write a file of tab-separated values from lines of text; gives its path."""

    def write_lines(*lines, name="train.tsv"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return tmp_path / name

    return write_lines


def sentences(number, labels=("yes", "no")):
    return [f"sentence {i}\t{labels[i % len(labels)]}" for i in range(number)]


# --- GLUE -------------------------------------------------------------------------------------


def test_mnli_has_two_test_sets(tmp_path):
    labels = ["entailment", "neutral", "contradiction"]
    # A quotation mark alone, as they occur there, is no quoting.
    write(
        tmp_path / "train.tsv",
        COLUMNS["MNLI/train"],
        [
            {"sentence1": f'premise "{i // 3}', "sentence2": f"so {i}", "gold_label": labels[i % 3]}
            for i in range(90)
        ],
    )
    for name, premise in (("matched", "m"), ("mismatched", "mm")):
        write(
            tmp_path / f"dev_{name}.tsv",
            COLUMNS["MNLI/dev_matched"],
            [
                {"sentence1": premise, "sentence2": "so", "gold_label": "neutral"},
                {"sentence1": premise, "sentence2": "so", "gold_label": "-"},
            ],
        )
    labelled = load_labelled_corpus(Glue(task="MNLI", folder=tmp_path))
    assert labelled.classes == labels
    assert labelled.test == {
        "matched": [Example("m", "so", "neutral")],
        "mismatched": [Example("mm", "so", "neutral")],
    }
    assert len(labelled.train) + len(labelled.validation) == 90
    assert Example('premise "0', "so 1", "neutral") in [*labelled.train, *labelled.validation]
    # A premise and what is said of it are all in one part.
    assert not {e.text for e in labelled.train} & {e.text for e in labelled.validation}
    assert labelled.notes["skipped"] == "2 with no label"
    assert labelled.notes["test matched"].startswith("1 examples; dev_matched.tsv (SHA-256 ")


@pytest.mark.parametrize(
    ("task", "values", "test"),
    [
        ("QNLI", {"label": "not_entailment"}, Example("question", "sentence", "not_entailment")),
        ("SST-2", {"label": "1"}, Example("sentence", None, "positive")),
        ("STS-B", {"score": "3.800"}, Example("sentence1", "sentence2", 3.8)),
    ],
)
def test_the_other_tasks_of_glue(task, values, test, tmp_path):
    text = COLUMNS[task].split()[-3 if task != "SST-2" else 0]
    rows = [{**values, text: f"text {i}"} for i in range(60)]
    rows.append({**rows[0], text: "other", "score": "1"})  # numbers have to differ
    write(tmp_path / "train.tsv", COLUMNS[task], rows)
    write(tmp_path / "dev.tsv", COLUMNS[task], [values])
    labelled = load_labelled_corpus(Glue(task=task, folder=tmp_path))
    assert labelled.test == {"": [test]}
    assert {e.label for e in labelled.train} - {1.0} == {test.label}
    assert (labelled.classes is None) == (task == "STS-B")


def test_glue_from_the_hub(tmp_path, monkeypatch):
    """The columns and class numbers of nyu-mll/glue; no network."""
    asked = []

    def load_dataset(name, config, split, revision):
        asked.append((name, config, split, revision))
        labels = datasets.ClassLabel(names=["negative", "positive"])
        features = datasets.Features(
            {"sentence": datasets.Value("string"), "label": labels, "idx": datasets.Value("int32")}
        )
        number = 60 if split == "train" else 2
        columns = {
            "sentence": [f"{split} {i}" for i in range(number)],
            "label": [i % 2 for i in range(number)],
            "idx": list(range(number)),
        }
        return datasets.Dataset.from_dict(columns, features=features)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    labelled = load_labelled_corpus(Glue(task="SST-2", revision="abc"))
    assert set(asked) == {
        ("nyu-mll/glue", "sst2", "train", "abc"),
        ("nyu-mll/glue", "sst2", "validation", "abc"),
    }
    assert labelled.test[""] == [
        Example("validation 0", None, "negative"),
        Example("validation 1", None, "positive"),
    ]


# --- files ------------------------------------------------------------------------------------


def test_classes_are_the_labels_of_the_training_part_sorted(tsv):
    path = tsv("sentence\tlabel", *sentences(300, ["10", "9", "b"]))
    labelled = load_labelled_corpus(LabelledFiles(train=path))
    assert labelled.classes == ["9", "10", "b"]
    assert {part: len(examples) > 15 for part, examples in labelled.test.items()} == {"": True}
    assert labelled.notes["classes"] == "9, 10, b"
    assert "skipped" not in labelled.notes


def test_the_order_of_classes_depends_on_nothing_but_their_names():
    names = ["-1", "9", "10", "a", "inf", "nan"]
    for given in permutations(names):
        assert sorted(given, key=module._by_number) == names


def test_given_parts_are_taken_as_they_are(tsv):
    train = tsv("sentence\tlabel", *sentences(20))
    other = tsv("label\tsentence", "no\tsentence 1", "yes\tnew", name="other.tsv")
    labelled = load_labelled_corpus(LabelledFiles(train=train, validation=other, test=other))
    assert len(labelled.train) == 20
    assert labelled.validation == labelled.test[""]
    assert labelled.validation == [Example("sentence 1", None, "no"), Example("new", None, "yes")]
    noted = labelled.notes["test"]
    assert noted.startswith("2 examples, of which 1 are also in the training part; other.tsv")


def test_columns_have_any_names_and_texts_one_line(tsv):
    path = tsv("gold\tx\ta\tb", *(f" {i % 2} \t-\tone  {i}\ttwo {i}" for i in range(60)))
    settings = LabelledFiles(train=path, text_field="a", pair_field="b", label_field="gold")
    labelled = load_labelled_corpus(settings)
    assert Example("one 0", "two 0", "0") in [
        *labelled.train,
        *labelled.validation,
        *labelled.test[""],
    ]


def test_what_cannot_be_an_example_is_skipped_and_counted(tsv):
    path = tsv(
        "sentence\tlabel",
        *sentences(100),
        " \tyes",
        "without\t",
        "one field",
        "three\tfields\tyes",
        "",
    )
    labelled = load_labelled_corpus(LabelledFiles(train=path))
    skipped = "2 with too few or too many fields, 1 with an empty text, 1 with no label"
    assert set(labelled.notes["skipped"].split(", ")) == set(skipped.split(", "))


def test_numbers(tsv):
    path = tsv("sentence\tlabel", *sentences(60, ["0.5", "-3", "1e2"]))
    labelled = load_labelled_corpus(LabelledFiles(train=path, problem="regression"))
    assert labelled.classes is None
    assert {e.label for e in labelled.train} == {0.5, -3.0, 100.0}


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        ([], {}, "train.tsv: the file is empty"),
        (
            ["sentence\tlabels"],
            {},
            "no column 'label', expected one of .*did you mean 'labels'",
        ),
        (["a\tlabel"], {"text_field": "b"}, "no column 'b', expected one of a, label"),
        (["sentence\tlabel"], {"pair_field": "pair"}, "there is no column 'pair'"),
        (["sentence\tlabel\tlabel"], {}, "line 1: 2 columns have the name 'label', expected one"),
        (["sentence\tlabel"], {}, "no examples for the train part"),
        (
            ["sentence\tlabel", *sentences(9), "x", "y"],
            {},
            "line 11: 1 fields, expected 2 .sentence, label.; 2 of 11 rows have another number",
        ),
        (
            ["sentence\tlabel", *sentences(9), "x\tmaybe"],
            {"classes": ["yes", "no"]},
            "line 11: the label is 'maybe', expected one of the classes no, yes: correct it",
        ),
        (["sentence,label", "good,yes"], {}, "line 1: 'sentence,label' has no tab"),
        (["sentence\tlabel", *sentences(9, ["a"])], {}, "all labels are 'a'"),
        (
            ["sentence\tlabel", *sentences(9, ["3"])],
            {"problem": "regression"},
            "all labels are 3.0, expected different numbers",
        ),
        (
            ["sentence\tlabel", *sentences(40, [str(i / 7) for i in range(40)])],
            {},
            "40 different labels among 40 examples.*problem to regression",
        ),
        (
            ["sentence\tlabel", *sentences(9, ["1.5"]), "x\thigh"],
            {"problem": "regression"},
            "line 11: the label is 'high', expected a number",
        ),
        (
            ["sentence\tlabel", "x\t-100"],
            {"problem": "regression"},
            "line 2: the label is '-100', expected a number other than -100",
        ),
        (["sentence\tlabel", "x\tnan"], {"problem": "regression"}, "line 2: the label is 'nan'"),
        (["sentence\tlabel", *sentences(2)], {}, "no examples for the"),
        (["sentence\tlabel", "\tyes", "x\t"], {}, "train part .skipped: 1 with an empty text, 1 "),
    ],
)
def test_bad_files_are_errors_that_say_where(lines, options, message, tsv):
    with pytest.raises(CorpusError, match=message):
        load_labelled_corpus(LabelledFiles(train=tsv(*lines), **options))


def test_an_unknown_label_of_another_part(tsv):
    train = tsv("sentence\tlabel", *sentences(30))
    test = tsv("sentence\tlabel", "a\tyes", "b\tyess", name="test.tsv")
    with pytest.raises(
        CorpusError,
        match=r"test.tsv, line 3: the label is 'yess', .* did you mean 'yes'\?",
    ):
        load_labelled_corpus(LabelledFiles(train=train, test=test))


# --- the hub ----------------------------------------------------------------------------------


def jsonl(folder, split, records):
    (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, records)))


def test_a_folder_in_a_format_of_the_hub(tmp_path):
    rows = [{"a": f"text {i}", "b": {"c": "pair"}, "label": i % 2} for i in range(40)]
    jsonl(tmp_path, "train", rows)
    jsonl(tmp_path, "test", [{"a": "x", "b": {"c": "y"}, "label": -1}, rows[1]])
    settings = LabelledHub(
        name=str(tmp_path),
        text_field="a",
        pair_field="b.c",
        validation_split=None,
        classes=["no", "yes"],
    )
    labelled = load_labelled_corpus(settings)
    assert labelled.classes == ["no", "yes"]
    assert labelled.test[""] == [Example("text 1", "pair", "yes")]
    assert labelled.notes["skipped"] == "1 with no label"
    with pytest.raises(
        CorpusError, match=r"split 'train': there is no field 'gold', expected one of a, b.c, label"
    ):
        load_labelled_corpus(settings.model_copy(update={"label_field": "gold"}))


def labels_of(folder, labels, number=60, **settings):
    """Writes a dataset with these labels, one after another; reads which class each text gets."""
    rows = [{"sentence": f"text {i}", "label": labels[i % len(labels)]} for i in range(number)]
    jsonl(folder, "train", rows)
    given = {"validation_split": None, "test_split": None, **settings}
    labelled = load_labelled_corpus(LabelledHub(name=str(folder), **given))
    parts = [labelled.train, labelled.validation, labelled.test[""]]
    found = {int(e.text.split()[1]) % len(labels): e.label for part in parts for e in part}
    return [found.get(i) for i in range(len(labels))]


@pytest.mark.parametrize(
    ("labels", "classes", "expected"),
    [
        ([0, 1, -1], ["no", "yes"], ["no", "yes", None]),
        ([1, 2, 3], [1, 2, 3], ["1", "2", "3"]),
        ([0, 1, -1], [1, 0], ["0", "1", None]),
        ([-1, 1], [-1, 1], ["-1", "1"]),
        ([False, True], ["no", "yes"], ["no", "yes"]),
        ([False, True], ["True", "False"], ["False", "True"]),
        ([0, 1], None, ["0", "1"]),
    ],
)
def test_numbers_are_places_unless_classes_are_named_by_numbers(
    labels, classes, expected, tmp_path
):
    assert labels_of(tmp_path, labels, classes=classes) == expected


def test_numbers_that_name_no_class_are_an_error(tmp_path):
    with pytest.raises(CorpusError, match=r"row 0: the label is '0', expected one of the classes"):
        labels_of(tmp_path, [0, 1, 2], classes=[1, 2, 3])


def test_numbers_of_a_test_set_are_no_places_among_classes_that_are_not_named(tmp_path):
    names = ["World", "Sports", "Business"]
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
    features = datasets.Features(
        {"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=names)}
    )
    columns = {"sentence": [f"text {i}" for i in range(60)], "label": [i % 3 for i in range(60)]}
    train = datasets.Dataset.from_dict(columns, features=features)
    train.to_parquet(tmp_path / "train" / "train.parquet")
    jsonl(tmp_path / "test", "test", [{"sentence": "about the world", "label": 0}])
    own = {"name": str(tmp_path / "train"), "validation_split": None, "test_split": None}
    settings = LabelledHub(**own, tests={"other": {"name": str(tmp_path / "test")}})
    with pytest.raises(CorpusError, match=r"tests\.other: .*'0', .* or name all classes as data\."):
        load_labelled_corpus(settings)
    labelled = load_labelled_corpus(settings.model_copy(update={"classes": names}))
    assert labelled.tests["other"] == [Example("about the world", None, "World")]


def test_classes_that_are_named_by_numbers_in_the_dataset_have_places_all_the_same(tmp_path):
    features = datasets.Features(
        {
            "sentence": datasets.Value("string"),
            "gold": {"stars": datasets.ClassLabel(names=["1", "2"])},
        }
    )
    columns = {
        "sentence": [f"text {i % 2}" for i in range(60)],
        "gold": [{"stars": i % 2} for i in range(60)],
    }
    datasets.Dataset.from_dict(columns, features=features).to_parquet(tmp_path / "train.parquet")
    own = {"name": str(tmp_path), "validation_split": "train", "test_split": "train"}
    labelled = load_labelled_corpus(LabelledHub(**own, label_field="gold.stars"))
    assert list(labelled.train[:2]) == [Example(f"text {i}", None, str(i + 1)) for i in range(2)]


# --- streams ----------------------------------------------------------------------------------


def streamed(corpus, **settings):
    given = {"streaming": True, "classes": ["yes", "no"], "held_out_rows": 10, **settings}
    return load_labelled_corpus(corpus(**given))


def test_a_stream_has_all_examples_but_those_that_are_held_out(tsv, tmp_path):
    path = tsv("sentence\tlabel", *sentences(100))
    rows = [line.split("\t") for line in sentences(100)]
    jsonl(tmp_path, "train", [{"sentence": text, "label": label} for text, label in rows])
    expected = [Example(text, None, label) for text, label in rows]
    own = {"name": str(tmp_path), "validation_split": None, "test_split": None}
    for corpus in (streamed(LabelledFiles, train=path), streamed(LabelledHub, **own)):
        assert list(corpus.validation) == expected[:10]
        assert list(corpus.test[""]) == expected[10:20]
        assert list(corpus.train) == [row["row"] for row in corpus.train.rows()] == expected[20:]
        assert corpus.classes == ["yes", "no"]
        assert corpus.notes["test"].startswith("10 examples; rows 11 to 20 of the training data")
        assert "a stream, of which nothing is stored or counted" in corpus.notes["train"]


def test_a_stream_is_read_by_the_rules_of_stored_data(tsv):
    train = tsv(
        "gold\tx\ty",
        *(f"{('yes', 'no')[i % 2]} \tone  {i}\ttwo {i}" for i in range(40)),
        "yes\t \tempty",
        "\tno\tlabel",
        "",
        "too\tfew",
        "no\tthe\tlast",
    )
    other = tsv("gold\tx\ty", "no\ta\tb", name="other.tsv")
    settings = LabelledFiles(
        train=train,
        validation=other,
        test=other,
        tests={"further": other},
        classes=["yes", "no"],
        text_field="x",
        pair_field="y",
        label_field="gold",
    )
    stored = load_labelled_corpus(settings)
    stream = load_labelled_corpus(settings.model_copy(update={"streaming": True}))
    assert list(stream.train) == list(stored.train) and len(stored.train) == 41
    for part in (stream.validation, stream.test[""], stream.tests["further"]):
        assert list(part) == [Example("a", "b", "no")]
    assert stream.notes["test further"].startswith("1 examples")
    assert stream.digest != stored.digest


def test_numbers_of_a_stream_need_no_classes(tsv):
    path = tsv("sentence\tlabel", *sentences(50, ["0.5", "-3"]))
    found = streamed(LabelledFiles, train=path, classes=None, problem="regression")
    assert found.classes is None
    assert [example.label for example in found.train] == [0.5, -3] * 15


def test_a_piece_of_a_stream_may_have_one_label(tsv):
    path = tsv("sentence\tlabel", *sentences(23, ["0.5", "-3"]), *sentences(9, ["2"]))
    found = streamed(LabelledFiles, train=path, classes=None, problem="regression")
    assert [example.label for example in found.train][3:] == [2.0] * 9


def test_the_names_of_a_dataset_tell_its_numbers_whatever_the_order_of_the_classes(tmp_path):
    features = datasets.Features(
        {"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])}
    )
    columns = {"sentence": [f"text {i}" for i in range(30)], "label": [i % 2 for i in range(30)]}
    datasets.Dataset.from_dict(columns, features=features).to_parquet(tmp_path / "train.parquet")
    own = {"name": str(tmp_path), "validation_split": None, "test_split": None}
    found = streamed(LabelledHub, **own)
    assert found.validation[1] == Example("text 1", None, "yes")
    assert next(iter(found.train)) == Example("text 20", None, "no")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("odd\tmaybe", r"train.tsv, line 32: the label is 'maybe', expected one of the classes no"),
        ("odd\n" * 5 + "odd", r"line 32: 1 fields, expected 2 .*; 6 of 36 rows have another num"),
    ],
)
def test_what_is_wrong_in_a_stream_is_an_error_where_it_is_reached(line, message, tsv):
    found = streamed(LabelledFiles, train=tsv("sentence\tlabel", *sentences(30), line))
    with pytest.raises(CorpusError, match=message):
        list(found.train.rows())


def test_what_a_stream_of_examples_cannot_is_refused(tsv):
    path = tsv("sentence\tlabel", *sentences(20))
    with pytest.raises(ValueError, match=r"classes is not given and streaming is true, expected"):
        LabelledFiles(train=path, streaming=True)
    with pytest.raises(CorpusError, match=r"first file has 20 rows, expected more than the 20 "):
        streamed(LabelledFiles, train=path)


def test_classes_may_be_numbers(tsv):
    path = tsv("sentence\tlabel", *sentences(50, ["0", "1"]))
    assert streamed(LabelledFiles, train=path, classes=[1, 0]).classes == ["1", "0"]


# --- docstrings -------------------------------------------------------------------------------


def test_docstrings_are_balanced_in_every_part():
    labelled = load_labelled_corpus(Docstrings(packages=["jinja2", "rich"]))
    again = load_labelled_corpus(Docstrings(packages=["jinja2", "rich"]))
    assert labelled.digest == again.digest
    parts = [labelled.train, labelled.validation, labelled.test[""]]
    examples = [example for part in parts for example in part]
    assert len({example.text for example in examples}) == len(examples) > 400
    assert all(4 <= len(example.text.split()) <= 40 for example in examples)
    counts = Counter(example.label for example in examples)
    assert counts["jinja2"] == counts["rich"]
    # rich has half as many again: those that are left out must not be missing from one part.
    held_out = [e for e in [*labelled.validation, *labelled.test[""]] if e.label == "rich"]
    assert 0.15 < len(held_out) / counts["rich"] < 0.25
    assert "jinja2 3." in labelled.notes["corpus"]


def test_an_edited_package_below_a_folder_of_tests_is_read_anew(tmp_path, monkeypatch):
    (tmp_path / "test" / "edited").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "test")
    for word in ("alpha", "beta gamma"):
        lines = [f'def f{i}():\n    """{word} has the number {i}."""\n' for i in range(30)]
        (tmp_path / "test" / "edited" / "__init__.py").write_text("".join(lines))
        labelled = load_labelled_corpus(Docstrings(packages=["edited", "rich"]))
        assert any(example.text.startswith(word) for example in labelled.train)


def test_packages_that_give_nothing():
    with pytest.raises(CorpusError, match=r"has 'jinja3.sub', expected installed packages"):
        load_labelled_corpus(Docstrings(packages=["rich", "jinja3.sub"]))
    with pytest.raises(CorpusError, match=r"has 'jinja3', expected installed packages"):
        load_labelled_corpus(Docstrings(packages=["rich", "jinja3"]))
    with pytest.raises(CorpusError, match=r"has 'pydoc_data', expected .* docstrings"):
        load_labelled_corpus(Docstrings(packages=["rich", "pydoc_data"]))


# --- settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"classes": ["a", "a"]}, r"classes is \['a', 'a'\], expected different names"),
        ({"classes": ["a", "b"], "problem": "regression"}, "numbers have no classes; leave"),
    ],
)
def test_classes_that_cannot_be_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        LabelledFiles(train="a.tsv", **given)


def test_the_digest_is_that_of_texts_labels_and_parts(tsv):
    def digest(*lines):
        return load_labelled_corpus(LabelledFiles(train=tsv("sentence\tlabel", *lines))).digest

    rows = sentences(60)
    assert digest(*rows) == digest(*rows)
    assert digest(*rows) != digest(*rows[:-1], rows[-1].replace("no", "yes"))
    assert digest(*rows) != digest(*rows[1:], rows[0])
