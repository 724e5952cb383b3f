//! Tests of control actions and their lines in the audit log.

use std::future::poll_fn;
use std::net::IpAddr;
use std::path::Path;
use std::task::Poll;

use zillion_access::AuditLog;
use zillion_device::{Files, SystemClock};
use zillion_registry::Registry;

use super::*;
use crate::config::ServeConfig;

/// Returns the domain of a registry without models, with an audit log.
fn domain(folder: &Path, model_control: bool) -> Arc<Domain> {
    let url = folder.join("registry").display().to_string();
    let clock = Arc::new(SystemClock::new());
    let registry = Registry::create(&url, Files::new(), clock).expect("a registry");
    let log = AuditLog::open(&folder.join("audit.jsonl"), Duration::ZERO).expect("a log");
    let audit = Some(Arc::new(log));
    let config = ServeConfig { model_control, audit, ..ServeConfig::default() };
    let metrics = prometheus::Registry::new();
    Arc::new(Domain::start(&config, &registry, &Files::new(), &metrics).expect("a domain"))
}

fn actor() -> Actor {
    Actor { who: "operator".to_owned(), from: "10.0.0.1".to_owned() }
}

fn audit(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("audit.jsonl")).expect("a log")
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(test);
}

#[test]
fn the_outcome_is_written_when_the_client_has_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let domain = domain(folder.path(), true);
    run(async {
        for load in [true, false] {
            let (domain, actor) = (domain.clone(), actor());
            let mut asked = Box::pin(async move {
                match load {
                    true => domain.load_for_client(&actor, "absent").await,
                    false => domain.unload_for_client(&actor, "absent").await,
                }
            });
            // The request begins, and its client leaves.
            poll_fn(|context| {
                assert!(asked.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            drop(asked);
        }
        let began = Instant::now();
        while audit(folder.path()).matches("\"outcome\":\"failed\"").count() < 2 {
            assert!(began.elapsed() < Duration::from_secs(60), "{}", audit(folder.path()));
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    });
    assert_eq!(audit(folder.path()).lines().count(), 4, "{}", audit(folder.path()));
}

#[test]
fn refused_actions_and_handshakes_are_in_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let domain = domain(folder.path(), false);
    run(async {
        let refused = domain.load_for_client(&actor(), "clicks").await;
        assert!(matches!(refused, Err(ServeError::NoControl { .. })), "{refused:?}");
        domain.unload_for_client(&actor(), "clicks").await.expect_err("no control");
    });
    let address = IpAddr::from([10, 0, 0, 2]);
    let kind = std::io::ErrorKind::InvalidData;
    domain.record_handshake(address, &std::io::Error::new(kind, "no certificate"));
    // A load balancer that only connects is no refused caller.
    domain.record_handshake(address, &std::io::ErrorKind::UnexpectedEof.into());
    // The end of the domain writes what waits.
    drop(domain);
    let text = audit(folder.path());
    assert_eq!(text.lines().count(), 3, "{text}");
    let has =
        |parts: &[&str]| text.lines().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(has(&["operator", "\"no_control\"", "\"detail\":\"load\""]), "{text}");
    assert!(has(&["operator", "\"no_control\"", "\"detail\":\"unload\""]), "{text}");
    assert!(has(&["10.0.0.2", "\"tls\"", "\"handshake\"", "no certificate"]), "{text}");
}
