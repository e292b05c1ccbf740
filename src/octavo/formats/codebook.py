"""Codebooks: formats that store, in place of a code for each value, the index of a codebook entry for each 8 or 4.

An entry says how large its values are, each one of four or eight sizes. A bit for each value lies beside the index: its
sign; or, where all 8 values share it (IQ1), a shift. Size and sign together are the code:

    q = size | sign << bits                 size of `bits` bits (2 or 3)

so the row's table has first the values without a sign, then those with one. The codebooks are ggml's, in ascending
order.
"""

from __future__ import annotations

import zlib
from base64 import b85decode
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.errors import QuantFormatError
from octavo.formats.array_like import look_up

U8 = npt.NDArray[np.uint8]
AnyArray = npt.NDArray[Any]

SIGNED = 8  # values whose signs fill a byte


@dataclass(frozen=True)
class Codebook:
    """A list of vectors of sizes.

    name    for messages and comparisons; two codebooks of one name are the same
    stored  the difference of each entry's key to the one before: 16-bit words, compressed, as text
    width   values of an entry
    bits    of a size
    shared  the values of an entry share one sign bit, which shifts them
    even    an even number of eight signs are set, so that seven are stored
    """

    name: str
    stored: str
    width: int
    bits: int
    shared: bool = False
    even: bool = False

    def __hash__(self) -> int:
        return hash(self.name)

    @cached_property
    def keys(self) -> npt.NDArray[np.uint16]:
        """The sizes of each entry in one word, the first value's in the lowest bits: uint16 [entries]."""
        steps = np.frombuffer(zlib.decompress(b85decode(self.stored)), "<u2")
        return np.cumsum(steps, dtype=np.uint16)

    @cached_property
    def entries(self) -> U8:
        """Sizes, uint8 [entries, width]."""
        shifts = self.bits * np.arange(self.width, dtype=np.uint16)
        sizes: U8 = ((self.keys[:, None] >> shifts) & ((1 << self.bits) - 1)).astype(np.uint8)
        return sizes

    @cached_property
    def _index_of_key(self) -> npt.NDArray[np.int16]:
        """The index of the entry with a key, -1 where there is none: int16 [keys]."""
        index = np.full(1 << self.bits * self.width, -1, np.int16)
        index[self.keys] = np.arange(len(self.keys), dtype=np.int16)
        return index

    def codes(self, index: AnyArray, signs: AnyArray) -> U8:
        """Codes of all values, uint8 [..., K], from indices of entries [..., K / width] and signs [..., K / 8]."""
        q: U8 = look_up(self.entries, index).reshape(*index.shape[:-1], -1)
        q |= spread(signs) << np.uint8(self.bits)
        return q

    def indices(self, q: U8) -> tuple[npt.NDArray[np.uint16], U8]:
        """The inverse of `codes`. Raises QuantFormatError for codes and signs that can't be stored."""
        sizes = (q & np.uint8((1 << self.bits) - 1)).astype(np.uint16)
        sizes = sizes.reshape(*q.shape[:-1], -1, self.width)
        shifts = self.bits * np.arange(self.width, dtype=np.uint16)
        index = self._index_of_key[np.bitwise_or.reduce(sizes << shifts, axis=-1)]
        signs = gather(q >> np.uint8(self.bits))
        if index.size and index.min() < 0:
            raise QuantFormatError(f"codes that are not in the codebook {self.name}")
        if self.shared and not np.isin(signs, (0, 255)).all():
            raise QuantFormatError(f"shifts that differ within an entry of codebook {self.name}")
        if self.even and parity(signs).any():
            raise QuantFormatError(f"an odd number of negative values among eight (even in codebook {self.name})")
        found: npt.NDArray[np.uint16] = index.view(np.uint16)
        return found, signs


def spread(signs: AnyArray) -> U8:
    """Bytes [..., n] as bits, the lowest first: uint8 [..., 8 n]."""
    bits: U8 = np.unpackbits(signs.view(np.uint8), axis=-1, bitorder="little")
    return bits


def gather(bits: AnyArray) -> U8:
    """The inverse of `spread`."""
    signs: U8 = np.packbits(bits, axis=-1, bitorder="little")
    return signs


