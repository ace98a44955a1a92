"""Operations on batches, episodes, minibatches, shards and estimates of returns."""

from __future__ import annotations

from typing import Any

import numpy as np

from hashed.entries import Results, entry, transitions

NOT_NUMBERS = ("infos", "eps_id", "agent_id", "module_id")


def columns(batch: Any) -> dict[str, Any]:
    """Return the columns of a batch that hold numbers."""
    return {name: column for name, column in batch.items() if name not in NOT_NUMBERS}


@entry("data")
def batches() -> Results:
    """Operations on `SampleBatch`."""
    from lockstep import SampleBatch
    from lockstep.data import concat_samples

    batch = transitions(False)
    sequences = SampleBatch(obs=np.arange(20.0).reshape(10, 2), seq_lens=np.array([3, 5, 2]), actions=np.arange(10))
    return {
        "concat": dict(concat_samples([batch[:100], batch[200:]])),
        "shuffle": dict(batch.copy().shuffle(np.random.default_rng(1))),
        "split": [dict(part) for part in batch.split_by_episode()],
        "slices": [dict(part) for part in batch.timeslices(size=100)],
        "steps": dict(batch[10:200:7]),
        "padded": dict(sequences.copy().right_zero_pad(6)),
        "unpadded": dict(sequences.copy().right_zero_pad(6).unpad()),
        "slice": dict(sequences.slice(3, 8)),
    }


@entry("data")
def episodes() -> Results:
    """Operations on `SingleAgentEpisode` and `MultiAgentEpisode`."""
    from lockstep.data import SingleAgentEpisode

    rng = np.random.default_rng(2)
    episode = SingleAgentEpisode(id_="a")
    episode.add_env_reset(rng.normal(size=3).astype(np.float32), {"start": 1})
    for step in range(30):
        obs = rng.normal(size=3).astype(np.float32)
        extra = {"action_logp": rng.normal()}
        episode.add_env_step(obs, int(rng.integers(3)), float(step), {"t": step}, extra_model_outputs=extra)
    successor = episode.cut(len_lookback_buffer=4)
    successor.add_env_step(np.ones(3, np.float32), 1, 2.0, extra_model_outputs={"action_logp": 0.5}, terminated=True)
    several = game_episode()
    parts = several.get_sample_batch().policy_batches
    return {
        "batch": columns(episode.to_numpy().get_sample_batch()),
        "slice": columns(episode[5:12].get_sample_batch()),
        "lookback": successor.get_observations([-1, -2], neg_index_as_lookback=True),
        "actions": successor.get_actions(slice(-3, None), fill=0),
        "joined": columns(episode.concat_episode(successor) or episode.get_sample_batch()),
        "several": {module_id: columns(part) for module_id, part in parts.items()},
        "cut": [own.get_rewards() for own in several.cut(len_lookback_buffer=2).agent_episodes.values()],
    }


def game_episode() -> Any:
    """Return an episode of two agents, of which one acts in every third step only."""
    from lockstep.data import MultiAgentEpisode

    several = MultiAgentEpisode(id_="m")
    several.add_env_reset({"x": np.zeros(2), "y": np.ones(2)})
    rng = np.random.default_rng(3)
    for step in range(10):
        acting = ["x"] if step % 3 else ["x", "y"]
        seen = ["x"] if (step + 1) % 3 else ["x", "y"]
        several.add_env_step(
            {agent: rng.normal(size=2) for agent in seen},
            dict.fromkeys(acting, step),
            {agent: float(step) for agent in ("x", "y")},
        )
    return several


@entry("data")
def minibatches() -> Results:
    """Row numbers of minibatches, and shards of batches and episodes."""
    from lockstep.data import minibatch_indices, multi_minibatch_indices, shard_batch, shard_episodes

    def generator() -> np.random.Generator:
        return np.random.default_rng(4)

    from lockstep.data import SingleAgentEpisode

    own = [
        SingleAgentEpisode(
            observations=np.arange(length + 1.0).reshape(-1, 1), actions=np.arange(length), rewards=np.ones(length)
        )
        for length in (3, 19, 4)
    ]
    two_modules = {"a": 30, "b": 7}
    return {
        "in order": [*minibatch_indices(50, 16, 3)],
        "shuffled": [*minibatch_indices(50, 16, 3, True, generator())],
        "several": [*multi_minibatch_indices(two_modules, 8, 2, True, generator())],
        "batch shards": [dict(part) for part in shard_batch(transitions(False), 3)],
        "episode shards": [[each.get_rewards() for each in part] for part in shard_episodes(own, 2)],
    }


@entry("data")
def offline_minibatches() -> Results:
    """Minibatches of recorded rows, in memory and on disk."""
    import tempfile
    from pathlib import Path

    from lockstep.data import OfflineDataset, write_rows

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        write_rows(path, transitions(True))
        dataset = OfflineDataset(path)
        drawn = iter(dataset.minibatches(16, seed=3))
        found["drawn"] = [columns(next(drawn)) for _ in range(8)]
        found["rows"] = columns(dataset.take_rows(np.arange(5, 60, 7)))
    return found


@entry("data")
def returns() -> Results:
    """Estimates of returns and advantages."""
    from lockstep.ops import discounted_returns, gae, lambda_returns, n_step_returns, vtrace

    rng = np.random.default_rng(6)
    shape = (20, 3)
    rewards, values, next_values = rng.normal(size=(3, *shape)).astype(np.float32)
    ends = rng.random((2, *shape)) < 0.1
    terminateds, truncateds = ends[0], ends[1] & ~ends[0]
    given = (rewards, values, next_values, terminateds, truncateds)
    found: dict[str, Any] = {"gae": gae(*given, gamma=0.95, lambda_=0.9)}
    flags = {"terminateds": terminateds, "truncateds": truncateds}
    found["lambda"] = lambda_returns(rewards, next_values, **flags, gamma=0.95, lambda_=0.9)
    found["n_step"] = n_step_returns(rewards, next_values, **flags, gamma=0.95, n_step=3)
    found["discounted"] = discounted_returns(rewards, next_values, **flags, gamma=0.9)
    found["vtrace"] = vtrace(rng.normal(size=shape).astype(np.float32) * 0.1, *given, gamma=0.95)
    return found
