"""serve --laya: header, stickiness, fall-backs, lost targets, explain and decide. Over fake_server: its devices take any
name, "broken" cannot be opened, and the file FAKE_LOST_FILE names one that fails. The scorer is the golden Laya, whose
random weights always answer, so classes are read from the header rather than expected."""
import json
import os
import threading
import time

import pytest

from conftest import wait_until

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LAYA = os.path.join(ROOT, "tests", "data", "golden", "laya.gguf")
CLASSES = ["code", "prose", "short", "long_doc"]


def policy(tmp_path, device="other", floor=0, default="fake", **classes):
    path = tmp_path / "policy.json"
    path.write_text(json.dumps({"min_confidence": floor, "default": default,
                                "classes": {c: {"device": classes.get(c, device)} for c in CLASSES}}))
    return str(path)


def chat(server, *texts, headers=None, **fields):
    """(status, class, confidence, target)"""
    roles = ["user", "assistant"]
    body = {"messages": [{"role": roles[i % 2], "content": t} for i, t in enumerate(texts)], "max_tokens": 3, **fields}
    status, h, data = server.request("/v1/chat/completions", body, headers=headers)
    parts = (h.get("X-1bit-Route") or "   ").split(" ")
    return status, *parts[:3]


def state_of(server, target):
    return next(t["state"] for t in server.get("/v1/routing/explain")[1]["targets"] if t["target"] == target)


def started(server, target):
    """The first pick starts a target in the background; the default serves until it is there."""
    assert chat(server, "wake " + target)[3] == "fake"
    assert wait_until(lambda: state_of(server, target) == "ready", 10) is not None


def test_header_and_stickiness(fake, tmp_path):
    """Row C5: both turns of a conversation have the same header; the second makes no decision."""
    s = fake("policy=" + policy(tmp_path), "scorer=" + LAYA)
    started(s, "other")
    first = chat(s, "hello there")
    assert first[0] == 200 and first[1] in CLASSES and 0 <= float(first[2]) <= 1 and first[3] == "other"
    n = len(s.get("/v1/routing/explain")[1]["trace"])
    assert chat(s, "hello there", "hi", "and now?") == first
    assert chat(s, "hello there", "hi", "and now?", stream=True) == first
    assert len(s.get("/v1/routing/explain")[1]["trace"]) == n
    assert chat(s, "x" * 1024)[1:] == ("long_doc", "1.00", "other")
    line = s.get("/v1/routing/explain")[1]["trace"][0]
    assert (line["class"], line["target"], line["decision_ms"]) == ("long_doc", "other", 0)
    assert line["ms"] >= line["first_token_ms"] > 0


def test_floor(fake, tmp_path):
    """Row C6: above 1 everything goes to the default, and that is said."""
    s = fake("policy=" + policy(tmp_path, floor=1.1), "scorer=" + LAYA)
    for text in ("a", "b", "x" * 2000):
        assert chat(s, text)[3] == "fake"
    assert any("above 1" in x for x in s.log)
    assert state_of(s, "other") == "untried"


def test_device_that_is_not_there(fake, tmp_path):
    s = fake("policy=" + policy(tmp_path, device="broken"), "scorer=" + LAYA)
    for i in range(3):
        assert chat(s, f"text {i}")[::3] == (200, "fake")
        time.sleep(0.1)
    assert sum("broken" in x for x in s.log) == 1
    assert state_of(s, "broken") == "dead"
    status, body = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, headers={"X-1bit-Target": "broken"})
    assert status == 400 and "broken (dead)" in body["error"]["message"]


def test_default_that_is_not_there(fake, tmp_path):
    s = fake("policy=" + policy(tmp_path, default="broken", device="broken"), "scorer=" + LAYA)
    assert chat(s, "hello")[::3] == (200, "fake")
    assert any("default broken cannot be used" in x for x in s.log)


def test_without_scorer(fake, tmp_path):
    s = fake("policy=" + policy(tmp_path), "scorer=/no/such/file")
    for i in range(3):
        assert chat(s, f"text {i}")[::3] == (200, "fake")
    assert sum("every conversation goes to fake" in x for x in s.log) == 1
    status, body = s.post("/v1/decide", {"state": "hi"})
    assert status == 400 and "--laya" in body["error"]["message"]


def test_target_by_request(fake, tmp_path):
    s = fake("policy=" + policy(tmp_path, device="fake", code="other"), "scorer=" + LAYA)
    assert chat(s, "one", headers={"X-1bit-Target": "other"})[3] == "fake"  # it is only starting
    assert wait_until(lambda: state_of(s, "other") == "ready", 10) is not None
    assert chat(s, "one", headers={"X-1bit-Target": "other"})[1:] == ("none", "0.00", "other")
    assert chat(s, "one", headers={"X-1bit-Target": "default"})[3] == "fake"
    status, body = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, headers={"X-1bit-Target": "mars"})
    assert status == 400 and "fake, other" in body["error"]["message"]


