//! The token of a cluster, and the addresses that a server without a token refuses.

use std::num::NonZeroUsize;
use std::process::Command;

use zillion_ps::conformance::specs;
use zillion_ps::{RemoteClient, TableOptions, Token};

use super::servers::{ServerProcess, options};
use crate::harness::binary;

#[test]
fn a_server_with_a_token_serves_only_those_who_show_it() {
    let store = tempfile::tempdir().unwrap();
    let file = store.path().join("token");
    let other = store.path().join("other");
    std::fs::write(&file, "a secret that is long enough".replace(' ', "-")).unwrap();
    std::fs::write(&other, "another-secret-of-someone").unwrap();
    let path = file.to_str().unwrap();
    let server = ServerProcess::start(store.path(), &["--token-file", path]);
    let open = |token: Option<&std::path::Path>| {
        let options = zillion_ps::RemoteOptions {
            token: token.map(|file| Token::read(file).unwrap()),
            patience: std::time::Duration::from_secs(1),
            ..options(vec![server.address.clone()], "run", store.path())
        };
        RemoteClient::open(options, TableOptions::new(specs(), NonZeroUsize::MIN))
    };
    let refused = open(None).unwrap_err().to_string();
    assert!(refused.contains("shows no token"), "{refused}");
    let refused = open(Some(&other)).unwrap_err().to_string();
    assert!(refused.contains("shows another token"), "{refused}");
    assert!(!refused.contains("someone"), "{refused}");
    drop(open(Some(&file)).unwrap());

    let status = |more: &[&str]| {
        let mut command = Command::new(binary());
        command.args(["ps", "status", &server.address]).args(more);
        command.output().unwrap().status.success()
    };
    assert!(!status(&[]));
    assert!(status(&["--token-file", path]));
}

#[test]
fn an_address_that_others_reach_needs_a_token() {
    let store = tempfile::tempdir().unwrap();
    let mut command = Command::new(binary());
    command.args(["ps", "serve", "--listen", "0.0.0.0:0", "--store"]).arg(store.path());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("has no token"), "{text}");
}
