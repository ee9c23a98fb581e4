"""The two clocks of the house, in one place so that tests can hand in their own.

`now_ns` is monotonic and comparable between processes of one machine; `wall_time` is only ever printed.
"""

from __future__ import annotations

import time

now_ns = time.monotonic_ns
now_s = time.monotonic
wall_time = time.time
