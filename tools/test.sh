#!/bin/bash
# All tests, as `make test` runs them after the build: ctest, then pytest.
#
#   tools/test.sh [BUILD_DIR]
#
# Python packages go into a virtual environment under $XDG_CACHE_HOME/1bit, named after what it
# holds (tests/requirements.txt), so a change makes a new one and a second run makes none. Both
# suites run even if the first fails; the exit status is that of the worse one.
set -u
cd "$(dirname "$0")/.."
build=${1:-build}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/1bit

fail() {
    echo "test: $*" >&2
    exit 1
}

# --- Python packages -------------------------------------------------------------------------
key=$({ python3 --version && cat tests/requirements.txt; } | sha256sum | cut -c1-12)
venv=$cache/venv-$key
if [ ! -e "$venv/.complete" ]; then
    echo "test: making a Python environment in $venv"
    rm -rf "$venv"
    mkdir -p "$cache"
    python3 -m venv "$venv" || fail "python3 -m venv failed: install python3-venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        -r tests/requirements.txt || fail "pip could not install tests/requirements.txt"
    touch "$venv/.complete"
fi

# --- Node packages, for the tests of the chat page --------------------------------------------
if [ -e tests/web/package-lock.json ] && command -v npm >/dev/null &&
    [ tests/web/package-lock.json -nt tests/web/node_modules/.package-lock.json ]; then
    # No browser is downloaded: the tests drive Debian's Chromium.
    (cd tests/web && PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 \
        npm ci --silent --no-audit --no-fund --ignore-scripts) ||
        echo "test: npm ci failed; the tests of the page will be skipped" >&2
    [ -e tests/web/node_modules/.package-lock.json ] &&
        touch tests/web/node_modules/.package-lock.json
fi

# --- The demo model ---------------------------------------------------------------------------
if model=$("$build/1bit" pull smollm2-135m); then
    export ONEBIT_TEST_MODEL=$model
else
    echo "test: no demo model; tests that need it will be skipped" >&2
fi

# --- ctest, then pytest -----------------------------------------------------------------------
jobs=$(nproc)
ctest --test-dir "$build" --output-on-failure -j "$jobs"
ctest_rc=$?

suites=()
for dir in tests/*/; do
    if compgen -G "${dir}test_*.py" >/dev/null; then suites+=("${dir%/}"); fi
done
pytest_rc=0
if [ ${#suites[@]} -gt 0 ]; then
    ONEBIT_BUILD=$PWD/$build ONEBIT_BIN=$PWD/$build/1bit "$venv/bin/python" -m pytest -q -ra "${suites[@]}"
    pytest_rc=$?
fi
[ "$ctest_rc" = 0 ] || echo "test: ctest failed (its summary is above pytest's)" >&2
[ "$ctest_rc" = 0 ] && [ "$pytest_rc" = 0 ]
