"""The command line as a person meets it: help, wrong usage, exit codes, output in pipes."""
import json
import os
import pty
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = os.environ.get("ONEBIT_BIN", str(ROOT / "build" / "1bit"))
GOLDEN = os.path.join(os.path.dirname(__file__), "..", "data", "golden")


def run(*args, **kwargs):
    env = {**os.environ, **kwargs.pop("env", {})}
    return subprocess.run([BIN, *args], capture_output=True, text=True, timeout=60, env=env, **kwargs)


def commands():
    text = run("help").stdout
    return re.findall(r"^  ([a-z]\w*)", text, re.M)


def test_no_command_is_wrong_usage():
    done = run()
    assert done.returncode == 2 and done.stdout == ""
    assert "usage: 1bit COMMAND" in done.stderr


@pytest.mark.parametrize("args", [("help",), ("--help",), ("-h",)])
def test_help_goes_to_stdout(args):
    done = run(*args)
    assert done.returncode == 0 and done.stderr == ""
    assert "usage: 1bit COMMAND" in done.stdout


def test_each_command_has_help():
    assert {"info", "pull", "list", "version", "tokenize"} <= set(commands())
    for name in commands():
        a, b = run("help", name), run(name, "--help")
        assert a.returncode == b.returncode == 0
        assert a.stdout == b.stdout and f"usage: 1bit {name}" in a.stdout
        assert all(len(line) <= 100 for line in a.stdout.splitlines())


def test_no_letter_or_name_twice_in_a_command():
    for name in commands():
        text = run("help", name).stdout.split("options:")[1]
        heads = [h for line in text.splitlines() if (h := re.match(r" +(-.*?)(  |$)", line))]
        words = re.findall(r"(?<!\S)(--?[a-z][\w-]*)", " ".join(h.group(1) for h in heads))
        assert len(words) == len(set(words)), (name, words)


def test_version():
    assert re.fullmatch(r"1bit \d+\.\d+\.\d+\n", run("version").stdout)
    assert run("--version").stdout == run("version").stdout
    assert json.loads(run("version", "--json").stdout)["version"] in run("version").stdout


@pytest.mark.parametrize("args,text", [
    (("pul",), "did you mean `1bit pull`?"),
    (("--pul",), "unknown option '--pul'"),
    (("-m", "x"), "`1bit run -m …`"),
    (("--port=1",), "`1bit serve --port …`"),
    (("run", "--temprature", "1"), "did you mean --temperature?"),
    (("bench", "-p", "x"), "--n-prompt needs numbers"),
    (("bench", "-p", "0", "-n", "0"), "nothing to do"),
    (("serve", "--cors", "foo"), "CORS"),
    (("serve", "--api-key", ""), "key is empty"),
    (("info",), "FILE is missing"),
    (("zzzzzz",), "unknown command"),
    (("help", "zzzzzz"), "no command"),
    (("list", "--jsno"), "did you mean --json?"),
    (("list", "--zzzzzzzzz"), "unknown option '--zzzzzzzzz'"),
    (("list", "-Z"), "unknown option '-Z'"),
    (("list", "--json=1"), "takes no value"),
    (("list", "surplus"), "unexpected argument 'surplus'"),
    (("pull",), "NAME is missing"),
    (("pull", "x", "--name"), "--name needs a value"),
    (("tokenize",), "-m MODEL is missing"),
    (("tokenize", "-m"), "-m needs a value"),
    (("run", "-ngl", "99", "hi"), "-ngl is an option of llama.cpp: all layers run on --device"),
    (("serve", "-fa"), "-fa is an option of llama.cpp"),
    (("run", "-hf", "a/b"), "-m hf://OWNER/REPO/FILE.gguf"),
    (("chat", "--n-gpu-layers=9"), "--n-gpu-layers is an option of llama.cpp"),
    (("list", "-" + "x" * 5000), "unknown option"),
])
def test_wrong_usage(args, text):
    done = run(*args, env={"ONEBIT_MODEL": ""})
    assert done.returncode == 2 and done.stdout == ""
    assert text in done.stderr
    assert "1bit help" in done.stderr


def test_failure_is_1_and_named(tmp_path):
    done = run("info", str(tmp_path / "none.gguf"))
    assert done.returncode == 1 and "none.gguf: no such file" in done.stderr
    (tmp_path / "bad.gguf").write_bytes(b"not a model at all")
    done = run("info", str(tmp_path / "bad.gguf"))
    assert done.returncode == 1 and done.stderr.startswith("1bit info: ")


