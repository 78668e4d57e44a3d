#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The figures for two cores, taken on a larger machine: each benchmark is pinned to two cores of its
# own, and runs beside the others. On a shared two-core machine the same figures drown in noise.
#
#   OUT=folder bash benchmarks/run_pinned.sh                 # all, in less than 9 minutes
#   OUT=folder bash benchmarks/run_pinned.sh even uneven     # some of them
#
# `PYTHON` names the interpreter, `LIMIT_S` the time that each benchmark may take.

set -u
cd "$(dirname "$0")/.." || exit 1
root=$PWD
out=${OUT:-$root/benchmarks/results/pinned}
python=${PYTHON:-python3}
limit_s=${LIMIT_S:-540}
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(even allreduce uneven throttle kqv uneven_wide)
export PYTHONPATH="$root/.device_site:$root/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
mkdir -p "$out"

# A folder that looks like an environment with MPI, where the machine has one.
mpi=$(mktemp -d)
trap 'rm -rf "$mpi"' EXIT
if launcher=$(command -v mpiexec || command -v mpirun); then
    mkdir -p "$mpi/bin"
    ln -sf "$launcher" "$mpi/bin/mpiexec"
    printf '#!/bin/sh\nexec "%s" "$@"\n' "$(command -v "$python")" >"$mpi/bin/python"
    chmod +x "$mpi/bin/python"
fi

# part NAME CORES COMMAND…
part() {
    local name=$1 cores=$2
    shift 2
    timeout -k 10 "$limit_s" taskset -c "$cores" "$@" >"$out/$name.log" 2>&1
    echo "== $name on cores $cores: exit code $? after $SECONDS s"
}

for name in "${parts[@]}"; do
    case $name in
    even) part even 0,1 "$python" benchmarks/even_ddp.py --workers 2 4 \
        --transports gloo wire wire-tcp --repeats "${REPEATS:-6}" & ;;
    allreduce) { part allreduce 2,3 "$python" benchmarks/allreduce.py --repeats 4 --mpi-venv "$mpi"
        part abort 2,3 "$python" benchmarks/abort_latency.py; } & ;;
    uneven) part uneven 4,5 "$python" benchmarks/uneven.py --scale 0.4 --seconds 300 & ;;
    throttle) part throttle 6,7 "$python" benchmarks/throttle.py --scale 0.4 & ;;
    kqv) part kqv 8,9 "$python" benchmarks/kqv_experiment.py --scale 0.4 --seconds 400 & ;;
    uneven_wide) part uneven_wide 10-15 "$python" benchmarks/uneven.py --scale 1.0 \
        --seconds 240 --name uneven_wide & ;;
    even_wide) part even_wide 4-15 "$python" benchmarks/even_ddp.py --workers 8 \
        --transports wire wire-tcp --repeats 6 & ;;
    *) echo "no such part: $name" >&2; exit 2 ;;
    esac
done
wait
[ ! -d benchmarks/results ] || tar -czf "$out/results.tar.gz" -C benchmarks results
for name in "${parts[@]}"; do
    [ ! -f "$out/$name.log" ] || { echo "--- $name"; tail -n 12 "$out/$name.log" | cut -c 1-300; }
done
