"""`AsyncEval` of sb3-contrib: plays the episodes of ARS's candidates in several processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lockstep_sb3.common.vec_env.base_vec_env import CloudpickleWrapper

Episodes = tuple[np.ndarray, np.ndarray]
"""Returns and lengths of a candidate's episodes, each `[E]`."""


class AsyncEval:
    """Processes that play the episodes of candidates, for `ARS.learn(async_eval=...)`.

    Each process has a copy of the model and environments of its own. They start with `learn`, which closes them.

    Args:
        envs_fn: One function for each process, which makes its vector environment.
        train_policy: Policy of the model that learns.
        start_method: "fork", "forkserver" or "spawn". Defaults to "forkserver" if there is one, else "spawn"; then the
            program needs the line `if __name__ == "__main__":`.
        n_eval_episodes: Number of episodes of each candidate.
    """

    def __init__(
        self,
        envs_fn: Sequence[Callable[[], Any]],
        train_policy: Any,
        start_method: str | None = None,
        n_eval_episodes: int = 1,
    ) -> None:
        methods = multiprocessing.get_all_start_methods()
        default = "forkserver" if "forkserver" in methods else "spawn"
        self.context: Any = multiprocessing.get_context(start_method or default)
        self.envs_fn = list(envs_fn)
        self.n_eval_episodes = n_eval_episodes
        self.processes: list[Any] = []
        self.remotes: list[Connection] = []

    def start(self, model: Any) -> None:
        """Start the processes, each with a copy of the model."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.zip"
            model.save(file)
            for index, make_envs in enumerate(self.envs_fn):
                remote, connection = self.context.Pipe()
                # Processes with the same seed would play the same episodes.
                seed = None if model.seed is None else model.seed + 1 + index
                about = (connection, CloudpickleWrapper(make_envs), type(model), str(file), seed, self.n_eval_episodes)
                process = self.context.Process(target=_play_candidates, args=about, daemon=True)
                process.start()
                connection.close()
                self.processes.append(process)
                self.remotes.append(remote)
            try:
                for remote in self.remotes:
                    self._receive(remote)  # the model has been loaded, so that the file may go
            except BaseException:
                self.close()
                raise

    def play(self, candidates: torch.Tensor) -> list[Episodes]:
        """Play the episodes of candidates `[N, W]`, and return them in this order.

        Raises:
            RuntimeError: A process has ended or its environment has raised.
        """
        count = len(self.remotes)
        for number, remote in enumerate(self.remotes):
            remote.send(candidates[number::count])
        parts = [self._receive(remote) for remote in self.remotes]
        return [parts[number % count][number // count] for number in range(len(candidates))]

    def _receive(self, remote: Connection) -> Any:
        """Return the answer of a process."""
        try:
            answer, error = remote.recv()
        except EOFError:
            answer, error = None, "it has ended"
        if error is not None:
            raise RuntimeError(f"a process of AsyncEval failed: {error}")
        return answer

    def close(self) -> None:
        """End the processes."""
        for remote in self.remotes:
            with contextlib.suppress(OSError):  # a process that has failed is gone
                remote.send(None)
            remote.close()
        for process in self.processes:
            process.join(timeout=5)
            process.kill()
            process.join()
        self.processes.clear()
        self.remotes.clear()


def _play_candidates(
    connection: Connection,
    make_envs: Callable[[], Any],
    model_class: Any,
    file: str,
    seed: int | None,
    episodes: int,
) -> None:
    """Play the episodes of candidates that a connection sends, until it sends None."""
    torch.set_num_threads(1)
    try:
        model = model_class.load(file, env=make_envs(), seed=seed)
        if model.get_vec_normalize_env() is not None:
            raise ValueError("statistics of VecNormalize in several processes would differ; leave it out")
        connection.send((None, None))
        while (candidates := connection.recv()) is not None:
            results = []
            for candidate in candidates:
                model.set_weights(candidate)
                stats = model.trainer.collector.collect(n_episode=episodes)
                results.append((np.array(stats.returns), np.array(stats.lens)))
            connection.send((results, None))
    except EOFError:
        return
    except Exception as error:
        connection.send((None, f"{type(error).__name__}: {error}"))
