"""Probing: SentEval's files, generated tasks, and the recipes."""

from collections import Counter

import pytest

from headwise.data.labelled.corpus import Example
from headwise.data.labelled.settings import GeneratedProbe, SentEvalFile
from headwise.data.sources import CorpusError
from headwise.recipes import load_recipe
from headwise.tasks.probing import Probing, ProbingRecipe

# As in bigram_shift.txt: tokenised, partition by partition.
LINES = [
    "tr\tO\tIt is \" quoted '' text , isn 't it ?",
    "tr\tI\tHe been had there .",
    "va\tO\tNo .",
    "te\tI\tYes go we .",
    "te\tO\tThere   we go .",
]


def recipe(**data):
    raw = {"task": "probing", "data": data, "training": {"max_steps": 1}}
    return ProbingRecipe.model_validate(raw)


@pytest.fixture
def senteval(tmp_path):
    def load(*lines, **settings):
        (tmp_path / "bigram_shift.txt").write_text("".join(f"{line}\n" for line in lines))
        return Probing.load(SentEvalFile(file=tmp_path / "bigram_shift.txt", **settings))

    return load


def write_text(path, number=400):
    """Sentences of 5 to 16 words, each with one of four words of middling frequency."""
    lines = []
    for i in range(number):
        common = [f"common{(i + j) % 6}" for j in range(4 + i % 11)]
        rare = ["alpha", "beta", "gamma", "delta"][i % 4]
        if i % 3 == 0:
            common.insert(1 + i % 3, rare)
        lines.append(f"Number{i} {' '.join(common)}.")
    path.write_text("\n".join(lines) + "\n")
    return path


# --- SentEval's files -------------------------------------------------------------------------


def test_a_file_of_senteval(senteval):
    labelled = senteval(*LINES)
    assert labelled.classes == ["I", "O"]
    assert labelled.train == [
        Example("It is \" quoted '' text , isn 't it ?", None, "O"),
        Example("He been had there .", None, "I"),
    ]
    assert labelled.validation == [Example("No .", None, "O")]
    assert [example.text for example in labelled.test[""]] == ["Yes go we .", "There we go ."]


def test_further_fields_stand_before_the_sentence(senteval):
    more = [line.replace("\t", "\tx\t", 2).replace("\tx\t", "\t", 1) for line in LINES]
    assert more[0].startswith("tr\tO\tx\tIt")
    assert senteval(*more).digest == senteval(*LINES).digest


@pytest.mark.parametrize(
    ("lines", "settings", "message"),
    [
        ([], {}, "bigram_shift.txt: the file is empty"),
        ([*LINES, "te\tO"], {}, "bigram_shift.txt, line 6: 2 of the fields partition, label and"),
        ([*LINES, "", "te\tO\tx"], {}, "line 6: 1 of the fields"),
        (
            ["train\tO\tx"],
            {},
            "line 1: the partition is 'train', expected one of tr, va, te",
        ),
        ([*LINES, "te\tX\tx"], {}, "line 6: the label is 'X', expected one of the classes I, O"),
        (
            [*LINES, "tr\t0\tx"],
            {"classes": ["I", "O"]},
            "line 6: the label is '0', expected one of",
        ),
        (LINES[:3], {}, "no examples for the test part .*own.$"),
        (
            ["tr\tO\tx", "va\tO\tx", "te\tO\tx"],
            {},
            "all labels are 'O', expected at least two classes. Check the second field",
        ),
        (
            [f"{part}\t{i}\tx {i}" for i in range(9) for part in ("tr", "va", "te")],
            {},
            "9 different labels among 9 examples .*learned. Check the second field",
        ),
    ],
)
def test_bad_files_are_errors_that_say_where(lines, settings, message, senteval):
    with pytest.raises(CorpusError, match=message):
        senteval(*lines, **settings)


# --- generated tasks --------------------------------------------------------------------------


