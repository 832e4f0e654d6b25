#!/bin/sh
# certificates.sh FOLDER POD...: makes an authority in FOLDER, if there is none, and a key and a certificate for each pod in FOLDER/tls.
# A pod is named ROLE-ORDINAL; its certificate says POD.ROLE.kvasir. Existing ones are left alone. Needs openssl 1.1.1 or later.
set -eu
[ $# -ge 2 ] || { echo "usage: certificates.sh FOLDER POD..." >&2; exit 2; }
folder=$1
shift
umask 077
mkdir -p "$folder/tls"
ca=$folder/tls/ca.pem
new_key() { openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1" 2>/dev/null ||
  openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }
if [ ! -e "$folder/ca.key" ]; then
  new_key "$folder/ca.key"
  printf '[req]\ndistinguished_name = name\nx509_extensions = v3\n[name]\n[v3]\n%s\n%s\n' \
    'basicConstraints = critical, CA:true, pathlen:0' 'keyUsage = critical, keyCertSign, cRLSign' > "$folder/ca.conf"
  openssl req -x509 -new -key "$folder/ca.key" -days 3650 -config "$folder/ca.conf" -subj "/CN=kvasir cluster authority" -out "$ca"
fi
for pod in "$@"; do
  role=${pod%-*}
  [ ! -e "$folder/tls/$pod.pem" ] || continue
  new_key "$folder/tls/$pod.key"
  printf 'subjectAltName = DNS:%s\nkeyUsage = critical, digitalSignature\nextendedKeyUsage = serverAuth, clientAuth\nbasicConstraints = critical, CA:false\n' \
    "$pod.$role.kvasir" > "$folder/pod.ext"
  openssl req -new -key "$folder/tls/$pod.key" -subj "/CN=$pod" -config "$folder/ca.conf" -out "$folder/pod.csr"
  openssl x509 -req -in "$folder/pod.csr" -CA "$ca" -CAkey "$folder/ca.key" -CAcreateserial -days 365 \
    -extfile "$folder/pod.ext" -out "$folder/tls/$pod.pem" 2>/dev/null
done
rm -f "$folder/pod.csr" "$folder/pod.ext" "$folder/tls/ca.srl" "$folder"/*.srl
