import pytest
from small_recipe import SMALL


@pytest.fixture
def small(tmp_path):
    """The path of a recipe file."""
    path = tmp_path / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return str(path)