def test_full_disk_is_a_failure():
    with open("/dev/full", "w") as full:
        done = subprocess.run([BIN, "version"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "cannot write" in done.stderr


def test_a_reader_that_leaves_gets_no_words(tmp_path):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([BIN, "version"], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert done.returncode == 1 and done.stderr == ""


def test_load_errors_name_the_model_at_most_once(tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"not a model at all")
    path = str(tmp_path / "bad.gguf")
    assert run("bench", "-m", path).stderr.count(path) == 1
    good = os.path.join(GOLDEN, "qwen2.gguf")
    done = run("bench", "-m", good, "--device", "gpu")
    assert done.returncode == 1 and "gpu" in done.stderr and good not in done.stderr


def test_help_columns():
    """The texts of the commands stand in one column, multi-byte characters or not."""
    lines = run("help").stdout.split("commands:\n")[1].split("\n\n")[0].splitlines()
    assert {re.match(r"(  \S.*?  +|  +)\S", li).end() - 1 for li in lines if len(li) < 200} == {28}


def test_tokenize_takes_text_or_reads_it():
    model = os.path.join(ROOT, "tests", "data", "golden", "llama.gguf")
    said = run("tokenize", "-m", model, "--json", "a tiny text", input="not this")
    assert said.returncode == 0 and len(json.loads(said.stdout)) > 2
    assert said.stdout == run("tokenize", "-m", model, "--json", input="a tiny text").stdout


def test_verify_wants_the_sums_of_a_package(tmp_path):
    """Every command that loads a model looks at its sums first when asked to: a flipped byte is found."""
    model, package = os.path.join(ROOT, "tests", "data", "golden", "llama.gguf"), tmp_path / "m.1bp"
    assert run("convert", model, str(package), "--sums").returncode == 0
    words = ("run", "-m", str(package), "--verify", "--device", "cpu", "--raw", "-n", "2", "-q", "hi")
    assert run(*words).returncode == 0
    data = bytearray(package.read_bytes())
    data[len(data) // 2] ^= 4
    package.write_bytes(data)
    said = run(*words)
    assert said.returncode == 1 and "sum" in said.stderr and run(*(w for w in words if w != "--verify")).returncode == 0


def test_double_dash_ends_the_options():
    done = run("info", "--", "--json")
    assert done.returncode == 1 and "'--json'" in done.stderr


def tiny_model(path):
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + bytes(40))
    return str(path)


def test_info(tmp_path):
    path = tiny_model(tmp_path / "a.gguf")
    assert "GGUF v3" in run("info", path).stdout
    assert json.loads(run("info", "--json", path).stdout)
    assert run("info", path, "--json").stdout == run("info", "--json", path).stdout


def test_model_from_the_environment(tmp_path):
    """ONEBIT_MODEL stands in for -m, and -m wins."""
    a, b = tiny_model(tmp_path / "a.gguf"), tiny_model(tmp_path / "b.gguf")
    assert "a.gguf" in run("tokenize", env={"ONEBIT_MODEL": a}, input="").stderr
    assert "b.gguf" in run("tokenize", "-m", b, env={"ONEBIT_MODEL": a}, input="").stderr
    assert "b.gguf" in run("tokenize", f"-m{b}", env={"ONEBIT_MODEL": a}, input="").stderr
    assert "b.gguf" in run("tokenize", f"--model={b}", env={"ONEBIT_MODEL": a}, input="").stderr


def test_docs_are_what_the_table_says():
    assert (ROOT / "docs" / "cli.md").read_text() == run("help", "--markdown").stdout
    assert (ROOT / "docs" / "1bit.1").read_text() == run("help", "--man").stdout


def on_terminal(args, env):
    """Run with standard error on a pseudo-terminal; returns what was written there."""
    try:
        main, side = pty.openpty()
    except OSError as e:
        pytest.skip(f"this system gives no pseudo-terminal: {e}")
    child = subprocess.Popen([BIN, *args], stdout=subprocess.DEVNULL, stderr=side, env=env)
    os.close(side)
    text = b""
    try:
        while chunk := os.read(main, 65536):
            text += chunk
    except OSError:  # the other end is closed
        pass
    os.close(main)
    assert child.wait() == 0
    return text.decode()


def test_progress_bar_on_a_terminal_only(tmp_path):
    import http.server
    import threading
    import time

    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + bytes(3_000_000)

    class Slow(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            for i in range(0, len(data), 500_000):
                self.wfile.write(data[i:i + 500_000])
                time.sleep(0.15)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/bar.gguf"
    env = {**os.environ, "XDG_DATA_HOME": str(tmp_path), "no_proxy": "127.0.0.1"}
    shown = on_terminal(("pull", url), env)
    assert re.search(r"bar\.gguf +\d+% \[=+ *\] [\d.]+ MB of 3\.00 MB, [\d.]+ MB/s, \d+ s left", shown)
    assert shown.endswith("\r\x1b[K")  # wiped at the end
    assert on_terminal(("pull", "--force", "--quiet", url), env) == ""
    assert run("pull", "--force", url, env=env).stderr == ""
    server.shutdown()
    server.server_close()




def test_architectures():
    names = run("info", "--architectures").stdout.split()
    assert {"llama", "qwen3moe", "qwen35moe", "deepseek2", "deepseek4", "zaya", "gemma3", "minicpm"} <= set(names)
    assert json.loads(run("info", "--architectures", "--json").stdout) == names
    assert run("info").returncode == 2


def test_check_golden():
    done = run("check", "--all-golden", GOLDEN, "--device", "cpu", "--json")
    assert done.returncode == 0, done.stdout
    rows = json.loads(done.stdout)
    assert {"qwen35moe", "deepseek4", "zaya", "bert", "modern-bert"} <= {r["architecture"] for r in rows}
    assert all(r["state"] == "ok" for r in rows)
    text = run("check", "--all-golden", GOLDEN, "--device", "cpu").stdout
    assert len(text.splitlines()) == len(rows)
    assert run("check").returncode == 2


def test_check_tells_wrong(tmp_path):
    """Another model's logits beside a model: the check must fail."""
    shutil.copy(os.path.join(GOLDEN, "qwen2.gguf"), tmp_path / "m.gguf")
    shutil.copy(os.path.join(GOLDEN, "qwen3.npz"), tmp_path / "m.npz")
    done = run("check", tmp_path / "m.gguf", "--device", "cpu")
    assert done.returncode == 1 and "WRONG" in done.stdout
