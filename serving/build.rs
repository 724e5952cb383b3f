//! Generates Rust from the gRPC interfaces in `proto/`, without `protoc`.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

/// The files that define services.
const FILES: [&str; 4] = [
    "grpc_service.proto",
    "zillion/retrieval.proto",
    "tensorflow_serving/apis/prediction_service.proto",
    "tensorflow_serving/apis/model_service.proto",
];

/// The methods whose messages hold rows. They are left out of the generated servers, because these
/// messages must be read by a task of the pool and not by a network thread.
const WITH_ROWS: [&str; 3] = ["ModelInfer", "Predict", "Retrieve"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).open_files(FILES)?;
    // The descriptors are those of the interfaces as they were published, for reflection.
    fs::write(out.join("descriptors.bin"), compiler.encode_file_descriptor_set())?;
    let mut files = compiler.file_descriptor_set();

    tonic_prost_build::configure()
        .build_server(false)
        .compile_well_known_types(true)
        .bytes(".")
        .btree_map(".")
        .include_file("messages.rs")
        .compile_fds(files.clone())?;

    for service in files.file.iter_mut().flat_map(|file| &mut file.service) {
        service.method.retain(|method| !WITH_ROWS.contains(&method.name()));
    }
    // A service without other methods needs no generated server.
    for file in &mut files.file {
        file.service.retain(|service| !service.method.is_empty());
    }
    let servers = out.join("servers");
    fs::create_dir_all(&servers)?;
    tonic_prost_build::configure()
        .build_client(false)
        .compile_well_known_types(true)
        .extern_path(".inference", "crate::proto::inference")
        .extern_path(".tensorflow", "crate::proto::tensorflow")
        .extern_path(".zillion", "crate::proto::zillion")
        .extern_path(".google.protobuf", "crate::proto::google::protobuf")
        .out_dir(&servers)
        .include_file("servers.rs")
        .compile_fds(files)?;
    Ok(())
}
