"""The lock of a run's folder: one process at a time trains the run."""

import contextlib
import json
import os
import secrets
import socket
import threading
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from lockstep.state.replace import temporary_sibling

LOCK = "lock.json"
BEAT_SECONDS = 15.0
STALE_SECONDS = 60.0
"""Age of the heartbeat of a process on another machine after which it counts as gone."""
_TRIES = 5


class RunLockError(ValueError):
    """The run's folder is another process's, or is gone. The message says whose, and what to do."""


@dataclass(frozen=True)
class Holder:
    """The process that trains a run."""

    host: str
    machine: str
    """Identifier of the running system and its processes: within it, process numbers mean the same."""
    process: int
    started: str
    """When the process started, as the system counts; tells it from a later one with the same number."""
    job: str = ""
    """Job of torchrun that started the process; "" without one."""
    restarts: int = 0
    """How often that job had been started again."""
    token: str = ""
    """Random text of this one taking of the lock."""

    @classmethod
    def of_this_process(cls, job: str | None, restarts: int) -> Self:
        """Return this process as a new holder; `job` and `restarts` are those of torchrun."""
        process = os.getpid()
        started = _start_of(process) or ""
        return cls(socket.gethostname(), _machine(), process, started, job or "", restarts, secrets.token_hex(16))

    def is_process_of(self, other: "Holder") -> bool:
        """Return whether both are the same process."""
        return (self.host, self.machine, self.process, self.started) == (
            other.host,
            other.machine,
            other.process,
            other.started,
        )

    @classmethod
    def parse(cls, content: bytes) -> Self | None:
        """Return the holder that a lock names; None for a damaged one."""
        try:
            holder = cls(**json.loads(content))
        except (ValueError, TypeError):
            return None
        numbers = holder.process, holder.restarts
        texts = holder.host, holder.machine, holder.started, holder.job, holder.token
        is_sound = all(type(each) is int for each in numbers) and all(type(each) is str for each in texts)
        return holder if is_sound else None

    @property
    def words(self) -> str:
        """Process and host, as an error names them."""
        return f"process {self.process} on {self.host}"


