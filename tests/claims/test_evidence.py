"""What is kept of a run: read back, and named where it is damaged."""

import math

import numpy as np
import pytest

from headwise.claims.evidence.records import best_step, read_rows, read_run


def test_the_lowest_validation_loss_is_a_number():
    losses = [(10, math.nan), (20, 2.0), (30, 1.0), (40, math.inf)]
    history = [{"step": step, "eval_loss": loss} for step, loss in losses]
    assert best_step([{"step": 5, "loss": 0.1}, *history]) == 30
    assert best_step(history[:1]) is None


def test_a_record_of_an_older_headwise_is_none(tmp_path):
    path = tmp_path / "a-seed1.json"
    assert read_run(path) is None
    path.write_text('{"system": "standard"}')
    assert read_run(path) is None


@pytest.mark.parametrize("damaged", [b"", b"\xff\xfe\x00", b'{"system": "stand'])
def test_damaged_records_are_named(tmp_path, damaged):
    path = tmp_path / "a-seed1.json"
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"a-seed1\.json cannot be read"):
        read_run(path)


@pytest.mark.parametrize("kept", [0, 10, 200])
def test_damaged_rows_are_named(tmp_path, kept):
    path = tmp_path / "a-seed1.json"
    np.savez_compressed(path.with_suffix(".npz"), loss=np.arange(1000))
    assert read_rows(path, "loss").tolist() == list(range(1000))
    assert read_rows(path, "BLEU") is None
    whole = path.with_suffix(".npz").read_bytes()
    path.with_suffix(".npz").write_bytes(whole[:kept])
    with pytest.raises(ValueError, match=r"a-seed1\.npz cannot be read"):
        read_rows(path, "loss")
