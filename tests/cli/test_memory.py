"""--mlock and --no-mmap, from the outside."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

PROGRAM = os.environ.get("ONEBIT_BIN", str(pathlib.Path(__file__).parents[2] / "build" / "1bit"))
DATA = pathlib.Path(__file__).parent.parent / "data" / "golden"


def run(*words, before=()):
    return subprocess.run([*before, PROGRAM, "bench", "-m", str(DATA / "qwen3moe.gguf"), "--device", "cpu", "-p", "8",
                           "-n", "8", "-r", "1", *words], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("words", [["--no-mmap"], ["--mlock"], ["--no-mmap", "--mlock", "--moe-slots", "12"]])
def test_runs(words):
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert "pp8" in done.stdout


def test_mlock_without_the_right_to():
    tool = shutil.which("setpriv")
    if not tool:
        pytest.skip("needs setpriv (util-linux), to take the right to lock memory away")
    before = [shutil.which("prlimit"), "--memlock=65536", tool, "--bounding-set=-ipc_lock", "--inh-caps=-all"]
    done = run("--mlock", before=before)
    assert done.returncode == 0, done.stderr
    assert re.search(r"--mlock does nothing: this process may lock 64 KiB only", done.stderr), done.stderr


def test_sizes():
    for bad in ("12X", "x", "-1", "1GG"):
        done = run("--memory", bad)
        assert done.returncode == 2 and "--memory" in done.stderr
    done = run("--moe-slots", "some")
    assert done.returncode == 2 and "--moe-slots" in done.stderr
