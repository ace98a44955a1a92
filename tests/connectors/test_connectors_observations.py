"""Connectors of observations: the same for numpy and torch, their spaces, statistics and state."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from lockstep.connectors import Connector, FlattenObs, NormalizeObs, ObsPipeline, OneHot
from lockstep.data.trees import check_in_space, leaves, map_tree, num_items, trees_equal
from lockstep.state.checkpoint import read_checkpoint, write_checkpoint

BOX = spaces.Box(-np.inf, np.inf, (4,), np.float32)
NESTED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (40, 44, 3), np.uint8),
        "pose": spaces.Tuple([spaces.Box(-1, 1, (2, 3), np.float64), spaces.Discrete(4, start=-1)]),
        "switches": spaces.MultiBinary(5),
        "gears": spaces.MultiDiscrete([3, 2]),
    }
)
MASKED = spaces.Dict({"observations": BOX, "action_mask": spaces.Box(0, 1, (3,), np.float32)})


def rows(n, seed=0, shape=(4,)):
    rng = np.random.default_rng(seed)
    scale = np.arange(1, 1 + np.prod(shape)).reshape(shape)
    return (rng.standard_normal((n, *shape)) * scale + 10 * scale).astype(np.float32)


def normalizing(space=BOX):
    return ObsPipeline([NormalizeObs()], space)


def sample(space, n):
    batched = batch_space(space, n)
    batched.seed(0)
    return batched.sample()


def to_torch(tree):
    return map_tree(torch.from_numpy, tree)


def assert_trees_equal(one, two):
    two = map_tree(lambda leaf: leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf, two)
    assert trees_equal(one, two)
    assert [leaf.dtype for leaf in leaves(one)] == [leaf.dtype for leaf in leaves(two)]


CONNECTORS = {
    "normalize": lambda: [NormalizeObs()],
    "flatten": lambda: [FlattenObs()],
    "one_hot": lambda: [OneHot()],
    "flatten_normalize": lambda: [FlattenObs(), NormalizeObs(clip=2.0)],
    "normalize_one_hot": lambda: [NormalizeObs(), OneHot()],
}


@pytest.mark.parametrize("name", CONNECTORS)
def test_numpy_and_torch_give_the_same_numbers_within_the_output_space(name):
    pipeline = ObsPipeline(CONNECTORS[name](), NESTED)
    data = sample(NESTED, 30)
    untouched = map_tree(np.copy, data)
    pipeline.update(data)
    out = pipeline(data)
    assert_trees_equal(out, pipeline(to_torch(data)))
    assert num_items(out) == 30
    check_in_space(out, pipeline.observation_space, "obs")
    space = NESTED
    for connector in pipeline.connectors:
        space = connector.output_space(space)
    assert space == pipeline.observation_space
    assert_trees_equal(untouched, data)
    assert not pipeline.is_identity


def test_an_empty_pipeline_is_the_identity():
    pipeline = ObsPipeline([])
    assert pipeline.is_identity
    assert not pipeline.has_statistics
    data = rows(3)
    assert pipeline(data) is data
    pipeline.update(data)
    pipeline.set_state(pipeline.get_state())
    assert ObsPipeline([], BOX).observation_space == BOX


@pytest.mark.parametrize("name", CONNECTORS)
def test_leading_dimensions_are_arbitrary(name):
    pipeline = ObsPipeline(CONNECTORS[name](), NESTED)
    data = sample(NESTED, 6)
    pipeline.update(data)
    flat = pipeline(data)
    folded = pipeline(map_tree(lambda leaf: leaf.reshape(2, 3, *leaf.shape[1:]), data))
    assert_trees_equal(flat, map_tree(lambda leaf: leaf.reshape(6, *leaf.shape[2:]), folded))
    single = pipeline(map_tree(lambda leaf: leaf[2], data))
    assert_trees_equal(map_tree(lambda leaf: leaf[2], flat), single)


# NormalizeObs


def test_normalize_obs_equals_the_formula():
    pipeline = ObsPipeline([NormalizeObs(clip=1.5, epsilon=1e-4)], BOX)
    seen, new = rows(500), rows(50, seed=1)
    pipeline.update(seen[:123])
    pipeline.update(seen[123:])
    exact = seen.astype(np.float64)
    expected = (new - exact.mean(0)) / np.sqrt(exact.var(0) + 1e-4)
    out = pipeline(new)
    assert out.dtype == np.float32
    assert (np.abs(expected) > 1.5).any()
    np.testing.assert_allclose(out, expected.clip(-1.5, 1.5), atol=1e-5)


def test_normalize_obs_before_any_update_only_clips():
    pipeline = ObsPipeline([NormalizeObs(clip=10.0)], BOX)
    assert pipeline(np.array([[1, -2, 30, -30]], np.float32)).tolist() == [[1, -2, 10, -10]]


def test_statistics_change_by_update_only_and_for_numpy_and_torch_alike():
    pipeline = normalizing()
    pipeline.update(rows(100))
    new = rows(20, seed=1)
    first = pipeline(new)
    pipeline(torch.from_numpy(new))
    np.testing.assert_array_equal(pipeline(new), first)
    pipeline.update(rows(100, seed=2) + 50)
    assert np.abs(pipeline(new) - first).max() > 0.1
    np.testing.assert_array_equal(pipeline(torch.from_numpy(new)).numpy(), pipeline(new))


def test_update_takes_only_the_given_rows():
    data = rows(50)
    data[::3] = np.nan
    valid = np.ones(50, bool)
    valid[::3] = False
    for given in (valid, np.flatnonzero(valid)):
        pipeline = normalizing()
        pipeline.update(data, given)
        np.testing.assert_allclose(pipeline.connectors[0].moments[0].mean, data[valid].mean(0), rtol=1e-5)
        assert pipeline.connectors[0].moments[0].count == valid.sum()


def test_update_joined_equals_an_update_with_the_rows_of_all_learners():
    data = rows(300)
    one, whole = normalizing(), normalizing()
    whole.update(data)

    def join(seen):
        seen.update(data[77:])
        return seen

    one.update(data[:77], join=join)
    np.testing.assert_allclose(one(data), whole(data), atol=1e-6)


def test_normalize_obs_passes_over_images_discrete_leaves_and_masks():
    normalize = NormalizeObs()
    space = normalize.bind(NESTED)
    data = sample(NESTED, 10)
    normalize.update(data)
    out = normalize(data)
    assert out["camera"] is data["camera"]
    assert out["gears"] is data["gears"]
    assert out["pose"][1] is data["pose"][1]
    assert out["pose"][0].dtype == np.float32
    assert space["camera"] == NESTED["camera"]
    np.testing.assert_allclose(out["pose"][0].mean(0), 0, atol=1e-6)

    pipeline = normalizing(MASKED)
    data = {"observations": rows(10), "action_mask": np.ones((10, 3), np.float32)}
    pipeline.update(data)
    assert pipeline(data)["action_mask"] is data["action_mask"]
    assert pipeline.observation_space["action_mask"] == MASKED["action_mask"]


def test_a_mask_of_several_actions_passes_every_connector_of_leaves():
    mask = spaces.Box(0, 1, (2,), np.int8)
    for masks in (spaces.Tuple([mask, mask]), spaces.Dict({"arm": mask, "legs": spaces.Dict({"left": mask})})):
        space = spaces.Dict({"observations": BOX, "action_mask": masks})
        data = {"observations": rows(10), "action_mask": batch_space(masks, 10).sample()}
        pipeline = ObsPipeline([OneHot(), NormalizeObs()], space)
        pipeline.update(data)
        assert pipeline.observation_space["action_mask"] == masks
        assert pipeline(data)["action_mask"] is data["action_mask"]


def test_a_later_connector_learns_from_what_the_earlier_ones_made():
    space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-1, 1, (1,), np.float32)})
    pipeline = ObsPipeline([FlattenObs(), NormalizeObs()], space)
    pipeline.update({"a": np.array([0, 1, 1, 1]), "b": np.array([[0.0], [1.0], [0.0], [1.0]], np.float32)})
    np.testing.assert_allclose(pipeline.connectors[1].moments[0].mean, [0.25, 0.75, 0.5])


def test_state_goes_round_through_a_checkpoint_and_is_a_copy(tmp_path):
    def make():
        return ObsPipeline([OneHot(), NormalizeObs()], NESTED)

    pipeline, data = make(), sample(NESTED, 40)
    pipeline.update(data)
    write_checkpoint(tmp_path / "c", {"": {"connectors": pipeline.get_state()}})
    other = make()
    other.set_state(read_checkpoint(tmp_path / "c")[""]["connectors"])
    assert_trees_equal(other(data), pipeline(data))
    state, before = pipeline.get_state(), pipeline(data)
    more = sample(NESTED, 70)
    pipeline.update(more)
    other.update(more)
    assert_trees_equal(other(data), pipeline(data))
    assert not trees_equal(pipeline(data), before)
    pipeline.set_state(state)
    assert_trees_equal(pipeline(data), before)


# The others


def test_one_hot():
    pipeline = ObsPipeline([OneHot()], spaces.Discrete(3, start=5))
    assert pipeline(np.array([5, 7])).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert pipeline(np.array(6)).tolist() == [0, 1, 0]
    pipeline = ObsPipeline([OneHot()], spaces.MultiDiscrete([[2, 3]], start=[[0, 1]]))
    assert pipeline(np.array([[[1, 3]]])).tolist() == [[0, 1, 0, 0, 1]]
    assert pipeline(torch.tensor([[[1, 3]]])).tolist() == [[0, 1, 0, 0, 1]]


def test_flatten_obs_joins_in_the_order_of_the_space():
    space = spaces.Dict(
        {"b": spaces.Box(-1, 1, (2, 2), np.float32), "a": spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(2)])}
    )
    pipeline = ObsPipeline([FlattenObs()], space)
    data = {"a": (np.array([1]), np.array([[1, 0]], np.int8)), "b": np.array([[[0.1, 0.2], [0.3, 0.4]]], np.float32)}
    assert list(space.spaces) == ["a", "b"]
    np.testing.assert_allclose(pipeline(data), [[0, 1, 1, 0, 0.1, 0.2, 0.3, 0.4]])
    low = [0, 0, 0, 0, -1, -1, -1, -1]
    assert pipeline.observation_space == spaces.Box(np.array(low, np.float32), np.ones(8, np.float32))


# Errors


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda: ObsPipeline([NormalizeObs()]), "needs the observation_space"),
        (lambda: ObsPipeline(["normalize"], BOX), "str is not a connector"),
        (lambda: NormalizeObs()(rows(3)), "NormalizeObs.*bind"),
        (lambda: FlattenObs()(rows(3)), "FlattenObs.*bind"),
        (lambda: ObsPipeline([FlattenObs()], spaces.Text(3)), "cannot flatten Text"),
        (lambda: ObsPipeline([FlattenObs()], MASKED), "FlattenObs would hide the action mask"),
        (lambda: normalizing()(np.zeros((3, 5), np.float32)), r"\(3, 5\) does not fit the space"),
        (lambda: NormalizeObs(clip=0), "needs"),
        (lambda: NormalizeObs(epsilon=-1), "needs"),
        (lambda: normalizing().set_state(ObsPipeline([OneHot()], BOX).get_state()), r"0_OneHot.*0_NormalizeObs"),
        (lambda: normalizing().set_state(normalizing(spaces.Box(-1, 1, (5,))).get_state()), "expected"),
        (lambda: normalizing().connectors[0].set_state({"leaves": []}), "1 normalised leaves"),
        (lambda: OneHot().set_state({"x": 1}), "has no state"),
    ],
)
def test_mistakes_are_named(mistake, words):
    with pytest.raises((ValueError, TypeError, RuntimeError), match=words):
        mistake()


class Halve(Connector):
    """A user's own."""

    def output_space(self, input_space):
        return input_space

    def __call__(self, data):
        return data / 2


def test_a_users_own_connector():
    pipeline = ObsPipeline([Halve(), NormalizeObs()], BOX)
    data = rows(10)
    pipeline.update(data)
    np.testing.assert_allclose(pipeline.connectors[1].moments[0].mean, data.mean(0) / 2, rtol=1e-6)
    assert pipeline.get_state()["0_Halve"] == {}
