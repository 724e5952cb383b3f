//! Tests of the loader with versions that cannot be loaded.

mod follow;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zillion_device::{Files, SystemClock};
use zillion_feature::{FeatureKey, Schema, SideColumn, SideIndex, SideTable};
use zillion_registry::{
    Draft, FrameDraft, Model, MoveKind, NewFrame, Origin, Registry, STABLE, ScoreSettings,
    VersionManifest, write_side,
};
use zillion_rows::layer::{LayerWriter, Throttle, Unthrottled, part_count};
use zillion_rows::{InitializerSpec, OptimizerSpec, SegmentSpec, TableSpec};

use super::slices::{Slices, is_stop};
use super::watch::Watch;
use crate::config::{Follow, ServeConfig};
use crate::domain::Domain;
use crate::metrics::Metrics;

const JOB: &str = "
    [features.zip]
    kind = 'id'
    side = 's'
    [labels.y]
    [side.s]
    path = 's.csv'
    key = 'k'
";

fn open(folder: &Path) -> Registry {
    let url = folder.join("registry").display().to_string();
    Registry::create(&url, Files::new(), Arc::new(SystemClock::new())).unwrap()
}

fn publish(folder: &Path, model: &Model, sides: Vec<Vec<u8>>) -> VersionManifest {
    let staged = folder.join("staged");
    std::fs::create_dir_all(&staged).unwrap();
    let constant = InitializerSpec::Constant { value: 0.5 };
    let segment = SegmentSpec::new("vector", 2, constant, OptimizerSpec::Sgd { lr: 0.1 });
    let spec = TableSpec::new("zip", vec![segment]);
    let (files, mut pace) = (Files::new(), Unthrottled);
    let mut writer = LayerWriter::new(&files, &staged, &mut pace);
    writer.table(&spec.layout(), part_count(1, 2)).unwrap();
    writer.push(FeatureKey(7), Some(&[1.0, 2.0]), 1).unwrap();
    let layer = writer.finish().unwrap();
    let frame = NewFrame::new(FrameDraft {
        schema: schema(),
        tables: vec![spec],
        statistics: Default::default(),
        graph: b"graph".to_vec(),
        settings: ScoreSettings { lanes: 8, tile_rows: 256, dense: None, onnx: false },
        sides,
    })
    .unwrap();
    let draft = Draft {
        parent: None,
        frame: Arc::new(frame),
        layer,
        folder: Some(staged),
        dense: Some(b"dense".to_vec()),
        parity: b"parity".to_vec(),
        items: None,
        origin: Origin::default(),
    };
    model.publish(draft).unwrap()
}

fn schema() -> Schema {
    Schema::from_job(&JOB.parse::<toml::Table>().unwrap().into()).unwrap()
}

/// Returns a side table with numbers for a feature of ids, which the encoder refuses.
fn misfit() -> Vec<u8> {
    let mut index = SideIndex::default();
    index.push(FeatureKey::from_u64(3)).unwrap();
    let columns = vec![(0, SideColumn::Numbers(vec![1.0]))];
    write_side(&schema(), &SideTable { index: Arc::new(index), columns }).unwrap()
}

/// Waits until the model shows a problem that contains `text`.
fn wait_for_problem(domain: &Domain, text: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let problem = domain.host("clicks").unwrap().open().problem.clone().unwrap_or_default();
        if problem.contains(text) {
            return;
        }
        assert!(Instant::now() < deadline, "the problem is `{problem}` and not `{text}`");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_version_that_panics_is_refused_and_loading_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let registry = open(folder.path());
    let model = registry.model("clicks").unwrap();
    publish(folder.path(), &model, vec![misfit()]);
    let config = ServeConfig {
        models: vec![("clicks".to_owned(), Follow::Latest)],
        cache: folder.path().join("cache"),
        poll: Duration::from_millis(5),
        server: "panic-at-version-1".to_owned(),
        ..ServeConfig::default()
    };
    let metrics = prometheus::Registry::new();
    let domain = Arc::new(Domain::start(&config, &registry, &Files::new(), &metrics).unwrap());
    wait_for_problem(&domain, "version 1 is refused, because the loader panicked on its contents");
    let text = domain.metrics_text().unwrap();
    let panics = |text: &str| {
        let series = "zillion_serving_loader_panics_total{model=\"clicks\"} ";
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.and_then(|count| count.parse::<u64>().ok()).unwrap()
    };
    assert!(panics(&text) >= 1);
    // The thread lives: it finds the next version, and another fault.
    publish(folder.path(), &model, Vec::new());
    wait_for_problem(&domain, "version 2 cannot be used");
    // A server that stops ends its loaders and refuses requests to the registry.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert!(runtime.block_on(domain.index_for_client()).is_ok());
    domain.drain();
    let said = runtime.block_on(domain.index_for_client()).unwrap_err().to_string();
    assert!(said.contains("the server is stopping"), "{said}");
    assert!(domain.load("other", Follow::Latest).is_err());
}

#[test]
fn a_load_ends_at_the_next_piece() {
    let metrics = Arc::new(Metrics::new(&prometheus::Registry::new()).unwrap());
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut pace = Slices::new(Arc::default(), stop.clone(), metrics);
    pace.piece();
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pace.piece()));
    assert!(is_stop(ended.unwrap_err().as_ref()));
    let defect = std::panic::catch_unwind(|| std::panic::resume_unwind(Box::new("defect")));
    assert!(!is_stop(defect.unwrap_err().as_ref()));
}

#[test]
fn the_problem_of_another_pointer_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let model = open(folder.path()).model("clicks").unwrap();
    let version = publish(folder.path(), &model, Vec::new()).version;
    for pointer in [STABLE, "canary"] {
        model.promote(pointer, version, MoveKind::Promote, "test", None).unwrap();
    }
    let log = folder.path().join("registry/clicks/pointers/canary/00000000000000/000");
    std::fs::write(log.join("00000000000000000002.json"), b"{ damaged").unwrap();
    std::fs::create_dir_all(folder.path().join("registry/clicks/pointers/_backup")).unwrap();
    let mut watch = Watch::default();
    let look = watch.look(&model, &Follow::Pointer(STABLE.to_owned()), &[]).unwrap();
    assert_eq!(look.current, Some(version));
    assert_eq!(look.labels.keys().collect::<Vec<_>>(), [STABLE]);
    assert_eq!(watch.warnings().len(), 1, "{:?}", watch.warnings());
    assert!(watch.warnings().iter().all(|text| text.contains("pointer `canary` is left out")));
    // The followed pointer decides, and its damage is an error.
    assert!(watch.look(&model, &Follow::Pointer("canary".to_owned()), &[]).is_err());
    assert_eq!(watch.look(&model, &Follow::Latest, &[]).unwrap().current, Some(version));
    assert_eq!(watch.look(&model, &Follow::Pointer("none".to_owned()), &[]).unwrap().current, None);
}
