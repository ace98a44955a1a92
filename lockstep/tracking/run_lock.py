"""`RunLock`: lock of a run folder, so that one process at a time trains the run."""

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

from lockstep.state.processes import is_running
from lockstep.state.replace import temporary_sibling

LOCK = "lock.json"
BEAT_SECONDS = 15.0
"""Time between two heartbeats of the holder."""
STALE_SECONDS = 60.0
"""Age of the heartbeat of a process on another machine after which it counts as dead."""
_TRIES = 5
"""Number of times that a free lock is tried to take, while other processes do the same."""


class RunLockError(ValueError):
    """Error for a run folder that another process has, or that is gone. The message says which, and what to do."""


@dataclass(frozen=True)
class Holder:
    """Description of the process that trains a run."""

    host: str
    """Name of the machine."""
    machine: str
    """Identifier of the running system and its process table. Only where it is equal can process numbers be
    compared."""
    process: int
    """Process number."""
    started: str
    """Start time of the process, as the system counts it. A later process with the same number has another one."""
    job: str = ""
    """Job of torchrun that started the process, "" without one."""
    restarts: int = 0
    """Number of times that the job had been restarted."""
    token: str = ""
    """Random text that is new each time the lock is taken."""

    @classmethod
    def of_this_process(cls, job: str | None, restarts: int) -> Self:
        """Return this process as a holder. torchrun tells `job` and `restarts`."""
        process = os.getpid()
        return cls(
            host=socket.gethostname(),
            machine=_machine(),
            process=process,
            started=_start_time_of(process) or "",
            job=job or "",
            restarts=restarts,
            token=secrets.token_hex(16),
        )

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
        """Return the holder that the content of a lock file names, None if it is damaged."""
        try:
            holder = cls(**json.loads(content))
        except (ValueError, TypeError):
            return None
        numbers = holder.process, holder.restarts
        texts = holder.host, holder.machine, holder.started, holder.job, holder.token
        is_sound = all(type(each) is int for each in numbers) and all(type(each) is str for each in texts)
        return holder if is_sound else None

    @property
    def description(self) -> str:
        """Process and host, for error messages."""
        return f"process {self.process} on {self.host}"


