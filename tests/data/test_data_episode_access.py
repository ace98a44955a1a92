"""Contract, section 4: getters, setters, and episodes that are views on a rollout store."""

import re
from functools import partial

import numpy as np
import pytest
import torch
from episode_makers import given as make_given
from gymnasium import spaces

from lockstep.data import SingleAgentEpisode

given = partial(make_given, 4, 3)  # stored observations 0 .. 7, of which 3 are looked back at: index 0 is observation 3


def value(items):
    return items.tolist() if hasattr(items, "tolist") else items


# ---- getters ----


@pytest.mark.parametrize(
    ("indices", "as_lookback", "expected"),
    [
        (None, False, [3, 4, 5, 6, 7]),
        (0, False, 3),
        (4, False, 7),
        (-1, False, 7),
        (-5, False, 3),
        (-6, False, 2),
        (-1, True, 2),
        (-3, True, 0),
        (1, True, 4),
        ([0, -1], False, [3, 7]),
        ([0, -1], True, [3, 2]),
        (np.array([1, 2]), False, [4, 5]),
        (slice(None), False, [3, 4, 5, 6, 7]),
        (slice(1, 3), False, [4, 5]),
        (slice(-2, None), False, [6, 7]),
        (slice(-2, 1), True, [1, 2, 3]),
        (slice(-3, None), True, [0, 1, 2, 3, 4, 5, 6, 7]),
        (slice(-99, 2), True, [0, 1, 2, 3, 4]),
        (slice(3, 99), False, [6, 7]),
        (slice(0, 5, 2), False, [3, 5, 7]),
        (slice(None, None, -1), False, [7, 6, 5, 4, 3]),
        (slice(2, 1), False, []),
    ],
)
def test_observations_at_indices(indices, as_lookback, expected):
    episode = given()
    assert value(episode.get_observations(indices, neg_index_as_lookback=as_lookback)) == expected
    infos = episode.get_infos(indices, neg_index_as_lookback=as_lookback)
    assert infos == ({"i": expected} if isinstance(expected, int) else [{"i": i} for i in expected])


@pytest.mark.parametrize("read", ["actions", "rewards", "v"])
def test_actions_rewards_and_extras_have_one_row_less(read):
    episode = given()
    scale = {"actions": 1, "rewards": 0.5, "v": 10}[read]

    def get(*args, **options):
        if read == "v":
            return value(episode.get_extra_model_outputs("v", *args, **options))
        return value(getattr(episode, f"get_{read}")(*args, **options))

    assert get() == [i * scale for i in (3, 4, 5, 6)]
    assert get(-1) == 6 * scale
    assert get(-1, neg_index_as_lookback=True) == 2 * scale
    assert get([0, 3]) == [3 * scale, 6 * scale]
    assert get(slice(-2, 2), neg_index_as_lookback=True) == [i * scale for i in (1, 2, 3, 4)]
    assert get(slice(2, 6), fill=0) == [5 * scale, 6 * scale, 0, 0]
    with pytest.raises(IndexError, match=rf"index 4 of {read} is out of range: 4 items and 3 before them"):
        get(4)


@pytest.mark.parametrize(
    ("indices", "as_lookback"), [(5, False), (-9, False), (-4, True), ([0, 5], False), ([-4], True)]
)
def test_out_of_range_raises_unless_filled(indices, as_lookback):
    episode = given()
    for read in (episode.get_observations, episode.get_infos):
        with pytest.raises(IndexError, match="out of range: 5 items and 3 before them"):
            read(indices, neg_index_as_lookback=as_lookback)
    got = episode.get_observations(indices, neg_index_as_lookback=as_lookback, fill=-7)
    assert -7 in np.atleast_1d(got)
    assert value(got) == (-7 if isinstance(indices, int) else [3, -7] if len(indices) == 2 else [-7])


