"""Issue 3, point 5: Minari datasets to and from episodes and batches; nothing is lost, nothing half-written stays."""

import json

import gymnasium as gym
import numpy as np
import pytest

from lockstep.data import SampleBatch, SingleAgentEpisode, concat_samples, read_minari, read_minari_batch, write_minari
from lockstep.data.trees import named_leaves, trees_equal

IMAGE = gym.spaces.Box(0, 255, (36, 33, 3), np.uint8)  # large enough that Minari would make a JPEG of it
BOX = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
SPACES = {
    "box": BOX,
    "image": IMAGE,
    "discrete": gym.spaces.Discrete(4, start=-1),
    "binary": gym.spaces.MultiBinary(3),
    "half": gym.spaces.Box(-1, 1, (2, 2), np.float16),
    "dict": gym.spaces.Dict(
        z=gym.spaces.Tuple([BOX, gym.spaces.Discrete(3)]), a=gym.spaces.MultiDiscrete([3, 4]), m=gym.spaces.Text(5)
    ),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    path = tmp_path / "minari"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(path))
    return path


def stacked(space, count, seed=0):
    """`count` samples of a space as columns; keys of dicts in another order than the space's."""
    space.seed(seed)
    return stack([space.sample() for _ in range(count)], space)


def stack(rows, space):
    if isinstance(space, gym.spaces.Dict):
        return {key: stack([row[key] for row in rows], space[key]) for key in sorted(space, key=lambda k: k != "m")}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(stack([row[i] for row in rows], part) for i, part in enumerate(space))
    return np.array(rows, dtype=None if isinstance(space, gym.spaces.Text) else space.dtype)


def episode(space, steps=5, seed=0, action_space=BOX, **given):
    return SingleAgentEpisode(
        given.pop("id_", f"e{seed}"),
        observations=stacked(space, steps + 1, seed),
        observation_space=space,
        actions=stacked(action_space, steps, seed),
        action_space=action_space,
        rewards=np.random.default_rng(seed).random(steps).astype(np.float32),
        **given,
    )


def same_tree(first, second):
    assert trees_equal(first, second)
    one, other = dict(named_leaves("", first)), dict(named_leaves("", second))
    assert list(one) == list(other)
    for path in one:
        assert one[path].dtype == other[path].dtype
        assert one[path].tobytes() == other[path].tobytes()


def same(first, second):
    states = [episode.get_state() for episode in (first, second)]
    for state in states:
        state.pop("duration_s")
        assert state.pop("observation_space") is not None
        assert state.pop("action_space") is not None
    assert first.observation_space == second.observation_space
    assert first.action_space == second.action_space
    infos = [state.pop("infos") or [{}] * (len(first) + 1) for state in states]
    assert [list(info) for info in infos[0]] == [list(info) for info in infos[1]]
    assert trees_equal(*infos)
    for name in ("observations", "actions"):
        same_tree(states[0].pop(name), states[1].pop(name))
    assert states[0].pop("rewards").tobytes() == states[1].pop("rewards").tobytes()
    assert states[0] == states[1]
    assert first.is_terminated == second.is_terminated
    assert first.is_truncated == second.is_truncated


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_episodes_come_back_from_minari_as_they_were(space, folder):
    written = [
        episode(space, 5, 0, space, terminated=True),
        episode(space, 1, 1, space, truncated=True, t_started=7, agent_id="left", module_id="p"),
        episode(space, 3, 2, space, terminated=True, truncated=True, multi_agent_episode_id="m", agent_id=3),
        episode(space, 4, 3, space),
    ]
    written[1].custom_data = {"note": (1, [np.float32(0.5)])}
    path = write_minari("tests/round-trip-v0", written)
    assert path == folder / "tests" / "round-trip-v0"
    back = read_minari("tests/round-trip-v0")
    assert len(back) == 4
    for first, second in zip(written, back):
        same(first, second)


def test_steps_of_eleven_and_more_episodes_keep_their_order():
    written = [episode(BOX, 2, seed) for seed in range(12)]
    write_minari("many-v0", written)
    assert [episode.id_ for episode in read_minari("many-v0")] == [f"e{seed}" for seed in range(12)]


INFOS = {
    "numbers": [{"x": 0.5 * i, "n": i, "ok": i > 1, "g": np.float16(i), "a": np.arange(2) + i} for i in range(4)],
    "other keys": [{"x": 1}, {}, {"y": (None, "text")}, {"z": {"deep": np.float32(0.1)}}],
    "mixed types": [{"x": 1}, {"x": 2.0}, {"x": 3}, {"x": 4}],
    "big numbers": [{"x": 2**70}] * 4,
    "zero-dimensional": [{"x": np.array(i)} for i in range(4)],
    "none": [{}, {}, {}, {}],
}


