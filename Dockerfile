# The image of deploy/kubernetes: `docker build --tag zillion:0.1.0 .`

# The version of rust-toolchain.toml. A test compares the two.
ARG RUST_VERSION=1.95.0

FROM rust:${RUST_VERSION}-slim-bookworm AS build
# The image has gcc. The C++ compiler and make are for the C libraries that crates build.
# Versions are not pinned: the archive of Debian removes old ones, and then the build would fail.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ make \
    && rm -rf /var/lib/apt/lists/*
ARG RUST_VERSION
# rustup would otherwise install the components of rust-toolchain.toml, which a build does not need.
ENV RUSTUP_TOOLCHAIN=${RUST_VERSION}
WORKDIR /src
COPY . .
RUN cargo build --locked --release --package zillion \
    && install -D --strip target/release/zillion /out/zillion

# The same release of Debian as above: the binary needs its C library. Not distroless, because
# zillion-trainer is a shell script.
FROM debian:bookworm-slim
# Certificates are for registries in buckets.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 zillion \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin zillion
COPY --from=build /out/zillion /usr/local/bin/zillion
COPY --chmod=0755 deploy/bin/zillion-trainer /usr/local/bin/zillion-trainer
# The number and not the name, so that Kubernetes can see that it is not root.
USER 10001:10001
ENTRYPOINT ["zillion"]
CMD ["--help"]
