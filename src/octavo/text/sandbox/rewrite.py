"""Rewriting a parsed template, so that what Jinja would do by itself goes through the environment."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from jinja2 import Environment as JinjaEnvironment
from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from octavo.errors import TemplateError

N = TypeVar("N", bound=nodes.Node)

_FORBIDDEN: dict[type[nodes.Node], str] = {
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "from",
    nodes.Extends: "extends",
    nodes.EvalContextModifier: "autoescape",
    nodes.ScopedEvalContextModifier: "autoescape",
}


class Rewriter(NodeTransformer):
    """Makes loops, concatenation, slices, comparisons and keys of dicts into calls of the environment's methods."""

    def __init__(self, environment: JinjaEnvironment) -> None:
        self._environment = environment

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        """`node` with what is in it rewritten, then itself."""
        tag = _FORBIDDEN.get(type(node))
        if tag is not None:
            raise TemplateError(f"chat template, line {node.lineno}: the tag {tag!r} is not allowed")
        self.generic_visit(node)
        if isinstance(node, nodes.For):
            self._count_rounds(node)
        elif isinstance(node, nodes.Concat):
            return self._call(node, "joined", *node.nodes)
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            ends = (node.arg.start, node.arg.stop, node.arg.step)
            none = self._placed(nodes.Const(None), node)
            return self._call(node, "sliced", node.node, *(none if e is None else e for e in ends))
        elif isinstance(node, nodes.Compare):
            node.expr = self._weighed(node.expr)
            for operand in node.ops:
                operand.expr = self._weighed(operand.expr)
        elif isinstance(node, nodes.Pair):
            node.key = self._weighed(node.key)
        return node

    def _count_rounds(self, node: nodes.For) -> None:
        if not node.recursive:
            node.iter = self._call(node, "rounds", cast(nodes.Expr, node.iter))
            return
        node.body.insert(0, self._placed(nodes.ExprStmt(self._call(node, "step")), node))
        if node.test is not None:
            node.test = self._placed(nodes.And(self._call(node, "step"), node.test), node)

    def _weighed(self, node: nodes.Expr) -> nodes.Expr:
        return node if isinstance(node, nodes.Const) else self._call(node, "weighed", node)

    def _call(self, at: nodes.Node, method: str, *args: nodes.Expr) -> nodes.Expr:
        function = self._placed(nodes.EnvironmentAttribute(method), at)
        return self._placed(nodes.Call(function, list(args), [], None, None), at)

    def _placed(self, node: N, at: nodes.Node) -> N:
        node.set_lineno(at.lineno).set_environment(self._environment)
        return node
