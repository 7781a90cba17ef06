#!/usr/bin/env bash
# Gradescope runs this once, as root, when it builds the image. It installs Python, the locked packages and the library.
set -euo pipefail
root=${AUTOGRADER:-/autograder}
chmod 700 "$root/source" # contains the seed, which students' code, run as nobody, cannot read
mv "$root/source/nanoeuler" "$root/nanoeuler"
cd "$root/nanoeuler"

apt-get update -qq
if python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    apt-get install -qq g++ python3-venv # g++ for the kernels of Part VI
else
    apt-get install -qq g++ python3-pip
    python3 -m pip install --quiet uv # uv downloads a newer Python
fi
UV_PYTHON_INSTALL_DIR=$root/python bash tools/setup.sh "$root/venv"
chmod -R a+rX "$root/nanoeuler" "$root/venv"
[ ! -d _build ] || chown -R nobody _build
