"""The order of QQQ's tensors, in which a GPU's lanes take their operands (https://github.com/HandH1998/QQQ).

B is int32 [K / 16, 2 N]: tiles of 16 k x 64 n in the order in which a warp's lanes take them as operands of a matrix
instruction. Lane 4 h + l holds columns h and h + 8 of each of the tile's four blocks of 16, rows 4 l to 4 l + 3, so
eight codes of each block, one word. The order within a word depends on how the kernel takes it apart, and so on the
kind of scales. Codes of channels are in two's complement, those of groups are moved up by 8.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.formats.spec import F32, AnyArray

CHANNEL_WORD = (4, 0, 5, 1, 6, 2, 7, 3)  # nibble i of a word holds code CHANNEL_WORD[i]: 4 (of columns h, h + 8) + row
GROUP_WORD = (0, 2, 4, 6, 1, 3, 5, 7)

TILES = (0, 3, 6, 1, 4, 5, 2)  # [K/16, l, row, N/64, block, h + 8?, h] -> [K/16, N/64, h, l, block, h + 8?, row]
CHANNEL_ORDER = np.array([2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)])
GROUP_ORDER = np.array([i + 8 * j for i in range(8) for j in range(8)])


def qqq_codes(
    words: AnyArray, channel: F32, groups: AnyArray | None
) -> tuple[npt.NDArray[np.int8], F32, AnyArray | None]:
    """Codes int8 [N, K] from -8 to 7, scales of rows [N] and of groups [N, K / 128], of B, s_channel and s_group.

    Scales of channels are stored a sixteenth of what they are, for codes in the high half of their bytes.
    """
    k, n = words.shape[0] * 16, words.shape[1] // 2
    order = np.argsort(CHANNEL_WORD if groups is None else GROUP_WORD)
    nibbles = (words.view(np.uint32)[..., None] >> np.arange(0, 32, 4, dtype=np.uint32))[..., order] & 15
    tiles = nibbles.astype(np.int8).reshape(k // 16, n // 64, 8, 4, 4, 2, 4)
    codes = np.ascontiguousarray(tiles.transpose(np.argsort(TILES)).reshape(k, n).T)
    scale = restored(channel, CHANNEL_ORDER)[0]
    if groups is None:
        return (codes ^ 8) - np.int8(8), scale * np.float32(16), None
    return codes - np.int8(8), scale, np.ascontiguousarray(restored(groups, GROUP_ORDER).T)


def qqq_tensors(codes: npt.NDArray[np.int8], scale: F32, groups: AnyArray | None) -> dict[str, AnyArray]:
    """B, s_channel and s_group (empty without groups) of what `qqq_codes` gives. N is a multiple of 64, K of 128."""
    n, k = codes.shape
    tiles = codes.T.reshape(k // 16, 4, 4, n // 64, 4, 2, 8).transpose(TILES)
    nibbles = (tiles & np.int8(15) if groups is None else tiles + np.int8(8)).astype(np.uint32)
    nibbles = nibbles.reshape(k // 16, 2 * n, 8)[..., list(CHANNEL_WORD if groups is None else GROUP_WORD)]
    words = np.bitwise_or.reduce(nibbles << np.arange(0, 32, 4, dtype=np.uint32), axis=-1).view(np.int32)
    channel = scale[None] / np.float32(16) if groups is None else scale[None]
    group = np.zeros(0, np.float16) if groups is None else ordered(groups.T, GROUP_ORDER)
    return {"B": words, "s_channel": ordered(channel, CHANNEL_ORDER), "s_group": group}


def ordered(x: AnyArray, order: AnyArray) -> AnyArray:
    """Columns in QQQ's order, which is one within each `len(order)`."""
    return np.ascontiguousarray(x.reshape(x.shape[0], -1, len(order))[..., order].reshape(x.shape))


def restored(x: AnyArray, order: AnyArray) -> AnyArray:
    """The inverse of `ordered`."""
    return ordered(x, np.argsort(order))
