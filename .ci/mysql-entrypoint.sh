#!/bin/bash
# Small stand-in for the entrypoints of the official images of MySQL and MariaDB, the part that the tests use:
# MYSQL_ROOT_PASSWORD. The account is made with --init-file of the final server, which runs before the port is opened, so
# there is no second start.
set -Eeuo pipefail
data=/var/lib/mysql server=/usr/sbin/mysqld
[ ! -x /usr/sbin/mariadbd ] || server=/usr/sbin/mariadbd
case ${1:-} in
  mysqld | mariadbd) shift ;;
  '' | -*) ;;
  *) exec "$@" ;;
esac
mkdir -p $data /run/mysqld
chown mysql:mysql $data /run/mysqld
init=()
if [ ! -d $data/mysql ]; then
  : "${MYSQL_ROOT_PASSWORD:?the root user needs a password}"
  password=${MYSQL_ROOT_PASSWORD//\\/\\\\}
  password=${password//\'/\'\'}
  cp -a /usr/share/my-template/. $data
  init=(--init-file=/run/mysqld/init.sql)
  # one statement a line: MariaDB wants it so
  printf '%s\n' "CREATE USER IF NOT EXISTS 'root'@'%' IDENTIFIED BY '$password';" \
    "GRANT ALL ON *.* TO 'root'@'%' WITH GRANT OPTION;" \
    "ALTER USER 'root'@'localhost' IDENTIFIED BY '$password';" >/run/mysqld/init.sql
  chown mysql /run/mysqld/init.sql
  chmod 600 /run/mysqld/init.sql
fi
exec $server --user=mysql "${init[@]}" "$@"
