"""How long a test waits until it fails.

To wait for a condition takes as long as the condition does, so there is no need to be mean: the
machine may be several times slower than the one a test was written on, and busy with other things.
What is waited for in vain, to see that it does not come, is another thing and short.
"""

from __future__ import annotations

from typing import Final

PATIENCE_S: Final = 120
"""For a condition, an answer, or the end of a thread or of a process that has been told to end."""
PROGRAM_S: Final = 600
"""For a program that the test runs, such as a job of Spark."""