class RunLock:
    """Lock of the run in a folder: the file `lock.json`, whose content names its holder.

    A holder on the same machine is alive while its process is. A holder on another machine is alive while its
    heartbeat, the modification time of the file, is younger than `STALE_SECONDS`. The lock of a dead process can be
    taken. So can a lock of this process: its newest trainer has the folder. Everyone may read the folder.

    As a context manager it holds the lock until the outermost block ends.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / LOCK
        self._content: bytes | None = None
        """Content of the lock file while this object has the lock. Its random token makes it unique."""
        self._is_lost = False
        """Whether another process has taken the lock from this object, which then never gets it back."""
        self._depth = 0
        self._finalizer: weakref.finalize[..., RunLock] | None = None

    # -- taking the lock ---

    def take(self, *, take_over: bool = False, job: str | None = None, restarts: int = 0) -> None:
        """Take the lock, unless this object has it already.

        Args:
            take_over: whether the lock is taken from any holder, even a living one.
            job, restarts: job of torchrun and number of its restarts. A restarted job takes the lock from its earlier
                processes.

        Raises:
            RunLockError: another process trains the run, or has trained it since this object lost the lock, or the
                folder is gone. Nothing is changed in that case.
        """
        self.check()
        if self._content is not None:
            return
        if not self.folder.is_dir():
            raise RunLockError(f"{self.folder} is gone; it was moved or deleted")
        new_holder = Holder.of_this_process(job, restarts)
        content = json.dumps(asdict(new_holder), indent=1).encode() + b"\n"

        # The file is written under another name and then linked: it never exists without its whole content, and only
        # one of several processes can link it.
        candidate = temporary_sibling(self.path)
        candidate.write_bytes(content)
        try:
            for _ in range(_TRIES):
                if _put(candidate, self.path):
                    break
                self._remove_old(new_holder, candidate, take_over)
            else:
                raise RunLockError(f"{self.folder}: other processes take this run at the same time; try again")
        finally:
            candidate.unlink(missing_ok=True)
        self._hold(content)

    def _remove_old(self, new_holder: Holder, candidate: Path, take_over: bool) -> None:
        """Remove the present lock if it may be taken over. `RunLockError` if its holder is alive."""
        try:
            old = self.path.read_bytes()
            # Both times are set by the clock of the file system. The clock of this machine may differ.
            age = candidate.stat().st_mtime - self.path.stat().st_mtime
        except FileNotFoundError:
            return
        if not take_over:
            self._check_gone(old, age, new_holder)

        # Several processes may see the same old lock, and only one of them can rename it. If another process has taken
        # the lock in the meantime, its new lock has been renamed here by mistake, and is put back.
        aside = temporary_sibling(self.path)
        try:
            os.rename(self.path, aside)
        except FileNotFoundError:
            return
        if aside.read_bytes() != old:
            _put(aside, self.path)
        aside.unlink(missing_ok=True)

    def _check_gone(self, content: bytes, age: float, new_holder: Holder) -> None:
        """Check that the holder of a lock is dead, or is this process or an earlier one of its job.

        Args:
            content: content of the lock file.
            age: age of its heartbeat in seconds.
            new_holder: process that wants the lock.

        Raises:
            RunLockError: the holder is alive.
        """
        advice = (
            "end it first, or take the run over with: lockstep resume RUN --take-over, resume(path, take_over=True)"
        )
        holder = Holder.parse(content)
        if holder is None:  # damaged, for example by a power failure: only the age is known
            if age <= STALE_SECONDS:
                raise RunLockError(f"{self.path} is damaged, and was written just now; {advice}")
            return
        is_earlier_of_job = holder.job and holder.job == new_holder.job and holder.restarts < new_holder.restarts
        if holder.is_process_of(new_holder) or is_earlier_of_job:
            return
        trained_by = f"{self.folder} is trained by {holder.description}"
        if holder.machine == new_holder.machine and holder.host == new_holder.host:
            if _start_time_of(holder.process) == holder.started:
                raise RunLockError(f"{trained_by}, which is alive; {advice}")
        elif age <= STALE_SECONDS:
            raise RunLockError(
                f"{trained_by}, whose last sign of life is {max(0.0, age):.0f} s old (after {STALE_SECONDS:.0f} s it "
                f"counts as gone); {advice}"
            )

    def _hold(self, content: bytes) -> None:
        """Start the heartbeat of the lock that this object has taken."""
        self._content = content
        ended = threading.Event()
        threading.Thread(target=_beat, args=(ended, self.path, content), name="run lock", daemon=True).start()
        # Removes the lock also if the trainer is garbage collected or the process ends without `release`.
        self._finalizer = weakref.finalize(self, _remove, content, self.path, ended, os.getpid())

    # -- holding the lock ---

    def check(self) -> None:
        """Check that this object has not lost the lock. `RunLockError` if it has. It is called before each write."""
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
                raise RunLockError(f"{self.folder} was taken over by {holder.description}; nothing more is written")
        raise RunLockError(f"{self.folder} was taken over by another process; nothing more is written")

    def _is_held(self) -> bool:
        """Return whether the lock file still has the content of this object."""
        try:
            return self.path.read_bytes() == self._content
        except OSError:
            return False

    def release(self) -> None:
        """Release the lock, if this object has it."""
        if self._content is not None and not self._is_held():
            self._is_lost = True
        if self._finalizer is not None:
            self._finalizer()
        self._content = None
        self._finalizer = None

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
    """Give a file a second name, unless that name is taken. Return whether it has the name now."""
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
    """Renew the time of a lock file until its holder has ended, or another process has taken the lock."""
    while not ended.wait(BEAT_SECONDS):
        try:
            if path.read_bytes() != content:
                return
            os.utime(path)
        except FileNotFoundError:
            return
        except OSError:
            continue  # a network file system may be unreachable for a moment


def _remove(content: bytes, path: Path, ended: threading.Event, process: int) -> None:
    """Remove a lock file, unless another process has taken the lock."""
    if os.getpid() != process:  # a forked child has inherited the finalizer, but not the lock
        return
    ended.set()
    with contextlib.suppress(OSError):
        if path.read_bytes() == content:
            path.unlink()


def _machine() -> str:
    """Return a text that is equal for two processes exactly if they see the same process table."""
    parts = []
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _start_time_of(process: int) -> str | None:
    """Return the start time of a process of this machine as the system counts it, None if it has ended."""
    try:
        # Field 2 is the command's name in brackets, which may contain spaces and brackets. State and start time are
        # fields 3 and 22.
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        pass
    else:
        return None if fields[0] in "ZX" else fields[19]  # Z: a zombie, X: dead
    if Path("/proc/self/stat").exists():
        return None
    # Without /proc a process is known by its number only.
    return "" if is_running(process) else None
