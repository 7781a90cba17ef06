#!/usr/bin/env bash
# setup.sh VENV: make a virtual environment with the locked requirements, this project (editable), and CuPy for a GPU.
# PYTHON is the interpreter (default: the first of python3, python3.14, ... python3.11 that is new enough).
set -euo pipefail

venv=$1
python=$venv/bin/python

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

interpreter=${PYTHON:-}
if [ -z "$interpreter" ]; then
    for name in python3 python3.14 python3.13 python3.12 python3.11; do
        if new_enough "$name"; then interpreter=$name; break; fi
    done
elif ! new_enough "$interpreter"; then
    echo "PYTHON must be a Python >= 3.11, got $interpreter: $("$interpreter" --version 2>&1 | head -n 1)" >&2
    exit 1
fi
if [ -z "$interpreter" ] && ! command -v uv >/dev/null; then
    echo "no Python >= 3.11 found: install one, or give its path with make PYTHON=/path/to/python3.12" >&2
    exit 1
fi

if command -v uv >/dev/null; then
    echo "set-up: uv into $venv"
    uv venv --quiet --allow-existing --seed --python "${interpreter:-3.12}" "$venv"
    install() { uv pip install --quiet --python "$python" "$@"; }
else
    echo "set-up: pip into $venv (about a minute; with uv it takes seconds)"
    "$interpreter" -m venv "$venv"
    install() { "$python" -m pip install --quiet --disable-pip-version-check --no-compile "$@"; }  # Python compiles on import
fi
# The lock lists every package, so pip need not resolve dependencies (older versions fail on a package's extras).
log=$venv/set-up.log
if ! install --no-deps --require-hashes -r requirements.txt 2>&1 | tee "$log" >&2; then
    if grep -qiE 'failed (to )?build|subprocess-exited-with-error|metadata-generation-failed' "$log"; then
        echo "set-up: a package has no wheel for this machine, and building it failed (see above)" >&2
    else
        echo "set-up: packages could not be installed (see above); without a network, connect to one or set PIP_INDEX_URL" >&2
    fi
    exit 1
fi
install --no-deps --no-build-isolation --editable .

# JupyterLab without nbgrader's buttons (instructors use `make assignment`), without the question about news, with
# Markdown files rendered, and with enough room for the chapters' names in its list of files.
settings=$venv/share/jupyter/lab/settings
mkdir -p "$settings" "$venv/etc/jupyter/labconfig"
cat >"$settings/overrides.json" <<'END'
{
  "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": false},
  "@jupyterlab/docmanager-extension:plugin": {"defaultViewers": {"markdown": "Markdown Preview"}},
  "@jupyterlab/filebrowser-extension:browser": {"showLastModifiedColumn": false}
}
END
echo '{"disabledExtensions": {"@jupyter/nbgrader": true}}' >"$venv/etc/jupyter/labconfig/page_config.json"
# An editable install leaves out data files, such as the syntax highlighting of %%cuda cells.
ln -sfn "$PWD/nanoeuler_lib/cuda/labextension" "$venv/share/jupyter/labextensions/nanoeuler-cuda"

# A reader with a GPU must notice if it cannot be used, so CuPy is installed and tested, and a failure ends the set-up.
cuda=$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA[A-Za-z ]*Version: *\([0-9][0-9]*\).*/\1/p' | head -n 1 || true)
case "$cuda" in
    "") echo "set-up: no NVIDIA driver found (nvidia-smi), so CuPy is not installed, and everything runs on the CPU" ;;
    12 | 13)
        try='import cupy; x = cupy.ones((2, 2), cupy.float32); assert float((x @ x + 1).sum()) == 12'
        echo "set-up: found an NVIDIA driver with CUDA $cuda, so CuPy for CUDA $cuda is installed"
        install --no-build-isolation --editable ".[cuda$cuda]"
        if ! "$python" -c "$try" 2>/dev/null; then
            echo "set-up: found no CUDA toolkit, so its libraries are installed as well (more than 1 GB)"
            install "cupy-cuda${cuda}x[ctk]"
            "$python" -c "$try"
        fi
        ;;
    *)
        echo "set-up: the NVIDIA driver must support CUDA 12 or 13, got CUDA $cuda: update the driver" >&2
        exit 1
        ;;
esac
