"""Contract, section 4: how a `SingleAgentEpisode` is cut, joined, described and restored."""

import copy
import pickle
import threading

import numpy as np
import pytest
from episode_makers import given, grown, readable
from gymnasium import spaces

from lockstep.data import SampleBatch, SingleAgentEpisode
from lockstep.data.trees import trees_equal


def assert_same(first, second):
    assert trees_equal(readable(first), readable(second))


# ---- pieces ----


def test_cut_is_the_successor():
    episode = grown(5)
    episode.custom_data["k"] = 1
    nothing, some, most = episode.cut(), episode.cut(2), episode.cut(99)
    assert (nothing.id_, nothing.t_started, nothing.t, len(nothing)) == ("e", 5, 5, 0)
    assert nothing.get_observations().tolist() == [[5, 50]]
    assert nothing.get_infos() == [{"at": 5}]
    assert nothing.custom_data == {"k": 1}
    assert some.get_actions(slice(-2, None), neg_index_as_lookback=True).tolist() == [3, 4]
    assert some.get_observations(-2, neg_index_as_lookback=True).tolist() == [3, 30]
    assert most.len_lookback_buffer == 5


@pytest.mark.parametrize("make", [SingleAgentEpisode.cut, lambda e: e[1:3], lambda e: e[4], lambda e: e[:]])
def test_pieces_share_no_custom_data_and_no_info_with_their_source(make):
    episode = grown(5)
    episode.custom_data["seen"] = {"rooms": [1]}
    part = make(episode)
    part.custom_data["seen"]["rooms"].append(2)
    part.get_infos(-1)["at"] = "elsewhere"
    assert episode.custom_data == {"seen": {"rooms": [1]}}
    assert episode.get_infos() == [{"at": t} for t in range(6)]


def test_what_cannot_be_copied_is_shared_by_pieces():
    lock = threading.Lock()
    episode = SingleAgentEpisode(
        observations=[0, 1, 2], actions=[0, 1], rewards=[1.0, 1.0], infos=[{"lock": lock, "at": [t]} for t in range(3)]
    )
    episode.custom_data["lock"] = lock
    part = episode[1:2]
    part.get_infos(0)["at"].append(9)
    assert part.get_infos(0)["lock"] is part.custom_data["lock"] is lock
    assert episode.get_infos(1)["at"] == [1]


def test_cut_and_states_have_arrays_of_their_own():
    episode = grown(5)
    before = [column.copy() for column in (episode.get_observations(), episode.get_actions(), episode.get_rewards())]
    successor, state = episode.cut(3), episode.get_state()
    state["custom_data"]["new"] = state["infos"][2]["new"] = 1
    for column in (state["observations"], state["actions"], state["rewards"]):
        column[...] = -1
    look_back = {"indices": slice(-3, None), "neg_index_as_lookback": True}
    for read in (successor.get_observations, successor.get_actions, successor.get_rewards):
        read(**look_back)[...] = -1
    after = episode.get_observations(), episode.get_actions(), episode.get_rewards()
    for one, other in zip(after, before):
        np.testing.assert_array_equal(one, other)
    assert episode.custom_data == {}
    assert episode.get_infos(2) == {"at": 2}
    restored = SingleAgentEpisode.from_state({**episode.get_state(), "custom_data": (data := {"k": [1]})})
    restored.custom_data["k"].append(2)
    assert data == {"k": [1]}


def test_slice_moves_t_started_and_is_done_only_at_the_end():
    episode = grown(5, terminated=True)
    part = episode[1:3]
    assert (part.id_, part.t_started, part.t, len(part), part.is_done) == ("e", 1, 3, 2, False)
    assert part.get_observations()[:, 0].tolist() == [1, 2, 3]
    assert part.get_infos() == [{"at": 1}, {"at": 2}, {"at": 3}]
    assert episode[3:].is_terminated
    assert episode[-2:].t_started == 3
    assert episode[-1].t_started == 4
    assert episode[3].get_actions().tolist() == [3]
    backwards = episode[4:2]
    assert (len(backwards), backwards.is_done, backwards.get_observations()[:, 0].tolist()) == (0, False, [4])
    assert episode[5:5].is_done
    assert len(episode[0:0]) == 0
    assert np.shares_memory(part.get_rewards(), episode.get_rewards())


def test_slice_looks_back_as_far_as_the_episode_or_as_told():
    episode = given(5, lookback=2, t_started=10)
    assert episode[0:2].len_lookback_buffer == 2
    assert episode.slice(slice(1, 3), len_lookback_buffer=0).len_lookback_buffer == 0
    part = episode.slice(slice(1, 3), len_lookback_buffer=9)
    assert part.len_lookback_buffer == 3
    assert part.get_actions(slice(-3, None), neg_index_as_lookback=True).tolist() == [0, 1, 2, 3, 4]
    assert part.t_started == 11


