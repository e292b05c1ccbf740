from tests.backends import op_graphs  # noqa: F401  (register their graphs)
