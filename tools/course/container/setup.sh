#!/usr/bin/env bash
# Gradescope runs this once, as root, when it makes the image: Python, the locked packages, the library.
set -euo pipefail
root=${AUTOGRADER:-/autograder}
chmod 700 "$root/source" # the seed: students' code runs as nobody
mv "$root/source/nanoeuler" "$root/nanoeuler"
cd "$root/nanoeuler"

apt-get update -qq
if python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    apt-get install -qq g++ python3-venv # g++ for the kernels of Part VI
else
    apt-get install -qq g++ python3-pip
    python3 -m pip install --quiet uv # it brings a newer Python
fi
UV_PYTHON_INSTALL_DIR=$root/python bash tools/setup.sh "$root/venv"
chmod -R a+rX "$root/nanoeuler" "$root/venv"
[ ! -d _build ] || chown -R nobody _build
