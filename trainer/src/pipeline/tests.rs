//! Tests that batches come in the order of the data and with the same plans, for every number of
//! batches ahead and of threads, and that no more batches are prepared than asked for.

use std::fmt::Write as _;
use std::time::Duration;

use tempfile::TempDir;
use zillion_feature::PlanScratch;
use zillion_reader::{BatchOrder, Dataset};

use super::*;

const ROWS: usize = 530;
const BATCH: usize = 16;

fn job(folder: &TempDir, more: &str) -> Job {
    let text = format!(
        "[data]\nroot = {:?}\ntrain = ['train.csv']\n{more}\n\
         [features.user]\nkind = 'id'\n[features.item]\nkind = 'id'\n[features.price]\nkind = 'numeric'\n\
         [labels.click]\ncolumn = 'label'\n[tables.'*']\ndim = 4\n[model]\nkind = 'lr'",
        folder.path()
    );
    let value: toml::Table = toml::from_str(&text).unwrap();
    Job::from_value(value.into()).unwrap()
}

/// Writes a file whose row `bad` has a number that cannot be read.
fn folder(bad: Option<usize>) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut text = "user,item,price,label\n".to_owned();
    for row in 0..ROWS {
        let price = if bad == Some(row) { "much".to_owned() } else { format!("0.{row}") };
        writeln!(text, "{},{},{price},{}", row * 7 % 50, row * row % 31, row % 2).unwrap();
    }
    std::fs::write(folder.path().join("train.csv"), text).unwrap();
    folder
}

fn workers(threads: usize) -> Arc<Workers> {
    Arc::new(Workers::new(NonZeroUsize::new(threads).unwrap()).unwrap())
}

fn stream(job: &Job, workers: &Arc<Workers>) -> BatchStream {
    let files = job.data.files(&job.data.train).unwrap();
    let order = BatchOrder { seed: 3, shuffle: true, batch_rows: BATCH, drop_last: false };
    let dataset = Dataset::open(&job.data, &files, &job.schema).unwrap();
    dataset.batches(order, Cursor::default(), workers.clone()).unwrap()
}

fn pipeline(job: &Job, workers: &Arc<Workers>, place: TrainerPlace, ahead: usize) -> Pipeline {
    let ahead = NonZeroUsize::new(ahead).unwrap();
    let options = AheadOptions { workers: workers.clone(), place, ahead, stager: None };
    Pipeline::new(stream(job, workers), Arc::new(job.schema.clone()), options)
}

/// Returns the text of a batch, its plan and its position.
fn text(planned: &Planned) -> String {
    format!("{:?} {:?} {:?} {:?}", planned.batch, planned.plan, planned.cursor, planned.rejected)
}

fn texts(pipeline: &mut Pipeline) -> Vec<String> {
    let mut texts = Vec::new();
    while let Some(planned) = pipeline.next().unwrap() {
        texts.push(text(&planned));
    }
    assert!(pipeline.next().unwrap().is_none());
    texts
}

/// Decodes and plans batch after batch, without a pipeline.
fn expected(job: &Job, place: TrainerPlace) -> Vec<String> {
    let mut batches = stream(job, &workers(1));
    let mut scratch = PlanScratch::default();
    let mut texts = Vec::new();
    while let Some(item) = batches.next() {
        let (batch, cursor) = item.unwrap();
        let plan = match texts.len() % place.count == place.index {
            true => LookupPlan::build(&batch, &job.schema, &mut scratch),
            false => LookupPlan::default(),
        };
        let rejected = batches.take_rejected();
        texts.push(text(&Planned::new(batch, Arc::new(plan), cursor, rejected)));
    }
    texts
}

#[test]
fn every_number_of_batches_ahead_gives_the_same_batches() {
    let (good, bad) = (folder(None), folder(Some(222)));
    let jobs = [
        (job(&good, ""), TrainerPlace::ALONE),
        (job(&good, ""), TrainerPlace { index: 1, count: 3 }),
        (job(&bad, "max_bad_rows = 5"), TrainerPlace::ALONE),
    ];
    for (job, place) in &jobs {
        let expected = expected(job, *place);
        assert!(expected.len() > 30);
        for threads in 1..=3 {
            let workers = workers(threads);
            for ahead in [1, 2, 3, 7, 100] {
                let mut pipeline = pipeline(job, &workers, *place, ahead);
                assert!(texts(&mut pipeline) == expected, "{ahead} ahead on {threads} threads");
                assert_eq!(pipeline.ending.rows, ROWS as u64);
                assert!(pipeline.seconds > 0.0 && pipeline.times.is_some());
            }
        }
    }
}

#[test]
fn batches_before_an_error_come_first_and_nothing_after_it() {
    let folder = folder(Some(300));
    let job = job(&folder, "");
    for (threads, ahead) in [(1, 1), (1, 8), (2, 1), (3, 8), (3, 100)] {
        let workers = workers(threads);
        let mut pipeline = pipeline(&job, &workers, TrainerPlace::ALONE, ahead);
        let mut batches = 0;
        let error = loop {
            match pipeline.next() {
                Ok(planned) => batches += usize::from(planned.is_some()),
                Err(error) => break error.to_string(),
            }
        };
        // The row is in one of the batches of the order, and the batches before it are whole.
        let mut direct = stream(&job, &workers);
        let before = direct.by_ref().take_while(Result::is_ok).count();
        assert_eq!(batches, before);
        assert!(error.contains("price"), "{error}");
        assert!(pipeline.next().unwrap().is_none());
    }
}

#[test]
fn no_more_batches_are_prepared_than_asked_for() {
    let folder = folder(None);
    let job = job(&folder, "");
    let workers = workers(2);
    for ahead in [1, 2, 5] {
        let mut pipeline = pipeline(&job, &workers, TrainerPlace::ALONE, ahead);
        for taken in 1..=6 {
            let planned = pipeline.next().unwrap().unwrap();
            let Next::Ahead(Some(prepared)) = &pipeline.next else {
                panic!("the stream has ended")
            };
            // The tasks fill the queue and then stop. If they did not, the queue would grow on.
            prepared.wait_until_full();
            assert_eq!(prepared.decoded(), ahead, "{taken} taken");
            std::thread::sleep(Duration::from_millis(2));
            assert_eq!(prepared.decoded(), ahead, "{taken} taken");
            assert_eq!(planned.cursor.row, (BATCH * taken) as u64);
        }
    }
}

#[test]
fn a_pipeline_that_is_dropped_gives_back_its_pool() {
    let folder = folder(None);
    let job = job(&folder, "");
    for threads in [1, 3] {
        for taken in [0, 1, 9] {
            let workers = workers(threads);
            let mut pipeline = pipeline(&job, &workers, TrainerPlace::ALONE, 4);
            for _ in 0..taken {
                pipeline.next().unwrap().unwrap();
            }
            drop(pipeline);
            // A task that has begun ends by itself. Nothing holds the pool after it.
            while Arc::strong_count(&workers) > 1 {
                std::thread::yield_now();
            }
        }
    }
}
