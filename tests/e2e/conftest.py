"""What the tests in a real browser share."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.browser import opened


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium, one for the tests of a file."""
    yield from opened()
