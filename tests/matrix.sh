#!/usr/bin/env bash
# Runs the tests of rules and store on each Python from 3.11 to 3.14 that is found on PATH or among pyenv's, each in an
# environment of its own, without torch. Names the versions that were not found.
set -euo pipefail
cd "$(dirname "$0")/.."

# The interpreter of a version; nothing where there is none that works and can make environments.
find_python() {
    local python
    for python in "python$1" "$HOME/.pyenv/versions/$1".*/bin/python; do
        if "$python" -c "import ensurepip, sys; sys.exit(sys.version_info[:2] != (${1/./, }))" 2> /dev/null; then
            echo "$python"
            return
        fi
    done
}

failed=() missing=()
for version in 3.11 3.12 3.13 3.14; do
    python=$(find_python "$version")
    if [ -z "$python" ]; then
        missing+=("$version")
        continue
    fi
    venv=.venv-matrix/$version
    echo "== Python $("$python" -c 'import platform; print(platform.python_version())')"
    [ -d "$venv" ] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --editable '.[test]'
    "$venv/bin/python" -m pytest --numprocesses "${TEST_PROCESSES:-2}" --dist worksteal tests/test_rules_* tests/test_store_* ||
        failed+=("$version")
done
echo "failed: ${failed[*]:-none}; untested, because not found here: ${missing[*]:-none}"
[ ${#failed[@]} = 0 ]
