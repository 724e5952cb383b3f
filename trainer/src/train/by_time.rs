//! Test, then train, by event time: rows of files are scored by the newest version that a run with
//! a given cadence would have published before them, and are learned from afterwards.
//!
//! With a cadence of ten minutes, the rows of each ten minutes of event time are first scored by
//! the state that has learned from all earlier rows. So a score depends on no later row, and the
//! figures of two cadences differ by their freshness alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zillion_feature::{Batch, Cursor, LookupPlan, PlanScratch, TimeUnit};
use zillion_reader::Dataset;

use super::opening::open_client;
use super::prepare::Start;
use super::{Run, TrainOptions};
use crate::error::{Error, Result};
use crate::evaluate::pipeline;
use crate::job::Job;
use crate::observer::Observer;
use crate::online::copy_rows;
use crate::pipeline::Planned;

/// Rows with the scores that they had before they were learned from.
#[derive(Clone, Copy, Debug)]
pub struct TimedScores<'a> {
    /// The event times in milliseconds since 1970.
    pub times: &'a [i64],
    /// The first label of each row.
    pub labels: &'a [f32],
    /// The scores of the first task, in log-odds.
    pub logits: &'a [f32],
    /// Whether the rows come from the test files; otherwise from the validation files.
    pub is_test: bool,
}

/// The counts of a pass over the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimedReport {
    /// The number of rows that were scored.
    pub rows: u64,
    /// The number of states that have scored rows after the first one.
    pub versions: u64,
}

