//! Generates Rust from the interface of administration in `proto/`, without `protoc`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-changed=build.rs");
    generate()
}

#[cfg(feature = "server")]
fn generate() -> Result<(), Box<dyn Error>> {
    let files = protox::compile(["zillion/ps/v1/admin.proto"], ["proto"])?;
    tonic_prost_build::configure().include_file("admin.rs").compile_fds(files)?;
    Ok(())
}

/// Does nothing, because a trainer does not have the interface.
#[cfg(not(feature = "server"))]
fn generate() -> Result<(), Box<dyn Error>> {
    Ok(())
}