def test_slices_are_filled_on_both_sides():
    episode = given()
    got = episode.get_observations(slice(-5, 6), neg_index_as_lookback=True, fill=-1)
    assert got.tolist() == [-1, -1, 0, 1, 2, 3, 4, 5, 6, 7, -1]
    assert got.dtype == np.int64
    assert episode.get_infos(slice(4, 6), fill={}) == [{"i": 7}, {}]
    assert episode.get_observations(slice(1, 3), fill=-1).tolist() == [4, 5]


def test_fill_of_an_episode_without_steps():
    episode = SingleAgentEpisode(observations=[5])
    assert episode.get_rewards(slice(-2, 1), neg_index_as_lookback=True, fill=0.0).tolist() == [0, 0, 0]
    assert episode.get_observations(slice(-1, 1), neg_index_as_lookback=True, fill=9).tolist() == [9, 5]


@pytest.mark.parametrize(
    "column, fill",
    [
        (np.arange(3), 9.9),
        (np.arange(3), np.nan),
        (np.arange(3), "9"),
        (np.arange(3, dtype=np.uint8), -1),
        (np.arange(3, dtype=np.uint8), 256),
        (np.zeros(3, dtype=bool), 2),
        (np.zeros(3, dtype=np.float32), 1e300),
        (np.zeros(3, dtype=np.float32), 1j),
        (np.array(["a", "b", "c"]), "long"),
        (np.zeros((3, 2), dtype=np.int8), np.array([0, 0.5])),
        ({"x": np.arange(3.0), "y": np.arange(3)}, 0.5),
        ({"x": np.arange(3.0), "y": np.arange(3)}, {"x": 0.5, "y": 0.5}),
    ],
)
def test_fill_that_a_column_cannot_hold_is_refused_with_value_and_dtype(column, fill):
    episode = SingleAgentEpisode(observations=column, actions=[0, 1], rewards=[0.0, 1.0])
    leaf = column["y"] if isinstance(column, dict) else column
    given = fill["y"] if isinstance(fill, dict) else fill
    given = given.tolist() if isinstance(given, np.ndarray) else given
    for indices in (5, [1, 5], slice(0, 5), slice(0, 2), 0):  # also where nothing is filled in
        with pytest.raises(ValueError, match=re.escape(f"fill={given!r}") + f".* {leaf.dtype}"):
            episode.get_observations(indices, fill=fill)
    with pytest.raises(ValueError, match=r"fill=9\.9 .* int64"):
        episode.get_actions(5, fill=9.9)


@pytest.mark.parametrize(
    "dtype, fill", [("i8", 9.0), ("u1", 255), ("?", 0), ("f4", 0.1), ("f4", np.nan), ("f4", -np.inf), ("U2", "ab")]
)
def test_fill_that_a_column_can_hold_is_what_is_read(dtype, fill):
    episode = SingleAgentEpisode(observations=np.zeros(2, dtype), actions=[0], rewards=[0.0])
    got = episode.get_observations([0, 7], fill=fill)
    assert got.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(got[1], np.asarray(fill, dtype))


def test_one_hot_discrete_follows_the_space():
    episode = make_given(2, 0, observation_space=spaces.Discrete(3), action_space=spaces.Discrete(2))
    assert episode.get_observations(one_hot_discrete=True).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert episode.get_actions(1, one_hot_discrete=True).tolist() == [0, 1]
    assert episode.get_actions([1, 2], one_hot_discrete=True, fill=0).tolist() == [[0, 1], [0, 0]]
    mixed = spaces.Dict(
        d=spaces.Discrete(2, start=5), m=spaces.MultiDiscrete([2, 3]), t=spaces.Tuple([spaces.Box(0, 1, (1,))])
    )
    rows = [{"d": 6, "m": np.array([1, 2]), "t": (np.float32([0.5]),)}]
    got = SingleAgentEpisode(observations=rows, observation_space=mixed).get_observations(0, one_hot_discrete=True)
    assert got["d"].tolist() == [0, 1]
    assert got["m"].tolist() == [0, 1, 0, 0, 1]
    assert got["t"][0].tolist() == [0.5]


# ---- setters ----


