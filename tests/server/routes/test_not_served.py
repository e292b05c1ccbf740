"""OpenAI's routes for sound, pictures and moderation say that they are not served."""

from __future__ import annotations

import openai
import pytest

from octavo.server.routes.not_served import WHAT
from tests.server.live_server import Server


@pytest.mark.parametrize("path", WHAT)
def test_routes_that_are_not_served(server: Server, path: str) -> None:
    for prefix in ("/v1", ""):
        status, error = server.refused(prefix + path, {"model": "demo", "input": "x"})
        assert (status, error["code"], error["type"]) == (501, "not_served", "not_supported_error")
        assert f"{prefix + path} is not served" in error["message"]


def test_what_openais_client_raises(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=2) as client:
        with pytest.raises(openai.InternalServerError, match="transcriptions of audio") as found:
            client.audio.transcriptions.create(model="whisper-1", file=("a.wav", b"RIFF" * 1000))
        assert found.value.status_code == 501
        with pytest.raises(openai.InternalServerError, match="no model here is for images"):
            client.images.generate(model="dall-e", prompt="a cat")
        with pytest.raises(openai.InternalServerError, match="no model here is for moderation"):
            client.moderations.create(input="x")


@pytest.mark.parametrize("path", ["/models/load", "/models/unload"])
def test_a_single_model_is_not_loaded_by_route(server: Server, path: str) -> None:
    for prefix in ("/v1", ""):
        status, error = server.refused(prefix + path, {"model": "demo"})
        assert (status, error["message"]) == (
            400, f"{prefix + path} is for servers of several models: start `octavo serve` without one, or with several")
