"""Compiled code is kept between processes, and a run's bits do not depend on whether it was there."""

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from learner_parts import assert_same, parameters, ppo_batch, ppo_config

from lockstep.cli import main
from lockstep.learner.compile import cache as compile_cache
from lockstep.learner.compile import code_folder
from lockstep.learner.compile import process as compile_process
from lockstep.learner.compile.cache import PendingCode, key_of
from lockstep.learner.compile.recorded import NotRecordedError, record


def inputs(rows=4, dtype=torch.float32, column_major=False):
    x = torch.arange(3.0 * rows, dtype=dtype).reshape(rows, 3)
    return [x.t().contiguous().t() if column_major else x, torch.ones(3, dtype=dtype)]


def graph_of(tensors, factor=2.0, combine=torch.add):
    """Halves the second input in place and gives the sum of the rows, times a factor."""

    def step():
        tensors[1].mul_(0.5)
        sums = torch.zeros(3, dtype=tensors[0].dtype)
        sums[:] += combine(tensors[0], tensors[1]).sum(0)
        return (sums * factor,)

    return record(step, tensors)[0]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The empty folder of compiled code."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return compile_cache.cache_folder()


KEPT = pytest.mark.long
"""what needs compiled code, which takes 20 s of processor time to make; these tests run with every part"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A cache folder with the code of one graph."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        tensors = inputs()
        PendingCode(graph_of(tensors), tensors).get()
        yield compile_cache.cache_folder()


def no_process(*_, **__):
    raise AssertionError("a process was started, though the code was kept")


# -- what is kept ---


@KEPT
def test_kept_code_loads_without_a_compiler_and_equals_the_graph(kept, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", no_process)
    tensors = inputs()
    code = PendingCode(graph_of(tensors), tensors).get()
    expected = (inputs()[0] + 0.5).sum(0) * 2.0
    for _ in range(2):
        (sums,) = code(tensors := inputs())
        assert torch.allclose(sums, expected)
        assert torch.equal(tensors[1], torch.full((3,), 0.5))  # written to
    for other in ({"column_major": True}, {"rows": 5}, {"dtype": torch.float64}):
        with pytest.raises(RuntimeError):
            code(inputs(**other))


@KEPT
def test_another_process_finds_kept_code_and_loads_no_compiler(kept):
    program = (
        "import subprocess, sys; subprocess.Popen = None; from test_learner_compile_cache import *; "
        "compiler = 'torch._inductor' in sys.modules; t = inputs(); PendingCode(graph_of(t), t).get()(t); "
        "print(compiler, 'torch._inductor' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "XDG_CACHE_HOME": str(kept.parents[1])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=100)
    assert done.stdout.split() == ["False", "False"], done.stderr


PAGES = """
import os, resource, sys
import torch
from lockstep.learner.compile.cache import keep_freed_memory

keep_freed_memory()
for number in range(6):
    if number == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.ones(2_000_000) for _ in range(6)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_memory_of_a_step_stays_in_the_process_unless_the_user_has_set_it_otherwise():
    """Six blocks of 8 MB, again and again: 11,700 new pages each time, or none."""
    found = []
    for variables in ({}, {"MALLOC_TRIM_THRESHOLD_": "1000000"}):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
        done = subprocess.run([sys.executable, "-c", PAGES], env=environment, capture_output=True, check=True)
        found.append(int(done.stdout))
    kept, returned = found
    assert returned > 40_000
    assert kept < returned / 4  # of 40 blocks, one or another is a new one


