//! The router: which path and method reaches which handler.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use http_body_util::BodyExt as _;
use tonic::codegen::Service as _;
use zillion_access::{Models, Principal};
use zillion_device::{Files, SystemClock};
use zillion_registry::Registry;

use super::{read_body, router};
use crate::config::ServeConfig;
use crate::domain::Domain;
use crate::network::Peer;

/// The router of a server without models.
fn empty_router(folder: &tempfile::TempDir) -> Router {
    router_of(folder, &ServeConfig::default())
}

/// The router of a server of a registry without versions.
fn router_of(folder: &tempfile::TempDir, config: &ServeConfig) -> Router {
    let url = folder.path().join("registry").display().to_string();
    let clock = Arc::new(SystemClock::new());
    let registry = Registry::create(&url, Files::new(), clock).expect("a registry");
    let metrics = prometheus::Registry::new();
    router(Arc::new(Domain::start(config, &registry, &Files::new(), &metrics).expect("a domain")))
}

/// Sends a request without a body; returns the status, the header `Allow` and the body.
fn send(router: &mut Router, method: &str, path: &str) -> (StatusCode, String, String) {
    send_from(router, Peer::for_tests(), method, path)
}

/// Sends a request of a peer without a body.
fn send_from(
    router: &mut Router,
    peer: Peer,
    method: &str,
    path: &str,
) -> (StatusCode, String, String) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let request = Request::builder().method(method).uri(path).body(Body::empty());
        let mut request = request.expect("a request");
        request.extensions_mut().insert(Arc::new(peer));
        let answer = router.call(request).await;
        let answer = answer.unwrap_or_else(|never| match never {});
        let allow = answer.headers().get(header::ALLOW);
        let allow = allow.map_or("", |allow| allow.to_str().expect("text")).to_owned();
        let status = answer.status();
        let body = answer.into_body().collect().await.expect("a body").to_bytes();
        (status, allow, String::from_utf8_lossy(&body).into_owned())
    })
}

#[test]
fn every_path_of_the_protocols_has_one_method() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut router = empty_router(&folder);
    let unknown = "`m`";
    for (method, path, part) in [
        ("GET", "/healthz", "live"),
        ("GET", "/readyz", "ready"),
        ("GET", "/metrics", "zillion_serving"),
        ("GET", "/openapi.json", "openapi"),
        ("GET", "/v2", "extensions"),
        ("GET", "/v2/", "extensions"),
        ("GET", "/v2/health/live", "live"),
        ("GET", "/v2/health/ready", "ready"),
        ("GET", "/v2/models/stats", "model_stats"),
        ("POST", "/v2/repository/index", "[]"),
        ("POST", "/v2/repository/models/m/load", unknown),
        ("POST", "/v2/repository/models/m/unload", unknown),
        ("GET", "/v2/models/m", unknown),
        ("GET", "/v2/models/%6D", unknown),
        ("GET", "/v2/models/m/ready", unknown),
        ("GET", "/v2/models/m/config", unknown),
        ("GET", "/v2/models/m/stats", unknown),
        ("POST", "/v2/models/m/infer", unknown),
        ("GET", "/v2/models/m/versions/3", unknown),
        ("GET", "/v2/models/m/versions/3/ready", unknown),
        ("GET", "/v2/models/m/versions/3/config", unknown),
        ("GET", "/v2/models/m/versions/3/stats", unknown),
        ("POST", "/v2/models/m/versions/3/infer", unknown),
        ("GET", "/v2/models/stats/ready", "`stats`"),
        ("GET", "/v1/models/m", unknown),
        ("GET", "/v1/models/m/versions/3", unknown),
        ("GET", "/v1/models/m/labels/canary", unknown),
        ("GET", "/v1/models/m/metadata", unknown),
        ("GET", "/v1/models/m/versions/3/metadata", unknown),
        ("GET", "/v1/models/m/labels/canary/metadata", unknown),
        ("POST", "/v1/models/m:predict", unknown),
        ("POST", "/v1/models/m:classify", unknown),
        ("POST", "/v1/models/m:regress", unknown),
        ("POST", "/v1/models/m:rank", unknown),
        ("POST", "/v1/models/m/versions/3:predict", unknown),
        ("POST", "/v1/models/m/labels/canary:predict", unknown),
    ] {
        let (status, _, body) = send(&mut router, method, path);
        assert!(body.contains(part), "{method} {path}: {status} {body}");
        assert!(!body.contains("unknown path"), "{method} {path}: {body}");
        let other = if method == "GET" { "POST" } else { "GET" };
        let (status, allow, body) = send(&mut router, other, path);
        assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED, "{other} {path}: {body}");
        let wanted = if method == "GET" { "GET, HEAD" } else { "POST" };
        assert_eq!(allow, wanted, "{other} {path}");
        let (status, ..) = send(&mut router, "HEAD", path);
        assert_eq!(status == StatusCode::METHOD_NOT_ALLOWED, method == "POST", "HEAD {path}");
    }
}

