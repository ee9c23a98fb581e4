"""The clocks of the house, in one place so that tests can hand in their own.

`now_ns` is monotonic and comparable between processes of one machine; `thread_cpu_ns` counts while the calling thread
has a core; `wall_time` is only ever printed.
"""

from __future__ import annotations

import time

now_ns = time.monotonic_ns
now_s = time.monotonic
thread_cpu_ns = time.thread_time_ns
wall_time = time.time