def test_setters_replace_all_but_the_lookback():
    episode = given()
    episode.set_observations(new_data=[13, 14, 15, 16, 17])
    episode.set_actions(new_data=np.array([1, 2, 3, 4]))
    episode.set_rewards(new_data=[0.25] * 4)
    episode.set_extra_model_outputs(key="v", new_data=[7, 7, 7, 7])
    assert episode.get_observations(slice(-3, None), neg_index_as_lookback=True).tolist() == [
        *(0, 1, 2, 13, 14, 15, 16, 17)
    ]
    assert episode.get_actions().tolist() == [1, 2, 3, 4]
    assert episode.get_rewards().tolist() == [0.25] * 4
    assert episode.get_rewards(-1, neg_index_as_lookback=True) == 1.0
    assert episode.get_extra_model_outputs("v").tolist() == [7] * 4


def test_setters_at_indices():
    episode = given()
    episode.set_observations(new_data=99, at_indices=0)
    episode.set_observations(new_data=98, at_indices=-1, neg_index_as_lookback=True)
    episode.set_observations(new_data=[97, 96], at_indices=[1, -1])
    episode.set_rewards(new_data=[5.0, 6.0], at_indices=slice(1, 3))
    assert episode.get_observations(slice(-3, None), neg_index_as_lookback=True).tolist() == [
        *(0, 1, 98, 99, 97, 5, 6, 96)
    ]
    assert episode.get_rewards().tolist() == [1.5, 5.0, 6.0, 3.0]


