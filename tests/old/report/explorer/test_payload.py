import numpy as np
import pytest

from headwise.report.explorer.payload import Blob


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("levels", [255, 15])
def test_numbers_come_back_to_half_a_step(power, levels):
    numbers = np.random.default_rng(0).random((9, 7), np.float32) ** 3
    back = Blob.of(numbers, levels=levels, power=power).numbers()
    scale = numbers.max()
    error = np.abs((back / scale) ** (1 / power) - (numbers / scale) ** (1 / power))
    assert back.shape == (9, 7)
    assert error.max() <= 0.5001 / levels
    if levels == 255:
        assert np.abs(back - numbers).max() <= scale / 255


def test_zeros_and_numbers_beyond_the_scale():
    assert not Blob.of(np.zeros((2, 3))).numbers().any()
    assert Blob.of(np.array([-1.0, 0.5, 2.0]), scale=1.0).numbers() == pytest.approx(
        [0, 0.5, 1], abs=1 / 255
    )


@pytest.mark.parametrize("levels", [255, 15, 3])
def test_signed_numbers(levels):
    numbers = np.random.default_rng(0).normal(size=(9, 7)).astype(np.float32)
    numbers[0] = 0
    back = Blob.of(numbers, levels=levels, power=2, signed=True).numbers()
    scale = np.abs(numbers).max()
    error = np.abs(np.sqrt(np.abs(back) / scale) - np.sqrt(np.abs(numbers) / scale))
    assert error.max() <= 0.5001 / (levels // 2)
    assert not back[0].any()
    assert (back * numbers >= 0).all()


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_numbers_that_json_has_no_words_for_are_refused(number):
    with pytest.raises(ValueError, match="not finite"):
        Blob.of(np.array([0.5, number]))
