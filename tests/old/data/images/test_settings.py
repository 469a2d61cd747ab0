"""Settings of image data that do not fit, and the shapes that they describe."""

import pytest
from pydantic import TypeAdapter, ValidationError

from headwise.data.images.settings import (
    DigitsImages,
    ImageSettings,
    PairImages,
    PhotographsImages,
    image_shape,
)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"corpus": "digit"}, "'digits', 'photographs', 'folder', 'idx', 'hub', 'pair'"),
        ({"corpus": "digits", "size": 0}, "greater than or equal to 1"),
        ({"corpus": "folder"}, "train"),
        ({"corpus": "digits", "colour": 1}, "colour"),
        (
            {"corpus": "pair", "left": {"corpus": "digits", "size": 9}},
            "left.size is 9 and right.size is 8, expected equal sizes",
        ),
        ({"corpus": "pair", "left": {"corpus": "pair"}}, "left"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        TypeAdapter(ImageSettings).validate_python(settings)


def test_shapes_are_known_without_data(tmp_path):
    assert image_shape(DigitsImages()) == (8, 8, 1)
    assert image_shape(PhotographsImages(size=12)) == (12, 12, 3)
    assert image_shape(PairImages(left=DigitsImages(), right=DigitsImages())) == (8, 16, 1)
