//! Tests of versions that name the number type of their dense layers.

use zillion_nn::DenseType;
use zillion_registry::RoundedDense;
use zillion_scorer::{Servable, published_dense};

use super::*;

fn load(run: &Run, version: VersionId, dense: Option<DenseType>) -> Servable {
    let workers = Arc::new(Workers::new(NonZeroUsize::MIN).unwrap());
    let mut cache = Cache::open(&run.folder.path().join("cache"), "m", Files::new()).unwrap();
    let pace = &mut Unthrottled;
    Servable::load_as(dense, run.model(), version, None, &mut cache, &workers, pace).unwrap()
}

#[test]
fn a_version_names_the_type_and_a_server_may_choose_another() {
    let mut run = Run::new(true, "dense = 'int8'");
    let version = run.publish().unwrap().version;
    assert_eq!(version.frame.settings.dense, Some(RoundedDense::Int8));
    assert_eq!(published_dense(&version), DenseType::Int8);
    for (own, used) in [
        (None, DenseType::Int8),
        (Some(DenseType::F32), DenseType::F32),
        (Some(DenseType::Int8), DenseType::Int8),
    ] {
        assert_eq!(load(&run, version.version, own).dense(), used, "{own:?}");
    }
    assert!(run.publish_again(Wish::default()).unwrap().was_there);
    // Another type is another version, which may be a difference.
    run.job.publish.as_mut().unwrap().dense = DenseType::F32;
    run.publisher = open(&run.job, run.folder.path(), &run.clock, &Files::new(), false);
    let other = run.publish_again(Wish::default()).unwrap();
    assert!(!other.was_there);
    assert_eq!(other.version.frame.settings.dense, None);
    assert_eq!(load(&run, other.version.version, None).dense(), DenseType::F32);
}

#[test]
fn an_unknown_type_of_a_job_is_refused() {
    let text = "registry = 'r'\ndense = 'int4'";
    let said = toml::from_str::<PublishConfig>(text).unwrap_err().to_string();
    assert!(said.contains("f32, bf16, int8"), "{said}");
}