#[test]
fn only_the_index_says_where_the_registry_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().display().to_string();
    let follow = crate::Follow::Pointer("stable".to_owned());
    let config = ServeConfig {
        models: vec![("m".to_owned(), follow)],
        cache: folder.path().join("cache"),
        ..ServeConfig::default()
    };
    let mut router = router_of(&folder, &config);
    // The loader looks at the registry in a thread of its own.
    while !send(&mut router, "GET", "/readyz").2.contains("no_version") {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let infer = "/v2/models/m/infer";
    for (method, path) in [
        ("GET", "/readyz"),
        ("GET", "/v2/health/ready"),
        ("GET", "/v2/models/m"),
        ("GET", "/v2/models/m/ready"),
        ("GET", "/v1/models/m"),
        ("POST", infer),
    ] {
        let (status, _, body) = send(&mut router, method, path);
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{path}: {body}");
        assert!(body.contains("no_version") && !body.contains("never set"), "{path}: {body}");
        assert!(!body.contains(&at), "{path}: {body}");
    }
    let (_, _, index) = send(&mut router, "POST", "/v2/repository/index");
    assert!(index.contains("pointer `stable` was never set"), "{index}");
}

#[test]
fn a_caller_sees_only_its_own_models() {
    let folder = tempfile::tempdir().expect("a folder");
    let follow = || crate::Follow::Pointer("stable".to_owned());
    let config = ServeConfig {
        models: ["visible", "secret"].map(|name| (name.to_owned(), follow())).into(),
        cache: folder.path().join("cache"),
        ..ServeConfig::default()
    };
    let mut router = router_of(&folder, &config);
    for (method, path) in
        [("GET", "/openapi.json"), ("POST", "/v2/repository/index"), ("GET", "/v2/models/stats")]
    {
        let models = Models::Only(["visible".to_owned()].into());
        let limited = Peer::of_principal(Principal { models, ..Principal::anonymous() });
        let (status, _, all) = send(&mut router, method, path);
        let (limited_status, _, some) = send_from(&mut router, limited, method, path);
        assert_eq!((status, limited_status), (StatusCode::OK, StatusCode::OK), "{some}");
        assert!(!some.contains("secret"), "{path}: {some}");
        // Models without a loaded version have no statistics.
        let is_listed = path != "/v2/models/stats";
        assert_eq!(all.contains("secret") && some.contains("visible"), is_listed, "{path}: {some}");
    }
}

#[test]
fn unknown_paths_are_not_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut router = empty_router(&folder);
    for path in [
        "/",
        "/v3",
        "/v2/models",
        "/v2/models/",
        "/v2/models/m/",
        "/v2/models/m/x",
        "/v2/models/m/versions/x",
        "/v2/models/m/versions/03",
        "/v2/models/m/versions/+3",
        "/v2/models/%ff",
        "/v1/models/m:x",
        "/v1/models/:predict",
        "//v2",
        "/v1/models",
        "/v1/models/m/labels/:predict",
        "/metrics/",
    ] {
        let (status, _, body) = send(&mut router, "GET", path);
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}: {body}");
        assert!(body.contains("unknown path"), "{path}: {body}");
    }
}

#[test]
fn each_fuzz_seed_is_read_by_its_own_reader() {
    let seeds: [(&[u8], usize); 3] = [
        (include_bytes!("../../../fuzz/seeds/request_bodies/infer.json"), 0),
        (include_bytes!("../../../fuzz/seeds/request_bodies/binary.bin"), 1),
        (include_bytes!("../../../fuzz/seeds/request_bodies/examples.json"), 3),
    ];
    for (seed, reader) in seeds {
        assert!(read_body(seed)[reader], "{}", String::from_utf8_lossy(seed));
    }
}
