"""What openapi.json says, tried out: no body that it allows, or nearly allows, is answered with a 5xx."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace

from octavo.runtime import Model
from octavo.server.engine.fake import INFO, FakeClient
from tests.limits import HANG_S
from tests.server.live_server import running


def try_out(operation: Any, codes: set[int]) -> None:
    """Send bodies that an operation's description allows."""

    @given(case=operation.as_strategy())
    @settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def one(case: Any) -> None:
        response = case.call(timeout=HANG_S)
        codes.add(response.status_code)
        assert response.status_code < 500 or response.status_code == 501, (operation.path, case.body, response.text)

    one()


@pytest.mark.slow
def test_no_request_is_a_fault_of_the_server(model: Model) -> None:
    import schemathesis  # here, for it takes a second that other tests have no use for

    with running(FakeClient([16, 17, 300], info=replace(INFO, n_ctx=64)), model) as server:
        schema = schemathesis.openapi.from_dict(server.get("/openapi.json"))
        schema.config.update(base_url=server.url)
        tried: dict[str, set[int]] = {}
        for found in schema.get_all_operations():
            try_out(found.ok(), tried.setdefault(found.ok().path, set()))
        assert server.get("/health") == {"status": "ok"}
    assert 200 in tried["/tokenize"] <= {200, 400}, "a body may lack both names of the text"
    assert len(tried) > 20
