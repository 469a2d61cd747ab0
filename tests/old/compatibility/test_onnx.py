"""ONNX: exported models in onnxruntime, on inputs of other sizes."""

import pytest
import torch
from compatible import compatible, tiny_model
from exporting import ONE_LAYER, dynamic_shapes, examples

pytestmark = pytest.mark.slow


@compatible("ONNX", "`CausalLM` in onnxruntime", needs=("onnx", "onnxscript", "onnxruntime"))
def test_language_models(system, tmp_path):
    check("causal", system, tmp_path)


@compatible("ONNX", "`Seq2SeqLM` in onnxruntime", needs=("onnx", "onnxscript", "onnxruntime"))
def test_sequence_to_sequence_models(system, tmp_path):
    check("seq2seq", system, tmp_path)


def check(kind, system, folder):
    import onnxruntime

    model = tiny_model(kind, system, **ONE_LAYER[kind])
    first, *others = examples(kind)
    path = folder / "model.onnx"
    torch.onnx.export(
        model,
        kwargs=first,
        f=path,
        dynamo=True,
        dynamic_shapes=dynamic_shapes(kind),
        output_names=["logits"],
        verbose=False,
    )
    session = onnxruntime.InferenceSession(path)
    for inputs in others:
        given = {name: value.numpy() for name, value in inputs.items()}
        (logits,) = session.run(["logits"], given)
        expected = model(**inputs).logits
        torch.testing.assert_close(torch.from_numpy(logits), expected, rtol=0, atol=1e-4)