class RunLock:
    """Lock of the run in a folder: `lock.json`, which names its holder, and whose time is the holder's heartbeat.

    A holder on the same machine is alive while its process is; on another machine, while its heartbeat is younger than
    60 s. The lock of a process that is gone is taken over, and so is one of this process: the newest trainer of a
    process has the folder. Everyone may read the folder.

    As a context: hold the lock until the outermost block ends.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / LOCK
        self._content: bytes | None = None
        """What the lock says while this object has it."""
        self._is_lost = False
        """Whether another process has taken it from this object, which never gets it back."""
        self._depth = 0
        self._finalizer: weakref.finalize[..., RunLock] | None = None

    # -- taking it ---

    def take(self, *, take_over: bool = False, job: str | None = None, restarts: int = 0) -> None:
        """Take the lock, unless this object has it.

        `take_over`: from any holder. `job`, `restarts`: of torchrun; a job that was started again takes the lock from
        its earlier processes.

        Raises `RunLockError`: another process trains the run, or has trained it since this object lost the lock, or the
        folder is gone. Nothing is changed then.
        """
        self.check()
        if self._content is not None:
            return
        if not self.folder.is_dir():
            raise RunLockError(f"{self.folder} is gone; it was moved or deleted")
        mine = Holder.of_this_process(job, restarts)
        content = json.dumps(asdict(mine), indent=1).encode() + b"\n"
        candidate = temporary_sibling(self.path)
        candidate.write_bytes(content)
        try:
            for _ in range(_TRIES):
                if _put(candidate, self.path):
                    break
                self._clear(mine, candidate, take_over)
            else:
                raise RunLockError(f"{self.folder}: other processes take this run at the same time; try again")
        finally:
            candidate.unlink(missing_ok=True)
        self._hold(content)

    def _clear(self, mine: Holder, candidate: Path, take_over: bool) -> None:
        """Remove a lock that may be taken over. Raises `RunLockError` where its holder is alive."""
        try:
            found = self.path.read_bytes()
            age = candidate.stat().st_mtime - self.path.stat().st_mtime  # by the clock of one file system
        except FileNotFoundError:
            return
        if not take_over:
            self._check_gone(found, age, mine)
        # Of several processes that find the same old lock, one moves it away; none must move away a new one.
        aside = temporary_sibling(self.path)
        try:
            os.rename(self.path, aside)
        except FileNotFoundError:
            return
        if aside.read_bytes() != found:
            _put(aside, self.path)
        aside.unlink(missing_ok=True)

    def _check_gone(self, found: bytes, age: float, mine: Holder) -> None:
        advice = (
            "end it first, or take the run over with: lockstep resume RUN --take-over, resume(path, take_over=True)"
        )
        holder = Holder.parse(found)
        if holder is None:  # torn by a power failure, say: only its age tells
            if age <= STALE_SECONDS:
                raise RunLockError(f"{self.path} is damaged, and was written just now; {advice}")
            return
        if holder.is_process_of(mine) or (holder.job and holder.job == mine.job and holder.restarts < mine.restarts):
            return
        words = f"{self.folder} is trained by {holder.words}"
        if holder.machine == mine.machine and holder.host == mine.host:
            if _start_of(holder.process) == holder.started:
                raise RunLockError(f"{words}, which is alive; {advice}")
        elif age <= STALE_SECONDS:
            raise RunLockError(
                f"{words}, whose last sign of life is {max(0.0, age):.0f} s old (after {STALE_SECONDS:.0f} s it counts "
                f"as gone); {advice}"
            )

    def _hold(self, content: bytes) -> None:
        self._content = content
        ended = threading.Event()
        threading.Thread(target=_beat, args=(ended, self.path, content), name="run lock", daemon=True).start()
        # Also where the trainer is dropped, or the process ends, without a word.
        self._finalizer = weakref.finalize(self, _remove, content, self.path, ended, os.getpid())

    # -- holding it ---

    def check(self) -> None:
        """Raise `RunLockError` if this process had the lock and has it no more. Whoever writes calls this before."""
        if not self._is_lost and (self._content is None or self._is_held()):
            return
        self._is_lost = True
        if not self.path.exists():
            raise RunLockError(
                f"{self.folder} is no longer this process's: it was moved or deleted while the run was under way, or "
                "another process has taken it over and ended; nothing more is written"
            )
        with contextlib.suppress(OSError):
            holder = Holder.parse(self.path.read_bytes())
            if holder is not None:
                raise RunLockError(f"{self.folder} was taken over by {holder.words}; nothing more is written")
        raise RunLockError(f"{self.folder} was taken over by another process; nothing more is written")

    def _is_held(self) -> bool:
        try:
            return self.path.read_bytes() == self._content
        except OSError:
            return False

    def release(self) -> None:
        """Give the lock back, if this object has it."""
        if self._content is not None and not self._is_held():
            self._is_lost = True
        if self._finalizer is not None:
            self._finalizer()
        self._content, self._finalizer = None, None

    def __enter__(self) -> Self:
        self.take()
        self._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.release()


def _put(source: Path, target: Path) -> bool:
    """Give a file a second name unless it is taken; return whether it has it."""
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        try:
            with open(target, "xb") as file:
                file.write(source.read_bytes())
        except FileExistsError:
            return False
    return True


def _beat(ended: threading.Event, path: Path, content: bytes) -> None:
    """Renew the time of the lock until it has ended, or is another's."""
    while not ended.wait(BEAT_SECONDS):
        try:
            if path.read_bytes() != content:
                return
            os.utime(path)
        except FileNotFoundError:
            return
        except OSError:
            continue  # a network file system that is away for a moment


def _remove(content: bytes, path: Path, ended: threading.Event, process: int) -> None:
    if os.getpid() != process:  # a child that was forked
        return
    ended.set()
    with contextlib.suppress(OSError):
        if path.read_bytes() == content:
            path.unlink()


def _machine() -> str:
    """Return a text that two processes share if the numbers of processes mean the same to both."""
    parts = []
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _start_of(process: int) -> str | None:
    """Return when a process of this machine started, as the system counts; None where it is gone, or has ended."""
    try:
        # The command's name stands in brackets and may hold anything; state and start are fields 3 and 22.
        fields = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        pass
    else:
        return None if fields[0] in "ZX" else fields[19]
    if Path("/proc/self/stat").exists():
        return None
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    return ""  # a system without /proc: its number must do
