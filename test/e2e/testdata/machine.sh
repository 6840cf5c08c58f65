#!/usr/bin/env bash
# A machine made of namespaces: its own network, processes, /etc, /var/lib, /usr/local/bin and /run.
# machine.sh DIR runs DIR/guide.sh in it. systemd is played by a script that starts a unit's
# ExecStart and waits until it is ready.
set -euo pipefail
dir=$1
mount --make-rprivate /
mount -t proc proc /proc
ip link set lo up
mkdir "$dir"/{etc,lib,local,run,bin,log}
cp -a /etc/. "$dir/etc"
for pair in etc:/etc lib:/var/lib local:/usr/local/bin run:/run; do
	mount --bind "$dir/${pair%%:*}" "${pair#*:}"
done
mkdir -p /etc/systemd/system
printf '127.0.0.1 localhost hub.example.test app.example.test\n' >/etc/hosts
rm -f /etc/adit/*

printf '#!/bin/sh\nexec "$@"\n' >"$dir/bin/sudo"
cat >"$dir/bin/systemctl" <<'END'
#!/usr/bin/env bash
set -euo pipefail
[ "$1 ${2:-}" = "enable --now" ] || exit 0
unit=/etc/systemd/system/$3.service
credentials=/run/credentials/$3
mkdir -p "$credentials"
while IFS=: read -r name file; do cp "$file" "$credentials/$name"; done < <(sed -n 's/^LoadCredential=//p' "$unit")
command=$(sed -n 's/^ExecStart=//p' "$unit")
setsid ${command//%d/$credentials} >"$LOGS/$3" 2>&1 &
port=9090
[ "$3" = adit-server ] || port=9091
for try in $(seq 100); do
	if curl -fs "http://127.0.0.1:$port/readyz" >/dev/null; then
		[ "$port" = 9090 ] || curl -s "http://127.0.0.1:$port/readyz" | grep -q '"pending"' || exit 0
		[ "$port" != 9090 ] || exit 0
	fi
	sleep 0.2
done
echo "$3 did not become ready" >&2
exit 1
END
chmod +x "$dir/bin/sudo" "$dir/bin/systemctl"
export LOGS=$dir/log PATH=$dir/bin:/usr/local/bin:$PATH
# Certificates are the internal CA's in this machine; its file appears with the server.
export CURL_CA_BUNDLE=/var/lib/adit/ca.crt
trap 'code=$?; [ $code = 0 ] || tail -n 40 "$dir"/log/*; exit $code' EXIT

ADIT_E2E_HOME=1 "$ORIGIN" &
bash "$dir/guide.sh"
exec 3<>/dev/tcp/127.0.0.1/2222
read -r -t 10 line <&3
echo "ssh says $line"
