"""What Tianshou's scripts share: its collector, which tells a clock of finished episodes."""

from __future__ import annotations

from typing import Any

from tianshou.data import Collector, CollectStats


class NotingCollector(Collector):
    """Tianshou's collector; hands the returns of finished episodes to the clock, where there is one."""

    clock: Any = None

    def collect(self, *args: Any, **kwargs: Any) -> CollectStats:
        stats = super().collect(*args, **kwargs)
        for value in stats.returns if self.clock else ():
            self.clock.episode(value)
        return stats
