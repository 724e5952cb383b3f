//! Tests of versions whose rows have a smaller number type than those of training.

use zillion_rows::RowType;
use zillion_scorer::Servable;

use super::*;

/// Loads a version as a server does, which replays its parity rows.
fn load(run: &Run, version: VersionId, cache: &mut Cache) -> Servable {
    let workers = Arc::new(Workers::new(NonZeroUsize::MIN).unwrap());
    Servable::load(run.model(), version, None, cache, &workers, &mut Unthrottled).unwrap()
}

/// Reopens the publisher of a run with another number type of published rows.
fn reopen_with(run: &mut Run, row_type: RowType) {
    let config = run.job.publish.as_mut().unwrap();
    config.rows = row_type;
    config.clone().set_rows(&mut run.job.tables).unwrap();
    run.table.layouts = run.job.tables.iter().map(TableSpec::layout).collect();
    run.publisher = open(&run.job, run.folder.path(), &run.clock, &Files::new(), false);
}

#[test]
fn a_server_scores_rounded_rows_as_the_trainer_does() {
    for row_type in RowType::ALL {
        let mut run = Run::new(true, &format!("rows = '{}'", row_type.name()));
        let caches = [("mapped", false), ("records", true)].map(|(name, has_records)| {
            let mut cache = Cache::open(&run.folder.path().join(name), "m", Files::new()).unwrap();
            cache.set_row_records(has_records);
            cache
        });
        let mut caches = caches;
        for number in 1..=12 {
            let version = run.publish().unwrap().version;
            assert_eq!(version.is_base(), number == 1);
            let listed = run.model().layer(&version).unwrap();
            assert!(listed.tables.iter().all(|table| table.row_type == row_type));
            for cache in &mut caches {
                let loaded = load(&run, version.version, cache);
                assert_eq!(loaded.rows().tables()[0].published, row_type);
            }
            // The rows of training have other scores, so the parity rows prove the rounding.
            let Publisher { parity, scorer, .. } = &mut run.publisher;
            let mut tables = run.job.tables.clone();
            tables.iter_mut().for_each(|table| table.published = RowType::F32);
            let scored = parity.score(scorer, &tables, &mut run.table, &run.params).unwrap();
            let is_same = VersionFile::of("json", &scored.to_json()) == version.parity;
            assert_eq!(is_same, row_type.is_f32(), "{row_type:?}");
        }
        assert!(run.publish_again(Wish::default()).unwrap().was_there);
    }
}

#[test]
fn another_number_type_begins_a_base() {
    let mut run = Run::new(true, "");
    run.publish().unwrap();
    assert!(continues(&run.publish().unwrap(), 1));
    reopen_with(&mut run, RowType::Int8);
    assert!(run.publish().unwrap().version.is_base());
    assert!(continues(&run.publish().unwrap(), 3));
    reopen_with(&mut run, RowType::F32);
    assert!(run.publish().unwrap().version.is_base());
    // The registry itself refuses a delta of another type.
    let parent = run.model().version(VersionId(4)).unwrap();
    let draft = Draft {
        parent: Some(parent.link()),
        frame: run.publisher.frame.clone(),
        layer: run.model().layer(&parent).unwrap(),
        folder: None,
        dense: None,
        parity: Vec::new(),
        items: None,
        origin: Origin { run: "run".to_owned(), ..Origin::default() },
    };
    let said = run.model().publish(draft).unwrap_err().to_string();
    assert!(said.contains("another number type"), "{said}");
}

#[test]
fn int8_is_refused_for_rows_that_grow() {
    let text = "[data]\ntrain = ['rows.csv']\n[features.user]\nkind = 'id'\n[labels.click]\n\
                [tables.'*']\ndim = 4\ngrow = { at = 5 }\n[model]\nkind = 'deepfm'\nhidden = [5]\n\
                [publish]\nregistry = 'r'\nrows = ";
    let read = |rows: &str| {
        let value: toml::Table = toml::from_str(&format!("{text}'{rows}'\n")).unwrap();
        Job::from_value(value.into()).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(read("f16"), Ok(()));
    let said = read("int8").unwrap_err();
    assert!(said.contains("publish.rows") && said.contains("`user`"), "{said}");
    let said = read("int4").unwrap_err();
    assert!(said.contains("publish.rows") && said.contains("int4"), "{said}");
}
