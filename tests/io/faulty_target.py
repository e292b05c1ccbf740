"""A target of fuzzing whose inputs do everything that must not be: each number from 0 to 4 has a fault of its own."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path


class Target:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "input"

    def make(self, rng: random.Random) -> None:
        states = [random.Random(f"0 headers {i}").getstate() for i in range(6)]
        self._number = states.index(rng.getstate())
        self._path.write_text(str(self._number))

    def exercise(self) -> bool:
        match self._number:
            case 0:
                raise ValueError("no typed error")
            case 1:
                os._exit(3)
            case 2:
                time.sleep(60)
            case 3:
                end = time.process_time() + 0.13
                while time.process_time() < end:
                    pass
        return self._number % 2 == 0
