# Short commands; `just` lists them. Arguments go through: `just test-crate nn optim`.

# Lists the commands.
default:
    @just --list

# Compiles everything without running it.
check:
    cargo check --workspace --all-targets

# Formats the code, then checks it as CI does.
lint:
    cargo fmt --all
    cargo clippy --workspace --all-targets --release -- -D warnings

# Runs unit tests and the rules of structure and style: no end-to-end tests, no soak, no long property tests.
test-fast:
    cargo test --workspace --lib --exclude zillion-tests --exclude zillion-embedding --exclude zillion-rows
    cargo test -p zillion-tests -- tidy

# Runs the unit tests of one crate, for example `just test-crate nn optim`.
test-crate crate *filter:
    cargo test -p zillion-{{crate}} --lib -- {{filter}}

# Runs some end-to-end tests, for example `just test-e2e resume`.
test-e2e *filter:
    cargo test --workspace --release --no-run
    cargo test -p zillion-tests --release -- {{filter}}

# Runs all tests.
test:
    cargo test --workspace --release

# Runs what CI runs.
ci:
    .ci/run

# Checks spelling (`pip install typos`).
typos:
    typos

# Checks licences, advisories and sources of dependencies (`cargo install cargo-deny --locked`).
deny:
    cargo deny check

# Builds the documentation of all crates and opens it.
doc:
    cargo doc --workspace --no-deps --open

# Runs the whole loop on made-up data.
quickstart:
    cargo run --release -- quickstart

# Builds what is shipped: the binary, and its line tables in a file beside it that debuggers and `perf` find.
dist:
    cargo build --profile dist
    cd "${CARGO_TARGET_DIR:-target}/dist" && objcopy --only-keep-debug zillion zillion.debug \
        && objcopy --strip-debug --add-gnu-debuglink=zillion.debug zillion

# Builds the wheel of the Python package for glibc 2.28 and later (`pip install maturin==1.16.0 ziglang==0.17.1`).
wheel out='dist':
    maturin build --release --zig --compatibility manylinux_2_28 --manifest-path python/Cargo.toml --out {{out}}

# Builds the reference of the Python package (`pip install ./python pdoc==16.0.0`).
reference out='target/reference':
    python3 python/reference.py {{out}}

# Measures training of a model, for example `just bench-train deepfm 2`.
bench-train model='deepfm' threads='2': synth
    cargo run --release -- bench train --model {{model}} --data target/bench/train.parquet \
        --threads {{threads}}

# Measures lookups and updates of a table.
bench-tables rows='1000000' threads='2':
    cargo run --release -- bench embedding --rows {{rows}} --threads {{threads}}

# Measures a server.
bench-serve:
    cargo run --release -- bench serve

# Makes the click log that `bench-train` reads.
synth:
    cargo run --release -- data synth --rows 1000000 --out target/bench

# Writes the files of dashboards and alerts from their lists.
dashboards:
    python3 dashboards/make.py
