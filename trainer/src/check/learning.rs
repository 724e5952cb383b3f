//! The check of learning settings: it reports effects of the schedule, the losses and the frozen
//! parts that are easily overlooked.

use zillion_nn::Mode;
use zillion_nn::optim::Decay;

use super::report::Findings;
use crate::job::Job;

/// Reports the effects of learning settings that are easily overlooked. `rows` is the number of
/// rows in an epoch, if it is known.
pub(super) fn report_consequences(job: &Job, rows: Option<u64>, findings: &mut Findings) {
    let train = &job.train;
    let step_rows = (train.batch_size.get() * train.accumulate.get()) as u64;
    let steps = rows.map(|rows| rows.div_ceil(step_rows) * train.epochs);
    if let (Some(schedule), Some(steps)) = (&train.schedule, steps) {
        let falls = match schedule.decay {
            Some(Decay::Cosine { steps, .. } | Decay::Linear { steps, .. }) => steps,
            Some(Decay::Step { every, .. }) => every,
            None => 0,
        };
        let whole = schedule.warmup_steps + falls;
        if schedule.warmup_steps >= steps {
            findings.warning(
                "train.schedule.warmup_steps",
                format!(
                    "the run has about {steps} steps, so the rate never reaches its full value; \
                     set fewer warm-up steps"
                ),
            );
        } else if whole > steps {
            findings.note(
                "train.schedule.decay",
                format!(
                    "the run has about {steps} steps, but the schedule has {whole}, so the run \
                     ends before the schedule; shorten the schedule, or train for more epochs"
                ),
            );
        }
    }
    for label in &job.schema.labels {
        if label.kind.is_binary() && !job.loss_of(&label.name).is_plain() {
            findings.note(
                &format!("train.loss.{}", label.name),
                "scores rank rows but are not probabilities, so their calibration and log loss have no meaning",
            );
        }
    }
    let tables = job.frozen_tables().unwrap_or_default();
    let names = tables.iter().map(|table| job.tables[table.index()].name.as_str());
    let names: Vec<&str> = names.collect();
    if !names.is_empty() {
        findings.note(
            "train.freeze_tables",
            format!(
                "{}: no step changes, creates or evicts a row; a run that does not begin from a checkpoint reads all rows with \
                 their initial values",
                names.join(", ")
            ),
        );
    }
    frozen_parameters(job, findings);
}

fn frozen_parameters(job: &Job, findings: &mut Findings) {
    if job.train.freeze.is_empty() {
        return;
    }
    // Problems of the model are found where its memory is counted.
    let Ok(mut graph) = job.graph(Mode::Train) else { return };
    let was: Vec<bool> = graph.params.iter().map(|param| param.trainable).collect();
    if job.freeze(&mut graph).is_err() {
        return;
    }
    let frozen = graph.params.iter().zip(was).filter(|(param, was)| *was && !param.trainable);
    let frozen: Vec<&str> = frozen.map(|(param, _)| param.name.as_str()).collect();
    findings.note("train.freeze", format!("frozen: {}", frozen.join(", ")));
}
