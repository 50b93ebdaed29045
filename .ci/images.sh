#!/bin/bash
# images.sh postgres|mysql|mariadb: make the image that the tests start, from Debian's packages: no registry, no
# debootstrap. An image of that name that somebody else made, such as the official one, is used as it is. Prints the
# image's name. Nothing of the packages is run but what makes an empty data directory; their hashes come from the signed package lists. The address of the archive
# is the one that this machine's apt uses.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=${FENCE_CI_DIR:-/var/tmp/fence-ci}/images
arch=$(dpkg --print-architecture)
# what a server in a container does not need
exclude='^(perl.*|libperl.*|libgdbm.*|libdb5\.3.*|systemd.*|libsystemd-shared|usrmerge|adduser|passwd|login.*|debconf|ucf|sensible-utils|init-system-helpers|lib.*-perl|psmisc|iproute2|libbpf1|libxtables12|libelf1.*|libmnl0|lsof|rsync|gawk|socat|mysql-client|ssl-cert|openssl|libllvm.*|libz3-4|dpkg|sysvinit-utils|libsemanage.*|libsepol2|libpam-modules.*|libaudit-common|lsb-base|netbase|postgresql-common|postgresql-client-common|postgresql-common-dev|locales.*|libc-l10n)$'
tools='bash coreutils dash util-linux tzdata sed grep findutils libc-bin'
# an image made by these very files is used without asking the archive
key=$(cat "$here/images.sh" "$here"/*-entrypoint.sh | sha256sum | cut -c1-16)

say() { echo "images: $*" >&2; }

# apt with a state of its own: packages of another release, without touching this machine's
aptx() {
  local suite=$1 d=$work/apt/$1
  shift
  mkdir -p "$d"/{lists/partial,cache/archives/partial,pool,empty}
  : >"$d/status"
  echo "deb [signed-by=$keyring] $archive $suite main" >"$d/sources.list"
  apt-get -o Dir::Etc::sourcelist="$d/sources.list" -o Dir::Etc::sourceparts="$d/empty" -o Dir::Etc::preferences=/dev/null \
    -o Dir::Etc::preferencesparts="$d/empty" -o Dir::State::lists="$d/lists" -o Dir::State::status="$d/status" \
    -o Dir::State::extended_states="$d/ext" -o Dir::Cache="$d/cache" -o APT::Architecture="$arch" -o APT::Default-Release= \
    -o Acquire::Languages=none -o APT::Install-Recommends=false -o APT::Sandbox::User=root "$@"
}

# runs a program in the unpacked tree as this user
inside() {
  unshare -m sh -c 'mount --bind /dev "$1/dev"; r=$1; u=$2; shift 2; exec chroot --userspec="$u" "$r" "$@"' sh "$@"
}

# unpack SUITE ROOT PACKAGES: download the packages with all they depend on and unpack them
unpack() {
  local suite=$1 root=$2 d=$work/apt/$1 list=$2.list
  # shellcheck disable=SC2086 # lists of words
  aptx "$suite" install -y --print-uris $3 $tools 2>/dev/null | grep "^'" | tr -d "'" |
    EXCLUDE="$exclude" awk '{p=$2; sub(/_.*/,"",p); if (p !~ ENVIRON["EXCLUDE"]) print}' >"$list" || true
  [ -s "$list" ] || { say "$suite has no installable $3 today"; exit 1; }
  awk -v p="$d/pool" '{print $1, p "/" $2, $4}' "$list" |
    while read -r uri file hash; do [ -s "$file" ] || echo "$uri $file $hash"; done >"$list.get"
  if [ -s "$list.get" ]; then
    (cd "$d/pool" && xargs -n 90 -P 4 /usr/lib/apt/apt-helper -o APT::Sandbox::User=root download-file <"$list.get" >/dev/null)
  fi
  rm -rf "$root"
  mkdir -p "$root"/{usr/bin,usr/sbin,usr/lib,usr/lib64,etc,run,var/lib,var/log,root,proc,sys,dev}
  local x
  for x in bin sbin lib lib64; do ln -s usr/$x "$root/$x"; done
  mkdir -m 1777 "$root/tmp" "$root/var/tmp"
  ln -s /run "$root/var/run"
  awk '{print $2}' "$list" | while read -r x; do
    dpkg-deb --fsys-tarfile "$d/pool/$x" | tar -x --keep-directory-symlink -C "$root" --exclude='./usr/share/doc*' \
      --exclude='./usr/share/man*' --exclude='./usr/share/locale*' --exclude='./usr/share/info*' \
      --exclude='./usr/lib/systemd*' --exclude='./usr/share/lintian*' --exclude='./usr/bin/my[siap]*' \
      --exclude='./usr/bin/ibd2sdi' --exclude='./usr/bin/innochecksum' --exclude='./usr/bin/perror' \
      --exclude='./usr/bin/zlib_decompress'
  done
  printf '%s:x:%s:%s::%s:%s\n' root 0 0 /root /bin/sh postgres 999 999 /var/lib/postgresql /bin/sh \
    mysql 998 998 /var/lib/mysql /bin/sh nobody 65534 65534 / /bin/false \
    >"$root/etc/passwd"
  printf '%s:x:%s:\n' root 0 postgres 999 mysql 998 nogroup 65534 >"$root/etc/group"
  printf 'hosts: files dns\npasswd: files\ngroup: files\n' >"$root/etc/nsswitch.conf"
  [ -e "$root/bin/sh" ] || ln -s dash "$root/bin/sh"
}

