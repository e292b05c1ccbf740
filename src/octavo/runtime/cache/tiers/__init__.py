"""Prefixes that last: pages of the prefix cache, and what layers with states or windows keep, beside the device's.

    Scheduler ---> PrefixTiers.keep ---> a thread ===> DiskTier, a folder of files    back: Restore, in threads, into
    PrefixTree ---> PrefixTiers.evicted ---> HostTier, page-locked memory             pages of the tree again

Begin with `prefix_tiers.py`. An `Entry` is what is kept, by the tokens that lead to it; `entry_file.py` has its bytes.
"""
