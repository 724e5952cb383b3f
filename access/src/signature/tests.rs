//! Tests of keys and signatures.

use zillion_device::Files;

use super::key::{parse_public_pem, public_pem};
use super::*;

fn create_key(folder: &std::path::Path, name: &str) -> (SigningKey, std::path::PathBuf) {
    let public = folder.join(format!("{name}.pub"));
    let private = folder.join(format!("{name}.key"));
    let key = SigningKey::create(&private, &public, &Files::new()).unwrap();
    assert_eq!(SigningKey::load(&private).unwrap().id(), key.id());
    (key, public)
}

#[test]
fn only_trusted_keys_and_unchanged_statements_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let (good, good_public) = create_key(folder.path(), "good");
    let (other, _) = create_key(folder.path(), "other");
    let trusted = folder.path().join("trusted");
    assert_eq!(TrustedKeys::add(&good_public, &trusted, &Files::new()).unwrap(), good.id());
    let trusted = TrustedKeys::load(&trusted).unwrap();

    let statement = version_statement("ctr", 7, "abc");
    let signature = good.sign(&statement);
    trusted.verify("version 7", &statement, std::slice::from_ref(&signature)).unwrap();
    let both = [other.sign(&statement), signature.clone()];
    trusted.verify("version 7", &statement, &both).unwrap();

    let refused = |statement: &[u8], signatures: &[Signature]| {
        trusted.verify("version 7", statement, signatures).unwrap_err().to_string()
    };
    assert!(refused(&statement, &[]).contains("no signature"));
    assert!(refused(&statement, &[other.sign(&statement)]).contains("no trusted key"));
    let moved = version_statement("ctr", 8, "abc");
    assert!(refused(&moved, std::slice::from_ref(&signature)).contains("does not match"));
    // A signature of one kind is not valid for the other kind, and not valid for other bytes.
    let pointer = pointer_statement("ctr", "stable", &statement);
    assert!(refused(&pointer, std::slice::from_ref(&signature)).contains("does not match"));
    let forged = Signature { key: good.id(), ed25519: other.sign(&statement).ed25519 };
    assert!(refused(&statement, &[forged]).contains("does not match"));
    let short = Signature { ed25519: "00".to_owned(), ..signature };
    assert!(refused(&statement, &[short]).contains("does not match"));
}

#[test]
fn a_key_is_never_overwritten_and_its_file_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (_, public) = create_key(folder.path(), "key");
    let private = folder.path().join("key.key");
    let again = SigningKey::create(&private, &public, &Files::new()).unwrap_err();
    assert!(again.to_string().contains("exists already"), "{again}");
    let mode = std::fs::metadata(&private).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0);
}

#[test]
fn keys_have_the_usual_form() {
    // The public key of RFC 8410, section 10.1.
    let text = "-----BEGIN PUBLIC KEY-----\n\
                MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n\
                -----END PUBLIC KEY-----\n";
    let key = parse_public_pem(text).unwrap();
    assert_eq!(public_pem(&key), text);
    assert!(parse_public_pem("-----BEGIN PUBLIC KEY-----\n!\n-----END PUBLIC KEY-----").is_none());
    // The private key of the same section, in a file without the public key.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rfc.key");
    let private = "-----BEGIN PRIVATE KEY-----\n\
                   MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n\
                   -----END PRIVATE KEY-----\n";
    std::fs::write(&path, private).unwrap();
    assert_eq!(SigningKey::load(&path).unwrap().id(), KeyId::of(&key));
}

#[test]
fn statements_with_other_borders_differ() {
    assert_ne!(version_statement("ab", 1, "c"), version_statement("a", 1, "bc"));
    assert_ne!(pointer_statement("ab", "c", b"d"), pointer_statement("a", "bc", b"d"));
}

#[test]
fn both_files_of_a_key_have_one_id() {
    let folder = tempfile::tempdir().unwrap();
    let (key, public) = create_key(folder.path(), "key");
    let private = folder.path().join("key.key");
    assert_eq!(KeyId::load(&public).unwrap(), (key.id(), KeyKind::Public));
    assert_eq!(KeyId::load(&private).unwrap(), (key.id(), KeyKind::Private));
    let (other, _) = create_key(folder.path(), "other");
    let signatures = [other.sign(b"statement"), key.sign(b"statement")];
    assert!(key.has_signed(b"statement", &signatures));
    assert!(!key.has_signed(b"another", &signatures));
    assert!(!key.has_signed(b"statement", &signatures[..1]));
    std::fs::write(&public, "text").unwrap();
    assert!(KeyId::load(&public).unwrap_err().to_string().contains("zillion key new"));
}
