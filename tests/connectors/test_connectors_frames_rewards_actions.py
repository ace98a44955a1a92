"""Frame stacks at episode boundaries, reward scaling against a written-out reference, actions for environments."""

from collections import deque

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lockstep.connectors import ClipActions, FrameStack, NormalizeRewards, ObsPipeline, RescaleActions
from lockstep.envs import StepResult
from lockstep.state.checkpoint import read_checkpoint, write_checkpoint

VECTOR = spaces.Box(-np.inf, np.inf, (1,), np.float32)


def column(*numbers):
    return np.array(numbers, np.float32)[:, None]


def listed(stacks):
    return stacks[..., 0].tolist()


# FrameStack


def stacking(num_frames, space=VECTOR):
    return ObsPipeline([FrameStack(num_frames)], space)


def step_of(obs, final_obs=None, valid=None):
    """What environments give in one step."""
    step = StepResult(obs, len(obs))
    step.final_obs, step.valid = final_obs, valid
    return step


def test_frames_are_stacked_oldest_first_and_the_first_fills_the_stack():
    stack = stacking(3)
    assert stack.observation_space.shape == (3, 1)
    assert listed(stack(column(1, 10))) == [[1, 1, 1], [10, 10, 10]]
    assert listed(stack(column(2, 20))) == [[1, 1, 2], [10, 10, 20]]
    stack.reset(1)
    assert listed(stack(column(3, 30))) == [[1, 2, 3], [30, 30, 30]]
    stack.reset()
    assert listed(stack(column(7, 8, 9))) == [[7, 7, 7], [8, 8, 8], [9, 9, 9]]


def test_a_row_that_only_reset_begins_anew():
    """NEXT_STEP: the episode's end shows the last observation, the step after it the first of the next episode."""
    stack = stacking(3)
    stack(column(1, 10))
    stacked, final = stack.follow(step_of(column(2, 20), (np.array([1]), column(20))), None)
    assert listed(final[1]) == [[10, 10, 20]]
    stacked, final = stack.follow(step_of(column(3, 100), None, np.array([True, False])), None)
    assert listed(stacked) == [[1, 2, 3], [100, 100, 100]]
    assert final is None
    assert listed(stack.follow(step_of(column(4, 101), None, np.array([True, True])), None)[0]) == [
        [2, 3, 4],
        [100, 100, 101],
    ]


def test_stacks_of_random_episodes_equal_a_deque_for_each_environment():
    rng = np.random.default_rng(0)
    num_envs, k = 5, 4
    stack = stacking(k)
    number = iter(np.arange(10_000, dtype=np.float32))
    obs = column(*[next(number) for _ in range(num_envs)])
    stacked = stack(obs)
    queues = [deque([obs[b, 0]] * k, maxlen=k) for b in range(num_envs)]
    for _ in range(200):
        done = rng.random(num_envs) < 0.3
        obs = column(*[next(number) for _ in range(num_envs)])
        finals = column(*[next(number) for _ in range(int(done.sum()))])
        stacked, final = stack.follow(step_of(obs, (np.flatnonzero(done), finals) if done.any() else None), None)
        expected_finals = []
        for b in range(num_envs):
            if done[b]:
                queues[b].append(finals[len(expected_finals), 0])
                expected_finals.append(list(queues[b]))
                queues[b] = deque([obs[b, 0]] * k, maxlen=k)
            else:
                queues[b].append(obs[b, 0])
        assert listed(stacked) == [list(queue) for queue in queues]
        assert (listed(final[1]) if final else []) == expected_finals
        assert (final[0].tolist() if final else []) == np.flatnonzero(done).tolist()


def test_final_stacks_are_not_overwritten_by_the_next_step():
    for space in (VECTOR, spaces.Box(0, 255, (10, 10, 3), np.uint8), spaces.Box(0, 255, (3, 10, 10), np.uint8)):
        stack = stacking(2, space)
        shape = (1, *space.shape)
        stack(np.zeros(shape, space.dtype))
        ended = np.array([0]), np.full(shape, 1, space.dtype)
        _, final = stack.follow(step_of(np.full(shape, 9, space.dtype), ended), None)
        kept = final[1].copy()
        stack(np.full(shape, 5, space.dtype))
        np.testing.assert_array_equal(final[1], kept)


