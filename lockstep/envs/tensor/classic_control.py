"""gymnasium's CartPole, Pendulum and Acrobot in torch.

A step returns the same numbers as gymnasium's: to 1e-12 with a float64 state, and to float32 precision otherwise. The
arithmetic is gymnasium's, with constants folded where that saves an operation, and with operations in place on new
tensors: on a GPU each operation on these small tensors is one kernel launch, which costs more than its arithmetic.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lockstep.envs.tensor.base import State, TensorEnv


class CartPole(TensorEnv):
    """CartPole-v1: balance a pole on a cart that is pushed left or right.

    The state is `{"physics": [B, 4]}`: position and velocity of the cart, angle and angular velocity of the pole. With
    the angle a and its velocity w, the force F, the masses m of the pole and M of both, and half the pole's length l:

        push = (F + m l w^2 sin a) / M
        w'   = (g sin a - cos a push) / (l (4/3 - m cos^2 a / M))
        v'   = push - m l w' cos a / M
    """

    num_draws = 4
    draw_range = (-0.05, 0.05)
    time_limit = 500
    gives_new_tensors = True
    gravity = 9.8
    total_mass = 1.1
    length = 0.5
    """Half the length of the pole."""
    force = 10.0
    tau = 0.02
    """Seconds of a step."""
    mass_ratio: ClassVar[float] = 0.1 / 1.1
    """Mass of the pole divided by the total mass."""
    max_position = 2.4
    max_angle = 12 * 2 * math.pi / 360
    single_action_space = spaces.Discrete(2)
    _high = np.array([max_position * 2, np.inf, max_angle * 2, np.inf], np.float32)
    single_observation_space = spaces.Box(-_high, _high)

    def make_state(self) -> State:
        options: Any = {"dtype": self.dtype, "device": self.device}
        self._pushes = torch.tensor([-self.force, self.force], **options) / self.total_mass
        self._inertia = torch.tensor(self.length * 4 / 3, **options)
        self._bounds = torch.tensor([self.max_position, self.max_angle], **options)
        return {"physics": torch.zeros(self.num_envs, 4, **options)}

    def begin(self, draws: Tensor) -> State:
        return {"physics": draws}

    def advance(self, state: State, actions: Tensor, draws: Tensor) -> tuple[State, Tensor, Tensor]:
        physics = state["physics"]
        _, velocity, angle, spin = physics.unbind(1)
        sine = angle.sin()
        cosine = angle.cos()
        lever = self.mass_ratio * self.length  # m l / M
        push = self._pushes.index_select(0, actions).addcmul_(spin * sine, spin, value=lever)
        torque = (self.gravity * sine).addcmul_(cosine, push, value=-1.0)
        inertia = torch.addcmul(self._inertia, cosine, cosine, value=-lever)
        spin_rate = torque.div_(inertia)
        velocity_rate = push.addcmul_(spin_rate, cosine, value=-lever)

        # Explicit Euler: all rates are those before the step, as in gymnasium's default integrator.
        rates = torch.stack((velocity, velocity_rate, spin, spin_rate), 1)
        physics = torch.add(physics, rates, alpha=self.tau)
        fell = (physics[:, ::2].abs() > self._bounds).any(1)  # position and angle
        rewards = torch.ones(self.num_envs, dtype=torch.float32, device=self.device)
        return {"physics": physics}, rewards, fell

    def observe(self, state: State) -> Tensor:
        return state["physics"].float()


class Pendulum(TensorEnv):
    """Pendulum-v1: swing a pendulum up with little torque, and hold it.

    The state is `{"physics": [B, 2]}`: angle a (0 is upright) and angular velocity w. With the torque u, the cost is
    `a^2 + 0.1 w^2 + 0.001 u^2`, a in [-pi, pi], and `w' = 3 g sin a / (2 l) + 3 u / (m l^2)`.
    """

    num_draws = 2
    draw_range = (-1.0, 1.0)
    time_limit = 200
    gives_new_tensors = True
    max_speed = 8.0
    max_torque = 2.0
    dt = 0.05
    gravity = 10.0
    mass = 1.0
    length = 1.0
    single_action_space = spaces.Box(-max_torque, max_torque, (1,), np.float32)
    _high = np.array([1.0, 1.0, max_speed], np.float32)
    single_observation_space = spaces.Box(-_high, _high)

    def make_state(self) -> State:
        options: Any = {"dtype": self.dtype, "device": self.device}
        self._first_range = torch.tensor([math.pi, 1.0], **options)
        return {"physics": torch.zeros(self.num_envs, 2, **options)}

    def begin(self, draws: Tensor) -> State:
        return {"physics": draws * self._first_range}

    def advance(self, state: State, actions: Tensor, draws: Tensor) -> tuple[State, Tensor, Tensor]:
        angle, speed = state["physics"].unbind(1)
        torque = actions.squeeze(1).clamp(-self.max_torque, self.max_torque)
        wrapped_angle = torch.remainder(angle + math.pi, 2 * math.pi).sub_(math.pi)
        costs = (wrapped_angle.square_() + 0.1 * speed.square()).add_(0.001 * torque.square())
        # gymnasium multiplies in the action's dtype; multiplying in the state's would give other last bits.
        gain = 3.0 / (self.mass * self.length**2)
        rate = angle.sin().mul_(3 * self.gravity / (2 * self.length)).add_(gain * torque)
        # Semi-implicit Euler: the angle moves with the new velocity.
        speed = torch.add(speed, rate, alpha=self.dt).clamp_(-self.max_speed, self.max_speed)
        angle = torch.add(angle, speed, alpha=self.dt)
        never_done = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        return {"physics": torch.stack((angle, speed), 1)}, costs.float().neg_(), never_done

    def observe(self, state: State) -> Tensor:
        angle, speed = state["physics"].unbind(1)
        return torch.stack((angle.cos(), angle.sin(), speed), 1).float()


class Acrobot(TensorEnv):
    """Acrobot-v1: swing the lower of two links up by a torque at the joint between them.

    The links have mass, length and moment of inertia 1, with their centres of mass in the middle, and the constants
    below are computed from that. The equations are those of Sutton and Barto's book, which gymnasium uses by default.
    The state is `{"physics": [B, 4]}`: two angles and their velocities.
    """

    num_draws = 4
    draw_range = (-0.1, 0.1)
    time_limit = 500
    gives_new_tensors = True
    gravity = 9.8
    dt = 0.2
    max_speeds = (4 * math.pi, 9 * math.pi)
    single_action_space = spaces.Discrete(3)
    _high = np.array([1.0, 1.0, 1.0, 1.0, *max_speeds], np.float32)
    single_observation_space = spaces.Box(-_high, _high)

    def make_state(self) -> State:
        options: Any = {"dtype": self.dtype, "device": self.device}
        self._torques = torch.tensor([-1.0, 0.0, 1.0], **options)
        self._max_speeds = torch.tensor(self.max_speeds, **options)
        self._inertia = torch.tensor(1.25, **options)
        return {"physics": torch.zeros(self.num_envs, 4, **options)}

    def begin(self, draws: Tensor) -> State:
        return {"physics": draws}

    def advance(self, state: State, actions: Tensor, draws: Tensor) -> tuple[State, Tensor, Tensor]:
        start = state["physics"]
        dt = self.dt
        torque = self._torques.index_select(0, actions)

        # Runge-Kutta method of fourth order.
        rate_1 = self._rates(start, torque)
        rate_2 = self._rates(torch.add(start, rate_1, alpha=dt / 2), torque)
        rate_3 = self._rates(torch.add(start, rate_2, alpha=dt / 2), torque)
        rate_4 = self._rates(torch.add(start, rate_3, alpha=dt), torque)
        total = rate_1.add_(rate_2, alpha=2).add_(rate_3, alpha=2).add_(rate_4)
        angles, speeds = torch.add(start, total, alpha=dt / 6).split(2, 1)

        angles = torch.sub(angles, (angles / (2 * math.pi)).round_(), alpha=2 * math.pi)  # into [-pi, pi]
        speeds = speeds.clamp(-self._max_speeds, self._max_speeds)
        height = -angles[:, 0].cos() - angles.sum(1).cos()
        at_goal = height > 1.0
        rewards = at_goal.float().sub_(1.0)  # -1 in each step but the last, which gives 0
        return {"physics": torch.cat((angles, speeds), 1)}, rewards, at_goal

    def _rates(self, physics: Tensor, torque: Tensor) -> Tensor:
        """Return the time derivatives `[B, 4]` of the angles and velocities. Names as in Sutton and Barto's book."""
        angle_1, angle_2, speed_1, speed_2 = physics.unbind(1)
        sine = angle_2.sin()
        cosine = angle_2.cos()
        d1 = cosine + 3.5
        d2 = torch.add(self._inertia, cosine, alpha=0.5)
        phi2 = (angle_1 + angle_2).sin_().mul_(0.5 * self.gravity)  # cos(x - pi / 2) is sin(x)
        phi1 = torch.add(phi2, angle_1.sin(), alpha=1.5 * self.gravity)
        phi1.addcmul_(torch.add(speed_1, speed_2, alpha=0.5), speed_2 * sine, value=-1.0)
        ratio = d2 / d1
        force = (torque - phi2).addcmul_(ratio, phi1).addcmul_(speed_1 * sine, speed_1, value=-0.5)
        rate_2 = force.div_(torch.addcmul(self._inertia, d2, ratio, value=-1.0))
        rate_1 = phi1.addcmul_(d2, rate_2).div_(d1).neg_()
        return torch.stack((speed_1, speed_2, rate_1, rate_2), 1)

    def observe(self, state: State) -> Tensor:
        angles, speeds = state["physics"].split(2, 1)
        directions = torch.stack((angles.cos(), angles.sin()), 2).flatten(1)
        return torch.cat((directions, speeds), 1).float()
