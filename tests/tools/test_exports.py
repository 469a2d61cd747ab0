"""Models of ours in the runtimes and harnesses of others give the numbers that they give here."""

import pytest
import torch
from support.tiny_models import PAD, model, tokens
from torch.export import Dim

pytestmark = pytest.mark.nightly

SYSTEMS = ("standard", "mae", "moa")
SHORT = {"causal": {"layers": 1}, "seq2seq": {"encoder_layers": 1, "decoder_layers": 1}}


def padded(kind: str, batch: int, time: int, target: int) -> dict:
    mask = torch.ones(batch, time, dtype=torch.long)
    mask[1, : time // 2] = 0  # on the left, as prompts are padded
    given = {"input_ids": tokens(batch, time), "attention_mask": mask}
    return given if kind == "causal" else {**given, "decoder_input_ids": tokens(batch, target)}


@pytest.mark.parametrize("kind", SHORT)
@pytest.mark.parametrize("system", SYSTEMS)
def test_onnx_runtime_gives_the_same_logits(kind, system, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    made = model(kind, system, **SHORT[kind]).float()
    batch, time, target = (Dim(name, min=2) for name in ("batch", "time", "target"))
    shapes = {"input_ids": {0: batch, 1: time}, "attention_mask": {0: batch, 1: time}}
    if kind == "seq2seq":
        shapes["decoder_input_ids"] = {0: batch, 1: target}
    path = tmp_path / "model.onnx"
    torch.onnx.export(
        made,
        kwargs=padded(kind, 3, 6, 4),
        f=path,
        dynamo=True,
        dynamic_shapes=shapes,
        output_names=["logits"],
        verbose=False,
    )
    session = runtime.InferenceSession(path)
    for sizes in ((2, 9, 5), (5, 4, 8), (2, 2, 2)):
        given = padded(kind, *sizes)
        (logits,) = session.run(["logits"], {name: x.numpy() for name, x in given.items()})
        expected = made(**given).logits  # float32, as most exported models are
        torch.testing.assert_close(torch.from_numpy(logits), expected, rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["a", "file", "opens", "and", "closes", "the", "small", "window"]
    words = ["<pad>", "<s>", "</s>", "<unk>", *words]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_evaluation_harness_gives_the_same_numbers(system, tokenizer, tmp_path):
    huggingface = pytest.importorskip("lm_eval.models.huggingface")
    from lm_eval.api.instance import Instance

    made = model("causal", system, max_length=32)
    made.generation_config.suppress_tokens = [PAD, 1, 3]
    made.float().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    harness = huggingface.HFLM(pretrained=str(tmp_path), device="cpu", batch_size=2)

    def log_p(text: str, following: str) -> float:
        start = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = [*start, *tokenizer(following, add_special_tokens=False)["input_ids"]]
        with torch.no_grad():
            found = made(torch.tensor([ids])).logits[0].log_softmax(-1)
        return sum(found[i - 1, ids[i]].item() for i in range(len(start), len(ids)))

    choices = [("the small window", " opens"), ("the small window", " and closes")]
    asked = [
        Instance(request_type="loglikelihood", doc={}, arguments=each, idx=0) for each in choices
    ]
    for given, (score, _) in zip(choices, harness.loglikelihood(asked), strict=True):
        assert score == pytest.approx(log_p(*given), rel=1e-4)