# postgres SUITE VERSION: the image postgres:VERSION
postgres() {
  local suite=$1 tag=postgres:$2 root=$work/root-postgres-$2 bin x
  aptx "$suite" update -qq
  unpack "$suite" "$root" "postgresql-$2"
  install -m755 "$here/postgres-entrypoint.sh" "$root/usr/bin/docker-entrypoint.sh"
  mkdir -p "$root/var/lib/postgresql/data" "$root/run/postgresql" "$root/usr/share/pg-template"
  chown -R 999:999 "$root/var/lib/postgresql" "$root/run/postgresql" "$root/usr/share/pg-template"
  bin=usr/lib/postgresql/$2/bin
  for x in "$root/$bin"/*; do [ -e "$root/usr/bin/${x##*/}" ] || ln -s "/$bin/${x##*/}" "$root/usr/bin/"; done
  inside "$root" 999:999 "/$bin/initdb" --no-sync -E UTF8 --locale=C.UTF-8 -U postgres --auth=trust \
    -D /usr/share/pg-template >/dev/null
  tar -C "$root" --numeric-owner -c . | docker import -c 'ENTRYPOINT ["/usr/bin/docker-entrypoint.sh"]' -c 'EXPOSE 5432' \
    -c 'ENV LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin PGDATA=/var/lib/postgresql/data' \
    -c 'CMD ["postgres"]' -c "LABEL fence.ci=$key" - "$tag" >/dev/null
  # `docker import` knows no STOPSIGNAL; SIGINT is PostgreSQL's fast shutdown
  printf 'FROM %s\nSTOPSIGNAL SIGINT\n' "$tag" | DOCKER_BUILDKIT=0 docker build -q -t "$tag" - >/dev/null 2>&1
  rm -rf "$root"
  say "$tag built"
}