def test_concat_onto_a_cut_before_any_step():
    head = grown(3)
    tail = head.cut()
    tail.add_env_step(np.array([9, 9], np.float32), 5, 1.0, extra_model_outputs={"w": 1.0})
    start = SingleAgentEpisode("e", observations=[np.array([3, 30], np.float32)], t_started=3)
    start.concat_episode(tail[0:1])
    assert start.get_actions().tolist() == [5]
    with pytest.raises(ValueError, match="extra model outputs differ"):
        head.concat_episode(tail)


# ---- other forms ----


def test_get_data_dict_and_get_sample_batch():
    data = grown(3, terminated=True).get_data_dict()
    assert list(data)[:9] == [
        *("obs", "new_obs", "actions", "rewards", "infos", "terminateds", "truncateds", "t", "eps_id")
    ]
    assert data["obs"][:, 0].tolist() == [0, 1, 2]
    assert data["new_obs"][:, 0].tolist() == [1, 2, 3]
    assert data["terminateds"].tolist() == [False, False, True]
    assert data["truncateds"].tolist() == [False, False, False]
    assert data["t"].tolist() == [0, 1, 2]
    assert data["eps_id"].tolist() == ["e"] * 3
    assert data["v"].tolist() == [0, 100, 200]
    assert data["infos"][0] == {"at": 1}
    batch = given(2, lookback=3, t_started=4).get_sample_batch()
    assert isinstance(batch, SampleBatch)
    assert batch["obs"].tolist() == [3, 4]
    assert batch["t"].tolist() == [4, 5]
    assert len(SingleAgentEpisode(observations=[1]).get_sample_batch()) == 0


def test_return_steps_and_duration_leave_lookback_out():
    episode = given(2, lookback=2)
    assert episode.get_return() == 1.0 + 1.5
    assert episode.env_steps() == episode.agent_steps() == 2
    assert grown(3).get_duration_s() > 0
    assert episode.get_duration_s() == 0


def test_state_round_trip_is_exact():
    episode = SingleAgentEpisode(
        "e",
        observations=[{"x": np.zeros(2, np.float32), "n": i} for i in range(4)],
        actions=[0, 1, 2],
        rewards=[1.0, 2.0, 3.0],
        infos=[{"i": i} for i in range(4)],
        observation_space=spaces.Dict(x=spaces.Box(-1, 1, (2,)), n=spaces.Tuple([spaces.Discrete(4, start=1)])),
        action_space=spaces.MultiDiscrete([2, 3]),
        truncated=True,
        t_started=6,
        len_lookback_buffer=1,
        agent_id="a",
        module_id="m",
        multi_agent_episode_id="w",
    )
    episode.custom_data["k"] = [1]
    state = episode.get_state()
    back = SingleAgentEpisode.from_state(state)
    assert_same(episode, back)
    assert back.observation_space == episode.observation_space
    assert back.action_space == episode.action_space
    assert back.multi_agent_episode_id == "w"
    state["rewards"][0] = 99
    assert episode.get_rewards().tolist() == [2, 3]
    running = grown(3)
    again = SingleAgentEpisode.from_state(running.get_state())
    assert again.get_duration_s() == running.get_duration_s()
    again.add_env_step(np.zeros(2, np.float32), 0, 0.0, extra_model_outputs={"v": 1.0})
    assert len(again) == 4
    empty = SingleAgentEpisode("x")
    assert_same(empty, SingleAgentEpisode.from_state(empty.get_state()))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda episode: pickle.loads(pickle.dumps(episode))])
def test_an_episode_travels(duplicate):
    for episode in (grown(3), grown(4, terminated=True).to_numpy()[1:], given(3, lookback=1)):
        assert_same(episode, duplicate(episode))


def test_from_sample_batch_gives_the_episode_back():
    episode = grown(4, terminated=True)
    back = SingleAgentEpisode.from_sample_batch(episode.get_sample_batch())
    assert back.get_infos() == [{}, *episode.get_infos(slice(1, None))]
    back._infos = episode.get_infos()
    assert_same(episode, back)
    part = SingleAgentEpisode.from_sample_batch(episode.get_sample_batch().to_torch()[1:3])
    assert (part.t_started, part.t, part.is_done) == (1, 3, False)


def test_repr_tells_id_steps_and_end():
    assert repr(grown(3)[1:]) == "SingleAgentEpisode('e', t=1..3, open)"
    assert "terminated" in repr(grown(2, terminated=True))
    assert "truncated, agent 'a'" in repr(given(1, truncated=True, agent_id="a"))
