"""Records as arguments of kernels: nested, with nothing in a place, and with constants. See also `test_compiled`."""

from __future__ import annotations

import pytest
import torch

from octavo.backends.gpu.device.torch_device import target
from octavo.backends.gpu.launch.arguments import matrix
from octavo.backends.gpu.launch.context import Context
from tests.backends.gpu.launch.records import Scaled, Scaling, records_kernel


@pytest.mark.parametrize(("scaling", "offset", "expected"), [
    (Scaling(3, "all"), None, lambda x: 3 * x),
    (Scaling(3, "all"), 7, lambda x: 3 * (x + 7)),
    (Scaling(5, "half", (1, 10)), None, lambda x: 2 * x + 10),
])
def test_nested_records(scaling, offset, expected) -> None:  # type: ignore[no-untyped-def]
    c = Context(target())
    x = torch.arange(64, dtype=torch.int32, device=c.target.device).view(2, 32)
    for terms in ((), (x,), (x, x[1])):
        y = torch.full_like(x, -1)
        c.launch(
            records_kernel, (2,), Scaled(matrix(x), offset, scaling), tuple(map(matrix, terms)), matrix(y),
            size=Scaling(30, ""), B=32,
        )()
        right = expected(x) + sum(terms)
        assert torch.equal(y[:, :30], right[:, :30])
        assert (y[:, 30:] == -1).all()
