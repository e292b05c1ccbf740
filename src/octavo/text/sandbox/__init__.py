"""Jinja with limits on time and size, for chat templates, which come from files that are not trusted.

The sandbox that `jinja2` has keeps templates away from Python's internals, but not from running for ever or filling the
memory. Here every loop, call, operator, filter and test is counted against a budget, and is refused before it makes
something large. There are no threads or signals in it, so it works anywhere.
"""

from octavo.text.sandbox.template import SandboxedTemplate

__all__ = ["SandboxedTemplate"]
