"""`1bit npu selftest`: the software model climbs the whole ladder and gives no speed; a machine without an NPU is told so."""
import json
import os
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("ONEBIT_BIN", os.path.join(ROOT, "build", "1bit"))


def run(*args, **env):
    return subprocess.run([PROGRAM, "npu", *args], capture_output=True, text=True, timeout=120, env={**os.environ, **env})


def test_soft():
    done = run("selftest", "--device", "npu-soft", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["hardware"] is False and report["ok"] is True
    names = [s["name"].split()[0] for s in report["steps"]]
    assert names.index("nop") < names.index("copy") < names.index("gemm") < names.index("gemv")
    for step in report["steps"]:
        assert step["ok"] and set(step) == {"name", "ok", "text"}  # no figure of any kind
    text = run("selftest", "--device", "npu-soft").stdout
    assert text.startswith("npu-soft: a software model, no NPU")
    assert "ms" not in text.split() and "GB/s" not in text and "tok/s" not in text


def test_soft_that_fails():
    """The third submission ends wrongly, and so does its repetition: the ladder stops there and says why."""
    done = run("selftest", "--device", "npu-soft", "--json", OB_NPU_SOFT_FAULTS="end:3:1:ERROR,end:5:1:ERROR")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["ok"] is False and report["hardware"] is False
    assert [s["ok"] for s in report["steps"]][-1] is False and len(report["steps"]) < 12
    assert report["steps"][-1]["text"]


@pytest.mark.parametrize("submission, step, text", [(3, "copy", "differs"), (6, "gemm", "must be")])
def test_bit_flip_is_found(submission, step, text):
    done = run("selftest", "--device", "npu-soft", "--json", OB_NPU_SOFT_FAULTS=f"flip:{submission}")
    report = json.loads(done.stdout)
    assert done.returncode == 1 and not report["ok"]
    assert report["steps"][-1]["name"].startswith(step) and text in report["steps"][-1]["text"]


def test_no_npu():
    if os.path.exists("/dev/accel/accel0"):
        return
    done = run("selftest", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 1 and report["hardware"] is True and report["ok"] is False
    assert report["steps"][0]["text"] and len(report["steps"]) == 1


def test_usage():
    assert run("selftest", "--device", "vulkan").returncode in (1, 2)
    assert run("dance").returncode == 2
