"""How often a process of ours looks for garbage that references itself.

Python looks for it after each 700 new containers that it keeps, which a server makes with every few
dozen messages, and most of what it looks at lives as long as the process. What is thrown away here
has no cycles, as a rule, and is freed without any of this.
"""

from __future__ import annotations

import gc
from typing import Final

THRESHOLDS: Final = (50_000, 20, 50)
"""New containers before the youngest are looked at, and how often that is done before the older
ones are. A connection or a task leaves a few cycles behind, so that they are some megabytes."""


def spare_collecting(*, seldom: bool = True) -> None:
    """Never look for garbage among what is there already, and seldom among the rest.

    To be called once, when a process has loaded what it needs and begins with its work.

    Args:
        seldom: False for processes that run users' code: what that leaves behind may be large, and
            how often to look for it is for users to say.
    """
    gc.collect()
    gc.freeze()
    if seldom:
        gc.set_threshold(*THRESHOLDS)
