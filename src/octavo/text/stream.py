"""Text from tokens as they come, never half a character."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable


class TokenStream:
    """Turns ids into text one at a time; the pieces joined are what decoding all ids at once gives.

    A token may end in the middle of a character's UTF-8 bytes: they are held back until the rest comes. `flush` gives
    what is left as U+FFFD, so call it once after the last token.
    """

    def __init__(
        self, token_bytes: Callable[[int], bytes], is_special: Callable[[int], bool], strip_space: bool
    ) -> None:
        self._token_bytes, self._is_special, self._strip_space = token_bytes, is_special, strip_space
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that is complete once `token` has come; "" where there is none yet."""
        data = self._token_bytes(token)
        if self._strip_space and data and not self._is_special(token):
            self._strip_space = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def flush(self, *, cut: bool = False) -> str:
        """The text of what was held back; the stream then begins anew.

        cut  more would have come: a character that is not whole is left out
        """
        if cut:
            self._decoder.reset()
        return self._decoder.decode(b"", final=True)