@KEPT
@pytest.mark.parametrize("damage", ["cut", "changed", "without checksum"])
def test_damaged_code_is_compiled_again(kept, folder, monkeypatch, damage):
    for file in kept.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (library,) = folder.glob("*.so")
    content = library.read_bytes()
    if damage == "without checksum":
        (folder / f"{library.name}.sha256").unlink()
    else:
        library.write_bytes(content[:1000] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    started = []
    monkeypatch.setattr(PendingCode, "_start", lambda code: started.append(code))
    tensors = inputs()
    PendingCode(graph_of(tensors), tensors)
    assert len(started) == 1


def test_the_key_changes_with_all_that_code_depends_on(monkeypatch):
    tensors = inputs()
    keys = [key_of(graph_of(tensors), tensors)]
    assert key_of(graph_of(tensors), tensors) == keys[0]
    keys += [key_of(graph_of(inputs(), **other), tensors) for other in ({"factor": 3.0}, {"combine": torch.sub})]
    for other in ({"rows": 5}, {"dtype": torch.float64}, {"column_major": True}):
        keys.append(key_of(graph_of(inputs(**other)), inputs(**other)))
    for place, name, value in (
        (torch, "__version__", "0.0"),
        (torch.version, "git_version", "other"),
        (torch, "get_num_threads", lambda: 7),
        (torch.backends.cpu, "get_cpu_capability", lambda: "other"),
        (compile_cache, "_machine", lambda: "flags: other"),
        (compile_cache, "OPTIONS", {"cpp.use_decompose_tanh": False}),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, value)
            keys.append(key_of(graph_of(tensors), tensors))
    monkeypatch.setenv("TORCHINDUCTOR_FREEZING", "1")
    keys.append(key_of(graph_of(tensors), tensors))
    assert len(set(keys)) == len(keys)


def test_an_option_of_the_loss_or_the_optimizer_is_in_the_key(monkeypatch):
    keys = []
    monkeypatch.setattr(PendingCode, "__init__", lambda code, *parts: keys.append(key_of(*parts)))
    inputs_only = ({}, {"clip_param": 0.3}, {"lr": 0.5})  # schedules: numbers that the code is given in each step
    for options in (*inputs_only, {"vf_loss_coeff": 0.7}, {"adam_epsilon": 1e-7}, {"grad_clip": 0.1}):
        learner = ppo_config(**{"lr": 0.01, **options}).framework(compile=True, compile_after=1000).build_learner()
        learner.update_from_batch(ppo_batch(32), minibatch_size=8)
    assert len(set(keys[:3])) == 1
    assert len(set(keys[2:])) == 4


# -- what a graph cannot hold ---


@pytest.mark.parametrize(
    "function, reason",
    [
        (lambda x: x * x.sum().item(), "reads a tensor's value on the host"),
        (lambda x: x[x > 0], "shapes of its tensors depend on their values"),
        (lambda x: x + torch.randn(3), "draws random numbers"),
        (lambda x: torch.tensor([0.0, 0.0, 0.0])[:2].add_(x[:2]), "writes to a tensor that was made from numbers"),
    ],
)
def test_operations_that_a_graph_cannot_hold_are_refused(function, reason):
    x = torch.ones(3)
    with pytest.raises(NotRecordedError, match=reason):
        record(lambda: function(x), [x])


def test_a_tensor_that_a_step_makes_and_writes_to_is_made_in_each_call():
    x = torch.ones(3)

    def step():
        sums = torch.zeros(2, 3)
        sums[1].add_(x).mul_(2.0)
        return (sums.flatten()[3:] + torch.linspace(0.0, 1.0, 3),)

    names = {"torch": torch, "device": torch.device}
    exec(record(step, [x])[0].code, names)
    graph = compile_process.graph_of(names["forward"])
    for _ in range(2):
        assert torch.equal(graph(x)[0], torch.tensor([2.0, 2.5, 3.0]))
    assert [node.target for node in graph.graph.nodes if node.op == "get_attr"] == ["_tensor_constant0"]
    assert torch.equal(graph._tensor_constant0, torch.linspace(0.0, 1.0, 3))  # what is not written to stays a constant


def test_a_tensor_from_outside_is_an_input_and_is_read_at_each_call():
    x, other = torch.ones(3), torch.tensor([1.0, 2.0, 3.0])
    graph, found = record(lambda: x * other, [x])
    assert found[0] is x
    assert found[1] is other
    other.mul_(2)
    assert torch.equal(graph(*found), torch.tensor([2.0, 4.0, 6.0]))


# -- bad input ---


def test_a_killed_compiler_is_an_error_that_says_so(folder):
    tensors = inputs()
    code = PendingCode(graph_of(tensors), tensors)
    code._process.kill()
    with pytest.raises(RuntimeError, match="ended with code -9"):
        code.get()


def test_a_run_continues_eagerly_when_its_compiler_is_killed(folder):
    compiled, eager = (
        ppo_config(lr=0.01).framework(compile=both, compile_after=4).build_learner() for both in (True, False)
    )
    compiled.update_from_batch(ppo_batch(32), minibatch_size=8)
    (step,) = compiled.compiled._steps.values()
    step.get_code.__self__._process.kill()
    with pytest.warns(UserWarning, match="runs eagerly, because compiling it failed"):
        compiled.update_from_batch(ppo_batch(32, seed=1), minibatch_size=8)
    for seed in (0, 1):
        eager.update_from_batch(ppo_batch(32, seed=seed), minibatch_size=8)
    assert_same(parameters(compiled), parameters(eager))


def test_a_compiler_that_nobody_waits_for_is_ended(folder):
    tensors = inputs()
    code = PendingCode(graph_of(tensors), tensors)
    process = code._process
    del code
    assert process.wait(timeout=60) != 0
    assert list(folder.iterdir()) == []


def test_a_read_only_cache_folder_is_replaced_for_the_process(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="cannot be kept for later runs.*set XDG_CACHE_HOME"):
        folder = compile_cache.cache_folder()
    assert folder.is_dir()
    assert folder == compile_cache.cache_folder()


# -- the change-over ---


def test_compiled_code_takes_over_at_the_update_that_is_asked_for(traced, monkeypatch):
    learner = ppo_config(lr=0.01).framework(compile=True, compile_after=6).build_learner()
    eager, eager_step = [], type(learner)._update
    monkeypatch.setattr(type(learner), "_update", lambda *parts: eager.append(eager_step(*parts)))
    learner.update_from_batch(ppo_batch(32), minibatch_size=8)
    assert (len(traced), len(eager)) == (1, 4)  # begun with the first step
    learner.update_from_batch(ppo_batch(32), minibatch_size=8)
    assert len(eager) == 8  # at the update after six steps, not within one
    learner.update_from_batch(ppo_batch(32), minibatch_size=8)
    assert len(eager) == 8
    restored = ppo_config(lr=0.01).framework(compile=True, compile_after=6).build_learner()
    restored.set_state(learner.get_state())
    restored.update_from_batch(ppo_batch(32), minibatch_size=8)
    assert len(eager) == 8  # steps are those of the learner's life


@pytest.mark.long
def test_first_and_second_start_end_with_the_same_bits(folder, monkeypatch):
    ends = []
    for _ in range(2):
        learner = ppo_config(lr=0.01).framework(dtype="float32", compile=True, compile_after=4).build_learner()
        for seed in range(3):
            learner.update_from_batch(ppo_batch(32, seed=seed), minibatch_size=8)
        ends.append(parameters(learner))
        monkeypatch.setattr(subprocess, "Popen", no_process)
    assert_same(*ends)


@pytest.mark.long
def test_code_is_compiled_if_the_compiler_does_not_know_the_processor(folder, tmp_path, monkeypatch):
    script = tmp_path / "old_compiler"
    script.write_text('#!/bin/sh\ncase "$*" in *mavx*) exit 1;; esac\nexec g++ "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    tensors = inputs()
    (sums,) = PendingCode(graph_of(tensors), tensors).get()(tensors := inputs())
    assert torch.allclose(sums, (inputs()[0] + 0.5).sum(0) * 2.0)


@pytest.mark.faults
def test_a_compiler_ends_when_the_process_that_waits_for_it_is_killed(folder):
    code = """
import time
from test_learner_compile_cache import PendingCode, graph_of, inputs
tensors = inputs()
code = PendingCode(graph_of(tensors), tensors)
print(code._process.pid, flush=True)
time.sleep(1000)
"""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment, text=True) as parent:
        compiler = Path("/proc") / parent.stdout.readline().strip()
        parent.kill()
    while compiler.exists() and (compiler / "stat").read_text().rpartition(") ")[2][0] != "Z":
        time.sleep(0.05)
    assert list(folder.iterdir()) == []


# -- whose folder it is ---


def mode_of(folder):
    return stat.S_IMODE(folder.stat().st_mode)


def test_the_folder_is_private(folder):
    assert mode_of(folder) == 0o700


def test_a_folder_that_others_could_write_to_is_closed_and_emptied(folder):
    (folder / "foreign.so").write_bytes(b"x")
    (folder / "making-1").mkdir()
    folder.chmod(0o777)
    assert compile_cache.cache_folder() == folder
    assert mode_of(folder) == 0o700
    assert list(folder.iterdir()) == []


def test_a_folder_that_others_could_only_read_is_closed_and_kept(folder):
    (folder / "own.so").write_bytes(b"x")
    folder.chmod(0o755)
    compile_cache.cache_folder()
    assert mode_of(folder) == 0o700
    assert [path.name for path in folder.iterdir()] == ["own.so"]


def test_a_link_is_no_folder_of_code(folder, tmp_path):
    elsewhere = folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(elsewhere)
    compile_cache._folder_of_process.cache_clear()
    with pytest.warns(UserWarning, match="is a link or a file"):
        assert compile_cache.cache_folder() != folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_the_folder_of_another_user_is_not_used(folder):
    os.chown(folder, 12345, -1)
    compile_cache._folder_of_process.cache_clear()
    with pytest.warns(UserWarning, match="belongs to another user"):
        assert compile_cache.cache_folder() != folder


@KEPT
@pytest.mark.parametrize("change", ["open", "foreign", "link"])
def test_code_that_is_not_the_users_own_is_not_loaded(kept, folder, change, monkeypatch):
    if change == "foreign" and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    for file in kept.iterdir():
        shutil.copy(file, folder / file.name)
    tensors = inputs()
    graph = graph_of(tensors)
    code = PendingCode(graph, tensors)
    assert code._load() is not None
    path = code._path
    if change == "open":
        folder.chmod(0o777)
    elif change == "foreign":
        os.chown(path, 12345, -1)
    else:
        path.rename(folder / "moved")
        path.symlink_to(folder / "moved")
    assert code._load() is None


def test_the_size_is_bounded_and_the_last_used_code_stays(folder):
    for number in range(4):
        (folder / f"{number}.so").write_bytes(bytes(100))
        (folder / f"{number}.so.sha256").write_text("x")
        os.utime(folder / f"{number}.so", (number, number))
    code_folder.limit_size(folder, 250)
    assert sorted(path.name for path in folder.iterdir()) == ["2.so", "2.so.sha256", "3.so", "3.so.sha256"]


def test_the_command_shows_and_empties(folder, capsys):
    assert main(["cache"]) == 0
    assert "0 compiled graphs, 0.0 MiB" in capsys.readouterr().out
    (folder / "a.so").write_bytes(bytes(3 << 20))
    assert main(["cache"]) == 0
    assert "1 compiled graphs, 3.0 MiB" in capsys.readouterr().out
    assert main(["cache", "--empty"]) == 0
    assert "deleted 1 compiled graphs, 3.0 MiB" in capsys.readouterr().out
    assert list(folder.iterdir()) == []
