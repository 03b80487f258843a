# Sourced: how all Go programs are compiled, so that what is compiled for one serves the others.
#
# grpcnotrace leaves out a debug page of gRPC's, which no program here serves. Its templates make the linker keep
# methods without a caller: a fifth of the adapter. What debuggers read is a seventh of the compiler's time, and no
# release has it; go build with flags of your own compiles it. Panics and profiles have their lines without.
# .ko.yaml and hack/cluster/.ko.yaml have the same flags, which test/manifests holds.
export CGO_ENABLED=0 GOFLAGS='-trimpath -tags=grpcnotrace -gcflags=all=-dwarf=false'
