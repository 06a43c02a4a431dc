"""Kernels compiled at run time by a compiler that the user has: which one is called, with what, when its results are taken
from the cache, and that whatever it does wrong costs no answer. The real one is that of the pinned wheel, behind
tools/loom/loom-compile."""
import hashlib
import json
import os
import shutil
import subprocess
import sys

import pytest

from conftest import PROGRAM, ROOT

LLAMA = os.path.join(ROOT, "tests", "data", "golden", "llama.gguf")
FAKE = os.path.join(ROOT, "tests", "hrx", "fake_loom_compile.py")
REAL = os.path.join(ROOT, "tools", "loom", "loom-compile")


@pytest.fixture(scope="module", autouse=True)
def program():
    if not os.path.exists(PROGRAM):
        pytest.skip(f"{PROGRAM} has not been built")


@pytest.fixture(scope="module")
def want():
    return text_of("cpu", {}).stdout


def text_of(device, env):
    base = {k: v for k, v in os.environ.items() if k != "OB_LOOM_COMPILE"}
    return subprocess.run([PROGRAM, "run", "-m", LLAMA, "--raw", "-p", "The capital is", "-n", "4", "--temp", "0", "--ignore-eos",
                           "--device", device, "-c", "128"], capture_output=True, text=True, timeout=240,
                          env={**base, "OB_HRX_SELFTEST": "0", **env})


class World:
    """A cache folder and the fake's log, both new."""

    def __init__(self, tmp):
        self.cache, self.log = tmp / "cache", tmp / "calls"
        self.env = {"XDG_CACHE_HOME": str(self.cache), "FAKE_LOOM_LOG": str(self.log), "OB_LOOM_COMPILE": FAKE}

    def run(self, **env):
        self.log.write_text("")
        r = text_of("hrx-soft", {**self.env, **env})
        assert r.returncode == 0, r.stderr
        return r

    def calls(self):
        """Of objects, not of --version."""
        return [line.split("\t") for line in self.log.read_text().splitlines() if line != "--version"]

    def kept(self):
        return sorted(os.listdir(self.cache / "1bit" / "loom"))


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_compiles_once_and_keeps(world, want):
    assert world.run().stdout == want
    calls = world.calls()
    assert len(calls) >= 4
    for c in calls:
        assert c[0].endswith(".loom") and "--target=amdgpu:gfx1151" in c and "--format=amdgpu-hsaco" in c
        assert c[-1].startswith("--output=") and any(a.startswith("--root=") for a in c)
    attn = [c for c in calls if "--root=attn" in c]
    assert len(attn) == 1 and "--config=attn.k_type=1" in attn[0] and "--config=attn.v_type=1" in attn[0] and "--root=attn_merge" in attn[0]
    assert len(world.kept()) == len(calls)          # and neither sources nor logs stay
    assert all(n.endswith(".hsaco") and "-gfx1151-" in n for n in world.kept())
    assert world.run().stdout == want
    assert world.calls() == [] and world.log.read_text() == "--version\n"


def test_another_version_is_another_code(world, want):
    world.run()
    n = len(world.kept())
    assert world.run(FAKE_LOOM_VERSION="fake 2").stdout == want
    assert len(world.calls()) == n and len(world.kept()) == 2 * n


def test_another_processor_is_another_code(world, want):
    world.run()
    n = len(world.kept())
    r = world.run(HRX_SOFT_ARCH="gfx1100", FAKE_LOOM_GIVES="gfx11-generic")
    assert r.stdout == want and "warning" not in r.stderr
    assert all("--target=amdgpu:gfx1100" in c for c in world.calls())
    assert len(world.kept()) == 2 * n


def test_of_path_only_where_no_code_is_there(world, want, tmp_path):
    os.symlink(FAKE, tmp_path / "loom-compile")
    env = {"OB_LOOM_COMPILE": "", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert world.run(**env).stdout == want
    assert world.log.read_text() == ""              # the program has code for gfx1151
    assert world.run(HRX_SOFT_ARCH="gfx1103", FAKE_LOOM_GIVES="gfx11-generic", **env).stdout == want
    assert len(world.calls()) >= 4
    assert world.run(HRX_SOFT_ARCH="gfx1103", **{**env, "OB_LOOM_COMPILE": "0"}).stdout == want
    assert world.log.read_text() == ""


@pytest.mark.parametrize("does, says", [("fail", "it failed: in.loom:1:1: error: rejected by the fake"),
                                        ("nothing", "it made no code object"), ("text", "it made no code object")])
def test_a_compiler_that_fails_costs_nothing(world, want, does, says):
    r = world.run(FAKE_LOOM_DOES=does)
    assert r.stdout == want and says in r.stderr, r.stderr
    assert len(world.calls()) == 1 and world.kept() == []   # it is asked once


def test_code_that_cannot_be_loaded_is_thrown_away(world, want):
    r = world.run(FAKE_LOOM_DOES="half")
    assert r.stdout == want and "kernels are not compiled here" in r.stderr, r.stderr
    assert len(world.calls()) == 1 and world.kept() == []
    r = world.run(FAKE_LOOM_GIVES="gfx1200")                # of another processor
    assert r.stdout == want and "code for" in r.stderr and world.kept() == [], r.stderr


def test_a_program_that_is_not_there(world, want):
    r = world.run(OB_LOOM_COMPILE="/nonexistent/loom-compile")
    assert r.stdout == want and "/nonexistent/loom-compile: there is no such program" in r.stderr


def test_no_code_at_all_is_refused(world):
    r = text_of("hrx-soft", {**world.env, "OB_LOOM_COMPILE": "0", "HRX_SOFT_ARCH": "gfx1250"})
    assert r.returncode != 0 and "no kernels for gfx1250" in r.stderr, r.stderr


def test_the_real_compiler(world, want):
    """Code for a processor that nothing is shipped for; and for one that is, the same bytes."""
    r = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "loom", "loom_compile.py"), "--setup"], capture_output=True, text=True)
    if r.returncode != 0:
        pytest.skip("the compiler cannot be had: " + r.stderr.strip()[-200:])
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    os.makedirs(world.cache)
    shutil.copytree(os.path.join(cache, "loom-compile"), world.cache / "loom-compile")
    r = world.run(OB_LOOM_COMPILE=REAL, HRX_SOFT_ARCH="gfx1103")
    assert r.stdout == want and "warning" not in r.stderr, r.stderr
    assert len(world.kept()) >= 4 and all("-gfx1103-" in n for n in world.kept())
    world.run(OB_LOOM_COMPILE=REAL)
    with open(os.path.join(ROOT, "src", "dev", "hrx", "loom", "manifest.json"), encoding="utf-8") as f:
        shipped = json.load(f)["targets"]["gfx1151"]
    own = [n for n in world.kept() if "-gfx1151-" in n]
    assert len(own) >= 4
    for n in own:
        assert hashlib.sha256((world.cache / "1bit" / "loom" / n).read_bytes()).hexdigest() == shipped[n.split("-gfx1151-")[0]]["sha256"], n
