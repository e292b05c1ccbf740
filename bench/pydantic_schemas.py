"""Whether replies and calls have keys that nobody asked for: schemas as pydantic writes them, and a real model.

    python bench/pydantic_schemas.py MODEL [--replies N] [--temperature T] [-o FOLDER]

A server of the model is asked for N replies of a form (`response_format`) and for N calls that have to be (`tools`), of
the models below in turns, each with a seed of its own. pydantic's schemas say nothing of `additionalProperties` but
for dictionaries. Counted are replies with a key that no field has (`extra`), those that are not a valid value of the
schema, or that pydantic does not take (`invalid`), those that `max_tokens` cut (`cut`), of which nothing else is
counted, and tokens a reply. Written to bench/results/pydantic-schemas-<date>.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from pathlib import Path
from typing import Any, Literal

import jsonschema
from pydantic import BaseModel, ConfigDict, Field, ValidationError

import results_file
from octavo.bench.serving.http import Address, exchange, request_bytes
from octavo.bench.serving.launch import served

MOST_TOKENS = 400


class Person(BaseModel):
    name: str = Field(max_length=30)
    age: int = Field(ge=0, le=130)


class Home(BaseModel):
    street: str = Field(max_length=30)
    zip: str = Field(pattern=r"^[0-9]{5}$")
    country: Literal["DE", "FR", "US"]


class Contact(BaseModel):
    """A person, and where they are to be found."""

    person: Person
    address: Home | None = None
    tags: list[str] = Field(default=[], max_length=3)


class Weather(BaseModel):
    city: str = Field(max_length=20)
    unit: Literal["C", "F"] = "C"
    days: int = Field(1, ge=1, le=14)


class Order(BaseModel):
    items: list[Person] = Field(max_length=2, description="who orders")
    prices: dict[str, float]
    paid: bool


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=0, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[Literal["sit", "roll", "fetch"]] = Field(max_length=2)


class Pet(BaseModel):
    pet: Cat | Dog = Field(discriminator="kind")
    owner: Person = Field(description="whose it is")


class Answer(BaseModel):
    model_config = ConfigDict(title="An answer")
    value: int | Literal["none"] | None
    why: str = Field(max_length=60)


MODELS: tuple[tuple[type[BaseModel], str], ...] = (
    (Person, "Tell me about Ada, who is 36."), (Contact, "Ada, 36, lives at 12 Mill Lane, 10115, Germany."),
    (Weather, "What will the weather be in Paris?"), (Order, "Ada and Bob order a book and have paid."),
    (Pet, "Bob, 40, has a dog that can sit and roll."), (Answer, "What is 12 times 7?"),
)


def request(i: int, kind: str, temperature: float) -> tuple[type[BaseModel], dict[str, Any]]:
    """The model of pydantic's and the body of a request."""
    model, text = MODELS[i % len(MODELS)]
    schema = model.model_json_schema()
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": f"{text} Answer with JSON."}], "seed": i, "temperature": temperature,
        "max_tokens": MOST_TOKENS,
    }
    if kind == "replies":
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": model.__name__, "schema": schema}}
    else:
        function = {"name": "take", "description": "Takes what the user tells.", "parameters": schema}
        body |= {"tools": [{"type": "function", "function": function}], "tool_choice": "required",
                 "parallel_tool_calls": False}
    return model, body


def extra_keys(value: Any, known: Any) -> int:
    """Keys of a value that pydantic has left out of what it read."""
    if isinstance(value, dict):
        return len(value.keys() - known.keys()) + sum(extra_keys(value[key], one) for key, one in known.items())
    if isinstance(value, list):
        return sum(map(extra_keys, value, known))
    return 0


def judged(model: type[BaseModel], text: str, finish: str) -> str:
    """What a reply is: "good", "extra", "invalid" or "cut"."""
    if finish == "length":
        return "cut"
    try:
        value = json.loads(text)
        jsonschema.validate(value, model.model_json_schema())
        read = model.model_validate_json(text).model_dump(mode="json", exclude_unset=True)
    except (ValueError, ValidationError, jsonschema.ValidationError):
        return "invalid"
    return "extra" if extra_keys(value, read) else "good"


async def measured(to: Address, kind: str, replies: int, temperature: float, together: int) -> dict[str, Any]:
    """What the replies are, and their tokens."""
    room, found, tokens = asyncio.Semaphore(together), dict.fromkeys(("good", "extra", "invalid", "cut"), 0), []

    async def one(i: int) -> None:
        model, body = request(i, kind, temperature)
        data = bytearray()
        async with room:
            done = await exchange(to, request_bytes(to, "POST", "/v1/chat/completions", body), data.extend)
        answer = json.loads(data)
        if done.status != 200:
            raise SystemExit(f"{model.__name__}: {answer}")
        (choice,) = answer["choices"]
        calls = choice["message"].get("tool_calls")
        text = calls[0]["function"]["arguments"] if calls else choice["message"]["content"] or ""
        found[judged(model, text, choice["finish_reason"])] += 1
        tokens.append(answer["usage"]["completion_tokens"])

    await asyncio.gather(*map(one, range(replies)))
    return {"kind": kind, **found, "tokens": round(statistics.fmean(tokens), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--replies", type=int, default=100)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    asked = parser.parse_args()
    rows = []
    with served(asked.model, ["-np", "4"]) as to:
        for kind in ("replies", "calls"):
            rows.append(asyncio.run(measured(to, kind, asked.replies, asked.temperature, 4)))
            print(rows[-1], flush=True)
    result = {**results_file.described(), "of": Path(asked.model).stem, "models": len(MODELS),
              "temperature": asked.temperature, "results": rows}
    results_file.write("pydantic-schemas", result, asked.output)


if __name__ == "__main__":
    main()
