#!/bin/bash
# Runs the tests of each training framework in an environment of its own.
#
# tests/frameworks/NAME.txt makes .venv-NAME, with what NAME.alone.txt lists without its dependencies. There run the
# tests test_NAME*.py, where a version after a dash does not count: transformers-4 runs test_transformers*.py. Arguments
# are names; without any, all run.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=tests/frameworks
failed=""

prepare() { # Make the environment of a name, unless it is there and as its files say.
    local name=$1 environment=.venv-$1 wanted
    wanted=$(cat "$folder/$name."*txt pyproject.toml | cksum)
    if [ -e "$environment/.ready" ] && [ "$(cat "$environment/.ready")" = "$wanted" ]; then return; fi
    "${PYTHON:-python3}" -m venv "$environment"
    "$environment/bin/python" -m pip install --quiet --requirement "$folder/$name.txt"
    if [ -e "$folder/$name.alone.txt" ]; then
        "$environment/bin/python" -m pip install --quiet --no-deps --requirement "$folder/$name.alone.txt"
    fi
    "$environment/bin/python" -m pip install --quiet --editable '.[test]'
    echo "$wanted" > "$environment/.ready"
}

names=("$@")
if [ $# -eq 0 ]; then
    for file in "$folder"/*.txt; do
        case $file in *.alone.txt) ;; *) names+=("$(basename "$file" .txt)") ;; esac
    done
fi
for name in "${names[@]}"; do
    echo "== $name"
    prepare "$name"
    # Two trainings at a time share the cores; a framework's own warnings are no errors of ours.
    HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false ".venv-$name/bin/python" -m pytest -q -W default \
        --numprocesses "${TEST_PROCESSES:-2}" --dist worksteal "$folder"/test_"${name%%-*}"*.py || failed="$failed $name"
done
[ -z "$failed" ] || { echo "failed:$failed"; exit 1; }
