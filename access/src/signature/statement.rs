//! The statements: the bytes that are signed. A statement begins with a text that names its kind
//! and format, so a signature of one kind is never valid for another kind. The length of each field
//! comes before the field, so two different statements never have the same bytes.

/// Returns the bytes that the signature of a version covers. They contain the chain hash. The chain
/// hash covers the manifest, and the manifest contains the hash of every file.
pub fn version_statement(model: &str, version: u64, chain: &str) -> Vec<u8> {
    let mut bytes = b"zillion-version-1\0".to_vec();
    push(&mut bytes, model.as_bytes());
    push(&mut bytes, &version.to_le_bytes());
    push(&mut bytes, chain.as_bytes());
    bytes
}

/// Returns the bytes that the signature of a pointer move covers. They contain all fields of the
/// move.
pub fn pointer_statement(model: &str, pointer: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = b"zillion-pointer-1\0".to_vec();
    push(&mut bytes, model.as_bytes());
    push(&mut bytes, pointer.as_bytes());
    push(&mut bytes, body);
    bytes
}

fn push(bytes: &mut Vec<u8>, field: &[u8]) {
    bytes.extend_from_slice(&(field.len() as u64).to_le_bytes());
    bytes.extend_from_slice(field);
}
