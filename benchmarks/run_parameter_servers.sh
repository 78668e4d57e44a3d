#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The figures of parameter servers on a machine with 16 cores, in about 9 minutes: what the simulator
# says first, then push and pull, then the comparisons in four streams of four cores each.
#
#   OUT=folder GANGLINE_DATA=folder bash benchmarks/run_parameter_servers.sh                  # 9 minutes
#   OUT=folder GANGLINE_DATA=folder bash benchmarks/run_parameter_servers.sh throughput links # some parts
#
# `GANGLINE_DATA` has mnist/*.gz and text/tinyshakespeare.txt. `WITHIN_S` is how long comparisons are
# begun (default 400), `PYTHON` the interpreter. What was measured before, in `KEPT`, is gone on with.
# `links` is no part by default; it needs root, `ip` and `tc`. Where these are missing, carry them:
#
#   bash benchmarks/run_parameter_servers.sh pack      # here: makes .device_net
#
# and they are used there. Whatever was measured is in $OUT, also when the command is cut off.

set -u
cd "$(dirname "$0")/.." || exit 1
root=$PWD
out=${OUT:-$root/benchmarks/results/device}
python=${PYTHON:-python3}
within_s=${WITHIN_S:-400}
net=$root/.device_net
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(predict throughput compare)

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
mkdir -p "$out" benchmarks/results
[ ! -d "${KEPT:-}" ] || cp "$KEPT"/parameter_server* benchmarks/results/
keep() { cp benchmarks/results/parameter_server* "$out"/; }
trap keep EXIT
trap 'exit 124' TERM INT
# Copies every few seconds: whoever cuts this off by SIGKILL loses no more.
while sleep 5; do keep 2>/dev/null; done &
copier=$!
trap 'kill $copier; keep' EXIT

# part NAME SECONDS COMMAND…
part() {
    local name=$1 limit=$2 began=$SECONDS
    shift 2
    timeout -k 10 "$limit" "$@" >"$out/$name.log" 2>&1
    echo "== $name: exit code $? after $((SECONDS - began)) s (limit $limit s)"
}

for name in "${parts[@]}"; do
    case $name in
    predict) part predict 60 "$python" benchmarks/parameter_server_prediction.py --cores 4 --use 0.6 ;;
    throughput) part throughput 75 "$python" benchmarks/parameter_server_throughput.py --repeats 4 ;;
    compare) part compare $((within_s + 60)) "$python" benchmarks/parameter_server.py --streams "${STREAMS:-4}" \
        --use 0.6 --scenarios even slow_worker pauses --choose-in even slow_worker --rates 2 \
        --timeout 60 --within "$within_s" ;;
    links) part links $((within_s + 90)) "$python" benchmarks/parameter_server.py --streams "${STREAMS:-4}" \
        --use 0.6 --scenarios slow_links --models lenet --choose-in even --rates 2 --memory 0 \
        --seeds "${LINK_SEEDS:-3}" --timeout 90 --within "$within_s" ;;
    *) echo "no such part: $name" >&2; exit 2 ;;
    esac
    keep
    tail -n 40 "$out/$name.log" | cut -c 1-220
done
