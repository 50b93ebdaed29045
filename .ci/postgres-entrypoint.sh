#!/bin/bash
# Small stand-in for the entrypoint of the official image, the part that the tests use: POSTGRES_PASSWORD and
# POSTGRES_HOST_AUTH_METHOD; "ready to accept connections" comes on stdout from the server that sets the password and on
# stderr from the final one.
set -Eeuo pipefail
bin=(/usr/lib/postgresql/*/bin)
export PATH="${bin[-1]}:$PATH" PGDATA=${PGDATA:-/var/lib/postgresql/data}
[ "${1:-}" ] && [ "${1:0:1}" != - ] || set -- postgres "$@"
[ "$1" = postgres ] || exec "$@"
if [ "$(id -u)" = 0 ]; then
  mkdir -p "$PGDATA" /run/postgresql
  chown postgres:postgres "$PGDATA" /run/postgresql
  chmod 700 "$PGDATA"
  exec setpriv --reuid postgres --regid postgres --clear-groups "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  : "${POSTGRES_PASSWORD:?the superuser needs a password}"
  cp -a /usr/share/pg-template/. "$PGDATA"     # initdb was done when the image was built
  echo "listen_addresses = '*'" >>"$PGDATA/postgresql.conf"
  echo "host all all all ${POSTGRES_HOST_AUTH_METHOD:-scram-sha-256}" >>"$PGDATA/pg_hba.conf"
  pg_ctl -D "$PGDATA" -o "-c listen_addresses='' -c fsync=off" -w start
  psql -X -q -v ON_ERROR_STOP=1 -U postgres -d postgres -v p="$POSTGRES_PASSWORD" <<<"ALTER USER postgres PASSWORD :'p'"
  pg_ctl -D "$PGDATA" -m fast -w stop
fi
exec "$@"
