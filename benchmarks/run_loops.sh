#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The figures on loops and on parts that are pulled, on a few cores of a larger machine, in 480 s.
#
#   OUT=folder bash benchmarks/run_loops.sh 5,6,7,8      # the cores, at least two
#
# The most important ones come first. Each result is kept when the time is over; all of them are in
# $OUT/sched.tgz, which `loops_figures.py` makes tables of. `GANGLINE_DATA` is the folder with `graphs`.

set -u
cd "$(dirname "$0")/.." || exit 1
root=$PWD
out=${OUT:-$root/benchmarks/results/loops}
python=${PYTHON:-python3}
cores=${1:?which cores, such as 5,6,7,8}
IFS=, read -r -a each <<<"$cores"
export PYTHONPATH="$root/.device_site:$root/src${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
export GANGLINE_DATA=${GANGLINE_DATA:-$root/shared/data}
until_s=$((SECONDS + 465))
mkdir -p "$out" benchmarks/results
rm -f benchmarks/results/loops_*.jsonl benchmarks/results/self_scheduled*.jsonl

# part NAME CORES SECONDS COMMAND…: at most so long, and not beyond the end
part() {
    local name=$1 own=$2 limit=$3 left=$((until_s - SECONDS))
    shift 3
    [ $left -gt 5 ] || return 0
    [ "$limit" -lt $left ] || limit=$left
    timeout -k 5 "$limit" taskset -c "$own" "$python" "$@" >>"benchmarks/results/loops_$name.log" 2>&1
    echo "== $name on cores $own: exit code $? at $SECONDS s"
}

# Four workers that sleep: one core for each case, side by side; the first core has two of them if need be.
count=${#each[@]}
part steady "${each[0]}" 230 benchmarks/self_scheduled.py --short --only steady --name self_scheduled_steady &
part noise "${each[1 % count]}" 230 benchmarks/self_scheduled.py --short --only "noise of 30 %" \
    --name self_scheduled_noise &
part drop "${each[2 % count]}" 230 benchmarks/self_scheduled.py --short --only "one drops to a third" \
    --name self_scheduled_drop &
wait
part overhead "$cores" 50 benchmarks/loops_overhead.py --repeats 5
part graph "$cores" 75 benchmarks/loops_graph.py --graph com-dblp --workers "$count" --repeats 5
part cells "$cores" 50 benchmarks/loops_cells.py --only graph --workers "$count" --repeats 5
part grid "$cores" 60 benchmarks/loops_graph.py --graph email-Enron --grid --workers "$count" --repeats 5
part cells "$cores" 60 benchmarks/loops_cells.py --only images --workers "$count" --repeats 5
tar -czf "$out/sched.tgz" -C benchmarks results
