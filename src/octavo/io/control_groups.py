"""Linux's control groups, of either version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[tuple[Path, bool]]:
    """The folder of each group of this process that may limit what `controller` controls, each before the group that it
    is in, and whether it is of version 2; none where there is no `root`/proc."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            top = root / "sys/fs/cgroup" / (controller if controllers else "")
            group = top / path.lstrip("/")
            for folder in (group, *group.parents):
                yield folder, not controllers
                if folder == top:
                    break
