# steps.sh - functions of .ci/run and .ci/nightly: steps with a summary, packages, interpreters, environments
# SPDX-License-Identifier: MIT
# shellcheck shell=bash

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
steps=()
failed=()
# Not for the tests, which run steps of their own.
only=${ONLY_STEPS:-}
unset ONLY_STEPS

# step NAME COMMAND...: run a command, show its output, and keep it for the summary; a failure does not stop later steps.
# ONLY_STEPS='wheels site' runs just these.
step() {
    local name=$1 begin=$SECONDS
    shift
    [[ -z $only || " $only " == *" $name "* ]] || return 0
    printf '\n======== %s: %s\n' "$name" "$*"
    steps+=("$name")
    if "$@" 2>&1 | tee "$logs/$name"; then
        printf '======== %s: passed, %d s\n' "$name" $((SECONDS - begin))
    else
        failed+=("$name")
        printf '======== %s: FAILED, %d s\n' "$name" $((SECONDS - begin))
    fi
}

# finish: print the last lines of all test runs; exit with 1 if a step has failed
finish() {
    local name
    for name in $only; do
        [[ " ${steps[*]} " == *" $name "* ]] || { echo "no step has the name $name" >&2; exit 1; }
    done
    printf '\n======== %d s in all; the closing lines of the test runs:\n' "$SECONDS"
    for name in "${steps[@]}"; do
        grep -aE '(passed|failed|skipped|errors?|no tests ran).* in [0-9.]+s' "$logs/$name" | tail -n 1 || true
    done
    if [[ ${#failed[@]} -gt 0 ]]; then
        echo "failed: ${failed[*]}"
        exit 1
    fi
    echo "all ${#steps[@]} steps passed"
}

# debian_packages NAME...: install missing packages; without root or apt do nothing
debian_packages() {
    local name missing=()
    command -v apt-get >/dev/null && [[ $(id -u) -eq 0 ]] || return 0
    for name in "$@"; do
        dpkg -s "$name" >/dev/null 2>&1 || missing+=("$name")
    done
    [[ ${#missing[@]} -eq 0 ]] && return
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

# The default python3 and a newer one: they install different lines of zarr (3.1.6 is the last for Python 3.11).
# With CI=true a missing newer interpreter is an error.
oldest=$(scripts/find-python "${PYTHON:-python3}")
newest=$(scripts/find-python --newer "$oldest") || newest=
if [[ -z $newest && ${CI:-} == true ]]; then
    echo "no newer Python than $oldest runs here: the newest zarr would go untested" >&2
    exit 1
fi
echo "Python: $oldest${newest:+, $newest}"

# hide_undeclared PACKAGE...: from here on, commands see the programs, headers and libraries of a new machine with these Debian
# packages, their dependencies and Python. What a test needs beside them fails here, and not on the machine of a reader.
hide_undeclared() {
    local python name machine=$PWD/build/declared
    if ! command -v dpkg-query >/dev/null; then
        echo 'no dpkg here: programs and headers that are not declared are not hidden'
        return
    fi
    "$oldest" scripts/declared_machine.py "$machine" "$@"
    for python in "$oldest" "$newest"; do
        [[ -n $python ]] || continue
        for name in python3 "python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"; do
            [[ $name == python3 && $python == "$newest" ]] || install -m 755 <(printf '#!/bin/sh\nexec "%s" "$@"\n' "$python") "$machine/bin/$name"
        done
    done
    export PATH=$machine/bin
    unset CPATH C_INCLUDE_PATH LIBRARY_PATH PKG_CONFIG_PATH
}

# A step that hangs ends after this number of seconds, so that the others still run. SIGABRT lets each process of pytest print
# the stacks of its threads, also one that runs no test: a worker that waits, or a controller that waits for a worker.
limit=${STEP_SECONDS:-1800}
ulimit -c 0
make_oldest=(timeout --signal=ABRT --kill-after=60 "$limit" make "PYTHON=$oldest")
# The newer interpreter installs the wheel that the oldest has built, as users do: the stable ABI is the same for all.
make_newest=(timeout --signal=ABRT --kill-after=60 "$limit" make "PYTHON=${newest:-$oldest}"
    "WHEEL_VERSION=$("$oldest" -c 'import sys; print("%d.%d" % sys.version_info[:2])')")

# prepare TARGET...: build the wheel, these special environments and those of the tests, several at a time, because pip
# uses one core and waits for the network
prepare() {
    local older=(build prepare-test prepare-check prepare-suite "$@") others
    if [[ -z $newest ]]; then
        "${make_oldest[@]}" -j3 "${older[@]}" prepare-demo prepare-xarray
        return
    fi
    "${make_oldest[@]}" -j3 "${older[@]}" &
    others=$!
    "${make_newest[@]}" -j2 needed-test needed-suite needed-demo needed-xarray || { wait "$others"; return 1; }
    wait "$others" || return
    # Now the wheel exists.
    "${make_newest[@]}" -j2 prepare-test prepare-suite prepare-demo prepare-xarray
}
