#!/usr/bin/env bash
# image.sh DIRECTORY: makes the files of the operator's image, without a container engine:
#
#   app/jre       the modules of this JDK that the operator needs, and the libraries of the system that they need
#   app/lib       the jars, which mvn package has copied
#   app/args      the arguments of java
#   app/app.jsa   the archive of classes, written after two deliveries (Training)
#
# image.sh DIRECTORY IMAGE: also pushes them as an image, with the crane of $CRANE. JAVA_HOME is a JDK of at least 17.
#
# With PROJECT, the directory of the same operator in a framework, and MAIN, its class: without an archive, after a trial.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(mkdir -p "$1" && cd "$1" && pwd)
image=${2:-}
java_home=${JAVA_HOME:-$(dirname "$(dirname "$(readlink -f "$(command -v javac)")")")}
project=${PROJECT:-$here}
main=${MAIN:-dev.reschedule.examples.webpage.Main}
modules=java.base,java.logging,java.management,java.naming,java.net.http,java.xml,jdk.crypto.ec,jdk.httpserver,jdk.unsupported
[ "$project" = "$here" ] || modules+=,java.desktop,jdk.zipfs # for java.beans in Spring, and the jar of Quarkus

rm -rf "${root:?}"/*
mkdir -p "$root"/{app/lib,etc,tmp}
chmod 1777 "$root/tmp"
echo 'nonroot:x:65532:65532:nonroot:/:/sbin/nologin' >"$root/etc/passwd"
find "$project/target" -maxdepth 2 \( -path '*/target/lib/*.jar' -o -path '*/target/webpage*.jar' \) -exec cp {} "$root/app/lib/" \;
"$java_home/bin/jlink" --module-path "$java_home/jmods" --add-modules "$modules" --strip-debug --no-header-files --no-man-pages --output "$root/app/jre"
# The loader, the C library, and what else the system gives the JVM: the image has no other base.
{ find "$root/app/jre" -name '*.so' -exec ldd {} + ; ldd "$root/app/jre/bin/java"; } | grep -oE '(=> )?/[^ ]+ \(' | tr -d '=> (' | grep -v "^$root" | sort -u |
    while read -r file; do install -D "$file" "$root/$file"; done

# A JVM takes an archive only with the class path, the sizes and the times of the jars that it was made with. So the
# paths are relative, the order is fixed, and the times are what the image has.
cd "$root/app"
cat >args <<ARGS
-XX:SharedArchiveFile=app.jsa -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -XX:MaxRAMPercentage=60
-cp $(printf '%s\n' lib/*.jar | LC_ALL=C sort | paste -sd:)
ARGS
find "$root" -exec touch --no-dereference --date=@0 {} +
if [ "$project" = "$here" ]; then
    jre/bin/java -Xshare:dump >/dev/null 2>&1
    keystore=$(mktemp -u)
    trap 'rm -f "$keystore" "$keystore.pem"' EXIT
    "$java_home/bin/keytool" -genkeypair -alias training -keyalg RSA -dname CN=127.0.0.1 -ext san=ip:127.0.0.1 -storetype PKCS12 -storepass training -keystore "$keystore" 2>/dev/null
    "$java_home/bin/keytool" -exportcert -rfc -alias training -storepass training -keystore "$keystore" -file "$keystore.pem" 2>/dev/null
    # Without what is in the environment of this machine.
    env -i sh -c 'jre/bin/java $(sed s/SharedArchiveFile=/ArchiveClassesAtExit=/ args) dev.reschedule.examples.webpage.Training "$0" "$0.pem"' "$keystore"
else
    sed -i s/-XX:SharedArchiveFile=app.jsa// args
    # It starts as in the pod of service.yaml, which has no directory to write into.
    exec 3< <(exec env -i PORT=0 KUBERNETES_MASTER=https://127.0.0.1:1 KUBERNETES_NAMESPACE=trial RESCHEDULE_SUBJECTS=trial \
        timeout 60 jre/bin/java -Djava.io.tmpdir=/nonexistent @args "$main" 2>&1)
    trial=$!
    grep --max-count=1 "Deliveries are served" <&3
    kill $trial
fi
find "$root" -exec touch --no-dereference --date=@0 {} +
[ -n "$image" ] || exit 0

tar=$(mktemp)
trap 'rm -f "${keystore:-}" "${keystore:-}.pem" "$tar"' EXIT
tar -C "$root" --owner=0 --group=0 --mtime=@0 --sort=name --numeric-owner -cf "$tar" .
"$CRANE" append -f "$tar" -t "$image" >/dev/null
"$CRANE" mutate "$image" --set-platform "linux/$(go env GOARCH)" --user 65532 --workdir /app \
    --entrypoint /app/jre/bin/java --cmd "@args,$main" -t "$image"
