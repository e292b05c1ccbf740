"""Text to tokens and back, and chat templates: from what a GGUF file says about them."""

from octavo.text.stream import TokenStream
from octavo.text.template import ChatTemplate
from octavo.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "TokenStream", "Tokenizer"]
