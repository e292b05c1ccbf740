"""The reference backend: every op as a few lines of float32 NumPy. The definition, and the fallback everywhere."""

from octavo.backends.reference.backend import ReferenceBackend

__all__ = ["ReferenceBackend"]