@pytest.mark.parametrize(("probe", "number"), [("SeLen", 3), ("WC", 2), ("BShift", 2)])
def test_every_part_of_a_generated_task_is_balanced(probe, number, tmp_path):
    texts = {"corpus": "files", "train": str(write_text(tmp_path / "a.txt"))}
    data = recipe(corpus="generated", probe=probe, texts=texts, num_bins=3, num_words=2).data
    labelled = Probing.load(data)
    parts = [labelled.train, labelled.validation, labelled.test[""]]
    for part in parts:
        counts = Counter(example.label for example in part)
        assert set(counts) == set(labelled.classes) and len(counts) == number
        assert len(set(counts.values())) == 1
    sentences = [example.text for part in parts for example in part]
    assert len(set(sentences)) == len(sentences)
    assert labelled.digest == Probing.load(data).digest
    other = data.model_copy(update={"seed": 2})
    assert labelled.digest != Probing.load(other).digest
    assert labelled.notes["corpus"].startswith(f"{probe}, made from text files a.txt")


def test_sentences_of_a_paragraph_are_used_one_by_one(tmp_path):
    lines = (tmp_path / "a.txt", tmp_path / "b.txt")
    write_text(lines[0])
    text = lines[0].read_text().split("\n")
    lines[1].write_text("\n".join(" ".join(text[i : i + 5]) for i in range(0, 400, 5)) + "\n")
    digests = set()
    for path in lines:
        texts = {"corpus": "files", "train": str(path)}
        digests.add(Probing.load(recipe(corpus="generated", texts=texts).data).digest)
    assert len(digests) == 1


def test_a_text_that_was_changed_is_read_anew(tmp_path):
    path = write_text(tmp_path / "a.txt")
    data = recipe(corpus="generated", texts={"corpus": "files", "train": str(path)}, num_bins=2)
    before = Probing.load(data.data)
    path.write_text(path.read_text().replace("Number", "Figure"))
    after = Probing.load(data.data)
    assert after.digest != before.digest and after.train[0].text.startswith("Figure")


def test_docstrings_are_the_built_in_text():
    data = GeneratedProbe(probe="SeLen", texts={"corpus": "docstrings", "packages": ["jinja2"]})
    labelled = Probing.load(data)
    assert len(labelled.classes) == 6 and len(labelled.train) > 100
    assert "docstrings of jinja2 3." in labelled.notes["corpus"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"min_words": 9, "max_words": 8}, "max_words is 8, expected at least min_words, 9"),
        ({"bins": [5, 5, 9]}, r"bins is \[5, 5, 9\], expected increasing numbers"),
        ({"probe": "Tense"}, "'SeLen', 'WC' or 'BShift'"),
        ({"texts": {"corpus": "books"}}, "'docstrings'"),
    ],
)
def test_wrong_settings_are_errors(data, message):
    with pytest.raises(ValueError, match=message):
        recipe(corpus="generated", **data)


def test_too_little_text_is_an_error_that_names_the_setting(tmp_path):
    texts = {"corpus": "files", "train": str(write_text(tmp_path / "a.txt"))}
    with pytest.raises(CorpusError, match=r"set data.num_words to fewer"):
        Probing.load(recipe(corpus="generated", probe="WC", texts=texts).data)


# --- recipes ----------------------------------------------------------------------------------


def test_the_papers_recipe_names_its_ten_tasks_and_three_models():
    file = load_recipe("agreement-senteval")
    assert len(file.dataset_names) == 10
    assert file.system_names[:3] == ["standard", "simple", "agreement"]
    files = {file.system("simple", name).data.file.name for name in file.dataset_names}
    assert len(files) == 10
    classes = {name: file.system("simple", name).data.classes for name in file.dataset_names}
    numbers = {name: named and len(named) for name, named in classes.items()}
    two = dict.fromkeys(("BShif", "Tense", "SubNm", "ObjNm", "SOMO", "CoIn"), 2)
    assert numbers == {"SeLen": 6, "WC": None, "TrDep": 8, "ToCo": 20, **two}
    for system, routing in (("simple", "simple"), ("agreement", "em")):
        config = Probing.nominal_config(file.system(system, "Tense"))
        assert config.num_labels == 2 and config.pooling == "mean"
        specs = config.systems()["encoder_self"]
        assert [spec["system"] for spec in specs] == ["agreement"] * 3
        assert {spec.get("routing", "em") for spec in specs} == {routing}
        assert {spec.get("num_capsules", config.embed_dim) for spec in specs} == {512}
