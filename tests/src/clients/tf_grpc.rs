//! Tests with the gRPC clients of TensorFlow Serving, which the script `tests/clients/tf_grpc.py`
//! runs.

use super::triton_grpc::{published, served};
use super::{Python, run};
use crate::server::MODEL;

#[test]
fn tensorflow_servings_grpc_clients_work_unmodified() {
    let Some(python) = Python::get() else { return };
    let (place, rows) = published();
    let (mut server, grpc, version) = served(&place);
    let arguments = [&server.address, &grpc, MODEL, &version, &rows];
    let said = run(&mut python.script("tf_grpc.py", &arguments));
    assert!(said.contains("all right"), "{said}");
    assert!(server.terminate().success());
}
