"""Numbers of points from which each half of a point is looked up on its own, in a short table.

A grid's own numbers say nothing about halves: each takes a table as long as the grid. But most halves go with many
others, so numbers of a bit or two more can be chosen whose bits are of three kinds: some that the look-ups of both
halves take, some of the first half's only, and some of the last one's. `tools/point_halves.py` has found them.
"""

from __future__ import annotations

import zlib
from base64 import b85decode
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.formats.codebook import Codebook
from octavo.formats.spec import U8, AnyArray


@dataclass(frozen=True)
class Halves:
    """How the halves of points are looked up by the bits of a number.

    more         bits of a number above eight
    own          so many of the lowest bits are the first half's only; the last half's look-up takes those from bit 8 on
    first, last  bits that say which 64 entries of its table a half is among; the six lowest say which of these it is
    """

    more: int
    own: int
    first: tuple[int, ...]
    last: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, int]:
        """Entries of the two tables."""
        return 64 << len(self.first), 64 << len(self.last)

    def places(self) -> tuple[AnyArray, AnyArray]:
        """Where the halves of each number lie in the tables: two times int [numbers]."""
        numbers = np.arange(1 << (8 + self.more))
        own = (1 << self.own) - 1
        lowest = numbers, numbers & ~own | numbers >> 8 & own
        places = [low & 63 for low in lowest]
        for i, bits in enumerate((self.first, self.last)):
            for k, bit in enumerate(bits):
                places[i] |= (numbers >> bit & 1) << (6 + k)
        return places[0], places[1]


IQ1 = Halves(more=4, own=3, first=(6, 7, 11), last=(6, 7))
IQ2_S = Halves(more=4, own=4, first=(7,), last=(6,))
IQ3_S = Halves(more=2, own=2, first=(6, 7), last=(6,))
FOUND = {
    "IQ1": (
        IQ1,
        "c-k#e%gU-?6wSz}Mj0yUsG_8Lii{L(R8pdjG*r~5$WS@{qYM>ol#x<B<@r4S8SVSpm$hL8+c5jXvDxX3=8L5O4KS*<p;o(#4aW?M6Em9S"
        "cMvvStQc+&BejR+8_nKmGG8(X3gVmH5hun#^1J?koKlMw2b0wHpq{KczYf4XfVN@HZXZGEovc6|1f!XQ2qPH5^1`v*?UUo#V%@-Sf?@eX"
        "qthKt)?2OB?GMLOYTHK!grKNeqt(IrgDAr&F<tE?4QjUW6}@4*=x{WlXs+G^%(WkoquFA~@ldmc;^bNwf+S`yNUe5%IHlHGxYHv?)S4AF"
        "!;F%=JYW9&+#k=cC>zc#$qH}+peBVRE4uB+>96(r92HIX)4be+{KxbCl{DS7qqsauie}n=w6$C>2&+$cy~SyEuYg~-gSZUBI7zcdq3VWn"
        "$zE^Su+Q$FC=n%q_9{Qz$@To(y%J?bHT)pa!&_Wd@9*wp0GQ&XUpzm|tB+z>XZI&bPr)_KAFq#aP~A(Em5S+j*T?g7{y*1F(u@cI>!#&}"
        "*ZgjnwsVc*LQpNo`?<wC`w~QH^~P$l!D_V>4KpD&f};6xS+gWcQT`iu6Bq}i>vjqa#?wW3EgH?y@(fx5-iDm0-pG{|WcSyn{sqyGau}WQ"
        "l5SQl930#6sujPJ-FsQVvjr1`*%Q=H>UxwrneHvC2p04OJal@)xoBLTJz5a0C@J7Rc{n;j)F!Bvq#Nmy22b#Mf4dv-HD3II2~s{;c8Fs1"
        "UNil?)0@mMVE-0^k0j-sLQQJTa7X>$+~&1FaF##XaoQNOTh(xizY47X;s",
    ),
    "IQ2_S": (
        IQ2_S,
        "c-muNWMW}u<KPq!6cQ1YP*7xGV&&ix6cLkDP*T;<a&%!}WD$^*Qqy#B^9l-!h>T)j;Zjsm0ZKW!d3Xi{hNw6=I=Q%d09gqQjV%+VxOoNy"
        "g+?T%G&Hq#bWL2aDk(LiskN<h($pCX7cE(~Vr67hN?K-C+k`1or_EfnblD090`|kK_X>-Q0-BY{z{J5NBB`XR=IZ9@6%Z5wvEL2u03_=t"
        "PFb*MRaRqLM`zchsncf6T(EG-(iMq7+grLOPMJ1y)`CSq_W%GCe@=w",
    ),
    "IQ3_S": (
        IQ3_S,
        "c-jq+r=o)}000vp#fEK@uq?B+%wn0XrF1;Y==lAIIC<g@@<@XRG2<k~Qgvnm4%<*87G{1S5I5!otOJ=?P^6}!85HnX29itwuM@xtJCXvR"
        "hykZkAb2Ou3gd&MFf210?k*Ck&xtrgif%(5DY6r1NRnMiBPOrvAx*ApG2FHw%F8qxzn-5@ZgGBA%lng7bwh&w79{x`r`NR^#x;zlnfc-D"
        "xb=fMb#M4tL%noP+Sf1XmUnr7ZGJm0L3F%OuWF)WGL=oYMb$VF7T4#d>%Dx~f@Arq+rKZ~eaVR@t@vB~@c5}7-yhVw9`Ig`lq83^-vl{n"
        "pusFbuAW9VJ@;PQ4Wb(ouQR5mw=W>Tsqf4#T4Z|TA<9QggBWPxs+O-AaA^lP<!qkPw>n%l;)W?ttd^Hl@())pNJ#",
    ),
}
"""By the name of the grid, with the entries of both tables, one after the other, compressed, as text."""


def halves_of(grid: Codebook) -> Halves:
    """How the halves of a grid's points are looked up; by all bits where numbers are the grid's own."""
    if grid.name in FOUND:
        return FOUND[grid.name][0]
    more = (len(grid.keys) - 1).bit_length() - 8
    bits = tuple(range(6, 8 + more))
    return Halves(more, 0, bits, bits)


def tables_of(grid: Codebook) -> tuple[U8, U8]:
    """The entries of both tables, each the codes of a half, as `packed` has them."""
    if grid.name not in FOUND:
        first, last = packed(grid.entries)
        return first, last
    halves, stored = FOUND[grid.name]
    entries = np.frombuffer(zlib.decompress(b85decode(stored)), np.uint8)
    return entries[: halves.sizes[0]], entries[halves.sizes[0] :]


def numbers_of(grid: Codebook) -> npt.NDArray[np.uint16]:
    """The number of each point: uint16 [points]."""
    first, last = (table[places] for table, places in zip(tables_of(grid), halves_of(grid).places(), strict=True))
    kept = {point: number for number, point in enumerate(zip(first.tolist(), last.tolist(), strict=True))}
    return np.array([kept[point] for point in zip(*packed(grid.entries).tolist(), strict=True)], np.uint16)


def packed(points: U8) -> U8:
    """Bytes of the first half of each point's codes [points, width], then of the last: uint8 [2, points]."""
    half = points.shape[1] // 2
    shifts = (np.arange(half) * (8 // half)).astype(np.uint8)
    halves: U8 = np.bitwise_or.reduce(points.reshape(-1, 2, half) << shifts, axis=2).T
    return halves