@pytest.mark.parametrize("infos", INFOS.values(), ids=INFOS)
def test_infos_come_back_with_their_types(infos):
    write_minari("i-v0", [episode(BOX, 3, infos=infos, terminated=True)])
    back = read_minari("i-v0")[0].get_infos()
    assert trees_equal(back, infos)
    for first, second in zip(infos, back):
        assert list(first) == list(second)
        assert [type(value) for value in first.values()] == [type(value) for value in second.values()]


def test_minari_itself_reads_what_is_written_and_infos_as_columns():
    import minari
    from minari.data_collector import EpisodeBuffer

    written = episode(IMAGE, 3, infos=INFOS["numbers"], terminated=True)
    write_minari("mine-v0", [written], metadata={"algorithm_name": "random"})
    dataset = minari.load_dataset("mine-v0")
    assert dataset.total_steps == 3
    assert dataset.observation_space == IMAGE
    assert dataset.storage.metadata["algorithm_name"] == "random"
    assert dataset.storage.metadata["jpeg_encoding"] is False
    found = dataset[0]
    np.testing.assert_array_equal(found.observations, written.get_observations())
    assert found.terminations.tolist() == [False, False, True]
    assert found.infos["x"].tolist() == [0.0, 0.5, 1.0, 1.5]
    assert list(minari.list_local_datasets()) == ["mine-v0"]
    assert dataset.storage.metadata["dataset_size"] > 0
    more = EpisodeBuffer(
        observations=written.get_observations(),
        actions=written.get_actions(),
        rewards=written.get_rewards(),
        terminations=[False, False, True],
        truncations=[False] * 3,
    )
    dataset.update_dataset_from_buffer([more])  # and adds to it
    assert [len(episode) for episode in read_minari("mine-v0")] == [3, 3]


@pytest.mark.filterwarnings("ignore::UserWarning")  # Minari asks for authors and the like
def test_a_dataset_made_by_minari_is_read():
    import minari
    from minari.data_collector import EpisodeBuffer

    buffers = [
        EpisodeBuffer(
            observations={"b": np.arange(4, dtype=np.float32)[:, None], "a": [0, 1, 2, 1]},
            actions=[0, 1, 1],
            rewards=[1.0, 2.0, 3.0],
            terminations=[False, False, True],
            truncations=[False] * 3,
            infos={"x": np.arange(4.0), "deep": {"y": np.arange(4)}},
        )
    ]
    minari.create_dataset_from_buffers(
        "theirs-v0",
        buffers,
        observation_space=gym.spaces.Dict(b=gym.spaces.Box(-9, 9, (1,)), a=gym.spaces.Discrete(3)),
        action_space=gym.spaces.Discrete(2),
        jpeg_encoding=False,
    )
    (back,) = read_minari("theirs-v0")
    assert back.id_ == "0"
    assert list(back.get_observations()) == ["a", "b"]
    assert back.get_observations()["a"].tolist() == [0, 1, 2, 1]
    assert back.get_rewards().tolist() == [1.0, 2.0, 3.0]
    assert back.is_terminated
    assert not back.is_truncated
    assert back.get_infos()[2] == {"x": 2.0, "deep": {"y": 2}}
    assert read_minari_batch("theirs-v0")["obs"]["b"].shape == (3, 1)


def test_a_sample_batch_comes_back_from_minari_with_its_columns():
    parts = [episode(SPACES["dict"], n, n, terminated=n > 2, truncated=n == 2).get_sample_batch() for n in (4, 2, 3)]
    whole = concat_samples(parts)
    without = SampleBatch({name: whole[name] for name in ("rewards", "terminateds", "new_obs", "actions", "obs")})
    numbered = SampleBatch(whole, eps_id=np.array([5] * 4 + [2] * 2 + [9] * 3, np.int32), t=np.arange(9) % 4)
    numbered["t"] = np.concatenate([np.arange(4), np.arange(2), np.arange(3)]).astype(np.int16)
    for number, batch in enumerate((whole, without[:4], numbered)):
        spaces = {"observation_space": SPACES["dict"], "action_space": BOX}
        write_minari(f"batch-v{number}", batch, **spaces)
        back = read_minari_batch(f"batch-v{number}")
        assert list(back) == list(batch)
        for name in batch:
            if name == "infos":
                assert trees_equal(list(batch[name]), list(back[name]))
            else:
                same_tree(batch[name], back[name])


