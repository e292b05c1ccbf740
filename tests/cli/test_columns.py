"""Tables: the same in a pipe as on a terminal."""

from __future__ import annotations

from octavo.cli.columns import columns, kernel_name


def test_columns_are_aligned_and_lines_end_where_they_end() -> None:
    rows = [("a", "1", ""), ("long name " * 12, "20", "x")]
    head, first, second = columns(("name", "n", "note"), rows, numbers=("n",))
    assert head.index("  n") == first.index("  1") == second.index(" 20")
    assert first.endswith(" 1")
    assert second == f"{rows[1][0]}  20  x"


def test_kernels_are_named_without_what_they_take() -> None:
    """Names as ncu has them, of a product of CUTLASS and of torch's kernels: 300 characters made a table as wide."""
    assert kernel_name("w4a8_hopper_kernel") == "w4a8_hopper_kernel"
    assert (
        kernel_name("void cutlass::Kernel2<cutlass_80_s8_128x64_tn>(T1::Params)")
        == "cutlass::Kernel2<cutlass_80_s8_128x64_tn>"
    )
    assert (
        kernel_name("void at::(anonymous namespace)::fill<(int)4, at::F<int>>(int, T2)")
        == "at::fill<(int)4, at::F<int>>"
    )
    long = kernel_name("void cublasLt::splitKreduce_kernel<" + "32, " * 90 + "0>(int)")
    assert len(long) == 60
    assert long.startswith("cublasLt::splitKreduce_kernel<32, ")
    assert long.endswith("...")
