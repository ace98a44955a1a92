"""TD3 on Pendulum-v1: Lockstep and its peers; as `sac_pendulum.py`.

python benchmarks/td3_pendulum.py                        # 5 rounds of 3,000 steps, one thread each
"""

from __future__ import annotations

from sac_pendulum import comparison
from training_comparison import main

if __name__ == "__main__":
    raise SystemExit(main(__doc__, comparison("td3")))
