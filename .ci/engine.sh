#!/bin/bash
# engine.sh up|down: make a Docker engine answer on $DOCKER_HOST (default: the usual socket).
# An engine that already answers is used and never stopped by us. Otherwise one is installed from Debian's packages and
# started under $FENCE_CI_DIR/docker; `down` stops exactly that one, found by its own pid file.
set -euo pipefail
dir=${FENCE_CI_DIR:-/var/tmp/fence-ci}/docker
export DOCKER_HOST=${DOCKER_HOST:-unix:///var/run/docker.sock}

say() { echo "engine: $*" >&2; }
version() { timeout 10 docker version --format '{{.Server.Version}}' 2>/dev/null || true; }
# the process in our pid file, if it is the daemon that we started and not a later owner of its number
ours() { [ -s "$dir/pid" ] && pid=$(cat "$dir/pid") && grep -qaF -- "$dir/pid" "/proc/$pid/cmdline" 2>/dev/null; }
gone() { for _ in $(seq 200); do kill -0 "$1" 2>/dev/null || return 0; sleep 0.1; done; return 1; }

up() {
  local found
  found=$(version)
  if [ -n "$found" ]; then say "$found is running, using it"; return; fi
  [ "$(id -u)" = 0 ] || { say "no Docker engine answers at $DOCKER_HOST, and only root can install and start one"; exit 1; }
  if ! command -v dockerd >/dev/null || ! command -v docker >/dev/null; then
    say "installing"
    # RUNLEVEL=1: the package's own service does not start while it is installed
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends docker.io iptables iproute2 \
      >"$dir.install.log" 2>&1 || { cat "$dir.install.log" >&2; exit 1; }
  fi
  # Debian 13 has the client in a package of its own
  command -v docker >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends docker-cli >&2
  if ! mountpoint -q /sys/fs/cgroup; then
    mount -t cgroup2 none /sys/fs/cgroup || { say "no control groups: containers cannot run here"; exit 1; }
  fi
  mkdir -p "$dir"
  rm -f "$dir/pid"
  # the containerd of a dockerd that was killed stays a while, and a new dockerd would wait for it and give up
  local stale=$dir/exec/containerd/containerd.pid
  if [ -s "$stale" ]; then
    if grep -qaF "$dir/exec/" "/proc/$(cat "$stale")/cmdline" 2>/dev/null; then kill -9 "$(cat "$stale")" || true; fi
    rm -f "$stale"
  fi
  # --ip: published ports are reachable from this machine only
  setsid dockerd --data-root "$dir/data" --exec-root "$dir/exec" --pidfile "$dir/pid" -H "$DOCKER_HOST" --ip 127.0.0.1 \
    --userland-proxy=false --log-level warn </dev/null >"$dir/log" 2>&1 &
  local child=$!
  for _ in $(seq 300); do
    found=$(version)
    if [ -n "$found" ]; then say "$found started"; return; fi
    kill -0 $child 2>/dev/null || break
    sleep 0.1
  done
  say "dockerd did not come up; its last lines:"
  tail -20 "$dir/log" >&2
  exit 1
}

down() {
  ours || return 0
  kill "$pid"
  gone "$pid" || { say "dockerd $pid does not stop"; exit 1; }
  say "stopped"
}

mkdir -p "$(dirname "$dir")"
case ${1:-} in
  up | down) "$1" ;;
  *) say "usage: engine.sh up|down"; exit 2 ;;
esac
