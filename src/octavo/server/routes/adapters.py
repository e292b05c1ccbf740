"""Routes of adapters that requests choose: vLLM's to load and unload them, and llama-server's to list and to scale."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from octavo.io.hub.download_cache import shown_name
from octavo.server.http.api_errors import ApiError
from octavo.server.http.body import parse, read
from octavo.server.routes.answer import body_of, json_response, service_of
from octavo.server.routes.schema import AdapterChoice, Body, many

NAME = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\s:\x00-\x1f][^:\x00-\x1f]*$")]
OFF = ("adapters can't be loaded while this server runs: start it with --max-loras N, without --replicas, or name them "
       "by --lora-modules")


class LoadAdapterRequest(Body):
    """vLLM's; of the server's own files."""

    lora_name: NAME
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)]


class UnloadAdapterRequest(Body):
    lora_name: NAME


class Scales(Body):
    """What llama-server has as a list."""

    adapters: Annotated[list[AdapterChoice], many(64)]


async def load(request: Request) -> Response:
    """Load an adapter from the server's disk, for requests that name it."""
    body, service = await body_of(request, LoadAdapterRequest), service_of(request)
    if not service.options.loads_adapters:
        raise ApiError(403, OFF, code="adapters_off")
    if service.is_called(body.lora_name):
        raise ApiError(400, f"{body.lora_name!r} is the model's own name", param="lora_name")
    await service.client.load_adapter(body.lora_name, body.lora_path)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def unload(request: Request) -> Response:
    """Unload an adapter; requests that are computed with it go on."""
    body, service = await body_of(request, UnloadAdapterRequest), service_of(request)
    if not service.options.loads_adapters:
        raise ApiError(403, OFF, code="adapters_off")
    service.adapters.require(body.lora_name, "lora_name")
    await service.client.unload_adapter(body.lora_name)
    service.adapters.scales.pop(body.lora_name, None)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


async def listed(request: Request) -> Response:
    """Adapters by the names of their files, and the scales that requests have which choose none."""
    service = service_of(request)
    if not service.adapters.are_chosen:
        fixed = enumerate(service.options.lora)
        return json_response([{"id": i, "path": shown_name(path), "scale": scale} for i, (path, scale) in fixed])
    return json_response([
        {"id": one.id, "name": one.name, "path": shown_name(one.path),
         "scale": service.adapters.scales.get(one.name, 0.0)}
        for one in service.adapters.loaded.values()
    ])


async def scale(request: Request) -> Response:
    """Set the scales of requests that choose no adapters; of the ones that are not named, 0."""
    service = service_of(request)
    data = bytes(await read(request, service.limits))
    given = Scales.model_validate(parse(b'{"adapters":%b}' % data, service.limits.depth))
    service.adapters.set_scales(given.adapters)
    return json_response({"success": True})