def test_setters_refuse_values_outside_the_space():
    box = spaces.Box(-1, 1, (2,), np.float32)
    episode = SingleAgentEpisode(
        observations=np.zeros((3, 2), np.float32), actions=[0, 1], rewards=[0, 0], observation_space=box,
        action_space=spaces.Discrete(2),
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"observations\[1\] = .* does not lie in the space Box"):
        episode.set_observations(new_data=[[0.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    with pytest.raises(ValueError, match=r"actions\[0\] = .*2.* does not lie in the space Discrete"):
        episode.set_actions(new_data=2, at_indices=1)
    assert episode.get_actions().tolist() == [0, 1]
    episode.set_observations(new_data=[0.5, -0.5], at_indices=1)
    assert episode.get_observations(1).tolist() == [0.5, -0.5]
    assert episode.get_observations().dtype == np.float32


def test_a_new_extra_output_fills_the_lookback_with_zeros():
    episode = given()
    episode.set_extra_model_outputs(key="w", new_data=[1.0, 2.0, 3.0, 4.0])
    got = episode.get_extra_model_outputs("w", slice(-3, None), neg_index_as_lookback=True)
    assert got.tolist() == [0, 0, 0, 1, 2, 3, 4]


def test_setters_never_write_into_arrays_of_others():
    observations, rewards = np.arange(4), np.arange(3.0)
    episode = SingleAgentEpisode("e", observations=observations, actions=np.zeros(3), rewards=rewards)
    part = episode[1:]
    part.set_rewards(new_data=9.0, at_indices=0)
    episode.set_observations(new_data=[5, 5, 5, 5])
    assert rewards.tolist() == episode.get_rewards().tolist() == [0, 1, 2]
    assert observations.tolist() == [0, 1, 2, 3]
    assert part.get_observations().tolist() == [1, 2, 3]


# ---- views on a rollout store ----


def store():
    """Columns [T + 1, B, ...] and [T, B] of two environments."""
    obs = np.arange(6 * 2 * 3, dtype=np.float32).reshape(6, 2, 3)
    return obs, np.arange(10).reshape(5, 2), np.arange(10, dtype=np.float32).reshape(5, 2)


def test_a_view_copies_nothing():
    obs, actions, rewards = store()
    episode = SingleAgentEpisode.view(
        observations=obs[:, 1], actions=actions[:, 1], rewards=rewards[:, 1], t_started=7, id_="x",
        extra_model_outputs={"v": rewards[:, 0]},
    )  # fmt: skip
    assert (len(episode), episode.t_started, episode.t, episode.id_) == (5, 7, 12, "x")
    assert episode.is_numpy
    episode.validate()
    for got, column in ((episode.get_observations(), obs), (episode.get_actions(), actions)):
        assert np.shares_memory(got, column)
    data = episode[1:4].get_data_dict()
    for name, column in (("obs", obs), ("new_obs", obs), ("actions", actions), ("rewards", rewards)):
        assert np.shares_memory(data[name], column), name
    assert not any(isinstance(leaf, torch.Tensor) for leaf in data.values())
    np.testing.assert_array_equal(data["new_obs"], obs[2:5, 1])
    rewards[2, 1] = 100
    assert episode.get_rewards(2) == 100


def test_a_view_with_the_last_observation_apart_reads_like_any_other():
    obs, actions, rewards = store()
    last = np.array([-1, -2, -3], np.float32)

    def view(**options):
        return SingleAgentEpisode.view(
            observations=obs[:5, 0], last_observation=last, actions=actions[:, 0], rewards=rewards[:, 0],
            terminated=True, id_="x", **options,
        )  # fmt: skip

    whole = SingleAgentEpisode(
        "x", observations=np.concatenate([obs[:5, 0], last[None]]), actions=actions[:, 0], rewards=rewards[:, 0],
        terminated=True,
    )  # fmt: skip
    for indices in (None, 0, -1, 5, -2, [0, 5], slice(None), slice(2, 4), slice(-3, None), slice(0, 6, 2), slice(3, 9)):
        np.testing.assert_array_equal(view().get_observations(indices), whole.get_observations(indices))
    np.testing.assert_array_equal(view().get_observations([5, 6], fill=0.0), whole.get_observations([5, 6], fill=0.0))
    assert np.shares_memory(view().get_observations(slice(0, 5)), obs)
    assert view().get_observations(-1) is last
    untouched = view()
    assert np.shares_memory(untouched.get_observations(2), obs)
    assert np.shares_memory(untouched.get_observations(slice(1, 3)), obs)
    for part in (slice(0, 5), slice(2, 5), slice(1, 3), slice(4, 5), slice(5, 5)):
        mine, theirs = view()[part], whole[part]
        assert (mine.t, mine.is_done) == (theirs.t, theirs.is_done)
        np.testing.assert_array_equal(mine.get_data_dict()["new_obs"], theirs.get_data_dict()["new_obs"])
        np.testing.assert_array_equal(mine.get_data_dict()["obs"], theirs.get_data_dict()["obs"])
        np.testing.assert_array_equal(mine.get_observations(), theirs.get_observations())
    assert np.shares_memory(view().get_data_dict()["obs"], obs)
    assert view().get_infos() == [{}] * 6
    view().validate()
    with pytest.raises(IndexError):
        view().get_observations(6)


def test_writing_to_a_view_leaves_the_store_alone():
    obs, actions, rewards = store()
    before = obs.copy()
    last = np.zeros(3, np.float32)
    episode = SingleAgentEpisode.view(
        observations=obs[:5, 0], last_observation=last, actions=actions[:, 0], rewards=rewards[:, 0]
    )
    episode.set_observations(new_data=np.ones(3, np.float32), at_indices=-1)
    episode.set_observations(new_data=np.ones(3, np.float32), at_indices=0)
    episode.add_env_step(np.full(3, 4, np.float32), 1, 2.0)
    assert episode.get_observations(-2).tolist() == [1, 1, 1]
    assert episode.get_observations(-1).tolist() == [4, 4, 4]
    assert len(episode.get_infos()) == 7
    np.testing.assert_array_equal(obs, before)
    assert last.tolist() == [0, 0, 0]


def test_a_slice_that_stops_before_the_first_item_is_empty_with_fill_too():
    episode = SingleAgentEpisode(observations=np.arange(11.0), actions=np.arange(10), rewards=np.arange(10.0))
    for arguments in ({"indices": slice(3, -12)}, {"indices": slice(3, -2), "neg_index_as_lookback": True}):
        assert len(episode.get_rewards(**arguments)) == len(episode.get_rewards(**arguments, fill=0.0)) == 0
        assert episode.get_infos(**arguments, fill={}) == []
