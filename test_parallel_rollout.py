"""Sequential and parallel rollouts side by side: python test_parallel_rollout.py --config-name base-parallel

Speed, consistency (identical records), error handling (injected failures) and metrics (pass@k included), as a table and
a picture; exit code 1 if the two disagree. The same as `headrace agents compare`.
"""

import sys

from headrace.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["agents", "compare", *sys.argv[1:]]))
