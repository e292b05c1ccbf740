"""Channels that stand out: the largest magnitudes that the channels of an input reach over a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

MOST = 4
"""Channels that are told of an input."""
DIGITS = 5


class ChannelPeak(NamedTuple):
    """A channel, and its largest magnitude."""

    channel: int
    value: float


@dataclass(frozen=True)
class OutlierChannels:
    """The largest magnitudes of an input's channels, or of all experts' together.

    size     channels
    median   of the channels' largest magnitudes
    largest  the channels with the largest ones, and these: at most MOST, the largest first
    """

    size: int
    median: float
    largest: tuple[ChannelPeak, ...]

    @property
    def peak(self) -> float:
        """How many times the median the largest channel reaches; 0 where all are 0."""
        top = self.largest[0][1] if self.largest else 0.0
        return top / self.median if self.median else float("inf") if top else 0.0


def channels(absmax: npt.ArrayLike) -> OutlierChannels:
    """The channels that stand out, by max |x| of each channel: [K], or [experts, K]."""
    values = np.asarray(absmax, np.float64)
    values = values.reshape(-1, values.shape[-1]).max(axis=0)
    first = np.argsort(-values, kind="stable")[:MOST]
    largest = tuple(ChannelPeak(int(at), _rounded(values[at])) for at in first)
    return OutlierChannels(len(values), _rounded(np.median(values)), largest)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
