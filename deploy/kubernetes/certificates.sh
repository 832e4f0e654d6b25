#!/bin/sh
# certificates.sh FOLDER POD...: makes an authority in FOLDER, if there is none, and for each pod a key and a certificate in FOLDER/ROLE, beside the
# authority's own certificate: a secret for each role, so that none holds the keys of another. A pod is named ROLE-ORDINAL; its certificate says
# POD.ROLE.kvasir and is good for 365 days, or for as many as CERTIFICATE_DAYS says. One that is good for 30 days more is left alone. Needs openssl 1.1.1 or later.
set -eu
[ $# -ge 2 ] || { echo "usage: certificates.sh FOLDER POD..." >&2; exit 2; }
folder=$1
shift
umask 077
mkdir -p "$folder"
ca=$folder/ca.pem
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
  tls=$folder/$role
  mkdir -p "$tls"
  cp "$ca" "$tls/ca.pem"
  if openssl x509 -checkend 2592000 -noout -in "$tls/$pod.pem" > /dev/null 2>&1; then continue; fi
  new_key "$tls/$pod.key"
  printf 'subjectAltName = DNS:%s\nkeyUsage = critical, digitalSignature\nextendedKeyUsage = serverAuth, clientAuth\nbasicConstraints = critical, CA:false\n' \
    "$pod.$role.kvasir" > "$folder/pod.ext"
  openssl req -new -key "$tls/$pod.key" -subj "/CN=$pod" -config "$folder/ca.conf" -out "$folder/pod.csr"
  openssl x509 -req -in "$folder/pod.csr" -CA "$ca" -CAkey "$folder/ca.key" -CAcreateserial -days "${CERTIFICATE_DAYS:-365}" \
    -extfile "$folder/pod.ext" -out "$tls/$pod.pem" 2>/dev/null
done
rm -f "$folder/pod.csr" "$folder/pod.ext" "$folder"/*.srl
