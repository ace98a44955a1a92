"""`WholeEpisodeCollector`: no episode is cut where a collect ends."""

from __future__ import annotations

from lockstep.rollout.collector import Collector
from lockstep.state.checks import check_whole
from lockstep.tracking.statistics import CollectStats


class WholeEpisodeCollector(Collector):
    """A `Collector` whose `collect(n_step=...)` gives whole episodes only, with at least `n_step` steps in all.

    Each environment plays one episode from its start to its end, then all begin again, until there are enough steps.
    Environments that are done wait for the others; what they do meanwhile is neither counted nor learned from.
    """

    def collect(
        self,
        n_step: int | None = None,
        n_episode: int | None = None,
        *,
        random: bool = False,
        reset_before_collect: bool | None = None,
    ) -> CollectStats:
        """As `Collector.collect`, but `n_step` is reached or passed by the end of an episode, never within one.

        `ValueError` for `reset_before_collect=False` with `n_step`: each collect begins new episodes.
        """
        if n_step is None or n_episode is not None:
            return super().collect(n_step, n_episode, random=random, reset_before_collect=reset_before_collect)
        if reset_before_collect is False:
            raise ValueError("reset_before_collect=False: whole episodes begin with the collect; leave it out")
        amount = check_whole("n_step", n_step, 1)
        first = 0 if self.store is None else self.store.size
        stats = CollectStats()
        try:
            while stats.n_collected_steps < amount:
                stats += super().collect(n_episode=self.num_envs, random=random)
        except BaseException:
            if self.store is not None:
                self.store.drop_after(first)
            raise
        return stats
