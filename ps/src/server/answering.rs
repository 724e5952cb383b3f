//! The answers of the engine to the questions and requests of operators, between two frames.

use zillion_feature::{FeatureKey, TableId};

use super::ending::EndingKind;
use super::engine::Engine;
use super::questions::{Explained, Found, Question, Reached, Refused, Requested};
use super::run::Run;
use crate::code::ErrorCode;

impl Engine {
    /// Answers a question. The client may have gone meanwhile.
    pub(super) fn ask(&mut self, question: Question) {
        match question {
            Question::Show { answer } => {
                self.show();
                drop(answer.send(Ok(())));
            }
            Question::Explain { table, key, answer } => {
                drop(answer.send(self.explain(&table, key)))
            }
            // An operator who was told that the server did not answer may have tried again.
            Question::Checkpoint { answer } if answer.is_closed() => {}
            Question::Restore { answer, .. } if answer.is_closed() => {}
            Question::Checkpoint { answer } => drop(answer.send(self.request_checkpoint())),
            Question::Restore { step, answer } => drop(answer.send(self.restore(step))),
        }
    }

    fn open_run(&mut self) -> Result<&mut Run, Refused> {
        let refused = |text: String| Refused { code: ErrorCode::NoRun, text };
        match &mut self.run {
            None => Err(refused("the server has no run; start the trainers of a run".to_owned())),
            Some(run) => match run.ended.clone() {
                None => Ok(run),
                Some(ending) => Err(refused(format!(
                    "no run is open: generation {} of the run `{}` has ended, because {}; start \
                     its trainers, or wait until they have begun the next generation",
                    run.settings.generation, run.settings.run, ending.cause
                ))),
            },
        }
    }

    fn explain(&mut self, table: &str, key: FeatureKey) -> Result<Explained, Refused> {
        let run = self.open_run()?;
        let specs = &run.settings.tables;
        let Some(at) = specs.iter().position(|spec| spec.name == table) else {
            let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
            let text =
                format!("unknown table `{table}` (the run has: {}); name one", names.join(", "));
            return Err(Refused { code: ErrorCode::Argument, text });
        };
        let failed = |e: crate::error::Error| Refused { code: e.code(), text: e.to_string() };
        let (spec, id) = (specs[at].clone(), TableId(at as u16));
        let (run_name, generation, step) =
            (run.settings.run.clone(), run.settings.generation, run.step);
        let key = run.find(id, key).map_err(failed)?;
        let rows = run.statistics().get(at).map_or(0, |table| table.rows);
        let found = key.map(|key| Found { spec, rows, key });
        Ok(Explained { run: run_name, generation, step, found })
    }

    fn request_checkpoint(&mut self) -> Result<Requested, Refused> {
        let (boot, figures) = (self.boot(), self.figures());
        let run = self.open_run()?;
        let (name, generation) = (run.settings.run.clone(), run.settings.generation);
        let number = figures.request_checkpoint();
        tracing::info!(run = name, generation, number, "a checkpoint is requested");
        Ok(Requested { run: name, generation, boot, number })
    }

    fn restore(&mut self, step: Option<u64>) -> Result<Reached, Refused> {
        let run = self.open_run()?;
        if let Some(step) = step
            && !run.checkpoints.contains(&step)
        {
            let kept: Vec<String> = run.checkpoints.iter().map(u64::to_string).collect();
            let kept = if kept.is_empty() { "none".to_owned() } else { kept.join(", ") };
            let text = format!(
                "the run has no checkpoint of step {step} (it has: {kept}); name one of them"
            );
            return Err(Refused { code: ErrorCode::Argument, text });
        }
        let which = match step {
            Some(step) => format!("the checkpoint of step {step}"),
            None => "the newest checkpoint".to_owned(),
        };
        let cause = format!("an operator has set the run back to {which}");
        let reached = Reached {
            run: run.settings.run.clone(),
            generation: run.settings.generation,
            step: run.step,
        };
        run.end_by(&cause, EndingKind::Restore(step));
        self.show();
        Ok(reached)
    }
}
