"""The chat page in a real browser: runs the Node tests beside this file, one pytest for each."""
import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
FILES = sorted(HERE.glob("*.test.mjs"))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_node(file):
    if not shutil.which("node"):
        pytest.skip("Node.js is not installed")
    if not (HERE / "node_modules" / "playwright-core").is_dir():
        pytest.skip("playwright-core is not installed (npm ci in tests/web)")
    done = subprocess.run(["node", "--test-reporter=tap", "--test", str(file)], cwd=HERE,
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"^# pass (\d+)", done.stdout, re.M)
    skipped = re.findall(r"^ok .*# SKIP (.*)", done.stdout, re.M)
    if skipped and passed and passed[1] == "0":
        pytest.skip(skipped[0])
