#!/bin/sh
# Starts Prometheus with Zillion's rules, scraping trainers, servers and parameter servers; see README.md.
#
# Prometheus is the one on PATH, or Debian's package unpacked into a cache folder: nothing is installed, and root is
# not needed. Exit code 4: Prometheus is not on this machine and cannot be downloaded.
set -eu

usage() {
    cat <<'TEXT'
usage: dashboards/start.sh [--trainer HOST:PORT]... [--server HOST:PORT]... [--ps HOST:PORT]... [--listen HOST:PORT]
                           [--interval 15s] [--data FOLDER] [--cache FOLDER] [--fetch]

  --trainer   where `zillion train --metrics` or `zillion online --metrics` listens (127.0.0.1:9091)
  --server    where `zillion serve --http` listens (127.0.0.1:8080)
  --ps        where `zillion ps serve --metrics` listens (none)
  --listen    where Prometheus listens (127.0.0.1:9090)
  --interval  time between two scrapes, and between two evaluations of the rules (15s)
  --data      folder of Prometheus' own data (a temporary one)
  --cache     folder where Debian's package is unpacked (~/.cache/zillion/prometheus)
  --fetch     only make sure that Prometheus is available, and print the folder of its programs
TEXT
}

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
trainers='' servers='' ps='' listen=127.0.0.1:9090 interval=15s data='' fetch=no
cache=${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/zillion/prometheus

while [ $# -gt 0 ]; do
    case $1 in
        --fetch) fetch=yes; shift; continue ;;
        --help | -h) usage; exit 0 ;;
    esac
    [ $# -ge 2 ] || { usage >&2; exit 2; }
    case $1 in
        --trainer) trainers="${trainers:+$trainers, }\"$2\"" ;;
        --server) servers="${servers:+$servers, }\"$2\"" ;;
        --ps) ps="${ps:+$ps, }\"$2\"" ;;
        --listen) listen=$2 ;;
        --interval) interval=$2 ;;
        --data) data=$2 ;;
        --cache) cache=$2 ;;
        *) usage >&2; exit 2 ;;
    esac
    shift 2
done

# The folder of prometheus and promtool.
programs() {
    if command -v prometheus >/dev/null && command -v promtool >/dev/null; then
        dirname -- "$(command -v prometheus)"
        return
    fi
    if [ ! -x "$cache/usr/bin/promtool" ]; then
        command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
        mkdir -p "$cache"
        # Unpacked into a folder of its own and then moved: an interrupted run leaves nothing that looks complete.
        part=$(mktemp -d "$cache/part.XXXXXX")
        if ! (cd "$part" && apt-get -qq download prometheus && dpkg -x ./*.deb .) >&2; then
            rm -rf -- "$part"
            return 1
        fi
        mv -T -- "$part/usr" "$cache/usr" 2>/dev/null || [ -x "$cache/usr/bin/promtool" ] || return 1
        rm -rf -- "$part"
    fi
    echo "$cache/usr/bin"
}

if ! bin=$(programs); then
    echo "no Prometheus on PATH, and Debian's package cannot be downloaded: install it, or run apt-get update" >&2
    exit 4
fi
if [ $fetch = yes ]; then
    echo "$bin"
    exit 0
fi

if [ -z "$data" ]; then
    data=$(mktemp -d "${TMPDIR:-/tmp}/zillion-prometheus.XXXXXX")
    echo "data of Prometheus: $data" >&2
fi
mkdir -p "$data"
config=$data/prometheus.yml
sed -e "s|INTERVAL|$interval|" \
    -e "s|RULES|$here/prometheus|" \
    -e "s|TRAINERS|${trainers:-\"127.0.0.1:9091\"}|" \
    -e "s|SERVERS|${servers:-\"127.0.0.1:8080\"}|" \
    -e "s|PARAMETER_HOLDERS|$ps|" \
    "$here/prometheus/prometheus.yml" >"$config"
"$bin/promtool" check config "$config" >&2
exec "$bin/prometheus" --config.file="$config" --storage.tsdb.path="$data/series" --web.listen-address="$listen"