def parity(signs: AnyArray) -> U8:
    """1 where an odd number of a byte's bits is set."""
    odd: U8 = (signs ^ (signs >> np.uint8(4))).astype(np.uint8)
    odd ^= odd >> np.uint8(2)
    odd ^= odd >> np.uint8(1)
    odd &= np.uint8(1)
    return odd


def completed(seven: AnyArray) -> U8:
    """Eight signs of which seven are given; the eighth makes an even number negative."""
    signs: U8 = (seven & 127).astype(np.uint8)
    signs |= parity(signs) << np.uint8(7)
    return signs


_IQ1 = (
    "c-oCujc(&M3>IZ6c4}XLuysxoU(*5|+U*W|o!*)NJz$6K)~(nx?9InN(UP6)h9ZqEQ55-+{Kz=xU4?(%)h@UezZdw~xQ^G(@JUu$+k0}LyA?jQZg"
    "3HwmiURNgVw!!Z|8Tj^Q61Mx9ECZp_>E#m$%<RP7Wy5q0|Z9@{ynSd?VnVNc6ZH@eJsC#X7{B-kqaP@hk2AiP8`F-KkWAt7QAY)<(Sfkgf3`3Oha"
    "1qK*M20B@6(2gRm4>U)E-8?$uWeTk6itoUw0mb5>pbYL8O=B;2qC>DUL361Es?vyoE?#&{)&@=RYf}gELYY%i|tB5vueuMV`$8^L|&JG;!VCdIs="
    "dYFt^O(q5o7o7NWY6~i%jQu9MyJZ+pDc=Qot>%GR<gXZ^8>EZ`x#1qg~*we@Qc}9-ZJ3=GsUYH0dv`#*P}g=v2FOB_DIub_YTqa?s^iPlw%RKy~I"
    "2x1eY=^rn@QAI<_QgtP*Nllw5Fx_k82DiX-n0v%MXhX_jt_sCr(J8_A+C_)OOIMJ|f$t;OGK<x`AWe(SV;TaLztGwsB^9IP-xJbC_uem`@}$lF`J"
    "x3d_D$E0~TIW>BGpkgnjmha3{vH2JFG%~Nr4dP|WuuAi#&f?!%K1&6OHQ;`;N*d6oirFi=8{ECX+WH>RI-h83HG{k&T${GWeR43XrO3QFzNai7vz"
    "}J24&<!Z{K#C}W>FI!PJ9SjIfBs@$_fLEU(e9-N{hKzD>}=fcD&|d;5=Dqeu&JPt*;A)@|saYhI`WZhOzM$c|!67;TUrsisnNs{G~J3`ki=wUoe$"
    "eK|V;VOH`AMzBoaMh|WA7k6M*t%k?B?WYdk-Gof+fJ_DEziCZZ6Q5YtVEEK5qcp}e7i96YmBMV1aw)Af9?ey+mV>I0v^X*aB{Dgg{x>v@~Q1mKab"
    "dW2}16d1PpJ`<WBl3jp5-UBgC-F$^kQ_}ce5jr}&bx0%eZ^JNWOsDPPyzWqaxVa735lghEUm7WW<S~aC63J7S@tFVT)9i?!x<BGj7g<^EU4YIw#K"
    "^~n-jkB|9j2^>5z^4QRkPx02Eunt<R>uX_wuqoHr~IPwcZUTVX9uIjG7q;=RT{*eoFkJaKPm`7Y3^&7<cTPr|_~e|n8+!0&*bNYpMgk`41tjeU2g"
    "NF)~OHD`Us3R15tzNOU~42+z2KdHv3Yy;f;Px;=?JzY*aO>6z4J31eF%du!&=b4MWMzlRTE8c7Wo9liBnKIvTZAffB&~$@nEcI0Kf7$~^uFGeXQ="
    "W}STV=ut%8!Bj>Jl;8&-!<7b1!v<{s0cC^W<}vw>rG#NFJM&N&e@#&e(CpfbEUeAt>uNMHedPyxKA&+KihRddpF+vVOKVzqS*sDxUbg`_6rW)R|~"
    "~jZY;HiGI<YI&#DPVmjkC%rNjjyU<D_n=|~vYWh(tfvR|sF;nX8<ky;KN#ITbP8ewq7n%c6ry9y2s)QSxtDXxi#@Ts&fKk%4*xPR|sjp|8g3b+9;"
    "qg1`h_CTjCJ?*L^GkSHto^7+COd9fj^6)Z=>>O;Z%vASL#MyL!t9sD;QpE9LOBt1#e60`;LV~D*y~_yNa){j{v`H9hJ=!7?*GI0Go8{0eoE|hkGr"
    "q#kd}EZ{R?w{Q3U"
)
_IQ2_XXS = (
    "c-l>o%_~G<6vlt=9q$<5%`|34k?SKV7I(u;lA4l4*+^L^!%A!<ikg~|KVnKTNhv9mg%S%=w)R%GQp&<c@!UIC>2}Y#=bYy}=Q-zsLqv~5t!$%wRB"
    "t-?j!`Gyt~f@9#UN)HV4Nf?%DNON89y5jaZ%yA0$h@XFz%yAd~vol!Belxg0Uf{Eu1+_kx}kR@NTPoox=47^VWjt9`#~67W<9yW2<VGGE*Fo;w@0"
    "&k*B1}K9`(ZU-bwbVsbc<y_Ww8aVbuP?P1Vtn+%&=nA_I>8^>tYyy_<FQj%A{mBtowsw5}}8Vb_Cqv!?WRCz5o%!{Lo2c}uKK3`0G7i5c!vCO+PI"
    "J(6bvz(c@^3&>n;@kTD{n}_wy^~aQqXr>2xO48({w`Um*wxMYdFI3X{R@{06U?xsy33JqOq2Pv{%zY?Qg)R`U96jKnv54Y<TX0O5PO=RadI_R`~s"
    "sbK5z"
)
_IQ2_XS = (
    "c-noE!An$O6vcnv8=k#nm>L<!j4_`kgAv8U!9{H(6H+7>fsG^TI4-n^Bnq5}S>(QT5JHG8T86tI2v@CI)SuwmUCVIc`M!BmGsBDw@6EmU-Fxo2=U"
    "(tg=;v|4y%YMcM+V#ci+XZRwy!UhwwyXjb5@eTAtiay5*=}GpPTejHRpHolrz#5Bh4_o&dPFC->0dWW;V7<E@m=LD6FFMBJL?tRU}|r(TaaQi==V"
    "}y0VDKDEcgB8wqvav}akxGQ!-AD~{w%^3_<+<F>pB-YBcW2}>0H)+ri&LZ`a50*2UQlr_y&awvmhc%-?~Jm87EcPyJg2wC+hNSz<be9aX$=ux!V-"
    "+khC?K;owi$R$>{{h?EwBE;mZJs;JPQT2i6uK+#&@@mkk>aCR7u*bcocf(ED2kP{SL5-W86g!-;|4-?3&keTgaIF<z#Yma!!4oDsWPvc`=;hM7^N"
    "8Fx^7|2<e6pLWclm3lv(wj@{MB_EUW%b7Z3@{;uZhxJFT9d)qh?7HQA+js|j%pxuH9o(cWJ1i1)_sZPL}}wY!{IQ+|p*N-?*rZlR{VPV+~KRE^J+"
    "Q{gvTs`<iYZ;?;@WS)KL)Z_Ns%MORic_@8tY?R0D1{e8d3cS>GHfohw;jQcgJzLWC49CYy3j"
)
_IQ2_S = (
    "c-oy+&ubGw6#k}V8Z!(H9=dj8Nc>SnDurM{s)z><Lhx3Qv{G30AQf%NMGB>t2>u7sTh9e=dh;OUPxH&nY%;UEv&OQ_%+A|4-@Ny|9}6sDna>g$W?"
    "trMC23*bbo(3LUPJO3R%mt#ryA6=nA+?$$3cLkh&<PQXpj|Fk%@Xcik5eR8=KxezNU<L*a>WUSFk9T-!}6|lzo(*7e1;)3yEP$&*Z%Tv4s(?^L-U"
    "7)VPlU4rP_+?Gm$oyi~2%@yPmqA8|<Ijdr$A*R80}|HouZ!*N<-xsOc@MHtgw>Eu}jR*ENhZx9mvkg-_Vc(iDZ;^W6iyL)tCpTfF{P@B6Qu3hYlV"
    "#Y1zSwf7l^D)Jx@OgfUTh5Yi_`(}sV1t+^YaxqyY}+-ppi3FijMPhA?DDMDCLaRk#Z~ick*rWIMxzQw`?!Y#VRJQhej|D|!6)}Nk#!YSUnf_~>6B"
    "iL#iFOHtRK%ZXd=qr75hh?Srgv&8F#TSZGQ;6(!Y61$&=;l6??IaSkfnQmz8>q?>G`u$!l!mkdk$gAzPax+s@J{bwcfRo@z$69Ct%gyN#LTXNk$)"
    "!aORR%px)gDsUGW*JsSJKX}Zu4_J|z^zGBpXwOj;F5OKZ@J7_<;U2$acu5{FL>}Fb^mah`b1{<nAMu*2iCw;()4mI?wkPeG*><EU;s7^U^(l75Z_"
    "&jme&G?mQX}D5!CTzHUl`O*2m"
)
_IQ3_XXS = (
    "c-l>nT~C8R5JfK_-_RlyslnFP+N2s2qdxnlzBT^;f8&`cA%^TOJ9FmFos~kqn02LqJyot-zg?m!f03W1DrFO$dc>$gi58rRSC=}d(+a}q(BqvNeP"
    "|$Rnmu$gYhO;Q3$*r##a`!pss|K8YI4=om1rDvVsFu{bSAU=r(|Ap-MeNqDU3c@=C_N>n!U!4&Gy3Dqq62+z<#@%L3i_vJ#0L?C^<*(R+DM8#K|X"
    "n2a(`tq<c%|#9BcwU@Ll@xh?72KwWDKbtG$@dvcMhzteZXX#zDs*ld}ew3+74i2mZ($i^!+5L=WUsrf<es5d%W-d-TUNdsT#8DFt(@NE6|MD2}Qe"
    "d!PKX%Cq"
)
_IQ3_S = (
    "c-mD{Yfr;440PH&+9q9Bw!y|g0u5<`?-T$3pK-o8(@>SfcKkSBToH$_myV~y*-`cqB|z%UqH==P-~Bwj)Z(cnnXw1NIa(a=dirR#mT87GK=-sH)`"
    "*OlnWvXbO|6mpA`|q&+hD#6q|6K(S)nE7Za#`+|A4b~ReR7F%|8-r?NOr=t0mq??33~04avmSSg80MBUeb-SejX-a&macxyY5>>HYc6Xn{?mhkq!"
    "$J1S=!ReiR%(iM%{x@(OiwTZbC@q1#fY<l$Dsz!8}v5&AP-km4~ShPmQKG1uTH*)ETJHzs7csfS3+2~m>GOA-HMY|=2dQ;!<L~erhHu6+71LsYrX"
    "ypsf%$<o~g0{o=VeDqP*qhY;6F#jJtajv-MB-L-fjk7ffbvx67wnZTIG>Qw0a+o^Pe>~wkDM@N>BL-$veqm1Z&aQ~;8G?hR-NSqr$en7XR*mCxGn"
    "O9wL{b|JK5lDGkXC3EpolfGtfl#ty~tOzQK3F>Vaer-?Mxp=0-H5Wzb5RA;Yu7o3(#V`8;tlHppH7>ZAO?_X9|;@&~>@55W"
)
IQ1 = Codebook("IQ1", _IQ1, width=8, bits=2, shared=True)
IQ2_XXS = Codebook("IQ2_XXS", _IQ2_XXS, width=8, bits=2, even=True)
IQ2_XS = Codebook("IQ2_XS", _IQ2_XS, width=8, bits=2, even=True)
IQ2_S = Codebook("IQ2_S", _IQ2_S, width=8, bits=2)
IQ3_XXS = Codebook("IQ3_XXS", _IQ3_XXS, width=4, bits=3, even=True)
IQ3_S = Codebook("IQ3_S", _IQ3_S, width=4, bits=3)