@pytest.mark.parametrize(
    "shape, stacked_shape",
    [((10, 12), (3, 10, 12)), ((10, 12, 2), (10, 12, 6)), ((2, 10, 12), (6, 10, 12)), ((), (3,))],
)
def test_images_are_joined_along_their_channels(shape, stacked_shape):
    space = spaces.Box(0, 255, shape, np.uint8)
    stack = stacking(3, space)
    assert stack.observation_space.shape == stacked_shape
    frames = [np.random.default_rng(i).integers(0, 256, (2, *shape)).astype(np.uint8) for i in range(3)]
    stack(frames[0])
    stack(frames[1])
    stacked = stack(frames[2])
    if len(shape) == 3:
        expected = np.concatenate(frames, axis=3 if shape[-1] == 2 else 1)
    else:
        expected = np.stack(frames, axis=1)
    np.testing.assert_array_equal(stacked, expected)
    assert stacked.dtype == np.uint8
    assert all(stack.observation_space.contains(row) for row in stacked)


def test_each_box_of_a_dict_is_stacked_and_the_mask_is_not():
    mask = spaces.Box(0, 1, (2,), np.int8)
    space = spaces.Dict({"a": VECTOR, "kind": spaces.Discrete(3), "action_mask": mask})
    stack, alone = stacking(3, space), stacking(3)
    assert {key: part.shape for key, part in stack.observation_space.items()} == {
        "a": (3, 1),
        "kind": (),
        "action_mask": (2,),
    }
    for number in range(5):
        numbers, kinds = column(number, 10 * number), np.array([number % 3, 1])
        masks = np.array([[1, 0], [0, 1]], np.int8)
        stacked = stack({"a": numbers, "kind": kinds, "action_mask": masks})
        np.testing.assert_array_equal(stacked["a"], alone(numbers))
        np.testing.assert_array_equal(stacked["kind"], kinds)
        np.testing.assert_array_equal(stacked["action_mask"], masks)
        if number == 2:
            stack.reset(1)
            alone.reset(1)
            other = stacking(3, space)
            other.set_state(stack.get_state())
            stack = other
    assert not stack.connectors[0].stacks_on_new_axis
    with pytest.raises(ValueError, match="takes a Box or a Dict with one, not Dict"):
        stacking(2, spaces.Dict({"kind": spaces.Discrete(3)}))


def test_frame_stack_state_goes_round(tmp_path):
    stack, other = stacking(3), stacking(3)
    other.set_state(stack.get_state())
    stack(column(1, 2))
    stack(column(3, 4))
    stack.reset(1)
    write_checkpoint(tmp_path / "c", {"": {"stack": stack.get_state()}})
    other.set_state(read_checkpoint(tmp_path / "c")[""]["stack"])
    assert listed(other(column(5, 6))) == listed(stack(column(5, 6))) == [[1, 3, 5], [6, 6, 6]]
    with pytest.raises(ValueError, match="do not fit"):
        stacking(2).set_state(stack.get_state())


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda: FrameStack(0), "num_frames=0 is not allowed"),
        (lambda: stacking(2, spaces.Discrete(3)), "takes a Box or a Dict with one, not Discrete"),
        (lambda: stacking(2)(np.zeros((2, 3))), r"\(2, 3\) does not fit"),
        (lambda: NormalizeRewards(gamma=1.1), "NormalizeRewards needs"),
        (lambda: NormalizeRewards(clip=0.0), "NormalizeRewards needs"),
        (lambda: NormalizeRewards(epsilon=0.0), "NormalizeRewards needs"),
        (lambda: RescaleActions(spaces.Box(0, np.inf, (1,))), "finite bounds"),
        (lambda: RescaleActions(spaces.Discrete(2)), "finite bounds"),
    ],
)
def test_mistakes_are_named(mistake, words):
    with pytest.raises((ValueError, RuntimeError), match=words):
        mistake()


