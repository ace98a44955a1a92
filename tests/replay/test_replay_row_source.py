"""`RowSource` and `TrainingBuffer`: trainers and updates ask all buffers in the same way."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lockstep.data import SampleBatch
from lockstep.data.columns import DEFAULT_MODULE_ID
from lockstep.data.rollout import EpisodeStore, RolloutStore
from lockstep.data.tensor_rollout import TensorRollout
from lockstep.data.training_buffer import TrainingBuffer
from lockstep.replay import MultiAgentReplayBuffer, OfflineRows, PrioritizedReplayBuffer, ReplayBuffer, TensorReplay
from lockstep.state.streams import RandomStreams

ROWS = 6
SPACES = {"observation_space": spaces.Box(-1.0, 1.0, (1,)), "action_space": spaces.Discrete(2)}


def batch():
    rows = np.arange(ROWS, dtype=np.float32)
    ends = rows == ROWS - 1
    return SampleBatch(
        {
            "obs": rows[:, None],
            "new_obs": rows[:, None] + 1,
            "actions": np.zeros(ROWS, np.int64),
            "rewards": rows,
            "terminateds": ends,
            "truncateds": ~ends & False,
        }
    )


def of_agents():
    buffer = MultiAgentReplayBuffer({"a": [0], "b": [1]}, 1, lambda module_id, number: ReplayBuffer(8, **SPACES))
    buffer.buffers["a"].extend(batch())
    return buffer


SOURCES = {
    "buffer": lambda: ReplayBuffer.from_batch(batch()),
    "prioritized": lambda: ReplayBuffer.from_batch(batch(), priorities={"beta": 0.4}),
    "offline rows": lambda: OfflineRows(batch()),
    "of agents": of_agents,
}


@pytest.mark.parametrize("name", SOURCES)
def test_samples_come_by_module_and_0_means_all_rows(name):
    source = SOURCES[name]()
    module_id = "a" if source.is_by_module else DEFAULT_MODULE_ID
    assert module_id in source.by_module()
    assert list(source.draw(4)) == [module_id]  # of a module without rows there is no sample
    assert len(source.draw(4)[module_id]) == 4
    assert sorted(source.draw(0)[module_id]["rewards"]) == list(range(ROWS))


@pytest.mark.parametrize("name", SOURCES)
def test_streams_that_are_seeded_draw_the_same_again(name):
    source = SOURCES[name]()
    drawn = []
    for _ in range(2):
        if name == "offline rows":
            source = SOURCES[name]()  # whose place among the rows is no stream
        source.seed_streams(3)
        drawn += [each["rewards"] for each in source.draw(5).values()]
    assert np.array_equal(*drawn)


def test_the_streams_of_one_module_are_not_named_after_it():
    """Runs of one module have the seeds that they always had."""
    one, several = ReplayBuffer.from_batch(batch()), of_agents()
    one.seed_streams(3)
    several.seed_streams(3)
    seeds = RandomStreams(3)
    drawn = RandomStreams(seeds.seed("replay")).numpy("sample").random(4)
    assert np.array_equal(one.streams.numpy("sample").random(4), drawn)
    drawn = RandomStreams(seeds.child("replay").seed("a")).numpy("sample").random(4)
    assert np.array_equal(several.buffers["a"].streams.numpy("sample").random(4), drawn)


def test_rows_since_a_position_are_those_added_after_it():
    buffer = ReplayBuffer(8, **SPACES)
    buffer.extend(batch())
    rows, position = buffer.rows_since(None)
    assert [list(each) for each in rows] == [list(range(ROWS))]
    buffer.extend(batch()[:1])
    rows, _ = buffer.rows_since(position)
    assert [list(each) for each in rows] == [[ROWS]]
    assert len(buffer.rows_since(np.array([99]))[0][0]) == ROWS + 1  # the position is that of another buffer


def test_buffers_without_priorities_refuse_errors():
    for name, source in SOURCES.items():
        assert source().is_prioritized == (name == "prioritized")
    with pytest.raises(ValueError, match="not prioritised"):
        OfflineRows(batch()).update_weight([0], [1.0])
    assert PrioritizedReplayBuffer(4).is_prioritized


@pytest.mark.parametrize("name", [name for name in SOURCES if name != "of agents"])
def test_drawing_continues_from_its_state_without_the_rows(name):
    source, again = SOURCES[name](), SOURCES[name]()
    source.draw(3)
    again.set_drawing_state(source.drawing_state())
    (first,), (second,) = (each.draw(3).values() for each in (source, again))
    assert first["rewards"].tolist() == second["rewards"].tolist()
    assert source.digest() == again.digest()


def test_a_sampling_state_with_other_priorities_is_refused_unchanged():
    plain, prioritized = SOURCES["buffer"](), SOURCES["prioritized"]()
    before = plain.streams.get_state()
    prioritized.draw(3)
    with pytest.raises(ValueError, match="priorities"):
        plain.set_drawing_state(prioritized.drawing_state())
    assert plain.streams.get_state() == before


def rollout_store():
    store = RolloutStore(2, 1, *SPACES.values())
    store.size = 2
    return store


ONE_ENV = torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64)
BUFFERS = {
    **SOURCES,
    "tensor replay": lambda: TensorReplay(4, *ONE_ENV),
    "rollout": rollout_store,
    "tensor rollout": lambda: TensorRollout(2, *ONE_ENV),
    "episodes": EpisodeStore,
}
REPLAYS = {"buffer": [""], "prioritized": [""], "tensor replay": [""], "of agents": ["a", "b"]}


@pytest.mark.parametrize("name", BUFFERS)
def test_every_buffer_answers_trainers(name):
    buffer = BUFFERS[name]()
    buffer.seed_streams(1)
    assert isinstance(buffer, TrainingBuffer)
    assert buffer.is_sampled == (name in SOURCES or name == "tensor replay")
    assert list(buffer.replays()) == REPLAYS.get(name, [])  # recorded rows are not saved with a run
    assert (buffer.agents is not None) == (name == "of agents")
    assert (buffer.device is not None) == name.startswith("tensor")
    assert all(isinstance(replay.drawing_options(), dict) for replay in buffer.replays().values())


def test_a_copy_of_the_episodes_of_a_rollout_does_not_change_with_them():
    store = rollout_store()
    store.rewards[:], store.terminateds[:], store.truncateds[:] = 1.0, False, False
    copied = store.episodes().copy()
    store.rewards[:] = 2.0
    assert copied.env_steps() == 2
    assert copied.store.rewards.tolist() == [[1.0], [1.0]]
    assert copied.store.observation_space is store.observation_space


def test_beta_may_follow_steps_and_changes_nothing_at_equal_chances():
    source = ReplayBuffer.from_batch(batch(), priorities={"alpha": 1.0, "beta": [[0, 0.0], [100, 1.0]]})
    source.update_weight(source.indices(), [1.0] * (ROWS - 1) + [4.0])
    with source.beta_at(0):
        assert set(source.sample(20)["weights"].tolist()) == {1.0}
    with source.beta_at(100):
        assert np.unique(source.sample(50)["weights"]) == pytest.approx([0.25, 1.0])
    for name in ("buffer", "offline rows"):
        with SOURCES[name]().beta_at(100):
            assert "weights" not in SOURCES[name]().sample(2)
