"""Statistics of activations: how large the numbers are that products are given and caches hold.

Comes in: vectors, counted channel by channel, or a file of them. Goes out: maxima, means and mean squares, and the
file. Begin with `channels.py`; `statistics_file.py` reads and writes, `outliers.py` names channels that stand out.
"""

from octavo.quantizers.statistics.channels import ChannelStatistics

__all__ = ["ChannelStatistics"]
