"""Contract, section 4: how a `SingleAgentEpisode` grows, and the data it is made with."""

import numpy as np
import pytest
from episode_makers import given, grown

from lockstep.data import SingleAgentEpisode

# ---- growing ----


def test_a_new_episode_is_empty_with_an_id_of_its_own():
    first, second = SingleAgentEpisode(), SingleAgentEpisode()
    assert first.id_ != second.id_
    assert (len(first), first.t, first.t_started) == (0, 0, 0)
    assert (first.is_reset, first.is_done, first.is_numpy) == (False, False, False)
    assert first.custom_data == {}
    assert len(first.get_observations()) == len(first.get_actions()) == len(first.get_infos()) == 0
    assert first.get_return() == 0.0


def test_t_steps_have_t_plus_one_observations_and_infos():
    episode = grown(5)
    assert len(episode) == episode.t == 5
    assert episode.get_observations().tolist() == [[i, 10 * i] for i in range(6)]
    assert episode.get_actions().tolist() == [0, 1, 2, 3, 4]
    assert episode.get_rewards().tolist() == [0, 0.5, 1, 1.5, 2]
    assert episode.get_infos() == [{"at": i} for i in range(6)]
    assert episode.get_extra_model_outputs("v").tolist() == [0, 100, 200, 300, 400]
    assert episode.get_observations().dtype == np.float32


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_add_env_step_is_refused_when_done(end):
    episode = grown(1)
    step = {"extra_model_outputs": {"v": 0.0}}
    episode.add_env_step(np.zeros(2), 0, 0.0, **{end: True}, **step)
    assert episode.is_done
    assert (episode.is_terminated, episode.is_truncated) == (end == "terminated", end == "truncated")
    with pytest.raises(ValueError, match="ended at t=2"):
        episode.add_env_step(np.zeros(2), 0, 0.0, **step)


def test_new_extra_keys_are_refused_after_the_first_step():
    episode = grown(2)
    with pytest.raises(ValueError, match=r"keys \['w'\] at t=2, and had \['v'\] before"):
        episode.add_env_step(np.zeros(2), 0, 0.0, extra_model_outputs={"w": 1})
    with pytest.raises(ValueError, match=r"keys \[\] at t=2"):
        episode.add_env_step(np.zeros(2), 0, 0.0)
    assert len(episode) == 2
    successor = episode.cut()
    successor.add_env_step(np.zeros(2), 0, 0.0, extra_model_outputs={"w": 1})
    assert successor.get_extra_model_outputs("w").tolist() == [1]
    assert "v" not in successor.get_data_dict()
    with pytest.raises(ValueError, match="had \\['v'\\] before"):
        episode.cut(1).add_env_step(np.zeros(2), 0, 0.0, extra_model_outputs={"w": 1})


def test_reading_between_steps_changes_nothing():
    episode = SingleAgentEpisode("e")
    episode.add_env_reset({"x": np.zeros(2), "n": 0})
    seen = []
    for i in range(50):
        episode.add_env_step({"x": np.full(2, i + 1.0), "n": i + 1}, (i, [i]), float(i), extra_model_outputs={"v": i})
        seen.append(episode.get_observations(-1)["n"])
        early = episode.get_actions()
    assert seen == list(range(1, 51))
    assert early[0].tolist() == list(range(50))
    assert episode.get_observations()["x"][:, 1].tolist() == list(range(51))
    assert episode.get_extra_model_outputs("v").tolist() == list(range(50))


def test_pieces_of_a_growing_episode_grow_apart():
    episode = grown(3)
    for read_first in range(3):
        episode.get_observations(read_first)
        episode.add_env_step(np.zeros(2, np.float32), 7, 0.0, extra_model_outputs={"v": 0.0})
    part = episode[:4]
    part.add_env_step(np.ones(2, np.float32), 8, 0.0, extra_model_outputs={"v": 0.0})
    episode.add_env_step(np.zeros(2, np.float32), 9, 0.0, extra_model_outputs={"v": 0.0})
    assert part.get_actions().tolist() == [0, 1, 2, 7, 8]
    assert episode.get_actions().tolist() == [0, 1, 2, 7, 7, 7, 9]


def test_values_of_a_wider_type_and_a_wrong_shape():
    episode = SingleAgentEpisode("e")
    episode.add_env_reset(0)
    episode.add_env_step(1, 0, 1)
    assert episode.get_rewards().tolist() == [1]
    episode.add_env_step(2, 0, 2)
    assert episode.get_rewards().tolist() == [1, 2]
    episode.add_env_step(2, 0, 0.5)
    assert episode.get_rewards().tolist() == [1.0, 2.0, 0.5]
    episode.add_env_step(np.zeros(3), 0, 0.5)
    with pytest.raises(ValueError, match=r"observations have shape \(3,\), the ones before \(\)"):
        episode.to_numpy()


# ---- constructor ----


def test_len_lookback_buffer_defaults_to_zero_and_auto_is_accepted():
    assert len(given(5)) == 5
    episode = given(2, lookback=3, t_started=10)
    assert (len(episode), episode.t_started, episode.t, episode.len_lookback_buffer) == (2, 10, 12, 3)
    auto = SingleAgentEpisode(observations=[1, 2, 3], actions=[0, 0], rewards=[0, 0], len_lookback_buffer="auto")
    assert (len(auto), auto.len_lookback_buffer) == (0, 2)


def test_to_numpy_returns_self_and_readers_give_views():
    episode = grown(3)
    assert not episode.is_numpy
    assert episode.to_numpy() is episode
    assert episode.is_numpy
    assert np.shares_memory(episode.get_observations(), episode.get_observations(slice(1, 2)))


def test_steps_that_cannot_be_packed_leave_the_episode_as_it_was():
    episode = SingleAgentEpisode("A")
    episode.add_env_reset(np.zeros(2))
    episode.add_env_step(np.zeros(2), action=0, reward=1.0)
    episode.add_env_step(np.zeros(2), action=[0, 1], reward=1.0)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"'actions' cannot be stacked: row 1 has shape \(2,\), row 0 has \(\)"):
            episode.get_observations()
        assert not episode.is_numpy
