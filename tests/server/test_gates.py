"""1bit gates: closed, open and not measurable, on pairs of devices that every machine has."""
import glob
import json
import os
import re
import subprocess

import pytest

from conftest import PROGRAM, ROOT

GOLDEN = os.path.join(ROOT, "tests", "data", "golden")
LLAMA = os.path.join(GOLDEN, "llama.gguf")


@pytest.fixture
def gates(tmp_path):
    """Run a command with a state folder of its own, and reference numbers of two models and a tower."""
    if not os.path.exists(PROGRAM):
        pytest.skip(f"{PROGRAM} has not been built")
    golden = tmp_path / "golden"
    golden.mkdir()
    for name in ("llama.gguf", "llama.npz", "smolvlm.gguf", "smolvlm.npz", "mmproj-smolvlm.gguf"):
        os.symlink(os.path.join(GOLDEN, name), golden / name)

    def run(*args, command="gates"):
        if command == "gates":
            args = ("--golden", str(golden), "-n", "12", "-r", "3", "--records", "6", "-q", *args)
        return subprocess.run([PROGRAM, command, *args], capture_output=True, text=True, timeout=300,
                              env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")})

    run.kept = lambda: glob.glob(str(tmp_path / "state" / "1bit" / "gates" / "*.json"))
    return run


def states(report):
    return {g["id"]: g["state"] for g in report["gates"]}


def test_a_device_against_itself(gates, model, tmp_path):
    """All that can be closed is; the report is kept, told by devices and doctor, and stale once something changed."""
    page, file = tmp_path / "r.html", tmp_path / "r.json"
    for _ in range(4):  # a busy machine may slow one of both down
        r = gates("--candidate", "cpu", "--baseline", "cpu", "--models", model, "-r", "5", "--json", str(file), "--html", str(page))
        assert r.returncode == 0, r.stderr
        report = json.loads(file.read_text())
        if states(report)["decode"] == "closed":
            break
    assert states(report) == {"decode": "closed", "architectures": "closed", "files": "closed", "needle": "closed",
                              "vision": "closed", "sequences": "closed", "speculation": "closed"}
    assert report["closed"] is True and report["candidate"]["id"] == "cpu:0"
    row = report["gates"][0]["rows"][0]
    assert row["ratio"] >= 0.9 and row["candidate_tok_per_s"]["min"] <= row["candidate_tok_per_s"]["median"]
    assert "(a) decode within 10 %" in r.stdout and "the same with drafts" in r.stdout
    html = page.read_text()
    assert html.startswith("<!doctype html>") and "7 of 7 gates are closed" in html
    assert "<script" not in html and not re.search(r"(?:src|href)=", html)
    kept = gates.kept()
    assert len(kept) == 1 and json.load(open(kept[0])) == report
    said = gates(command="devices").stdout
    assert "all closed against cpu:0" in said
    with open(kept[0], "w") as f:
        json.dump({**report, "closed": False, "gates": [{**g, "state": "open"} if g["id"] == "speculation" else g
                                                        for g in report["gates"]]}, f)
    assert "not closed: speculation" in gates(command="devices").stdout
    for key, value in (("version", "0.0.1"), ("candidate", {**report["candidate"], "driver": "another one"})):
        with open(kept[0], "w") as f:
            json.dump({**report, key: value}, f)
        assert "is stale, so auto does not use it" in gates(command="devices").stdout
        doctor = json.loads(gates("--json", command="doctor").stdout)
        assert any(x["check"] == "gates" and "stale" in x["text"] for x in doctor)


def test_an_emulation_has_no_speed(gates):
    """Right answers of the software driver, but no figure of its speed."""
    r = gates("--candidate", "lavapipe", "--baseline", "cpu", "--models", LLAMA, "--json")
    if r.returncode and "lavapipe" in r.stderr:
        pytest.skip("no software driver of Vulkan: " + r.stderr.strip())
    assert r.returncode == 0, r.stderr
    report = json.loads(r.stdout)
    assert report["candidate"]["hardware"] is False
    got = states(report)
    assert got["decode"] == "not measurable here" and "software device" in report["gates"][0]["text"]
    assert "tok_per_s" not in r.stdout and "ratio" not in r.stdout
    assert got["architectures"] == got["files"] == got["sequences"] == got["speculation"] == got["vision"] == "closed"


def test_wrong_answers_leave_gates_open(gates):
    """The null device gives zeros: every gate that looks at numbers is open, and says by how much."""
    r = gates("--candidate", "null", "--baseline", "cpu", "--models", LLAMA, "--json")
    assert r.returncode == 0, r.stderr
    report = json.loads(r.stdout)
    got = states(report)
    assert got["architectures"] == got["files"] == got["vision"] == "open" and got["decode"] == "not measurable here"
    row = next(g for g in report["gates"] if g["id"] == "architectures")["rows"][0]
    assert row["state"] == "open" and row["text"].startswith("WRONG") and "KL" in row["text"]


def test_what_is_not_here(gates, tmp_path):
    r = subprocess.run([PROGRAM, "gates", "--candidate", "cpu", "--baseline", "cpu", "--golden", str(tmp_path), "-q", "--json"],
                       capture_output=True, text=True, timeout=60,
                       env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "s"), "XDG_DATA_HOME": str(tmp_path / "d")})
    assert r.returncode == 0, r.stderr
    report = json.loads(r.stdout)
    assert set(states(report).values()) == {"not measurable here"}
    decode = report["gates"][0]
    assert [w["name"] for w in decode["rows"]] == ["zaya1-8b", "qwen3.8-27b", "qwen3-0.6b", "qwen3-coder-30b-a3b"]
    assert all(w["text"] == "not in the library" for w in decode["rows"]) and "--models" in decode["text"]


@pytest.mark.parametrize("args, rc, words", [
    (("--candidate", "abacus", "--baseline", "cpu"), 1, "abacus"),
    (("--candidate", "cpu", "--baseline", "cpu", "--models", "no/such.gguf"), 1, "no/such.gguf"),
    (("--candidate", "cpu", "--baseline", "cpu", "--json", "--html"), 2, "standard output"),
    (("--nonsense",), 2, "nonsense"),
])
def test_wrong_use(gates, args, rc, words):
    r = gates(*args)
    assert r.returncode == rc and words in r.stderr
    assert not gates.kept()