# innodb SUITE TAG PACKAGES: an image of MySQL or MariaDB with an empty data directory to copy
innodb() {
  local suite=$1 tag=$2 root=$work/root-${2/:/-} server=mysqld
  aptx "$suite" update -qq
  unpack "$suite" "$root" "$3"
  install -m755 "$here/mysql-entrypoint.sh" "$root/usr/bin/docker-entrypoint.sh"
  mkdir -p "$root"/{usr/share/my-template,var/lib/mysql,var/lib/mysql-files,run/mysqld,etc/mysql}
  printf '%s\n' '[mysqld]' datadir=/var/lib/mysql socket=/run/mysqld/mysqld.sock pid-file=/run/mysqld/mysqld.pid \
    'bind-address=*' skip-name-resolve >"$root/etc/my.cnf"
  cp "$root/etc/my.cnf" "$root/etc/mysql/my.cnf"
  chown 998:998 "$root"/{usr/share/my-template,var/lib/mysql,var/lib/mysql-files,run/mysqld}
  if [ -x "$root/usr/sbin/mariadbd" ]; then
    server=mariadbd
    inside "$root" 0:0 /usr/bin/mariadb-install-db --no-defaults --user=mysql --datadir=/usr/share/my-template \
      --skip-test-db --skip-name-resolve --force --auth-root-authentication-method=normal --innodb-log-file-size=16M >/dev/null
  else
    inside "$root" 998:998 /usr/sbin/mysqld --no-defaults --initialize-insecure --datadir=/usr/share/my-template \
      --innodb-redo-log-capacity=8M --innodb-flush-log-at-trx-commit=0 --skip-log-bin 2>"$root.log" ||
      { cat "$root.log" >&2; exit 1; }
  fi
  tar -C "$root" --numeric-owner -c . | docker import -c 'ENTRYPOINT ["/usr/bin/docker-entrypoint.sh"]' -c 'EXPOSE 3306' \
    -c 'ENV LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' -c "CMD [\"$server\"]" \
    -c "LABEL fence.ci=$key" - "$tag" >/dev/null
  rm -rf "$root"
  say "$tag built"
}

# usable TAG: it is there, and not of an older version of these files (FENCE_CI_REFRESH=1 makes it anew all the same)
usable() {
  local label
  [ -z "${FENCE_CI_REFRESH:-}" ] || return 1
  label=$(docker image inspect -f '{{index .Config.Labels "fence.ci"}}' "$1" 2>/dev/null) || return 1
  [ -z "$label" ] || [ "$label" = "$key" ]
}

prepare() {
  command -v apt-get >/dev/null || { say "not a Debian machine: pull or build the image yourself"; exit 1; }
  [ "$(id -u)" = 0 ] || { say "only root can build the image; pull it, or run as root"; exit 1; }
  # the first archive that is not one of updates only
  archive=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' |
    awk '$2 !~ /security|updates|backports/ {print $1; exit}')
  [ -n "$archive" ] || { say "apt has no archive configured"; exit 1; }
  keyring=$(grep -rhoiE '(signed-by: *|signed-by=)/[^] ]+' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null |
    grep -oE '/.*' | grep debian | head -1) || true
  keyring=${keyring:-/usr/share/keyrings/debian-archive-keyring.gpg}
  mkdir -p "$work"
}

# The newest first; it may be only in the release that moves.
case ${1:-} in
  postgres) candidates=('sid postgres:18' 'trixie postgres:17') ;;
  mysql) candidates=('sid mysql:9.7') ;;
  mariadb) candidates=('trixie mariadb:11.8' 'sid mariadb:11.8') ;;
  *) say "usage: images.sh postgres|mysql|mariadb"; exit 2 ;;
esac
for candidate in "${candidates[@]}"; do
  read -r suite tag <<<"$candidate"
  if usable "$tag"; then say "$tag is there"; echo "$tag"; exit 0; fi
  [ -n "${archive:-}" ] || prepare
  # a job, not a condition: inside a condition `set -e` is off
  case $1 in
    postgres) postgres "$suite" "${tag#*:}" & ;;
    mysql) innodb "$suite" "$tag" mysql-server-core & ;;
    mariadb) innodb "$suite" "$tag" 'mariadb-server-core mariadb-client-core mariadb-client' & ;;
  esac
  if wait $!; then echo "$tag"; exit 0; fi
done
exit 1
