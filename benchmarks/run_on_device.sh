#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the GPU tests and the many-core benchmarks on a machine with a GPU on which nothing can be
# installed. It has Python 3.12 with torch, psutil, typer, rich, safetensors and scikit-learn; the
# rest is carried along in a folder that is made beforehand, in the root of the repository:
#
#   pip install --target .device_site --python-version 3.12 --only-binary=:all: \
#       msgspec starlette uvicorn websockets pytest pytest-timeout
#   rm -rf .device_site/bin
#
# There, in the root of the repository:
#
#   OUT=folder bash benchmarks/run_on_device.sh                # all parts, in less than 8 minutes
#   OUT=folder bash benchmarks/run_on_device.sh tests gpu      # some of them
#   OUT=folder bash benchmarks/run_on_device.sh elastic        # not among all: faults, in 9 minutes
#
# Each part has a time limit and a log of its own in $OUT; one that fails does not stop the others.

set -u
cd "$(dirname "$0")/.." || exit 1
root=$PWD
out=${OUT:-$root/benchmarks/results/device}
python=${PYTHON:-python3}
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(machine tests gpu even uneven allreduce mpi)

export PYTHONPATH="$root/.device_site:$root/src"
export PYTHONUNBUFFERED=1
# What else is installed there must not take part in the tests.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1

mkdir -p "$out"
failed=0

# part NAME SECONDS COMMAND…
part() {
    local name=$1 limit=$2 started=$SECONDS code
    shift 2
    timeout -k 10 "$limit" "$@" >"$out/$name.log" 2>&1
    code=$?
    [ $code -eq 0 ] || failed=1
    echo "== $name: exit code $code after $((SECONDS - started)) s (limit $limit s)"
}

machine() {
    nproc
    uname -r
    nvidia-smi -L
    command -v mpiexec mpirun
    "$python" -c '
import sys, torch, msgspec, starlette, uvicorn, websockets, psutil, typer, rich, safetensors, sklearn
print(sys.version, torch.__version__, torch.cuda.is_available(), torch.distributed.is_nccl_available())'
}

# A folder that looks like an environment with MPI, as the benchmark expects it.
mpi_environment() {
    local folder=$1 launcher
    launcher=$(command -v mpiexec || command -v mpirun) || return 1
    mkdir -p "$folder/bin"
    ln -sf "$launcher" "$folder/bin/mpiexec"
    printf '#!/bin/sh\nexec "%s" "$@"\n' "$(command -v "$python")" >"$folder/bin/python"
    chmod +x "$folder/bin/python"
}

shown=()
sizes=(4096 262144 1048576 4194304 26214400)
for name in "${parts[@]}"; do
    case $name in
    machine)
        machine >"$out/machine.log" 2>&1 || failed=1
        cat "$out/machine.log" ;;
    tests)
        part tests 150 "$python" -m pytest -p pytest_timeout -o filterwarnings=default \
            -m gpu tests/gpu --durations=8 ;;
    gpu) part gpu 75 "$python" benchmarks/gpu_exchange.py --repeats 6 ;;
    even)
        part even 100 "$python" benchmarks/even_ddp.py --workers 8 --transports wire --repeats 8 ;;
    uneven) part uneven 100 "$python" benchmarks/uneven.py --scale 1.0 --seconds 60 ;;
    allreduce)
        part allreduce 50 "$python" benchmarks/allreduce.py --workers 2 4 8 --repeats 3 \
            --bytes "${sizes[@]}" ;;
    mpi)
        folder=$(mktemp -d)
        mpi_environment "$folder" && part mpi 45 "$python" benchmarks/allreduce.py \
            --workers 4 8 --repeats 2 --bytes "${sizes[@]}" --name allreduce_mpi \
            --mpi-venv "$folder"
        rm -rf "$folder" ;;
    elastic)
        part recovery 240 "$python" benchmarks/recovery.py --faults 10 --rival-faults 1
        part joining 80 "$python" benchmarks/joining.py --joins 8
        part elastic_cost 80 "$python" benchmarks/elastic_cost.py --repeats 5
        part goodput 170 "$python" benchmarks/goodput.py --workers 8 --seconds 90 --calm-seconds 15
        shown+=(recovery joining elastic_cost goodput) ;;
    *) echo "no such part: $name" >&2; exit 2 ;;
    esac
done

[ ! -d benchmarks/results ] || tar --exclude=device -czf "$out/results.tar.gz" -C benchmarks results
for name in "${parts[@]}" "${shown[@]}"; do
    if [ "$name" != machine ] && [ -f "$out/$name.log" ]; then
        echo "--- $name"
        tail -n 22 "$out/$name.log" | cut -c 1-300
    fi
done
exit $failed
