"""Two profiles: `suite`, the same examples in every run of the tests, and `long`, of `make fuzz`.

The environment variable HEADWISE_FUZZ names one of them; `suite` is the default.
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How slow a machine is, and that runs are trained for a test, is no fault of the test.
HOWEVER_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile(
    "suite", derandomize=True, database=None, deadline=None, suppress_health_check=HOWEVER_SLOW
)
settings.register_profile("long", settings.get_profile("suite"), derandomize=False, print_blob=True)


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
