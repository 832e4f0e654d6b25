#!/bin/sh
# Writes the file of this pod and becomes its process. A pod is named ROLE-ORDINAL; its id follows from both, as routers compute it.
set -eu
umask 077
role=${POD_NAME%-*}
ordinal=${POD_NAME##*-}
case $role in
  kvstore) first=100000 ;;
  prefill) first=200000 ;;
  decode) first=300000 ;;
  router) first=900000 ;;
  *) echo "start.sh: $POD_NAME is named after no role" >&2; exit 1 ;;
esac
mkdir -p "$RUN/tls"
# Copies that only this process can read: what a volume mounts has the mode and the group of the volume.
cp "$TLS/ca.pem" "$TLS/$POD_NAME.pem" "$TLS/$POD_NAME.key" "$RUN/tls/"
cp "$SECRET" "$RUN/cluster-secret"
cat "$CONFIG/common.toml" "$CONFIG/$role.toml" | sed \
  -e "s/@NAME@/$POD_NAME/" -e "s/@IP@/$POD_IP/" -e "s/@ID@/$((first + 16 * ordinal + 1))/" > "$RUN/kvasir.toml"
exec kvasir "$role" --config "$RUN/kvasir.toml" --name "$POD_NAME" --log info
