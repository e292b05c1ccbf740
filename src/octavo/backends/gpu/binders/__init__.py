"""What makes a node of the graph into calls, for each op."""

from octavo.backends.gpu.binders.elementwise import BINDERS

__all__ = ["BINDERS"]