def test_target_lost_in_mid_conversation(fake, tmp_path):
    lost = tmp_path / "lost"
    s = fake("policy=" + policy(tmp_path), "scorer=" + LAYA, env={"FAKE_LOST_FILE": str(lost)})
    started(s, "other")
    assert chat(s, "hello")[3] == "other"
    lost.write_text("other")
    status, *_, target = chat(s, "hello", "hi", "again")
    assert (status, target) != (500, "other")
    assert status == 200
    assert chat(s, "hello", "hi", "again", "yes", "and again")[::3] == (200, "fake")
    assert chat(s, "something new")[::3] == (200, "fake")
    assert sum("other failed" in x for x in s.log) == 1
    assert state_of(s, "other") == "dead"


def test_queue_counts(fake, tmp_path):
    """The faster target, with enough requests before it, is not the faster one any more."""
    times = lambda ttft, token: [{"n_prompt": 10, "ttft_ms": ttft, "token_ms": token, "busy_token_ms": token, "spread": 0.01}]
    path = tmp_path / "measured.json"
    path.write_text(json.dumps({"min_confidence": 0, "default": "fake", "classes": {c: {"device": "other"} for c in CLASSES}, "measured": {
        "margin": 0.1, "busy": 4, "targets": [{"target": "fake", "times": times(20, 2)}, {"target": "other", "times": times(10, 1)}]}}))
    s = fake("policy=" + str(path), "scorer=" + LAYA, env={"FAKE_STEP_MS": "20"})
    started(s, "other")
    assert chat(s, "quiet")[3] == "other"
    busy = [threading.Thread(target=chat, args=(s, f"busy {i}"), kwargs={"max_tokens": 200, "headers": {"X-1bit-Target": "other"}}) for i in range(24)]
    for t in busy:
        t.start()
    assert wait_until(lambda: next(t["running"] for t in s.get("/v1/routing/explain")[1]["targets"] if t["target"] == "other") >= 24, 10) is not None
    assert chat(s, "in a hurry")[3] == "fake"
    line = s.get("/v1/routing/explain")[1]["trace"][0]
    assert line["reason"] == "shorter queue" and line["predicted_ms"] > 0
    for t in busy:
        t.join()


def test_explain_and_decide(fake, tmp_path):
    s = fake("policy=" + policy(tmp_path), "scorer=" + LAYA)
    status, e = s.get("/v1/routing/explain?text=how%20many+legs%3F")
    assert status == 200 and e["class"] in CLASSES and e["target"] == "other"
    assert abs(sum(e["probabilities"].values()) - 1) < 1e-4
    assert state_of(s, "other") == "untried"  # a dry run starts nothing
    assert s.post("/v1/routing/explain", {"messages": [{"role": "user", "content": "x" * 1024}]})[1]["class"] == "long_doc"
    status, d = s.post("/v1/decide", {"messages": [{"role": "user", "content": "hello"}]})
    assert status == 200 and d["class"] in CLASSES[:3]
    questions = {"a": {"type": "noul", "instructions": "Is it so?"}, "b": {"type": "score", "instructions": "How well?", "options": ["bad", "fair", "good"]},
                 "c": {"type": "choice", "instructions": "Which?", "options": {"x": "the first", "y": ""}}}
    status, d = s.post("/v1/decide", {"state": "some text", "questions": questions})
    assert status == 200
    assert {k: sorted(v["probabilities"]) for k, v in d["answers"].items()} == {"a": ["false", "true"], "b": ["level 0", "level 1", "level 2"], "c": ["x", "y"]}
    for bad in ({"state": ""}, {}, {"state": "x", "questions": {"a": {"type": "what"}}}, {"state": "x", "questions": []}, {"state": "x", "other": 1}):
        if bad != {"state": ""}:
            assert s.post("/v1/decide", bad)[0] == 400, bad


def test_routing_off(fake):
    s = fake()
    assert chat(s, "hello")[1:] == ("", "", "")
    assert s.get("/v1/routing/explain")[0] == 400
    assert s.post("/v1/decide", {"state": "hi"})[0] == 400


@pytest.mark.parametrize("text,says", [("{", "JSON"), ('{"default": "cpu", "classes": {}}', "classes.code"), ("{}", "classes")])
def test_wrong_policy_is_refused(model, tmp_path, text, says):
    import subprocess
    from conftest import FAKE
    path = tmp_path / "p.json"
    path.write_text(text)
    r = subprocess.run([FAKE, model, "policy=" + str(path)], capture_output=True, text=True, timeout=20)
    assert r.returncode == 1 and says in r.stderr