# NormalizeRewards


def reference(rewards, dones, valid, gamma, state=None):
    """Running returns, one environment and one step at a time; the returns seen and those carried on."""
    seen, carry = [], []
    for b in range(rewards.shape[1]):
        running = 0.0 if state is None else state[b]
        for t in range(rewards.shape[0]):
            if not valid[t, b]:
                continue
            running = gamma * running + rewards[t, b]
            seen.append(running)
            if dones[t, b]:
                running = 0.0
        carry.append(running)
    return seen, carry


@pytest.mark.parametrize("with_invalid", [False, True])
def test_reward_scaling_equals_the_reference_over_several_rollouts(with_invalid):
    rng = np.random.default_rng(0)
    normalize = NormalizeRewards(0.9, clip=None, epsilon=1e-6)
    seen, carry = [], None
    for _ in range(4):
        rewards = (rng.standard_normal((17, 3)) * 5 + 2).astype(np.float32)
        dones = rng.random((17, 3)) < 0.2
        valid = np.ones((17, 3), bool)
        if with_invalid:
            valid[1:] = ~dones[:-1]  # the row after an end is a reset
            valid &= rng.random((17, 3)) < 0.9  # and rows left out in the middle of an episode
            rewards[~valid] = 1e6
            dones &= valid
        out = normalize(rewards, dones, valid if with_invalid else None)
        new, carry = reference(rewards.astype(np.float64), dones, valid, 0.9, carry)
        seen += new
        assert normalize.moments.count == len(seen)
        np.testing.assert_allclose(out[valid], rewards[valid] / np.sqrt(np.var(seen) + 1e-6), rtol=1e-5)
        assert out.dtype == np.float32


@pytest.mark.parametrize("clip", [None, 0.5])
def test_rewards_of_tensors_are_scaled_as_those_of_arrays(clip):
    """To 1e-12, over several rollouts; a state that is set in between is gone on from in the same memory."""
    rng = np.random.default_rng(0)
    arrays, tensors = NormalizeRewards(0.9, clip, 1e-6), NormalizeRewards(0.9, clip, 1e-6)
    places = set()
    for k in range(5):
        rewards, dones = rng.standard_normal((17, 3)) * 5 + 100.0, rng.random((17, 3)) < 0.2
        out = tensors.normalize_tensors(torch.from_numpy(rewards), torch.from_numpy(dones))
        places.add(tensors._on_device.data_ptr())
        np.testing.assert_allclose(out.numpy(), arrays(rewards, dones), rtol=1e-12)
        if k == 2:
            tensors.normalize_tensors(torch.ones(4, 3), torch.zeros(4, 3, dtype=torch.bool))
            tensors.set_state(arrays.get_state())
        tensors.copy_from_device()
        assert tensors.moments.count == arrays.moments.count == 51 * (k + 1)
        np.testing.assert_allclose(tensors.moments.mean, arrays.moments.mean, rtol=1e-12)
        np.testing.assert_allclose(tensors.moments.var, arrays.moments.var, rtol=1e-12)
        np.testing.assert_allclose(tensors.get_state()["returns"], arrays.get_state()["returns"], rtol=1e-12)
        if k == 3:  # what is not taken over is forgotten
            tensors.normalize_tensors(torch.full((2, 3), torch.nan), torch.zeros(2, 3, dtype=torch.bool))
            tensors.copy_to_device()
    assert len(places) == 1
    assert rewards.mean() > 90  # the input is not changed
    assert tensors.normalize_tensors(torch.ones(1, 2), torch.zeros(1, 2, dtype=torch.bool)).dtype == torch.float32


