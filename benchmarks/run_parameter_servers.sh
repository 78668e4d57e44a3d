#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The figures of parameter servers on a machine with many cores, in 500 s: what the simulator says first,
# then push and pull, then the comparisons, in streams of four cores each: LeNet-5, and then the GPT.
#
#   OUT=folder GANGLINE_DATA=folder CORES=5-12 bash benchmarks/run_parameter_servers.sh
#   OUT=folder GANGLINE_DATA=folder bash benchmarks/run_parameter_servers.sh throughput links   # some parts
#
# `GANGLINE_DATA` has mnist/*.gz and text/tinyshakespeare.txt. `CORES` are all by default; `TOTAL_S` is how
# long everything may take (500), `PYTHON` the interpreter. What was measured before, in `KEPT`, is gone
# on with. `links` is no part by default; it needs root, `ip` and `tc`. Where these are missing, carry them:
#
#   bash benchmarks/run_parameter_servers.sh pack      # here: makes .device_net
#
# and they are used there. Whatever was measured is in $OUT/ps.tgz, also when the command is cut off.

set -u
cd "$(dirname "$0")/.." || exit 1
root=$PWD
out=${OUT:-$root/benchmarks/results/device}
python=${PYTHON:-python3}
total_s=${TOTAL_S:-500}
net=$root/.device_net
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(predict throughput lenet gpt)

# Copies ip and tc with their libraries and their loader, so that they run with another libc.
pack() {
    local program library
    rm -rf "$net" && mkdir -p "$net/lib" "$net/bin"
    for program in ip tc; do
        cp "$(command -v $program)" "$net/lib/$program"
        for library in $(ldd "$(command -v $program)" | grep -o '/[^ ]*'); do
            cp -L "$library" "$net/lib/"
        done
        # Not by LD_LIBRARY_PATH: what `ip` starts would use these libraries, too.
        printf '#!/bin/sh\nd=$(dirname "$(readlink -f "$0")")/../lib\nexec "$d"/ld-linux-x86-64.so.2 --library-path "$d" "$d"/%s "$@"\n' \
            $program >"$net/bin/$program"
        chmod +x "$net/bin/$program"
    done
    du -sh "$net"
}

if [ "${parts[0]}" = pack ]; then
    pack
    exit
fi

export PYTHONPATH="$root/.device_site:$root/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
command -v ip >/dev/null || PATH="$net/bin:$PATH"
[ -z "${CORES:-}" ] || taskset -p -c "$CORES" $$ >/dev/null
streams=${STREAMS:-$(($(nproc) / 4))}
mkdir -p "$out" benchmarks/results
[ ! -d "${KEPT:-}" ] || cp "$KEPT"/parameter_server* benchmarks/results/
logs=benchmarks/results/parameter_server_logs
mkdir -p $logs
# Into another file first: whoever cuts this off by SIGKILL finds the last whole one.
keep() {
    tar -czf "$out/.ps.tgz" -C benchmarks results/ 2>/dev/null && mv "$out/.ps.tgz" "$out/ps.tgz"
}
while sleep 5; do keep; done &
copier=$!
trap 'kill $copier; keep' EXIT
trap 'exit 124' TERM INT

# part NAME SECONDS COMMAND…
part() {
    local name=$1 limit=$2 began=$SECONDS
    shift 2
    timeout -k 5 "$limit" "$@" >"$logs/$name.log" 2>&1
    echo "== $name: exit code $? after $((SECONDS - began)) s (limit $limit s)"
}

# compare NAME SECONDS FLAG…: begins runs for as long as so many seconds are left after it.
compare() {
    local name=$1 left=$((total_s - SECONDS - $2))
    shift 2
    [ $left -gt 20 ] || return
    part "$name" $left "$python" benchmarks/parameter_server.py --streams "$streams" --use 0.6 \
        --choose-in even --alike --rates 2 --timeout 40 --within $((left - 30)) "$@"
}

for name in "${parts[@]}"; do
    case $name in
    predict) part predict 50 "$python" benchmarks/parameter_server_prediction.py --cores 4 --use 0.6 \
        --seeds 1 --scenarios even slow_worker pauses ;;
    throughput) part throughput 50 "$python" benchmarks/parameter_server_throughput.py --repeats 2 ;;
    lenet) compare lenet "${GPT_S:-90}" --models lenet --scenarios even slow_worker pauses ;;
    gpt) compare gpt 5 --models gpt --scenarios even slow_worker pauses --seeds 2 --memory 0 ;;
    links) compare links 5 --models lenet --scenarios slow_links --seeds "${LINK_SEEDS:-3}" --memory 0 ;;
    *) echo "no such part: $name" >&2; exit 2 ;;
    esac
    tail -n 12 "$logs/$name.log" | cut -c 1-200
done
