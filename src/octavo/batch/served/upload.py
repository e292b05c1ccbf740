"""A file as a browser's form has it, multipart/form-data (RFC 7578), written to the disk as it comes."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field
from typing import IO

from starlette.requests import Request

from octavo.errors import INSTALL_FILES
from octavo.server.http.api_errors import ApiError, bad
from octavo.server.http.body import CLOSE, pieces
from octavo.server.serve_options import Limits

FORM = b"multipart/form-data"
MOST_FIELD, MOST_FIELDS, MOST_NAME = 4096, 32, 255
"""Bytes of a field other than the file, fields, and characters of a file's name."""
AROUND = 1 << 20
"""Bytes of a body beside those of the file."""


@dataclass
class Form:
    """The fields of a form, and the name of the file in it; None where there is none."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None


async def receive(request: Request, limits: Limits, file: IO[bytes], most: int) -> Form:
    """Write the field `file` of a form to a file, and give what else is in the form.

    Raises ApiError for what is not such a form, for a file of more than `most` bytes, and without python-multipart.
    """
    try:
        from python_multipart import MultipartParser
        from python_multipart.exceptions import FormParserError
        from python_multipart.multipart import parse_options_header
    except ImportError:
        words = f"uploads need python-multipart, which is not installed on the server ({INSTALL_FILES})"
        raise ApiError(501, words, code="not_installed", headers={"x-should-retry": "false"}) from None
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary", b"")
    if kind != FORM or not boundary:
        raise ApiError(415, f"the content type is {kind.decode('latin-1')[:80]!r}, not multipart/form-data with a "
                            "boundary", headers=CLOSE)
    reader = _Reader(file, most, parse_options_header)
    n = 0
    try:
        parser = MultipartParser(boundary, {
            "on_part_begin": reader.begin, "on_header_field": reader.name, "on_header_value": reader.value,
            "on_header_end": reader.header, "on_headers_finished": reader.begun, "on_part_data": reader.data,
            "on_part_end": reader.end, "on_end": reader.over,
        })
        async with aclosing(pieces(request, limits)) as found:
            async for piece in found:
                n += len(piece)
                if n > most + AROUND:
                    raise reader.too_large()
                parser.write(piece)
        parser.finalize()
    except FormParserError as error:
        raise bad(f"the form is not valid: {error}") from None
    if not reader.whole:
        raise bad("the form ends too early")
    return reader.form


class _Reader:
    """Takes the parts of a form as they are parsed."""

    def __init__(self, file: IO[bytes], most: int, options_of: object) -> None:
        self.form, self.whole = Form(), False
        self._file, self._most, self._options_of = file, most, options_of
        self._written = self._parts = 0

    def begin(self) -> None:
        self._headers, self._header, self._text = dict[bytes, bytes](), [b"", b""], bytearray()
        self._parts += 1
        if self._parts > MOST_FIELDS:
            raise bad(f"the form has more than {MOST_FIELDS} fields")

    def name(self, data: bytes, start: int, end: int) -> None:
        self._header[0] += data[start:end]

    def value(self, data: bytes, start: int, end: int) -> None:
        self._header[1] += data[start:end]

    def header(self) -> None:
        self._headers[self._header[0].lower()], self._header = self._header[1], [b"", b""]

    def begun(self) -> None:
        _, options = self._options_of(self._headers.get(b"content-disposition", b""))  # type: ignore[operator]
        self._called = options.get(b"name", b"").decode(errors="replace")
        self._is_file = b"filename" in options
        if self._is_file:
            if self._called != "file" or self.form.filename is not None:
                raise bad("the form has another file than one, as the field file", "file")
            name = options[b"filename"].decode(errors="replace").replace("\\", "/").rpartition("/")[2]
            self.form.filename = "".join(c for c in name if c.isprintable())[-MOST_NAME:] or "upload"

    def data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._written += end - start
            if self._written > self._most:
                raise self.too_large()
            self._file.write(memoryview(data)[start:end])
        else:
            self._text += data[start:end]
            if len(self._text) > MOST_FIELD:
                raise bad(f"{self._called[:80]} is too long (at most {MOST_FIELD} bytes)", self._called[:80])

    def end(self) -> None:
        if not self._is_file:
            self.form.fields[self._called] = self._text.decode(errors="replace")

    def over(self) -> None:
        self.whole = True

    def too_large(self) -> ApiError:
        return ApiError(413, f"the file is larger than {self._most} bytes, which is the most", param="file",
                        headers=CLOSE)
