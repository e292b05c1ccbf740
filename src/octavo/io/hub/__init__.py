"""Models of the Hugging Face hub, by name: which file is meant, its download, and the hub's cache that keeps it.

    path = octavo.io.hub.pull(octavo.io.hub.parse("Qwen/Qwen3-0.6B-GGUF:Q8_0")).path

Which hub is asked, what token is sent and where the cache lies is the `huggingface_hub` package's affair, with its
environment variables (HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_OFFLINE).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.lazy import names_from

if TYPE_CHECKING:
    from octavo.io.hub.download import Pulled, pull
    from octavo.io.hub.download_cache import cached
    from octavo.io.hub.inventory import Installed, installed, remove
    from octavo.io.hub.name import HubName, parse
    from octavo.io.hub.variants import Variant

__all__ = ["HubName", "Installed", "Pulled", "Variant", "cached", "installed", "parse", "pull", "remove"]

__getattr__ = names_from(__name__, {
    "octavo.io.hub.download": ["Pulled", "pull"],
    "octavo.io.hub.download_cache": ["cached"],
    "octavo.io.hub.inventory": ["Installed", "installed", "remove"],
    "octavo.io.hub.name": ["HubName", "parse"],
    "octavo.io.hub.variants": ["Variant"],
})
