#!/usr/bin/env bash
# josdk-of-a-tag.sh GIT TAG: compiles JOSDK's core of a tag and installs it into bin/m2, a Maven repository for
# -Pnewest before the release of that version is at hand. GIT is a clone of operator-framework/java-operator-sdk.
set -euo pipefail
git=$1
repository=$(cd "$(dirname "$0")/.." && pwd)/bin/m2
tag=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git -C "$git" archive "$tag" pom.xml operator-framework-core/src/main | tar -xC "$work"
cd "$work"
# version PROPERTY: what the tag's own build uses.
version() { sed -n "s:.*<$1>\(.*\)</$1>.*:\1:p" pom.xml; }
fabric8=$(version fabric8-client.version)
main=operator-framework-core/src/main
sed -i -e "s/\${project.version}/${tag#v}/" -e "s/\${fabric8-client.version}/$fabric8/" \
    "$main/java-templates/io/javaoperatorsdk/operator/api/config/Versions.java"
cp -r "$main/java-templates/." "$main/java/"
# dependency GROUP ARTIFACT VERSION
dependency() { echo "<dependency><groupId>$1</groupId><artifactId>$2</artifactId><version>$3</version></dependency>"; }
cat >core.xml <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>io.javaoperatorsdk</groupId>
  <artifactId>operator-framework-core</artifactId>
  <version>${tag#v}</version>
  <properties>
    <maven.compiler.release>17</maven.compiler.release>
    <project.build.sourceEncoding>UTF-8</project.build.sourceEncoding>
  </properties>
  <dependencies>
    $(dependency io.fabric8 kubernetes-client "$fabric8")
    $(dependency io.github.java-diff-utils java-diff-utils "$(version java.diff.version)")
    $(dependency org.slf4j slf4j-api "$(version slf4j.version)")
  </dependencies>
  <build>
    <sourceDirectory>$main/java</sourceDirectory>
    <resources><resource><directory>$main/resources</directory></resource></resources>
    <plugins>
      <plugin><artifactId>maven-compiler-plugin</artifactId><version>3.13.0</version><configuration><proc>none</proc></configuration></plugin>
      <plugin><artifactId>maven-install-plugin</artifactId><version>3.1.3</version></plugin>
    </plugins>
  </build>
</project>
POM
mvn --batch-mode --quiet --no-transfer-progress -Dmaven.repo.local="$repository" -f core.xml -Dmaven.test.skip install
