"""What a call that is refused says."""

from collections.abc import Callable
from typing import Any

import pytest


def refusal(kind: Any, call: Callable[..., object], *args: Any, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        call(*args, **options)
    return str(caught.value)
