//! The time of a run in each stage, and the recording of its profile.

use std::time::{Duration, Instant};

use super::Run;
use crate::profile::{Profiler, Stage};
use crate::stage_seconds::{Lap, StageSeconds};

/// The seconds of each stage so far, and the profiler if the caller asked for one.
#[derive(Default)]
pub(super) struct Timing {
    pub(super) seconds: StageSeconds,
    pub(super) profiler: Option<Box<Profiler>>,
}

impl Timing {
    /// Adds a stretch of time of the thread that drives the run to a stage.
    pub(super) fn add(&mut self, stage: Stage, lap: Lap) {
        if let Some(sum) = seconds_of(&mut self.seconds, stage) {
            *sum += lap.seconds();
        }
        if let Some(profiler) = &mut self.profiler {
            profiler.stage(stage, lap);
        }
    }
}

/// Returns the field that sums the time of a stage. Returns `None` for stages whose time is
/// recorded only in profiles.
fn seconds_of(seconds: &mut StageSeconds, stage: Stage) -> Option<&mut f64> {
    Some(match stage {
        Stage::Wait => &mut seconds.wait,
        Stage::Pull => &mut seconds.pull,
        Stage::Model => &mut seconds.model,
        Stage::Staging | Stage::Push => &mut seconds.push,
        Stage::Optimizer => &mut seconds.dense,
        Stage::Other => &mut seconds.other,
        Stage::Checkpoint => &mut seconds.checkpoint,
        Stage::Publish => &mut seconds.publish,
        Stage::Validate => &mut seconds.validate,
        Stage::Prepare | Stage::Test => return None,
    })
}

impl Run {
    /// Runs `work` and adds its time to `stage`.
    pub(super) fn stage<T>(&mut self, stage: Stage, work: impl FnOnce(&mut Self) -> T) -> T {
        let begin = Instant::now();
        let result = work(self);
        self.timing.add(stage, Lap { begin, end: Instant::now() });
        result
    }

    /// Adds the time since `begin`, in which the push and the dense optimizer ran, to their stages.
    ///
    /// With one thread, the push and the optimizer run one after the other, and each has its own
    /// time. With several threads, both run at the same time until `joined`. The whole time is then
    /// added to the stage that took longer.
    pub(super) fn count_push_and_optimizer(
        &mut self,
        begin: Instant,
        joined: Instant,
        (pushing, optimizing): (Duration, Duration),
    ) {
        let pushed = match self.options.workers.threads() {
            1 => begin + pushing,
            _ if pushing >= optimizing => joined,
            _ => begin,
        };
        if pushed > begin {
            self.timing.add(Stage::Push, Lap { begin, end: pushed });
        }
        self.timing.add(Stage::Optimizer, Lap { begin: pushed, end: Instant::now() });
    }

    /// Ends the recording of the last batch, and begins to record the next one if it is due.
    pub(super) fn profile_next_batch(&mut self) {
        let Self { options, model, timing, .. } = self;
        if let (Some(profiler), Ok(executor)) = (&mut timing.profiler, model.executor.cpu_mut()) {
            profiler.begin_batch(&options.workers, executor);
        }
    }

    /// Ends the recording of the last batch of an epoch.
    pub(super) fn profile_end(&mut self) {
        let Self { options, model, timing, .. } = self;
        if let (Some(profiler), Ok(executor)) = (&mut timing.profiler, model.executor.cpu_mut()) {
            profiler.end_batch(&options.workers, executor);
        }
    }
}