def test_what_minari_would_lose_is_refused_and_nothing_is_written(folder):
    batch = episode(BOX, 4, terminated=True).get_sample_batch()
    spaces = {"observation_space": BOX, "action_space": BOX}
    broken = batch.copy()
    broken["new_obs"][1] += 1
    chatty = episode(BOX, 1)
    chatty.custom_data = {"log": "x" * 70_000}
    for data, message in (
        (SampleBatch(batch, vf_preds=np.zeros(4)), r"columns \['vf_preds'\] have no place in Minari; allowed are"),
        (SampleBatch({name: batch[name] for name in batch if name != "rewards"}), "column 'rewards' is missing"),
        (broken, "new_obs of a row is not the obs of the row after it"),
        (SampleBatch(batch, t=[0, 1, 3, 4]), "column 't' of the episode from row 0 on does not count"),
        (SampleBatch(batch, terminateds=[0, 1, 0, 1]), "rows 0 to 4 have one eps_id, but an end among them"),
        ([episode(BOX, 2, extra_model_outputs={"v": np.zeros(2)})], r"has the extra model outputs \['v'\]"),
        ([SingleAgentEpisode("x", observations=np.zeros((1, 3), np.float32))], r"episode 0 \('x'\) has no step"),
        ([episode(SPACES["half"], 2)], r"observations have rows float16\[2, 2\], which do not fit the space Box"),
        ([episode(SPACES["dict"], 2)], "observations have rows a dict"),
        ([], "there is no episode to write"),
        ([chatty], r"episode 0 \('e0'\): its custom_data and names take 70.*room for 60,000"),
        ([episode(BOX, 1, infos=[{"x": object()}, {}])], r"infos of episode 0 \('e0'\)\" holds a object"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            write_minari("bad-v0", data, **spaces)
    with pytest.raises(ValueError, match="observation_space is needed: the first episode has none"):
        write_minari("bad-v0", batch)
    with pytest.raises(ValueError, match=r"observation_space is Sequence.*which Minari cannot keep"):
        write_minari("bad-v0", batch, observation_space=gym.spaces.Sequence(BOX), action_space=BOX)
    with pytest.raises(ValueError, match="dataset_id='bad'; allowed are '<name>-v<version>'"):
        write_minari("bad", batch, **spaces)
    assert not folder.exists() or list(folder.iterdir()) == []


def test_an_existing_dataset_is_kept_unless_overwrite(folder):
    write_minari("one-v0", [episode(BOX, 2, 0)])
    with pytest.raises(ValueError, match=r"there is a dataset 'one-v0' at .* already; overwrite=True replaces it"):
        write_minari("one-v0", [episode(BOX, 2, 1)])
    assert read_minari("one-v0")[0].id_ == "e0"
    write_minari("one-v0", [episode(BOX, 2, 1)], overwrite=True)
    assert read_minari("one-v0")[0].id_ == "e1"
    assert [path.name for path in folder.iterdir()] == ["one-v0"]


def test_a_full_disk_leaves_the_old_dataset_and_nothing_half_written(folder, file_size_limit):
    write_minari("one-v0", [episode(BOX, 2, 0)])
    with pytest.raises(OSError, match="the Minari dataset 'one-v0' cannot be written"), file_size_limit(20_000):
        write_minari("one-v0", [episode(BOX, 5_000, 1)], overwrite=True)
    assert read_minari("one-v0")[0].id_ == "e0"
    assert [path.name for path in folder.iterdir()] == ["one-v0"]


def test_damaged_foreign_and_missing_datasets_are_refused_by_name(folder):
    with pytest.raises(FileNotFoundError, match=r"there is no Minari dataset 'none-v0' at .* nothing is downloaded"):
        read_minari("none-v0")
    path = write_minari("one-v0", [episode(BOX, 20, 0, terminated=True)]) / "data" / "main_data.hdf5"
    data = path.read_bytes()
    for length in (0, 1, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(ValueError, match=r"the Minari dataset 'one-v0' at .* cannot be read"):
            read_minari("one-v0")
    path.write_bytes(data)
    import h5py

    with h5py.File(path, "a") as file:
        file["episode_0"]["truncations"][3] = True
    with pytest.raises(ValueError, match="truncations of episode 0 end it at step 3 of 20"):
        read_minari("one-v0")
    about = path.with_name("metadata.json")
    text = json.loads(about.read_text())
    about.write_text(json.dumps({name: text[name] for name in text if name != "dataset_id"}))
    with pytest.raises(ValueError, match=r"the Minari dataset 'one-v0' .* cannot be read: KeyError"):
        read_minari("one-v0")
