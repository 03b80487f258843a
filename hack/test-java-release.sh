#!/usr/bin/env bash
# Makes the jars that a release of java/ has, twice, in two folders, zones and languages: the bytes must be the same, and
# beside each jar there must be its sources and its Javadoc, as Maven Central wants them. The other modules have the same
# configuration. Takes flags of Maven.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# build DIRECTORY FLAGS...
build() {
    local directory=$work/$1
    shift
    mkdir -p "$directory"
    tar --exclude target -cf - java examples/java-webpage | tar -C "$directory" -xf -
    mvn --batch-mode --quiet --no-transfer-progress -Prelease "$@" -DskipTests -f "$directory/java/pom.xml" \
        -pl reschedule-client,reschedule-josdk -am package
}
version=$(sed -n 's:^  <version>\(.*\)</version>$:\1:p' java/pom.xml)
TZ=UTC LC_ALL=C build one "$@"
TZ=Asia/Tokyo LC_ALL=C.UTF-8 build the-other "$@"
for module in client josdk; do
    for kind in "" -sources -javadoc; do
        jar=java/reschedule-$module/target/reschedule-$module-$version$kind.jar
        cmp "$work/one/$jar" "$work/the-other/$jar"
    done
done
echo "java: two builds have the same bytes"