def test_rewards_are_clipped_keep_their_sign_and_the_input_is_not_changed():
    rewards = np.array([[1.0], [-1.0], [500.0]], np.float32)
    normalize = NormalizeRewards(0.0, clip=1.0)
    out = normalize(rewards, np.zeros((3, 1), bool))
    assert np.sign(out).tolist() == np.sign(rewards).tolist()
    assert out[2, 0] == 1.0
    assert rewards[2, 0] == 500.0
    before = normalize.get_state()["moments"]
    normalize.scale(np.ones(5, np.float32))
    assert normalize.get_state()["moments"] == before
    np.testing.assert_allclose(NormalizeRewards().scale(np.array([2.0, -20.0])), [2.0, -10.0])  # before any update


def test_reward_state_goes_round_with_the_running_returns(tmp_path):
    rng = np.random.default_rng(1)

    def rollout():
        return rng.standard_normal((6, 2)).astype(np.float32), np.zeros((6, 2), bool)

    normalize, other, without_carry = NormalizeRewards(), NormalizeRewards(), NormalizeRewards()
    normalize(*rollout())
    write_checkpoint(tmp_path / "c", {"": {"rewards": normalize.get_state()}})
    state = read_checkpoint(tmp_path / "c")[""]["rewards"]
    other.set_state(state)
    without_carry.set_state({**state, "returns": np.zeros(2)})
    following = rollout()
    expected = normalize(*following)
    np.testing.assert_array_equal(other(*following), expected)
    assert np.abs(without_carry(*following) - expected).max() > 1e-6


def test_another_number_of_environments_begins_anew():
    normalize = NormalizeRewards(0.5)
    normalize(np.ones((3, 2)), np.zeros((3, 2), bool))
    normalize(np.ones((1, 4)), np.zeros((1, 4), bool))
    assert normalize.get_state()["returns"].tolist() == [1.0] * 4
    assert normalize.moments.count == 10


# Actions

ARM = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))


def test_clip_actions():
    actions = np.array([[-3.0, -1.0], [1.0, 5.0], [3.0, 11.0]], np.float32)
    assert ClipActions(ARM)(actions).tolist() == [[-2, 0], [1, 5], [2, 10]]
    assert actions[0].tolist() == [-3, -1]
    assert all(ClipActions(space).is_identity for space in (spaces.Box(-np.inf, np.inf, (2,)), spaces.Discrete(3)))
    half = ClipActions(spaces.Box(0, np.inf, (1,), np.float32))
    assert half(np.array([[-1.0], [1e9]], np.float32)).tolist() == [[0.0], [1e9]]


def test_rescale_actions_and_back():
    rescale = RescaleActions(ARM)
    actions = np.array([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0], [0.5, -0.5]], np.float32)
    expected = np.array([[-2, 0], [0, 5], [2, 10], [1, 2.5]], np.float32)
    np.testing.assert_allclose(rescale(actions), expected)
    np.testing.assert_allclose(rescale.inverse(expected), actions)
    assert rescale(np.array([[5.0, -5.0]], np.float32)).tolist() == [[2, 0]]
    largest = np.finfo(np.float32).max
    huge = RescaleActions(spaces.Box(-largest, largest, (1,), np.float32))
    assert huge(np.array([[1.0]], np.float32))[0, 0] == largest


def test_bounds_fit_actions_in_either_form():
    for shape in ((2, 2), (1, 4), (4, 1), ()):
        size = int(np.prod(shape))
        high = np.arange(1.0, 1.0 + size, dtype=np.float32)
        space = spaces.Box((-high).reshape(shape), high.reshape(shape))
        flat = np.linspace(-9, 9, 3 * size, dtype=np.float32).reshape(3, size)
        clipped, scaled = flat.clip(-high, high), flat.clip(-1, 1) * high
        for leading in ((3,), (3, 1)):
            for form in ((size,), shape):
                given = flat.reshape(leading + form)
                np.testing.assert_array_equal(ClipActions(space)(given), clipped.reshape(given.shape))
                np.testing.assert_allclose(RescaleActions(space)(given), scaled.reshape(given.shape))
                back = RescaleActions(space).inverse(scaled.reshape(given.shape))
                np.testing.assert_allclose(back, given.clip(-1, 1), rtol=1e-6)
