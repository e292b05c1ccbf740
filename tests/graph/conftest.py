from tests.runtime.conftest import architecture, random_path

__all__ = ["architecture", "random_path"]