/// Scores the rows of the validation files and then of the test files, which must be sorted by
/// event time, and learns from them after each span of `cadence`; `None`: never. The training files
/// are not read. The run begins with what [`TrainOptions::from`] has learned.
///
/// # Errors
/// Returns an error if the job has no event times, if the files are not sorted by them, or in the
/// cases of [`super::train`].
pub fn test_then_train(
    job: Job,
    options: TrainOptions,
    cadence: Option<Duration>,
    observer: &mut dyn Observer,
    take: &mut dyn FnMut(&TimedScores<'_>),
) -> Result<TimedReport> {
    let Some(unit) = job.schema.event_time_unit.filter(|_| job.schema.event_time.is_some()) else {
        return Err(Error::Unsupported(
            "rows are learned from by their event times, and the job has none; set \
             `columns.event_time` and `columns.event_time_unit`"
                .to_owned(),
        ));
    };
    let (mut run, basis) = Run::open(job, options, Instant::now(), &mut open_client, observer)?;
    run.prepare(Start::From(Box::new(basis)), observer)?;
    let span = cadence.map_or(i64::MAX, |cadence| cadence.as_millis().max(1) as i64);
    let mut pass = Pass {
        unit,
        span,
        learns: cadence.is_some(),
        group: None,
        last: i64::MIN,
        waiting: Vec::new(),
        scratch: PlanScratch::default(),
        report: TimedReport::default(),
    };
    let sets = [(run.data.valid.take(), false), (run.data.test.take(), true)];
    for (dataset, is_test) in sets {
        if let Some(dataset) = dataset {
            run.pass_over(&dataset, is_test, &mut pass, observer, take)?;
        }
    }
    Ok(pass.report)
}

/// The state of a pass over files.
struct Pass {
    unit: TimeUnit,
    /// The length of a span in milliseconds.
    span: i64,
    learns: bool,
    /// The span of the newest rows.
    group: Option<i64>,
    /// The time of the newest row.
    last: i64,
    /// The rows of the span, which are learned from when it has ended.
    waiting: Vec<(Batch, Arc<LookupPlan>)>,
    scratch: PlanScratch,
    report: TimedReport,
}

impl Run {
    fn pass_over(
        &mut self,
        dataset: &Dataset,
        is_test: bool,
        pass: &mut Pass,
        observer: &mut dyn Observer,
        take: &mut dyn FnMut(&TimedScores<'_>),
    ) -> Result<()> {
        let mut batches = pipeline(&self.job, dataset, &self.options.workers)?;
        while let Some(Planned { batch, .. }) = batches.next()? {
            let times = batch.event_time.as_deref().unwrap_or_default();
            let times: Vec<i64> =
                times.iter().map(|&time| pass.unit.to_ms(time).unwrap_or_default()).collect();
            let sorted = times.iter().try_fold(pass.last, |last, &t| (t >= last).then_some(t));
            let Some(last) = sorted else {
                return Err(Error::Unsupported(
                    "the rows of the validation and test files are not sorted by event time; sort \
                     them by the column `columns.event_time`"
                        .to_owned(),
                ));
            };
            pass.last = last;
            let mut begin = 0;
            while begin < times.len() {
                let group = times[begin].div_euclid(pass.span);
                let is_same = |time: &&i64| time.div_euclid(pass.span) == group;
                let end = begin + times[begin..].iter().take_while(is_same).count();
                if pass.group.replace(group) != Some(group) {
                    self.learn_waiting(pass, observer)?;
                }
                let rows = copy_rows(&self.job.schema, &batch, begin..end)?;
                self.score_rows(rows, &times[begin..end], is_test, pass, take)?;
                begin = end;
            }
        }
        Ok(())
    }

    fn score_rows(
        &mut self,
        rows: Batch,
        times: &[i64],
        is_test: bool,
        pass: &mut Pass,
        take: &mut dyn FnMut(&TimedScores<'_>),
    ) -> Result<()> {
        let plan = LookupPlan::build(&rows, &self.job.schema, &mut pass.scratch);
        let (logits, _) = self.score_with_missing(&rows, &plan)?;
        take(&TimedScores {
            times,
            labels: rows.labels.first().map(|label| &label.values[..]).unwrap_or_default(),
            logits: logits.first().map(Vec::as_slice).unwrap_or_default(),
            is_test,
        });
        pass.report.rows += rows.rows as u64;
        if pass.learns {
            pass.waiting.push((rows, Arc::new(plan)));
        }
        Ok(())
    }

    /// Learns from the rows of the span that has ended.
    fn learn_waiting(&mut self, pass: &mut Pass, observer: &mut dyn Observer) -> Result<()> {
        pass.report.versions += u64::from(!pass.waiting.is_empty());
        for (batch, plan) in pass.waiting.drain(..) {
            let Cursor { epoch, row } = self.position.cursor;
            let cursor = Cursor { epoch, row: row + batch.rows as u64 };
            let planned = Planned::new(batch, plan, cursor, Vec::new());
            self.train_and_count(planned, None, observer, &mut |run, _| run.drop_results(true))?;
            self.drop_results(false)?;
        }
        self.drop_results(true)
    }

    /// Takes the results of the batches whose results are known, or of all batches. Keeps only the
    /// plan of the last one.
    fn drop_results(&mut self, waits: bool) -> Result<()> {
        while let Some((begun, _)) = self.finish_batch(waits)? {
            self.buffers.last_plan = Some(begun.planned.plan);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::super::tests::Place;
    use super::*;
    use crate::observer::Silent;

    #[test]
    fn a_span_of_many_batches_leaves_none_behind() {
        let place = Place::new();
        let mut text = "user,item,price,label,time\n".to_owned();
        for row in 0..300 {
            writeln!(text, "{},{},0.5,{},{}", row % 40, row, row % 3 / 2, 1_700_000_000 + row)
                .unwrap();
        }
        std::fs::write(place.path("valid.csv"), text).unwrap();
        let more = "[columns]\nevent_time = 'time'\nevent_time_unit = 's'\n\
            [model]\nkind = 'lr'\n[train]\nbatch_size = 10\n";
        let mut job = place.job("timed", more);
        job.data.train.clone_from(&job.data.valid);
        let options = TrainOptions::new(1).unwrap();
        let (mut run, basis) =
            Run::open(job, options, Instant::now(), &mut open_client, &mut Silent).unwrap();
        run.prepare(Start::From(Box::new(basis)), &mut Silent).unwrap();
        let mut pass = Pass {
            unit: TimeUnit::Second,
            span: 200_000,
            learns: true,
            group: None,
            last: i64::MIN,
            waiting: Vec::new(),
            scratch: PlanScratch::default(),
            report: TimedReport::default(),
        };
        let dataset = run.data.valid.take().unwrap();
        let mut rows = 0;
        let mut count = |scores: &TimedScores<'_>| rows += scores.times.len();
        run.pass_over(&dataset, false, &mut pass, &mut Silent, &mut count).unwrap();
        assert_eq!((rows, pass.report.versions), (300, 1));
        assert_eq!((run.position.step, run.behind.len()), (20, 0));
    }
}
